/* SPDX-License-Identifier: Apache-2.0 */
/* prequantised.h - operands of quantised products that come as codes with scales (SEMANTICS 3). */
#ifndef MOEGEN_PREQUANTISED_H
#define MOEGEN_PREQUANTISED_H

#include "runtime_private.h"

struct rt_quantiser;

/* An operand [rows, columns], of each of E experts. If it is given as codes, scales are along one
 * of its extents. */
struct rt_operand_shape {
    const char *name, *key;   /* tensor; prequantised.KEY, if that is not its name */
    int64_t E, rows, columns; /* E 0: there are none; rows -1: as many tokens as there are */
    int64_t parts;     /* matrices one after the other: scales along that extent are of each */
    bool beside;       /* that extent is the columns */
    const char *down;  /* what prequantised.KEY.along calls the rows */
    const char *along; /* its value if it is not there */
    const char *scale, *second; /* of weights: tensors of scales if they are codes of a format */
    int rank;                   /* of a tensor of plain codes; 0: 2, or 3 with experts */
    int64_t shape[8];
};

/* How it is given. Of a contraction in a part there are K elements, and F contractions. */
struct rt_codes {
    bool is_given, down, swizzled;
    const char *name;
    char scales_name[64];
    int64_t E, shape[2], parts, K, F;
    int64_t k_step, f_step;      /* between the operand's numbers */
    int64_t code_rows;           /* of a part, swizzled */
    int64_t scale_rows;          /* of a part */
    int64_t *row, *lane, *block; /* [K] of a code, swizzled; of its scale */
    int codes_rank, scales_rank;
    int64_t codes_shape[8], scales_shape[8], each_codes, each_scales; /* each: of an expert */
    moegen_rt_dtype element;
    double most; /* the largest element */
    const uint8_t *codes, *scales;
};
/* To be freed with rt_codes_free, also after a failure. */
moegen_rt_status rt_codes_read(const moegen_rt_problem *p, const struct rt_quantiser *q,
                               const struct rt_operand_shape *o, struct rt_codes *c,
                               moegen_rt_error *err);
/* Finds the tensors, which must be inputs. */
moegen_rt_status rt_codes_find(const moegen_rt_problem *p, struct rt_codes *c,
                               moegen_rt_error *err);
/* The numbers [rows, columns] of expert e. */
void rt_codes_decode(const struct rt_codes *c, int64_t e, double *to);
/* Adds the tensors: codes of normal numbers times scale, with scales some of which no rule would
 * choose. What is no code and no scale is NaN. */
moegen_rt_status rt_codes_fill(moegen_rt_problem *p, const struct rt_codes *c, uint64_t seed,
                               double scale, moegen_rt_error *err);
void rt_codes_free(struct rt_codes *c);

/* Numbers, whether they are there as such or not. */
struct rt_operand {
    const moegen_rt_tensor *t; /* f64 if it was decoded */
    bool is_given, is_down;    /* as codes; with scales down the rows */
    moegen_rt_tensor decoded;
};
/* Decodes one without experts; to->t stays NULL if it is not given as codes. To be freed with
 * rt_operand_free, also after a failure. */
moegen_rt_status rt_operand_decode(const moegen_rt_problem *p, const struct rt_quantiser *q,
                                   const struct rt_operand_shape *o, struct rt_operand *to,
                                   moegen_rt_error *err);
void rt_operand_free(struct rt_operand *o);

/* Tokens [rows, H] of the moe_ families, as codes or not; rows -1: as many as there are. To be
 * freed with rt_operand_free. */
moegen_rt_status rt_tokens_read(const moegen_rt_problem *p, const char *name, int64_t rows,
                                int64_t H, struct rt_operand *to, moegen_rt_error *err);
moegen_rt_status rt_tokens_fill(moegen_rt_problem *p, const char *name, int64_t rows, int64_t H,
                                moegen_rt_dtype dtype, uint64_t seed, moegen_rt_error *err);

#endif
