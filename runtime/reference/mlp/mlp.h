/* SPDX-License-Identifier: Apache-2.0 */
/* mlp.h - what the references and fillers of the mlp_ families share, grouped by the file that
 * defines it. */
#ifndef MOEGEN_MLP_H
#define MOEGEN_MLP_H

#include "reference/quantised.h"
#include "reference/weights.h"

/* ---- fill_mlp.c ---- */

/* Intermediates, which a caller may have kept, and their names. */
enum rt_given { RT_GATE_PRE, RT_GATE_ACT, RT_UP, RT_HIDDEN, RT_GIVEN };
extern const char *const rt_mlp_name[RT_GIVEN];
struct rt_mlp {
    int64_t H, I, parts;
    bool gated;
    bool separate, in_turn; /* gate and up have tensors of their own; their rows alternate */
    bool keep;              /* forward: also give the intermediates */
    bool frozen;            /* backward: weights have no gradients */
    struct rt_limits gate, up;
    double offset; /* added to up after its clamp */
    int64_t moved; /* see rt_moved */
    const moegen_rt_activation *act;
};
moegen_rt_status rt_mlp_read(const moegen_rt_problem *p, struct rt_mlp *m, moegen_rt_error *err);
/* Has the spec this intermediate? Without a gate there is up and hidden = act(up). */
bool rt_mlp_has(const struct rt_mlp *m, int given);

/* ---- operands.c: numbers, or codes with scales, see stored/prequantised.c ---- */

/* rt_quantise_matrix, of what has no scales in that direction. */
moegen_rt_status rt_operand_quantise(const struct rt_quantiser *q, const struct rt_operand *o,
                                     int64_t rows, int64_t columns, int64_t down,
                                     moegen_rt_tensor *to, moegen_rt_error *err);
/* Adds an operand: normal numbers times scale, or codes of such with scales, some of which no rule
 * would choose. What is no code and no scale is NaN. */
moegen_rt_status rt_operand_fill(moegen_rt_problem *p, const struct rt_quantiser *q,
                                 const struct rt_operand_shape *shape, moegen_rt_dtype dtype,
                                 uint64_t seed, double scale, moegen_rt_error *err);

/* ---- pack_mlp.c: matrices as the key `weights` has them ---- */

/* to->t becomes its numbers, or stays NULL if they are there as its shape says. */
moegen_rt_status rt_operand_unpack(const moegen_rt_problem *p, const struct rt_operand_shape *o,
                                   struct rt_operand *to, moegen_rt_error *err);
/* Adds an operand of the same numbers, however it is stored, or of codes. */
moegen_rt_status rt_operand_add(moegen_rt_problem *p, const struct rt_operand_shape *o,
                                moegen_rt_dtype dtype, uint64_t seed, double scale,
                                moegen_rt_error *err);
/* How rows of X, and of hidden, are quantised beside such weights. */
moegen_rt_status rt_mlp_online(const moegen_rt_problem *p, const struct rt_mlp *m,
                               struct rt_online q[2], moegen_rt_error *err);

/* ---- gradients.c: those of gate and up, which lie as the weights do ---- */

struct rt_mlp_gradient {
    double *rows; /* [parts * I, H], where they are summed up */
    double *tensor[2];
    bool owned; /* rows are not those of a tensor */
};
/* Adds the outputs. To be freed with rt_mlp_gradient_free, also after a failure. */
moegen_rt_status rt_mlp_gradient(const moegen_rt_problem *p, moegen_rt_problem *out,
                                 const struct rt_mlp *m, struct rt_mlp_gradient *g,
                                 moegen_rt_error *err);
/* Brings what is in g->rows into them. */
void rt_mlp_gradient_give(const struct rt_mlp *m, struct rt_mlp_gradient *g);
void rt_mlp_gradient_free(struct rt_mlp_gradient *g);
/* Adds what a kernel adds to, if there is to be something. */
moegen_rt_status rt_mlp_gradient_fill(moegen_rt_problem *p, const struct rt_mlp *m, uint64_t seed,
                                      moegen_rt_error *err);

/* ---- operands.c again ---- */

/* The operands of an MLP that a caller has: X, gate_up, down, and dY backward. S: tokens, or -1. */
enum { RT_X, RT_WGU, RT_WD, RT_DY, RT_OPERANDS };
void rt_mlp_operands(const struct rt_mlp *m, int64_t S, bool backward,
                     struct rt_operand_shape of[RT_OPERANDS]);
/* Finds them, decodes those that are given as codes, and says how many tokens there are. Each is to
 * be freed with rt_operand_free, also after a failure. */
moegen_rt_status rt_mlp_operands_read(const moegen_rt_problem *p, const struct rt_quantiser *q,
                                      const struct rt_mlp *m, bool backward,
                                      struct rt_operand to[RT_OPERANDS], int64_t *S,
                                      moegen_rt_error *err);
/* The matrices, quantised: gate_up along H, backward also along I, and down. Their data is the
 * caller's. */
moegen_rt_status rt_mlp_quantise(const struct rt_quantiser *q, const struct rt_mlp *m,
                                 bool backward, const struct rt_operand *operand,
                                 moegen_rt_tensor to[3], moegen_rt_error *err);

#endif
