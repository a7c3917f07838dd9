/* SPDX-License-Identifier: Apache-2.0 */
/* Formats of stored weights: every code under every scale against the formula of the standard,
 * written out here; encoding against the nearest of all codes; scales of both rules.
 *   runtime_format                 the test
 *   runtime_format CODING          doubles on stdin, codes (one byte each) on stdout */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "format.h"

/* What a code is worth, as its standard puts it. */
struct statement {
    const char *coding;
    int bits, exponent, mantissa, bias; /* of floats; exponent 0: an integer less `bias` */
    int infinity, nan; /* codes without sign: infinity, and from where on NaN; 256: none */
    double known[256]; /* main's: worth of each code */
};
static struct statement statements[] = {
    {"e4m3", 8, 4, 3, 7, 256, 0x7f, {0}}, /* OCP 8-bit formats: S.1111.111 is NaN, no infinities */
    {"e5m2", 8, 5, 2, 15, 0x7c, 0x7d, {0}}, {"e2m1", 4, 2, 1, 1, 256, 256, {0}},
    {"e8m0", 8, 8, 0, 127, 256, 256, {0}},  {"i8", 8, 0, 0, 0, 256, 256, {0}},
    {"i4", 4, 0, 0, 8, 256, 256, {0}},
};
enum { STATEMENTS = sizeof statements / sizeof *statements };

static double power(int e) /* 2^e */
{
    double x = 1;
    for (; e > 0; e--)
        x *= 2;
    for (; e < 0; e++)
        x /= 2;
    return x;
}

static double formula(const struct statement *s, unsigned code)
{
    if (strcmp(s->coding, "e8m0") == 0)
        return code == 255 ? (double)NAN : power((int)code - 127);
    if (s->exponent == 0)
        return s->bias ? (int)code - s->bias : (int8_t)code;
    unsigned size = code & ((1u << (s->bits - 1)) - 1);
    unsigned e = size >> s->mantissa, m = size & ((1u << s->mantissa) - 1);
    double fraction = m / power(s->mantissa);
    double x = e ? (1 + fraction) * power((int)e - s->bias) : fraction * power(1 - s->bias);
    if ((int)size >= s->nan)
        x = (double)NAN;
    else if ((int)size == s->infinity)
        x = (double)INFINITY;
    return code >> (s->bits - 1) ? -x : x;
}

static double worth(const struct statement *s, unsigned code)
{
    return s->known[code];
}

static int same(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

static const struct statement *of(const struct rt_coding *c)
{
    for (int i = 0; i < STATEMENTS; i++)
        if (strcmp(statements[i].coding, c->name) == 0)
            return &statements[i];
    return NULL;
}

/* ---- encoding one element ---- */

/* The nearest code by looking at all of them: of two, the one whose last bit is 0; of two zeros,
 * the one of that sign. -128 is not made: i8 is symmetric. */
static unsigned nearest(const struct statement *s, double x)
{
    unsigned best = 0;
    double least = (double)INFINITY;
    x = fmax(-1e6, fmin(x, 1e6)); /* all that is beyond any is as near to each as that */
    for (unsigned code = 0; code < 1u << s->bits; code++) {
        double y = worth(s, code), off = fabs(x - y);
        if (!isfinite(y) || (s->exponent == 0 && s->bits == 8 && code == 128))
            continue;
        int closer = off < least || (off == least && (code & 1) < (best & 1));
        if (off == least && (code & 1) == (best & 1)) /* +0 and -0 */
            closer = signbit(y) == signbit(x);
        if (closer) {
            best = code;
            least = off;
        }
    }
    return best;
}

static void check_code(const struct rt_coding *c, double x)
{
    unsigned got = c->code(x), want = nearest(of(c), x);
    CHECK(got == want, "%s: %a is %#x, expected %#x", c->name, x, got, want);
}

static void codes_of(const struct rt_coding *c)
{
    const struct statement *s = of(c);
    static const double edges[] = {0.0, 5e-324, 1e-300, 1e300, (double)INFINITY};
    unsigned all = 1u << s->bits;
    CHECK(c->bits == s->bits, "%s has %d bits", c->name, c->bits);
    for (unsigned a = 0; a < all; a++) {
        double x = worth(s, a), next = worth(s, (a + 1) % all);
        CHECK(same(c->value(a), x), "%s %#x is %g, expected %g", c->name, a, c->value(a), x);
        CHECK(!isfinite(x) || x <= c->largest, "%s: %g is above the largest", c->name, x);
        if (!isfinite(x) || (strcmp(s->coding, "i8") == 0 && a == 128))
            continue;
        CHECK(c->code(x) == a, "%s %#x comes back as %#x", c->name, a, c->code(x));
        check_code(c, nextafter(x, 1e9));
        check_code(c, nextafter(x, -1e9));
        if (!isfinite(next))
            continue;
        check_code(c, x + (next - x) / 2);
        check_code(c, nextafter(x + (next - x) / 2, x));
        check_code(c, nextafter(x + (next - x) / 2, next));
    }
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        check_code(c, edges[i]);
        check_code(c, -edges[i]);
    }
    for (int i = 1; i < 64; i++) { /* past the ends, in steps across ties there */
        check_code(c, c->largest * (1 + i / 256.0));
        check_code(c, c->lowest * (1 + i / 256.0));
    }
    double of_nan = c->value(c->code((double)NAN));
    CHECK(s->nan < 256 ? isnan(of_nan) : of_nan == 0, "%s: NaN becomes %g", c->name, of_nan);
}

/* The power of two not above x; what is none, or too small or large, by the rules. */
static void powers(void)
{
    const struct rt_coding *c = rt_coding_find("e8m0");
    for (int e = -1074; e < 1024; e++) {
        double x = power(e);
        int want = e < -127 ? 0 : e > 127 ? 254 : e + 127;
        CHECK((int)c->code(x) == want, "2^%d is %u", e, c->code(x));
        if (e > -1074)
            CHECK((int)c->code(nextafter(2 * x, 0)) == want, "below 2^%d: %u", e + 1, c->code(x));
    }
    for (unsigned a = 0; a < 256; a++)
        CHECK(same(c->value(a), worth(of(c), a)), "e8m0 %#x is %g", a, c->value(a));
    CHECK(c->code((double)NAN) == 255 && c->code(0) == 0, "e8m0 of NaN or 0");
    CHECK(c->code((double)INFINITY) == 254, "e8m0 of infinity");
}

/* ---- decoding: all codes under all scales ---- */

enum { MANY = 65536 };

/* Scales of a coding: all of up to 16 bits, and of f32 every exponent with several mantissas. */
static unsigned scale_codes(const struct rt_coding *c, uint32_t code[MANY])
{
    static const uint32_t mantissas[] = {0, 1, 0x400000, 0x2aaaaa, 0x7fffff};
    unsigned n = 0;
    if (c->bits < 32)
        for (; n < 1u << c->bits; n++)
            code[n] = n;
    else
        for (uint32_t top = 0; top < 512; top++)
            for (int m = 0; m < 5; m++)
                code[n++] = top << 23 | mantissas[m];
    return n;
}

static double scale_worth(const struct rt_coding *c, uint32_t code)
{
    float x;
    uint32_t bits = c->bits == 16 ? code << 16 : code;
    memcpy(&x, &bits, sizeof x);
    return of(c) ? worth(of(c), code) : (double)x;
}

/* A matrix of one row for each code, all under one scale; of 4 bits the row holds the code and its
 * neighbour, in this order. */
static void decoding(const struct rt_format *f)
{
    static uint32_t code[MANY];
    unsigned scales = scale_codes(f->scale, code);
    static const double seconds[] = {1, 0x1.fffffep-20, 0x1p-149, 3};
    const struct statement *s = of(f->element);
    unsigned all = 1u << f->element->bits;
    uint8_t codes[256];
    for (unsigned a = 0; a < all; a++)
        codes[a] = (uint8_t)(f->element->bits == 8 ? a : a | ((a + 1) & 15) << 4);
    int64_t in = 8 / f->element->bits;
    struct rt_cut cut = rt_format_cut(f, RT_STATIC, 0, all, in);
    for (unsigned i = 0; i < scales; i++)
        for (int k = 0; k < (f->second ? 4 : 1); k++)
            for (unsigned a = 0; a < all; a++) {
                double got[2], scale = scale_worth(f->scale, code[i]) * seconds[k];
                rt_format_values(f, &cut, codes, &code[i], seconds[k], in, a, 0, in, got);
                for (int n = 0; n < in; n++) {
                    double want = worth(s, (a + (unsigned)n) & (all - 1)) * scale;
                    CHECK(same(got[n], want), "%s %#x scale %#x: %g, expected %g", f->name, a,
                          code[i], got[n], want);
                }
            }
}

/* Which scale an element has: the values are 1 (or 2 for the second scale's sake), the scales
 * differ. */
static void cuts(const struct rt_format *f, enum rt_share share, int64_t group)
{
    enum { OUT = 300, IN = 384 };
    static uint8_t codes[OUT * IN];
    static uint32_t scales[OUT * IN / 16];
    static double got[IN];
    const struct rt_sharing *s = &rt_sharings[share];
    int64_t high = s->out ? s->out : OUT, wide = s->in > 0 ? s->in : s->in < 0 ? group : IN;
    int64_t columns = (IN + wide - 1) / wide, rows = (OUT + high - 1) / high;
    struct rt_cut cut = rt_format_cut(f, share, group, OUT, IN);
    unsigned one = f->element->code(1), usable = f->scale->bits == 8 ? 0x70 : 0x3f80;
    CHECK(cut.rows == rows && cut.columns == columns, "%s %s: %lld x %lld scales", f->name, s->name,
          (long long)cut.rows, (long long)cut.columns);
    memset(codes, (int)(f->element->bits == 4 ? one | one << 4 : one), sizeof codes);
    for (int64_t i = 0; i < rows * columns; i++) {
        uint32_t code = (uint32_t)(i * 7 + i / 101) % usable;
        rt_format_put_scale(f, scales, i, code);
    }
    for (int64_t o = 0; o < OUT; o++) {
        int64_t first = o % 33; /* also from within a group */
        rt_format_values(f, &cut, codes, scales, 2, IN, o, first, IN - first, got);
        for (int64_t i = first; i < IN; i++) {
            int64_t at = o / high * columns + i / wide;
            uint32_t code = (uint32_t)(at * 7 + at / 101) % usable;
            CHECK(same(got[i - first], 2 * scale_worth(f->scale, code)),
                  "%s %s: element (%lld, %lld) is %g", f->name, s->name, (long long)o, (long long)i,
                  got[i - first]);
        }
    }
}

/* ---- encoding what shares a scale ---- */

static uint64_t state = 1;
static double uniform(void) /* -1 .. 1 */
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(state >> 11 << 11) / 0x1p63;
}

/* The scale of a power of two, by trying them all: the largest e with 2^e <= amax. */
static int power_wanted(const struct rt_format *f, enum rt_rule rule, double amax)
{
    int e = -1074, top = -20;
    while (e < 1023 && power(e + 1) <= amax)
        e++;
    while (power(top + 1) <= f->element->largest)
        top++;
    int want = e - top + (rule == RT_WIDE) + 127;
    return amax == 0 || want < 0 ? 0 : want > 254 ? 254 : want;
}

/* The scale's code, and each element's: the nearest to the exact quotient. */
static void check_group(const struct rt_format *f, enum rt_rule rule, const double *x, double s2)
{
    double amax = 0;
    uint8_t codes[32] = {0};
    for (int i = 0; i < 32; i++)
        amax = fmax(amax, fabs(x[i]));
    CHECK(rt_format_amax(x, 32, 1) == amax, "%s: largest magnitude", f->name);
    uint32_t code = rt_format_scale_code(f, rule, amax, s2);
    double scale = f->scale->value(code);
    if (rt_format_has_rule(f))
        CHECK((int)code == power_wanted(f, rule, amax), "%s: scale of %g is %u", f->name, amax,
              code);
    rt_format_encode(f, x, 32, scale, s2, codes, 0);
    for (int i = 0; i < 32; i++) {
        unsigned got = f->element->bits == 8 ? codes[i] : codes[i / 2] >> 4 * (i & 1) & 15;
        unsigned want =
            scale == 0 ? f->element->code(0 * x[i]) : nearest(of(f->element), x[i] / (scale * s2));
        CHECK(got == want, "%s: %a of scale %a is %#x, expected %#x", f->name, x[i], scale, got,
              want);
    }
    if (rule == RT_WIDE && rt_format_has_rule(f) && code > 0 && code < 254)
        CHECK(amax / scale <= f->element->largest, "%s: %a clips under rule wide", f->name, amax);
}

static void groups(const struct rt_format *f)
{
    double x[32];
    for (int e = -1074; e < 1023; e += abs(e + 15) < 145 ? 3 : 61) /* all of f32, and beyond */
        for (int rule = 0; rule < (rt_format_has_rule(f) ? 2 : 1); rule++) {
            for (int i = 0; i < 32; i++)
                x[i] = ldexp(uniform(), i % 4 ? e : e - i);
            x[3] = -0.0;
            x[5] = ldexp(1.9375, e - 1); /* clips in e4m3 by rule ocp */
            check_group(f, (enum rt_rule)rule, x, 1);
            x[7] = ldexp(1, e); /* exactly a power of two, nothing beyond */
            check_group(f, (enum rt_rule)rule, x, f->second ? rt_format_second(f, 16 * x[7]) : 1);
        }
    memset(x, 0, sizeof x);
    x[1] = -0.0;
    check_group(f, RT_OCP, x, 1);
    uint32_t code = rt_format_scale_code(f, RT_OCP, 0, 1);
    CHECK(rt_format_has_rule(f) || f->second ? code == 0 : f->scale->value(code) == 1,
          "%s: scale of zeros is %#x", f->name, code);
}

/* One NaN, or one infinity, is NaN for all. */
static void nans(const struct rt_format *f)
{
    double x[32] = {1, 2, 3};
    uint8_t codes[32];
    double bads[] = {(double)NAN, (double)INFINITY, (double)-INFINITY};
    for (int k = 0; k < 3; k++) {
        x[k * 15] = bads[k];
        CHECK(isnan(rt_format_amax(x, 32, 1)), "%s: amax", f->name);
        uint32_t code = rt_format_scale_code(f, RT_OCP, rt_format_amax(x, 32, 1), 1);
        double scale = f->scale->value(code), got[32];
        CHECK(isnan(scale) && (!rt_format_has_rule(f) || code == 255), "%s: scale %#x", f->name,
              code);
        rt_format_encode(f, x, 32, scale, 1, codes, 0);
        rt_format_elements(f, codes, 0, 32, got);
        for (int i = 0; i < 32; i++)
            CHECK(got[i] == 0, "%s: code %d under a scale of NaN is %g", f->name, i, got[i]);
        x[k * 15] = 0;
    }
}

/* Scales that are quotients: nearest to amax / largest, never 0. */
static void quotients(const struct rt_format *f)
{
    const double tiny = f->scale->bits == 16 ? 0x1p-133 : 0x1p-149;
    for (int e = -160; e < 127; e++) {
        double amax = ldexp(1 + fabs(uniform()), e), exact = amax / f->element->largest;
        uint32_t code = rt_format_scale_code(f, RT_OCP, amax, 1);
        double scale = f->scale->value(code);
        double below = f->scale->value(code - 1), above = f->scale->value(code + 1);
        CHECK(scale >= tiny, "%s: scale of %a is %a", f->name, amax, scale);
        CHECK(scale == tiny ||
                  fabs(scale - exact) <= fmin(fabs(below - exact), fabs(above - exact)),
              "%s: scale of %a is %a", f->name, amax, scale);
    }
}

static void second_scale(const struct rt_format *f)
{
    CHECK(rt_format_second(f, 6 * 448) == 1 && rt_format_second(f, 0) == 1, "nvfp4: second scale");
    CHECK(rt_format_second(f, 3) == (float)(3.0 / (6 * 448)), "nvfp4: second scale of 3");
    CHECK(rt_format_second(f, 0x1p-149) == 0x1p-149f, "nvfp4: least second scale");
    /* The group with the largest magnitude has the largest scale. */
    CHECK(rt_format_scale_code(f, RT_OCP, 3, rt_format_second(f, 3)) == 0x7e, "nvfp4: 448");
    CHECK(rt_format_scale_code(f, RT_OCP, 1e-9, rt_format_second(f, 3)) == 0, "nvfp4: vanishes");
}

static int filter(const struct rt_coding *c)
{
    double x;
    while (c && fread(&x, sizeof x, 1, stdin) == 1)
        putchar((int)c->code(x));
    return c ? 0 : 2;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return filter(rt_coding_find(argv[1]));
    for (int i = 0; i < STATEMENTS; i++) {
        for (unsigned a = 0; a < 1u << statements[i].bits; a++)
            statements[i].known[a] = formula(&statements[i], a);
        if (strcmp(statements[i].coding, "e8m0") != 0)
            codes_of(rt_coding_find(statements[i].coding));
    }
    powers();
    int k = 0;
    for (const struct rt_format *f; (f = rt_format_at(k)); k++) {
        CHECK(rt_format_find(f->name) == f, "%s by name", f->name);
        CHECK(of(f->element), "%s: no statement of %s above", f->name, f->element->name);
        if (of(f->element))
            decoding(f);
        for (int i = 0; f->shares[i] != RT_SHARES; i++) {
            CHECK(rt_format_share(f, rt_sharings[f->shares[i]].name) == f->shares[i], "%s: %s",
                  f->name, rt_sharings[f->shares[i]].name);
            cuts(f, f->shares[i], f->groups[0]);
            for (int g = 1; f->groups[0] && f->groups[g]; g++)
                cuts(f, f->shares[i], f->groups[g]);
        }
        groups(f);
        nans(f);
        if (f->second)
            second_scale(f);
        else if (of(f->element) && !rt_format_has_rule(f))
            quotients(f);
    }
    CHECK(k > 0 && !rt_format_find("mxfp6") && !rt_coding_find("e3m2"), "names");
    CHECK(rt_format_share(rt_format_find("int8"), "block") == RT_SHARES, "int8 by block");
    CHECK(rt_format_bits(rt_format_find("mxfp4"), RT_GROUP, 0, 64, 64) == 4.25, "bits of mxfp4");
    CHECK(rt_format_bits(rt_format_find("int4"), RT_GROUP, 128, 64, 256) == 4.125, "bits of int4");
    return failures != 0;
}
