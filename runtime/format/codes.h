/* SPDX-License-Identifier: Apache-2.0 */
/* codes.h - one quotient in f32 to a code, without branches. See rt_wide.h. */
#ifndef MOEGEN_FORMAT_CODES_H
#define MOEGEN_FORMAT_CODES_H

#include "rt_wide.h"

/* Beside a code, where quotients are not exact: this one is too near a tie to be told. */
#define DOUBTFUL (1u << 31)

/* If the distance to what a quotient was rounded to is above `limit`. */
static inline uint32_t doubt(float rest, uint32_t limit)
{
    return (limit - (bits_of(rest) & INT32_MAX)) & DOUBTFUL;
}

/* A float of sign, exponent and mantissa, clipped to `largest`. Adding a number whose last place is
 * that of q in this format, but no less than its least one, leaves the code's mantissa, with the
 * leading bit, in the low bits; a carry goes on into the exponent, less one, which is added. What
 * is left of q is exact, and half a place at a tie. */
static inline uint32_t small_float(float q, int bits, int mantissa, int bias, float largest,
                                   bool check)
{
    const int cut = 23 - mantissa;
    const int32_t normal = (128 - bias) << 23, most = (int32_t)bits_of(largest);
    const uint32_t half = 24u << 23, margin = 96; /* 2^-17.4 of half a place */
    int32_t size = (int32_t)(bits_of(q) & INT32_MAX);
    size = size < most ? size : most;
    int32_t place = size > normal ? size : normal;
    uint32_t exponent = (uint32_t)place & 0x7f800000, by = exponent + ((uint32_t)cut << 23);
    float sum = float_of((uint32_t)size) + float_of(by);
    uint32_t code = bits_of(sum) - by + ((exponent - (uint32_t)normal) >> cut);
    code |= bits_of(q) >> 31 << (bits - 1);
    if (check)
        code |= doubt(float_of((uint32_t)size) - (sum - float_of(by)), by - half - margin);
    return code;
}

/* The bits of a bf16 in the middle of numbers k and k + 1 of the least exponent of such a float. */
static inline int32_t tie(int k, int mantissa, int bias)
{
    const int top = 31 - __builtin_clz(2 * (unsigned)k + 1);
    return (127 - bias - mantissa + top) << 7 | ((2 * k + 1) << (7 - top) & 127);
}

/* 1 if such a q goes to more than k, without a branch. */
static inline int16_t above(int16_t q, int k, int mantissa, int bias)
{
    int16_t short_of = (int16_t)(tie(k, mantissa, bias) - k % 2 - q); /* of an even k ties stay */
    return k >> mantissa ? 0 : (int16_t)((uint16_t)short_of >> 15);
}

/* The same of a bf16 times a power of two: the sum of their bits, less those of 1. It may be any
 * number below those that are told from 0. Where numbers have no leading bit they are counted. */
static inline uint16_t short_float(uint16_t x, int16_t power, int bits, int mantissa, int bias,
                                   int16_t largest)
{
    const int cut = 7 - mantissa;
    int16_t q = (int16_t)((x & INT16_MAX) + power);
    int16_t near = (int16_t)(q + (1 << (cut - 1)) - 1 + (q >> cut & 1));
    int16_t code = (int16_t)((near >> cut) - ((127 - bias) << mantissa));
#define ABOVE(k) above(q, k, mantissa, bias)
    int16_t count = (int16_t)(ABOVE(0) + ABOVE(1) + ABOVE(2) + ABOVE(3) + ABOVE(4) + ABOVE(5) +
                              ABOVE(6) + ABOVE(7));
#undef ABOVE
    code = code > count ? code : count;
    code = code < largest ? code : largest;
    return (uint16_t)(code | (x >> 15 << (bits - 1)));
}

/* An integer, off by `bias`; |q| < 2^22. */
static inline uint32_t small_integer(float q, int32_t lowest, int32_t largest, int32_t bias,
                                     bool check)
{
    const float places = 0x1.8p23f;
    float sum = q + places;
    int32_t x = (int32_t)(bits_of(sum) - bits_of(places));
    x = x > lowest ? x : lowest;
    x = x < largest ? x : largest;
    uint32_t code = (uint32_t)(x + bias) & 255;
    if (check) {
        float size = float_of(bits_of(q) & INT32_MAX), limit = 0.5f - size * 0x1p-21f;
        code |= doubt(q - (sum - places), bits_of(limit));
    }
    return code;
}

#endif
