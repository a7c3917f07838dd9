/* SPDX-License-Identifier: Apache-2.0 */
/* prequantised.c - operands of quantised products that come as codes with scales (SEMANTICS 3):
 * what they decode to, and random ones. Places are made tile by tile, as the text has it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mlp.h"

enum { BLOCK = 32, RUN = 8, LANES = 4, TILE = 512, NO_SCALE = 255, BIAS = 127 };
#define SUFFIX "_scales"

/* An operand [rows, columns]. Scales are along its columns, or down the rows of each part. */
struct codes {
    const char *name;
    char scales[64], path[64];
    int64_t rows, columns, parts;
    bool down, swizzled;
    int64_t K, F;                /* of a contraction in a part; contractions */
    int64_t code_rows;           /* swizzled */
    int64_t scale_rows;          /* of a part */
    int64_t *row, *lane, *block; /* [K] of a code, swizzled; of its scale */
};

void rt_mlp_operands(const struct rt_mlp *m, int64_t S, bool backward,
                     struct rt_operand_shape of[RT_OPERANDS])
{
    of[RT_X] = (struct rt_operand_shape){"hidden_states", S, m->H, 1, "S", "H", NULL, NULL};
    of[RT_WGU] = (struct rt_operand_shape){
        "gate_up_weights",       m->parts * m->I,          m->H, m->parts, "I", "H",
        "gate_up_weights_scale", "gate_up_weights_scale_2"};
    of[RT_WD] = (struct rt_operand_shape){
        "down_proj_weight", m->H, m->I, 1, "H", backward ? "H" : "I", "down_proj_scale",
        "down_proj_scale_2"};
    of[RT_DY] =
        (struct rt_operand_shape){"output_hidden_states_grad", S, m->H, 1, "S", "H", NULL, NULL};
}

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

static void place(struct codes *c, const struct rt_quantiser *q, const char *shape)
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

static void codes_free(struct codes *c)
{
    free(c->row);
    free(c->lane);
    free(c->block);
}

/* *is_given is false if the operand is one of numbers. To be freed, also after a failure. */
static moegen_rt_status codes_read(const moegen_rt_problem *p, const struct rt_quantiser *q,
                                   const struct rt_operand_shape *o, struct codes *c,
                                   bool *is_given, moegen_rt_error *err)
{
    const char *form, *shape, *along;
    *c = (struct codes){.name = o->name, .rows = o->rows, .columns = o->columns};
    *is_given = choice(p, o->name, "form", "plain", &form);
    *is_given |= choice(p, o->name, "scales", "dense", &shape);
    *is_given |= choice(p, o->name, "along", o->along, &along);
    if (!*is_given)
        return MOEGEN_RT_OK;
    if (!q->on)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "prequantised.%s: quantize names no format",
                       o->name);
    snprintf(c->scales, sizeof c->scales, "%s" SUFFIX, o->name);
    c->swizzled = strcmp(form, "swizzled") == 0;
    c->down = along[0] == o->down[0];
    c->parts = c->down ? o->parts : 1;
    if (c->rows < 0) { /* tokens: the last extent of scales */
        const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, c->scales);
        if (!t)
            return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "tensor '%s' is missing", c->scales);
        c->rows = t->rank > 1 ? t->shape[1] : 1;
    }
    c->K = c->down ? c->rows / c->parts : c->columns;
    c->F = c->down ? c->columns : c->rows;
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
    place(c, q, shape);
    return MOEGEN_RT_OK;
}

/* Where element k of contraction f of a part has its code, and its scale. */
static int64_t code_at(const struct codes *c, int64_t part, int64_t k, int64_t f)
{
    if (c->swizzled)
        return ((part * c->code_rows + c->row[k]) * c->F + f) * LANES + c->lane[k];
    return c->down ? (part * c->K + k) * c->columns + f : f * c->columns + k;
}

static int64_t scale_at(const struct codes *c, int64_t part, int64_t k, int64_t f)
{
    return (part * c->scale_rows + c->block[k]) * c->F + f;
}

/* Where it is in the operand. */
static int64_t number_at(const struct codes *c, int64_t part, int64_t k, int64_t f)
{
    return c->down ? (part * c->K + k) * c->columns + f : f * c->columns + k;
}

static void shapes(const struct codes *c, int64_t code[2], int64_t scale[2])
{
    code[0] = c->swizzled ? c->parts * c->code_rows : c->rows;
    code[1] = c->swizzled ? LANES * c->F : c->columns;
    scale[0] = c->parts * c->scale_rows;
    scale[1] = c->F;
}

/* ---- decoding ---- */

static moegen_rt_status bytes_of(const moegen_rt_problem *p, const char *name, const int64_t *shape,
                                 const uint8_t **to, moegen_rt_error *err)
{
    const moegen_rt_tensor *t;
    moegen_rt_status status = rt_input(p, name, true, 2, shape, &t, err);
    if (status != MOEGEN_RT_OK)
        return status;
    *to = t->data;
    if (moegen_rt_dtype_of(t->dtype)->bytes != 1)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "tensor '%s' is of %s, which is not of 8 bits",
                       name, moegen_rt_dtype_of(t->dtype)->name);
    return MOEGEN_RT_OK;
}

static moegen_rt_status decode(const moegen_rt_problem *p, const struct rt_quantiser *q,
                               const struct codes *c, struct rt_operand *to, moegen_rt_error *err)
{
    const uint8_t *codes, *scales;
    int64_t code[2], scale[2];
    shapes(c, code, scale);
    moegen_rt_status status = bytes_of(p, c->name, code, &codes, err);
    if (status == MOEGEN_RT_OK)
        status = bytes_of(p, c->scales, scale, &scales, err);
    if (status != MOEGEN_RT_OK)
        return status;
    double *number = malloc((size_t)(c->rows * c->columns) * sizeof *number);
    if (!number)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (int64_t part = 0; part < c->parts; part++)
        for (int64_t f = 0; f < c->F; f++)
            for (int64_t k = 0; k < c->K; k++) {
                double x;
                uint8_t by = scales[scale_at(c, part, k, f)];
                moegen_rt_decode(q->element, codes + code_at(c, part, k, f), 1, &x);
                number[number_at(c, part, k, f)] =
                    by == NO_SCALE ? (double)NAN : ldexp(x, by - BIAS);
            }
    to->decoded = (moegen_rt_tensor){.name = to->decoded.name,
                                     .dtype = MOEGEN_RT_F64,
                                     .rank = 2,
                                     .shape = {c->rows, c->columns},
                                     .data = number};
    to->t = &to->decoded;
    return MOEGEN_RT_OK;
}

static moegen_rt_status operand_read(const moegen_rt_problem *p, const struct rt_quantiser *q,
                                     const struct rt_operand_shape *shape, struct rt_operand *to,
                                     moegen_rt_error *err)
{
    struct codes c;
    int64_t extents[] = {shape->rows, shape->columns};
    *to = (struct rt_operand){0};
    moegen_rt_status status = codes_read(p, q, shape, &c, &to->is_given, err);
    if (status == MOEGEN_RT_OK && to->is_given)
        status = decode(p, q, &c, to, err);
    else if (status == MOEGEN_RT_OK)
        status = rt_operand_unpack(p, shape, to, err);
    if (status == MOEGEN_RT_OK && !to->t)
        status = rt_input(p, shape->name, true, 2, extents, &to->t, err);
    to->is_down = c.down;
    codes_free(&c);
    return status;
}

moegen_rt_status rt_mlp_operands_read(const moegen_rt_problem *p, const struct rt_quantiser *q,
                                      const struct rt_mlp *m, bool backward,
                                      struct rt_operand to[RT_OPERANDS], int64_t *S,
                                      moegen_rt_error *err)
{
    struct rt_operand_shape of[RT_OPERANDS];
    moegen_rt_status status = MOEGEN_RT_OK;
    *S = -1;
    for (int i = 0; i < (backward ? RT_OPERANDS : RT_DY) && status == MOEGEN_RT_OK; i++) {
        rt_mlp_operands(m, *S, backward, of);
        status = operand_read(p, q, &of[i], &to[i], err);
        if (i == RT_X && status == MOEGEN_RT_OK)
            *S = to[i].t->rank ? to[i].t->shape[0] : 1;
    }
    return status;
}

moegen_rt_status rt_operand_quantise(const struct rt_quantiser *q, const struct rt_operand *o,
                                     int64_t rows, int64_t columns, int64_t down,
                                     moegen_rt_tensor *to, moegen_rt_error *err)
{
    struct rt_quantiser how = *q;
    how.on = !(o->is_given && o->is_down == (down > 0)); /* along its scales it stays as it is */
    return rt_quantise_matrix(&how, o->t, rows, columns, down, to, err);
}

moegen_rt_status rt_mlp_quantise(const struct rt_quantiser *q, const struct rt_mlp *m,
                                 bool backward, const struct rt_operand *operand,
                                 moegen_rt_tensor to[3], moegen_rt_error *err)
{
    const struct rt_operand *gate_up = &operand[RT_WGU], *down = &operand[RT_WD];
    int64_t columns = m->parts * m->I;
    moegen_rt_status status = rt_operand_quantise(q, gate_up, columns, m->H, 0, to, err);
    if (backward && status == MOEGEN_RT_OK)
        status = rt_operand_quantise(q, gate_up, columns, m->H, m->I, to + 1, err);
    if (status == MOEGEN_RT_OK)
        status = rt_operand_quantise(q, down, m->H, m->I, backward ? m->H : 0, to + 2, err);
    return status;
}

/* ---- random ones ---- */

/* A block of normal numbers, under the scale of rule `ocp`, or one that no rule would choose: of
 * larger ones elements vanish, under smaller ones they saturate. */
static uint8_t quantise(const struct rt_quantiser *q, const float *x, int64_t n, uint64_t random,
                        uint8_t *codes)
{
    static const int moved[] = {0, 0, 1, 2, 5, -1, -2, 1};
    double peak = 0, way[BLOCK];
    for (int64_t i = 0; i < n; i++)
        peak = fmax(peak, fabs((double)x[i]));
    int e = (peak > 0 ? ilogb(peak) : 0) - ilogb(q->most) + moved[random % 8];
    for (int64_t i = 0; i < n; i++)
        way[i] = fmin(fmax(ldexp((double)x[i], -e), -q->most), q->most);
    moegen_rt_encode(q->element, way, (size_t)n, codes);
    return (uint8_t)(e + BIAS);
}

/* Elements [at, at + n) of a contraction in the order of their scales: those of a scale. */
static int64_t block_from(const struct codes *c, int64_t k, int64_t *at)
{
    int64_t n = 0;
    for (int64_t j = k; j < c->K && n < BLOCK; j++)
        if (c->block[j] == c->block[k])
            at[n++] = j;
    return n;
}

static bool is_first(const struct codes *c, int64_t k)
{
    for (int64_t j = k - 1; j >= 0 && j >= k - TILE; j--)
        if (c->block[j] == c->block[k])
            return false;
    return true;
}

moegen_rt_status rt_operand_fill(moegen_rt_problem *p, const struct rt_quantiser *q,
                                 const struct rt_operand_shape *shape, moegen_rt_dtype dtype,
                                 uint64_t seed, double scale, moegen_rt_error *err)
{
    struct codes c;
    bool is_given, is_done = false;
    moegen_rt_tensor *codes, *scales;
    int64_t extents[] = {shape->rows, shape->columns}, code[2], by[2];
    moegen_rt_status status = codes_read(p, q, shape, &c, &is_given, err);
    if (status == MOEGEN_RT_OK && !is_given)
        status = rt_operand_pack(p, shape, dtype, seed, scale, &is_done, err);
    if (status == MOEGEN_RT_OK && !is_given && !is_done)
        status = rt_add_normal(p, shape->name, dtype, 2, extents, seed, scale, err);
    if (status != MOEGEN_RT_OK || !is_given)
        goto out;
    shapes(&c, code, by);
    if ((status = moegen_rt_problem_add(p, c.name, MOEGEN_RT_U8, 2, code, &codes, err)) ||
        (status = moegen_rt_problem_add(p, c.scales, MOEGEN_RT_U8, 2, by, &scales, err)))
        goto out;
    memset(codes->data, NO_SCALE, codes->bytes); /* NaN, where nobody reads */
    memset(scales->data, NO_SCALE, scales->bytes);
    seed = rt_seed(seed, c.name);
    for (int64_t k = 0; k < c.K; k++) {
        int64_t at[BLOCK], n = is_first(&c, k) ? block_from(&c, k, at) : 0;
        for (int64_t i = 0; n > 0 && i < c.parts * c.F; i++) {
            int64_t part = i / c.F, f = i % c.F;
            float x[BLOCK];
            uint8_t element[BLOCK];
            for (int64_t j = 0; j < n; j++)
                rt_normal_from((size_t)number_at(&c, part, at[j], f), MOEGEN_RT_F32, &x[j], 1, seed,
                               scale);
            ((uint8_t *)scales->data)[scale_at(&c, part, k, f)] =
                quantise(q, x, n, rt_hash(seed, (uint64_t)(i * c.K + k)), element);
            for (int64_t j = 0; j < n; j++)
                ((uint8_t *)codes->data)[code_at(&c, part, at[j], f)] = element[j];
        }
    }
out:
    codes_free(&c);
    return status;
}

void rt_operand_free(struct rt_operand *o)
{
    free(o->decoded.data);
}
