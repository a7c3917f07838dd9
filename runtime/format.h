/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.h - formats of stored weights: codes of a few bits, and scales that they share. In C,
 *
 *     value = element(code) * scale * second        (second: 1 unless the format has one)
 *
 * A matrix [out, in] is contracted along `in`. A NEW FORMAT is one row of the table in format.c,
 * and a row of the codings there if its elements or scales are coded as no other's are.
 *
 * Everything here is exact in double: an element has at most 8 significant bits, a scale 24, a
 * second one 24. All functions are thread-safe; nothing allocates.
 */
#ifndef MOEGEN_FORMAT_H
#define MOEGEN_FORMAT_H

#include <stdbool.h>

#include "moegen_runtime.h"

/* How one element, or one scale, is coded. */
struct rt_coding {
    const char *name;
    int bits;                  /* 4, 8, 16 or 32; of 4: two to a byte, the low nibble first */
    moegen_rt_dtype dtype;     /* of a tensor of them; U8 where files have no name for it */
    double lowest, largest;    /* what encoding clips to */
    double (*value)(uint32_t); /* of a code, exact; NaN where it is that */
    uint32_t (*code)(double);  /* nearest, ties to even; infinities clip too; a zero keeps its sign;
                                  of NaN: NaN, or zero where no code is NaN */
};

/* What shares a scale. `row` is an output channel: all of `in`. */
enum rt_share { RT_ROW, RT_STATIC, RT_BLOCK, RT_GROUP, RT_SHARES };
struct rt_sharing {
    const char *name; /* of the value of weights.scale */
    int64_t out, in;  /* elements of the matrix; 0: all; of a group, in is its size */
    const char *says;
};
extern const struct rt_sharing rt_sharings[RT_SHARES];

/* How a scale follows from the values that share it. */
enum rt_rule {
    RT_OCP, /* a power of two: the exponent of the largest magnitude less that of the largest
               element; 1.9375 * 2^k then clips to 1.75 * 2^k in e4m3 */
    RT_WIDE /* twice that: nothing clips */
};

struct rt_format {
    const char *name;
    const struct rt_coding *element, *scale;
    moegen_rt_dtype codes;   /* of a tensor of codes */
    enum rt_share shares[4]; /* the first is the default; RT_SHARES ends */
    int groups[3];           /* elements of a group, the first is the default; 0 ends */
    bool second;             /* one more scale, f32, for each matrix */
    bool blocked;            /* a group's codes are an extent of their own: [.., in/32, 32] */
};

/* By name ("mxfp4"); NULL if there is none. The i-th row, NULL past the end. */
const struct rt_format *rt_format_find(const char *name);
const struct rt_format *rt_format_at(int i);
/* A coding by name: e4m3, e5m2, e2m1, e8m0, i8, i4, f32, bf16; NULL if there is none. */
const struct rt_coding *rt_coding_find(const char *name);
/* A value of weights.scale as this format has it; NULL name: its default. RT_SHARES: it has not. */
enum rt_share rt_format_share(const struct rt_format *f, const char *name);
/* A power of two for a scale? Then a scale follows a rule. */
bool rt_format_has_rule(const struct rt_format *f);
/* Groups along `in` share scales: codes are stored [out, in], `in` running fastest. Codes of other
 * formats lie as the values did. */
bool rt_format_grouped(const struct rt_format *f);
/* Bytes of n codes in a row (n even where two share a byte). */
int64_t rt_format_bytes(const struct rt_format *f, int64_t n);
/* Bits of an element, its share of scales included, in a matrix [out, in]; group 0: the default. */
double rt_format_bits(const struct rt_format *f, enum rt_share share, int64_t group, int64_t out,
                      int64_t in);

/* How a matrix [out, in] is cut into parts that share a scale: element (o, i) has scale number
 * o / tile_out * columns + i / tile_in of rows * columns. */
struct rt_cut {
    int64_t tile_out, tile_in, rows, columns;
};
struct rt_cut rt_format_cut(const struct rt_format *f, enum rt_share share, int64_t group,
                            int64_t out, int64_t in);

/* ---- decoding: format.c ---- */

/* Elements first .. first+n-1 of a run of codes, without scales. */
void rt_format_elements(const struct rt_format *f, const void *codes, int64_t first, int64_t n,
                        double *to);
/* Number i of a run of scales. */
double rt_format_scale(const struct rt_format *f, const void *scales, int64_t i);
/* Elements (o, i) .. (o, i+n-1) of a matrix of codes [out, in], each row of rt_format_bytes(in),
 * with scales as `cut` has them, and `second`. */
void rt_format_values(const struct rt_format *f, const struct rt_cut *cut, const void *codes,
                      const void *scales, double second, int64_t in, int64_t o, int64_t i,
                      int64_t n, double *to);

/* ---- encoding: format.c ----
 *
 * amax is the largest magnitude of the values that share a scale; NaN or infinite if one of them is
 * (rt_format_amax says so): no scale serves them, it is NaN, and so is all that shares it. */

/* Largest magnitude of n values, stride elements apart; NaN if one is NaN or infinite. */
double rt_format_amax(const double *x, int64_t n, int64_t stride);
/* The second scale of a matrix whose largest finite magnitude is amax: f32 of amax over the largest
 * element times the largest scale; 1 for a matrix of zeros, and in formats without it. */
float rt_format_second(const struct rt_format *f, double amax);
/* The code of the scale. Powers of two: see the rules; at least 2^-127, also for zeros, at most
 * 2^127. Others: amax / (largest element * second) rounded to the scale's coding; in f32 and bf16
 * at least the least positive number, and 1 for zeros. */
uint32_t rt_format_scale_code(const struct rt_format *f, enum rt_rule rule, double amax,
                              double second);
/* Puts the code of a scale at number i of a run of scales. */
void rt_format_put_scale(const struct rt_format *f, void *scales, int64_t i, uint32_t code);
/* Codes of n values: element code of x / (scale * second), the quotient in double; zeros where the
 * scale is 0 or NaN, with the sign of x where it is finite. They go to codes first .. first+n-1 of
 * a run. */
void rt_format_encode(const struct rt_format *f, const double *x, int64_t n, double scale,
                      double second, void *codes, int64_t first);

/* ---- the same for much at once: format/ ----
 *
 * The same codes and, rounded once, the same values. A scale is given by what x is multiplied by:
 * `inverse` is 1 / (scale * second) in double, 0 where that is 0 or NaN. */

/* Codes of blocks of values: see rt_rows_direct. */
enum { RT_DIRECT_BLOCK = 64, RT_DIRECT_MOST = 64 * RT_DIRECT_BLOCK, RT_DIRECT_RUN = 16 };
typedef uint64_t rt_direct(const void *x, int64_t blocks, const float *by, uint8_t *byte);

struct rt_rows {
    const struct rt_format *format;
    bool exact;        /* scales are powers of two: f32 holds x * inverse */
    bool narrow;       /* f32 holds element * scale */
    int shift[2];      /* by rule: what the exponent field of an f32 is above such a scale's */
    double scale[256]; /* of a code of 8 bits */
    rt_direct *direct[2][2];                                     /* NULL: all is doubtful */
    void (*codes)(const float *q, int64_t n, uint8_t *to);       /* NULL: one by one */
    void (*scales)(const float *q, int64_t n, void *to);         /* the same of scales */
    void (*elements)(const uint8_t *code, int64_t n, float *to); /* NULL: one by one */
};
void rt_rows_open_values(struct rt_rows *r); /* of rt_rows_open: r->elements, */
void rt_rows_open_direct(struct rt_rows *r); /* r->direct */
void rt_rows_open(struct rt_rows *r, const struct rt_format *f);
double rt_rows_inverse(double scale, double second);

/* Magnitudes as bits of f32 without sign, in whose order they are; 0x7f800000 and above: infinite
 * or NaN. The largest of n; and most[i] raised to that of x[i]. x is of f32 or bf16. */
uint32_t rt_rows_most(moegen_rt_dtype dtype, const void *x, int64_t n);
void rt_rows_raise(moegen_rt_dtype dtype, const void *x, int64_t n, uint32_t *most);
/* Such a magnitude for rt_format_scale_code. */
double rt_rows_amax(uint32_t most);

/* The code of the scale of values whose largest magnitude has these bits, and its inverse. */
uint32_t rt_rows_scale_code(const struct rt_rows *r, enum rt_rule rule, uint32_t most,
                            double second, double *inverse);
/* q = x * inverse, for rt_rows_bytes: f32 that rounds on as the quotient in double does. */
void rt_rows_scale(const struct rt_rows *r, const float *x, int64_t n, double inverse, float *q);
void rt_rows_scale_each(const float *x, int64_t n, const double *inverse, float *q);
/* Codes of n quotients, each in a byte. */
void rt_rows_bytes(const struct rt_rows *r, const float *q, int64_t n, uint8_t *byte);
/* Two to a byte, of n, an even number: those that follow each other. */
void rt_rows_pairs(const uint8_t *byte, int64_t n, void *codes);

/* How much more or less than the inverse of a scale values of this dtype are multiplied by in f32.
 * quotient: what the scale was rounded from, over it; 1 if it is made of something else. */
double rt_rows_lean(moegen_rt_dtype dtype, double quotient);
/* Inverses so in f32; false if some are of no use to rt_rows_direct. */
bool rt_rows_factors(const struct rt_rows *r, const double *inverse, const double *lean, int64_t n,
                     float *by);
/* Each of n for so many values. */
void rt_rows_spread(const float *by, int64_t n, int64_t run, float *to);
/* Codes of n values, RT_DIRECT_MOST at most, of f32 or bf16, x * by, each in a byte; by[] is of one
 * each, or of RT_DIRECT_RUN: `run`. Bit i of what it returns: the i-th RT_DIRECT_BLOCK of them are
 * doubtful, and to be made of quotients. */
uint64_t rt_rows_direct(const struct rt_rows *r, moegen_rt_dtype dtype, const void *x, int64_t n,
                        int64_t run, const float *by, uint8_t *byte);

/* Groups that share scales, and what they are of: f32 or bf16. */
struct rt_grouping {
    const struct rt_rows *rows;
    enum rt_rule rule;
    moegen_rt_dtype dtype;
    int64_t group; /* a multiple of 16 */
};
enum { RT_COLUMNS = 128 };
struct rt_second {
    double scale, lean; /* both 1 in formats without it */
};
/* All of n values in groups, as many as are in n: their scales, from number `first` of a run on,
 * and their codes, each in a byte. Returns how many scales are NaN. */
int64_t rt_rows_groups(const struct rt_grouping *g, const void *x, int64_t n,
                       const struct rt_second *second, void *scales, int64_t first, uint8_t *byte);
/* The same of n groups beside each other, RT_COLUMNS at most: column i of rows of `stride` values
 * is one, under second[i]. Codes go to rows of RT_COLUMNS bytes. */
int64_t rt_rows_columns(const struct rt_grouping *g, const void *x, int64_t stride, int64_t n,
                        const struct rt_second *second, void *scales, uint8_t *byte);
/* Only the largest magnitudes, as floats. */
void rt_rows_column_most(const struct rt_grouping *g, const void *x, int64_t stride, int64_t n,
                         float *most);
/* Two to a byte, of rows of bytes as rt_rows_columns writes them, an even number. */
void rt_rows_column_pairs(uint8_t *byte, int64_t rows);
void rt_rows_column_apart(uint8_t *byte, int64_t rows); /* back: as many rows */

/* Elements of n codes, an even number where two share a byte. */
void rt_rows_elements(const struct rt_rows *r, const void *codes, int64_t n, float *to);
/* Of codes of a byte each. */
void rt_rows_bytes_elements(const struct rt_rows *r, const uint8_t *byte, int64_t n, float *to);
/* Elements times their factor, rounded once to dtype (f32, bf16, f16): the first `run` times by[0],
 * the next ones times by[1], and so on. `space` has room for n floats. */
void rt_rows_values(const struct rt_rows *r, const float *element, int64_t n, int64_t run,
                    const double *by, moegen_rt_dtype dtype, void *to, float *space);

#endif
