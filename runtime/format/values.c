/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values.c - codes of a format to many values, by loops that compilers turn into vectors:
 * LANES elements each, no branches. See rt_wide.h.
 */
#include <string.h>

#include "format.h"
#include "rt_wide.h"

enum { MANY = 64 };

/* ---- elements ---- */

/* All ones if a < b. */
static inline uint32_t below(int32_t a, int32_t b)
{
    return 0u - (uint32_t)(a < b);
}

/* A float of sign, exponent and mantissa. Numbers of the least exponent have no leading bit: it is
 * subtracted. Codes from `special` on are no numbers: they have the bits `with`, too. */
static inline float float_value(uint32_t code, int bits, int mantissa, int bias, int32_t special,
                                uint32_t with)
{
    const int cut = 23 - mantissa;
    const uint32_t least = (uint32_t)(128 - bias) << 23, one = 1u << 23;
    int32_t size = (int32_t)(code & ((1u << (bits - 1)) - 1));
    uint32_t raw = (uint32_t)size << cut, low = below(size, 1 << mantissa);
    float with_bit = float_of(raw + least - (one & ~low));
    uint32_t number = bits_of(with_bit - float_of(least & low));
    return float_of(number | (with & ~below(size, special)) | code >> (bits - 1) << 31);
}

/* From bytes to words first, or compilers take steps of as many as there are in a short vector. */
#define VALUES(name, expression)                                                                   \
    WIDE static void name(const uint8_t *restrict code, int64_t n, float *restrict to)             \
    {                                                                                              \
        int64_t i = 0;                                                                             \
        for (; i + MANY <= n; i += MANY) {                                                         \
            uint32_t word[MANY];                                                                   \
            for (int j = 0; j < MANY; j++)                                                         \
                word[j] = code[i + j];                                                             \
            for (int j = 0; j < MANY; j++)                                                         \
                to[i + j] = expression(word[j]);                                                   \
        }                                                                                          \
        for (; i < n; i++)                                                                         \
            to[i] = expression(code[i]);                                                           \
    }
#define E4M3(code) float_value(code, 8, 3, 7, 0x7f, 0x7fc00000)
#define E5M2(code) float_value(code, 8, 2, 15, 0x7c, 0x7f800000)
#define E2M1(code) float_value(code, 4, 1, 1, 8, 0) /* 8: there are none */
#define I8(code)   ((float)((int)((code) ^ 128) - 128))
#define I4(code)   ((float)((int)(code)-8))
VALUES(e4m3_elements, E4M3)
VALUES(e5m2_elements, E5M2)
VALUES(e2m1_elements, E2M1)
VALUES(i8_elements, I8)
VALUES(i4_elements, I4)

/* Codes of a coding without a row here are decoded one by one. */
static const struct {
    const char *name;
    void (*elements)(const uint8_t *code, int64_t n, float *to);
} fast[] = {{"e4m3", e4m3_elements},
            {"e5m2", e5m2_elements},
            {"e2m1", e2m1_elements},
            {"i8", i8_elements},
            {"i4", i4_elements}};

void rt_rows_open_values(struct rt_rows *r)
{
    for (size_t i = 0; i < sizeof fast / sizeof *fast; i++)
        if (strcmp(fast[i].name, r->format->element->name) == 0)
            r->elements = fast[i].elements;
    /* significant bits of both are at most f32's: 8 of an element, 8 of a bf16 or one of fewer */
    r->narrow = r->format->scale->bits <= 16 && !r->format->second;
}

void rt_rows_bytes_elements(const struct rt_rows *r, const uint8_t *byte, int64_t n, float *to)
{
    if (r->elements)
        r->elements(byte, n, to);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = (float)r->format->element->value(byte[i]);
}

/* The two codes of each byte: as the low and the high byte of a word. */
WIDE static void apart(const uint8_t *restrict byte, int64_t n, uint16_t *restrict to)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        EACH to[i + j] = (uint16_t)((byte[i + j] & 15) | (byte[i + j] & 240) << 4);
    for (; i < n; i++)
        to[i] = (uint16_t)((byte[i] & 15) | (byte[i] & 240) << 4);
}

void rt_rows_elements(const struct rt_rows *r, const void *codes, int64_t n, float *restrict to)
{
    enum { SOME = 1024 };
    uint16_t both[SOME];
    const uint8_t *from = codes;
    if (r->format->element->bits == 8) {
        rt_rows_bytes_elements(r, from, n, to);
        return;
    }
    for (int64_t i = 0, some; i < n / 2; i += some) {
        some = n / 2 - i < SOME ? n / 2 - i : SOME;
        apart(from + i, some, both);
        rt_rows_bytes_elements(r, (const uint8_t *)both, 2 * some, to + 2 * i);
    }
}

/* ---- times scales ---- */

/* Runs of elements times their factor. A narrow one leaves f32 nothing to round, whatever the
 * element; else the product is in double, and rounded once, or to odd, to be rounded again. */
#define TIMES(name, type, by_type, product)                                                        \
    static inline void name##_run(const float *restrict element, int64_t n, by_type by,            \
                                  type *restrict to)                                               \
    {                                                                                              \
        for (; n >= LANES; n -= LANES, element += LANES, to += LANES) {                            \
            uint32_t word[LANES];                                                                  \
            EACH word[j] = product(element[j], by);                                                \
            EACH to[j] = (type)word[j];                                                            \
        }                                                                                          \
        for (int64_t j = 0; j < n; j++)                                                            \
            to[j] = (type)product(element[j], by);                                                 \
    }                                                                                              \
    WIDE static void name(const float *element, int64_t n, int64_t run, const double *by,          \
                          void *dst)                                                               \
    {                                                                                              \
        type *to = dst;                                                                            \
        for (; n >= run; n -= run, element += run, to += run, by++)                                \
            name##_run(element, run, (by_type)*by, to);                                            \
        if (n > 0)                                                                                 \
            name##_run(element, n, (by_type)*by, to);                                              \
    }
#define POWER(x, by)           bits_of((x) * (by))
#define POWER_BF16(x, by)      bf16_of_float((x) * (by))
#define POWER_EACH(x, by)      POWER(x, (float)(by))
#define POWER_EACH_BF16(x, by) POWER_BF16(x, (float)(by))
#define NEAREST(x, by)         bits_of((float)((double)(x) * (by)))
#define ODD(x, by)             bits_of(odd((double)(x) * (by), false))
#define ODD_BF16(x, by)        bf16_of_float(odd((double)(x) * (by), false))
TIMES(power_f32, uint32_t, float, POWER)
TIMES(power_bf16, uint16_t, float, POWER_BF16)
TIMES(to_f32, uint32_t, double, NEAREST)
TIMES(to_odd, uint32_t, double, ODD)
TIMES(to_bf16, uint16_t, double, ODD_BF16)

/* The same where a run is one element. */
#define TIMES_EACH(name, type, product)                                                            \
    static inline void name##_all(const float *restrict element, int64_t n,                        \
                                  const double *restrict each, type *restrict to)                  \
    {                                                                                              \
        for (; n >= LANES; n -= LANES, element += LANES, each += LANES, to += LANES) {             \
            uint32_t word[LANES];                                                                  \
            EACH word[j] = product(element[j], each[j]);                                           \
            EACH to[j] = (type)word[j];                                                            \
        }                                                                                          \
        for (int64_t j = 0; j < n; j++)                                                            \
            to[j] = (type)product(element[j], each[j]);                                            \
    }                                                                                              \
    WIDE static void name(const float *element, int64_t n, int64_t run, const double *by,          \
                          void *to)                                                                \
    {                                                                                              \
        (void)run;                                                                                 \
        name##_all(element, n, by, to);                                                            \
    }
TIMES_EACH(each_f32, uint32_t, NEAREST)
TIMES_EACH(each_bf16, uint16_t, ODD_BF16)
TIMES_EACH(each_odd, uint32_t, ODD)
TIMES_EACH(power_each_f32, uint32_t, POWER_EACH)
TIMES_EACH(power_each_bf16, uint16_t, POWER_EACH_BF16)

/* Element by element, under scales below LEAST: f32 has not the bits of what is subnormal there. */
#define LEAST 0x1p-100
static void one_by_one(const float *element, int64_t n, double by, moegen_rt_dtype dtype, void *to)
{
    const size_t bytes = moegen_rt_dtype_of(dtype)->bytes;
    for (int64_t i = 0; i < n; i++) {
        double value = (double)element[i] * by;
        moegen_rt_encode(dtype, &value, 1, (char *)to + (size_t)i * bytes);
    }
}

void rt_rows_values(const struct rt_rows *r, const float *element, int64_t n, int64_t run,
                    const double *by, moegen_rt_dtype dtype, void *to, float *space)
{
    typedef void times(const float *element, int64_t n, int64_t run, const double *by, void *to);
    enum { F32, BF16, OTHER };
    static times *const all[2][2][3] = {
        {{to_f32, to_bf16, to_odd}, {power_f32, power_bf16, to_odd}},
        {{each_f32, each_bf16, each_odd}, {power_each_f32, power_each_bf16, each_odd}}};
    const int to_what = dtype == MOEGEN_RT_F32 ? F32 : dtype == MOEGEN_RT_BF16 ? BF16 : OTHER;
    const size_t bytes = moegen_rt_dtype_of(dtype)->bytes;
    all[run == 1][r->narrow][to_what](element, n, run, by, to_what == OTHER ? space : to);
    if (to_what == OTHER)
        moegen_rt_convert(MOEGEN_RT_F32, space, dtype, to, (size_t)n);
    for (int64_t i = 0; i < n && to_what != F32 && !r->exact; i += run, by++)
        if (*by < LEAST)
            one_by_one(element + i, n - i < run ? n - i : run, *by, dtype,
                       (char *)to + (size_t)i * bytes);
}
