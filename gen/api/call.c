/* SPDX-License-Identifier: Apache-2.0 */
/* call.c - a kernel with its tensors bound: everything is validated once after a change (see
 * call_check.c), then runs cost nothing. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"

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
    for (int i = 0; i < call->unit->facts.arg_count; i++)
        free(call->bound[i].list);
    unit_release(call->unit);
    free(call->own);
    free(call);
}

/* ---- binding ---- */

int arg_find(const struct unit *u, const char *name)
{
    for (int i = 0; name && i < u->facts.arg_count; i++)
        if (strcmp(u->arg[i].name, name) == 0)
            return i;
    return -1;
}

moegen_status unknown_arg(const struct unit *u, const char *name, moegen_error **err)
{
    struct text t = {0};
    text_fmt(&t, "kernel '%s' has no tensor '%s'; it takes", u->facts.name, name ? name : "(null)");
    for (int i = 0; i < u->facts.arg_count; i++)
        text_fmt(&t, "%s %s", i ? "," : "", u->arg[i].name);
    return error_take(err, MOEGEN_BAD_ARGUMENT, &t);
}

bool bind_is_empty(int rank, const int64_t *shape)
{
    for (int d = 0; shape && d < rank; d++)
        if (shape[d] == 0)
            return true;
    return false;
}

static moegen_status bind(moegen_call *call, const char *name, void *data, moegen_dtype dtype,
                          int rank, const int64_t *shape, bool writable, moegen_error **err)
{
    if (!call || (data && rank && !shape) || rank < 0 || rank > MAX_RANK)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "a call, a rank of 0..%d and a shape are needed",
                         MAX_RANK);
    const struct unit *u = call->unit;
    int arg = arg_find(u, name);
    if (arg < 0)
        return unknown_arg(u, name, err);
    if (!data && !bind_is_empty(rank, shape)) {
        bind_set(call, arg, &(struct bound){0});
        return MOEGEN_OK;
    }
    struct bound b = {.there = true, .data = data, .rank = rank};
    if (rank)
        memcpy(b.shape, shape, (size_t)rank * sizeof *shape);
    if (!writable && u->arg[arg].role != MOEGEN_IN)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' is written: const data will not do",
                         name);
    moegen_status status = call_may_bind(u, arg, dtype, &b, err);
    if (status)
        return status;
    size_t size = moegen_dtype_size(dtype);
    if ((uintptr_t)data % size)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' is not aligned to %zu bytes", name,
                         size);
    if (u->listed[arg] && (status = list_joined(u, arg, &b, err)))
        return status;
    bind_set(call, arg, &b);
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

moegen_status moegen_call_set_runner(moegen_call *call, moegen_runner runner, void *host,
                                     moegen_error **err)
{
    if (!call)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "call must not be NULL");
    call->ready = false;
    call->runner = runner;
    call->host = host;
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

/* ---- workspace and shapes ---- */

static int threads_of(const moegen_call *c)
{
    return c->threads ? c->threads : c->unit->facts.threads;
}

/* Bytes; where a host may have no threads to give, enough for one, too. */
static int64_t workspace_of(const moegen_call *c)
{
    const int64_t all = c->unit->workspace(c->cell, threads_of(c));
    const int64_t alone = c->runner ? c->unit->workspace(c->cell, 1) : 0;
    return all > alone || all < 0 ? all : alone;
}

static moegen_status give_workspace(moegen_call *c, moegen_error **err)
{
    union cell *cell = &c->cell[c->unit->facts.arg_count + c->unit->facts.dim_count];
    int64_t need = workspace_of(c);
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
    moegen_status status = call_check(call, err);
    if (!status)
        *bytes = (size_t)workspace_of(call);
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
    call_solve(call, size, from);
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

static moegen_status run_ranks(moegen_call *call, int32_t *answer, moegen_error **err)
{
    struct unit *u = call->unit;
    const int threads = threads_of(call);
    if (call->runner) {
        if (crew_run_on(call->runner, call->host, threads, u->entry, call->cell, answer))
            return MOEGEN_OK;
        return error_set(err, MOEGEN_BAD_ARGUMENT,
                         "the host's runner has not called all of %d ranks", threads);
    }
    const moegen_status status = crew_run(u->crew, threads, u->entry, call->cell, answer);
    return status ? error_set(err, status, "cannot start %d threads", threads) : MOEGEN_OK;
}

moegen_status moegen_call_run(moegen_call *call, moegen_error **err)
{
    if (!call)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "call must not be NULL");
    moegen_status status;
    if (!call->ready) {
        if ((status = call_check(call, err)) || (status = give_workspace(call, err)))
            return status;
        call->ready = true;
    }
    int32_t answer = 0;
    if ((status = run_ranks(call, &answer, err)))
        return status;
    if (answer)
        return error_set(err, MOEGEN_BAD_DATA, "%s", unit_answer(call->unit, answer));
    return MOEGEN_OK;
}
