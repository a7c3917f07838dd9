/* SPDX-License-Identifier: Apache-2.0 */
/* layer.h - what the reference and the filler of the whole layer share, grouped by the file that
 * defines it. */
#ifndef MOEGEN_REFERENCE_LAYER_H
#define MOEGEN_REFERENCE_LAYER_H

#include "reference/moe.h"
#include "reference/router/router.h"

/* ---- ref_moe_layer.c ---- */

/* The whole layer: a router and experts over hidden states without a padding row. */
struct rt_layer {
    struct rt_router r;
    struct rt_moe m;
    bool backward;
    bool given;  /* no router: layer_given.c */
    bool shared; /* an expert sees every token: layer_shared.c */
    bool dense;  /* every expert sees every token */
    bool keeps;  /* forward leaves what backward needs; activations too, unless `recompute` */
    bool recompute;
};
moegen_rt_status rt_layer_read(const moegen_rt_problem *p, struct rt_layer *l,
                               moegen_rt_error *err);
/* A problem with the parameters and, by name, the tensors of the router, or of the experts, that p
 * has; it borrows them. NULL after a failure. */
moegen_rt_problem *rt_layer_router(const moegen_rt_problem *p, moegen_rt_error *err);
moegen_rt_problem *rt_layer_experts(const moegen_rt_problem *p, moegen_rt_error *err);
/* `to` has the tensor of that name in `from`, under another one; without it, nothing happens. */
moegen_rt_status rt_lend(moegen_rt_problem *to, const char *name, const moegen_rt_problem *from,
                         const char *as, moegen_rt_error *err);
/* Which experts float64 chooses for each token from f64 logits [T,E]: chosen[T,k]; close[T] (may
 * be NULL) says where rounding could choose others. */
moegen_rt_status rt_layer_choose(const struct rt_layer *l, const moegen_rt_problem *p,
                                 const double *logits, int64_t T, int32_t *chosen, uint8_t *close,
                                 moegen_rt_error *err);
/* Adds token_position_to_id, block_to_expert and conditions. */
moegen_rt_status rt_layer_index(const struct rt_layer *l, const int32_t *chosen, int64_t T,
                                moegen_rt_problem *to, moegen_rt_error *err);

/* ---- layer_open.c ---- */

/* NaN in `out` for what choices decide that rounding could change, of f64 logits [T,E]; q: the
 * router's problem. */
moegen_rt_status rt_layer_open(const struct rt_layer *l, const moegen_rt_problem *q,
                               const moegen_rt_tensor *logits, moegen_rt_problem *out,
                               moegen_rt_error *err);

/* ---- layer_given.c: a layer without a router of its own ---- */

/* Adds the inputs top_k_index and top_k_weights. */
moegen_rt_status rt_given_fill(const struct rt_layer *l, moegen_rt_problem *p,
                               const moegen_rt_fill *how, moegen_rt_error *err);
/* Adds to `to` the blocks of the pairs that p has, and slot_affinities. */
moegen_rt_status rt_given_blocks(const struct rt_layer *l, const moegen_rt_problem *p,
                                 moegen_rt_problem *to, moegen_rt_error *err);
/* Adds top_k_weights_grad, from the gradients of slots in these blocks. */
moegen_rt_status rt_given_gradient(const struct rt_layer *l, const moegen_rt_problem *p,
                                   const moegen_rt_tensor *of_slots, moegen_rt_problem *out,
                                   moegen_rt_error *err);

/* ---- layer_shared.c: an expert that sees every token ---- */

/* Adds its parameters. */
moegen_rt_status rt_shared_fill(const struct rt_layer *l, moegen_rt_problem *p,
                                const moegen_rt_fill *how, moegen_rt_error *err);
/* Adds what backward takes of forward, and the gradients that a kernel adds to, if there are some.
 */
moegen_rt_status rt_shared_fill_backward(const struct rt_layer *l, moegen_rt_problem *p,
                                         moegen_rt_dtype io, uint64_t seed, moegen_rt_error *err);
/* Adds its output to that in `out`, or its gradient of hidden states; and its other outputs. */
moegen_rt_status rt_shared_forward(const moegen_rt_problem *p, const moegen_rt_want *want,
                                   moegen_rt_problem *out, moegen_rt_error *err);
moegen_rt_status rt_shared_backward(const moegen_rt_problem *p, const moegen_rt_want *want,
                                    moegen_rt_problem *out, moegen_rt_error *err);

#endif
