/* SPDX-License-Identifier: Apache-2.0 */
/* prequantised.c - operands of quantised products that come as codes with scales (SEMANTICS 3):
 * what they decode to, and random ones. Places are made tile by tile, as the text has it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/quantised.h"
#include "reference/weights.h"

enum { BLOCK = 32, RUN = 8, LANES = 4, TILE = 512, NO_SCALE = 255, BIAS = 127 };
#define SUFFIX "_scales"

/* ---- places ---- */

/* The row of scale i of a tile that starts at k0. */
static int64_t scale_row(const char *shape, int64_t k0, int64_t i)
{
    int64_t dense = k0 / BLOCK + i, before = k0 % TILE / BLOCK; /* scales of this 512-tile */
    if (strcmp(shape, "oversized") == 0)
        return dense / 4 * 32 + dense % 4;
    if (strcmp(shape, "packed") == 0) {
        int64_t t = k0 / TILE, base = t / 4 * 128 + t % 4 * 4;
        return base + (before + i) / 4 * 32 + (before + i) % 4;
    }
    return dense;
}

static int64_t tile_of(const struct rt_quantiser *q, int64_t left)
{
    for (int64_t length = TILE; q->wrapped && length >= 128; length /= 2)
        if (left >= length)
            return length;
    return BLOCK;
}

static void place(struct rt_codes *c, const struct rt_quantiser *q, const char *shape)
{
    for (int64_t k0 = 0, length; k0 < c->K; k0 += length) {
        length = tile_of(q, c->K - k0);
        for (int64_t j = 0; j < length && k0 + j < c->K; j++) {
            int64_t deep = q->wrapped ? j % (length / LANES) : j / LANES;
            c->row[k0 + j] = k0 / LANES + deep;
            c->lane[k0 + j] = q->wrapped ? j / (length / LANES) : j % LANES;
            c->block[k0 + j] = scale_row(shape, k0, deep / RUN);
        }
    }
}

static bool choice(const moegen_rt_problem *p, const char *name, const char *key, const char *usual,
                   const char **text)
{
    char path[96];
    snprintf(path, sizeof path, "prequantised.%s.%s", name, key);
    *text = moegen_rt_problem_text(p, path, usual);
    return moegen_rt_problem_text(p, path, NULL) != NULL;
}

void rt_codes_free(struct rt_codes *c)
{
    free(c->row);
    free(c->lane);
    free(c->block);
}

/* Shapes of the tensors, from the extents, and what an expert has of them. */
static void set_shapes(struct rt_codes *c, const struct rt_operand_shape *o)
{
    int64_t codes[] = {c->parts * c->code_rows, LANES * c->F},
            scales[] = {c->parts * c->scale_rows, c->F};
    int experts = c->E > 0;
    c->codes_shape[0] = c->scales_shape[0] = c->E;
    c->codes_rank = c->scales_rank = experts + 2;
    memcpy(c->scales_shape + experts, scales, sizeof scales);
    memcpy(c->codes_shape + experts, c->swizzled ? codes : c->shape, sizeof codes);
    if (o->rank && !c->swizzled) {
        c->codes_rank = o->rank;
        memcpy(c->codes_shape, o->shape, sizeof o->shape);
    }
    c->each_codes = c->swizzled ? codes[0] * codes[1] : c->shape[0] * c->shape[1];
    c->each_scales = scales[0] * scales[1];
}

/* Which extent scales are along: K of its elements are in a part, F are not along it. */
static void set_extents(struct rt_codes *c, const struct rt_operand_shape *o, bool down)
{
    bool whole = down == o->beside; /* no part has less than all of it */
    int64_t rows = c->shape[0], columns = c->shape[1];
    c->down = down;
    c->parts = whole ? 1 : o->parts;
    c->K = (down ? rows : columns) / c->parts;
    c->F = down ? columns : rows;
    c->k_step = down ? columns : 1;
    c->f_step = down ? 1 : columns;
}

moegen_rt_status rt_codes_read(const moegen_rt_problem *p, const struct rt_quantiser *q,
                               const struct rt_operand_shape *o, struct rt_codes *c,
                               moegen_rt_error *err)
{
    const char *form, *shape, *along, *key = o->key ? o->key : o->name;
    *c = (struct rt_codes){.name = o->name, .E = o->E, .shape = {o->rows, o->columns}};
    c->is_given = choice(p, key, "form", "plain", &form);
    c->is_given |= choice(p, key, "scales", "dense", &shape);
    c->is_given |= choice(p, key, "along", o->along, &along);
    if (!c->is_given)
        return MOEGEN_RT_OK;
    if (!q->on)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "prequantised.%s: quantize names no format",
                       key);
    snprintf(c->scales_name, sizeof c->scales_name, "%s" SUFFIX, o->name);
    c->swizzled = strcmp(form, "swizzled") == 0;
    c->element = q->element;
    c->most = q->most;
    if (o->rows < 0) { /* tokens: the last extent of scales */
        const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, c->scales_name);
        if (!t)
            return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "tensor '%s' is missing", c->scales_name);
        c->shape[0] = t->rank > 1 ? t->shape[1] : 1;
    }
    set_extents(c, o, along[0] == o->down[0]);
    int64_t blocks = (c->K + BLOCK - 1) / BLOCK;
    c->code_rows = blocks * RUN;
    c->scale_rows = strcmp(shape, "dense") == 0 ? blocks : blocks * RUN;
    if (strcmp(shape, "packed") == 0)
        c->scale_rows = (c->K + 4 * TILE - 1) / (4 * TILE) * 128;
    c->row = malloc((size_t)c->K * sizeof *c->row);
    c->lane = malloc((size_t)c->K * sizeof *c->lane);
    c->block = malloc((size_t)c->K * sizeof *c->block);
    if (!c->row || !c->lane || !c->block)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    set_shapes(c, o);
    place(c, q, shape);
    return MOEGEN_RT_OK;
}

/* Where element k of contraction f of a part is in an operand. */
static int64_t number_at(const struct rt_codes *c, int64_t part, int64_t k, int64_t f)
{
    return (part * c->K + k) * c->k_step + f * c->f_step;
}

/* Where it has its code, of an expert, and its scale. */
static int64_t code_at(const struct rt_codes *c, int64_t part, int64_t k, int64_t f)
{
    if (c->swizzled)
        return ((part * c->code_rows + c->row[k]) * c->F + f) * LANES + c->lane[k];
    return number_at(c, part, k, f);
}

static int64_t scale_at(const struct rt_codes *c, int64_t part, int64_t k, int64_t f)
{
    return (part * c->scale_rows + c->block[k]) * c->F + f;
}

/* ---- decoding ---- */

static moegen_rt_status bytes_of(const moegen_rt_problem *p, const char *name, int rank,
                                 const int64_t *shape, const uint8_t **to, moegen_rt_error *err)
{
    const moegen_rt_tensor *t;
    moegen_rt_status status = rt_input(p, name, true, rank, shape, &t, err);
    if (status != MOEGEN_RT_OK)
        return status;
    *to = t->data;
    if (moegen_rt_dtype_of(t->dtype)->bytes != 1)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "tensor '%s' is of %s, which is not of 8 bits",
                       name, moegen_rt_dtype_of(t->dtype)->name);
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_codes_find(const moegen_rt_problem *p, struct rt_codes *c, moegen_rt_error *err)
{
    moegen_rt_status status = bytes_of(p, c->name, c->codes_rank, c->codes_shape, &c->codes, err);
    return status == MOEGEN_RT_OK
               ? bytes_of(p, c->scales_name, c->scales_rank, c->scales_shape, &c->scales, err)
               : status;
}

void rt_codes_decode(const struct rt_codes *c, int64_t e, double *to)
{
    const uint8_t *codes = c->codes + e * c->each_codes, *scales = c->scales + e * c->each_scales;
    uint8_t code[256];
    double value[256];
    for (int i = 0; i < 256; i++)
        code[i] = (uint8_t)i;
    moegen_rt_decode(c->element, code, 256, value);
    for (int64_t part = 0; part < c->parts; part++)
        for (int64_t f = 0; f < c->F; f++)
            for (int64_t k = 0; k < c->K; k++) {
                double x = value[codes[code_at(c, part, k, f)]];
                uint8_t by = scales[scale_at(c, part, k, f)];
                to[number_at(c, part, k, f)] =
                    by == NO_SCALE ? (double)NAN : x * rt_power_of_two(by - BIAS);
            }
}

moegen_rt_status rt_operand_decode(const moegen_rt_problem *p, const struct rt_quantiser *q,
                                   const struct rt_operand_shape *o, struct rt_operand *to,
                                   moegen_rt_error *err)
{
    struct rt_codes c;
    *to = (struct rt_operand){0};
    moegen_rt_status status = rt_codes_read(p, q, o, &c, err);
    to->is_given = c.is_given;
    to->is_down = c.down;
    if (status == MOEGEN_RT_OK && c.is_given)
        status = rt_codes_find(p, &c, err);
    if (status != MOEGEN_RT_OK || !c.is_given)
        goto out;
    int64_t rows = c.shape[0], columns = c.shape[1];
    double *number = malloc((size_t)(rows * columns) * sizeof *number);
    if (!number) {
        status = rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
        goto out;
    }
    rt_codes_decode(&c, 0, number);
    to->decoded = (moegen_rt_tensor){
        .dtype = MOEGEN_RT_F64, .rank = 2, .shape = {rows, columns}, .data = number};
    to->t = &to->decoded;
out:
    rt_codes_free(&c);
    return status;
}

void rt_operand_free(struct rt_operand *o)
{
    free(o->decoded.data);
}

/* ---- random ones ---- */

/* A block of normal numbers, under the scale of rule `ocp`, or one that no rule would choose: of
 * larger ones elements vanish, under smaller ones they saturate. */
static uint8_t quantise(const struct rt_codes *c, const float *x, int64_t n, uint64_t random,
                        uint8_t *codes)
{
    static const int moved[] = {0, 0, 1, 2, 5, -1, -2, 1};
    double peak = 0, way[BLOCK];
    for (int64_t i = 0; i < n; i++)
        peak = fabs((double)x[i]) > peak ? fabs((double)x[i]) : peak;
    int e = (peak > 0 ? ilogb(peak) : 0) - ilogb(c->most) + moved[random % 8];
    const double inverse = rt_power_of_two(-e);
    for (int64_t i = 0; i < n; i++) {
        double v = (double)x[i] * inverse;
        way[i] = v < -c->most ? -c->most : v > c->most ? c->most : v;
    }
    moegen_rt_encode(c->element, way, (size_t)n, codes);
    return (uint8_t)(e + BIAS);
}

/* Elements [at, at + n) of a contraction in the order of their scales: those of a scale. */
static int64_t block_from(const struct rt_codes *c, int64_t k, int64_t *at)
{
    int64_t n = 0;
    for (int64_t j = k; j < c->K && n < BLOCK; j++)
        if (c->block[j] == c->block[k])
            at[n++] = j;
    return n;
}

static bool is_first(const struct rt_codes *c, int64_t k)
{
    for (int64_t j = k - 1; j >= 0 && j >= k - TILE; j--)
        if (c->block[j] == c->block[k])
            return false;
    return true;
}

/* The codes of an expert, and their scales. */
static void fill_expert(const struct rt_codes *c, int64_t e, uint8_t *codes, uint8_t *scales,
                        uint64_t seed, double scale)
{
    int64_t first = e * c->shape[0] * c->shape[1]; /* number */
    for (int64_t k = 0; k < c->K; k++) {
        int64_t at[BLOCK], n = is_first(c, k) ? block_from(c, k, at) : 0;
        for (int64_t i = 0; n > 0 && i < c->parts * c->F; i++) {
            int64_t part = i / c->F, f = i % c->F;
            float x[BLOCK];
            uint8_t element[BLOCK];
            for (int64_t j = 0; j < n; j++)
                x[j] = rt_normal_at((size_t)(first + number_at(c, part, at[j], f)), seed, scale);
            scales[scale_at(c, part, k, f)] =
                quantise(c, x, n, rt_hash(seed, (uint64_t)(first + i * c->K + k)), element);
            for (int64_t j = 0; j < n; j++)
                codes[code_at(c, part, at[j], f)] = element[j];
        }
    }
}

moegen_rt_status rt_codes_fill(moegen_rt_problem *p, const struct rt_codes *c, uint64_t seed,
                               double scale, moegen_rt_error *err)
{
    moegen_rt_tensor *codes, *scales;
    moegen_rt_status status =
        moegen_rt_problem_add(p, c->name, MOEGEN_RT_U8, c->codes_rank, c->codes_shape, &codes, err);
    if (status == MOEGEN_RT_OK)
        status = moegen_rt_problem_add(p, c->scales_name, MOEGEN_RT_U8, c->scales_rank,
                                       c->scales_shape, &scales, err);
    if (status != MOEGEN_RT_OK)
        return status;
    memset(codes->data, NO_SCALE, codes->bytes); /* NaN, where nobody reads */
    memset(scales->data, NO_SCALE, scales->bytes);
    seed = rt_seed(seed, c->name);
    for (int64_t e = 0; e < (c->E ? c->E : 1); e++)
        fill_expert(c, e, (uint8_t *)codes->data + e * c->each_codes,
                    (uint8_t *)scales->data + e * c->each_scales, seed, scale);
    return MOEGEN_RT_OK;
}

/* ---- tokens of the moe_ families ---- */

static struct rt_operand_shape tokens_of(const char *name, int64_t rows, int64_t H)
{
    return (struct rt_operand_shape){
        .name = name, .rows = rows, .columns = H, .parts = 1, .down = "T", .along = "H"};
}

moegen_rt_status rt_tokens_read(const moegen_rt_problem *p, const char *name, int64_t rows,
                                int64_t H, struct rt_operand *to, moegen_rt_error *err)
{
    struct rt_quantiser q;
    struct rt_operand_shape o = tokens_of(name, rows, H);
    int64_t shape[] = {rows, H};
    moegen_rt_status status = rt_quantiser_read(p, &q, err);
    *to = (struct rt_operand){0};
    if (status == MOEGEN_RT_OK)
        status = rt_operand_decode(p, &q, &o, to, err);
    return status == MOEGEN_RT_OK && !to->t ? rt_input(p, name, true, 2, shape, &to->t, err)
                                            : status;
}

moegen_rt_status rt_tokens_fill(moegen_rt_problem *p, const char *name, int64_t rows, int64_t H,
                                moegen_rt_dtype dtype, uint64_t seed, moegen_rt_error *err)
{
    struct rt_quantiser q;
    struct rt_codes c = {0};
    struct rt_operand_shape o = tokens_of(name, rows, H);
    int64_t shape[] = {rows, H};
    moegen_rt_status status = rt_quantiser_read(p, &q, err);
    if (status == MOEGEN_RT_OK)
        status = rt_codes_read(p, &q, &o, &c, err);
    if (status == MOEGEN_RT_OK)
        status = c.is_given ? rt_codes_fill(p, &c, seed, 1, err)
                            : rt_add_normal(p, name, dtype, 2, shape, seed, 1, err);
    rt_codes_free(&c);
    return status;
}
