/* SPDX-License-Identifier: Apache-2.0 */
/* reference.h - what the float64 references and the fillers of their inputs share, grouped by the
 * file that defines it. */
#ifndef MOEGEN_REFERENCE_H
#define MOEGEN_REFERENCE_H

#include "format.h"
#include "packed.h"
#include "runtime_private.h"

struct rt_moe;

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
/* Adds a tensor filled with normal values times scale. */
moegen_rt_status rt_add_normal(moegen_rt_problem *p, const char *name, moegen_rt_dtype dtype,
                               int rank, const int64_t *shape, uint64_t seed, double scale,
                               moegen_rt_error *err);
/* Chooses k distinct experts for each of T tokens: chosen[T*k], ascending within a token. */
moegen_rt_status rt_route(const char *routing, uint64_t seed, int64_t T, int64_t E, int64_t k,
                          int32_t *chosen, moegen_rt_error *err);

/* ---- stored/prequantised.c: operands of quantised products that come as codes with scales
 * (SEMANTICS 3) ---- */

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
    bool gate_up;               /* of both: the spec says how these lie, see rt_matrices */
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

/* ---- weights.c: the experts' matrices, however they are stored ---- */

/* The matrices of one kind as the mathematics has them, canonical: [E][K][C]. */
enum rt_kind {
    RT_GATE_UP,      /* K = H, C = parts * I: all of gate, then all of up */
    RT_DOWN,         /* K = I, C = H */
    RT_GATE_UP_BIAS, /* K = 1, C = parts * I */
    RT_KINDS
};
/* Where what belongs to element (k, c) of expert e is in a tensor: at e * each + row[k] +
 * column[c]. */
struct rt_place {
    int rank;
    int64_t shape[8];
    int64_t count;         /* elements of the tensor an expert */
    int64_t each;          /* 0: all experts have the same */
    int64_t *row, *column; /* [K], [C] */
};
/* One tensor of matrices: all columns of the kind, or those of gate or up alone. */
struct rt_stored {
    const char *name, *scale_name, *second_name;
    int64_t first, C; /* its columns of the kind's */
    int lanes;        /* codes of an element of the tensor, the first in its low bits */
    struct rt_place code, scale, second; /* code: in codes; the others may be empty */
    struct rt_packed packed;             /* how it is packed; run 0: it is not */
    const moegen_rt_tensor *codes, *scales, *seconds;
    struct rt_codes *given; /* of the key prequantised, or NULL */
};
struct rt_weights {
    enum rt_kind kind;
    const char *whole; /* name of the tensor in `plain` */
    int64_t E, K, C;
    int count; /* of tensors */
    struct rt_stored of[2];
    const struct rt_format *format; /* NULL: numbers of a dtype */
    enum rt_share share;
    double value[256];       /* of each code */
    double *scales;          /* of one expert, in the order of the tensor */
    double *numbers;         /* likewise, of one that is given */
    bool along_K, along_C;   /* is it given as codes, and with which scales? */
    bool canonical;          /* one tensor of numbers, which is [E][K][C] as it lies in memory */
    moegen_rt_tensor matrix; /* [K][C]: that of one expert, unless canonical */
    int64_t expert;          /* which one; -1: none yet */
    double *sum[2];          /* outputs: gradients */
    double *gradient;        /* [E][K][C], unless canonical */
};
/* The format of the weights' codes; NULL: they are numbers. Those in the tokens' dtype, whose name
 * a format may have too, are codes if the spec says what shares a scale. */
const struct rt_format *rt_weights_format(const moegen_rt_problem *p);
/* How the spec stores the kind's matrices: names, shapes and places. To be freed with
 * rt_weights_free, also after a failure. */
moegen_rt_status rt_weights_lay(const moegen_rt_problem *p, const struct rt_moe *m,
                                enum rt_kind kind, struct rt_weights *w, moegen_rt_error *err);
/* ---- stored/: the same, and matrices of families that have others, whose rows are contracted ----
 */

struct rt_tensor_names {
    const char *weight, *scale, *second;
};
/* Those of gate and up apart; without a gate, the second one. */
extern const struct rt_tensor_names rt_apart[2];
/* Matrices [E][C][K], rows of each of `parts`: what `weights.layout: plain` means of them. */
struct rt_matrices {
    struct rt_tensor_names names;
    int64_t E; /* 0: one matrix, whose tensors have no extent for that */
    int64_t K, C, parts;
    bool gate_up; /* the parts: the spec says whether they come in turn, or have tensors each */
};
moegen_rt_status rt_matrices_lay(const moegen_rt_problem *p, const struct rt_matrices *r,
                                 struct rt_weights *w, moegen_rt_error *err);
/* Are they codes of a format? */
bool rt_matrices_coded(const moegen_rt_problem *p);
/* Are there one tensor of numbers, and rows in it as they are here? */
bool rt_matrices_plain(const moegen_rt_problem *p, const struct rt_matrices *r);
/* Adds codes and scales, of values about as large as scale; or numbers of a dtype, the same as in
 * rows that are plain. */
moegen_rt_status rt_matrices_fill(moegen_rt_problem *p, const struct rt_matrices *r,
                                  moegen_rt_dtype dtype, uint64_t seed, double scale,
                                  moegen_rt_error *err);
/* Finds the tensors. to: the numbers, f64; to->data is the caller's, NULL after a failure. */
moegen_rt_status rt_matrices_read(const moegen_rt_problem *p, const struct rt_matrices *r,
                                  moegen_rt_tensor *to, moegen_rt_error *err);
struct rt_online;
/* How rows of K that they multiply are quantised, see rt_online_read. */
moegen_rt_status rt_matrices_online(const moegen_rt_problem *p, const struct rt_matrices *r,
                                    struct rt_online *q, moegen_rt_error *err);

/* ---- weights.c again ---- */

/* Is one tensor of numbers [E][K][C] as it lies in memory? */
bool rt_weights_canonical(const struct rt_weights *w);
/* Finds the tensors, which must be inputs, and checks their shapes. After rt_weights_lay. */
moegen_rt_status rt_weights_find(const moegen_rt_problem *p, struct rt_weights *w,
                                 moegen_rt_error *err);
/* The canonical matrix of an expert: element (k, c) is element first + k * C + c of *t. It stays
 * until that of another expert is asked for. */
void rt_weights_of(struct rt_weights *w, int64_t expert, const moegen_rt_tensor **t,
                   int64_t *first);
/* Copies the columns of an expert's matrix [K][C] that a tensor holds, into it or from it. */
void rt_weights_copy(const struct rt_weights *w, const struct rt_stored *s, int64_t expert,
                     moegen_rt_dtype dtype, void *tensor, void *matrix, bool into_tensor);
/* Adds the inputs, with normal values times scale: the same matrices, however they are stored. In a
 * format: any codes but those of NaN and infinity, with scales that make the values about as large
 * as that; the same for all layouts where these leave together what shares a scale. */
moegen_rt_status rt_weights_fill(moegen_rt_problem *p, const struct rt_weights *w,
                                 moegen_rt_dtype dtype, uint64_t seed, double scale,
                                 moegen_rt_error *err);
/* Adds the gradients' outputs; *data is where they are summed up, [E][K][C]: zeros, or what the
 * inputs of those names hold. rt_weights_give then brings them into the outputs. */
moegen_rt_status rt_weights_gradient(const moegen_rt_problem *p, moegen_rt_problem *out,
                                     struct rt_weights *w, double **data, moegen_rt_error *err);
void rt_weights_give(struct rt_weights *w);
/* Adds those inputs with random values, if there are to be some. */
moegen_rt_status rt_weights_fill_gradient(moegen_rt_problem *p, const struct rt_weights *w,
                                          uint64_t seed, moegen_rt_error *err);
void rt_weights_free(struct rt_weights *w);

/* ---- stored/online.c: operands that a kernel quantises on the way ---- */

struct rt_online_column;
struct rt_online {
    const struct rt_format *format;
    enum rt_rule rule;
    int64_t K;                       /* of a row; 0: it stays as it is */
    bool integers, other;            /* a row shares a scale; see rt_online_row */
    struct rt_online_column *column; /* by the block that it is in */
    uint8_t *codes;
};
/* How the spec has the operand of such weights quantised. To be freed with rt_online_free, also
 * after a failure. */
moegen_rt_status rt_online_read(const moegen_rt_problem *p, const struct rt_weights *w,
                                struct rt_online *q, moegen_rt_error *err);
/* x[K], as it is after quantisation. computed: in f32 it may be on the other side of a number
 * between two codes; with q->other, such elements become what they are there. */
void rt_online_row(const struct rt_online *q, double *x, bool computed);
void rt_online_free(struct rt_online *q);

/* ---- moe.c: what the moe_ families share ---- */

struct rt_limits {
    double lo, hi;
};
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
/* The tensor of the affinities, and where that of a slot of an expert, with this token, is. */
const char *rt_moe_affinities(const struct rt_moe *m);
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
/* n elements from element `first` on, as double. */
void rt_elements(const moegen_rt_tensor *t, int64_t first, int64_t n, double *to);
/* acc[0..n) += x[0] w[0][..] + .. + x[3] w[3][..], w [4][n] */
void rt_add_four(double *acc, const double *w, const double *x, int64_t n);
/* acc[rows][n] += x[rows][k] W, where W [k][n] starts at element `first` of t. work: 4*n. */
void rt_product(const double *x, int64_t rows, int64_t k, const moegen_rt_tensor *t, int64_t first,
                int64_t n, double *acc, double *work);
/* One byte per token 0..T-1: wanted or not. *to is NULL when all are; owned by the caller. */
moegen_rt_status rt_wanted(const moegen_rt_want *want, int64_t T, uint8_t **to,
                           moegen_rt_error *err);
/* Marks an output, if there is one of that name, as what kernels round once (`once`). */
void rt_rounded_once(moegen_rt_problem *out, const char *name);
/* Adds an f64 output filled with `value`. */
moegen_rt_status rt_output(moegen_rt_problem *out, const char *name, int rank, const int64_t *shape,
                           double value, double **data, moegen_rt_error *err);

/* ---- gradient.c: what the training families share ---- */

double rt_dot(const double *x, const double *y, int64_t n);
/* acc[rows][n] += x[rows][k] W^T, where W [n][k] starts at element `first` of t. work: k. */
void rt_product_t(const double *x, int64_t rows, int64_t k, const moegen_rt_tensor *t,
                  int64_t first, int64_t n, double *acc, double *work);
/* acc[x_at[i] * stride + y_at[j]] += sum over r of x[r][i] y[r][j], where x is [rows][m] and y is
 * [rows][n]. NULL for x_at or y_at: i or j itself. */
void rt_outer(const double *x, int64_t rows, int64_t m, const int64_t *x_at, const double *y,
              int64_t n, const int64_t *y_at, double *acc, int64_t stride);

/* Where a row of a tensor lies: `count` elements, `stride` apart. It is what one token got: a run
 * of the last extent that is not 1; in tensors that are stored transposed, and those whose name
 * ends in _T, of the one before it. */
struct rt_row {
    int64_t count, stride;
};
struct rt_row rt_row_of(const moegen_rt_tensor *t);

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

/* Limits plus offset as a tensor of that dtype holds them: a value is clamped if it equals one. */
struct rt_limits rt_stored_limits(struct rt_limits of, double offset, moegen_rt_dtype dtype);
/* v, or the limit that it is beyond; NaN stays. */
double rt_clamped(double v, struct rt_limits limits);
/* Strictly inside. */
bool rt_inside(double v, struct rt_limits limits);
/* The gradient of what v is clamped from: x if v is strictly inside, else 0; NaN if v is. */
double rt_through(double x, double v, struct rt_limits limits);

/* ---- quantised.c: operands that are quantised online ---- */

struct rt_quantiser {
    bool on;                 /* else nothing happens */
    bool wrapped, other;     /* blocks of 4 runs of 8; see quantised.c */
    moegen_rt_dtype element; /* of a block */
    moegen_rt_dtype stored;  /* of what is between two products */
    int top;     /* exponents of a block's largest element and of its scale are so far apart */
    double most; /* the largest element */
};
moegen_rt_status rt_quantiser_read(const moegen_rt_problem *p, struct rt_quantiser *q,
                                   moegen_rt_error *err);
/* How far x may be from what a kernel computes in f32, the typical number being of that size. */
double rt_unsure(double x, double typical);
/* Root of the mean square of the numbers that are finite and not 0. */
double rt_typical(const double *x, int64_t n);
/* x [rows, n] as it enters a product along n, or down the rows: in `to`, or x if nothing is
 * quantised. unsure: it was computed. */
const double *rt_quantised(const struct rt_quantiser *q, const double *x, int64_t rows, int64_t n,
                           bool down, bool unsure, double *to);
/* t [rows, columns], along the columns; or if down > 0, along each `down` rows. to->data is the
 * caller's. */
moegen_rt_status rt_quantise_matrix(const struct rt_quantiser *q, const moegen_rt_tensor *t,
                                    int64_t rows, int64_t columns, int64_t down,
                                    moegen_rt_tensor *to, moegen_rt_error *err);
/* x, computed, as a tensor between two products holds it. */
double rt_stored(const struct rt_quantiser *q, double x, double typical);
/* n of them, the typical one being of their size. */
void rt_store(const struct rt_quantiser *q, double *x, int64_t n);
/* A value that is computed again may be on the other side of a limit in f32 if it is very close to
 * it, and a gradient passes on one side only: what depends on it is not compared, x is NaN. */
void rt_blur(const struct rt_quantiser *q, double *x, int64_t n, struct rt_limits at);
/* Sets the noise of each output to how far it is from that in `moved`. */
void rt_set_noise(moegen_rt_problem *out, const moegen_rt_problem *moved);

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

/* ---- router.c: one token ---- */

/* A router turns logits into scores (all experts), chooses the top k of the scores or of the
 * logits, and turns what is chosen into affinities. */
enum rt_score { RT_SOFTMAX, RT_SIGMOID, RT_SQRT_SOFTPLUS, RT_SCORES };
struct rt_router_method {
    const char *name;
    enum rt_score score;
    bool after;  /* the function is applied to the chosen logits only */
    bool renorm; /* the chosen scores are divided by their sum */
    bool mixer;  /* each has a softmax of its own, see rt_router_weigh */
};
struct rt_router {
    int64_t H, E, k;
    struct rt_router_method how;
    bool backward, bias, correction;
    double eps, least;    /* of the sum that the chosen are divided by: added, or no less */
    double cap, times;    /* of the logits: what they are capped at, 0: not; their factor */
    double jitter;        /* of the mixer */
    int64_t always;       /* of the E experts the last ones, which every token chooses */
    int64_t scales;       /* numbers that multiply the weights as parameters: 0, 1 or E */
    bool norm;            /* hidden states are divided by the root of their mean square */
    double norm_eps;      /* which this is added to */
    int64_t groups, keep; /* groups of experts, and those that stay; 0: no groups */
    bool top2, fill_zero; /* their score is a sum of two; what others are filled with */
    double scale;         /* of the affinities */
    bool balance, z;      /* auxiliary losses */
    bool per_token;       /* shares of experts in the balance are of T tokens, not of T k choices */
    double balance_c, z_c; /* their coefficients */
};
moegen_rt_status rt_router_read(const moegen_rt_problem *p, struct rt_router *r,
                                moegen_rt_error *err);
/* Moves the hidden states of each token towards the weights of the experts that the routing asks
 * for, so that the router chooses them (as far as H leaves room for E directions). An affinity is
 * as far off as the last bits of a logit: logits stay of order 1. */
moegen_rt_status rt_router_push(moegen_rt_problem *p, const struct rt_router *r,
                                const moegen_rt_fill *how, moegen_rt_error *err);
struct rt_router_token {
    double *p;       /* [E] scores of all experts */
    double *rank;    /* [E] what is ranked */
    double *l, *s;   /* [k] of the chosen: logits or scores, and scores, */
    double *q;       /* [k] and affinities before the scale */
    double *dq, *dl; /* [k] */
    double *dp;      /* [E] */
    double *z;       /* [E] logits, capped */
    double *group;   /* [E] scores of groups */
    bool open;       /* f32 could keep other groups */
};
/* t->z: what everything else takes as logits. */
void rt_router_cap(const struct rt_router *r, const double *logits, struct rt_router_token *t);
/* dlogits, of t->z, become those of the logits. */
void rt_router_cap_back(const struct rt_router *r, const struct rt_router_token *t,
                        double *dlogits);
/* t->rank: what the experts are chosen by; correction [E] may be NULL. Also sets t->p, t->open. */
void rt_router_rank(const struct rt_router *r, const double *logits, const double *correction,
                    struct rt_router_token *t);
/* The k best of t->rank into chosen, best first, the lower index first among equals. Says which
 * places and (result) whether the set itself could come out differently in f32. */
bool rt_router_choose(const struct rt_router *r, const struct rt_router_token *t, int64_t *chosen,
                      uint8_t *unsure);
/* t->q: affinities of the chosen experts from the logits, before the scale. */
void rt_router_weigh(const struct rt_router *r, const double *logits, const int64_t *chosen,
                     struct rt_router_token *t);
/* dlogits += those of the affinities, whose gradients are in t->dq; after rt_router_weigh. */
void rt_router_weigh_back(const struct rt_router *r, const double *logits, const int64_t *chosen,
                          struct rt_router_token *t, double *dlogits);
/* Adds one token's part of both auxiliary losses; count[e] of the T tokens chose expert e. */
void rt_router_losses(const struct rt_router *r, int64_t T, const double *logits,
                      const double *count, struct rt_router_token *t, double *balance, double *z);
void rt_router_losses_back(const struct rt_router *r, int64_t T, const double *logits,
                           const double *count, struct rt_router_token *t, double *dlogits);

/* ---- ref_moe_index.c ---- */

/* Blocks that the formula of index building gives for T tokens. */
int64_t rt_block_count(int64_t T, int64_t k, int64_t E, int64_t B);
/* Index building over chosen[T*k] (duplicates within a token count once). ids[N*B], experts[N],
 * conditions[N+1]. Fails when an expert is out of range or the N blocks do not suffice. With
 * `dropping` block n belongs to expert n and pairs beyond B of an expert are left out. */
moegen_rt_status rt_index_build(const int32_t *chosen, int64_t T, int64_t k, int64_t E, int64_t B,
                                int64_t N, int32_t padding, bool dropping, int32_t *ids,
                                int32_t *experts, int32_t *conditions, moegen_rt_error *err);

/* ---- weights.layout = packed ---- */

/* How a matrix that forward sees as [K][C] lies in weights.layout = packed; run 0: another layout.
 */
moegen_rt_status rt_packed_of(const moegen_rt_problem *p, const char *dtype, int64_t K, int64_t C,
                              int64_t parts, bool interleaved, struct rt_packed *to,
                              moegen_rt_error *err);
/* packed_rows.c: the numbers [E][C][K] of a tensor of rows of K, to be freed; NULL: no memory. */
void *rt_unpacked(const struct rt_packed *l, const moegen_rt_tensor *t, int64_t E);
/* Adds such a tensor, of the normal numbers that one that is not packed has; E 0: one matrix. */
moegen_rt_status rt_add_packed(moegen_rt_problem *p, const char *name, moegen_rt_dtype dtype,
                               const struct rt_packed *l, int64_t E, uint64_t seed, double scale,
                               moegen_rt_error *err);

/* ---- the families, one line each (see reference.c) ---- */

#define RT_FAMILY(name)                                                                            \
    moegen_rt_status rt_fill_##name(moegen_rt_problem *, const moegen_rt_fill *,                   \
                                    moegen_rt_error *);                                            \
    moegen_rt_status rt_compute_##name(const moegen_rt_problem *, const moegen_rt_want *,          \
                                       moegen_rt_problem *, moegen_rt_error *)
RT_FAMILY(moe_forward);
RT_FAMILY(moe_index);
RT_FAMILY(moe_backward);
RT_FAMILY(grouped_gemm);
RT_FAMILY(router);
RT_FAMILY(mlp_forward);
RT_FAMILY(mlp_backward);
RT_FAMILY(moe_layer);

#endif
