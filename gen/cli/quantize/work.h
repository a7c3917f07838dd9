/* SPDX-License-Identifier: Apache-2.0 */
/* work.h - how a tensor's elements are shared out among the ranks of a team, to encode or decode.
 *
 * Where groups along `in` share scales, a unit of work is some rows of a matrix [out, in]; of a
 * tensor [in, out] these are columns, whose codes are turned, some rows at a time. Otherwise it is
 * a rectangle of what is stored that has all elements of its scales. */
#ifndef MOEGEN_QUANTIZE_WORK_H
#define MOEGEN_QUANTIZE_WORK_H

#include "quantize.h"

/* PIECE: elements that are converted at a time, whole groups, and stay in the first cache.
 * SLAB: of columns, elements at a time, whole groups: codes of more than a line. */
enum { PANEL = 32, STRIP = 1024, PIECE = 2048, SLAB = 256, ROWS = 32 << 10 };

struct work {
    const struct store *store;
    struct rt_rows rows;
    int64_t units, per_matrix; /* of them */
    int64_t height, width;     /* of a matrix as it is stored */
    int64_t tall, wide;        /* of a unit */
    int64_t panel;             /* rows of a unit */
    bool strips;               /* a unit is some columns, all rows of them */
    const struct sink *sink;
    size_t batch; /* bytes that go to it at a time, at most; of one row at least */
    size_t bytes; /* of the space of one rank */
    char *at;     /* of all ranks */
};

/* Room of one rank for one row, or columns of a slab. */
struct space {
    float *x, *q, *by, *panel;
    double *each;
    uint32_t *most;
    uint8_t *bytes;
    char *out;    /* what goes to the sink next: */
    size_t used;  /* so many bytes, */
    int64_t from; /* which are those from here on */
};

struct rows {
    int64_t matrix, first, count;
};

/* Rows r0 .. r1-1, columns c0 .. c1-1 of a matrix as it is stored; runs of columns share a scale,
 * or each column has its own for all rows. Its scales: number `scale` and every step-th, `scales`
 * of them. */
struct rect {
    int64_t matrix, r0, r1, c0, c1, run, scale, scales, step;
    bool each;
};

/* rows: of a unit; row: bytes that go to the sink at once. False: no memory. */
bool work_open(struct work *w, const struct store *s, const struct sink *sink, int64_t rows,
               size_t row, int ranks);
/* Units of that kind from now on, or no longer; not of groups. */
void work_strips(struct work *w, bool strips);
/* Where the bytes from `at` on of what is made shall be written, before the next call of these. */
void *work_take(const struct work *w, struct space *to, int64_t at, size_t bytes);
void work_flush(const struct work *w, struct space *to);
void work_close(struct work *w);
struct space work_space(const struct work *w, int64_t rank);
struct rows work_rows(const struct work *w, int64_t unit);
struct rect work_rect(const struct work *w, int64_t unit);
/* Has each column a scale of its own, one after the other? */
bool work_each(const struct rect *r);
/* Number of the scale of an element of a rectangle's matrix; of all of the tensor's. */
int64_t work_scale(const struct work *w, const struct rect *r, int64_t row, int64_t column);
/* Number of the rectangle's first element in that row, of all of the tensor's. */
int64_t work_at(const struct work *w, const struct rect *r, int64_t row);

#endif
