/* SPDX-License-Identifier: Apache-2.0 */
/* reference.h - what the float64 references and the fillers of their inputs share, grouped by the
 * file that defines it. Matrices: weights.h; operands that are quantised online: quantised.h; the
 * moe_ families: moe.h; routers: router/router.h. */
#ifndef MOEGEN_REFERENCE_H
#define MOEGEN_REFERENCE_H

#include <string.h>

#include "runtime_private.h"

/* 2^exponent, in the range of normal doubles. */
static inline double rt_power_of_two(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- fill.c: helpers of the families' fillers and references ---- */

/* 64 well-mixed bits of (seed, counter). */
uint64_t rt_hash(uint64_t seed, uint64_t counter);
/* A seed for the tensor (or purpose) of that name. */
uint64_t rt_seed(uint64_t seed, const char *name);
/* A positive integer parameter; fails when it is absent or out of 1..limit. */
moegen_rt_status rt_size(const moegen_rt_problem *p, const char *key, int64_t limit, int64_t *value,
                         moegen_rt_error *err);
/* A dtype parameter; `otherwise` when it is absent. */
moegen_rt_status rt_dtype(const moegen_rt_problem *p, const char *key, moegen_rt_dtype otherwise,
                          moegen_rt_dtype *value, moegen_rt_error *err);
/* Finds an input of a given shape (trailing extents of 1 do not matter; -1: any extent). A missing
 * one is a failure if `required`, else *tensor is NULL. */
moegen_rt_status rt_input(const moegen_rt_problem *p, const char *name, bool required, int rank,
                          const int64_t *shape, const moegen_rt_tensor **tensor,
                          moegen_rt_error *err);
/* Element i of an i32 or i64 tensor. */
int64_t rt_index_at(const moegen_rt_tensor *t, int64_t i);
/* Elements first .. first+n-1 of what moegen_rt_normal gives. */
void rt_normal_from(size_t first, moegen_rt_dtype dtype, void *data, size_t n, uint64_t seed,
                    double scale);
/* The i-th of them, in f32. */
float rt_normal_at(size_t i, uint64_t seed, double scale);
/* Adds a tensor filled with normal values times scale. */
moegen_rt_status rt_add_normal(moegen_rt_problem *p, const char *name, moegen_rt_dtype dtype,
                               int rank, const int64_t *shape, uint64_t seed, double scale,
                               moegen_rt_error *err);
/* Chooses k distinct experts for each of T tokens: chosen[T*k], ascending within a token. */
moegen_rt_status rt_route(const char *routing, uint64_t seed, int64_t T, int64_t E, int64_t k,
                          int32_t *chosen, moegen_rt_error *err);
/* n elements from element `first` on, as double. */
void rt_elements(const moegen_rt_tensor *t, int64_t first, int64_t n, double *to);
/* One byte per token 0..T-1: wanted or not. *to is NULL when all are; owned by the caller. */
moegen_rt_status rt_wanted(const moegen_rt_want *want, int64_t T, uint8_t **to,
                           moegen_rt_error *err);
/* Marks an output, if there is one of that name, as what kernels round once (`once`). */
void rt_rounded_once(moegen_rt_problem *out, const char *name);
/* Adds an f64 output filled with `value`. */
moegen_rt_status rt_output(moegen_rt_problem *out, const char *name, int rank, const int64_t *shape,
                           double value, double **data, moegen_rt_error *err);

/* ---- products.c ---- */

/* acc[rows][n] += x[rows][k] W, where W [k][n] starts at element `first` of t. work: 4*n. */
void rt_product(const double *x, int64_t rows, int64_t k, const moegen_rt_tensor *t, int64_t first,
                int64_t n, double *acc, double *work);
double rt_dot(const double *x, const double *y, int64_t n);
/* acc[rows][n] += x[rows][k] W^T, where W [n][k] starts at element `first` of t. work: k. */
void rt_product_t(const double *x, int64_t rows, int64_t k, const moegen_rt_tensor *t,
                  int64_t first, int64_t n, double *acc, double *work);
/* acc[x_at[i] * stride + y_at[j]] += sum over r of x[r][i] y[r][j], where x is [rows][m] and y is
 * [rows][n]. NULL for x_at or y_at: i or j itself. */
void rt_outer(const double *x, int64_t rows, int64_t m, const int64_t *x_at, const double *y,
              int64_t n, const int64_t *y_at, double *acc, int64_t stride);

/* ---- compare.c ---- */

/* Where a row of a tensor lies: `count` elements, `stride` apart. It is what one token got: a run
 * of the last extent that is not 1; in tensors that are stored transposed, and those whose name
 * ends in _T, of the one before it. */
struct rt_row {
    int64_t count, stride;
};
struct rt_row rt_row_of(const moegen_rt_tensor *t);

/* ---- gradient.c: what the training families share ---- */

/* Which of n features a weight gradient is computed for: all (at is NULL), or `count` of them,
 * ascending, when only some tokens, or features, are wanted. A weight gradient sums over all
 * tokens, so the reference saves time by leaving out features instead. The caller frees at. */
struct rt_part {
    int64_t n, count;
    int64_t *at;
};
/* The part whose share of n is that of the wanted tokens in T, no more than the wanted features,
 * but at least two. */
moegen_rt_status rt_part(const moegen_rt_want *want, int64_t T, int64_t n, struct rt_part *part,
                         moegen_rt_error *err);
/* Sets what is not in the part to NaN; data is [outer][part->n][inner]. */
void rt_blank_rest(const struct rt_part *part, double *data, int64_t outer, int64_t inner);

/* Tokens, of which gradients of parameters are sums, with padding; 0: not known. */
int64_t rt_tokens(const moegen_rt_problem *p);
/* Does the kernel add into the caller's parameter gradients? Then they are inputs, too. */
bool rt_accumulates(const moegen_rt_problem *p);
/* Adds the output of a parameter's gradient: zero, or the input of that name. */
moegen_rt_status rt_gradient(const moegen_rt_problem *p, moegen_rt_problem *out, const char *name,
                             int rank, const int64_t *shape, double **data, moegen_rt_error *err);
/* The dtype of parameters' gradients. */
moegen_rt_status rt_gradient_dtype(const moegen_rt_problem *p, moegen_rt_dtype *dtype,
                                   moegen_rt_error *err);
/* Adds that input with random values, if there is to be one. */
moegen_rt_status rt_fill_gradient(moegen_rt_problem *p, const char *name, int rank,
                                  const int64_t *shape, uint64_t seed, moegen_rt_error *err);

/* What a value is clamped to. */
struct rt_limits {
    double lo, hi;
};
/* x plus an offset as kernels add it, in f32. */
double rt_with_offset(double x, double offset);
/* Limits plus offset as a tensor of that dtype holds them: a value is clamped if it equals one. */
struct rt_limits rt_stored_limits(struct rt_limits of, double offset, moegen_rt_dtype dtype);
/* v, or the limit that it is beyond; NaN stays. */
double rt_clamped(double v, struct rt_limits limits);
/* Strictly inside of the limits that there are: infinite ones are none. */
bool rt_inside(double v, struct rt_limits limits);
/* The gradient of what v is clamped from: x if v is strictly inside, else 0; NaN if v is and there
 * are limits. */
double rt_through(double x, double v, struct rt_limits limits);

/* ---- ref_moe_index.c ---- */

/* Blocks that the formula of index building gives for T tokens. */
int64_t rt_block_count(int64_t T, int64_t k, int64_t E, int64_t B);
/* Index building over chosen[T*k] (duplicates within a token count once). ids[N*B], experts[N],
 * conditions[N+1]. Fails when an expert is out of range or the N blocks do not suffice. With
 * `dropping` block n belongs to expert n and pairs beyond B of an expert are left out. */
moegen_rt_status rt_index_build(const int32_t *chosen, int64_t T, int64_t k, int64_t E, int64_t B,
                                int64_t N, int32_t padding, bool dropping, int32_t *ids,
                                int32_t *experts, int32_t *conditions, moegen_rt_error *err);

/* ---- ref_activation.c ---- */

/* An activation and its derivative, which is a sum of value(x) / x and what may cancel it; `way` of
 * rt_moved. */
double rt_act(const moegen_rt_activation *act, int64_t way, double x);
double rt_act_slope(const moegen_rt_activation *act, int64_t way, double x);

/* ---- conditioned.c ---- */

typedef moegen_rt_status rt_compute(const moegen_rt_problem *, const moegen_rt_want *,
                                    moegen_rt_problem *, moegen_rt_error *);
/* A factor for number `at` of what lies between inputs and outputs, where it may decide about the
 * latter: 1, or 1 moved by roundings of f32, one way or the other, as conditioned.c has set the
 * parameter "moved", which is `way`. */
double rt_moved(int64_t way, uint64_t at);
/* What `compute` gives, with the noise of outputs that are as badly conditioned as sums that
 * cancel.
 */
moegen_rt_status rt_conditioned(rt_compute *compute, const moegen_rt_problem *p,
                                const moegen_rt_want *want, moegen_rt_problem *out,
                                moegen_rt_error *err);

/* ---- the families, one row each (see reference.c) ---- */

/* clang-format off */
#define RT_FAMILIES(ROW) \
    ROW(moe_forward)     \
    ROW(moe_index)       \
    ROW(moe_backward)    \
    ROW(grouped_gemm)    \
    ROW(router)          \
    ROW(mlp_forward)     \
    ROW(mlp_backward)    \
    ROW(moe_layer)
/* clang-format on */
#define RT_FAMILY(name)                                                                            \
    moegen_rt_status rt_fill_##name(moegen_rt_problem *, const moegen_rt_fill *,                   \
                                    moegen_rt_error *);                                            \
    rt_compute rt_compute_##name;
RT_FAMILIES(RT_FAMILY)

#endif
