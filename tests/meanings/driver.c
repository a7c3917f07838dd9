/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - runs each op of one target in its three spellings and compares what they store, bit by
 * bit. Two NaNs are equal in lanes of floats. Inputs: all pairs of special numbers, random bits,
 * random numbers of like size, sums that lie next to half-way points. Made for tests/meanings.sh,
 * which gives the tables.
 */
#include <stdio.h>
#include <string.h>

#include "moegen_runtime.h"

struct op {
    const char *name;
    int is_float; /* a NaN is as good as another */
    int pointer;  /* z holds the address of x */
};
extern const struct op ops[];
extern const char *const needs[];
extern void (*const bytes_table[])(void), (*const intrinsics_table[])(void),
    (*const scalar_table[])(void);

typedef void (*program)(void *out, const void *x, const void *y, const void *z);

enum { WORDS = 32, ROUNDS = 3000 };

static const uint32_t special[] = {
    0x00000000, 0x80000000, 0x3f800000, 0xbf800000,             /* 0, -0, 1, -1 */
    0x3f000000, 0xbf000000, 0x3fc00000, 0xbfc00000, 0x40200000, /* 0.5, -0.5, 1.5, -1.5, 2.5 */
    0x3effffff, 0x3f000001, 0x4afffffe, 0x4affffff, 0x4b000000, /* about 0.5, about 2^23 */
    0x4b000001, 0xcaffffff, 0x4b7fffff, 0x4f000000, 0xcf000000, /* 2^31, -2^31 */
    0x4effffff, 0xcf000001, 0x5f000000, 0x7f7fffff, 0xff7fffff, /* large */
    0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x80800000, /* subnormal and least normal */
    0x01000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, /* infinities, NaNs */
    0x7f800001, 0xffffffff, 0x7fffffff, 0x7fc01234,             /* signalling, payloads */
    0x477fe000, 0x477fefff, 0x477ff000, 0x477ff001, 0x38800000, /* about the range of f16 */
    0x387fffff, 0x387fe000, 0x33800000, 0x33000000, 0x33000001, /* f16 subnormals and ties */
    0x3f801000, 0x3f803000, 0x3f801001, 0x3f800fff, 0x0000ffff, /* ties of f16, u16 limits */
    0x00010000, 0xffff0000, 0x7fff0000, 0x42fe0000, 0x43000000, /* 127, 128 */
    0xc2fc0000, 0xc3150000, 0xc3160000, 0x43960000, 0xc3960000, /* -126, -149, -150, 300, -300 */
};
enum { SPECIALS = sizeof special / sizeof special[0] };

static uint64_t seed = 1;

static uint32_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* About 1: products and sums that round. */
static uint32_t moderate(void)
{
    return (random_bits() & 0x807fffffu) | (120u + random_bits() % 16u) << 23;
}

/* a * b = 1 - tiny or 1 + tiny, c = an even number above 2^24: the sum lies beside a half-way
 * point. */
static void near_tie(uint32_t *a, uint32_t *b, uint32_t *c)
{
    *a = 0x3f800000u + random_bits() % 4u;
    *b = 0x3f800000u - 2 * (random_bits() % 4u);
    *c = bits((float)(16777216u + 2 * (random_bits() % 4096u))) | (random_bits() & 0x80000000u);
}

static void fill(int round, uint32_t *x, uint32_t *y, uint32_t *z)
{
    static int pair;
    for (int i = 0; i < WORDS; i++) {
        x[i] = random_bits(), y[i] = random_bits(), z[i] = random_bits();
        if (round < SPECIALS * SPECIALS / WORDS + 1) {
            x[i] = special[pair % SPECIALS], y[i] = special[pair / SPECIALS % SPECIALS];
            z[i] = special[random_bits() % SPECIALS];
            pair++;
        } else if (round % 4 == 1) {
            x[i] = moderate(), y[i] = moderate(), z[i] = moderate();
        } else if (round % 4 == 2) {
            near_tie(&y[i], &z[i], &x[i]);
        } else if (round % 4 == 3) { /* z[i] small: integers, and halves as floats */
            y[i] = bits((float)((int)(random_bits() % 700u) - 350) / 2);
            z[i] &= 0xffffu;
        }
    }
}

static int is_nan(uint32_t x)
{
    return (x & 0x7fffffffu) > 0x7f800000u;
}

static int same(const struct op *op, const uint32_t *a, const uint32_t *b, int *at)
{
    for (int i = 0; i < WORDS; i++)
        if (a[i] != b[i] && !(op->is_float && is_nan(a[i]) && is_nan(b[i]))) {
            *at = i;
            return 0;
        }
    return 1;
}

/* Number of spellings of op i that differ from the scalar one. */
static int check(int i)
{
    static const char *const spelling[] = {"bytes", "intrinsics"};
    _Alignas(64) static uint32_t x[WORDS], y[WORDS], z[WORDS], want[WORDS], got[WORDS];
    int wrong[2] = {0, 0}, at;
    program run[2];
    program scalar = (program)scalar_table[i];
    run[0] = (program)bytes_table[i];
    run[1] = (program)intrinsics_table[i];
    for (int round = 0; round < ROUNDS; round++) {
        fill(round, x, y, z);
        if (ops[i].pointer)
            memcpy(z, &(const void *){x}, sizeof(void *));
        memset(want, 0xa5, sizeof want);
        scalar(want, x, y, z);
        for (int s = 0; s < 2; s++) {
            memset(got, 0xa5, sizeof got);
            run[s](got, x, y, z);
            if (!same(&ops[i], want, got, &at) && wrong[s]++ < 5)
                printf("FAIL %s: %s stores %08x, scalar %08x; word %d of %08x %08x %08x\n",
                       ops[i].name, spelling[s], got[at], want[at], at, x[at], y[at], z[at]);
        }
    }
    return (wrong[0] != 0) + (wrong[1] != 0);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "target";
    int wrong = 0, n = 0;
    for (int i = 0; needs[i]; i++)
        if (!moegen_rt_cpu_has(needs[i])) {
            printf("%s: skipped, this CPU lacks %s\n", name, needs[i]);
            return 0;
        }
    for (; ops[n].name; n++)
        wrong += check(n);
    printf("%s: %d ops, %d wrong\n", name, n, wrong);
    return wrong != 0;
}
