/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rt_wide.h - what loops over much f32 share: LANES elements each, no branches, so that compilers
 * turn them into vectors.
 *
 * A quotient x / by is taken as x * (1 / by) in double, whose error is below 2^-51. Numbers of 24
 * bits over numbers of 28 come no nearer than 2^-39 to a tie of 8 bits without being one, so that
 * rounding to 40 bits finds the ties, and what is left is as far on one side as the true quotient.
 * It then goes to f32 by rounding to odd: cut off, with the last bit set if anything was. Such an
 * f32 rounds on to fewer bits as the quotient itself does.
 */
#ifndef MOEGEN_RT_WIDE_H
#define MOEGEN_RT_WIDE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16 };
#define EACH for (int j = 0; j < LANES; j++)

/* Where gcc can, loops are compiled for wider vectors too, and the loader takes what the CPU has;
 * sanitizers are not ready when it asks. Nothing is contracted: all give the same bits. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) &&       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if __GNUC__ >= 12
#define WIDE __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#else
#define WIDE
#endif

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The nearest bf16, or a quiet NaN, in the low half. */
static inline uint32_t bf16_of_float(float x)
{
    uint32_t raw = bits_of(x), near = raw + 0x7fff + (raw >> 16 & 1), quiet = raw | 0x400000;
    return ((int32_t)(raw & INT32_MAX) > 0x7f800000 ? quiet : near) >> 16;
}

/* A number times an inverse of 0 because no scale is of use to it. */
static inline float number(float q)
{
    return q == q ? q : 0;
}

/* To f32 by rounding to odd; if `snap`, first to 40 bits and the nearest. */
static inline float odd(double q, bool snap)
{
    const uint64_t low = ((uint64_t)1 << 29) - 1; /* bits that f32 has not */
    uint64_t raw;
    memcpy(&raw, &q, sizeof raw);
    if (snap)
        raw = (raw + 0x800) & ~(uint64_t)0xfff;
    raw = (raw & ~low) | (((raw & low) + low) & (low + 1));
    memcpy(&q, &raw, sizeof q);
    return (float)q;
}

#endif
