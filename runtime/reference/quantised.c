/* SPDX-License-Identifier: Apache-2.0 */
/* quantised.c - operands rounded to a microscaling format (SEMANTICS 1.2 and 3): blocks of 32
 * elements along a contraction become a scale, a power of two, times 8-bit floats.
 *
 * Kernels compute in f32, so a number close to the middle between two that it may be rounded to can
 * come out on the other side there. What that may do to an output is its noise: how far it moves
 * when all such numbers (`other`) are rounded to the other side. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quantised.h"
#include "weights.h"

enum { BLOCK = 32, RUN = 8 };
static const double SLACK = 2e-6; /* of f32 sums: of the number, and of the typical one */

moegen_rt_status rt_quantiser_read(const moegen_rt_problem *p, struct rt_quantiser *q,
                                   moegen_rt_error *err)
{
    static const struct {
        const char *name;
        moegen_rt_dtype element;
        int top;
        double most;
    } formats[] = {{"mxfp8_e4m3", MOEGEN_RT_FP8_E4M3, 8, 448},
                   {"mxfp8_e5m2", MOEGEN_RT_FP8_E5M2, 15, 57344}};
    const char *name = moegen_rt_problem_text(p, "quantize", "none");
    *q = (struct rt_quantiser){.on = strcmp(name, "none") != 0};
    moegen_rt_status status = rt_dtype(p, "dtype", MOEGEN_RT_F32, &q->stored, err);
    if (status != MOEGEN_RT_OK || !q->on)
        return status;
    q->wrapped = strcmp(moegen_rt_problem_text(p, "block_order", "contiguous"), "wrapx") == 0;
    bool wide = strcmp(moegen_rt_problem_text(p, "scale_rule", "ocp"), "wide") == 0;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(name, formats[i].name) == 0) {
            q->element = formats[i].element;
            q->top = formats[i].top - wide;
            q->most = formats[i].most;
            return MOEGEN_RT_OK;
        }
    return rt_fail(err, MOEGEN_RT_UNSUPPORTED, "the runtime has no format '%s'", name);
}

double rt_unsure(double x, double typical)
{
    return SLACK * (fabs(x) + typical);
}

double rt_typical(const double *x, int64_t n)
{
    double squares = 0;
    int64_t some = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i]) && x[i] != 0) {
            squares += x[i] * x[i];
            some++;
        }
    return some ? sqrt(squares / (double)some) : 0;
}

static void round_to(moegen_rt_dtype dtype, const double *x, int64_t n, double *to)
{
    double codes[BLOCK];
    moegen_rt_encode(dtype, x, (size_t)n, codes);
    moegen_rt_decode(dtype, codes, (size_t)n, to);
}

/* Of what x, x - d and x + d are rounded to, another one than the first, if there is one. */
static double choose(double x, double low, double high)
{
    return low != x ? low : high;
}

double rt_stored(const struct rt_quantiser *q, double x, double typical)
{
    if (!q->on || q->stored == MOEGEN_RT_F32 || isnan(x))
        return x;
    double d = rt_unsure(x, typical), v[3] = {x, x - d, x + d};
    round_to(q->stored, v, q->other ? 3 : 1, v);
    return q->other ? choose(v[0], v[1], v[2]) : v[0];
}

void rt_store(const struct rt_quantiser *q, double *x, int64_t n)
{
    double typical = q->on ? rt_typical(x, n) : 0;
    for (int64_t i = 0; q->on && i < n; i++)
        x[i] = rt_stored(q, x[i], typical);
}

/* May x be stored on either side of a limit? */
static bool is_close(const struct rt_quantiser *q, double x, struct rt_limits limits)
{
    double d = SLACK * (1 + fabs(x)), v[2] = {x - d, x + d};
    round_to(q->stored, v, 2, v);
    return rt_inside(v[0], limits) != rt_inside(v[1], limits);
}

void rt_blur(const struct rt_quantiser *q, double *x, int64_t n, struct rt_limits at)
{
    for (int64_t i = 0; i < n; i++)
        if (q->on ? is_close(q, x[i], at)
                  : fabs(x[i] - at.lo) < 4e-6 * (1 + fabs(x[i])) ||
                        fabs(x[i] - at.hi) < 4e-6 * (1 + fabs(x[i])))
            x[i] = (double)NAN;
}

static int exponent_of(double x)
{
    int e;
    frexp(x, &e);
    return e - 1;
}

/* The exponent of a block's scale. */
static int scale_of(const struct rt_quantiser *q, double peak, double unsure)
{
    double d = unsure > 0 ? rt_unsure(peak, unsure) : 0;
    int is = exponent_of(peak), low = exponent_of(peak - d), high = exponent_of(peak + d);
    int e = (q->other ? (low != is ? low : high) : is) - q->top;
    return peak == 0 || e < -127 ? -127 : e;
}

static void quantise_block(const struct rt_quantiser *q, double *x, int64_t n, double unsure)
{
    double peak = 0, way[3][BLOCK];
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            for (int64_t j = 0; j < n; j++)
                x[j] = (double)NAN;
            return;
        }
        peak = fabs(x[i]) > peak ? fabs(x[i]) : peak;
    }
    int exponent = scale_of(q, peak, unsure);
    double scale = rt_power_of_two(exponent), inverse = rt_power_of_two(-exponent);
    int ways = q->other && unsure > 0 ? 3 : 1;
    for (int w = 0; w < ways; w++) {
        for (int64_t i = 0; i < n; i++) {
            double d = unsure > 0 ? rt_unsure(x[i], unsure) : 0;
            double v = (w == 0 ? x[i] : w == 1 ? x[i] - d : x[i] + d) * inverse;
            way[w][i] = v < -q->most ? -q->most : v > q->most ? q->most : v;
        }
        round_to(q->element, way[w], n, way[w]);
    }
    for (int64_t i = 0; i < n; i++)
        x[i] = scale * (ways > 1 ? choose(way[0][i], way[1][i], way[2][i]) : way[0][i]);
}

/* Elements that the tile of blocks has which starts where `left` are left. */
static int64_t tile_of(const struct rt_quantiser *q, int64_t left)
{
    int64_t length = q->wrapped ? 512 : BLOCK;
    while (length > BLOCK && left < length)
        length = length > 128 ? length / 2 : BLOCK;
    return left < length ? left : length;
}

static void quantise(const struct rt_quantiser *q, double *x, int64_t n, int64_t stride,
                     double unsure)
{
    double block[BLOCK];
    unsure = q->stored == MOEGEN_RT_F32 ? unsure : 0; /* others have been stored */
    for (int64_t from = 0, length; q->on && from < n; from += length) {
        length = tile_of(q, n - from);
        for (int64_t g = 0; g < length; g += BLOCK) {
            int64_t at[BLOCK], count = length < BLOCK ? length : BLOCK;
            for (int64_t i = 0; i < count; i++) {
                at[i] = from + (length < BLOCK ? i : i / RUN * (length / 4) + g / 4 + i % RUN);
                block[i] = x[at[i] * stride];
            }
            quantise_block(q, block, count, unsure);
            for (int64_t i = 0; i < count; i++)
                x[at[i] * stride] = block[i];
        }
    }
}

const double *rt_quantised(const struct rt_quantiser *q, const double *x, int64_t rows, int64_t n,
                           bool down, bool unsure, double *to)
{
    if (!q->on)
        return x;
    double typical = unsure ? rt_typical(x, rows * n) : 0;
    memcpy(to, x, (size_t)(rows * n) * sizeof *x);
    for (int64_t i = 0; i < (down ? n : rows); i++)
        quantise(q, to + (down ? i : i * n), down ? rows : n, down ? n : 1, typical);
    return to;
}

moegen_rt_status rt_quantise_matrix(const struct rt_quantiser *q, const moegen_rt_tensor *t,
                                    int64_t rows, int64_t columns, int64_t down,
                                    moegen_rt_tensor *to, moegen_rt_error *err)
{
    int64_t longest = columns > rows ? columns : rows;
    double *line = malloc((size_t)longest * sizeof *line);
    float *data = malloc((size_t)(rows * columns) * sizeof *data);
    *to = (moegen_rt_tensor){.name = t->name, .dtype = MOEGEN_RT_F32, .data = data};
    for (int64_t r = 0; line && data && r < rows; r++) {
        rt_elements(t, r * columns, columns, line);
        if (!down)
            quantise(q, line, columns, 1, 0);
        moegen_rt_encode(MOEGEN_RT_F32, line, (size_t)columns, data + r * columns);
    }
    for (int64_t r = 0; line && data && down && r < rows; r += down)
        for (int64_t c = 0; c < columns; c++) {
            for (int64_t i = 0; i < down; i++)
                line[i] = (double)data[(r + i) * columns + c];
            quantise(q, line, down, 1, 0);
            for (int64_t i = 0; i < down; i++)
                data[(r + i) * columns + c] = (float)line[i];
        }
    free(line);
    return line && data ? MOEGEN_RT_OK : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
}

/* ---- noise ---- */

double rt_distance(const moegen_rt_tensor *is, const moegen_rt_tensor *moved)
{
    const double *a = is->data, *b = moved->data;
    int64_t count = moegen_rt_tensor_count(is), row = is->shape[is->rank - 1];
    double difference = 0, size = 0, worst = 0, typical = rt_typical(a, count);
    for (int64_t r = 0; r < count; r += row) {
        double peak = typical, most = 0;
        for (int64_t i = r; i < r + row; i++) {
            if (!isfinite(a[i]) || !isfinite(b[i]))
                continue;
            difference += (a[i] - b[i]) * (a[i] - b[i]);
            size += a[i] * a[i];
            double size = fabs(a[i]), moved_by = fabs(a[i] - b[i]);
            peak = size > peak ? size : peak;
            most = moved_by > most ? moved_by : most;
        }
        worst = peak > 0 ? fmax(worst, most / peak) : worst;
    }
    return size > 0 ? fmax(sqrt(difference / size), worst / 4) : 0;
}

void rt_set_noise(moegen_rt_problem *out, const moegen_rt_problem *moved)
{
    moegen_rt_tensor *t;
    for (size_t i = 0; (t = moegen_rt_problem_at(out, i)) != NULL; i++) {
        const moegen_rt_tensor *other = moegen_rt_problem_tensor(moved, t->name);
        t->noise = other ? rt_distance(t, other) : 0;
    }
}
