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
 * unless s is m / c: see rt_rows_lean.
 */
#include <math.h>
#include <string.h>

#include "format.h"
#include "format/codes.h"

enum { BLOCK = RT_DIRECT_BLOCK };

/* From values to words first, then to bytes: see rows.c. */
#define CODES(name, type, value, code, check)                                                      \
    WIDE static uint64_t name(const void *src, int64_t blocks, const float *restrict by,           \
                              uint8_t *restrict to)                                                \
    {                                                                                              \
        const type *restrict x = src;                                                              \
        uint64_t doubtful = 0;                                                                     \
        for (int64_t b = 0; b < blocks; b++, x += BLOCK, by += BLOCK, to += BLOCK) {               \
            uint32_t word[BLOCK], all = 0;                                                         \
            for (int j = 0; j < BLOCK; j++)                                                        \
                word[j] = code(value(x[j]) * by[j], check);                                        \
            for (int j = 0; j < BLOCK; j++)                                                        \
                to[j] = (uint8_t)word[j];                                                          \
            for (int j = 0; j < BLOCK && (check); j++)                                             \
                all |= word[j];                                                                    \
            doubtful |= (uint64_t)(all >> 31) << b;                                                \
        }                                                                                          \
        return doubtful;                                                                           \
    }
#define OF_F32(x)      (x)
#define OF_BF16(x)     float_of((uint32_t)(x) << 16)
#define E4M3(q, check) small_float(q, 8, 3, 7, 448, check)
#define E5M2(q, check) small_float(q, 8, 2, 15, 57344, check)
#define E2M1(q, check) small_float(q, 4, 1, 1, 6, check)
#define I8(q, check)   small_integer(q, -127, 127, 0, check)
#define I4(q, check)   small_integer(q, -8, 7, 8, check)

#define FROM_ALL(name, code, check)                                                                \
    CODES(name##_of_f32, float, OF_F32, code, check)                                               \
    CODES(name##_of_bf16, uint16_t, OF_BF16, code, check)
FROM_ALL(e4m3, E4M3, false)
FROM_ALL(e5m2, E5M2, false)
FROM_ALL(e2m1, E2M1, false)
FROM_ALL(e4m3_checked, E4M3, true)
FROM_ALL(e5m2_checked, E5M2, true)
FROM_ALL(e2m1_checked, E2M1, true)
FROM_ALL(i8_checked, I8, true)
FROM_ALL(i4_checked, I4, true)

/* A coding without a row here, under such scales, is doubtful throughout. */
static const struct {
    const char *name;
    bool exact;
    rt_direct *of_f32, *of_bf16;
} fast[] = {{"e4m3", true, e4m3_of_f32, e4m3_of_bf16},
            {"e5m2", true, e5m2_of_f32, e5m2_of_bf16},
            {"e2m1", true, e2m1_of_f32, e2m1_of_bf16},
            {"e4m3", false, e4m3_checked_of_f32, e4m3_checked_of_bf16},
            {"e5m2", false, e5m2_checked_of_f32, e5m2_checked_of_bf16},
            {"e2m1", false, e2m1_checked_of_f32, e2m1_checked_of_bf16},
            {"i8", false, i8_checked_of_f32, i8_checked_of_bf16},
            {"i4", false, i4_checked_of_f32, i4_checked_of_bf16}};

void rt_rows_open_direct(struct rt_rows *r)
{
    for (size_t i = 0; i < sizeof fast / sizeof *fast; i++)
        if (strcmp(fast[i].name, r->format->element->name) == 0 && fast[i].exact == r->exact) {
            r->of_f32 = fast[i].of_f32;
            r->of_bf16 = fast[i].of_bf16;
        }
}

uint64_t rt_rows_direct(const struct rt_rows *r, moegen_rt_dtype dtype, const void *x, int64_t n,
                        const float *by, uint8_t *byte)
{
    const size_t bytes = moegen_rt_dtype_of(dtype)->bytes;
    const int64_t blocks = n / BLOCK, rest = n % BLOCK, at = n - rest;
    rt_direct *codes = dtype == MOEGEN_RT_F32 ? r->of_f32 : r->of_bf16;
    if (!codes)
        return UINT64_MAX;
    uint64_t doubtful = codes(x, blocks, by, byte);
    if (rest) {
        float some[BLOCK] = {0}, some_by[BLOCK] = {0};
        uint8_t made[BLOCK];
        memcpy(some, (const char *)x + (size_t)at * bytes, (size_t)rest * bytes);
        memcpy(some_by, by + at, (size_t)rest * sizeof *by);
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
    return narrow(inverse, lean, n, r->exact ? 0 : 0x1p-100, r->exact ? 0x1p200 : 0x1p100, by) == 0;
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

void rt_rows_spread(const float *by, int64_t n, int64_t run, float *to)
{
    spread(by, n, run, to);
}
