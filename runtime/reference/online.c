/* SPDX-License-Identifier: Apache-2.0 */
/* online.c - operands that a kernel quantises on the way: rows of x and p, in the blocks that the
 * weights have along their contraction (SEMANTICS 1.2). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"

enum { BLOCK = 32 }; /* of weights that have none */

struct rt_online_column {
    int64_t block, k;
};

static int by_block(const void *a, const void *b)
{
    const struct rt_online_column *x = a, *y = b;
    return x->block != y->block ? (x->block < y->block ? -1 : 1) : x->k < y->k ? -1 : 1;
}

moegen_rt_status rt_online_read(const moegen_rt_problem *p, const struct rt_weights *w,
                                struct rt_online *q, moegen_rt_error *err)
{
    const char *how = moegen_rt_problem_text(p, "quantize_activations", "none");
    *q = (struct rt_online){.format = rt_format_find("mxfp8_e4m3")};
    if (strcmp(how, "none") == 0)
        return MOEGEN_RT_OK;
    if (strcmp(how, "mxfp8") != 0)
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED,
                       "quantize_activations: the float64 reference has no '%s'", how);
    bool wide = strcmp(moegen_rt_problem_text(p, "scale_rule", "ocp"), "wide") == 0;
    bool blocks = w->format && rt_format_has_rule(w->format);
    q->rule = wide ? RT_WIDE : RT_OCP;
    q->K = w->K;
    q->column = malloc((size_t)w->K * sizeof *q->column);
    q->room = malloc((size_t)w->K * sizeof *q->room);
    q->codes = malloc((size_t)w->K);
    if (!q->column || !q->room || !q->codes)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (int64_t k = 0; k < w->K; k++)
        q->column[k] = (struct rt_online_column){blocks ? w->of[0].scale.row[k] : k / BLOCK, k};
    qsort(q->column, (size_t)w->K, sizeof *q->column, by_block);
    return MOEGEN_RT_OK;
}

void rt_online_row(const struct rt_online *q, double *x)
{
    const struct rt_format *f = q->format;
    for (int64_t first = 0, end; first < q->K; first = end) {
        int64_t n = 0;
        for (end = first; end < q->K && q->column[end].block == q->column[first].block; end++)
            q->room[n++] = x[q->column[end].k];
        uint32_t code = rt_format_scale_code(f, q->rule, rt_format_amax(q->room, n, 1), 1);
        double scale = f->scale->value(code);
        rt_format_encode(f, q->room, n, scale, 1, q->codes, 0);
        rt_format_elements(f, q->codes, 0, n, q->room);
        for (int64_t i = 0; i < n; i++)
            x[q->column[first + i].k] = q->room[i] * scale;
    }
}

void rt_online_free(struct rt_online *q)
{
    free(q->column);
    free(q->room);
    free(q->codes);
    *q = (struct rt_online){0};
}
