/* SPDX-License-Identifier: Apache-2.0 */
/* packed_rows.c - tensors of rows that are contracted, in the order in which products read them
 * (weights.layout = packed): what they hold, and random ones. */
#include <stdlib.h>
#include <string.h>

#include "reference/weights.h"

/* Elements (row, k) and those after it in its run lie together: so many. */
static int64_t run_from(const struct rt_packed *l, int64_t k)
{
    return l->is.K - k < l->run ? l->is.K - k : l->run;
}

void *rt_unpacked(const struct rt_packed *l, const moegen_rt_tensor *t, int64_t E)
{
    const size_t bytes = moegen_rt_dtype_of(t->dtype)->bytes;
    char *rows = malloc((size_t)(E * l->is.C * l->is.K) * bytes), *to = rows;
    for (int64_t i = 0; rows && i < E * l->is.C; i++)
        for (int64_t k = 0, n; k < l->is.K; k += n, to += (size_t)n * bytes) {
            n = run_from(l, k);
            int64_t at = i / l->is.C * l->each + rt_packed_at(l, i % l->is.C, k);
            memcpy(to, (const char *)t->data + (size_t)at * bytes, (size_t)n * bytes);
        }
    return rows;
}

moegen_rt_status rt_add_packed(moegen_rt_problem *p, const char *name, moegen_rt_dtype dtype,
                               const struct rt_packed *l, int64_t E, uint64_t seed, double scale,
                               moegen_rt_error *err)
{
    const int64_t shape[] = {E, l->each}, experts = E ? E : 1, count = l->is.C * l->is.K;
    const size_t bytes = moegen_rt_dtype_of(dtype)->bytes;
    moegen_rt_tensor *t;
    moegen_rt_status status =
        moegen_rt_problem_add(p, name, dtype, E ? 2 : 1, E ? shape : shape + 1, &t, err);
    if (status != MOEGEN_RT_OK)
        return status;
    char *rows = malloc((size_t)count * bytes); /* of an expert */
    if (!rows)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    memset(t->data, 0, t->bytes);
    for (int64_t e = 0; e < experts; e++) {
        char *slice = (char *)t->data + (size_t)(e * l->each) * bytes;
        const char *from = rows;
        rt_normal_from((size_t)(e * count), dtype, rows, (size_t)count, rt_seed(seed, name), scale);
        rt_packed_header(l, slice);
        for (int64_t r = 0; r < l->is.C; r++)
            for (int64_t k = 0, n; k < l->is.K; k += n, from += (size_t)n * bytes) {
                n = run_from(l, k);
                memcpy(slice + (size_t)rt_packed_at(l, r, k) * bytes, from, (size_t)n * bytes);
            }
    }
    free(rows);
    return MOEGEN_RT_OK;
}
