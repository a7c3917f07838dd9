/* SPDX-License-Identifier: Apache-2.0 */
/* experts.c - arguments that are lists of addresses: each expert's matrix may be at its own. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"

bool kernel_takes_list(const moegen_kernel *kernel, const char *name)
{
    int arg = arg_find(kernel->unit, name);
    return arg >= 0 && kernel->unit->listed[arg];
}

void bind_set(moegen_call *call, int arg, struct bound *b)
{
    free(call->bound[arg].list);
    call->bound[arg] = *b;
    call->ready = false;
}

int64_t list_count(const struct unit *u, int arg)
{
    return u->listed[arg] ? u->extent[arg][0].plus : 1;
}

size_t list_bytes(const struct unit *u, int arg)
{
    size_t bytes = moegen_dtype_size(u->arg[arg].dtype);
    for (int d = 1; d < u->arg[arg].rank; d++)
        bytes *= (size_t)u->extent[arg][d].plus;
    return bytes;
}

moegen_status list_joined(const struct unit *u, int arg, struct bound *b, moegen_error **err)
{
    int64_t count = list_count(u, arg);
    b->list = malloc((size_t)count * sizeof *b->list);
    if (!b->list)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    for (int64_t e = 0; e < count; e++)
        b->list[e] = (const char *)b->data + (size_t)e * list_bytes(u, arg);
    return MOEGEN_OK;
}

/* The matrices as one tensor: what shape is asked of them together. */
static moegen_status together(const struct unit *u, int arg, int64_t count, moegen_dtype dtype,
                              int rank, const int64_t *shape, struct bound *b, moegen_error **err)
{
    if (count != list_count(u, arg))
        return error_set(err, MOEGEN_BAD_ARGUMENT,
                         "tensor '%s' is of %" PRId64 " experts, but %" PRId64
                         " matrices are given",
                         u->arg[arg].name, list_count(u, arg), count);
    *b = (struct bound){.there = true, .rank = rank + 1, .shape = {count}};
    if (rank)
        memcpy(b->shape + 1, shape, (size_t)rank * sizeof *shape);
    return call_may_bind(u, arg, dtype, b, err);
}

static moegen_status check_addresses(const struct unit *u, int arg, const void *const *matrices,
                                     int64_t count, moegen_error **err)
{
    size_t size = moegen_dtype_size(u->arg[arg].dtype);
    for (int64_t e = 0; e < count; e++) {
        if (!matrices[e])
            return error_set(err, MOEGEN_BAD_ARGUMENT,
                             "tensor '%s': the matrix of expert %" PRId64 " is NULL",
                             u->arg[arg].name, e);
        if ((uintptr_t)matrices[e] % size)
            return error_set(err, MOEGEN_BAD_ARGUMENT,
                             "tensor '%s': the matrix of expert %" PRId64
                             " is not aligned to %zu bytes",
                             u->arg[arg].name, e, size);
    }
    return MOEGEN_OK;
}

moegen_status moegen_call_bind_experts(moegen_call *call, const char *name,
                                       const void *const *matrices, int64_t count,
                                       moegen_dtype dtype, int rank, const int64_t *shape,
                                       moegen_error **err)
{
    if (!call || (matrices && rank && !shape) || rank < 0 || rank >= MAX_RANK)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "a call, a rank of 0..%d and a shape are needed",
                         MAX_RANK - 1);
    const struct unit *u = call->unit;
    int arg = arg_find(u, name);
    if (arg < 0)
        return unknown_arg(u, name, err);
    struct bound b = {0};
    if (!matrices) {
        bind_set(call, arg, &b);
        return MOEGEN_OK;
    }
    if (!u->listed[arg])
        return error_set(err, MOEGEN_BAD_ARGUMENT,
                         "kernel '%s' takes '%s' as one tensor; see weights.experts", u->facts.name,
                         name);
    moegen_status status = together(u, arg, count, dtype, rank, shape, &b, err);
    if (status || (status = check_addresses(u, arg, matrices, count, err)))
        return status;
    b.list = malloc((size_t)count * sizeof *b.list);
    if (!b.list)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    memcpy(b.list, matrices, (size_t)count * sizeof *b.list);
    b.data = (void *)(uintptr_t)matrices[0];
    bind_set(call, arg, &b);
    return MOEGEN_OK;
}
