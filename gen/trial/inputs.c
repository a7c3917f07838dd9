/* SPDX-License-Identifier: Apache-2.0 */
/* inputs.c - inputs to try a kernel on, and what float64 arithmetic makes of them. */
#include <stdlib.h>
#include <string.h>

#include "trial.h"

int64_t param_int(const moegen_kernel *kernel, const char *key, int64_t otherwise)
{
    const char *value = moegen_kernel_param(kernel, key);
    return value ? strtoll(value, NULL, 10) : otherwise;
}

double kernel_flops(const moegen_kernel *kernel, int64_t tokens)
{
    const moegen_kernel_facts *f = kernel_facts(kernel);
    double rows = (double)param_int(kernel, "top_k", 1);
    return ((double)f->flops_per_row * rows + (double)f->flops_per_token) * (double)tokens;
}

const char *kernel_fixes(const moegen_kernel *kernel)
{
    static const char *const keys[] = {"T", "S"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (moegen_kernel_param(kernel, keys[i]))
            return keys[i];
    return NULL;
}

int64_t kernel_tokens(const moegen_kernel *kernel, int64_t otherwise)
{
    const char *key = kernel_fixes(kernel);
    return key ? param_int(kernel, key, otherwise) : otherwise;
}

/* ---- inputs and reference ---- */

static uint64_t inputs_digest(const moegen_rt_problem *in)
{
    uint64_t all = 1;
    double bytes = 0;
    for (size_t i = 0; moegen_rt_problem_at(in, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(in, i);
        bytes += (double)t->bytes;
        if (bytes > 64e6)
            return 0;
        all = all * 31 + digest_fast(t->data, t->bytes);
    }
    return all ? all : 1;
}

bool fixture_touched(const struct fixture *f)
{
    return f->digest && inputs_digest(f->in) != f->digest;
}

/* Evenly spread tokens, the first and the last among them. */
static int64_t *pick_tokens(int64_t tokens, int64_t count)
{
    int64_t *list = malloc((size_t)count * sizeof *list);
    for (int64_t i = 0; list && i < count; i++)
        list[i] = count > 1 ? i * (tokens - 1) / (count - 1) : 0;
    return list;
}

static moegen_status told(moegen_rt_status status, const char *what, const moegen_rt_error *why,
                          moegen_error **err)
{
    if (status == MOEGEN_RT_OK)
        return MOEGEN_OK;
    return error_set(err, status == MOEGEN_RT_NO_MEMORY ? MOEGEN_NO_MEMORY : MOEGEN_BAD_ARGUMENT,
                     "%s: %s", what, why->text);
}

static moegen_status reference_of(const moegen_kernel *kernel, const moegen_rt_reference **out,
                                  moegen_error **err)
{
    const char *family = kernel_facts(kernel)->family;
    *out = moegen_rt_reference_find(family);
    return *out ? MOEGEN_OK
                : error_set(err, MOEGEN_UNSUPPORTED, "family %s has no float64 reference", family);
}

moegen_status inputs_fill(const moegen_kernel *kernel, const struct trial *t,
                          moegen_rt_problem **out, moegen_error **err)
{
    const moegen_rt_reference *reference;
    moegen_rt_error why = {{0}};
    moegen_status status = reference_of(kernel, &reference, err);
    if (status)
        return status;
    moegen_rt_problem *in = moegen_rt_problem_create();
    if (!in || !problem_params(in, kernel))
        status = error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    else
        status = told(reference->fill(in, &t->how, &why), t->text, &why, err);
    if (status)
        moegen_rt_problem_destroy(in);
    else
        *out = in;
    return status;
}

moegen_status outputs_expect(const moegen_kernel *kernel, const moegen_rt_problem *in,
                             const struct trial *t, double budget, int64_t features,
                             moegen_rt_problem **out, moegen_error **err)
{
    const moegen_rt_reference *reference;
    moegen_rt_error why = {{0}};
    moegen_rt_want want = {.padding_is_zero = 1, .features = features};
    int64_t *tokens = NULL;
    moegen_status status = reference_of(kernel, &reference, err);
    if (status)
        return status;
    double flops = kernel_flops(kernel, t->how.T);
    if (flops > budget && t->how.T > 2) {
        int64_t count = (int64_t)(budget / flops * (double)t->how.T);
        want.token_count = count < 2 ? 2 : count;
        tokens = pick_tokens(t->how.T, want.token_count);
        want.tokens = tokens;
    }
    moegen_rt_problem *made = moegen_rt_problem_create();
    if (!made || (want.token_count && !tokens))
        status = error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    else
        status = told(reference->compute(in, &want, made, &why), t->text, &why, err);
    free(tokens);
    if (status)
        moegen_rt_problem_destroy(made);
    else
        *out = made;
    return status;
}

moegen_status fixture_open(struct fixture *f, const moegen_kernel *kernel, const struct trial *t,
                           double budget, moegen_error **err)
{
    *f = (struct fixture){0};
    moegen_status status = inputs_fill(kernel, t, &f->in, err);
    if (!status && !(status = outputs_expect(kernel, f->in, t, budget, 0, &f->want, err)))
        f->digest = inputs_digest(f->in);
    return status;
}

void fixture_close(struct fixture *f)
{
    moegen_rt_problem_destroy(f->in);
    moegen_rt_problem_destroy(f->want);
    *f = (struct fixture){0};
}
