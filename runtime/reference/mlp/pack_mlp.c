/* SPDX-License-Identifier: Apache-2.0 */
/* pack_mlp.c - matrices in the order in which products read them (weights.layout = packed): what
 * they hold, and random ones. */
#include <stdlib.h>
#include <string.h>

#include "mlp.h"

/* p->is.run is 0 if the operand lies as its shape says. */
static moegen_rt_status lay(const moegen_rt_problem *p, const struct rt_operand_shape *o,
                            struct rt_packed *l, moegen_rt_error *err)
{
    *l = (struct rt_packed){.run = 0};
    return o->is_matrix ? rt_packed_of(p, moegen_rt_problem_text(p, "dtype", "f32"), o->columns,
                                       o->rows, o->parts, false, l, err)
                        : MOEGEN_RT_OK;
}

/* Where elements (row, k) and those after it in its run are, and how many these are. */
static int64_t run_at(const struct rt_packed *l, int64_t row, int64_t k, int64_t *count)
{
    *count = l->is.K - k < l->run ? l->is.K - k : l->run;
    return rt_packed_at(l, row, k);
}

moegen_rt_status rt_operand_unpack(const moegen_rt_problem *p, const struct rt_operand_shape *o,
                                   struct rt_operand *to, moegen_rt_error *err)
{
    struct rt_packed l;
    const moegen_rt_tensor *t;
    moegen_rt_status status = lay(p, o, &l, err);
    if (status == MOEGEN_RT_OK && l.run)
        status = rt_input(p, o->name, true, 1, &l.each, &t, err);
    if (status != MOEGEN_RT_OK || !l.run)
        return status;
    double *number = malloc((size_t)(o->rows * o->columns) * sizeof *number);
    if (!number)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (int64_t r = 0; r < o->rows; r++)
        for (int64_t k = 0, n; k < o->columns; k += n) {
            int64_t at = run_at(&l, r, k, &n);
            rt_elements(t, at, n, number + r * o->columns + k);
        }
    to->decoded = (moegen_rt_tensor){.name = to->decoded.name,
                                     .dtype = MOEGEN_RT_F64,
                                     .rank = 2,
                                     .shape = {o->rows, o->columns},
                                     .data = number};
    to->t = &to->decoded;
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_operand_pack(moegen_rt_problem *p, const struct rt_operand_shape *o,
                                 moegen_rt_dtype dtype, uint64_t seed, double scale,
                                 bool *is_packed, moegen_rt_error *err)
{
    struct rt_packed l;
    moegen_rt_tensor *t;
    size_t bytes = moegen_rt_dtype_of(dtype)->bytes, count = (size_t)(o->rows * o->columns);
    moegen_rt_status status = lay(p, o, &l, err);
    *is_packed = l.run > 0;
    if (status == MOEGEN_RT_OK && l.run)
        status = moegen_rt_problem_add(p, o->name, dtype, 1, &l.each, &t, err);
    if (status != MOEGEN_RT_OK || !l.run)
        return status;
    char *values = malloc(count * bytes);
    if (!values)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    moegen_rt_normal(dtype, values, count, rt_seed(seed, o->name), scale); /* as in rows */
    memset(t->data, 0, t->bytes);
    rt_packed_header(&l, t->data);
    for (int64_t r = 0; r < o->rows; r++)
        for (int64_t k = 0, n; k < o->columns; k += n) {
            int64_t at = run_at(&l, r, k, &n);
            memcpy((char *)t->data + (size_t)at * bytes,
                   values + (size_t)(r * o->columns + k) * bytes, (size_t)n * bytes);
        }
    free(values);
    return MOEGEN_RT_OK;
}
