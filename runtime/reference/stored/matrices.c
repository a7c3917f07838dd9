/* SPDX-License-Identifier: Apache-2.0 */
/* matrices.c - weights whose rows are contracted, of families that have none of the experts'
 * tensors, however they are stored: random ones, and the numbers that they are. */
#include <stdlib.h>
#include <string.h>

#include "reference/quantised.h"
#include "stored.h"

bool rt_matrices_coded(const moegen_rt_problem *p)
{
    return rt_weights_format(p) != NULL;
}

static bool is(const moegen_rt_problem *p, const char *key, const char *value)
{
    const char *text = moegen_rt_problem_text(p, key, NULL);
    return text && strcmp(text, value) == 0;
}

bool rt_matrices_plain(const moegen_rt_problem *p, const struct rt_matrices *r)
{
    bool apart = is(p, "weights.gate_up", "separate"),
         in_turn = r->parts > 1 && is(p, "weights.gate_up_order", "interleaved");
    return !rt_matrices_coded(p) && !is(p, "weights.layout", "packed") &&
           !(r->gate_up && (apart || in_turn));
}

/* A tensor of them, of the numbers [E][C][K] that `values` holds. */
static moegen_rt_status add_tensor(moegen_rt_problem *p, const struct rt_weights *w,
                                   const struct rt_stored *s, moegen_rt_dtype dtype,
                                   const char *values, moegen_rt_error *err)
{
    const size_t bytes = moegen_rt_dtype_of(dtype)->bytes;
    moegen_rt_tensor *t;
    moegen_rt_status status =
        moegen_rt_problem_add(p, s->name, dtype, s->code.rank, s->code.shape, &t, err);
    if (status != MOEGEN_RT_OK)
        return status;
    memset(t->data, 0, t->bytes); /* what is no element */
    for (int64_t e = 0; e < w->E; e++) {
        char *to = (char *)t->data + (size_t)(e * s->code.each) * bytes;
        const char *from = values + (size_t)((e * w->C + s->first) * w->K) * bytes;
        for (int64_t c = 0; c < s->C; c++)
            for (int64_t k = 0; k < w->K; k++, from += bytes)
                memcpy(to + (size_t)(s->code.row[k] + s->code.column[c]) * bytes, from, bytes);
        if (s->packed.run)
            rt_packed_header(&s->packed, to);
    }
    return MOEGEN_RT_OK;
}

static moegen_rt_status fill_numbers(moegen_rt_problem *p, const struct rt_weights *w,
                                     moegen_rt_dtype dtype, uint64_t seed, double scale,
                                     moegen_rt_error *err)
{
    const size_t n = (size_t)(w->E * w->K * w->C);
    char *values = malloc(n * moegen_rt_dtype_of(dtype)->bytes);
    moegen_rt_status status = MOEGEN_RT_OK;
    if (!values)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    moegen_rt_normal(dtype, values, n, rt_seed(seed, w->whole), scale);
    for (int i = 0; i < w->count && status == MOEGEN_RT_OK; i++)
        status = add_tensor(p, w, &w->of[i], dtype, values, err);
    free(values);
    return status;
}

moegen_rt_status rt_matrices_fill(moegen_rt_problem *p, const struct rt_matrices *r,
                                  moegen_rt_dtype dtype, uint64_t seed, double scale,
                                  moegen_rt_error *err)
{
    struct rt_weights w;
    moegen_rt_status status = rt_matrices_lay(p, r, &w, err);
    if (status == MOEGEN_RT_OK)
        status = w.format ? rt_weights_fill(p, &w, dtype, seed, scale, err)
                          : fill_numbers(p, &w, dtype, seed, scale, err);
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
    double *rows = malloc((size_t)((w.E * w.K + 1) * w.C) * sizeof *rows);
    if (status == MOEGEN_RT_OK && !rows)
        status = rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (int64_t e = 0; e < w.E && status == MOEGEN_RT_OK; e++) {
        double *row = rows + w.E * w.K * w.C;
        rt_weights_of(&w, e, &t, &first);
        for (int64_t k = 0; k < w.K; k++) {
            rt_elements(t, first + k * w.C, w.C, row);
            for (int64_t c = 0; c < w.C; c++)
                rows[(e * w.C + c) * w.K + k] = row[c];
        }
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
