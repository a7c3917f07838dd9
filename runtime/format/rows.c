/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.c - many values of f32 to codes of a format, by loops that compilers turn into
 * vectors: LANES elements each, no branches. See rt_wide.h; the way back is values.c.
 */
#include <math.h>
#include <string.h>

#include "format.h"
#include "format/codes.h"

enum { MANY = 64 };

/* ---- magnitudes ---- */

/* Compared as integers of the values' own width, without sign: their order is that of the numbers.
 */
#define MAGNITUDES(dtype, type, integer, size_of, shift)                                           \
    WIDE static uint32_t most_of_##dtype(const type *x, int64_t n)                                 \
    {                                                                                              \
        enum { WIDTH = 64 / sizeof(type) };                                                        \
        integer most[WIDTH] = {0}, all = 0;                                                        \
        int64_t i = 0;                                                                             \
        for (; i + WIDTH <= n; i += WIDTH)                                                         \
            for (int j = 0; j < WIDTH; j++) {                                                      \
                integer size = size_of(x[i + j]);                                                  \
                most[j] = size > most[j] ? size : most[j];                                         \
            }                                                                                      \
        for (int j = 0; i < n; i++, j++)                                                           \
            most[j] = size_of(x[i]) > most[j] ? size_of(x[i]) : most[j];                           \
        for (int j = 0; j < WIDTH; j++)                                                            \
            all = most[j] > all ? most[j] : all;                                                   \
        return (uint32_t)all << (shift);                                                           \
    }                                                                                              \
    static inline void raise_one_##dtype(type x, uint32_t *most)                                   \
    {                                                                                              \
        int32_t size = (int32_t)((uint32_t)size_of(x) << (shift)), old = (int32_t)*most;           \
        *most = (uint32_t)(size > old ? size : old);                                               \
    }                                                                                              \
    WIDE static void raise_all_##dtype(const type *restrict x, int64_t n, uint32_t *restrict most) \
    {                                                                                              \
        int64_t i = 0;                                                                             \
        for (; i + LANES <= n; i += LANES)                                                         \
            EACH raise_one_##dtype(x[i + j], &most[i + j]);                                        \
        for (; i < n; i++)                                                                         \
            raise_one_##dtype(x[i], &most[i]);                                                     \
    }
#define F32_SIZE(x)  ((int32_t)(bits_of(x) & INT32_MAX))
#define BF16_SIZE(x) ((int16_t)((x)&INT16_MAX))
MAGNITUDES(f32, float, int32_t, F32_SIZE, 0)
MAGNITUDES(bf16, uint16_t, int16_t, BF16_SIZE, 16)

uint32_t rt_rows_most(moegen_rt_dtype dtype, const void *x, int64_t n)
{
    return dtype == MOEGEN_RT_F32 ? most_of_f32(x, n) : most_of_bf16(x, n);
}

void rt_rows_raise(moegen_rt_dtype dtype, const void *x, int64_t n, uint32_t *most)
{
    if (dtype == MOEGEN_RT_F32)
        raise_all_f32(x, n, most);
    else
        raise_all_bf16(x, n, most);
}

double rt_rows_amax(uint32_t most)
{
    return most >= 0x7f800000 ? (double)NAN : (double)float_of(most);
}

/* ---- scales ---- */

/* Powers of two from the exponent's field, as a scale's code has the bias of f32. Subnormal numbers
 * have less than any scale. */
static uint32_t power_code(int shift, uint32_t most, double *inverse)
{
    int field = (int)(most >> 23);
    int code = field == 255 ? 255 : field > shift ? field - shift : 0;
    *inverse = code == 255 ? 0 : (double)float_of((uint32_t)(254 - code) << 23);
    return (uint32_t)code;
}

uint32_t rt_rows_scale_code(const struct rt_rows *r, enum rt_rule rule, uint32_t most,
                            double second, double *inverse)
{
    if (r->exact)
        return power_code(r->shift[rule], most, inverse);
    uint32_t code = rt_format_scale_code(r->format, rule, rt_rows_amax(most), second);
    const struct rt_coding *c = r->format->scale;
    *inverse = rt_rows_inverse(c->bits == 8 ? r->scale[code] : c->value(code), second);
    return code;
}

/* ---- quotients ---- */

double rt_rows_inverse(double scale, double second)
{
    double by = scale * second;
    return by > 0 ? 1 / by : 0;
}

/* Of what no scale serves: zeros of its sign. */
static void vanish(const float *x, int64_t n, float *q)
{
    for (int64_t i = 0; i < n; i++)
        q[i] = number(x[i] * 0.0f);
}

WIDE static void scale_exact(const float *restrict x, int64_t n, float power, float *restrict q)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        EACH q[i + j] = x[i + j] * power;
    for (; i < n; i++)
        q[i] = x[i] * power;
}

WIDE static void scale_odd(const float *restrict x, int64_t n, double inverse, float *restrict q)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        EACH q[i + j] = odd((double)x[i + j] * inverse, true);
    for (; i < n; i++)
        q[i] = odd((double)x[i] * inverse, true);
}

void rt_rows_scale(const struct rt_rows *r, const float *x, int64_t n, double inverse, float *q)
{
    if (inverse == 0)
        vanish(x, n, q);
    else if (r->exact)
        scale_exact(x, n, (float)inverse, q);
    else
        scale_odd(x, n, inverse, q);
}

WIDE static void scale_each(const float *restrict x, int64_t n, const double *restrict inverse,
                            float *restrict q)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        EACH q[i + j] = number(odd((double)x[i + j] * inverse[i + j], true));
    for (; i < n; i++)
        q[i] = number(odd((double)x[i] * inverse[i], true));
}

void rt_rows_scale_each(const float *x, int64_t n, const double *inverse, float *q)
{
    scale_each(x, n, inverse, q);
}

/* ---- codes ---- */

/* To bytes: a vector of them takes several of f32, so MANY at a time; as words first, or compilers
 * make bytes of every step. */
#define BYTES(name, expression)                                                                    \
    WIDE static void name(const float *restrict q, int64_t n, uint8_t *restrict to)                \
    {                                                                                              \
        int64_t i = 0;                                                                             \
        for (; i + MANY <= n; i += MANY) {                                                         \
            uint32_t word[MANY];                                                                   \
            for (int j = 0; j < MANY; j++)                                                         \
                word[j] = expression(i + j);                                                       \
            for (int j = 0; j < MANY; j++)                                                         \
                to[i + j] = (uint8_t)word[j];                                                      \
        }                                                                                          \
        for (; i < n; i++)                                                                         \
            to[i] = (uint8_t)expression(i);                                                        \
    }
#define E4M3(i) small_float(q[i], 8, 3, 7, 448, false)
#define E5M2(i) small_float(q[i], 8, 2, 15, 57344, false)
#define E2M1(i) small_float(q[i], 4, 1, 1, 6, false)
#define I8(i)   small_integer(q[i], -127, 127, 0, false)
#define I4(i)   small_integer(q[i], -8, 7, 8, false)
BYTES(e4m3_codes, E4M3)
BYTES(e5m2_codes, E5M2)
BYTES(e2m1_codes, E2M1)
BYTES(i8_codes, I8)
BYTES(i4_codes, I4)

static void e4m3_scales(const float *q, int64_t n, void *to)
{
    e4m3_codes(q, n, to);
}

static void bf16_scales(const float *q, int64_t n, void *to)
{
    moegen_rt_convert(MOEGEN_RT_F32, q, MOEGEN_RT_BF16, to, (size_t)n);
}

/* A coding without a row here is encoded one by one. */
static const struct {
    const char *name;
    void (*codes)(const float *q, int64_t n, uint8_t *to);
    void (*scales)(const float *q, int64_t n, void *to);
} fast[] = {{"e4m3", e4m3_codes, e4m3_scales},
            {"e5m2", e5m2_codes, NULL},
            {"e2m1", e2m1_codes, NULL},
            {"i8", i8_codes, NULL},
            {"i4", i4_codes, NULL},
            {"bf16", NULL, bf16_scales}};

void rt_rows_open(struct rt_rows *r, const struct rt_format *f)
{
    const struct rt_coding *c = f->element;
    const int top = ilogb(c->largest);
    /* of elements below 2, scales of rule `wide` may leave f32's range: one by one */
    *r = (struct rt_rows){.format = f, .exact = rt_format_has_rule(f) && top > 0};
    r->shift[RT_OCP] = top;
    r->shift[RT_WIDE] = top - 1;
    for (size_t i = 0; i < sizeof fast / sizeof *fast; i++)
        if (strcmp(fast[i].name, c->name) == 0)
            r->codes = fast[i].codes;
    for (size_t i = 0; i < sizeof fast / sizeof *fast; i++)
        if (strcmp(fast[i].name, f->scale->name) == 0)
            r->scales = fast[i].scales;
    for (unsigned byte = 0; byte < 256 && f->scale->bits == 8; byte++)
        r->scale[byte] = f->scale->value(byte);
    rt_rows_open_values(r);
    rt_rows_open_direct(r);
}

/* Two codes of 4 bits to a byte. */
static inline uint8_t pair(const uint8_t *byte)
{
    uint16_t both;
    memcpy(&both, byte, sizeof both);
    return (uint8_t)(both | both >> 4);
}

WIDE static void pairs(const uint8_t *restrict byte, int64_t n, uint8_t *restrict to)
{
    int64_t i = 0;
    for (; i + MANY <= n; i += MANY)
        for (int j = 0; j < MANY; j++)
            to[i + j] = pair(&byte[2 * (i + j)]);
    for (; i < n; i++)
        to[i] = pair(&byte[2 * i]);
}

void rt_rows_bytes(const struct rt_rows *r, const float *q, int64_t n, uint8_t *byte)
{
    if (r->codes)
        r->codes(q, n, byte);
    else
        for (int64_t i = 0; i < n; i++)
            byte[i] = (uint8_t)r->format->element->code((double)q[i]);
}

void rt_rows_pairs(const uint8_t *byte, int64_t n, void *codes)
{
    pairs(byte, n / 2, codes);
}
