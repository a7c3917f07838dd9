/* SPDX-License-Identifier: Apache-2.0 */
/* compare.c - how far an output is from its reference (SEMANTICS 7). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reference.h"

enum { CHUNK = 512, ROUNDINGS = 16, ROWS = 32, ELEMENTS = 1000 };
/* Roundings of a sum of n terms, by the root of n: partial sums are on average as large as the sum
 * is, and each is rounded, which makes 0.15 as a rule. Of thousands of sums one is off by four
 * times as much, where terms are alike; products of several numbers are not, and leave ten times as
 * much. */
static const double OF_TERMS = 1.5;
/* Numbers that are cut off lean by half a unit; a kernel that rounds intermediates to 16 bits by up
 * to a third, where many of them are one and the same number (a limit of a clamp). */
static const double BIAS = 0.4;
/* Of smaller numbers f32 has no room for factors and terms: their errors count in roundings of
 * this. Rows of zeros must be zero. */
static const double LEAST = 0x1p-96;

struct sums {
    double difference, want; /* of squares */
    double outward, spacing; /* differences away from 0; units in the last place */
    int64_t rows, elements;  /* with such an element; such: not 0, and not one of `seen` */
    double top;              /* what the type of the output makes of infinity */
    double seen[64];
};

struct rt_row rt_row_of(const moegen_rt_tensor *t)
{
    int rank = t->rank;
    size_t name = t->name ? strlen(t->name) : 0;
    bool transposed = t->across || (name > 2 && strcmp(t->name + name - 2, "_T") == 0);
    if (transposed && rank > 1)
        return (struct rt_row){t->shape[rank - 2], t->shape[rank - 1]};
    while (rank > 0 && t->shape[rank - 1] == 1)
        rank--;
    return (struct rt_row){rank ? t->shape[rank - 1] : 1, 1};
}

/* Same shape but for trailing ones, and got may be longer in its first extent. */
static bool shapes_agree(const moegen_rt_tensor *got, const moegen_rt_tensor *want)
{
    for (int i = 0; i < got->rank || i < want->rank; i++) {
        int64_t g = i < got->rank ? got->shape[i] : 1, w = i < want->rank ? want->shape[i] : 1;
        if (i == 0 ? g < w : g != w)
            return false;
    }
    return true;
}

/* Root of the mean square of what is compared and is not 0 (padding). A row that is much smaller,
 * because its sums cancel, is as badly conditioned as its terms are large: its roundings are
 * counted in those of this. */
static double typical_size(const double *want, int64_t count)
{
    double squares = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(want[i]) && want[i] != 0) {
            squares += want[i] * want[i];
            n++;
        }
    return n ? sqrt(squares / (double)n) : 0;
}

/* What a type makes of infinity: its largest number, if it has no infinities. */
static double overflow_of(moegen_rt_dtype dtype)
{
    double x = INFINITY, code;
    moegen_rt_encode(dtype, &x, 1, &code);
    moegen_rt_decode(dtype, &code, 1, &x);
    return x;
}

/* x, or the largest number of a type whose numbers end at it. */
static double within(double x, double top)
{
    return x > top ? top : x < -top ? -top : x;
}

/* Largest magnitude of a row, at least `least`; 0 for a row of zeros. Elements that are not
 * compared count as they came: a reference that was computed for a few columns must not make their
 * row small. */
static double row_size(const moegen_rt_tensor *got, const double *want, int64_t first,
                       struct rt_row row, double least, double top)
{
    double size = 0;
    for (int64_t i = 0; i < row.count; i++) {
        double x = want[first + i * row.stride];
        if (isnan(x))
            rt_elements(got, first + i * row.stride, 1, &x);
        x = within(x, top);
        size = fabs(x) > size && isfinite(x) ? fabs(x) : size;
    }
    return size > 0 && size < least ? least : size;
}

/* The bits of a double that hold its exponent; 0 and what is subnormal have the least one. */
static int exponent_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 52 & 2047) - 1023;
}

/* Exponent of the least normal number of a type of fewer digits than f32. */
static int least_exponent(const moegen_rt_dtype_facts *facts)
{
    return 2 - (1 << (8 * (int)facts->bytes - facts->digits - 1));
}

/* Distance of neighbours about x in a type of fewer digits than f32; 0 in others. */
static double spacing_at(const moegen_rt_dtype_facts *facts, double x)
{
    if (facts->digits == 0 || facts->digits >= 24)
        return 0;
    int exponent = exponent_of(x), least = least_exponent(facts);
    return rt_power_of_two((exponent < least ? least : exponent) - facts->digits + 1);
}

/* Error of an element beyond what rounding to nearest must cost it where it is subnormal: up to
 * half a unit, however small it is. What it costs other numbers the limits of the type allow. */
static double error_of(const moegen_rt_dtype_facts *facts, double got, double want)
{
    double error = got == want ? 0 : fabs(got - want); /* equal infinities */
    double spacing = spacing_at(facts, want);
    if (spacing == 0 || fabs(want) >= rt_power_of_two(least_exponent(facts)))
        return error;
    return error > spacing / 2 ? error - spacing / 2 : isnan(error) ? error : 0;
}

/* Is it none of those that came lately? A limit that many numbers were clamped to, and that has one
 * error, would otherwise count as often as it comes. */
static bool is_new(struct sums *sums, double want)
{
    uint64_t bits;
    memcpy(&bits, &want, sizeof bits);
    double *seen = &sums->seen[bits * 0x9e3779b97f4a7c15u >> 58];
    bool is = *seen != want;
    *seen = want;
    return is;
}

/* How a number that is not 0 was rounded to the type of `facts`; fine: a rounding of f32. */
static void rounding(moegen_rt_comparison *c, struct sums *sums, double got, double want,
                     const moegen_rt_dtype_facts *facts, double fine, bool once)
{
    double spacing = spacing_at(facts, want), error = got - want;
    if (spacing == 0 || want == 0 || !isfinite(error))
        return;
    if (is_new(sums, want)) {
        sums->elements++;
        sums->outward += want > 0 ? error : -error;
        sums->spacing += spacing;
    }
    /* Arithmetic may have moved it across a power of two. */
    double half = spacing_at(facts, fabs(want) + ROUNDINGS * fine) / 2;
    double beyond = once ? (fabs(error) - half) / fine : 0;
    c->beyond = beyond > c->beyond ? beyond : c->beyond;
}

static void element(moegen_rt_comparison *c, struct sums *sums, double got, double want, int64_t at,
                    double unit, const moegen_rt_dtype_facts *facts)
{
    if (isnan(want)) {
        c->skipped++;
        return;
    }
    c->compared++;
    bool first_nan = isnan(got) && c->nans++ == 0;
    double error = error_of(facts, got, want);
    double roundings = error == 0 ? 0 : error / unit;
    if (first_nan || (c->nans == 0 && (roundings > c->roundings || c->compared == 1))) {
        c->worst = at;
        c->worst_got = got;
        c->worst_want = want;
    }
    if (roundings > c->roundings)
        c->roundings = roundings;
    sums->difference += error * error;
    sums->want += want * want;
}

static void compare_row(const moegen_rt_tensor *got, const double *want, int64_t first,
                        struct rt_row row, double typical, bool once, struct sums *sums,
                        moegen_rt_comparison *c)
{
    const moegen_rt_dtype_facts *facts = moegen_rt_dtype_of(got->dtype);
    double size = row_size(got, want, first, row, typical, sums->top);
    double unit = facts->digits ? ldexp(size, 1 - facts->digits) : 1, fine = ldexp(size, -23);
    int64_t before = sums->elements;
    double chunk[CHUNK];
    int64_t most = row.stride > 1 ? 1 : CHUNK; /* neighbours in memory */
    for (int64_t i = 0; i < row.count; i += most) {
        int64_t n = row.count - i < most ? row.count - i : most, at = first + i * row.stride;
        rt_elements(got, at, n, chunk);
        for (int64_t j = 0; j < n; j++) {
            double expected = within(want[at + j], sums->top);
            element(c, sums, chunk[j], expected, at + j, unit, facts);
            rounding(c, sums, chunk[j], expected, facts, fine, once);
        }
    }
    sums->rows += sums->elements > before;
}

static void rows(const moegen_rt_tensor *got, const moegen_rt_tensor *want, struct sums *sums,
                 moegen_rt_comparison *c)
{
    struct rt_row row = rt_row_of(want);
    int64_t count = moegen_rt_tensor_count(want), span = row.count * row.stride;
    double typical = fmax(typical_size(want->data, count), LEAST);
    for (int64_t first = 0; first < count; first += span)
        for (int64_t i = 0; i < row.stride; i++)
            compare_row(got, want->data, first + i, row, typical, want->once, sums, c);
}

static void verdict(moegen_rt_comparison *c)
{
    bool l2_ok = c->l2 <= c->l2_limit, roundings_ok = c->roundings <= c->roundings_limit;
    bool beyond_ok = c->beyond <= c->roundings_limit;
    bool bias_ok = c->bias_limit == 0 || fabs(c->bias) <= c->bias_limit;
    c->ok = c->nans == 0 && l2_ok && roundings_ok && beyond_ok && bias_ok;
    if (c->nans)
        snprintf(c->text, sizeof c->text,
                 "%lld elements are NaN, the first is element %lld (expected %.9g)",
                 (long long)c->nans, (long long)c->worst, c->worst_want);
    else if (!l2_ok)
        snprintf(c->text, sizeof c->text,
                 "relative error %.2e is over %.0e; element %lld is %.9g, expected %.9g", c->l2,
                 c->l2_limit, (long long)c->worst, c->worst_got, c->worst_want);
    else if (!roundings_ok)
        snprintf(c->text, sizeof c->text,
                 "element %lld is %.9g, expected %.9g: off by %.1f roundings of its row's largest "
                 "magnitude, over %.0f",
                 (long long)c->worst, c->worst_got, c->worst_want, c->roundings,
                 c->roundings_limit);
    else if (!beyond_ok)
        snprintf(c->text, sizeof c->text,
                 "an element is off by half a unit in its last place and %.1f roundings of f32 of "
                 "its row's largest magnitude, over %.0f: it is not rounded to nearest",
                 c->beyond, c->roundings_limit);
    else if (!bias_ok)
        snprintf(c->text, sizeof c->text,
                 "elements are %+.2f units in the last place away from 0 on average, over %.2f: "
                 "they are not rounded to nearest",
                 c->bias, c->bias_limit);
    else if (c->compared == 0)
        snprintf(c->text, sizeof c->text, "no element was compared");
    else
        snprintf(c->text, sizeof c->text, "relative error %.2e, worst element %.1f roundings",
                 c->l2, c->roundings);
}

moegen_rt_status moegen_rt_compare(const moegen_rt_tensor *got, const moegen_rt_tensor *want,
                                   moegen_rt_comparison *c, moegen_rt_error *err)
{
    struct rt_shape_text have, need;
    if (want->dtype != MOEGEN_RT_F64)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "the reference of '%s' is not f64", want->name);
    if (!shapes_agree(got, want))
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "tensor '%s' has shape %s, expected %s",
                       got->name, rt_shape(&have, got->rank, got->shape),
                       rt_shape(&need, want->rank, want->shape));
    const moegen_rt_dtype_facts *facts = moegen_rt_dtype_of(got->dtype);
    struct sums sums = {.top = facts->digits ? overflow_of(got->dtype) : INFINITY};
    bool coarse = facts->digits > 0 && facts->digits < 24;
    double noise = coarse ? fmax(want->noise, want->coarse) : want->noise;
    *c = (moegen_rt_comparison){.l2_limit = facts->l2_limit + 2 * noise};
    double once = coarse ? ROUNDINGS : fmax(ROUNDINGS, OF_TERMS * sqrt((double)want->terms));
    if (facts->digits)
        c->roundings_limit = once + 6 * noise / ldexp(1, 1 - facts->digits); /* of one */
    rows(got, want, &sums, c);
    c->bias = sums.spacing > 0 ? sums.outward / sums.spacing : 0;
    c->bias_limit = sums.rows >= ROWS && sums.elements >= ELEMENTS ? BIAS : 0;
    double least = LEAST * LEAST * (double)c->compared;
    c->l2 = sqrt(sums.difference / (sums.want > 0 ? fmax(sums.want, least) : 1));
    verdict(c);
    return MOEGEN_RT_OK;
}
