/* SPDX-License-Identifier: Apache-2.0 */
/* moe.h - what the references and fillers of the moe_ families share, grouped by the file that
 * defines it. */
#ifndef MOEGEN_REFERENCE_MOE_H
#define MOEGEN_REFERENCE_MOE_H

#include "weights.h"

/* ---- moe.c: what the moe_ families share ---- */

/* The spec of a moe_ kernel, from the parameters. */
struct rt_moe {
    int64_t H, I, E, k, B;
    int64_t parts; /* matrices in gate_up: 2, or 1 when not gated (then: up) */
    bool gated, skip_token, dropping, accumulate, save;
    bool slots; /* there is an affinity for each slot, not for each token and expert */
    bool bias_gate_up, bias_down;
    bool frozen; /* backward gives no gradients of the experts' parameters */
    bool pre, post_hidden, post_intermediate; /* where the affinity enters; none of them: nowhere */
    struct rt_limits gate, up;
    double up_offset;
    double most; /* of what the activation gives */
    bool norm;   /* layer normalisation before the activation; then not gated */
    double norm_eps;
    bool post_norm; /* what an expert gave, times a weight, is divided by its size */
    double post_norm_eps;
    int64_t static_blocks; /* run whatever `conditions` says */
    int64_t moved;         /* see rt_moved */
    const moegen_rt_activation *act;
};
moegen_rt_status rt_moe_read(const moegen_rt_problem *p, struct rt_moe *m, moegen_rt_error *err);
/* Adds the inputs that forward and backward share: hidden_states, affinities, weights and their
 * scales, biases, token_position_to_id, block_to_expert, conditions. */
moegen_rt_status rt_moe_fill(moegen_rt_problem *p, const moegen_rt_fill *how, moegen_rt_error *err);

/* The inputs of a moe_ kernel with agreeing shapes; absent optional ones are NULL, or empty. */
struct rt_moe_inputs {
    struct rt_operand hidden_states;
    const moegen_rt_tensor *hidden, *ids, *experts, *conditions;
    const moegen_rt_tensor *affinity; /* element rt_moe_affinity(..) is that of a slot */
    const moegen_rt_tensor *down_bias, *norm_weight, *norm_bias, *post_norm_weight;
    struct rt_weights gate_up, down, gate_up_bias;
    int64_t T, N;
    int64_t run; /* blocks that run: the first ones */
};
/* To be freed with rt_moe_inputs_free, also after a failure. */
moegen_rt_status rt_moe_inputs(const moegen_rt_problem *p, const struct rt_moe *m,
                               struct rt_moe_inputs *in, moegen_rt_error *err);
void rt_moe_inputs_free(struct rt_moe_inputs *in);
/* Where the affinity of a slot of an expert, with this token, is in its tensor. */
int64_t rt_moe_affinity(const struct rt_moe *m, int64_t slot, int64_t token, int64_t e);
/* The tokens of block b: slots[i] and tokens[i] of its i-th real slot (room for B each), *count of
 * them, those of `wanted` only (one byte per token) if that is not NULL; *expert its expert. */
moegen_rt_status rt_moe_block(const struct rt_moe *m, const struct rt_moe_inputs *in, int64_t b,
                              const uint8_t *wanted, int64_t *expert, int64_t *slots,
                              int64_t *tokens, int64_t *count, moegen_rt_error *err);
/* The activation, clamped, and its derivative: 0 where it gives more than that. */
double rt_moe_act(const struct rt_moe *m, double x);
double rt_moe_act_slope(const struct rt_moe *m, double x);
/* x[n], normalised: hat = (x - mean) / sqrt(mean square deviation + eps); gives 1 / that root. */
double rt_moe_norm(const struct rt_moe *m, const double *x, int64_t n, double *hat);

/* ---- fill_moe_backward.c ---- */

/* rt_moe_read, for moe_backward: *recompute says that there are no checkpoints. */
moegen_rt_status rt_moe_backward_read(const moegen_rt_problem *p, struct rt_moe *m, bool *recompute,
                                      moegen_rt_error *err);
/* Adds the gradients of the experts' parameters that a kernel adds to, if there are to be some. */
moegen_rt_status rt_moe_fill_gradients(moegen_rt_problem *p, const struct rt_moe *m, uint64_t seed,
                                       moegen_rt_error *err);
/* Adds the checkpoints that the forward pass leaves behind to a problem that has its inputs; random
 * ones where that pass would take long. */
moegen_rt_status rt_moe_checkpoints(moegen_rt_problem *p, const struct rt_moe *m,
                                    moegen_rt_dtype io, uint64_t seed, moegen_rt_error *err);

#endif
