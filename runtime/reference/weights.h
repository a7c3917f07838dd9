/* SPDX-License-Identifier: Apache-2.0 */
/* weights.h - how the references see matrices, however they are stored: grouped by the file that
 * defines it. */
#ifndef MOEGEN_REFERENCE_WEIGHTS_H
#define MOEGEN_REFERENCE_WEIGHTS_H

#include "format.h"
#include "packed.h"
#include "reference.h"

struct rt_moe;
struct rt_quantiser;

/* ---- stored/prequantised.c: operands of quantised products that come as codes with scales
 * (SEMANTICS 3) ---- */

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

/* ---- weights.layout = packed ---- */

/* How a matrix that forward sees as [K][C] lies in weights.layout = packed; run 0: another layout.
 */
moegen_rt_status rt_packed_of(const moegen_rt_problem *p, const char *dtype, int64_t K, int64_t C,
                              int64_t parts, bool interleaved, struct rt_packed *to,
                              moegen_rt_error *err);
/* stored/packed_rows.c: the numbers [E][C][K] of a tensor of rows of K, to be freed; NULL: no
 * memory. */
void *rt_unpacked(const struct rt_packed *l, const moegen_rt_tensor *t, int64_t E);
/* Adds such a tensor, of the normal numbers that one that is not packed has; E 0: one matrix. */
moegen_rt_status rt_add_packed(moegen_rt_problem *p, const char *name, moegen_rt_dtype dtype,
                               const struct rt_packed *l, int64_t E, uint64_t seed, double scale,
                               moegen_rt_error *err);

#endif
