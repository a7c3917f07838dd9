/* SPDX-License-Identifier: Apache-2.0 */
/* ref_moe_layer.c - the whole layer in float64 (SEMANTICS 6): the references of its parts, one
 * after the other. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layer.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        moegen_rt_status try_status = (call);                                                      \
        if (try_status != MOEGEN_RT_OK)                                                            \
            return try_status;                                                                     \
    } while (0)

/* ---- spec ---- */

static bool is(const moegen_rt_problem *p, const char *key, const char *value,
               const char *otherwise)
{
    return strcmp(moegen_rt_problem_text(p, key, otherwise), value) == 0;
}

/* Parameters that a part spells otherwise than the layer. */
static moegen_rt_status set_router(moegen_rt_problem *q, const moegen_rt_problem *p)
{
    bool bias = moegen_rt_problem_bool(p, "router_bias", 0);
    return moegen_rt_problem_set(q, "bias", bias ? "true" : "false");
}

static moegen_rt_status set_experts(moegen_rt_problem *x, const moegen_rt_problem *p)
{
    bool backward = is(p, "op", "backward", "forward"),
         again = is(p, "checkpoint", "recompute", "");
    bool kept =
        again || is(p, "checkpoint", "save", "none") || is(p, "checkpoint", "saved", "none");
    const char *how = backward ? again ? "recompute" : "saved" : kept && !again ? "save" : "none";
    TRY(moegen_rt_problem_set(x, "checkpoint", how));
    TRY(moegen_rt_problem_set(x, "affinities",
                              is(p, "router", "given", "own") ? "slots" : "dense"));
    return moegen_rt_problem_set(x, "skip_token", "true");
}

static moegen_rt_problem *part_of(const moegen_rt_problem *p, const char *const *tensors,
                                  moegen_rt_status (*set)(moegen_rt_problem *,
                                                          const moegen_rt_problem *),
                                  moegen_rt_error *err)
{
    moegen_rt_problem *part = moegen_rt_problem_create();
    moegen_rt_status status = part ? rt_problem_params(part, p, err) : MOEGEN_RT_NO_MEMORY;
    if (status == MOEGEN_RT_OK)
        status = set(part, p);
    for (; *tensors && status == MOEGEN_RT_OK; tensors++)
        status = rt_lend(part, *tensors, p, *tensors, err);
    if (status == MOEGEN_RT_OK)
        return part;
    moegen_rt_problem_destroy(part);
    rt_fail(err, status, "out of memory");
    return NULL;
}

moegen_rt_problem *rt_layer_router(const moegen_rt_problem *p, moegen_rt_error *err)
{
    static const char *const names[] = {"hidden_states",
                                        "router_weight",
                                        "router_bias",
                                        "correction_bias",
                                        "logits",
                                        "expert_index",
                                        "router_weight_grad",
                                        "router_bias_grad",
                                        "router_norm_weight",
                                        "router_norm_weight_grad",
                                        "router_scale",
                                        "router_scale_grad",
                                        NULL};
    return part_of(p, names, set_router, err);
}

moegen_rt_problem *rt_layer_experts(const moegen_rt_problem *p, moegen_rt_error *err)
{
    /* clang-format off */
    static const char *const names[] = {
        "hidden_states", "expert_affinities_masked",
        "gate_up_proj_weight", "gate_up_proj_scale", "gate_up_proj_scale_2",
        "gate_proj_weight", "gate_proj_scale", "gate_proj_scale_2",
        "up_proj_weight", "up_proj_scale", "up_proj_scale_2",
        "down_proj_weight", "down_proj_scale", "down_proj_scale_2",
        "gate_and_up_proj_bias", "down_proj_bias", "norm_weight", "norm_bias",
        "post_norm_weight",
        "token_position_to_id", "block_to_expert", "conditions",
        "output_hidden_states_grad",
        "gate_up_proj_weight_grad", "gate_proj_weight_grad", "up_proj_weight_grad",
        "down_proj_weight_grad", "gate_and_up_proj_bias_grad", "down_proj_bias_grad",
        "norm_weight_grad", "norm_bias_grad", "post_norm_weight_grad", NULL};
    /* clang-format on */
    return part_of(p, names, set_experts, err);
}

moegen_rt_status rt_lend(moegen_rt_problem *to, const char *name, const moegen_rt_problem *from,
                         const char *as, moegen_rt_error *err)
{
    moegen_rt_tensor *t = moegen_rt_problem_tensor(from, as);
    return t ? moegen_rt_problem_lend(to, name, t->dtype, t->rank, t->shape, t->data, err)
             : MOEGEN_RT_OK;
}

moegen_rt_status rt_layer_read(const moegen_rt_problem *p, struct rt_layer *l, moegen_rt_error *err)
{
    moegen_rt_problem *q = rt_layer_router(p, err), *x = q ? rt_layer_experts(p, err) : NULL;
    *l = (struct rt_layer){.backward = is(p, "op", "backward", "forward"),
                           .given = is(p, "router", "given", "own"),
                           .shared = moegen_rt_problem_text(p, "shared.I", NULL) != NULL,
                           .dense = is(p, "dispatch", "dense", "sparse"),
                           .recompute = is(p, "checkpoint", "recompute", "")};
    moegen_rt_status status = x ? MOEGEN_RT_OK : MOEGEN_RT_NO_MEMORY;
    if (status == MOEGEN_RT_OK && !l->given)
        status = rt_router_read(q, &l->r, err);
    if (status == MOEGEN_RT_OK)
        status = rt_moe_read(x, &l->m, err);
    l->keeps = l->backward || l->recompute || l->m.save;
    moegen_rt_problem_destroy(q);
    moegen_rt_problem_destroy(x);
    return status;
}

/* ---- between router and experts ---- */

moegen_rt_status rt_layer_choose(const struct rt_layer *l, const moegen_rt_problem *p,
                                 const double *logits, int64_t T, int32_t *chosen, uint8_t *close,
                                 moegen_rt_error *err)
{
    const struct rt_router *r = &l->r;
    const moegen_rt_tensor *correction = NULL;
    int64_t corrected = r->E - r->always;
    if (r->correction)
        TRY(rt_input(p, "correction_bias", true, 1, &corrected, &correction, err));
    double *room = malloc((size_t)(5 * r->E) * sizeof *room);
    int64_t *best = malloc((size_t)r->k * sizeof *best);
    uint8_t *unsure = malloc((size_t)r->k);
    moegen_rt_status status = MOEGEN_RT_OK;
    if (!room || !best || !unsure)
        status = rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    struct rt_router_token t = {.p = room};
    if (status == MOEGEN_RT_OK) {
        t.rank = room + r->E;
        t.z = room + 3 * r->E;
        t.group = room + 4 * r->E;
    }
    double *added = status == MOEGEN_RT_OK && correction ? room + 2 * r->E : NULL;
    if (added)
        rt_elements(correction, 0, corrected, added);
    for (int64_t i = 0; status == MOEGEN_RT_OK && i < T; i++) {
        rt_router_cap(r, logits + i * r->E, &t);
        rt_router_rank(r, t.z, added, &t);
        bool open = rt_router_choose(r, &t, best, unsure);
        if (close)
            close[i] = open;
        for (int64_t j = 0; j < r->k; j++)
            chosen[i * r->k + j] = (int32_t)best[j];
    }
    free(room);
    free(best);
    free(unsure);
    return status;
}

moegen_rt_status rt_layer_index(const struct rt_layer *l, const int32_t *chosen, int64_t T,
                                moegen_rt_problem *to, moegen_rt_error *err)
{
    const struct rt_moe *m = &l->m;
    int64_t each = (T + m->B - 1) / m->B; /* blocks of an expert that sees every token */
    int64_t N = l->dense ? m->E * each : rt_block_count(T, m->k, m->E, m->B);
    int64_t slots = N * m->B, entries = N + 1;
    moegen_rt_tensor *ids, *experts, *conditions;
    TRY(moegen_rt_problem_add(to, "token_position_to_id", MOEGEN_RT_I32, 1, &slots, &ids, err));
    TRY(moegen_rt_problem_add(to, "block_to_expert", MOEGEN_RT_I32, 1, &N, &experts, err));
    TRY(moegen_rt_problem_add(to, "conditions", MOEGEN_RT_I32, 1, &entries, &conditions, err));
    if (!l->dense)
        return rt_index_build(chosen, T, m->k, m->E, m->B, N, -1, false, ids->data, experts->data,
                              conditions->data, err);
    for (int64_t i = 0; i < slots; i++) {
        int64_t t = i % (each * m->B);
        ((int32_t *)ids->data)[i] = t < T ? (int32_t)t : -1;
    }
    for (int64_t b = 0; b < entries; b++)
        ((int32_t *)conditions->data)[b] = b < N;
    for (int64_t b = 0; b < N; b++)
        ((int32_t *)experts->data)[b] = (int32_t)(b / each);
    return MOEGEN_RT_OK;
}

/* ---- forward ---- */

/* Output `name` from tensor `as` of another problem, in another shape of as many elements. */
static moegen_rt_status give(moegen_rt_problem *out, const char *name, int rank,
                             const int64_t *shape, const moegen_rt_problem *from, const char *as,
                             moegen_rt_error *err)
{
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(from, as);
    double *to;
    TRY(rt_output(out, name, rank ? rank : t->rank, rank ? shape : t->shape, 0, &to, err));
    rt_elements(t, 0, moegen_rt_tensor_count(t), to);
    moegen_rt_problem_tensor(out, name)->terms = t->terms;
    if (t->once)
        rt_rounded_once(out, name);
    return MOEGEN_RT_OK;
}

/* Adds to `out` what the router gives; q is its problem, x gets what the experts take of it. */
static moegen_rt_status route(const struct rt_layer *l, moegen_rt_problem *q, moegen_rt_problem *x,
                              const moegen_rt_want *want, moegen_rt_problem *routed,
                              moegen_rt_problem *out, moegen_rt_error *err)
{
    TRY(rt_compute_router(q, want, routed, err));
    const moegen_rt_tensor *a = moegen_rt_problem_tensor(routed, "expert_affinities");
    int64_t T = a->shape[0], pairs = T * l->r.E, flat[] = {pairs, 1};
    for (int64_t i = 0; i < pairs; i++) /* what experts give may cancel */
        ((double *)a->data)[i] *= rt_moved(l->m.moved, (uint64_t)i);
    int32_t *chosen = malloc((size_t)(T * l->r.k) * sizeof *chosen);
    if (!chosen)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    const double *logits = moegen_rt_problem_tensor(routed, "logits")->data;
    moegen_rt_status status = rt_layer_choose(l, q, logits, T, chosen, NULL, err);
    if (status == MOEGEN_RT_OK)
        status = rt_layer_index(l, chosen, T, x, err);
    free(chosen);
    TRY(status);
    TRY(moegen_rt_problem_lend(x, "expert_affinities_masked", a->dtype, 2, flat, a->data, err));
    static const char *const losses[] = {"load_balance_loss", "z_loss"};
    for (int i = 0; i < 2; i++)
        if (moegen_rt_problem_tensor(routed, losses[i]))
            TRY(give(out, losses[i], 0, NULL, routed, losses[i], err));
    if (!l->keeps)
        return MOEGEN_RT_OK;
    static const char *const index[] = {"token_position_to_id", "block_to_expert", "conditions"};
    for (int i = 0; i < 3; i++)
        TRY(give(out, index[i], 0, NULL, x, index[i], err));
    TRY(give(out, "logits", 0, NULL, routed, "logits", err));
    TRY(give(out, "expert_index", 0, NULL, routed, "expert_index", err));
    return give(out, "expert_affinities_masked", 2, flat, routed, "expert_affinities", err);
}

static moegen_rt_status forward(const struct rt_layer *l, const moegen_rt_problem *p,
                                moegen_rt_problem *q, moegen_rt_problem *x,
                                const moegen_rt_want *want, moegen_rt_problem *other,
                                moegen_rt_problem *out, moegen_rt_error *err)
{
    if (l->given)
        TRY(rt_given_blocks(l, p, x, err));
    else
        TRY(route(l, q, x, want, other, out, err));
    TRY(rt_compute_moe_forward(x, want, out, err));
    if (!l->given && !(want && want->own_choice))
        TRY(rt_layer_open(l, q, moegen_rt_problem_tensor(other, "logits"), out, err));
    return l->shared ? rt_shared_forward(p, want, out, err) : MOEGEN_RT_OK;
}

/* ---- backward ---- */

/* What an f32 kernel may be off by in the affinities' gradients, relative to their size. The
 * router's gradients are differences of these. */
static const double AFFINITY_NOISE = 4e-7;

/* Norm of x - y, or of x alone. */
static double distance(const moegen_rt_tensor *x, const moegen_rt_tensor *y)
{
    const double *a = x->data, *b = y ? y->data : NULL;
    double sum = 0;
    for (int64_t i = 0; i < moegen_rt_tensor_count(x); i++) {
        double d = b ? a[i] - b[i] : a[i];
        sum += isnan(d) ? 0 : d * d;
    }
    return sqrt(sum);
}

/* The affinities' gradients, each moved by its noise one way or the other. */
static void move(const moegen_rt_tensor *da, uint64_t seed, double *to)
{
    int64_t n = moegen_rt_tensor_count(da), some = 0;
    const double *x = da->data;
    for (int64_t i = 0; i < n; i++)
        some += x[i] != 0;
    double typical = some ? distance(da, NULL) / sqrt((double)some) : 0;
    for (int64_t i = 0; i < n; i++) {
        double by = AFFINITY_NOISE * fmax(fabs(x[i]), typical);
        to[i] = x[i] + (rt_hash(seed, (uint64_t)i) & 1 ? by : -by);
    }
}

/* Says of the outputs that depend on the router's gradients how much they move when the
 * affinities' gradients `da` do, in a few ways; exact: what the router made of da itself. */
static moegen_rt_status find_noise(moegen_rt_problem *q, const moegen_rt_tensor *da,
                                   const moegen_rt_problem *exact, moegen_rt_problem *out,
                                   moegen_rt_error *err)
{
    static const char *const names[] = {"hidden_states_grad", "router_weight_grad",
                                        "router_bias_grad", "router_norm_weight_grad",
                                        "router_scale_grad"};
    enum { NAMES = sizeof names / sizeof *names };
    moegen_rt_tensor *noisy;
    int64_t shape[] = {moegen_rt_tensor_count(da), 1};
    shape[1] = moegen_rt_problem_int(q, "E", 1);
    shape[0] /= shape[1];
    TRY(moegen_rt_problem_add(q, "expert_affinities_grad", MOEGEN_RT_F64, 2, shape, &noisy, err));
    for (uint64_t way = 0; way < 4; way++) {
        moegen_rt_problem *moved = moegen_rt_problem_create();
        if (!moved)
            return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
        move(da, way, noisy->data);
        moegen_rt_status status = rt_compute_router(q, NULL, moved, err);
        for (int i = 0; status == MOEGEN_RT_OK && i < NAMES; i++) {
            moegen_rt_tensor *t = moegen_rt_problem_tensor(out, names[i]);
            double size = t ? distance(t, NULL) : 0;
            if (size > 0)
                t->noise = fmax(t->noise, distance(moegen_rt_problem_tensor(moved, names[i]),
                                                   moegen_rt_problem_tensor(exact, names[i])) /
                                              size);
        }
        moegen_rt_problem_destroy(moved);
        TRY(status);
    }
    return MOEGEN_RT_OK;
}

/* The experts' gradients, with those of the pairs' weights. */
static moegen_rt_status backward_given(const struct rt_layer *l, const moegen_rt_problem *p,
                                       moegen_rt_problem *x, const moegen_rt_want *want,
                                       moegen_rt_problem *out, moegen_rt_error *err)
{
    TRY(rt_given_blocks(l, p, x, err));
    TRY(rt_compute_moe_backward(x, want, out, err));
    TRY(rt_given_gradient(l, p, moegen_rt_problem_tensor(out, "slot_affinities_grad"), out, err));
    moegen_rt_problem_drop(out, "slot_affinities_grad");
    return l->shared ? rt_shared_backward(p, want, out, err) : MOEGEN_RT_OK;
}

static moegen_rt_status backward(const struct rt_layer *l, const moegen_rt_problem *p,
                                 moegen_rt_problem *q, moegen_rt_problem *x,
                                 const moegen_rt_want *want, moegen_rt_problem *other,
                                 moegen_rt_problem *out, moegen_rt_error *err)
{
    if (l->given)
        return backward_given(l, p, x, want, out, err);
    TRY(rt_compute_moe_backward(x, want, out, err));
    if (l->shared)
        TRY(rt_shared_backward(p, want, out, err));
    moegen_rt_tensor *da = moegen_rt_problem_tensor(out, "expert_affinities_masked_grad");
    int64_t all[] = {moegen_rt_tensor_count(da) / l->r.E, l->r.E};
    TRY(moegen_rt_problem_lend(q, "expert_affinities_grad", da->dtype, 2, all, da->data, err));
    TRY(rt_compute_router(q, want, other, err));
    moegen_rt_tensor *sum = moegen_rt_problem_tensor(out, "hidden_states_grad");
    const moegen_rt_tensor *more = moegen_rt_problem_tensor(other, "hidden_states_grad");
    for (int64_t i = 0; i < moegen_rt_tensor_count(sum); i++)
        ((double *)sum->data)[i] += ((const double *)more->data)[i];
    TRY(give(out, "router_weight_grad", 0, NULL, other, "router_weight_grad", err));
    if (l->r.bias)
        TRY(give(out, "router_bias_grad", 0, NULL, other, "router_bias_grad", err));
    if (l->r.norm)
        TRY(give(out, "router_norm_weight_grad", 0, NULL, other, "router_norm_weight_grad", err));
    if (l->r.scales)
        TRY(give(out, "router_scale_grad", 0, NULL, other, "router_scale_grad", err));
    if (is(q, "dtype", "f32", "f32")) /* the limits of others are far above it */
        TRY(find_noise(q, da, other, out, err));
    moegen_rt_problem_drop(out, "expert_affinities_masked_grad");
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_compute_moe_layer(const moegen_rt_problem *p, const moegen_rt_want *want,
                                      moegen_rt_problem *out, moegen_rt_error *err)
{
    struct rt_layer l;
    TRY(rt_layer_read(p, &l, err));
    moegen_rt_problem *q = rt_layer_router(p, err), *x = q ? rt_layer_experts(p, err) : NULL;
    moegen_rt_problem *other = x ? moegen_rt_problem_create() : NULL;
    moegen_rt_status status =
        other ? MOEGEN_RT_OK : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        status = rt_lend(x, "gate_up_proj_act_checkpoint_T", p, "gate_up_activations_T", err);
    if (status == MOEGEN_RT_OK)
        status = rt_lend(x, "down_proj_act_checkpoint", p, "down_activations", err);
    if (status == MOEGEN_RT_OK)
        status = (l.backward ? backward : forward)(&l, p, q, x, want, other, out, err);
    moegen_rt_problem_destroy(q);
    moegen_rt_problem_destroy(x);
    moegen_rt_problem_destroy(other);
    return status;
}
