/* SPDX-License-Identifier: Apache-2.0 */
/* kept.h - a reference without what is not compared. Of gradients of weights a reference has a few
 * features, and all of its doubles would be several times the weights. */
#ifndef MOEGEN_RT_KEPT_H
#define MOEGEN_RT_KEPT_H

#include "moegen_runtime.h"

/* Rows of a tensor, and of each the same few elements. Starts as {0}. */
struct rt_kept {
    moegen_rt_tensor want; /* [rows, columns], and one more column if others are left out */
    int64_t rows, *first;  /* of each row the element of the whole tensor that it begins with */
    int64_t columns, *column;
    int64_t count, stride; /* of elements in a whole row, and from one to the next */
    int64_t whole;         /* elements of the whole tensor */
    void *got;             /* room for these elements of an output */
    size_t room;
};

/* Keeps what is compared. *worthwhile: it is less than half, and the same elements of each row;
 * else nothing is kept. NO_MEMORY, or OK. */
moegen_rt_status rt_keep(const moegen_rt_tensor *want, struct rt_kept *out, int *worthwhile);
void rt_kept_free(struct rt_kept *k);
/* As moegen_rt_compare with the whole reference, but elements are numbered among those kept. */
moegen_rt_status rt_kept_compare(struct rt_kept *k, const moegen_rt_tensor *got,
                                 moegen_rt_comparison *c, moegen_rt_error *err);

#endif
