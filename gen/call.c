/* SPDX-License-Identifier: Apache-2.0 */
/* call.c - a kernel with its tensors bound: everything is validated once after a change, then runs
 * cost nothing. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

struct bound {
    void *data; /* NULL: not bound */
    int rank;
    int64_t shape[MAX_RANK];
};

struct moegen_call {
    struct unit *unit;
    bool ready;  /* validated since the last change */
    int threads; /* 0: the kernel's default */
    struct bound bound[MAX_ARGS];
    int64_t given[MAX_DIMS]; /* sizes set by hand, or -1 */
    void *own, *lent;        /* workspace */
    size_t own_bytes, lent_bytes;
    union cell { /* the kernel's argument structure */
        const void *pointer;
        int64_t size;
    } cell[MAX_ARGS + MAX_DIMS + 2];
};

moegen_status moegen_call_create(const moegen_kernel *kernel, moegen_call **call,
                                 moegen_error **err)
{
    if (!kernel || !call)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "kernel and call must not be NULL");
    moegen_call *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    for (int i = 0; i < MAX_DIMS; i++)
        c->given[i] = -1;
    unit_retain(kernel->unit);
    c->unit = kernel->unit;
    *call = c;
    return MOEGEN_OK;
}

void moegen_call_release(moegen_call *call)
{
    if (!call)
        return;
    unit_release(call->unit);
    free(call->own);
    free(call);
}

/* ---- binding ---- */

static int arg_find(const struct unit *u, const char *name)
{
    for (int i = 0; name && i < u->facts.arg_count; i++)
        if (strcmp(u->arg[i].name, name) == 0)
            return i;
    return -1;
}

/* Extent d of an argument; past its rank everything is 1. */
static struct extent extent_at(const struct unit *u, int arg, int d)
{
    return d < u->arg[arg].rank ? u->extent[arg][d] : (struct extent){0, 1, -1};
}

static int64_t length_at(const struct bound *b, int d)
{
    return d < b->rank ? b->shape[d] : 1;
}

/* "bf16 [T+1, 2048]" */
static void expected(struct text *t, const struct unit *u, int arg)
{
    text_fmt(t, "%s [", moegen_dtype_name(u->arg[arg].dtype));
    for (int d = 0; d < u->arg[arg].rank; d++)
        text_fmt(t, "%s%s", d ? ", " : "", u->extent_text[arg][d]);
    text_add(t, "]", 1);
}

static moegen_status unknown_arg(const struct unit *u, const char *name, moegen_error **err)
{
    struct text t = {0};
    text_fmt(&t, "kernel '%s' has no tensor '%s'; it takes", u->facts.name, name ? name : "(null)");
    for (int i = 0; i < u->facts.arg_count; i++)
        text_fmt(&t, "%s %s", i ? "," : "", u->arg[i].name);
    moegen_status status = error_set(err, MOEGEN_BAD_ARGUMENT, "%s", t.at ? t.at : "");
    text_free(&t);
    return status;
}

static moegen_status mismatch(const struct unit *u, int arg, moegen_dtype dtype, int rank,
                              const int64_t *shape, const char *why, moegen_error **err)
{
    struct text t = {0};
    text_fmt(&t, "tensor '%s' is %s ", u->arg[arg].name, moegen_dtype_name(dtype));
    shape_text(&t, rank, shape);
    text_fmt(&t, ", expected ");
    expected(&t, u, arg);
    text_fmt(&t, "%s", why ? why : "");
    moegen_status status = error_set(err, MOEGEN_BAD_ARGUMENT, "%s", t.at ? t.at : "");
    text_free(&t);
    return status;
}

/* May this shape match for some sizes? Constants must be equal, and nothing may be negative. */
static bool shape_possible(const struct unit *u, int arg, const struct bound *b)
{
    int top = b->rank > u->arg[arg].rank ? b->rank : u->arg[arg].rank;
    for (int d = 0; d < top; d++) {
        struct extent x = extent_at(u, arg, d);
        int64_t length = length_at(b, d);
        if (length < 0 || (x.dim < 0 ? x.plus != length : extent_solve(&x, length) < 0))
            return false;
    }
    return true;
}

static moegen_status bind(moegen_call *call, const char *name, void *data, moegen_dtype dtype,
                          int rank, const int64_t *shape, bool writable, moegen_error **err)
{
    if (!call || (rank && !shape) || rank < 0 || rank > MAX_RANK)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "a call, a rank of 0..%d and a shape are needed",
                         MAX_RANK);
    const struct unit *u = call->unit;
    int arg = arg_find(u, name);
    if (arg < 0)
        return unknown_arg(u, name, err);
    if (!data) {
        call->ready = false;
        call->bound[arg] = (struct bound){0};
        return MOEGEN_OK;
    }
    struct bound b = {.data = data, .rank = rank};
    if (rank)
        memcpy(b.shape, shape, (size_t)rank * sizeof *shape);
    if (!writable && u->arg[arg].role != MOEGEN_IN)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' is written: const data will not do",
                         name);
    if (dtype != u->arg[arg].dtype || !shape_possible(u, arg, &b))
        return mismatch(u, arg, dtype, rank, shape, NULL, err);
    size_t size = moegen_dtype_size(dtype);
    if ((uintptr_t)data % size)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' is not aligned to %zu bytes", name,
                         size);
    call->ready = false;
    call->bound[arg] = b;
    return MOEGEN_OK;
}

moegen_status moegen_call_bind(moegen_call *call, const char *name, void *data, moegen_dtype dtype,
                               int rank, const int64_t *shape, moegen_error **err)
{
    return bind(call, name, data, dtype, rank, shape, true, err);
}

moegen_status moegen_call_bind_const(moegen_call *call, const char *name, const void *data,
                                     moegen_dtype dtype, int rank, const int64_t *shape,
                                     moegen_error **err)
{
    return bind(call, name, (void *)(uintptr_t)data, dtype, rank, shape, false, err);
}

moegen_status moegen_call_set_size(moegen_call *call, const char *dim, int64_t value,
                                   moegen_error **err)
{
    if (!call || !dim || value < 0)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "a call, a name and a size >= 0 are needed");
    for (int i = 0; i < call->unit->facts.dim_count; i++)
        if (strcmp(call->unit->dim[i], dim) == 0) {
            call->ready = false;
            call->given[i] = value;
            return MOEGEN_OK;
        }
    return error_set(err, MOEGEN_BAD_ARGUMENT, "kernel '%s' has no run-time size '%s'",
                     call->unit->facts.name, dim);
}

moegen_status moegen_call_set_threads(moegen_call *call, int threads, moegen_error **err)
{
    if (!call || threads < 0 || threads > 1024)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "threads: %d is not in 0..1024", threads);
    call->ready = false;
    call->threads = threads;
    return MOEGEN_OK;
}

moegen_status moegen_call_set_workspace(moegen_call *call, void *memory, size_t bytes,
                                        moegen_error **err)
{
    if (!call || (uintptr_t)memory % 64)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "a workspace must be aligned to 64 bytes");
    call->ready = false;
    call->lent = memory;
    call->lent_bytes = memory ? bytes : 0;
    return MOEGEN_OK;
}

/* ---- validating ---- */

/* Every run-time size from what is given by hand, else from the first tensor that names it
 * (from[k], -1: no tensor), else from other sizes; a size is -1 where nothing fixes it. */
static void solve(const moegen_call *c, int64_t *size, int *from)
{
    const struct unit *u = c->unit;
    for (int k = 0; k < u->facts.dim_count; k++) {
        size[k] = c->given[k];
        from[k] = -1;
    }
    for (int i = 0; i < u->facts.arg_count; i++)
        for (int d = 0; c->bound[i].data && d < u->arg[i].rank; d++) {
            const struct extent *x = &u->extent[i][d];
            if (x->dim < 0 || size[x->dim] >= 0)
                continue;
            size[x->dim] = extent_solve(x, length_at(&c->bound[i], d));
            from[x->dim] = i;
        }
    for (int i = 0; i < u->derived_count; i++)
        if (size[u->derived[i].dim] < 0)
            size[u->derived[i].dim] = derived_value(&u->derived[i], size);
}

/* Does bound tensor i have the extents that the sizes ask for? */
static bool shape_agrees(const moegen_call *c, int i, const int64_t *size)
{
    const struct bound *b = &c->bound[i];
    for (int d = 0; d < c->unit->arg[i].rank; d++)
        if (extent_value(&c->unit->extent[i][d], size) != length_at(b, d))
            return false;
    return true;
}

static uintptr_t bytes_of(const moegen_call *c, int i)
{
    uintptr_t n = moegen_dtype_size(c->unit->arg[i].dtype);
    for (int d = 0; d < c->bound[i].rank; d++)
        n *= (uintptr_t)c->bound[i].shape[d];
    return n;
}

static void check_overlaps(const moegen_call *c, moegen_error **err)
{
    const struct unit *u = c->unit;
    for (int i = 0; i < u->facts.arg_count; i++)
        for (int j = 0; c->bound[i].data && j < u->facts.arg_count; j++) {
            if (!c->bound[j].data || i == j || u->arg[i].role == MOEGEN_IN ||
                (j < i && u->arg[j].role != MOEGEN_IN))
                continue;
            uintptr_t a = (uintptr_t)c->bound[i].data, b = (uintptr_t)c->bound[j].data;
            if (a < b + bytes_of(c, j) && b < a + bytes_of(c, i))
                error_set(err, MOEGEN_BAD_ARGUMENT, "output '%s' overlaps tensor '%s'",
                          u->arg[i].name, u->arg[j].name);
        }
}

static void check_shapes(const moegen_call *c, const int64_t *size, const int *from,
                         moegen_error **err)
{
    const struct unit *u = c->unit;
    for (int i = 0; i < u->facts.arg_count; i++) {
        const struct bound *b = &c->bound[i];
        struct text why = {0};
        if (!b->data || shape_agrees(c, i, size))
            continue;
        for (int k = 0; k < u->facts.dim_count; k++) {
            text_fmt(&why, "%s%s = %" PRId64, k ? ", " : " with ", u->dim[k], size[k]);
            if (from[k] >= 0 && from[k] != i)
                text_fmt(&why, " (from '%s')", u->arg[from[k]].name);
        }
        mismatch(u, i, u->arg[i].dtype, b->rank, b->shape, why.at, err);
        text_free(&why);
    }
}

/* All complaints about what is bound, then the argument structure without the workspace. */
static moegen_status check(moegen_call *c, moegen_error **err)
{
    const struct unit *u = c->unit;
    moegen_error *all = NULL;
    int64_t size[MAX_DIMS];
    int unbound = 0, from[MAX_DIMS];
    solve(c, size, from);
    for (int i = 0; i < u->facts.arg_count; i++)
        if (!c->bound[i].data && !u->arg[i].optional) {
            struct text t = {0};
            expected(&t, u, i);
            error_set(&all, MOEGEN_BAD_ARGUMENT, "tensor '%s' is not bound; expected %s",
                      u->arg[i].name, t.at ? t.at : "");
            text_free(&t);
            unbound++;
        }
    for (int k = 0; k < u->facts.dim_count; k++)
        if (size[k] < 0 && !unbound)
            error_set(&all, MOEGEN_BAD_ARGUMENT, "no bound tensor fixes the size %s: set it",
                      u->dim[k]);
    check_shapes(c, size, from, &all);
    check_overlaps(c, &all);
    if (all) {
        if (err)
            *err = all;
        else
            moegen_error_release(all);
        return MOEGEN_BAD_ARGUMENT;
    }
    int n = u->facts.arg_count;
    for (int i = 0; i < n; i++)
        c->cell[i].pointer = c->bound[i].data;
    for (int k = 0; k < u->facts.dim_count; k++)
        c->cell[n + k].size = size[k];
    return MOEGEN_OK;
}

static int threads_of(const moegen_call *c)
{
    return c->threads ? c->threads : c->unit->facts.threads;
}

static moegen_status give_workspace(moegen_call *c, moegen_error **err)
{
    union cell *cell = &c->cell[c->unit->facts.arg_count + c->unit->facts.dim_count];
    int64_t need = c->unit->workspace(c->cell, threads_of(c));
    if (need < 0)
        return error_set(err, MOEGEN_INTERNAL, "the kernel asks for %" PRId64 " bytes of workspace",
                         need);
    if (c->lent) {
        if ((uint64_t)need > c->lent_bytes)
            return error_set(err, MOEGEN_BAD_ARGUMENT,
                             "the workspace has %zu bytes, the kernel needs %" PRId64,
                             c->lent_bytes, need);
    } else if ((uint64_t)need > c->own_bytes) {
        size_t bytes = ((size_t)need + 63) / 64 * 64;
        free(c->own);
        c->own_bytes = 0;
        c->own = aligned_alloc(bytes >= (2u << 20) ? 4096 : 64, (bytes + 4095) / 4096 * 4096);
        if (!c->own)
            return error_set(err, MOEGEN_NO_MEMORY, "cannot allocate %zu bytes of workspace",
                             bytes);
        c->own_bytes = bytes;
    }
    cell[0].pointer = c->lent ? c->lent : c->own;
    cell[1].size = (int64_t)(c->lent ? c->lent_bytes : c->own_bytes);
    return MOEGEN_OK;
}

moegen_status moegen_call_workspace_bytes(moegen_call *call, size_t *bytes, moegen_error **err)
{
    if (!call || !bytes)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "call and bytes must not be NULL");
    moegen_status status = check(call, err);
    if (!status)
        *bytes = (size_t)call->unit->workspace(call->cell, threads_of(call));
    return status;
}

moegen_status moegen_call_shape(const moegen_call *call, const char *name, int *rank,
                                int64_t *shape, moegen_error **err)
{
    if (!call || !rank || !shape)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "call, rank and shape must not be NULL");
    int arg = arg_find(call->unit, name);
    if (arg < 0)
        return unknown_arg(call->unit, name, err);
    int64_t size[MAX_DIMS], found[MAX_RANK];
    int from[MAX_DIMS];
    solve(call, size, from);
    for (int d = 0; d < call->unit->arg[arg].rank; d++) {
        found[d] = extent_value(&call->unit->extent[arg][d], size);
        if (found[d] < 0)
            return error_set(err, MOEGEN_BAD_ARGUMENT,
                             "no bound tensor fixes %s, an extent of '%s'",
                             call->unit->extent_text[arg][d], name);
    }
    *rank = call->unit->arg[arg].rank;
    memcpy(shape, found, (size_t)*rank * sizeof *shape);
    return MOEGEN_OK;
}

/* ---- running ---- */

moegen_status moegen_call_run(moegen_call *call, moegen_error **err)
{
    if (!call)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "call must not be NULL");
    moegen_status status;
    if (!call->ready) {
        if ((status = check(call, err)) || (status = give_workspace(call, err)))
            return status;
        call->ready = true;
    }
    int32_t answer = 0;
    struct unit *u = call->unit;
    status = crew_run(u->crew, threads_of(call), u->entry, call->cell, &answer);
    if (status)
        return error_set(err, status, "cannot start %d threads", threads_of(call));
    if (answer)
        return error_set(err, MOEGEN_BAD_DATA, "%s", unit_answer(u, answer));
    return MOEGEN_OK;
}
