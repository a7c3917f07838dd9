/* SPDX-License-Identifier: Apache-2.0 */
/* matrices.c - weights whose rows are contracted, of families that have none of the experts'
 * tensors, as codes of a format: random ones, and the numbers that they are. */
#include <stdlib.h>
#include <string.h>

#include "stored.h"

bool rt_matrices_coded(const moegen_rt_problem *p)
{
    return rt_weights_format(p) != NULL;
}

moegen_rt_status rt_matrices_fill(moegen_rt_problem *p, const struct rt_matrices *r, uint64_t seed,
                                  double scale, moegen_rt_error *err)
{
    struct rt_weights w;
    moegen_rt_status status = rt_matrices_lay(p, r, &w, err);
    if (status == MOEGEN_RT_OK)
        status = rt_weights_fill(p, &w, MOEGEN_RT_F64, seed, scale, err);
    rt_weights_free(&w);
    return status;
}

moegen_rt_status rt_matrices_read(const moegen_rt_problem *p, const struct rt_matrices *r,
                                  moegen_rt_tensor *to, moegen_rt_error *err)
{
    struct rt_weights w;
    const moegen_rt_tensor *t;
    int64_t first, rank = r->E ? 3 : 2;
    *to = (moegen_rt_tensor){.name = to->name, .dtype = MOEGEN_RT_F64, .rank = (int)rank};
    to->shape[0] = r->E;
    to->shape[rank - 2] = r->C;
    to->shape[rank - 1] = r->K;
    moegen_rt_status status = rt_matrices_lay(p, r, &w, err);
    if (status == MOEGEN_RT_OK)
        status = rt_weights_find(p, &w, err);
    double *rows = malloc((size_t)(w.E * w.K * w.C) * sizeof *rows);
    if (status == MOEGEN_RT_OK && !rows)
        status = rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (int64_t e = 0; e < w.E && status == MOEGEN_RT_OK; e++) {
        rt_weights_of(&w, e, &t, &first);
        for (int64_t k = 0; k < w.K; k++)
            for (int64_t c = 0; c < w.C; c++)
                rows[(e * w.C + c) * w.K + k] = ((const double *)t->data)[first + k * w.C + c];
    }
    if (status == MOEGEN_RT_OK)
        to->data = rows;
    else
        free(rows);
    rt_weights_free(&w);
    return status;
}

moegen_rt_status rt_matrices_online(const moegen_rt_problem *p, const struct rt_matrices *r,
                                    struct rt_online *q, moegen_rt_error *err)
{
    struct rt_weights w;
    *q = (struct rt_online){0};
    if (strcmp(moegen_rt_problem_text(p, "quantize_activations", "none"), "none") == 0)
        return MOEGEN_RT_OK;
    moegen_rt_status status = rt_matrices_lay(p, r, &w, err);
    if (status == MOEGEN_RT_OK)
        status = rt_online_read(p, &w, q, err);
    rt_weights_free(&w);
    return status;
}
