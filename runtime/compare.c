/* SPDX-License-Identifier: Apache-2.0 */
/* compare.c - how far an output is from its reference (SEMANTICS 7). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime_private.h"

enum { CHUNK = 512, ROUNDINGS = 16 };

struct sums {
    double difference, want; /* of squares */
};

static int stripped(const moegen_rt_tensor *t)
{
    int rank = t->rank;
    while (rank > 0 && t->shape[rank - 1] == 1)
        rank--;
    return rank;
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

/* Largest magnitude among the compared elements of a row. */
static double row_size(const double *want, int64_t n)
{
    double size = 0;
    for (int64_t i = 0; i < n; i++)
        size = fabs(want[i]) > size ? fabs(want[i]) : size; /* false for NaN */
    return size;
}

static void element(moegen_rt_comparison *c, struct sums *sums, double got, double want, int64_t at,
                    double unit)
{
    if (isnan(want)) {
        c->skipped++;
        return;
    }
    c->compared++;
    bool first_nan = isnan(got) && c->nans++ == 0;
    double error = got == want ? 0 : fabs(got - want); /* equal infinities */
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

static void rows(const moegen_rt_tensor *got, const moegen_rt_tensor *want, struct sums *sums,
                 moegen_rt_comparison *c)
{
    const moegen_rt_dtype_facts *facts = moegen_rt_dtype_of(got->dtype);
    int rank = stripped(want);
    int64_t count = moegen_rt_tensor_count(want), length = rank ? want->shape[rank - 1] : 1;
    const double *w = want->data;
    double chunk[CHUNK];
    for (int64_t row = 0; row < count; row += length) {
        double unit = facts->digits ? ldexp(row_size(w + row, length), -facts->digits) : 1;
        for (int64_t i = 0; i < length; i += CHUNK) {
            int64_t n = length - i < CHUNK ? length - i : CHUNK;
            rt_elements(got, row + i, n, chunk);
            for (int64_t j = 0; j < n; j++)
                element(c, sums, chunk[j], w[row + i + j], row + i + j, unit);
        }
    }
}

static void verdict(moegen_rt_comparison *c)
{
    bool l2_ok = c->l2 <= c->l2_limit, roundings_ok = c->roundings <= c->roundings_limit;
    c->ok = c->nans == 0 && l2_ok && roundings_ok;
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
    struct sums sums = {0, 0};
    *c = (moegen_rt_comparison){.l2_limit = facts->l2_limit,
                                .roundings_limit = facts->digits ? ROUNDINGS : 0};
    rows(got, want, &sums, c);
    c->l2 = sums.want > 0 ? sqrt(sums.difference / sums.want) : sqrt(sums.difference);
    verdict(c);
    return MOEGEN_RT_OK;
}
