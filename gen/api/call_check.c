/* SPDX-License-Identifier: Apache-2.0 */
/* call_check.c - what is bound to a call against what its kernel takes: dtypes, shapes, sizes,
 * overlaps. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"

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

static moegen_status mismatch(const struct unit *u, int arg, moegen_dtype dtype,
                              const struct bound *b, const char *why, moegen_error **err)
{
    struct text t = {0};
    text_fmt(&t, "tensor '%s' is %s ", u->arg[arg].name, moegen_dtype_name(dtype));
    shape_text(&t, b->rank, b->shape);
    text_fmt(&t, ", expected ");
    expected(&t, u, arg);
    text_fmt(&t, "%s", why ? why : "");
    return error_take(err, MOEGEN_BAD_ARGUMENT, &t);
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

/* Has it a number of bytes? */
static bool countable(moegen_dtype dtype, const struct bound *b)
{
    size_t bytes = moegen_dtype_size(dtype);
    for (int d = 0; d < b->rank; d++)
        if (b->shape[d] && __builtin_mul_overflow(bytes, (size_t)b->shape[d], &bytes))
            return false;
    return bytes <= PTRDIFF_MAX;
}

/* What else to say of a tensor that is to be packed. */
static const char *packed_hint(const struct unit *u, int arg)
{
    return packed_param(u, u->arg[arg].name)
               ? ": `moegen pack SPEC --in W.safetensors --out P.safetensors` makes it"
               : NULL;
}

moegen_status call_may_bind(const struct unit *u, int arg, moegen_dtype dtype,
                            const struct bound *b, moegen_error **err)
{
    if (dtype != u->arg[arg].dtype || !shape_possible(u, arg, b))
        return mismatch(u, arg, dtype, b, packed_hint(u, arg), err);
    if (!countable(dtype, b))
        return mismatch(u, arg, dtype, b, ", and memory is smaller than that", err);
    return MOEGEN_OK;
}

void call_solve(const moegen_call *c, int64_t *size, int *from)
{
    const struct unit *u = c->unit;
    for (int k = 0; k < u->facts.dim_count; k++) {
        size[k] = c->given[k];
        from[k] = -1;
    }
    for (int i = 0; i < u->facts.arg_count; i++)
        for (int d = 0; c->bound[i].there && d < u->arg[i].rank; d++) {
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

/* Each check complains of all it finds. Its answer is the status, which needs no memory: a
 * complaint that is lost changes nothing. */

static moegen_status check_bound(const moegen_call *c, moegen_error **err)
{
    const struct unit *u = c->unit;
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < u->facts.arg_count; i++) {
        struct text t = {0};
        if (c->bound[i].there || u->arg[i].optional)
            continue;
        text_fmt(&t, "tensor '%s' is not bound; expected ", u->arg[i].name);
        expected(&t, u, i);
        status = error_take(err, MOEGEN_BAD_ARGUMENT, &t);
    }
    return status;
}

/* The spec's number for a size: a key of its name or, of blocks, N_blocks. NULL: it fixes none. */
static const char *fixed_size(const struct unit *u, const char *dim)
{
    char blocks[64];
    const char *found = moegen_kernel_param(&u->made, dim);
    int n = snprintf(blocks, sizeof blocks, "%s_blocks", dim);
    return found || n >= (int)sizeof blocks ? found : moegen_kernel_param(&u->made, blocks);
}

static moegen_status check_sizes(const moegen_call *c, const int64_t *size, const int *from,
                                 moegen_error **err)
{
    const struct unit *u = c->unit;
    moegen_status status = MOEGEN_OK;
    for (int k = 0; k < u->facts.dim_count; k++) {
        const char *fixed = fixed_size(u, u->dim[k]);
        struct text t = {0};
        if (size[k] < 0) {
            text_fmt(&t, "no bound tensor fixes the size %s: set it", u->dim[k]);
        } else if (fixed && size[k] != strtoll(fixed, NULL, 10)) {
            text_fmt(&t, "%s is %" PRId64, u->dim[k], size[k]);
            if (from[k] >= 0)
                text_fmt(&t, " (from '%s')", u->arg[from[k]].name);
            text_fmt(&t, ", and the spec fixes %s", fixed);
        } else {
            continue;
        }
        status = error_take(err, MOEGEN_BAD_ARGUMENT, &t);
    }
    return status;
}

static moegen_status check_shapes(const moegen_call *c, const int64_t *size, const int *from,
                                  moegen_error **err)
{
    const struct unit *u = c->unit;
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < u->facts.arg_count; i++) {
        const struct bound *b = &c->bound[i];
        struct text why = {0};
        if (!b->there || shape_agrees(c, i, size))
            continue;
        for (int k = 0; k < u->facts.dim_count; k++) {
            text_fmt(&why, "%s%s = %" PRId64, k ? ", " : " with ", u->dim[k], size[k]);
            if (from[k] >= 0 && from[k] != i)
                text_fmt(&why, " (from '%s')", u->arg[from[k]].name);
        }
        status = mismatch(u, i, u->arg[i].dtype, b, why.at, err);
        text_free(&why);
    }
    return status;
}

/* Is a part of what argument j consists of in the memory of i, which is no list? */
static bool overlap(const moegen_call *c, int i, int j)
{
    const struct bound *other = &c->bound[j];
    int64_t count = other->list ? list_count(c->unit, j) : 1;
    uintptr_t a = (uintptr_t)c->bound[i].data, m = bytes_of(c, i);
    uintptr_t n = other->list ? list_bytes(c->unit, j) : bytes_of(c, j);
    for (int64_t e = 0; m && n && e < count; e++) {
        uintptr_t b = (uintptr_t)(other->list ? other->list[e] : other->data);
        if (a < b + n && b < a + m)
            return true;
    }
    return false;
}

static moegen_status check_overlaps(const moegen_call *c, moegen_error **err)
{
    const struct unit *u = c->unit;
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < u->facts.arg_count; i++)
        for (int j = 0; c->bound[i].there && j < u->facts.arg_count; j++) {
            if (!c->bound[j].there || i == j || u->arg[i].role == MOEGEN_IN ||
                (j < i && u->arg[j].role != MOEGEN_IN))
                continue;
            if (overlap(c, i, j))
                status = error_set(err, MOEGEN_BAD_ARGUMENT, "output '%s' overlaps tensor '%s'",
                                   u->arg[i].name, u->arg[j].name);
        }
    return status;
}

moegen_status call_check(moegen_call *c, moegen_error **err)
{
    static const _Alignas(64) char nothing[64]; /* where a tensor without elements is */
    const struct unit *u = c->unit;
    int64_t size[MAX_DIMS];
    int from[MAX_DIMS], n = u->facts.arg_count;
    call_solve(c, size, from);
    moegen_status unbound = check_bound(c, err);
    moegen_status unknown = unbound ? MOEGEN_OK : check_sizes(c, size, from, err);
    moegen_status wrong = check_shapes(c, size, from, err);
    moegen_status shared = check_overlaps(c, err);
    if (unbound || unknown || wrong || shared)
        return MOEGEN_BAD_ARGUMENT;
    for (int i = 0; i < n; i++) {
        const struct bound *b = &c->bound[i];
        c->cell[i].pointer = b->list                ? (const void *)b->list
                             : b->there && !b->data ? nothing
                                                    : b->data;
    }
    for (int k = 0; k < u->facts.dim_count; k++)
        c->cell[n + k].size = size[k];
    return MOEGEN_OK;
}
