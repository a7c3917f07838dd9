/* SPDX-License-Identifier: Apache-2.0 */
/* The comparison with a reference at its limits, and what is known of the machine. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "moegen_runtime.h"

static void comparison(void)
{
    double want_data[8] = {1, -2, 0.5, NAN, 0, 0, 0, 0};
    float got_data[12] = {1, -2, 0.5f, NAN, 0, 0, 0, 0, NAN, NAN, NAN, NAN};
    moegen_rt_tensor want = {
        .name = "o", .dtype = MOEGEN_RT_F64, .rank = 2, .shape = {2, 4}, .data = want_data};
    moegen_rt_tensor got = {
        .name = "o", .dtype = MOEGEN_RT_F32, .rank = 3, .shape = {3, 4, 1}, .data = got_data};
    moegen_rt_comparison c;
    moegen_rt_error err;
    CHECK(!moegen_rt_compare(&got, &want, &c, &err) && c.ok && c.l2 == 0 && c.compared == 7 &&
              c.skipped == 1,
          "equal: %s", c.text);
    got_data[2] = 0.5f + 0x1p-18f; /* 16 roundings of 2 */
    CHECK(!moegen_rt_compare(&got, &want, &c, &err) && c.ok && c.roundings == 16 && c.worst == 2,
          "%s", c.text);
    got_data[2] = 0.5f + 0x1p-17f;
    CHECK(!moegen_rt_compare(&got, &want, &c, &err) && !c.ok && c.roundings == 32, "%s", c.text);
    want.terms = 576; /* 1.5 roundings by the root of that */
    CHECK(!moegen_rt_compare(&got, &want, &c, &err) && !c.ok && c.roundings_limit == 36 &&
              c.l2_limit == 2e-6,
          "terms: %s", c.text);
    want.terms = 100;
    CHECK(!moegen_rt_compare(&got, &want, &c, &err) && c.roundings_limit == 16, "%s", c.text);
    want.noise = 0x1p-21; /* 4 roundings, as a norm */
    CHECK(!moegen_rt_compare(&got, &want, &c, &err) && c.roundings_limit == 40 &&
              c.l2_limit == 2e-6 + 0x1p-20 && !c.ok && c.l2 > c.l2_limit,
          "noise: %s", c.text);
    got_data[2] = 0.5f + 0x1p-18f + 0x1p-20f; /* 20 roundings */
    CHECK(!moegen_rt_compare(&got, &want, &c, &err) && c.ok && c.roundings == 20, "noise: %s",
          c.text);
    want.noise = 0;
    want.coarse = 1; /* where outputs have 16 bits */
    CHECK(!moegen_rt_compare(&got, &want, &c, &err) && c.roundings_limit == 16, "coarse: %s",
          c.text);
    got_data[2] = 0.5f;
    got_data[5] = 1e-30f;
    CHECK(!moegen_rt_compare(&got, &want, &c, &err) && !c.ok && isinf(c.roundings) && c.worst == 5,
          "%s", c.text);
    got_data[5] = NAN;
    CHECK(!moegen_rt_compare(&got, &want, &c, &err) && !c.ok && c.nans == 1 && c.worst == 5, "%s",
          c.text);
    double nothing[8] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    want.data = nothing;
    CHECK(!moegen_rt_compare(&got, &want, &c, &err) && c.ok && c.compared == 0 && c.skipped == 8 &&
              strstr(c.text, "no element"),
          "nothing: %s", c.text);
    want.data = want_data;
    got.shape[0] = 1;
    CHECK(moegen_rt_compare(&got, &want, &c, &err) == MOEGEN_RT_BAD_ARGUMENT, "shape");
    int32_t whole[8] = {1, -2, 0, 0, 0, 0, 0, 0};
    moegen_rt_tensor integer = {"o", MOEGEN_RT_I32, 2, {2, 4}, whole, sizeof whole, 0, 0, 0, 0, 0};
    want_data[2] = 0;
    CHECK(!moegen_rt_compare(&integer, &want, &c, &err) && c.ok, "%s", c.text);
    whole[7] = 1;
    CHECK(!moegen_rt_compare(&integer, &want, &c, &err) && !c.ok && c.worst == 7, "%s", c.text);
}

/* Of 16 bits: what may be rounded to as many before. */
static void coarse(void)
{
    double one[2] = {1, 1};
    uint16_t code[2] = {0x3f80, 0x3f81}; /* the second one a unit off */
    moegen_rt_tensor want = {"o", MOEGEN_RT_F64, 1, {2}, one, sizeof one, 0, 0, 0, 0, 0};
    moegen_rt_tensor got = {"o", MOEGEN_RT_BF16, 1, {2}, code, sizeof code, 0, 0, 0, 0, 0};
    moegen_rt_comparison c;
    CHECK(!moegen_rt_compare(&got, &want, &c, NULL) && !c.ok && c.l2_limit == 4e-3, "%s", c.text);
    want.coarse = 0x1p-9;
    CHECK(!moegen_rt_compare(&got, &want, &c, NULL) && c.ok && c.l2_limit == 4e-3 + 0x1p-8 &&
              c.roundings_limit == 17.5,
          "coarse: %s", c.text);
}

/* Numbers in rows of 40, rounded to a 16-bit type in some way, moved before by `noise` times the
 * largest: 1. once: as what is rounded once. */
static moegen_rt_comparison round_trip(moegen_rt_dtype dtype, double (*round)(double), double noise,
                                       int once)
{
    enum { N = 2000 };
    static double x[N], y[N];
    static uint16_t code[N];
    const moegen_rt_dtype_facts *facts = moegen_rt_dtype_of(dtype);
    moegen_rt_tensor want = {"o", MOEGEN_RT_F64, 2, {N / 40, 40}, x, sizeof x, 0, once, 0, 0, 0};
    moegen_rt_tensor got = {"o", dtype, 2, {N / 40, 40}, code, sizeof code, 0, 0, 0, 0, 0};
    moegen_rt_comparison c = {0};
    uint32_t state = 7;
    for (int i = 0; i < N; i++) {
        int exponent;
        state = state * 1664525 + 1013904223;
        x[i] = i % 40 ? (double)(int32_t)state * 0x1p-31 : 1;
        double moved = x[i] + noise * (i % 2 ? 1 : -1);
        frexp(moved, &exponent);
        double unit = ldexp(1, exponent - facts->digits);
        y[i] = round(moved / unit) * unit;
    }
    moegen_rt_encode(dtype, y, N, code);
    CHECK(!moegen_rt_compare(&got, &want, &c, NULL), "round trip");
    return c;
}

static void roundings(void)
{
    static const moegen_rt_dtype types[] = {MOEGEN_RT_BF16, MOEGEN_RT_F16};
    for (int i = 0; i < 2; i++)
        for (int once = 0; once < 2; once++) {
            moegen_rt_comparison c = round_trip(types[i], nearbyint, 0, once);
            CHECK(c.ok && fabs(c.bias) < 0.03 && c.beyond == 0, "nearest: %s", c.text);
            c = round_trip(types[i], nearbyint, 0x1p-21, once); /* 4 roundings of f32 */
            CHECK(c.ok && c.beyond <= 4, "nearest, arithmetic: %s", c.text);
            c = round_trip(types[i], nearbyint, 0x1p-18, once); /* 32 */
            CHECK(c.ok == !once, "nearest, bad arithmetic: %s", c.text);
            c = round_trip(types[i], trunc, 0, once);
            CHECK(!c.ok && fabs(c.bias + 0.5) < 0.03, "cut off: %s", c.text);
            c = round_trip(types[i], floor, 0, once); /* without a bias away from 0 */
            CHECK(c.ok == !once, "down: %s", c.text);
        }
}

/* Subnormal numbers, which rounding to nearest moves by up to half a unit, far more than a limit of
 * the type; all of them moved by so many units beyond that, away from 0. */
static moegen_rt_comparison small_numbers(moegen_rt_dtype dtype, double units)
{
    enum { N = 2000 };
    static double x[N], y[N];
    static uint16_t code[N];
    moegen_rt_tensor want = {"o", MOEGEN_RT_F64, 2, {N / 40, 40}, x, sizeof x, 0, 0, 0, 0, 0};
    moegen_rt_tensor got = {"o", dtype, 2, {N / 40, 40}, code, sizeof code, 0, 0, 0, 0, 0};
    moegen_rt_comparison c = {0};
    memset(code, 0, sizeof code);
    code[0] = 1; /* the least number */
    double unit;
    moegen_rt_decode(dtype, code, 1, &unit);
    for (int i = 0; i < N; i++) {
        x[i] = unit * (1 + i % 89 / 64.0);
        y[i] = unit * (nearbyint(x[i] / unit) + units);
    }
    moegen_rt_encode(dtype, y, N, code);
    CHECK(!moegen_rt_compare(&got, &want, &c, NULL), "small numbers");
    return c;
}

static void subnormal(void)
{
    static const moegen_rt_dtype types[] = {MOEGEN_RT_F16, MOEGEN_RT_FP8_E4M3, MOEGEN_RT_FP8_E5M2};
    for (int i = 0; i < 3; i++) {
        moegen_rt_comparison c = small_numbers(types[i], 0);
        CHECK(c.ok && c.l2 == 0, "subnormal, nearest: %s", c.text);
        c = small_numbers(types[i], 1);
        CHECK(!c.ok && c.l2 > 0.3, "subnormal, off by a unit: %s", c.text);
    }
}

/* A type without infinities ends at its largest number; others do not. */
static void beyond_range(void)
{
    double x[4] = {1000, -1e9, 3, -2};
    uint8_t code[4], wrong[4];
    uint16_t half[4];
    moegen_rt_tensor want = {"o", MOEGEN_RT_F64, 1, {4}, x, sizeof x, 0, 0, 0, 0, 0};
    moegen_rt_tensor got = {"o", MOEGEN_RT_FP8_E4M3, 1, {4}, code, sizeof code, 0, 0, 0, 0, 0};
    moegen_rt_comparison c;
    moegen_rt_encode(MOEGEN_RT_FP8_E4M3, x, 4, code);
    CHECK(!moegen_rt_compare(&got, &want, &c, NULL) && c.ok && c.l2 == 0, "saturated: %s", c.text);
    memcpy(wrong, code, sizeof wrong);
    wrong[0] = (uint8_t)(code[0] - 2); /* 384 */
    got.data = wrong;
    CHECK(!moegen_rt_compare(&got, &want, &c, NULL) && !c.ok, "less than saturated: %s", c.text);
    got.dtype = MOEGEN_RT_F16;
    got.data = half;
    got.bytes = sizeof half;
    moegen_rt_encode(MOEGEN_RT_F16, x, 4, half);
    half[1] = 0xfbff; /* largest, where infinity belongs */
    CHECK(!moegen_rt_compare(&got, &want, &c, NULL) && !c.ok, "no infinity: %s", c.text);
}

/* Of what f32 has no room for, errors count as if it were larger; zeros are zeros. */
static void tiny(void)
{
    double want_data[4] = {1e-40, -3e-38, 0, 0};
    float got_data[4] = {0, -0x1p-126f, 0, 0};
    moegen_rt_tensor want = {"o", MOEGEN_RT_F64, 2, {2, 2}, want_data, sizeof want_data, 0, 0, 0, 0,
                             0};
    moegen_rt_tensor got = {"o", MOEGEN_RT_F32, 2, {2, 2}, got_data, sizeof got_data, 0, 0, 0, 0,
                            0};
    moegen_rt_comparison c;
    CHECK(!moegen_rt_compare(&got, &want, &c, NULL) && c.ok && c.l2 < 1e-8, "tiny: %s", c.text);
    got_data[2] = 1e-40f;
    CHECK(!moegen_rt_compare(&got, &want, &c, NULL) && !c.ok, "tiny for zero: %s", c.text);
    got_data[2] = 0;
    got_data[0] = (float)(want_data[0] = 1e-28);
    CHECK(!moegen_rt_compare(&got, &want, &c, NULL) && c.ok, "small: %s", c.text);
    got_data[0] *= 1.00001f;
    CHECK(!moegen_rt_compare(&got, &want, &c, NULL) && !c.ok && c.l2 > 9e-6, "small: %s", c.text);
}

static void machine(void)
{
    CHECK(moegen_rt_cpu_count() >= 1, "cpu count");
    CHECK(moegen_rt_cpu_has("avx512vbmi") == moegen_rt_cpu_has("avx512_vbmi"), "underscores");
    CHECK(!moegen_rt_cpu_has("no_such") && !moegen_rt_cpu_has(""), "unknown feature");
    for (int i = 0; moegen_rt_cpu_feature(i); i++)
        if (moegen_rt_cpu_has(moegen_rt_cpu_feature(i)))
            printf("%s ", moegen_rt_cpu_feature(i));
    printf("\nL1 %zu L2 %zu L3 %zu, %d CPUs\n", moegen_rt_cpu_cache(1), moegen_rt_cpu_cache(2),
           moegen_rt_cpu_cache(3), moegen_rt_cpu_count());
    char *a = moegen_rt_alloc(0), *b = moegen_rt_alloc(5 << 20);
    CHECK(a && b && (uintptr_t)a % 64 == 0 && (uintptr_t)b % (2 << 20) == 0, "alignment");
    moegen_rt_free(a);
    moegen_rt_free(b);
}

int main(void)
{
    comparison();
    coarse();
    roundings();
    subnormal();
    beyond_range();
    tiny();
    machine();
    return failures != 0;
}
