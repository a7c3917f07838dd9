/* SPDX-License-Identifier: Apache-2.0 */
/* fill_router.c - hidden states for which the router chooses the experts that are asked for. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "router.h"

enum { MOST = 16 };

double rt_router_size(const struct rt_router *r)
{
    double cap = r->cap > 0 ? fmin(1, r->cap) : 1;
    return fmin(fmax(cap / fabs(r->times), 1.0 / MOST), MOST);
}

/* Scales a token's hidden states to a largest logit of 3 or -3 usual ones. */
static void scale_row(double *row, const double *g, double *logits, const struct rt_router *r)
{
    double largest = 0;
    memset(logits, 0, (size_t)r->E * sizeof *logits);
    for (int64_t h = 0; h < r->H; h++)
        for (int64_t e = 0; e < r->E; e++)
            logits[e] += row[h] * g[h * r->E + e];
    for (int64_t e = 0; e < r->E; e++)
        largest = fmax(largest, fabs(logits[e]));
    for (int64_t h = 0; largest > 0 && h < r->H; h++)
        row[h] *= 3 * rt_router_size(r) / largest;
}

moegen_rt_status rt_router_push(moegen_rt_problem *p, const struct rt_router *r,
                                const moegen_rt_fill *how, moegen_rt_error *err)
{
    moegen_rt_tensor *x = moegen_rt_problem_tensor(p, "hidden_states");
    const moegen_rt_tensor *w = moegen_rt_problem_tensor(p, "router_weight");
    int64_t T = x->shape[0];
    size_t width = moegen_rt_dtype_of(x->dtype)->bytes;
    double *row = malloc((size_t)r->H * sizeof *row), *g = malloc(w->bytes / width * sizeof *g);
    double *logits = malloc((size_t)r->E * sizeof *logits);
    int32_t *chosen = malloc((size_t)(T * r->k) * sizeof *chosen);
    moegen_rt_status status = MOEGEN_RT_OK;
    if (!row || !g || !chosen || !logits)
        status = rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        status = rt_route(how->routing, how->seed, T, r->E, r->k, chosen, err);
    if (status == MOEGEN_RT_OK)
        rt_elements(w, 0, r->H * r->E, g);
    for (int64_t t = 0; status == MOEGEN_RT_OK && t < T; t++) {
        rt_elements(x, t * r->H, r->H, row);
        for (int64_t h = 0; h < r->H; h++)
            row[h] *= 0.15;
        for (int64_t j = 0; j < r->k; j++)
            for (int64_t h = 0; h < r->H; h++)
                row[h] += g[h * r->E + chosen[t * r->k + j]] / rt_router_size(r);
        scale_row(row, g, logits, r);
        moegen_rt_encode(x->dtype, row, (size_t)r->H, (char *)x->data + (size_t)(t * r->H) * width);
    }
    free(row);
    free(g);
    free(logits);
    free(chosen);
    return status;
}
