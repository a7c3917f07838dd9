/* SPDX-License-Identifier: Apache-2.0 */
/* fill_moe_layer.c - inputs for the whole layer: tokens whose routing rounding cannot change, and
 * for the backward pass what the forward pass leaves behind. */
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

enum { TRIES = 40 };

/* Tokens with their routing: f64 outputs of the router, and its own choice. */
struct routed {
    int64_t T;
    int32_t *chosen; /* [T, k] */
    uint8_t *close;  /* [T] */
    moegen_rt_problem *out;
};

static void drop(struct routed *r)
{
    free(r->chosen);
    free(r->close);
    moegen_rt_problem_destroy(r->out);
    *r = (struct routed){0};
}

static moegen_rt_status route(const moegen_rt_problem *p, const struct rt_layer *l,
                              struct routed *r, moegen_rt_error *err)
{
    drop(r);
    moegen_rt_problem *q = rt_layer_router(p, err);
    r->T = moegen_rt_problem_tensor(p, "hidden_states")->shape[0];
    r->out = moegen_rt_problem_create();
    r->chosen = malloc((size_t)(r->T * l->r.k) * sizeof *r->chosen);
    r->close = malloc((size_t)r->T);
    moegen_rt_status status =
        q && r->out && r->chosen && r->close ? MOEGEN_RT_OK : MOEGEN_RT_NO_MEMORY;
    if (status == MOEGEN_RT_OK)
        status = moegen_rt_problem_set(q, "op", "forward");
    if (status != MOEGEN_RT_OK)
        rt_fail(err, status, "out of memory");
    else
        status = rt_compute_router(q, NULL, r->out, err);
    if (status == MOEGEN_RT_OK)
        status = rt_layer_choose(l, q, moegen_rt_problem_tensor(r->out, "logits")->data, r->T,
                                 r->chosen, r->close, err);
    moegen_rt_problem_destroy(q);
    return status;
}

/* Tokens of size 1, as a normalisation in front of a layer makes them: a router's filler has moved
 * some of them far out. */
static moegen_rt_status normalise(moegen_rt_problem *p, int64_t H, moegen_rt_error *err)
{
    moegen_rt_tensor *x = moegen_rt_problem_tensor(p, "hidden_states");
    size_t width = moegen_rt_dtype_of(x->dtype)->bytes;
    double *row = malloc((size_t)H * sizeof *row);
    if (!row)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (int64_t t = 0; t < x->shape[0]; t++) {
        rt_elements(x, t * H, H, row);
        double size = sqrt(rt_dot(row, row, H) / (double)H);
        for (int64_t h = 0; h < H && size > 1; h++)
            row[h] /= size;
        moegen_rt_encode(x->dtype, row, (size_t)H, (char *)x->data + (size_t)(t * H) * width);
    }
    free(row);
    return MOEGEN_RT_OK;
}

/* Hidden states, moved a little until no token's routing depends on rounding (as a rule: with one
 * column and equal weights there is nothing to move). */
static moegen_rt_status settle(moegen_rt_problem *p, const struct rt_layer *l, uint64_t seed,
                               struct routed *r, moegen_rt_error *err)
{
    moegen_rt_tensor *x = moegen_rt_problem_tensor(p, "hidden_states");
    size_t width = moegen_rt_dtype_of(x->dtype)->bytes, H = (size_t)l->m.H;
    double *row = malloc(2 * H * sizeof *row);
    moegen_rt_status status =
        row ? route(p, l, r, err) : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (int i = 0; status == MOEGEN_RT_OK && i < TRIES; i++) {
        int64_t close = 0;
        for (int64_t t = 0; t < r->T; t++) {
            if (!r->close[t])
                continue;
            close++;
            moegen_rt_normal(MOEGEN_RT_F64, row + H, H,
                             rt_hash(rt_seed(seed, "settle"), (uint64_t)(i * r->T + t)), 0.2);
            rt_elements(x, t * l->m.H, l->m.H, row);
            for (size_t h = 0; h < H; h++)
                row[h] += row[H + h];
            moegen_rt_encode(x->dtype, row, H, (char *)x->data + (size_t)t * H * width);
        }
        if (!close)
            break;
        status = route(p, l, r, err);
    }
    free(row);
    return status;
}

/* Copies tensor `name` of `from`, encoded in dtype, as `as`. */
static moegen_rt_status keep(moegen_rt_problem *p, const char *as, moegen_rt_dtype dtype, int rank,
                             const int64_t *shape, const moegen_rt_problem *from, const char *name,
                             moegen_rt_error *err)
{
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(from, name);
    moegen_rt_tensor *to;
    if (!t)
        return MOEGEN_RT_OK;
    TRY(moegen_rt_problem_add(p, as, dtype, rank ? rank : t->rank, rank ? shape : t->shape, &to,
                              err));
    moegen_rt_convert(t->dtype, t->data, dtype, to->data, (size_t)moegen_rt_tensor_count(t));
    return MOEGEN_RT_OK;
}

/* What the forward pass leaves behind of the routing. */
static moegen_rt_status fill_routing(moegen_rt_problem *p, const struct rt_layer *l,
                                     const struct routed *r, moegen_rt_dtype io,
                                     moegen_rt_error *err)
{
    moegen_rt_dtype wide = io == MOEGEN_RT_F64 ? io : MOEGEN_RT_F32;
    moegen_rt_tensor *index;
    int64_t few[] = {r->T, l->r.k}, flat[] = {r->T * l->r.E, 1};
    TRY(keep(p, "logits", wide, 0, NULL, r->out, "logits", err));
    TRY(keep(p, "expert_affinities_masked", wide, 2, flat, r->out, "expert_affinities", err));
    TRY(moegen_rt_problem_add(p, "expert_index", MOEGEN_RT_I32, 2, few, &index, err));
    memcpy(index->data, r->chosen, index->bytes);
    return rt_layer_index(l, r->chosen, r->T, p, err);
}

/* The activations among it. */
static moegen_rt_status fill_activations(moegen_rt_problem *p, const struct rt_layer *l,
                                         moegen_rt_dtype io, uint64_t seed, moegen_rt_error *err)
{
    moegen_rt_problem *x = rt_layer_experts(p, err);
    if (!x)
        return MOEGEN_RT_NO_MEMORY;
    moegen_rt_status status = l->given ? rt_given_blocks(l, p, x, err) : MOEGEN_RT_OK;
    if (status == MOEGEN_RT_OK)
        status = rt_moe_checkpoints(x, &l->m, io, seed, err);
    if (status == MOEGEN_RT_OK)
        status =
            keep(p, "gate_up_activations_T", io, 0, NULL, x, "gate_up_proj_act_checkpoint_T", err);
    if (status == MOEGEN_RT_OK)
        status = keep(p, "down_activations", io, 0, NULL, x, "down_proj_act_checkpoint", err);
    moegen_rt_problem_destroy(x);
    return status;
}

static moegen_rt_status fill_backward(moegen_rt_problem *p, const struct rt_layer *l,
                                      const struct routed *r, moegen_rt_dtype io, uint64_t seed,
                                      moegen_rt_error *err)
{
    const struct rt_moe *m = &l->m;
    const moegen_rt_tensor *hidden = moegen_rt_problem_tensor(p, "hidden_states");
    int64_t dy[] = {hidden->shape[0], m->H}, router[] = {m->H, m->E};
    if (!l->given)
        TRY(fill_routing(p, l, r, io, err));
    if (!l->recompute)
        TRY(fill_activations(p, l, io, seed, err));
    TRY(rt_add_normal(p, "output_hidden_states_grad", io, 2, dy, seed, 1, err));
    if (!l->given)
        TRY(rt_fill_gradient(p, "router_weight_grad", 2, router, seed, err));
    if (!l->given && l->r.bias)
        TRY(rt_fill_gradient(p, "router_bias_grad", 1, &m->E, seed, err));
    if (!l->given && l->r.norm)
        TRY(rt_fill_gradient(p, "router_norm_weight_grad", 1, &m->H, seed, err));
    if (!l->given && l->r.scales)
        TRY(rt_fill_gradient(p, "router_scale_grad", 1, &l->r.scales, seed, err));
    TRY(rt_moe_fill_gradients(p, m, seed, err));
    return l->shared ? rt_shared_fill_backward(l, p, io, seed, err) : MOEGEN_RT_OK;
}

/* The inputs that a user gives: tokens and parameters. */
static moegen_rt_status fill_inputs(moegen_rt_problem *p, const struct rt_layer *l,
                                    const moegen_rt_fill *how, moegen_rt_error *err)
{
    static const char *const others[] = {
        "expert_affinities_masked", "slot_affinities", "token_position_to_id",
        "block_to_expert",          "conditions",      NULL};
    moegen_rt_problem *q = rt_layer_router(p, err), *x = q ? rt_layer_experts(p, err) : NULL;
    moegen_rt_status status = x ? MOEGEN_RT_OK : MOEGEN_RT_NO_MEMORY;
    if (status == MOEGEN_RT_OK)
        status = moegen_rt_problem_set(q, "op", "forward");
    if (status == MOEGEN_RT_OK && !l->given)
        status = rt_fill_router(q, how, err);
    if (status == MOEGEN_RT_OK)
        status = rt_moe_fill(x, how, err);
    for (int i = 0; others[i] && status == MOEGEN_RT_OK; i++)
        moegen_rt_problem_drop(x, others[i]);
    if (!l->given) /* tokens of the router's filler */
        moegen_rt_problem_drop(x, "hidden_states");
    if (status == MOEGEN_RT_OK)
        status = rt_problem_move(p, x, err);
    if (status == MOEGEN_RT_OK)
        status = rt_problem_move(p, q, err);
    moegen_rt_problem_destroy(q);
    moegen_rt_problem_destroy(x);
    return status == MOEGEN_RT_OK && l->given ? rt_given_fill(l, p, how, err) : status;
}

moegen_rt_status rt_fill_moe_layer(moegen_rt_problem *p, const moegen_rt_fill *how,
                                   moegen_rt_error *err)
{
    struct rt_layer l;
    struct routed r = {0};
    moegen_rt_dtype io;
    TRY(rt_layer_read(p, &l, err));
    TRY(rt_dtype(p, "dtype", MOEGEN_RT_F32, &io, err));
    moegen_rt_problem *fresh = moegen_rt_problem_create(); /* no tensor of another filling */
    moegen_rt_status status = fresh ? rt_problem_params(fresh, p, err)
                                    : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        status = fill_inputs(fresh, &l, how, err);
    if (status == MOEGEN_RT_OK && l.shared)
        status = rt_shared_fill(&l, fresh, how, err);
    if (status == MOEGEN_RT_OK && !l.given)
        status = normalise(fresh, l.m.H, err);
    if (status == MOEGEN_RT_OK && !l.given)
        status = settle(fresh, &l, how->seed, &r, err);
    if (status == MOEGEN_RT_OK && l.backward)
        status = fill_backward(fresh, &l, &r, io, how->seed, err);
    if (status == MOEGEN_RT_OK)
        status = rt_problem_move(p, fresh, err);
    moegen_rt_problem_destroy(fresh);
    drop(&r);
    return status;
}
