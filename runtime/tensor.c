/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.c - element types and their conversions, which follow from the rows of moegen_dtype.h. */
#include <math.h>
#include <string.h>

#include "rt_wide.h"
#include "runtime_private.h"

_Static_assert(sizeof(float) == 4 && sizeof(double) == 8, "IEEE 754 floats");

#define FACTS(NAME, value, text, file, stored, digits, limit, kind)                                \
    [MOEGEN_RT_##NAME] = {text, file, sizeof(stored), digits, limit},
static const moegen_rt_dtype_facts dtypes[MOEGEN_RT_DTYPES] = {MOEGEN_DTYPES(FACTS)};

const moegen_rt_dtype_facts *moegen_rt_dtype_of(moegen_rt_dtype dtype)
{
    return (unsigned)dtype < MOEGEN_RT_DTYPES ? &dtypes[dtype] : NULL;
}

int moegen_rt_dtype_find(const char *name, moegen_rt_dtype *dtype)
{
    for (int i = 0; i < MOEGEN_RT_DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype = (moegen_rt_dtype)i;
            return 1;
        }
    }
    return 0;
}

int rt_dtype_of_safetensors(const char *name, size_t len)
{
    for (int i = 0; i < MOEGEN_RT_DTYPES; i++) {
        const char *own = dtypes[i].safetensors;
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

static inline uint64_t bits_of_double(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* A float of up to 16 bits: sign, exponent field, `mantissa` bits. */
struct format {
    int bits, mantissa, bias;
    uint32_t top;      /* largest finite code without sign */
    uint32_t overflow; /* code of what is larger: infinity or `top` */
    uint32_t nan;      /* code of NaN; every code above `overflow` is one */
};

static inline struct format format_of(size_t bytes, int digits, bool infinite)
{
    int bits = 8 * (int)bytes, mantissa = digits - 1;
    uint32_t ones = (1u << (bits - 1)) - 1, infinity = ones >> mantissa << mantissa;
    struct format f = {bits, mantissa, (1 << (bits - digits - 1)) - 1, ones - 1, ones - 1, ones};
    if (infinite) {
        f.top = infinity - 1;
        f.overflow = infinity;
        f.nan = infinity | 1u << (mantissa - 1);
    }
    return f;
}

/* Exponent and mantissa fields moved to where a double has them read as value * 2^(bias - 1023),
 * subnormals included. */
static inline double decode_small(struct format f, uint32_t code)
{
    uint32_t size = code & ((1u << (f.bits - 1)) - 1);
    double x;
    if (size <= f.top)
        x = double_of((uint64_t)size << (52 - f.mantissa)) *
            double_of((uint64_t)(2046 - f.bias) << 52);
    else
        x = size == f.overflow ? (double)INFINITY : (double)NAN;
    return code >> (f.bits - 1) ? -x : x;
}

/* Scales the mantissa to an integer, rounds it (adding 2^52 does: nearest, ties to even) and adds
 * the exponent field; a carry out of the mantissa moves to the next exponent by itself. */
static inline uint32_t encode_small(struct format f, double x)
{
    uint64_t raw = bits_of_double(x);
    uint32_t sign = (uint32_t)(raw >> 63) << (f.bits - 1);
    raw &= INT64_MAX;
    if (raw > (uint64_t)2047 << 52)
        return sign | f.nan;
    int least = 1 - f.bias, e = (int)(raw >> 52) - 1023;
    if (e > (int)(f.top >> f.mantissa) - f.bias) /* beyond the largest exponent? */
        return sign | f.overflow;
    if (e < least)
        e = least;
    double scaled = double_of(raw) * double_of((uint64_t)(1023 + f.mantissa - e) << 52);
    uint32_t code = (uint32_t)((scaled + 0x1p52) - 0x1p52);
    code += (uint32_t)(e - least) << f.mantissa;
    return sign | (code > f.top ? f.overflow : code);
}

/* Rounded and brought into the range of an integer type. */
static inline uint64_t to_integer(int bits, bool negative, double x)
{
    double high = ldexp(1, bits - negative), low = negative ? -high : 0;
    if (isnan(x))
        return 0;
    x = nearbyint(x);
    if (x <= low)
        return (uint64_t)(int64_t)low;
    if (x >= high)
        return UINT64_MAX >> (64 - bits + negative);
    return x < 0 ? (uint64_t)(int64_t)x : (uint64_t)x;
}

static inline float bf16_to_float(uint16_t code)
{
    return float_of((uint32_t)code << 16);
}

static inline float f16_to_float(uint16_t code)
{
    uint32_t sign = (uint32_t)(code & 0x8000) << 16, size = code & 0x7fffu;
    float x = float_of(size << 13) * 0x1p112f;
    uint32_t special = size > 0x7bff ? 0x7f800000u : 0;
    return float_of(bits_of(x) | sign | special);
}

static inline uint32_t f16_of_float(float x)
{
    uint32_t raw = bits_of(x), sign = raw >> 16 & 0x8000;
    raw &= INT32_MAX;
    if (raw >= 0x477ff000) /* rounds to 65536 or more, infinity, NaN */
        return sign | (raw > 0x7f800000 ? 0x7e00 : 0x7c00);
    if (raw < 0x38800000) { /* subnormal in f16: units of 2^-24 */
        float units = (float_of(raw) * 0x1p24f + 0x1p23f) - 0x1p23f;
        return sign | (uint32_t)units;
    }
    return sign | (raw - 0x38000000 + 0xfff + (raw >> 13 & 1)) >> 13;
}

/* ---- n elements ---- */

enum { CHUNK = 256 };

#define LOOP(expression)                                                                           \
    do {                                                                                           \
        for (size_t i = 0; i < n; i++)                                                             \
            to[i] = expression;                                                                    \
    } while (0)

/* Of LANES at a time compilers make vectors. */
#define LOOPS(name, from_type, to_type, expression)                                                \
    WIDE static void name(const void *src, size_t n, void *dst)                                    \
    {                                                                                              \
        const from_type *from = src;                                                               \
        to_type *restrict to = dst;                                                                \
        for (; n >= LANES; n -= LANES, from += LANES, to += LANES)                                 \
            for (size_t i = 0; i < LANES; i++)                                                     \
                to[i] = expression;                                                                \
        LOOP(expression);                                                                          \
    }
/* To 16 bits, from words of 32: compilers would make halves of every step. */
#define HALVES(name, from_type, expression)                                                        \
    WIDE static void name(const void *src, size_t n, void *dst)                                    \
    {                                                                                              \
        const from_type *from = src;                                                               \
        uint16_t *restrict to = dst;                                                               \
        for (; n >= LANES; n -= LANES, from += LANES, to += LANES) {                               \
            uint32_t word[LANES];                                                                  \
            for (size_t i = 0; i < LANES; i++)                                                     \
                word[i] = expression;                                                              \
            for (size_t i = 0; i < LANES; i++)                                                     \
                to[i] = (uint16_t)word[i];                                                         \
        }                                                                                          \
        LOOP((uint16_t)(expression));                                                              \
    }
LOOPS(f32_f64, float, double, (double)from[i])
LOOPS(bf16_f64, uint16_t, double, (double)bf16_to_float(from[i]))
LOOPS(f16_f64, uint16_t, double, (double)f16_to_float(from[i]))
HALVES(f32_bf16, float, bf16_of_float(from[i]))
HALVES(f32_f16, float, f16_of_float(from[i]))
LOOPS(bf16_f32, uint16_t, float, bf16_to_float(from[i]))
LOOPS(f16_f32, uint16_t, float, f16_to_float(from[i]))
HALVES(bf16_f16, uint16_t, f16_of_float(bf16_to_float(from[i])))
HALVES(f16_bf16, uint16_t, bf16_of_float(f16_to_float(from[i])))

static void (*const fast[MOEGEN_RT_DTYPES][MOEGEN_RT_DTYPES])(const void *src, size_t n,
                                                              void *dst) = {
    [MOEGEN_RT_F32] =
        {[MOEGEN_RT_BF16] = f32_bf16, [MOEGEN_RT_F16] = f32_f16, [MOEGEN_RT_F64] = f32_f64},
    [MOEGEN_RT_BF16] =
        {[MOEGEN_RT_F32] = bf16_f32, [MOEGEN_RT_F16] = bf16_f16, [MOEGEN_RT_F64] = bf16_f64},
    [MOEGEN_RT_F16] =
        {[MOEGEN_RT_F32] = f16_f32, [MOEGEN_RT_BF16] = f16_bf16, [MOEGEN_RT_F64] = f16_f64},
};

/* One element, by kind. */
#define DECODE_NATIVE(stored, digits, x) (double)(x)
#define DECODE_IEEE(stored, digits, x)   decode_small(format_of(sizeof(stored), digits, true), x)
#define DECODE_FINITE(stored, digits, x) decode_small(format_of(sizeof(stored), digits, false), x)
#define ENCODE_NATIVE(stored, digits, x)                                                           \
    (digits) ? (stored)(x) : (stored)to_integer(8 * sizeof(stored), (stored)-1 <= (stored)0, x)
#define ENCODE_IEEE(stored, digits, x)                                                             \
    (stored) encode_small(format_of(sizeof(stored), digits, true), x)
#define ENCODE_FINITE(stored, digits, x)                                                           \
    (stored) encode_small(format_of(sizeof(stored), digits, false), x)

#define DECODE(NAME, value, text, file, stored, digits, limit, kind)                               \
    case MOEGEN_RT_##NAME: {                                                                       \
        const stored *from = src;                                                                  \
        LOOP(DECODE_##kind(stored, digits, from[i]));                                              \
        break;                                                                                     \
    }
#define ENCODE(NAME, value, text, file, stored, digits, limit, kind)                               \
    case MOEGEN_RT_##NAME: {                                                                       \
        stored *restrict to = dst;                                                                 \
        LOOP(ENCODE_##kind(stored, digits, from[i]));                                              \
        break;                                                                                     \
    }

void moegen_rt_decode(moegen_rt_dtype dtype, const void *src, size_t n, double *restrict to)
{
    if (fast[dtype][MOEGEN_RT_F64]) {
        fast[dtype][MOEGEN_RT_F64](src, n, to);
        return;
    }
    switch (dtype) {
        MOEGEN_DTYPES(DECODE)
    case MOEGEN_RT_DTYPES:
        break;
    }
}

void moegen_rt_encode(moegen_rt_dtype dtype, const double *from, size_t n, void *dst)
{
    switch (dtype) {
        MOEGEN_DTYPES(ENCODE)
    case MOEGEN_RT_DTYPES:
        break;
    }
}

void moegen_rt_convert(moegen_rt_dtype from, const void *src, moegen_rt_dtype to, void *dst,
                       size_t n)
{
    double chunk[CHUNK];
    size_t in = dtypes[from].bytes, out = dtypes[to].bytes;
    if (n == 0)
        return;
    if (from == to) {
        memcpy(dst, src, n * in);
    } else if (fast[from][to]) {
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
    size_t size = dtypes[dtype].bytes;
    if (dtypes[dtype].digits == 0) {
        if (n)
            memset(data, 0x7e, n * size);
        return;
    }
    if (n == 0)
        return;
    double nan = (double)NAN;
    moegen_rt_encode(dtype, &nan, 1, data);
    for (size_t done = 1; done < n;) { /* copies what is filled onto what is not */
        size_t m = done < n - done ? done : n - done;
        memcpy((char *)data + done * size, data, m * size);
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
