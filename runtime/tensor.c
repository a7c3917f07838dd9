/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor.c - element types and their conversions.
 *
 * A new dtype: one row in `dtypes` (for a float also its format, which decode and encode follow by
 * themselves) and one name in enum moegen_rt_dtype.
 */
#include <math.h>
#include <string.h>

#include "runtime_private.h"

_Static_assert(sizeof(float) == 4 && sizeof(double) == 8, "IEEE 754 floats");

enum kind { NATIVE, SMALL, INTEGER }; /* f32 and f64; floats given by a format; integers */

/* A float of up to 16 bits: sign, exponent field, `mantissa` bits. */
struct format {
    int mantissa, bias;
    uint32_t top;      /* largest finite code without sign */
    uint32_t overflow; /* code of what is larger: infinity or `top` */
    uint32_t nan;      /* code of NaN; every code above `overflow` is one */
};

/* clang-format off */
static const struct format
    bf16     = { 7, 127, 0x7f7f, 0x7f80, 0x7fc0},
    f16      = {10,  15, 0x7bff, 0x7c00, 0x7e00},
    fp8_e4m3 = { 3,   7,   0x7e,   0x7e,   0x7f},
    fp8_e5m2 = { 2,  15,   0x7b,   0x7c,   0x7e};

static const struct row {
    moegen_rt_dtype_facts facts;
    enum kind kind;
    const struct format *format;
    double low, high; /* of integers */
} dtypes[MOEGEN_RT_DTYPES] = {
    /*                      name       safetensors bytes digits l2_limit    kind     format     low high */
    [MOEGEN_RT_F32]      = {{"f32",      "F32",     4, 24, 2e-6},   NATIVE,  NULL,      0, 0},
    [MOEGEN_RT_BF16]     = {{"bf16",     "BF16",    2,  8, 4e-3},   SMALL,   &bf16,     0, 0},
    [MOEGEN_RT_F16]      = {{"f16",      "F16",     2, 11, 6e-4},   SMALL,   &f16,      0, 0},
    [MOEGEN_RT_FP8_E4M3] = {{"fp8_e4m3", "F8_E4M3", 1,  4, 6.25e-2}, SMALL,  &fp8_e4m3, 0, 0},
    [MOEGEN_RT_FP8_E5M2] = {{"fp8_e5m2", "F8_E5M2", 1,  3, 1.25e-1}, SMALL,  &fp8_e5m2, 0, 0},
    [MOEGEN_RT_U8]       = {{"u8",       "U8",      1,  0, 0},      INTEGER, NULL,      0, UINT8_MAX},
    [MOEGEN_RT_I32]      = {{"i32",      "I32",     4,  0, 0},      INTEGER, NULL,      INT32_MIN, INT32_MAX},
    [MOEGEN_RT_I64]      = {{"i64",      "I64",     8,  0, 0},      INTEGER, NULL,      -0x1p63, 0x1p63},
    [MOEGEN_RT_F64]      = {{"f64",      "F64",     8, 53, 1e-13},  NATIVE,  NULL,      0, 0},
    [MOEGEN_RT_U16]      = {{"u16",      "U16",     2,  0, 0},      INTEGER, NULL,      0, UINT16_MAX},
    [MOEGEN_RT_U32]      = {{"u32",      "U32",     4,  0, 0},      INTEGER, NULL,      0, UINT32_MAX},
};
/* clang-format on */

const moegen_rt_dtype_facts *moegen_rt_dtype_of(moegen_rt_dtype dtype)
{
    return (unsigned)dtype < MOEGEN_RT_DTYPES ? &dtypes[dtype].facts : NULL;
}

int moegen_rt_dtype_find(const char *name, moegen_rt_dtype *dtype)
{
    for (int i = 0; i < MOEGEN_RT_DTYPES; i++) {
        if (strcmp(dtypes[i].facts.name, name) == 0) {
            *dtype = (moegen_rt_dtype)i;
            return 1;
        }
    }
    return 0;
}

int rt_dtype_of_safetensors(const char *name, size_t len)
{
    for (int i = 0; i < MOEGEN_RT_DTYPES; i++) {
        const char *own = dtypes[i].facts.safetensors;
        if (strlen(own) == len && memcmp(own, name, len) == 0)
            return i;
    }
    return -1;
}

/* ---- one element ---- */

static inline double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Exponent and mantissa fields moved to where a double has them read as value * 2^(bias - 1023),
 * subnormals included. */
static inline double decode_small(const struct format *f, int bits, uint32_t code)
{
    uint32_t size = code & ((1u << (bits - 1)) - 1);
    double x;
    if (size <= f->top)
        x = double_of((uint64_t)size << (52 - f->mantissa)) *
            double_of((uint64_t)(2046 - f->bias) << 52);
    else
        x = size == f->overflow ? (double)INFINITY : (double)NAN;
    return code >> (bits - 1) ? -x : x;
}

/* Scales the mantissa to an integer, rounds it (adding 2^52 does: nearest, ties to even) and adds
 * the exponent field; a carry out of the mantissa moves to the next exponent by itself. */
static inline uint32_t encode_small(const struct format *f, int bits, double x)
{
    uint64_t raw = bits_of(x);
    uint32_t sign = (uint32_t)(raw >> 63) << (bits - 1);
    raw &= INT64_MAX;
    if (raw > (uint64_t)2047 << 52)
        return sign | f->nan;
    int least = 1 - f->bias, e = (int)(raw >> 52) - 1023;
    if (e > (int)(f->top >> f->mantissa) - f->bias) /* beyond the largest exponent? */
        return sign | f->overflow;
    if (e < least)
        e = least;
    double scaled = double_of(raw) * double_of((uint64_t)(1023 + f->mantissa - e) << 52);
    uint32_t code = (uint32_t)((scaled + 0x1p52) - 0x1p52);
    code += (uint32_t)(e - least) << f->mantissa;
    return sign | (code > f->top ? f->overflow : code);
}

static inline float bf16_to_float(uint16_t code)
{
    return float_of((uint32_t)code << 16);
}

static inline uint16_t bf16_of_float(float x)
{
    uint32_t raw = bits_of_float(x);
    if ((raw & INT32_MAX) > 0x7f800000)
        return (uint16_t)(raw >> 16 | 0x40);
    return (uint16_t)((raw + 0x7fff + (raw >> 16 & 1)) >> 16);
}

static inline float f16_to_float(uint16_t code)
{
    uint32_t sign = (uint32_t)(code & 0x8000) << 16, size = code & 0x7fffu;
    float x = float_of(size << 13) * 0x1p112f;
    uint32_t special = size > 0x7bff ? 0x7f800000u : 0;
    return float_of(bits_of_float(x) | sign | special);
}

static inline uint16_t f16_of_float(float x)
{
    uint32_t raw = bits_of_float(x), sign = raw >> 16 & 0x8000;
    raw &= INT32_MAX;
    if (raw >= 0x477ff000) /* rounds to 65536 or more, infinity, NaN */
        return (uint16_t)(sign | (raw > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (raw < 0x38800000) { /* subnormal in f16: units of 2^-24 */
        float units = (float_of(raw) * 0x1p24f + 0x1p23f) - 0x1p23f;
        return (uint16_t)(sign | (uint32_t)units);
    }
    return (uint16_t)(sign | (raw - 0x38000000 + 0xfff + (raw >> 13 & 1)) >> 13);
}

/* ---- n elements ---- */

#define LOOP(expression)                                                                           \
    do {                                                                                           \
        for (size_t i = 0; i < n; i++)                                                             \
            to[i] = expression;                                                                    \
    } while (0)

static void decode_formatted(const struct row *t, const void *src, size_t n, double *restrict to)
{
    const uint8_t *byte = src;
    const uint16_t *half = src;
    if (t->format == &bf16)
        LOOP(bf16_to_float(half[i]));
    else if (t->format == &f16)
        LOOP(f16_to_float(half[i]));
    else
        LOOP(decode_small(t->format, 8, byte[i]));
}

void moegen_rt_decode(moegen_rt_dtype dtype, const void *src, size_t n, double *restrict to)
{
    /* clang-format off */
    switch (dtype) {
    case MOEGEN_RT_F64: memcpy(to, src, n * sizeof *to); break;
    case MOEGEN_RT_F32: LOOP(((const float *)src)[i]); break;
    case MOEGEN_RT_U8:  LOOP(((const uint8_t *)src)[i]); break;
    case MOEGEN_RT_U16: LOOP(((const uint16_t *)src)[i]); break;
    case MOEGEN_RT_U32: LOOP(((const uint32_t *)src)[i]); break;
    case MOEGEN_RT_I32: LOOP(((const int32_t *)src)[i]); break;
    case MOEGEN_RT_I64: LOOP((double)((const int64_t *)src)[i]); break;
    default:            decode_formatted(&dtypes[dtype], src, n, to); break;
    }
    /* clang-format on */
}

/* Rounded and brought into the range of an integer type, in two parts since i64 has no exact top.
 */
static int64_t to_integer(const struct row *t, double x)
{
    if (isnan(x))
        return 0;
    x = nearbyint(x);
    if (x <= t->low)
        return (int64_t)t->low;
    if (x >= t->high)
        return t->high == 0x1p63 ? INT64_MAX : (int64_t)t->high;
    return (int64_t)x;
}

static void encode_integers(const struct row *t, const double *src, size_t n, void *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t value = (uint64_t)to_integer(t, src[i]);
        char *at = (char *)dst + i * t->facts.bytes;
        uint8_t u8 = (uint8_t)value;
        uint16_t u16 = (uint16_t)value;
        uint32_t u32 = (uint32_t)value;
        const void *from = t->facts.bytes == 1   ? (void *)&u8
                           : t->facts.bytes == 2 ? (void *)&u16
                           : t->facts.bytes == 4 ? (void *)&u32
                                                 : (void *)&value;
        memcpy(at, from, t->facts.bytes);
    }
}

void moegen_rt_encode(moegen_rt_dtype dtype, const double *src, size_t n, void *dst)
{
    const struct row *t = &dtypes[dtype];
    if (dtype == MOEGEN_RT_F64) {
        memcpy(dst, src, n * sizeof *src);
    } else if (dtype == MOEGEN_RT_F32) {
        float *restrict to = dst;
        LOOP((float)src[i]);
    } else if (t->kind == INTEGER) {
        encode_integers(t, src, n, dst);
    } else if (t->facts.bytes == 2) {
        uint16_t *restrict to = dst;
        LOOP((uint16_t)encode_small(t->format, 16, src[i]));
    } else {
        uint8_t *restrict to = dst;
        LOOP((uint8_t)encode_small(t->format, 8, src[i]));
    }
}

#define LOOPS(name, from_type, to_type, expression)                                                \
    static void name(const void *src, size_t n, void *dst)                                         \
    {                                                                                              \
        const from_type *from = src;                                                               \
        to_type *restrict to = dst;                                                                \
        LOOP(expression);                                                                          \
    }
LOOPS(f32_bf16, float, uint16_t, bf16_of_float(from[i]))
LOOPS(f32_f16, float, uint16_t, f16_of_float(from[i]))
LOOPS(bf16_f32, uint16_t, float, bf16_to_float(from[i]))
LOOPS(f16_f32, uint16_t, float, f16_to_float(from[i]))
LOOPS(bf16_f16, uint16_t, uint16_t, f16_of_float(bf16_to_float(from[i])))
LOOPS(f16_bf16, uint16_t, uint16_t, bf16_of_float(f16_to_float(from[i])))

static void (*const fast[3][3])(const void *src, size_t n, void *dst) = {
    [MOEGEN_RT_F32] = {[MOEGEN_RT_BF16] = f32_bf16, [MOEGEN_RT_F16] = f32_f16},
    [MOEGEN_RT_BF16] = {[MOEGEN_RT_F32] = bf16_f32, [MOEGEN_RT_F16] = bf16_f16},
    [MOEGEN_RT_F16] = {[MOEGEN_RT_F32] = f16_f32, [MOEGEN_RT_BF16] = f16_bf16},
};

void moegen_rt_convert(moegen_rt_dtype from, const void *src, moegen_rt_dtype to, void *dst,
                       size_t n)
{
    enum { CHUNK = 256 };
    double chunk[CHUNK];
    size_t in = dtypes[from].facts.bytes, out = dtypes[to].facts.bytes;
    if (n == 0)
        return;
    if (from == to) {
        memcpy(dst, src, n * in);
    } else if (from < 3 && to < 3) {
        fast[from][to](src, n, dst);
    } else {
        for (size_t i = 0; i < n; i += CHUNK) {
            size_t m = n - i < CHUNK ? n - i : CHUNK;
            moegen_rt_decode(from, (const char *)src + i * in, m, chunk);
            moegen_rt_encode(to, chunk, m, (char *)dst + i * out);
        }
    }
}

void moegen_rt_poison(moegen_rt_dtype dtype, void *data, size_t n)
{
    const struct row *t = &dtypes[dtype];
    if (t->kind == INTEGER) {
        if (n)
            memset(data, 0x7e, n * t->facts.bytes);
        return;
    }
    if (n == 0)
        return;
    double nan = (double)NAN;
    moegen_rt_encode(dtype, &nan, 1, data);
    for (size_t done = 1; done < n;) { /* copies what is filled onto what is not */
        size_t m = done < n - done ? done : n - done;
        memcpy((char *)data + done * t->facts.bytes, data, m * t->facts.bytes);
        done += m;
    }
}

int64_t moegen_rt_tensor_count(const moegen_rt_tensor *tensor)
{
    int64_t n = 1;
    for (int i = 0; i < tensor->rank; i++)
        n *= tensor->shape[i];
    return n;
}
