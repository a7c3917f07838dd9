/* SPDX-License-Identifier: Apache-2.0 */
/* stored.h - how matrices lie in tensors: what the files here share. */
#ifndef MOEGEN_STORED_H
#define MOEGEN_STORED_H

#include "reference/weights.h"

/* The matrix at hand: [K][C], its columns in `parts` of `width`. */
struct rt_matrix {
    enum rt_kind kind;
    int64_t K, C, parts, width;
    bool axis;        /* the tensor has an axis for the parts, unless they are interleaved */
    bool interleaved; /* columns of the parts in turn */
    const struct rt_format *format; /* NULL: numbers */
    enum rt_share share;
    int64_t group;
    struct rt_packed packed; /* run 0: not packed */
    int64_t H, I;            /* of the spec */
    int64_t E;               /* 0: one matrix, without an extent for experts */
    bool rows;               /* plain: rows of K, whole groups of codes */
};

/* ---- places.c ---- */

/* Appends extents to a shape, and sets places. */
typedef void rt_places(const struct rt_matrix *x, struct rt_place *p);
struct rt_layout {
    const char *name;
    int64_t of_H, of_I; /* these must be multiples of it */
    int lanes;          /* codes of an element of the tensor; 0: those of a byte */
    bool (*holds)(const struct rt_format *f);
    rt_places *codes, *scales, *bias; /* scales NULL: by what shares one */
};
/* NULL: there is none of that name. */
const struct rt_layout *rt_layout_find(const char *name);
rt_places *rt_scale_places(const struct rt_layout *l, const struct rt_matrix *x);
/* One more for each matrix. */
void rt_second_scale(const struct rt_matrix *x, struct rt_place *p);

#endif
