/* SPDX-License-Identifier: Apache-2.0 */
/* ref_moe_backward.h - what the files of this reference share. */
#ifndef MOEGEN_REF_MOE_BACKWARD_H
#define MOEGEN_REF_MOE_BACKWARD_H

#include "moe.h"
#include "quantised.h"

/* Tokens at a time: their sums stay in cache while weights stream by; with blocks of tokens that
 * are quantised: whole tiles of these. */
enum { RT_ROWS = 16, RT_TILE = 512 };

/* One matrix of the expert at work: all of it, or the features of the part. */
struct rt_matrix {
    const moegen_rt_tensor *t;
    int64_t first;         /* element */
    moegen_rt_tensor part; /* f64, in memory of this pass */
};

struct rt_backward {
    struct rt_moe m;
    struct rt_moe_inputs in;
    bool recompute;
    bool gate_up_bias, down_bias; /* have gradients */
    const moegen_rt_tensor *gate_up_saved, *down_saved;
    struct rt_operand dy;
    struct rt_limits gate, up; /* as g and u hold them */
    struct rt_quantiser q;
    int64_t most; /* tokens at a time */
    /* outputs */
    double *dx;              /* [T(+1), H] */
    double *da;              /* [T(+1), E] */
    double *dgate_up;        /* [E, H, parts, I] */
    double *ddown;           /* [E, I, H] */
    double *dgate_up_b;      /* [E, parts, I], or NULL */
    double *ddown_b;         /* [E, H], or NULL */
    double *dnorm, *dnorm_b; /* [E, I], or NULL */
    double *dpost_norm;      /* [H], or NULL */
    /* one sweep over the blocks */
    uint8_t *wanted;                      /* by token; NULL: all */
    struct rt_part part;                  /* of I, for the weight gradients */
    int64_t *pairs;                       /* the part in [parts, I]; NULL: all */
    bool tokens_too, weights_too;         /* what this sweep computes */
    int64_t C;                            /* columns of I at work */
    const int64_t *at, *at_pairs;         /* where they are in I and in [parts, I]; NULL: all */
    struct rt_matrix gate_up, down, back; /* back: gate_up on the way to the tokens */
    moegen_rt_tensor quantised[3];        /* gate_up along H, along I, and down, of the expert */
    int64_t *experts;                     /* [run] of each block */
    int64_t *slots, *tokens;              /* of a block, then of the tokens at work */
    /* `most` tokens of one expert: rows */
    double *a;            /* affinity */
    double *x;            /* [rows, H] */
    double *y;            /* [rows, H] output gradient */
    double *wide;         /* [rows, H] */
    double *gu;           /* [rows, parts * C] */
    double *dgu;          /* [rows, parts * C] */
    double *p;            /* [rows, C] */
    double *dp;           /* [rows, C], before the affinity */
    double *left, *right; /* operands, quantised */
    double *norm;         /* [2, I] weight and bias of the normalisation */
    double *hat;          /* [rows, I] normalised, without these; */
    double *dn;           /* [rows, I] gradients of what comes of them */
    double *post_norm;    /* [H] weight of the norm behind the experts */
    double *along;        /* products of its rows with their gradients */
    double *work;         /* for the products, and one row */
};

/* ---- ref_moe_backward_rows.c ---- */

/* Adds what some tokens of expert e contribute. Their slots count over all blocks. Blocks of tokens
 * that share a scale begin with the first one. */
void rt_backward_rows(struct rt_backward *s, int64_t e, const int64_t *slots, const int64_t *tokens,
                      int64_t rows);

#endif
