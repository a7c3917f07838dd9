/* SPDX-License-Identifier: Apache-2.0 */
/* stand.c - binds a kernel to the tensors of a problem, with outputs and workspace under
 * guard. */
#include <stdlib.h>
#include <string.h>

#include "trial.h"

enum { GUARD = 128, GUARD_BYTE = 0xA5 };

bool problem_params(moegen_rt_problem *p, const moegen_kernel *kernel)
{
    const char *key, *value;
    for (size_t i = 0; kernel_param_at(kernel, i, &key, &value); i++)
        if (moegen_rt_problem_set(p, key, value))
            return false;
    return true;
}

static bool guarded_alloc(struct guarded *g, size_t bytes)
{
    moegen_rt_free(g->at);
    *g = (struct guarded){moegen_rt_alloc(bytes + 2 * GUARD), bytes};
    if (!g->at)
        return false;
    memset(g->at, GUARD_BYTE, GUARD);
    memset(g->at + GUARD + bytes, GUARD_BYTE, GUARD);
    return true;
}

static bool guarded_intact(const struct guarded *g)
{
    for (int i = 0; g->at && i < GUARD; i++)
        if (g->at[i] != GUARD_BYTE || g->at[GUARD + g->bytes + (size_t)i] != GUARD_BYTE)
            return false;
    return true;
}

static bool is_index(moegen_rt_dtype dtype)
{
    return dtype == MOEGEN_RT_I32 || dtype == MOEGEN_RT_I64;
}

/* Rounds an f32 tensor where the kernel wants a smaller float, and takes indices of either size:
 * one that an i32 cannot hold saturates, which no kernel takes for an index. Leaves everything else
 * to bind. */
static moegen_status fit(moegen_rt_problem *in, const moegen_arg *a, moegen_error **err)
{
    moegen_rt_tensor *t = moegen_rt_problem_tensor(in, a->name);
    const moegen_rt_dtype_facts *wanted = moegen_rt_dtype_of((moegen_rt_dtype)a->dtype);
    bool rounds = t->dtype == MOEGEN_RT_F32 && wanted->digits && wanted->bytes < 4;
    bool resizes = t->dtype != (moegen_rt_dtype)a->dtype && is_index(t->dtype) &&
                   is_index((moegen_rt_dtype)a->dtype);
    if (!rounds && !resizes)
        return MOEGEN_OK;
    int64_t count = moegen_rt_tensor_count(t), shape[8];
    int rank = t->rank;
    const moegen_rt_dtype to = (moegen_rt_dtype)a->dtype;
    void *rounded = moegen_rt_alloc((size_t)count * moegen_dtype_size(a->dtype));
    if (!rounded)
        return error_set(err, MOEGEN_NO_MEMORY, "no memory for tensor '%s'", a->name);
    memcpy(shape, t->shape, sizeof shape);
    moegen_rt_convert(t->dtype, t->data, to, rounded, (size_t)count);
    if (moegen_rt_problem_add(in, a->name, to, rank, shape, &t, NULL)) {
        moegen_rt_free(rounded);
        return error_set(err, MOEGEN_NO_MEMORY, "no memory for tensor '%s'", a->name);
    }
    memcpy(t->data, rounded, t->bytes);
    moegen_rt_free(rounded);
    return MOEGEN_OK;
}

static moegen_status bind_input(struct stand *s, const moegen_arg *a, moegen_rt_problem *in,
                                moegen_error **err)
{
    bool is_bound = false;
    moegen_status status = checkpoint_bind(s->kernel, s->call, a, in, &is_bound, err);
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(in, a->name);
    if (status || is_bound || (!t && a->optional))
        return status;
    if (!t) {
        struct text want = {0};
        for (int d = 0; d < a->rank; d++)
            text_fmt(&want, "%s%s", d ? ", " : "", a->extent[d]);
        error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' is missing; expected %s [%s]", a->name,
                  moegen_dtype_name(a->dtype), want.at ? want.at : "");
        text_free(&want);
        return MOEGEN_BAD_ARGUMENT;
    }
    if ((status = fit(in, a, err)))
        return status;
    t = moegen_rt_problem_tensor(in, a->name);
    return moegen_call_bind(s->call, a->name, t->data, (moegen_dtype)t->dtype, t->rank, t->shape,
                            err);
}

static moegen_status bind_output(struct stand *s, int i, moegen_error **err)
{
    const moegen_arg *a = &s->facts.args[i];
    int rank;
    int64_t shape[MAX_RANK], bytes = (int64_t)moegen_dtype_size(a->dtype);
    moegen_status status = moegen_call_shape(s->call, a->name, &rank, shape, err);
    if (status)
        return status;
    for (int d = 0; d < rank; d++)
        if (__builtin_mul_overflow(bytes, shape[d], &bytes))
            return error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' is too large", a->name);
    if (!guarded_alloc(&s->memory[i], (size_t)bytes) ||
        moegen_rt_problem_lend(s->out, a->name, (moegen_rt_dtype)a->dtype, rank, shape,
                               s->memory[i].at + GUARD, NULL))
        return error_set(err, MOEGEN_NO_MEMORY, "no memory for tensor '%s'", a->name);
    return moegen_call_bind(s->call, a->name, s->memory[i].at + GUARD, a->dtype, rank, shape, err);
}

static void label_all(moegen_error *err, const char *label)
{
    for (size_t i = 0; err && i < err->count; i++)
        if (!err->diag[i].file)
            err->diag[i].file = strdup(label);
}

moegen_status stand_open(struct stand *s, const moegen_kernel *kernel, moegen_rt_problem *in,
                         int threads, const char *label, moegen_error **err)
{
    *s = (struct stand){.kernel = kernel, .facts.struct_size = sizeof s->facts};
    moegen_error *all = NULL;
    moegen_status first = MOEGEN_OK;
    s->out = moegen_rt_problem_create();
    if (!s->out || moegen_kernel_info(kernel, &s->facts) ||
        moegen_call_create(kernel, &s->call, NULL))
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    for (int i = 0; i < s->facts.arg_count; i++)
        if (s->facts.args[i].role != MOEGEN_OUT) {
            moegen_status status = bind_input(s, &s->facts.args[i], in, &all);
            first = first ? first : status;
        }
    for (int i = 0; i < s->facts.arg_count && !first; i++)
        if (s->facts.args[i].role != MOEGEN_IN)
            first = bind_output(s, i, &all);
    if (!first)
        first = stand_threads(s, threads, &all);
    label_all(all, label);
    if (first)
        *err = all;
    return first;
}

moegen_status stand_threads(struct stand *s, int threads, moegen_error **err)
{
    size_t bytes = 0;
    moegen_status status = moegen_call_set_threads(s->call, threads, err);
    if (status || (status = moegen_call_workspace_bytes(s->call, &bytes, err)))
        return status;
    if (!guarded_alloc(&s->workspace, bytes))
        return error_set(err, MOEGEN_NO_MEMORY, "cannot allocate %zu bytes of workspace", bytes);
    return moegen_call_set_workspace(s->call, s->workspace.at + GUARD, bytes, err);
}

moegen_status stand_lend(struct stand *s, const moegen_kernel *kernel, moegen_rt_problem *in,
                         int threads, moegen_call **call, moegen_error **err)
{
    struct stand other = {.kernel = kernel, .facts.struct_size = sizeof other.facts};
    moegen_status status = moegen_kernel_info(kernel, &other.facts);
    if (status || (status = moegen_call_create(kernel, &other.call, err)))
        return status;
    for (int i = 0; i < other.facts.arg_count && !status; i++) {
        const moegen_arg *a = &other.facts.args[i];
        const moegen_rt_tensor *t =
            a->role == MOEGEN_IN ? NULL : moegen_rt_problem_tensor(s->out, a->name);
        if (a->role == MOEGEN_IN)
            status = bind_input(&other, a, in, err);
        else if (t)
            status = moegen_call_bind(other.call, a->name, t->data, (moegen_dtype)t->dtype, t->rank,
                                      t->shape, err);
        else
            status = error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' is missing", a->name);
    }
    if (!status)
        status = moegen_call_set_threads(other.call, threads, err);
    if (!status)
        status = stand_use(s, other.call, err);
    if (status)
        moegen_call_release(other.call);
    else
        *call = other.call;
    return status;
}

moegen_status stand_use(struct stand *s, moegen_call *call, moegen_error **err)
{
    size_t bytes = 0;
    moegen_status status = moegen_call_workspace_bytes(call, &bytes, err);
    if (status)
        return status;
    if (bytes > s->workspace.bytes && !guarded_alloc(&s->workspace, bytes))
        return error_set(err, MOEGEN_NO_MEMORY, "cannot allocate %zu bytes of workspace", bytes);
    return moegen_call_set_workspace(call, s->workspace.at + GUARD, s->workspace.bytes, err);
}

void stand_poison(struct stand *s, const moegen_rt_problem *in)
{
    moegen_rt_poison(MOEGEN_RT_F32, s->workspace.at + GUARD, s->workspace.bytes / 4);
    for (int i = 0; i < s->facts.arg_count; i++) {
        const moegen_arg *a = &s->facts.args[i];
        if (a->role == MOEGEN_IN)
            continue;
        moegen_rt_tensor *t = moegen_rt_problem_tensor(s->out, a->name);
        const moegen_rt_tensor *start = moegen_rt_problem_tensor(in, a->name);
        if (a->role == MOEGEN_INOUT && start)
            memcpy(t->data, start->data, t->bytes);
        else
            moegen_rt_poison(t->dtype, t->data, (size_t)moegen_rt_tensor_count(t));
    }
}

const char *stand_damage(const struct stand *s)
{
    for (int i = 0; i < s->facts.arg_count; i++)
        if (!guarded_intact(&s->memory[i]))
            return s->facts.args[i].name;
    return guarded_intact(&s->workspace) ? NULL : "the workspace";
}

void stand_close(struct stand *s)
{
    moegen_call_release(s->call);
    moegen_rt_problem_destroy(s->out);
    for (int i = 0; i < MAX_ARGS; i++)
        moegen_rt_free(s->memory[i].at);
    moegen_rt_free(s->workspace.at);
    *s = (struct stand){0};
}
