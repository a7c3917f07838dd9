/* SPDX-License-Identifier: Apache-2.0 */
/* prequantised.h - operands of quantised products: numbers, or codes with scales (SEMANTICS 3). */
#ifndef MOEGEN_PREQUANTISED_H
#define MOEGEN_PREQUANTISED_H

#include "reference.h"

/* An operand [rows, columns]. If it is given as codes, scales are along one of its extents. */
struct rt_operand_shape {
    const char *name;
    int64_t rows, columns; /* rows -1: as many tokens as there are */
    int64_t parts;         /* matrices one after the other: scales down the rows are of each */
    const char *down;      /* what prequantised.NAME.along calls the rows */
    const char *along;     /* its value if it is not there */
};
struct rt_operand {
    const moegen_rt_tensor *t; /* of numbers: f64 if it was decoded */
    bool is_given, is_down;    /* as codes; with scales down the rows */
    moegen_rt_tensor decoded;
};
/* rt_quantise_matrix, of what has no scales in that direction. */
moegen_rt_status rt_operand_quantise(const struct rt_quantiser *q, const struct rt_operand *o,
                                     int64_t rows, int64_t columns, int64_t down,
                                     moegen_rt_tensor *to, moegen_rt_error *err);
/* Adds an operand: normal numbers times scale, or codes of such with scales, some of which no rule
 * would choose. What is no code and no scale is NaN. */
moegen_rt_status rt_operand_fill(moegen_rt_problem *p, const struct rt_quantiser *q,
                                 const struct rt_operand_shape *shape, moegen_rt_dtype dtype,
                                 uint64_t seed, double scale, moegen_rt_error *err);
void rt_operand_free(struct rt_operand *o);

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

#endif
