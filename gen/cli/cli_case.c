/* SPDX-License-Identifier: Apache-2.0 */
/* cli_case.c - inputs to try a kernel on, and what float64 arithmetic makes of them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

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

/* ---- which cases ---- */

static const double scalar_most = 3e7;

/* Tokens that cost about this many operations, within limits. */
static int64_t tokens_for(const moegen_kernel *kernel, double flops, int64_t least, int64_t most)
{
    double one = kernel_flops(kernel, 1);
    double fit = one > 0 ? flops / one : (double)most;
    return fit < (double)least ? least : fit > (double)most ? most : (int64_t)fit;
}

struct plan {
    struct trial *out;
    int count;
    uint64_t seed;
};

static struct trial *add(struct plan *p, int64_t tokens, const char *routing)
{
    struct trial *t = &p->out[p->count];
    if (p->count == MAX_TRIALS)
        return t - 1;
    *t = (struct trial){.how = {.T = tokens, .seed = p->seed + (uint64_t)p->count}};
    t->how.routing = routing;
    p->count++;
    return t;
}

/* The first one, and what costs no more operations together than the scalar spelling has time for:
 * what depends on the routing, small kernels show in it. */
static void find_long(struct plan *p, const moegen_kernel *kernel)
{
    double spent = 0;
    for (int i = 0; i < p->count; i++) {
        double flops = kernel_flops(kernel, p->out[i].how.T);
        p->out[i].long_one = i > 0 && spent + flops > scalar_most;
        spent += p->out[i].long_one ? 0 : flops;
    }
}

static int describe(struct plan *p, const moegen_kernel *kernel)
{
    find_long(p, kernel);
    for (int i = 0; i < p->count; i++) {
        const moegen_rt_fill *h = &p->out[i].how;
        snprintf(p->out[i].text, sizeof p->out[i].text,
                 "T=%" PRId64 " routing=%s seed=%" PRIu64 "%s%s", h->T, h->routing, h->seed,
                 h->extra_blocks ? " with surplus blocks" : "",
                 h->no_conditions ? " without conditions" : "");
    }
    return p->count;
}

int trials_plan(const moegen_kernel *kernel, const struct options *o, struct trial *out)
{
    struct plan p = {.out = out, .seed = (uint64_t)o->seed};
    const char *only = o->routing;
    int64_t fixed = kernel_tokens(kernel, o->tokens);
    const moegen_kernel_facts *f = kernel_facts(kernel);
    double weights = (double)f->weight_bytes_per_expert * (double)param_int(kernel, "E", 1) +
                     (double)f->weight_bytes;
    bool large = weights > 64e6; /* filling the weights takes longer than running: few cases */
    int64_t some = fixed ? fixed : tokens_for(kernel, 0.3e9, 3, 37);
    int64_t many = fixed ? fixed : tokens_for(kernel, 40e9, 4, 333);
    for (int i = 0; moegen_rt_routing(i); i++) {
        const char *kind = moegen_rt_routing(i);
        bool core = strcmp(kind, "uniform") == 0 || strcmp(kind, "one") == 0;
        if (only ? strcmp(only, kind) == 0 : !large || core)
            add(&p, some, kind);
    }
    if (fixed || only) {
        if (!p.count) /* a kind that the runtime does not know: let it say so */
            add(&p, some, only);
        return describe(&p, kernel);
    }
    add(&p, many, "uniform");
    if (large)
        return describe(&p, kernel);
    add(&p, many, "skewed");
    add(&p, 1, "uniform");
    add(&p, 2, "one");
    add(&p, some, "uniform")->how.extra_blocks = 3;
    add(&p, some, "skewed")->how.no_conditions = 1;
    return describe(&p, kernel);
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
                             const struct trial *t, double budget, moegen_rt_problem **out,
                             moegen_error **err)
{
    const moegen_rt_reference *reference;
    moegen_rt_error why = {{0}};
    moegen_rt_want want = {.padding_is_zero = 1};
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
    if (!status && !(status = outputs_expect(kernel, f->in, t, budget, &f->want, err)))
        f->digest = inputs_digest(f->in);
    return status;
}

void fixture_close(struct fixture *f)
{
    moegen_rt_problem_destroy(f->in);
    moegen_rt_problem_destroy(f->want);
    *f = (struct fixture){0};
}
