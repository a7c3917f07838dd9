/* SPDX-License-Identifier: Apache-2.0 */
/* moe.c - what the references of the moe_ families share: spec, inputs, blocks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "moe.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        moegen_rt_status try_status = (call);                                                      \
        if (try_status != MOEGEN_RT_OK)                                                            \
            return try_status;                                                                     \
    } while (0)

static bool is(const moegen_rt_problem *p, const char *key, const char *value,
               const char *otherwise)
{
    return strcmp(moegen_rt_problem_text(p, key, otherwise), value) == 0;
}

static struct rt_limits limits(const moegen_rt_problem *p, const char *lo, const char *hi)
{
    return (struct rt_limits){moegen_rt_problem_number(p, lo, -INFINITY),
                              moegen_rt_problem_number(p, hi, INFINITY)};
}

/* The tensor of the affinities. */
static const char *affinities_of(const struct rt_moe *m)
{
    return m->slots ? "slot_affinities" : "expert_affinities_masked";
}

moegen_rt_status rt_moe_read(const moegen_rt_problem *p, struct rt_moe *m, moegen_rt_error *err)
{
    *m = (struct rt_moe){0};
    TRY(rt_size(p, "H", 1 << 24, &m->H, err));
    TRY(rt_size(p, "I_TP", 1 << 24, &m->I, err));
    TRY(rt_size(p, "E", 1 << 20, &m->E, err));
    TRY(rt_size(p, "block_size", 1 << 24, &m->B, err));
    m->k = moegen_rt_problem_int(p, "top_k", 1);
    if (m->k < 1 || m->k > m->E)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "top_k: %lld is not in 1..%lld (E)",
                       (long long)m->k, (long long)m->E);
    m->gated = moegen_rt_problem_bool(p, "gated", 1);
    m->parts = m->gated ? 2 : 1;
    m->skip_token = moegen_rt_problem_bool(p, "skip_token", 0);
    m->dropping = moegen_rt_problem_bool(p, "dropping", 0);
    m->accumulate = moegen_rt_problem_bool(p, "accumulate", 1);
    m->slots = is(p, "affinities", "slots", "dense");
    m->save = is(p, "checkpoint", "save", "none");
    int bias = moegen_rt_problem_bool(p, "bias", 0);
    m->bias_gate_up = moegen_rt_problem_bool(p, "bias.gate_up", bias);
    m->bias_down = moegen_rt_problem_bool(p, "bias.down", bias);
    m->frozen = is(p, "weight_grads", "none", "all");
    bool post = is(p, "affinity.scale", "post", "post");
    m->pre = is(p, "affinity.scale", "pre", "post");
    m->post_hidden = post && is(p, "affinity.on", "hidden", "hidden");
    m->post_intermediate = post && !m->post_hidden;
    m->gate = limits(p, "clamp.gate.lo", "clamp.gate.hi");
    m->up = limits(p, "clamp.up.lo", "clamp.up.hi");
    m->up_offset = moegen_rt_problem_number(p, "up_offset", 0);
    m->most = moegen_rt_problem_number(p, "clamp.activated", INFINITY);
    m->norm = is(p, "norm", "layer", "none");
    m->norm_eps = moegen_rt_problem_number(p, "norm_eps", 1e-5);
    m->post_norm = moegen_rt_problem_text(p, "post_norm.eps", NULL) != NULL;
    m->post_norm_eps = moegen_rt_problem_number(p, "post_norm.eps", 0);
    m->static_blocks = moegen_rt_problem_int(p, "loop.static_blocks", 0);
    m->moved = moegen_rt_problem_int(p, "moved", 0);
    const char *act = moegen_rt_problem_text(p, "activation", "silu");
    m->act = moegen_rt_activation_find(act);
    if (!m->act)
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED, "the runtime has no activation '%s'", act);
    return MOEGEN_RT_OK;
}

const struct rt_format *rt_weights_format(const moegen_rt_problem *p)
{
    const char *name = moegen_rt_problem_text(p, "weights.dtype", "");
    bool scales = moegen_rt_problem_text(p, "weights.scale", NULL);
    return is(p, "dtype", name, "") && !scales ? NULL : rt_format_find(name);
}

/* ---- filling ---- */

/* One kind of matrices, of order `size`. */
static moegen_rt_status fill_kind(moegen_rt_problem *p, const struct rt_moe *m, enum rt_kind kind,
                                  moegen_rt_dtype dtype, uint64_t seed, double size,
                                  moegen_rt_error *err)
{
    struct rt_weights w;
    moegen_rt_status status = rt_weights_lay(p, m, kind, &w, err);
    if (status == MOEGEN_RT_OK)
        status = rt_weights_fill(p, &w, dtype, seed, size, err);
    rt_weights_free(&w);
    return status;
}

static moegen_rt_status fill_weights(moegen_rt_problem *p, const struct rt_moe *m,
                                     moegen_rt_dtype io, uint64_t seed, moegen_rt_error *err)
{
    moegen_rt_dtype weights = io, bias;
    if (!rt_weights_format(p))
        TRY(rt_dtype(p, "weights.dtype", io, &weights, err));
    TRY(rt_dtype(p, "bias_dtype", io, &bias, err));
    TRY(fill_kind(p, m, RT_GATE_UP, weights, seed, 1 / sqrt((double)m->H), err));
    TRY(fill_kind(p, m, RT_DOWN, weights, seed, 1 / sqrt((double)m->I), err));
    if (m->bias_gate_up)
        TRY(fill_kind(p, m, RT_GATE_UP_BIAS, bias, seed, 0.5, err));
    int64_t down_bias_shape[] = {m->E, m->H}, norm_shape[] = {m->E, m->I};
    if (m->bias_down)
        TRY(rt_add_normal(p, "down_proj_bias", bias, 2, down_bias_shape, seed, 0.5, err));
    if (m->norm) {
        TRY(rt_add_normal(p, "norm_weight", bias, 2, norm_shape, seed, 1, err));
        TRY(rt_add_normal(p, "norm_bias", bias, 2, norm_shape, seed, 0.5, err));
    }
    if (m->post_norm)
        TRY(rt_add_normal(p, "post_norm_weight", bias, 1, &m->H, seed, 1, err));
    return MOEGEN_RT_OK;
}

int64_t rt_moe_affinity(const struct rt_moe *m, int64_t slot, int64_t token, int64_t e)
{
    return m->slots ? slot : token * m->E + e;
}

/* Softmax of random logits over the chosen experts; zero for the others and the padding row. */
static moegen_rt_status fill_affinity(moegen_rt_problem *p, const struct rt_moe *m, int64_t T,
                                      const int32_t *chosen, moegen_rt_dtype dtype, uint64_t seed,
                                      moegen_rt_error *err)
{
    int64_t shape[] = {(T + !m->skip_token) * m->E, 1};
    moegen_rt_tensor *t;
    TRY(moegen_rt_problem_add(p, "expert_affinities_masked", dtype, 2, shape, &t, err));
    size_t width = moegen_rt_dtype_of(dtype)->bytes;
    memset(t->data, 0, t->bytes);
    double *value = malloc((size_t)m->k * sizeof *value);
    if (!value)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (int64_t i = 0; i < T; i++) {
        double sum = 0;
        moegen_rt_normal(MOEGEN_RT_F64, value, (size_t)m->k,
                         rt_hash(rt_seed(seed, t->name), (uint64_t)i), 1);
        for (int64_t j = 0; j < m->k; j++)
            sum += value[j] = exp(value[j]);
        for (int64_t j = 0; j < m->k; j++) {
            double a = value[j] / sum;
            int64_t at = i * m->E + chosen[i * m->k + j];
            moegen_rt_encode(dtype, &a, 1, (char *)t->data + (size_t)at * width);
        }
    }
    free(value);
    return MOEGEN_RT_OK;
}

/* Of each slot instead, once there are blocks; what padding has nobody reads. */
static moegen_rt_status give_slots(moegen_rt_problem *p, const struct rt_moe *m,
                                   moegen_rt_error *err)
{
    const char *dense = "expert_affinities_masked";
    moegen_rt_tensor *t = moegen_rt_problem_tensor(p, dense), *to;
    const moegen_rt_tensor *ids = moegen_rt_problem_tensor(p, "token_position_to_id"),
                           *experts = moegen_rt_problem_tensor(p, "block_to_expert");
    int64_t slots = moegen_rt_tensor_count(ids);
    TRY(moegen_rt_problem_add(p, affinities_of(m), t->dtype, 1, &slots, &to, err));
    size_t width = moegen_rt_dtype_of(t->dtype)->bytes;
    memset(to->data, 0xff, to->bytes);
    for (int64_t i = 0; i < slots; i++) {
        int64_t id = rt_index_at(ids, i), e = rt_index_at(experts, i / m->B);
        if (id >= 0 && (id + 1) * m->E <= moegen_rt_tensor_count(t))
            memcpy((char *)to->data + (size_t)i * width,
                   (const char *)t->data + (size_t)(id * m->E + e) * width, width);
    }
    moegen_rt_problem_drop(p, dense);
    return MOEGEN_RT_OK;
}

static moegen_rt_status fill_index(moegen_rt_problem *p, const struct rt_moe *m,
                                   const moegen_rt_fill *how, int64_t T, const int32_t *chosen,
                                   moegen_rt_error *err)
{
    int64_t N = m->dropping ? m->E : rt_block_count(T, m->k, m->E, m->B) + how->extra_blocks;
    N = moegen_rt_problem_int(p, "N_blocks", N);
    if (N < 1 || N >= INT32_MAX)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "%lld blocks are not in 1..%d", (long long)N,
                       INT32_MAX - 1);
    int64_t slots = N * m->B, entries = N + 1;
    moegen_rt_tensor *ids, *experts, *conditions;
    TRY(moegen_rt_problem_add(p, "token_position_to_id", MOEGEN_RT_I32, 1, &slots, &ids, err));
    TRY(moegen_rt_problem_add(p, "block_to_expert", MOEGEN_RT_I32, 1, &N, &experts, err));
    TRY(moegen_rt_problem_add(p, "conditions", MOEGEN_RT_I32, 1, &entries, &conditions, err));
    TRY(rt_index_build(chosen, T, m->k, m->E, m->B, N, m->skip_token ? -1 : (int32_t)T, m->dropping,
                       ids->data, experts->data, conditions->data, err));
    if (m->dropping) { /* an expert without tokens must not stop the loop */
        for (int64_t b = 0; b < N; b++)
            ((int32_t *)conditions->data)[b] = 1;
    }
    if (how->no_conditions)
        moegen_rt_problem_drop(p, "conditions");
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_moe_fill(moegen_rt_problem *p, const moegen_rt_fill *how, moegen_rt_error *err)
{
    struct rt_moe m;
    moegen_rt_dtype io, affinity;
    TRY(rt_moe_read(p, &m, err));
    TRY(rt_dtype(p, "dtype", MOEGEN_RT_F32, &io, err));
    TRY(rt_dtype(p, "affinity_dtype", io, &affinity, err));
    int64_t T = moegen_rt_problem_int(p, "T", how->T);
    if (T < 1 || T >= INT32_MAX || how->extra_blocks < 0 || how->extra_blocks >= INT32_MAX)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "T: %lld is not in 1..%d", (long long)T,
                       INT32_MAX - 1);
    int32_t *chosen = malloc((size_t)(T * m.k) * sizeof *chosen);
    if (!chosen)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    moegen_rt_status status = rt_route(how->routing, how->seed, T, m.E, m.k, chosen, err);
    if (status == MOEGEN_RT_OK)
        status = rt_tokens_fill(p, "hidden_states", T + !m.skip_token, m.H, io, how->seed, err);
    if (status == MOEGEN_RT_OK)
        status = fill_affinity(p, &m, T, chosen, affinity, how->seed, err);
    if (status == MOEGEN_RT_OK)
        status = fill_weights(p, &m, io, how->seed, err);
    if (status == MOEGEN_RT_OK)
        status = fill_index(p, &m, how, T, chosen, err);
    if (status == MOEGEN_RT_OK && m.slots)
        status = give_slots(p, &m, err);
    free(chosen);
    return status;
}

/* ---- reading ---- */

static int64_t blocks_to_run(const struct rt_moe *m, const struct rt_moe_inputs *in)
{
    int64_t run = 0;
    while (run < in->N &&
           (run < m->static_blocks || !in->conditions || rt_index_at(in->conditions, run) != 0))
        run++;
    return run;
}

static moegen_rt_status find_kind(const moegen_rt_problem *p, const struct rt_moe *m,
                                  enum rt_kind kind, struct rt_weights *w, moegen_rt_error *err)
{
    TRY(rt_weights_lay(p, m, kind, w, err));
    return rt_weights_find(p, w, err);
}

static moegen_rt_status find_weights(const moegen_rt_problem *p, const struct rt_moe *m,
                                     struct rt_moe_inputs *in, moegen_rt_error *err)
{
    int64_t down_bias[] = {m->E, m->H}, norm[] = {m->E, m->I};
    TRY(find_kind(p, m, RT_GATE_UP, &in->gate_up, err));
    TRY(find_kind(p, m, RT_DOWN, &in->down, err));
    if (m->bias_gate_up)
        TRY(find_kind(p, m, RT_GATE_UP_BIAS, &in->gate_up_bias, err));
    if (m->bias_down)
        TRY(rt_input(p, "down_proj_bias", true, 2, down_bias, &in->down_bias, err));
    if (m->norm) {
        TRY(rt_input(p, "norm_weight", true, 2, norm, &in->norm_weight, err));
        TRY(rt_input(p, "norm_bias", true, 2, norm, &in->norm_bias, err));
    }
    if (m->post_norm)
        TRY(rt_input(p, "post_norm_weight", true, 1, &m->H, &in->post_norm_weight, err));
    return MOEGEN_RT_OK;
}

void rt_moe_inputs_free(struct rt_moe_inputs *in)
{
    rt_weights_free(&in->gate_up);
    rt_weights_free(&in->down);
    rt_weights_free(&in->gate_up_bias);
    rt_operand_free(&in->hidden_states);
}

moegen_rt_status rt_moe_inputs(const moegen_rt_problem *p, const struct rt_moe *m,
                               struct rt_moe_inputs *in, moegen_rt_error *err)
{
    *in = (struct rt_moe_inputs){0};
    int64_t any[] = {-1};
    TRY(rt_tokens_read(p, "hidden_states", -1, m->H, &in->hidden_states, err));
    in->hidden = in->hidden_states.t;
    int64_t rows = in->hidden->rank ? in->hidden->shape[0] : 1;
    in->T = rows - !m->skip_token;
    if (in->T < 1)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "tensor 'hidden_states' holds no token");
    TRY(rt_input(p, "token_position_to_id", true, 1, any, &in->ids, err));
    int64_t slots = moegen_rt_tensor_count(in->ids);
    int64_t affinity[] = {m->slots ? slots : rows * m->E};
    TRY(rt_input(p, affinities_of(m), true, 1, affinity, &in->affinity, err));
    if (slots % m->B != 0)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT,
                       "tensor 'token_position_to_id' has %lld elements, which is no multiple of "
                       "block_size %lld",
                       (long long)slots, (long long)m->B);
    in->N = slots / m->B;
    if (m->dropping && in->N != m->E)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT,
                       "with dropping there is one block per expert: %lld blocks, %lld experts",
                       (long long)in->N, (long long)m->E);
    int64_t entries = in->N + 1;
    TRY(rt_input(p, "block_to_expert", !m->dropping, 1, &in->N, &in->experts, err));
    TRY(rt_input(p, "conditions", false, 1, &entries, &in->conditions, err));
    TRY(find_weights(p, m, in, err));
    in->run = blocks_to_run(m, in);
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_moe_block(const struct rt_moe *m, const struct rt_moe_inputs *in, int64_t b,
                              const uint8_t *wanted, int64_t *expert, int64_t *slots,
                              int64_t *tokens, int64_t *count, moegen_rt_error *err)
{
    *expert = m->dropping ? b : rt_index_at(in->experts, b);
    *count = 0;
    if (*expert < 0 || *expert >= m->E)
        return rt_fail(err, MOEGEN_RT_BAD_DATA, "block_to_expert[%lld] is %lld, not in 0..%lld",
                       (long long)b, (long long)*expert, (long long)m->E - 1);
    int64_t padding = m->skip_token ? -1 : in->T;
    for (int64_t slot = 0; slot < m->B; slot++) {
        int64_t id = rt_index_at(in->ids, b * m->B + slot);
        if (id == padding)
            continue;
        if (id < 0 || id >= in->T)
            return rt_fail(err, MOEGEN_RT_BAD_DATA,
                           "token_position_to_id[%lld] is %lld, neither in 0..%lld nor the padding "
                           "id %lld",
                           (long long)(b * m->B + slot), (long long)id, (long long)in->T - 1,
                           (long long)padding);
        if (wanted && !wanted[id])
            continue;
        slots[*count] = slot;
        tokens[(*count)++] = id;
    }
    return MOEGEN_RT_OK;
}

double rt_moe_act(const struct rt_moe *m, double x)
{
    double y = rt_act(m->act, m->moved, x);
    return y > m->most ? m->most : y;
}

double rt_moe_act_slope(const struct rt_moe *m, double x)
{
    return m->act->value(x) > m->most ? 0 : rt_act_slope(m->act, m->moved, x);
}

double rt_moe_norm(const struct rt_moe *m, const double *x, int64_t n, double *hat)
{
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean) / (double)n;
    double factor = 1 / sqrt(square + m->norm_eps);
    for (int64_t i = 0; i < n; i++)
        hat[i] = (x[i] - mean) * factor;
    return factor;
}
