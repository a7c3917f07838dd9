/* SPDX-License-Identifier: Apache-2.0 */
/* online.c - operands that a kernel quantises on the way: rows of x and p, in the blocks that the
 * weights have along their contraction (SEMANTICS 1.2), or each row to integers. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/quantised.h"
#include "reference/weights.h"

enum { BLOCK = 32 }; /* also that of weights which have none */

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
    if (strcmp(how, "int8") == 0) {
        q->integers = true;
        q->K = w->K;
        return MOEGEN_RT_OK;
    }
    if (strcmp(how, "mxfp8") != 0)
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED,
                       "quantize_activations: the float64 reference has no '%s'", how);
    bool wide = strcmp(moegen_rt_problem_text(p, "scale_rule", "ocp"), "wide") == 0;
    bool blocks = w->format && rt_format_has_rule(w->format);
    q->rule = wide ? RT_WIDE : RT_OCP;
    q->K = w->K;
    q->column = malloc((size_t)w->K * sizeof *q->column);
    q->codes = malloc(BLOCK);
    if (!q->column || !q->codes)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (int64_t k = 0; k < w->K; k++)
        q->column[k] = (struct rt_online_column){blocks ? w->of[0].scale.row[k] : k / BLOCK, k};
    qsort(q->column, (size_t)w->K, sizeof *q->column, by_block);
    return MOEGEN_RT_OK;
}

static double scale_of(const struct rt_online *q, double amax)
{
    return q->format->scale->value(rt_format_scale_code(q->format, q->rule, amax, 1));
}

/* The numbers that the codes of x + way * what each may be off by have. */
static void round_block(const struct rt_online *q, const double *x, int64_t n, double scale,
                        double way, double typical, double *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = x[i] + (way != 0 ? way * rt_unsure(x[i], typical) : 0);
    rt_format_encode(q->format, to, n, scale, 1, q->codes, 0);
    rt_format_elements(q->format, q->codes, 0, n, to);
    for (int64_t i = 0; i < n; i++)
        to[i] *= scale;
}

static void quantise_block(const struct rt_online *q, const double *x, int64_t n, double typical,
                           double *to)
{
    double amax = rt_format_amax(x, n, 1), scale = scale_of(q, amax), is[BLOCK], moved[BLOCK];
    bool other = q->other && typical > 0 && isfinite(amax);
    if (other) {
        double d = rt_unsure(amax, typical), low = scale_of(q, amax > d ? amax - d : 0);
        scale = low != scale ? low : scale_of(q, amax + d);
    }
    round_block(q, x, n, scale, 0, typical, is);
    memcpy(to, is, (size_t)n * sizeof *to);
    for (int way = -1; way <= 1 && other; way += 2) {
        round_block(q, x, n, scale, way, typical, moved);
        for (int64_t i = 0; i < n; i++)
            if (moved[i] != is[i])
                to[i] = moved[i];
    }
}

/* An integer of a row, as f32 arithmetic gives it: the number times the inverse of the scale. */
static double integer_of(double x, float inverse)
{
    float scaled = (float)x * inverse;
    return nearbyint((double)scaled);
}

/* The largest magnitude of a row becomes 127, nothing stays zero. A row that is not finite has no
 * numbers. */
static void round_row(const struct rt_online *q, double *x, double typical)
{
    float amax = 0;
    bool finite = true;
    for (int64_t k = 0; k < q->K; k++) {
        float size = fabsf((float)x[k]);
        finite = finite && isfinite(size);
        amax = size > amax ? size : amax;
    }
    float scale = amax / 127;
    scale = scale < FLT_MIN ? FLT_MIN : scale;
    double unsure = rt_unsure((double)amax, typical) / (double)(amax > 0 ? amax : 1);
    for (int64_t k = 0; k < q->K; k++) {
        double code = integer_of(x[k], 1 / scale), is = code;
        double d = rt_unsure(x[k], typical) + fabs(x[k]) * unsure;
        for (int way = -1; way <= 1 && typical > 0 && finite; way += 2) {
            double moved = integer_of(x[k] + way * d, 1 / scale);
            code = moved != is && fabs(moved) <= 127 ? moved : code;
        }
        x[k] = finite ? code * (double)scale : (double)NAN;
    }
}

void rt_online_row(const struct rt_online *q, double *x, bool computed)
{
    double typical = computed && q->other ? rt_typical(x, q->K) : 0;
    if (q->integers && q->K) {
        round_row(q, x, typical);
        return;
    }
    for (int64_t first = 0, end; first < q->K; first = end) {
        double block[BLOCK], to[BLOCK];
        int64_t n = 0;
        for (end = first; end < q->K && q->column[end].block == q->column[first].block; end++)
            block[n++] = x[q->column[end].k];
        quantise_block(q, block, n, typical, to);
        for (int64_t i = 0; i < n; i++)
            x[q->column[first + i].k] = to[i];
    }
}

void rt_online_free(struct rt_online *q)
{
    free(q->column);
    free(q->codes);
    *q = (struct rt_online){0};
}
