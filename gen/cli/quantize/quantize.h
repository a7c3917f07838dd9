/* SPDX-License-Identifier: Apache-2.0 */
/* quantize.h - tensors to codes and scales of a format and back, as `moegen quantize` does it. */
#ifndef MOEGEN_QUANTIZE_H
#define MOEGEN_QUANTIZE_H

#include "cli/cli.h"
#include "format.h"
#include "rt_file.h"

/* Which rows of a matrix have a matrix's scale in common: all; gate and up, one after the other; or
 * in turns. */
enum parts { WHOLE, SPLIT, INTERLEAVED, PARTS };

/* How a tensor is asked to be stored. */
struct wish {
    const struct rt_format *format;
    enum rt_share share;
    enum rt_rule rule;
    enum parts parts;
    int64_t group; /* 0: the format's */
    int axis;      /* contracted; -1: the last */
};

/* ---- store.c: where codes and scales of one tensor are ----
 *
 * A tensor is `count` matrices: [.., out, in] where its last extent is contracted, [.., in, out]
 * where another one is, out then being all that follows it. */
struct store {
    const struct rt_format *format;
    enum rt_share share;
    enum rt_rule rule;
    enum parts parts;
    int64_t group;
    int axis, rank;
    int64_t shape[8]; /* of the values */
    int lead;         /* extents that count matrices */
    int64_t count, out, in;
    bool in_first;      /* stored [in, out] */
    struct rt_cut cut;  /* of a matrix */
    int64_t per;        /* scales of a matrix */
    int64_t per_second; /* second scales of a matrix; 0: the format has none */
};
/* False, with the reason in `why` (what is wrong with "axis 3" and so on), if it cannot be. */
bool store_open(struct store *s, const struct wish *w, int rank, const int64_t *shape,
                struct text *why);
/* Shapes of the tensors; their rank. */
int store_codes_shape(const struct store *s, int64_t shape[8]);
int store_scales_shape(const struct store *s, int64_t shape[8]);
int store_second_shape(const struct store *s, int64_t shape[8]);
/* Which of a matrix's scales, or second scales, an element has. */
int64_t store_scale(const struct store *s, int64_t o, int64_t i);
int64_t store_part(const struct store *s, int64_t o);
/* The line that a file's metadata has for it, and back: false if it is none. */
void store_print(const struct store *s, struct text *to);
bool store_parse(struct store *s, const char *line);
const char *parts_name(enum parts parts);

/* ---- encode.c, decode.c: all of a tensor, on all ranks of a team ---- */

/* Where codes or values go: to tensor `number` of a file, while they are made, if their order is
 * about the file's (store_streams); else to the tensor's memory. */
struct sink {
    struct rt_file *file;
    size_t number;
    char *data; /* NULL: to the file */
};
bool store_streams(const struct store *s, bool back);

/* Tensors have the shapes and dtypes of the store; second NULL where it has none. False: no
 * memory. `nans`: how many scales are NaN because of what they would have to scale. */
bool store_encode(const struct store *s, const moegen_rt_tensor *from, const struct sink *codes,
                  moegen_rt_tensor *scales, moegen_rt_tensor *second, moegen_rt_team *team,
                  int64_t *nans);
/* Scales may be of any float where the format's are f32 or bf16. */
bool store_decode(const struct store *s, const moegen_rt_tensor *codes,
                  const moegen_rt_tensor *scales, const moegen_rt_tensor *second,
                  moegen_rt_dtype dtype, const struct sink *to, moegen_rt_team *team);

/* ---- plan.c: what is to be done with each tensor of a file ---- */

struct item {
    const moegen_rt_tensor *from; /* values, or codes */
    bool chosen;                  /* else it is copied, unless its scales go into another */
    bool dropped;
    struct store store;
    const moegen_rt_tensor *scales, *second; /* of codes */
    size_t keep; /* bytes of the name that the values get: "_blocks" is left out */
};
struct plan {
    const char *path;
    const struct words *only;
    struct wish wish; /* format NULL: only what metadata says */
    bool back;        /* codes to values of `to` */
    moegen_rt_dtype to;
    moegen_rt_problem *in, *metadata;
    struct item *item; /* of each tensor, in the file's order; owned */
    size_t items, chosen;
    bool lost; /* no memory for a name */
};
/* True for floats that are not codes themselves: f32, bf16, f16. */
bool is_values(moegen_rt_dtype dtype);
/* The name of the scales of `name`: without a final _weight, plus _scale (or _scale_2). */
void scale_name(struct text *to, const char *name, const char *ending);
/* Complains about all that cannot be done, and returns an exit code. */
int plan_make(struct plan *p);

#endif
