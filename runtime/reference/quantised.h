/* SPDX-License-Identifier: Apache-2.0 */
/* quantised.h - operands that are quantised online: quantised.c. */
#ifndef MOEGEN_REFERENCE_QUANTISED_H
#define MOEGEN_REFERENCE_QUANTISED_H

#include "reference.h"

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
/* Of an output [outer][row], how far it moved: in all; and its worst element, which may be 6 times
 * as large, with some room for numbers that move together. */
double rt_distance(const moegen_rt_tensor *is, const moegen_rt_tensor *moved);
/* Sets the noise of each output to how far it is from that in `moved`. */
void rt_set_noise(moegen_rt_problem *out, const moegen_rt_problem *moved);

#endif
