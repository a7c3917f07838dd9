/* SPDX-License-Identifier: Apache-2.0 */
/* layer_shared.c - the expert of a layer that sees every token (SEMANTICS 5.1): the references of
 * the experts, with one of them, and in float64 the gate that its output counts by. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        moegen_rt_status try_status = (call);                                                      \
        if (try_status != MOEGEN_RT_OK)                                                            \
            return try_status;                                                                     \
    } while (0)

static const char PREFIX[] = "shared_", GATE[] = "shared_gate_weight",
                  GATE_GRAD[] = "shared_gate_weight_grad", KEPT[] = "shared_gate_up_activations_T";
enum { PREFIX_LENGTH = sizeof PREFIX - 1, NAME = 100 };

static bool is(const moegen_rt_problem *p, const char *key, const char *value)
{
    return strcmp(moegen_rt_problem_text(p, key, ""), value) == 0;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* ---- the expert as a problem of its own ---- */

static moegen_rt_status set_params(moegen_rt_problem *x, const moegen_rt_problem *p)
{
    const char *const fixed[][2] = {{"E", "1"},
                                    {"top_k", "1"},
                                    {"bias", "false"},
                                    {"bias.gate_up", "false"},
                                    {"bias.down", "false"},
                                    {"affinity.on", "intermediate"},
                                    {"affinities", "dense"},
                                    {"affinity_dtype", "f64"},
                                    {"weights.experts", "joined"},
                                    {"skip_token", "true"},
                                    {"post_norm.eps", NULL},
                                    {"dispatch", "dense"}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        TRY(moegen_rt_problem_set(x, fixed[i][0], fixed[i][1]));
    TRY(moegen_rt_problem_set(x, "I_TP", moegen_rt_problem_text(p, "shared.I", "")));
    return moegen_rt_problem_set(x, "affinity.scale",
                                 is(p, "shared.gate", "sigmoid") ? "post" : "none");
}

/* The tensor under its name among experts, of which there is one. */
static moegen_rt_status lend_one(moegen_rt_problem *x, const moegen_rt_tensor *t,
                                 moegen_rt_error *err)
{
    int64_t shape[9] = {1};
    if (strcmp(t->name, KEPT) == 0)
        return moegen_rt_problem_lend(x, "gate_up_proj_act_checkpoint_T", t->dtype, t->rank,
                                      t->shape, t->data, err);
    if (strncmp(t->name, PREFIX, PREFIX_LENGTH) != 0 || strcmp(t->name, GATE) == 0 ||
        strcmp(t->name, GATE_GRAD) == 0)
        return MOEGEN_RT_OK;
    memcpy(shape + 1, t->shape, (size_t)t->rank * sizeof *shape);
    return moegen_rt_problem_lend(x, t->name + PREFIX_LENGTH, t->dtype, t->rank + 1, shape, t->data,
                                  err);
}

static moegen_rt_status lend_all(moegen_rt_problem *x, const moegen_rt_problem *p,
                                 moegen_rt_error *err)
{
    TRY(rt_lend(x, "hidden_states", p, "hidden_states", err));
    TRY(rt_lend(x, "output_hidden_states_grad", p, "output_hidden_states_grad", err));
    for (size_t i = 0; moegen_rt_problem_at(p, i); i++)
        TRY(lend_one(x, moegen_rt_problem_at(p, i), err));
    return MOEGEN_RT_OK;
}

/* What the expert counts by, of T tokens. */
static moegen_rt_status gates(const moegen_rt_problem *p, int64_t T, double *to,
                              moegen_rt_error *err)
{
    const moegen_rt_tensor *x = moegen_rt_problem_tensor(p, "hidden_states"), *w;
    int64_t H = moegen_rt_problem_int(p, "H", 1);
    for (int64_t t = 0; t < T; t++)
        to[t] = 1;
    if (!is(p, "shared.gate", "sigmoid"))
        return MOEGEN_RT_OK;
    TRY(rt_input(p, GATE, true, 1, &H, &w, err));
    double *row = malloc((size_t)(2 * H) * sizeof *row);
    if (!row)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    rt_elements(w, 0, H, row + H);
    for (int64_t t = 0; t < T; t++) {
        rt_elements(x, t * H, H, row);
        to[t] = 1 / (1 + exp(-rt_dot(row, row + H, H)));
    }
    free(row);
    return MOEGEN_RT_OK;
}

/* The problem; NULL after a failure. */
static moegen_rt_problem *expert_of(const moegen_rt_problem *p, moegen_rt_error *err)
{
    moegen_rt_problem *x = rt_layer_experts(p, err), *one = x ? moegen_rt_problem_create() : NULL;
    const moegen_rt_tensor *hidden = moegen_rt_problem_tensor(p, "hidden_states");
    struct rt_layer all = {.dense = true};
    moegen_rt_tensor *a;
    int64_t shape[] = {hidden->rank ? hidden->shape[0] : 1, 1};
    moegen_rt_status status =
        one ? rt_problem_params(one, x, err) : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        status = set_params(one, p);
    if (status == MOEGEN_RT_OK)
        status = lend_all(one, p, err);
    if (status == MOEGEN_RT_OK)
        status = rt_moe_read(one, &all.m, err);
    if (status == MOEGEN_RT_OK)
        status = rt_layer_index(&all, NULL, shape[0], one, err);
    if (status == MOEGEN_RT_OK)
        status = moegen_rt_problem_add(one, "expert_affinities_masked", MOEGEN_RT_F64, 2, shape, &a,
                                       err);
    if (status == MOEGEN_RT_OK)
        status = gates(p, shape[0], a->data, err);
    moegen_rt_problem_destroy(x);
    if (status == MOEGEN_RT_OK)
        return one;
    moegen_rt_problem_destroy(one);
    return NULL;
}

/* ---- computing ---- */

static double norm(const moegen_rt_tensor *t)
{
    double sum = 0;
    for (int64_t i = 0; i < moegen_rt_tensor_count(t); i++) {
        double x = ((const double *)t->data)[i];
        sum += isnan(x) ? 0 : x * x;
    }
    return sqrt(sum);
}

/* Adds a tensor to one of out; its noise with it. */
static void add(moegen_rt_problem *out, const char *name, const moegen_rt_problem *from)
{
    moegen_rt_tensor *sum = moegen_rt_problem_tensor(out, name);
    const moegen_rt_tensor *more = moegen_rt_problem_tensor(from, name);
    double noise = sum->noise * norm(sum) + more->noise * norm(more);
    for (int64_t i = 0; i < moegen_rt_tensor_count(sum); i++)
        ((double *)sum->data)[i] += ((const double *)more->data)[i];
    sum->noise = noise > 0 ? noise / norm(sum) : 0;
}

/* A tensor of the expert as one of the layer: without the extent of experts, unless it is `as` the
 * layer says. */
static moegen_rt_status give(moegen_rt_problem *out, const moegen_rt_tensor *t, const char *as,
                             moegen_rt_error *err)
{
    char name[NAME];
    double *to;
    snprintf(name, sizeof name, "%s%s", PREFIX, t->name);
    bool whole = as || t->rank < 2;
    TRY(rt_output(out, as ? as : name, whole ? t->rank : t->rank - 1, t->shape + !whole, 0, &to,
                  err));
    rt_elements(t, 0, moegen_rt_tensor_count(t), to);
    if (t->once)
        rt_rounded_once(out, as ? as : name);
    moegen_rt_tensor *given = moegen_rt_problem_tensor(out, as ? as : name);
    given->noise = t->noise;
    given->terms = t->terms;
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_shared_forward(const moegen_rt_problem *p, const moegen_rt_want *want,
                                   moegen_rt_problem *out, moegen_rt_error *err)
{
    moegen_rt_problem *x = expert_of(p, err), *own = x ? moegen_rt_problem_create() : NULL;
    moegen_rt_status status = own ? rt_compute_moe_forward(x, want, own, err)
                                  : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    const moegen_rt_tensor *kept =
        own ? moegen_rt_problem_tensor(own, "gate_up_activations_T") : NULL;
    if (status == MOEGEN_RT_OK)
        add(out, "output", own);
    if (status == MOEGEN_RT_OK && kept)
        status = give(out, kept, KEPT, err);
    moegen_rt_problem_destroy(x);
    moegen_rt_problem_destroy(own);
    return status;
}

/* The gate's part of the gradients: da of what the expert counts by. */
static moegen_rt_status gate_back(const moegen_rt_problem *p, const double *a, const double *da,
                                  moegen_rt_problem *out, moegen_rt_error *err)
{
    const moegen_rt_tensor *x = moegen_rt_problem_tensor(p, "hidden_states"), *w;
    double *dx = moegen_rt_problem_tensor(out, "hidden_states_grad")->data, *dw;
    int64_t H = moegen_rt_problem_int(p, "H", 1), T = moegen_rt_tensor_count(x) / H;
    TRY(rt_input(p, GATE, true, 1, &H, &w, err));
    TRY(rt_gradient(p, out, GATE_GRAD, 1, &H, &dw, err));
    double *row = malloc((size_t)(2 * H) * sizeof *row);
    if (!row)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    rt_elements(w, 0, H, row + H);
    for (int64_t t = 0; t < T; t++) {
        double slope = da[t] * a[t] * (1 - a[t]);
        rt_elements(x, t * H, H, row);
        for (int64_t h = 0; h < H; h++) {
            dx[t * H + h] += slope * row[H + h];
            dw[h] += slope * row[h];
        }
    }
    free(row);
    return MOEGEN_RT_OK;
}

static moegen_rt_status give_gradients(const moegen_rt_problem *p, const moegen_rt_problem *x,
                                       const moegen_rt_problem *own, moegen_rt_problem *out,
                                       moegen_rt_error *err)
{
    add(out, "hidden_states_grad", own);
    for (size_t i = 0; moegen_rt_problem_at(own, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(own, i);
        if (ends_with(t->name, "_proj_weight_grad"))
            TRY(give(out, t, NULL, err));
    }
    if (!is(p, "shared.gate", "sigmoid"))
        return MOEGEN_RT_OK;
    return gate_back(p, moegen_rt_problem_tensor(x, "expert_affinities_masked")->data,
                     moegen_rt_problem_tensor(own, "expert_affinities_masked_grad")->data, out,
                     err);
}

moegen_rt_status rt_shared_backward(const moegen_rt_problem *p, const moegen_rt_want *want,
                                    moegen_rt_problem *out, moegen_rt_error *err)
{
    moegen_rt_problem *x = expert_of(p, err), *own = x ? moegen_rt_problem_create() : NULL;
    moegen_rt_status status = own ? rt_compute_moe_backward(x, want, own, err)
                                  : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        status = give_gradients(p, x, own, out, err);
    moegen_rt_problem_destroy(x);
    moegen_rt_problem_destroy(own);
    return status;
}

/* ---- filling ---- */

/* Copies the tensors whose names hold `part` to p, as those of the layer. */
static moegen_rt_status keep(moegen_rt_problem *p, const moegen_rt_problem *x, const char *part,
                             moegen_rt_error *err)
{
    for (size_t i = 0; moegen_rt_problem_at(x, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(x, i);
        char name[NAME];
        moegen_rt_tensor *to;
        bool whole = t->rank < 2;
        if (!strstr(t->name, part))
            continue;
        snprintf(name, sizeof name, "%s%s", PREFIX, t->name);
        TRY(moegen_rt_problem_add(p, name, t->dtype, whole ? t->rank : t->rank - 1,
                                  t->shape + !whole, &to, err));
        memcpy(to->data, t->data, t->bytes);
    }
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_shared_fill(const struct rt_layer *l, moegen_rt_problem *p,
                                const moegen_rt_fill *how, moegen_rt_error *err)
{
    moegen_rt_problem *x = moegen_rt_problem_create();
    moegen_rt_fill own = *how;
    moegen_rt_dtype io;
    int64_t H = l->m.H;
    own.seed = rt_seed(how->seed, "shared");
    own.routing = NULL;
    moegen_rt_status status = rt_dtype(p, "dtype", MOEGEN_RT_F32, &io, err);
    if (status == MOEGEN_RT_OK)
        status =
            x ? rt_problem_params(x, p, err) : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        status = set_params(x, p);
    if (status == MOEGEN_RT_OK)
        status = rt_moe_fill(x, &own, err);
    if (status == MOEGEN_RT_OK)
        status = keep(p, x, "_proj_", err);
    if (status == MOEGEN_RT_OK && is(p, "shared.gate", "sigmoid"))
        status = rt_add_normal(p, GATE, io, 1, &H, how->seed, 1 / sqrt((double)H), err);
    moegen_rt_problem_destroy(x);
    return status;
}

moegen_rt_status rt_shared_fill_backward(const struct rt_layer *l, moegen_rt_problem *p,
                                         moegen_rt_dtype io, uint64_t seed, moegen_rt_error *err)
{
    moegen_rt_problem *x = expert_of(p, err), *grads = x ? moegen_rt_problem_create() : NULL;
    struct rt_moe m;
    int64_t H = l->m.H;
    moegen_rt_tensor *kept = NULL, *to;
    moegen_rt_status status =
        grads ? rt_moe_read(x, &m, err) : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        status = rt_problem_params(grads, x, err);
    if (status == MOEGEN_RT_OK)
        status = rt_moe_fill_gradients(grads, &m, rt_seed(seed, "shared"), err);
    if (status == MOEGEN_RT_OK)
        status = keep(p, grads, "_proj_weight_grad", err);
    if (status == MOEGEN_RT_OK && is(p, "shared.gate", "sigmoid"))
        status = rt_fill_gradient(p, GATE_GRAD, 1, &H, seed, err);
    if (status == MOEGEN_RT_OK && !l->recompute)
        status = rt_moe_checkpoints(x, &m, io, seed, err);
    if (status == MOEGEN_RT_OK)
        kept = moegen_rt_problem_tensor(x, "gate_up_proj_act_checkpoint_T");
    if (kept)
        status = moegen_rt_problem_add(p, KEPT, kept->dtype, kept->rank, kept->shape, &to, err);
    if (kept && status == MOEGEN_RT_OK)
        memcpy(to->data, kept->data, kept->bytes);
    moegen_rt_problem_destroy(x);
    moegen_rt_problem_destroy(grads);
    return status;
}
