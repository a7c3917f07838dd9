/* SPDX-License-Identifier: Apache-2.0 */
/* format.c - the table of formats of stored weights, the codings in it, and decoding and encoding
 * in double: what is right, not what is fast. */
#include <math.h>
#include <string.h>

#include "format.h"

/* ---- codings ---- */

static double dtype_value(moegen_rt_dtype dtype, uint32_t code)
{
    double x;
    moegen_rt_decode(dtype, &code, 1, &x); /* little-endian: the low bytes are the code */
    return x;
}

/* The same of what converts to f32 fast. */
static double wide_value(moegen_rt_dtype dtype, uint32_t code)
{
    float x;
    moegen_rt_convert(dtype, &code, MOEGEN_RT_F32, &x, 1);
    return (double)x;
}

static uint32_t dtype_code(moegen_rt_dtype dtype, double largest, double x)
{
    uint32_t code = 0;
    double clipped = x > largest ? largest : x < -largest ? -largest : x;
    moegen_rt_encode(dtype, &clipped, 1, &code);
    return code;
}

/* Codings that are those of a dtype. */
#define OF_DTYPE(name, NAME, largest, value)                                                       \
    static double name##_value(uint32_t code)                                                      \
    {                                                                                              \
        return value(MOEGEN_RT_##NAME, code);                                                      \
    }                                                                                              \
    static uint32_t name##_code(double x)                                                          \
    {                                                                                              \
        return dtype_code(MOEGEN_RT_##NAME, largest, x);                                           \
    }
#define F32_LARGEST  0x1.fffffep127
#define BF16_LARGEST 0x1.fep127
OF_DTYPE(f32, F32, F32_LARGEST, wide_value)
OF_DTYPE(bf16, BF16, BF16_LARGEST, wide_value)
OF_DTYPE(e4m3, FP8_E4M3, 448, dtype_value)
OF_DTYPE(e5m2, FP8_E5M2, 57344, dtype_value)

static double e2m1_value(uint32_t code)
{
    static const double size[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -size[code & 7] : size[code & 7];
}

static uint32_t e2m1_code(double x)
{
    double size = fabs(x);
    uint32_t sign = signbit(x) ? 8 : 0;
    if (isnan(x))
        return 0;
    if (size >= 4)
        return sign | (size > 5 ? 7 : 6); /* 5 is a tie */
    if (size >= 2)
        return sign | (uint32_t)(nearbyint(size) + 2);
    return sign | (uint32_t)nearbyint(2 * size);
}

/* A power of two; below the least one it is that, and so is zero. */
static double e8m0_value(uint32_t code)
{
    return code == 255 ? (double)NAN : ldexp(1, (int)code - 127);
}

static uint32_t e8m0_code(double x)
{
    if (isnan(x))
        return 255;
    int e = x > 0 ? isinf(x) ? 127 : ilogb(x) : -127;
    return (uint32_t)((e < -127 ? -127 : e > 127 ? 127 : e) + 127);
}

static double rounded(double x, double lowest, double largest)
{
    x = isnan(x) ? 0 : nearbyint(x);
    return x < lowest ? lowest : x > largest ? largest : x;
}

static double i8_value(uint32_t code)
{
    return code < 128 ? code : (double)code - 256;
}

static uint32_t i8_code(double x)
{
    return (uint32_t)(int)rounded(x, -127, 127) & 255;
}

static double i4_value(uint32_t code)
{
    return (double)code - 8;
}

static uint32_t i4_code(double x)
{
    return (uint32_t)(rounded(x, -8, 7) + 8);
}

/* clang-format off */
enum { F32, BF16, E8M0, E4M3, E5M2, E2M1, I8, I4, CODINGS };
static const struct rt_coding codings[CODINGS] = {
    /*        name   bits  dtype of a tensor    lowest         largest       value       code */
    [F32]  = {"f32",  32, MOEGEN_RT_F32,      -F32_LARGEST,  F32_LARGEST,  f32_value,  f32_code},
    [BF16] = {"bf16", 16, MOEGEN_RT_BF16,     -BF16_LARGEST, BF16_LARGEST, bf16_value, bf16_code},
    [E8M0] = {"e8m0",  8, MOEGEN_RT_U8,       0x1p-127,      0x1p127,      e8m0_value, e8m0_code},
    [E4M3] = {"e4m3",  8, MOEGEN_RT_FP8_E4M3, -448,          448,          e4m3_value, e4m3_code},
    [E5M2] = {"e5m2",  8, MOEGEN_RT_FP8_E5M2, -57344,        57344,        e5m2_value, e5m2_code},
    [E2M1] = {"e2m1",  4, MOEGEN_RT_U8,       -6,            6,            e2m1_value, e2m1_code},
    [I8]   = {"i8",    8, MOEGEN_RT_U8,       -127,          127,          i8_value,   i8_code},
    [I4]   = {"i4",    4, MOEGEN_RT_U8,       -8,            7,            i4_value,   i4_code},
};

const struct rt_sharing rt_sharings[RT_SHARES] = {
    /*             name      out  in   says */
    [RT_ROW]    = {"row",      1,   0, "an output channel"},
    [RT_STATIC] = {"static",   0,   0, "a matrix"},
    [RT_BLOCK]  = {"block",  128, 128, "128 x 128 elements"},
    [RT_GROUP]  = {"group",    1,  -1, "a group along the contraction"},
};

/* ---- the formats ---- */

#define FP8   {RT_ROW, RT_STATIC, RT_BLOCK, RT_SHARES}
#define ROW   {RT_ROW, RT_SHARES}
#define GROUP {RT_GROUP, RT_SHARES}
#define AS(coding) &codings[coding]
static const struct rt_format formats[] = {
    /* name           element    scale     codes               shares  groups  second blocked */
    {"fp8_e4m3",     AS(E4M3),  AS(F32),  MOEGEN_RT_FP8_E4M3, FP8,    {0},       false, false},
    {"fp8_e5m2",     AS(E5M2),  AS(F32),  MOEGEN_RT_FP8_E5M2, FP8,    {0},       false, false},
    {"mxfp8_e4m3",   AS(E4M3),  AS(E8M0), MOEGEN_RT_U8,       GROUP,  {32},      false, true},
    {"mxfp8_e5m2",   AS(E5M2),  AS(E8M0), MOEGEN_RT_U8,       GROUP,  {32},      false, true},
    {"mxfp4",        AS(E2M1),  AS(E8M0), MOEGEN_RT_U8,       GROUP,  {32},      false, true},
    {"nvfp4",        AS(E2M1),  AS(E4M3), MOEGEN_RT_U8,       GROUP,  {16},      true,  false},
    {"int8",         AS(I8),    AS(F32),  MOEGEN_RT_U8,       ROW,    {0},       false, false},
    {"int4",         AS(I4),    AS(BF16), MOEGEN_RT_U8,       GROUP,  {32, 128}, false, false},
};
/* clang-format on */
enum { FORMATS = sizeof formats / sizeof *formats };

const struct rt_format *rt_format_at(int i)
{
    return i >= 0 && i < FORMATS ? &formats[i] : NULL;
}

const struct rt_format *rt_format_find(const char *name)
{
    for (int i = 0; i < FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

const struct rt_coding *rt_coding_find(const char *name)
{
    for (int i = 0; i < CODINGS; i++)
        if (strcmp(codings[i].name, name) == 0)
            return &codings[i];
    return NULL;
}

enum rt_share rt_format_share(const struct rt_format *f, const char *name)
{
    const enum rt_share *share = f->shares;
    while (*share != RT_SHARES && name && strcmp(rt_sharings[*share].name, name) != 0)
        share++;
    return *share;
}

bool rt_format_has_rule(const struct rt_format *f)
{
    return f->scale == &codings[E8M0];
}

bool rt_format_grouped(const struct rt_format *f)
{
    return f->groups[0] != 0;
}

int64_t rt_format_bytes(const struct rt_format *f, int64_t n)
{
    return (n * f->element->bits + 7) / 8;
}

struct rt_cut rt_format_cut(const struct rt_format *f, enum rt_share share, int64_t group,
                            int64_t out, int64_t in)
{
    const struct rt_sharing *s = &rt_sharings[share];
    struct rt_cut cut = {s->out, s->in, 0, 0};
    if (cut.tile_in < 0)
        cut.tile_in = group ? group : f->groups[0];
    if (cut.tile_out == 0)
        cut.tile_out = out ? out : 1;
    if (cut.tile_in == 0)
        cut.tile_in = in ? in : 1;
    cut.rows = (out + cut.tile_out - 1) / cut.tile_out;
    cut.columns = (in + cut.tile_in - 1) / cut.tile_in;
    return cut;
}

double rt_format_bits(const struct rt_format *f, enum rt_share share, int64_t group, int64_t out,
                      int64_t in)
{
    struct rt_cut cut = rt_format_cut(f, share, group, out, in);
    double scales = (double)cut.rows * (double)cut.columns * f->scale->bits + 32 * f->second;
    return f->element->bits + scales / ((double)out * (double)in);
}

/* ---- decoding ---- */

static uint32_t code_at(const struct rt_coding *c, const void *codes, int64_t i)
{
    uint32_t code = 0;
    if (c->bits == 4)
        return ((const uint8_t *)codes)[i / 2] >> 4 * (i & 1) & 15;
    memcpy(&code, (const char *)codes + i * (c->bits / 8), (size_t)c->bits / 8);
    return code;
}

void rt_format_elements(const struct rt_format *f, const void *codes, int64_t first, int64_t n,
                        double *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = f->element->value(code_at(f->element, codes, first + i));
}

double rt_format_scale(const struct rt_format *f, const void *scales, int64_t i)
{
    return f->scale->value(code_at(f->scale, scales, i));
}

void rt_format_values(const struct rt_format *f, const struct rt_cut *cut, const void *codes,
                      const void *scales, double second, int64_t in, int64_t o, int64_t i,
                      int64_t n, double *to)
{
    const char *row = (const char *)codes + o * rt_format_bytes(f, in);
    int64_t first = o / cut->tile_out * cut->columns, tile = -1;
    double scale = 0;
    rt_format_elements(f, row, i, n, to);
    for (int64_t k = 0; k < n; k++) {
        if ((i + k) / cut->tile_in != tile) {
            tile = (i + k) / cut->tile_in;
            scale = rt_format_scale(f, scales, first + tile) * second;
        }
        to[k] *= scale;
    }
}

/* ---- encoding ---- */

double rt_format_amax(const double *x, int64_t n, int64_t stride)
{
    double amax = 0;
    for (int64_t i = 0; i < n; i++) {
        double size = fabs(x[i * stride]);
        if (!isfinite(size))
            return (double)NAN;
        amax = size > amax ? size : amax;
    }
    return amax;
}

/* amax / what, in that coding; not 0 unless amax is so small beside the second scale that all it
 * scales vanishes. */
static uint32_t quotient(const struct rt_coding *c, double amax, double by)
{
    uint32_t code = c->code(amax / by);
    return c->value(code) == 0 ? 1 : code; /* 1: the least positive number of every float */
}

float rt_format_second(const struct rt_format *f, double amax)
{
    const struct rt_coding *f32 = rt_coding_find("f32");
    if (!f->second || amax == 0)
        return 1;
    return (float)f32->value(quotient(f32, amax, f->element->largest * f->scale->largest));
}

uint32_t rt_format_scale_code(const struct rt_format *f, enum rt_rule rule, double amax,
                              double second)
{
    const struct rt_coding *c = f->scale;
    if (!isfinite(amax))
        return c->code((double)NAN);
    if (rt_format_has_rule(f))
        return c->code(ldexp(amax, -ilogb(f->element->largest) + (rule == RT_WIDE)));
    if (f->second)
        return c->code(amax / (f->element->largest * second));
    return amax == 0 ? c->code(1) : quotient(c, amax, f->element->largest);
}

void rt_format_put_scale(const struct rt_format *f, void *scales, int64_t i, uint32_t code)
{
    size_t bytes = (size_t)f->scale->bits / 8;
    memcpy((char *)scales + (size_t)i * bytes, &code, bytes);
}

static void put_code(const struct rt_coding *c, void *codes, int64_t i, uint32_t code)
{
    uint8_t *byte = (uint8_t *)codes + i * c->bits / 8;
    int shift = c->bits == 4 ? 4 * (int)(i & 1) : 0;
    uint32_t mask = (1u << c->bits) - 1;
    *byte = (uint8_t)((*byte & ~(mask << shift)) | code << shift);
}

void rt_format_encode(const struct rt_format *f, const double *x, int64_t n, double scale,
                      double second, void *codes, int64_t first)
{
    double by = scale * second;
    for (int64_t i = 0; i < n; i++) {
        double q = by > 0 ? x[i] / by : isfinite(x[i]) ? 0 * x[i] : 0;
        put_code(f->element, codes, first + i, f->element->code(q));
    }
}
