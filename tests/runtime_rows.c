/* SPDX-License-Identifier: Apache-2.0 */
/* The loops over much f32 and bf16 give the bits that encoding and decoding in double give: at ties
 * and beside them under awkward scales, at all lengths, for what no scale serves; of bf16 all under
 * all scales that come of a largest magnitude. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "format.h"

static uint64_t state = 1;
static uint32_t random_bits(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A scale of the format, and of what it may have beside it. */
static double random_scale(const struct rt_format *f, int i)
{
    if (rt_format_has_rule(f))
        return f->scale->value((uint32_t)i % 256);
    if (f->scale->bits == 8)
        return f->scale->value(random_bits() % 0x80);
    uint32_t e = i % 7 ? 80 + random_bits() % 90 : random_bits() % 255;
    uint32_t bits = e << 23 | (random_bits() & 0x7fffff);
    if (i % 7 == 3) /* what f32 has no bits for is what lifts a subnormal above a tie */
        bits = (1 + random_bits() % 20) << 23 | 1u << random_bits() % 23;
    return f->scale->value(f->scale->bits == 16 ? bits >> 16 : bits);
}

enum { ALL = 4000 };

/* Every code and every middle of two under a scale, the f32 next to it and its neighbours. */
static int around(const struct rt_format *f, double by, float x[ALL])
{
    int n = 0;
    unsigned codes = 1u << f->element->bits;
    for (unsigned a = 0; a < codes; a++) {
        double now = f->element->value(a), next = f->element->value((a + 1) % codes);
        double at[] = {now, (now + next) / 2};
        for (int k = 0; k < 2; k++) {
            float near = (float)(at[k] * by);
            if (!isfinite(near) || fabs(at[k]) > 2 * f->element->largest)
                continue;
            x[n++] = near;
            x[n++] = nextafterf(near, INFINITY);
            x[n++] = nextafterf(near, -INFINITY);
        }
    }
    for (int i = 0; i < n; i++)
        if (!isfinite(x[i]))
            x[i] = 0;
    return n;
}

static void same_codes(const struct rt_rows *r, const float *x, int n, double scale, double second,
                       const char *what)
{
    static double wide[ALL], inverses[ALL];
    static float q[ALL];
    static uint8_t got[ALL], want[ALL], byte[ALL];
    const struct rt_format *f = r->format;
    n -= n % 2;
    for (int i = 0; i < n; i++) {
        wide[i] = (double)x[i];
        inverses[i] = rt_rows_inverse(scale, second);
    }
    memset(want, 0, sizeof want);
    rt_format_encode(f, wide, n, scale, second, want, 0);
    for (int each = 0; each < (r->exact ? 1 : 2); each++) {
        memset(got, 0xaa, sizeof got);
        if (each)
            rt_rows_scale_each(x, n, inverses, q);
        else
            rt_rows_scale(r, x, n, inverses[0], q);
        rt_rows_bytes(r, q, n, f->element->bits == 4 ? byte : got);
        if (f->element->bits == 4)
            rt_rows_pairs(byte, n, got);
        int64_t bytes = rt_format_bytes(f, n);
        for (int64_t i = 0; i < bytes; i++)
            CHECK(got[i] == want[i], "%s, %s, each %d: %a under %a * %a: %#x, expected %#x",
                  f->name, what, each, (double)x[i * 8 / f->element->bits], scale, second, got[i],
                  want[i]);
        CHECK(got[bytes] == 0xaa, "%s: wrote past the end", f->name);
    }
}

static void encoding(const struct rt_rows *r)
{
    static float x[ALL];
    const struct rt_format *f = r->format;
    for (int i = 0; i < 600; i++) {
        double second = f->second ? (double)float_of(0x30000000 + random_bits() % 0x10000000) : 1;
        double scale = random_scale(f, i);
        if (isnan(scale))
            continue;
        int n = around(f, scale * second, x);
        same_codes(r, x, n, scale, second, "ties");
    }
    double scale = f->scale->value(f->scale->code(1));
    for (int n = 0; n < 100; n += 2) { /* lengths, and no order in what is where */
        for (int i = 0; i < n; i++)
            x[i] = ldexpf((float)(int32_t)random_bits(), -28);
        same_codes(r, x, n, scale, 1, "lengths");
    }
    float odd_ones[] = {INFINITY, 1, -INFINITY, -2, NAN, -0.0f, 0, 3};
    for (int i = 0; i < 64; i++)
        x[i] = odd_ones[i % 8];
    same_codes(r, x, 64, (double)NAN, 1, "scale of NaN");
    if (f->second)
        same_codes(r, x, 64, 0, 1, "scale of zero");
}

static void magnitudes(void)
{
    float x[100];
    uint16_t narrow[100];
    uint32_t most[100];
    for (int n = 0; n < 100; n++) {
        uint32_t largest = 0;
        for (int i = 0; i < n; i++) {
            uint32_t bits = random_bits() >> (n % 3 ? 0 : 2); /* NaN among them, or not */
            x[i] = float_of(bits);
            most[i] = i % 2 ? 0 : 0x7fffffff;
            largest = (bits & INT32_MAX) > largest ? bits & INT32_MAX : largest;
        }
        CHECK(rt_rows_most(MOEGEN_RT_F32, x, n) == largest, "most of %d", n);
        rt_rows_raise(MOEGEN_RT_F32, x, n, most);
        for (int i = 0; i < n; i++)
            CHECK(most[i] == (i % 2 ? bits_of(x[i]) & INT32_MAX : 0x7fffffff), "raise of %d", n);
        for (int i = 0; i < n; i++) {
            narrow[i] = (uint16_t)(bits_of(x[i]) >> 16);
            most[i] = i % 2 ? 0 : 0x7fff0000;
        }
        CHECK(rt_rows_most(MOEGEN_RT_BF16, narrow, n) == (largest & 0xffff0000), "bf16 of %d", n);
        rt_rows_raise(MOEGEN_RT_BF16, narrow, n, most);
        for (int i = 0; i < n; i++)
            CHECK(most[i] == (i % 2 ? (uint32_t)narrow[i] << 16 & INT32_MAX : 0x7fff0000),
                  "bf16: raise of %d", n);
    }
    CHECK(isnan(rt_rows_amax(0x7f800000)) && isnan(rt_rows_amax(0x7fc00000)), "amax of infinity");
    CHECK(rt_rows_amax(0x7f7fffff) == 0x1.fffffep127 && rt_rows_amax(0) == 0, "amax");
    CHECK(rt_rows_inverse(0, 1) == 0 && rt_rows_inverse((double)NAN, 1) == 0, "inverses");
}

/* Scales that follow from bits are those that follow from numbers. */
static void scales(const struct rt_rows *r)
{
    const struct rt_format *f = r->format;
    for (uint32_t e = 0; e < 256; e++)
        for (int i = 0; i < 20; i++) {
            uint32_t most = e << 23 | (i == 0 ? 0 : i == 1 ? 0x7fffff : random_bits() >> 9);
            enum rt_rule rule = i % 3 ? RT_OCP : RT_WIDE;
            double second = f->second ? 0x1.234567p-60 : 1, inverse;
            uint32_t want = rt_format_scale_code(f, rule, rt_rows_amax(most), second);
            uint32_t got = rt_rows_scale_code(r, rule, most, second, &inverse);
            CHECK(got == want, "%s: scale of %#x is %#x, expected %#x", f->name, most, got, want);
            CHECK(inverse == rt_rows_inverse(f->scale->value(want), second),
                  "%s: inverse of scale %#x is %g", f->name, got, inverse);
        }
}

/* Numbers of all sizes, zeros, and what is none, in groups; as f32, and as bf16 as well. */
static void grouped(float *x, uint16_t *narrow, int64_t n, int group, bool odd_ones)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = random_bits() & (narrow ? 0xffff0000 : UINT32_MAX);
        uint32_t of = (uint32_t)(i / group);
        bool odd = odd_ones && of % 5 == 1;
        x[i] = float_of(odd ? bits : (bits & 0x83ffffff) | 0x3c000000);
        if (odd && of % 2)
            x[i] = of % 3 ? 0 : float_of(bits & 0x807fffff);
        if (narrow)
            narrow[i] = (uint16_t)(bits_of(x[i]) >> 16);
    }
}

enum { MUCH = 128 * 150 };

/* Scales and codes of groups, one after the other; how many scales are NaN. */
static int64_t one_by_one(const struct rt_grouping *g, const float *x, int64_t n, double second,
                          void *scales, uint8_t *byte)
{
    static float q[MUCH];
    int64_t nans = 0;
    for (int64_t k = 0; k < n / g->group; k++) {
        double inverse;
        uint32_t most = rt_rows_most(MOEGEN_RT_F32, x + k * g->group, g->group);
        rt_format_put_scale(g->rows->format, scales, k,
                            rt_rows_scale_code(g->rows, g->rule, most, second, &inverse));
        rt_rows_scale(g->rows, x + k * g->group, g->group, inverse, q + k * g->group);
        nans += most >= 0x7f800000;
    }
    rt_rows_bytes(g->rows, q, n, byte);
    return nans;
}

/* Many groups at once as one after the other, along rows and beside each other. */
static void in_groups(const struct rt_rows *r, int group, int kind)
{
    static float x[MUCH];
    static uint16_t narrow[MUCH], turned_narrow[MUCH];
    static float turned[MUCH];
    static uint8_t got[MUCH], want[MUCH], columns[128 * RT_COLUMNS], scales[3][4 * MUCH / 16];
    const char *name = r->format->name;
    const bool bf16 = kind & 16;
    struct rt_second second = {r->format->second ? kind & 1 ? 0x1.234568p-9 : 1 : 1, 1};
    struct rt_second seconds[RT_COLUMNS];
    const struct rt_grouping g = {r, kind & 2 ? RT_WIDE : RT_OCP,
                                  bf16 ? MOEGEN_RT_BF16 : MOEGEN_RT_F32, group};
    const int64_t n = group * (kind & 4 ? 150 : 7), size = r->format->scale->bits / 8;
    grouped(x, bf16 ? narrow : NULL, n, group, kind & 8);
    memset(scales, 0, sizeof scales);
    int64_t nans = one_by_one(&g, x, n, second.scale, scales[1] + 3 * size, want);
    int64_t count =
        rt_rows_groups(&g, bf16 ? (const void *)narrow : x, n, &second, scales[0], 3, got);
    CHECK(count == nans, "%s: %d NaN, expected %d", name, (int)count, (int)nans);
    CHECK(memcmp(scales[0], scales[1], sizeof scales[0]) == 0, "%s: scales of %d, %d", name, group,
          kind);
    CHECK(memcmp(got, want, (size_t)n) == 0, "%s: codes of %d, %d", name, group, kind);

    const int64_t wide = n / group < RT_COLUMNS ? n / group : RT_COLUMNS, stride = n / group;
    for (int64_t i = 0; i < n; i++) {
        turned[i % group * stride + i / group] = x[i];
        turned_narrow[i % group * stride + i / group] = narrow[i];
    }
    for (int64_t i = 0; i < wide; i++)
        seconds[i] = second;
    (void)rt_rows_columns(&g, bf16 ? (const void *)turned_narrow : turned, stride, wide, seconds,
                          scales[2], columns);
    CHECK(memcmp(scales[2], scales[1] + 3 * size, (size_t)(wide * size)) == 0,
          "%s: scales of columns of %d, %d", name, group, kind);
    for (int64_t i = 0; i < wide * group; i++)
        CHECK(columns[i % group * RT_COLUMNS + i / group] == want[i], "%s: code %d of %d, %d", name,
              (int)i, group, kind);
    if (r->format->element->bits != 4)
        return;
    memset(got, 0, sizeof got);
    rt_rows_column_pairs(columns, group);
    for (int64_t i = 0; i < wide * group / 2; i++)
        CHECK(columns[i % (group / 2) * RT_COLUMNS + i / (group / 2)] ==
                  (want[2 * i] | want[2 * i + 1] << 4),
              "%s: pair %d of %d, %d", name, (int)i, group, kind);
    rt_rows_column_apart(columns, group);
    for (int64_t i = 0; i < wide * group; i++)
        CHECK(columns[i % group * RT_COLUMNS + i / group] == want[i], "%s: apart %d of %d, %d",
              name, (int)i, group, kind);
}

/* All bf16 of 24 binades, not above m * 2^7, under a scale for these: codes as they are of
 * quotients in double, and nothing doubtful where values are multiplied by a little more or less.
 */
static void all_under(const struct rt_rows *r, double scale, double second, double lean)
{
    enum { N = 128 * 2 };
    static double wide[N];
    static uint16_t x[N];
    static uint8_t got[N], want[N];
    float by, factors[N];
    const struct rt_format *f = r->format;
    const double inverse = rt_rows_inverse(scale, second);
    if (!rt_rows_factors(r, &inverse, &lean, 1, &by))
        return;
    rt_rows_spread(&by, 1, N, factors); /* of one each or of runs */
    for (int e = f->second ? 110 : 0; e <= 134; e++) {
        for (int i = 0; i < N; i++) {
            x[i] = (uint16_t)((i & 1) << 15 | e << 7 | i >> 1);
            wide[i] = (double)float_of((uint32_t)x[i] << 16);
            want[i] = (uint8_t)f->element->code(wide[i] / (scale * second));
        }
        uint64_t doubtful =
            rt_rows_direct(r, MOEGEN_RT_BF16, x, N, e % 2 ? 1 : RT_DIRECT_RUN, factors, got);
        CHECK(doubtful == 0 || (lean == 1 && !r->exact && !r->narrow),
              "%s: bf16 under %a * %a are doubtful", f->name, scale, second);
        for (int i = 0; i < N; i++)
            CHECK(got[i] == want[i] || doubtful >> i / RT_DIRECT_BLOCK & 1,
                  "%s: %a under %a * %a is %#x, expected %#x", f->name, wide[i], scale, second,
                  got[i], want[i]);
    }
}

static void all_bf16(const struct rt_rows *r)
{
    const struct rt_format *f = r->format;
    const struct rt_coding *c = f->scale;
    for (int m = 128; m < 256; m++) {
        const double second = f->second ? (double)rt_format_second(f, m) : 1;
        if (!f->second) {
            const double scale = c->value(rt_format_scale_code(f, RT_OCP, m, 1));
            const double lean =
                c->bits == 32 ? rt_rows_lean(MOEGEN_RT_BF16, m / (f->element->largest * scale)) : 1;
            all_under(r, scale, 1, lean);
        }
        const double of = f->element->largest * c->largest;
        for (uint32_t code = 1; f->second && code <= c->code(c->largest); code += 3)
            all_under(r, c->value(code), second, rt_rows_lean(MOEGEN_RT_BF16, m / (of * second)));
    }
}

static void decoding(const struct rt_rows *r, moegen_rt_dtype dtype)
{
    static const double seconds[] = {1, 0x1.fffffep-20, 0x1p-149, 3};
    static const int64_t runs[] = {512, 1, 32, 17}; /* scales[] are the same */
    uint8_t codes[256], got[512 * 4], want[512 * 4];
    float elements[512], space[512];
    double values[512], scales[512];
    const struct rt_format *f = r->format;
    int n = f->element->bits == 8 ? 256 : 512;
    size_t bytes = moegen_rt_dtype_of(dtype)->bytes;
    for (int i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    rt_rows_elements(r, codes, n, elements);
    for (int i = 0; i < 1000; i++) {
        double scale = random_scale(f, i) * (f->second ? seconds[i % 4] : 1);
        int part = n - 2 * (i % 40); /* all lengths */
        rt_format_elements(f, codes, 0, n, values);
        for (int k = 0; k < n; k++)
            values[k] *= scales[k] = scale;
        moegen_rt_encode(dtype, values, (size_t)part, want);
        rt_rows_values(r, elements, part, runs[i % 4], scales, dtype, got, space);
        for (int k = 0; k < part; k++) {
            double a, b;
            moegen_rt_decode(dtype, got + (size_t)k * bytes, 1, &a);
            moegen_rt_decode(dtype, want + (size_t)k * bytes, 1, &b);
            CHECK(isnan(b) ? isnan(a) : a == b && signbit(a) == signbit(b),
                  "%s: code %d under %a is %a in %s, expected %a", f->name, k, scale, a,
                  moegen_rt_dtype_of(dtype)->name, b);
        }
    }
}

int main(void)
{
    static const moegen_rt_dtype dtypes[] = {MOEGEN_RT_F32, MOEGEN_RT_BF16, MOEGEN_RT_F16};
    struct rt_rows r;
    magnitudes();
    for (int i = 0; rt_format_at(i); i++) {
        rt_rows_open(&r, rt_format_at(i));
        scales(&r);
        encoding(&r);
        for (const int *group = rt_format_at(i)->groups; *group; group++)
            for (int kind = 0; kind < 64; kind++)
                in_groups(&r, *group, kind & 31);
        all_bf16(&r);
        for (int d = 0; d < 3; d++)
            decoding(&r, dtypes[d]);
    }
    return failures != 0;
}
