/* SPDX-License-Identifier: Apache-2.0 */
/*
 * direct.c - values as files have them to codes in one step, by loops that compilers turn into
 * vectors. See rt_wide.h.
 *
 * Where scales are no powers of two, a quotient in f32 is off by less than 2^-22.9 of itself: of
 * half the last place of a code of 4 significant bits by less than 2^-17.9. What is farther than
 * this from a tie is rounded as the true quotient is; the rest is doubtful, and said to be.
 *
 * Few f32 are doubtful, but many bf16, being so few themselves. There a scale s is the nearest f32
 * of m / c, m the largest magnitude (of all of a matrix, for second scales) and c a number of few
 * bits, perhaps times a code of 4. With all of these as integers, x / s comes no nearer than 2^-16
 * of itself to a tie, but where x / (m / c) is one: and there all are on the same side, as m / c is
 * above or below s. So x is multiplied by 2^-17 more or less than 1 / s, and nothing is doubtful,
 * unless s is m / c: see rt_rows_lean. Where s has 8 bits itself, integers up to 8 come no nearer
 * than 2^-11 to a tie without being one: rounded to 2^-13, quotients are as good as exact.
 */
#include <math.h>
#include <string.h>

#include "format.h"
#include "format/codes.h"

enum { BLOCK = RT_DIRECT_BLOCK, MANY = 512 };
_Static_assert((int)RT_DIRECT_RUN == (int)LANES, "a factor of a vector");

/* Values to quotients, to words, to bytes: vectors of one width in each loop. Of MANY, since it
 * takes the CPU long to load what it has just stored. A factor is of LANES values, or of one. */
#define CODES(name, type, value, code, check, factor, factors)                                     \
    WIDE static uint64_t name(const void *src, int64_t blocks, const float *restrict by,           \
                              uint8_t *restrict to)                                                \
    {                                                                                              \
        const type *restrict x = src;                                                              \
        uint64_t doubtful = 0;                                                                     \
        float wide[MANY];                                                                          \
        uint32_t word[MANY];                                                                       \
        for (int64_t b = 0, n; b < blocks; b += n) {                                               \
            n = blocks - b < MANY / BLOCK ? blocks - b : MANY / BLOCK;                             \
            for (int64_t i = 0; i < n * BLOCK; i += LANES, x += LANES, by += factors)              \
                EACH wide[i + j] = value(x[j]) * by[factor];                                       \
            for (int64_t i = 0; i < n * BLOCK; i += LANES)                                         \
                EACH word[i + j] = code(wide[i + j], check);                                       \
            for (int64_t k = 0; k < n; k++, to += BLOCK) {                                         \
                uint32_t all = 0;                                                                  \
                for (int j = 0; j < BLOCK; j++)                                                    \
                    to[j] = (uint8_t)word[k * BLOCK + j];                                          \
                for (int j = 0; j < BLOCK && (check); j++)                                         \
                    all |= word[k * BLOCK + j];                                                    \
                doubtful |= (uint64_t)(all >> 31) << (b + k);                                      \
            }                                                                                      \
        }                                                                                          \
        return doubtful;                                                                           \
    }
#define OF_F32(x)         (x)
#define OF_BF16(x)        float_of((uint32_t)(x) << 16)
#define E4M3(q, check)    small_float(q, 8, 3, 7, 448, check)
#define E5M2(q, check)    small_float(q, 8, 2, 15, 57344, check)
#define E2M1(q, check)    small_float(q, 4, 1, 1, 6, check)
#define I8(q, check)      small_integer(q, -127, 127, 0, check)
#define I4(q, check)      small_integer(q, -8, 7, 8, check)
#define I4_NEAR(q, check) small_integer(((q) + 0x1.8p10f) - 0x1.8p10f, -8, 7, 8, check)

#define FROM(name, type, value, code, check)                                                       \
    CODES(name##_each, type, value, code, check, j, LANES)                                         \
    CODES(name##_runs, type, value, code, check, 0, 1)
/* Powers of two and bf16: twice as many in a vector, if codes have few numbers to be counted. */
#define SHORT_CODES(name, bits, mantissa, bias, largest, factor, factors)                          \
    WIDE static uint64_t name(const void *src, int64_t blocks, const float *restrict by,           \
                              uint8_t *restrict to)                                                \
    {                                                                                              \
        const uint16_t *restrict x = src;                                                          \
        uint16_t half[MANY];                                                                       \
        for (int64_t n; blocks > 0; blocks -= n, to += n * BLOCK) {                                \
            n = blocks < MANY / BLOCK ? blocks : MANY / BLOCK;                                     \
            for (int64_t i = 0; i < n * BLOCK; i += LANES, x += LANES, by += factors)              \
                EACH                                                                               \
                {                                                                                  \
                    int16_t power = (int16_t)((bits_of(by[factor]) >> 16) - 0x3f80);               \
                    half[i + j] = short_float(x[j], power, bits, mantissa, bias, largest);         \
                }                                                                                  \
            for (int64_t i = 0; i < n * BLOCK; i += BLOCK)                                         \
                for (int j = 0; j < BLOCK; j++)                                                    \
                    to[i + j] = (uint8_t)half[i + j];                                              \
        }                                                                                          \
        return 0;                                                                                  \
    }
#define SHORT(name, bits, mantissa, bias, largest)                                                 \
    SHORT_CODES(name##_of_bf16_each, bits, mantissa, bias, largest, j, LANES)                      \
    SHORT_CODES(name##_of_bf16_runs, bits, mantissa, bias, largest, 0, 1)
#define FROM_ALL(name, code, check)                                                                \
    FROM(name##_of_f32, float, OF_F32, code, check)                                                \
    FROM(name##_of_bf16, uint16_t, OF_BF16, code, check)
FROM_ALL(e4m3, E4M3, false)
FROM(e5m2_of_f32, float, OF_F32, E5M2, false)
FROM(e2m1_of_f32, float, OF_F32, E2M1, false)
SHORT(e5m2, 8, 2, 15, 0x7b)
SHORT(e2m1, 4, 1, 1, 7)
FROM_ALL(e4m3_checked, E4M3, true)
FROM_ALL(e5m2_checked, E5M2, true)
FROM_ALL(e2m1_checked, E2M1, true)
FROM_ALL(i8_checked, I8, true)
FROM_ALL(i4_checked, I4, true)
FROM(i4_near_of_bf16, uint16_t, OF_BF16, I4_NEAR, false)

/* The first row that is of a coding and its scales; without one all is doubtful. */
/* clang-format off */
#define OF(name)  {name##_each, name##_runs}
#define ALL(name) {OF(name##_of_f32), OF(name##_of_bf16)}
enum { EXACT, NARROW, INEXACT }; /* scales: powers of two; of 8 bits; whatever else */
static const struct {
    const char *name;
    int scales;
    rt_direct *of[2][2];
} fast[] = {
    {"e4m3", EXACT, ALL(e4m3)},
    {"e5m2", EXACT, ALL(e5m2)},
    {"e2m1", EXACT, ALL(e2m1)},
    {"i4", NARROW, {OF(i4_checked_of_f32), OF(i4_near_of_bf16)}},
    {"e4m3", INEXACT, ALL(e4m3_checked)},
    {"e5m2", INEXACT, ALL(e5m2_checked)},
    {"e2m1", INEXACT, ALL(e2m1_checked)},
    {"i8", INEXACT, ALL(i8_checked)},
    {"i4", INEXACT, ALL(i4_checked)},
};
/* clang-format on */

void rt_rows_open_direct(struct rt_rows *r)
{
    const int scales = r->exact ? EXACT : r->narrow ? NARROW : INEXACT;
    for (size_t i = 0; i < sizeof fast / sizeof *fast; i++)
        if (strcmp(fast[i].name, r->format->element->name) == 0 &&
            (fast[i].scales == INEXACT ? !r->exact : fast[i].scales == scales)) {
            memcpy(r->direct, fast[i].of, sizeof r->direct);
            return;
        }
}

uint64_t rt_rows_direct(const struct rt_rows *r, moegen_rt_dtype dtype, const void *x, int64_t n,
                        int64_t run, const float *by, uint8_t *byte)
{
    const size_t bytes = moegen_rt_dtype_of(dtype)->bytes;
    const int64_t blocks = n / BLOCK, rest = n % BLOCK, at = n - rest;
    rt_direct *codes = r->direct[dtype == MOEGEN_RT_BF16][run == RT_DIRECT_RUN];
    if (!codes)
        return UINT64_MAX;
    uint64_t doubtful = codes(x, blocks, by, byte);
    if (rest) {
        float some[BLOCK] = {0}, some_by[BLOCK] = {0};
        uint8_t made[BLOCK];
        memcpy(some, (const char *)x + (size_t)at * bytes, (size_t)rest * bytes);
        memcpy(some_by, by + at / run, (size_t)((rest + run - 1) / run) * sizeof *by);
        doubtful |= codes(some, 1, some_by, made) << blocks;
        memcpy(byte + at, made, (size_t)rest);
    }
    return doubtful;
}

double rt_rows_lean(moegen_rt_dtype dtype, double quotient)
{
    const double least = 0x1p-45; /* what differs, does so by 2^-32 at least */
    if (dtype != MOEGEN_RT_BF16 || !(fabs(quotient - 1) > least))
        return 1;
    return quotient > 1 ? 1 + 0x1p-17 : 1 - 0x1p-17;
}

/* How many are not of use. */
WIDE static int narrow(const double *restrict inverse, const double *restrict lean, int64_t n,
                       double above, double below, float *restrict by)
{
    int32_t count[LANES] = {0}, all = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        EACH
        {
            by[i + j] = (float)(inverse[i + j] * lean[i + j]);
            count[j] += !((inverse[i + j] > above) & (inverse[i + j] < below));
        }
    for (; i < n; i++) {
        by[i] = (float)(inverse[i] * lean[i]);
        all += !((inverse[i] > above) & (inverse[i] < below));
    }
    EACH all += count[j];
    return all;
}

bool rt_rows_factors(const struct rt_rows *r, const double *inverse, const double *lean, int64_t n,
                     float *by)
{
    return narrow(inverse, lean, n, r->exact ? 0 : 0x1p-100, 0x1p100, by) == 0;
}

WIDE static void spread(const float *restrict by, int64_t n, int64_t run, float *restrict to)
{
    for (int64_t k = 0; k < n; k++, to += run) {
        int64_t i = 0;
        for (; i + LANES <= run; i += LANES)
            EACH to[i + j] = by[k];
        for (; i < run; i++)
            to[i] = by[k];
    }
}

WIDE static void twice(const float *restrict by, int64_t n, float *restrict to)
{
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES, to += 2 * LANES)
        for (int j = 0; j < 2 * LANES; j++)
            to[j] = by[k + j / 2];
    for (; k < n; k++, to += 2)
        to[0] = to[1] = by[k];
}

void rt_rows_spread(const float *by, int64_t n, int64_t run, float *to)
{
    if (run == 1)
        memcpy(to, by, (size_t)n * sizeof *by);
    else if (run == 2)
        twice(by, n, to);
    else
        spread(by, n, run, to);
}
