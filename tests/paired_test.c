/* SPDX-License-Identifier: Apache-2.0 */
/* paired_test.c - what `moegen compare` says of made-up measurements whose truth is known, asked as
 * the program asks: after every two pairs, until it is clear. Built with the program's own file. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "check.h"
#include "tune/paired.h"

enum { MOST = 120, TRIES = 60 };
static const double margin = 0.02;

static uint64_t state = 7;

static double uniform(void) /* above 0, below 1 */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 12) + 0.5) / 4503599627370496.0;
}

static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

/* ---- the logarithm of a time, whose size is `s`; at: how many runs were before ---- */

static double quiet(double s, int at)
{
    (void)at;
    return s * normal();
}

/* One of seven takes up to thrice as long. */
static double outliers(double s, int at)
{
    (void)at;
    return s * normal() + (uniform() < 1.0 / 7 ? uniform() : 0);
}

/* Everything that disturbs makes it slower. */
static double skewed(double s, int at)
{
    (void)at;
    return -s * log(uniform());
}

/* The machine gets slower and slower, as when it gets warm. */
static double drifting(double s, int at)
{
    return s * normal() + 0.01 * at;
}

/* Another program comes and goes, for several runs each time. */
static double waves(double s, int at)
{
    return s * normal() + (at / 7 % 2 ? 0.2 : 0);
}

/* All of it, and much. */
static double busy(double s, int at)
{
    return outliers(s, at) + waves(s, at);
}

static const struct row {
    const char *what;
    double (*noise)(double s, int at);
    double size;
    int same_after;    /* pairs on average, if there is no difference */
    bool may_be_noisy; /* after MOST pairs */
} rows[] = {
    {"still", quiet, 0.001, 6, false},   {"quiet", quiet, 0.01, 7, false},
    {"noisy", quiet, 0.03, 20, false},   {"outliers", outliers, 0.01, 14, false},
    {"skewed", skewed, 0.02, 10, false}, {"drifting", drifting, 0.01, 8, false},
    {"waves", waves, 0.01, 10, false},   {"busy", busy, 0.1, MOST, true},
};

/* Pairs A B, B A, ... of two whose speeds differ by a factor, until it is clear. */
static struct paired try(const struct row *r, double factor)
{
    double ratio[MOST], a = 0, b = 0;
    struct paired p = {0};
    for (int n = 0; n < MOST; n++) {
        for (int turn = 0; turn < 2; turn++)
            if (turn == n % 2)
                a = r->noise(r->size, 2 * n + turn);
            else
                b = r->noise(r->size, 2 * n + turn) - log(factor);
        ratio[n] = a - b;
        if (n % 2 == 0)
            continue;
        p = paired_judge(ratio, n + 1, margin);
        if (p.verdict != VERDICT_NOISY)
            break;
        CHECK(p.more > 0 && p.more % 2 == 0, "%s: noisy, and %d pairs more", r->what, p.more);
    }
    return p;
}

static void known_truths(void)
{
    static const struct {
        double factor;
        enum verdict right;
    } truths[] = {
        {1, VERDICT_SAME},      {1.004, VERDICT_SAME}, {0.95, VERDICT_SLOWER},
        {1.06, VERDICT_FASTER}, {0.5, VERDICT_SLOWER}, {3, VERDICT_FASTER},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < sizeof truths / sizeof *truths; k++) {
            int said[4] = {0}, covered = 0, pairs = 0;
            for (int t = 0; t < TRIES; t++) {
                struct paired p = try(&rows[i], truths[k].factor);
                said[p.verdict]++;
                pairs += p.pairs;
                covered += p.low <= truths[k].factor && truths[k].factor <= p.high;
                CHECK(p.low <= p.ratio && p.ratio <= p.high, "%s: %g is not in %g..%g",
                      rows[i].what, p.ratio, p.low, p.high);
            }
            int wrong = TRIES - said[truths[k].right] - said[VERDICT_NOISY];
            CHECK((rows[i].may_be_noisy || said[truths[k].right] >= TRIES * 19 / 20) &&
                      wrong <= TRIES / 20,
                  "%s, truly %g: %d same, %d faster, %d slower, %d noisy", rows[i].what,
                  truths[k].factor, said[VERDICT_SAME], said[VERDICT_FASTER], said[VERDICT_SLOWER],
                  said[VERDICT_NOISY]);
            CHECK(k || pairs <= TRIES * rows[i].same_after, "%s: the same after %d pairs",
                  rows[i].what, pairs / TRIES);
            CHECK(covered >= TRIES * (rows[i].may_be_noisy ? 8 : 9) / 10,
                  "%s: the interval has %g in %d tries of %d", rows[i].what, truths[k].factor,
                  covered, TRIES);
        }
}

/* ---- what few, and odd, numbers say ---- */

static void few_pairs(void)
{
    const double x[] = {-0.5, -0.52, -0.49, -0.51, -0.5, -0.53, -0.5, -0.5};
    struct paired none = paired_judge(x, 0, margin), one = paired_judge(x, 1, margin),
                  six = paired_judge(x, PAIRED_LEAST, margin);
    CHECK(none.verdict == VERDICT_NOISY && isnan(none.ratio) && none.more == PAIRED_LEAST,
          "no pair: %s, %g, %d", verdict_name(none.verdict), none.ratio, none.more);
    CHECK(one.verdict == VERDICT_NOISY && fabs(one.ratio - exp(-0.5)) < 1e-12 && isnan(one.low) &&
              one.more == PAIRED_LEAST - 1,
          "one pair: %s, %g, %g, %d", verdict_name(one.verdict), one.ratio, one.low, one.more);
    for (int n = 2; n < PAIRED_LEAST; n++) {
        struct paired p = paired_judge(x, n, margin);
        CHECK(p.verdict == VERDICT_NOISY && p.more >= PAIRED_LEAST - n, "%d pairs: %s, %d more", n,
              verdict_name(p.verdict), p.more);
    }
    const double far[] = {-5.3, -4.9}, apart[] = {-5.3, 0.1};
    CHECK(paired_judge(far, 2, margin).verdict == VERDICT_SLOWER &&
              paired_judge(far, 1, margin).verdict == VERDICT_NOISY &&
              paired_judge(apart, 2, margin).verdict == VERDICT_NOISY,
          "two pairs of a hundred times the speed");
    CHECK(six.verdict == VERDICT_SLOWER && six.more == 0, "six pairs: %s, %d more",
          verdict_name(six.verdict), six.more);
}

/* Too many to be looked at; all alike; the same again. */
static void odd_numbers(void)
{
    static double x[PAIRED_MOST + 9];
    struct paired p = paired_judge(x, PAIRED_MOST + 9, margin);
    CHECK(p.pairs == PAIRED_MOST && p.ratio == 1 && p.low == 1 && p.high == 1 &&
              p.verdict == VERDICT_SAME,
          "no noise at all: %d pairs, %g in %g..%g", p.pairs, p.ratio, p.low, p.high);
    for (int i = 0; i < 40; i++)
        x[i] = 0.3 * normal();
    struct paired one = paired_judge(x, 40, margin), two = paired_judge(x, 40, margin);
    CHECK(one.low == two.low && one.high == two.high, "the same numbers, another interval");
    for (int i = 0; i < 40; i++)
        x[i] = -x[i];
    two = paired_judge(x, 40, margin);
    CHECK(fabs(one.ratio * two.ratio - 1) < 1e-12, "A and B change places: %g and %g", one.ratio,
          two.ratio);
    CHECK(one.verdict == VERDICT_NOISY && one.more > 200, "noise of 30 %%: %s, %d pairs more",
          verdict_name(one.verdict), one.more);
}

/* As many more as it says are about enough. */
static void more_pairs(void)
{
    int enough = 0;
    for (int t = 0; t < TRIES; t++) {
        double ratio[PAIRED_MOST];
        for (int i = 0; i < PAIRED_MOST; i++)
            ratio[i] = 0.05 * normal();
        struct paired p = paired_judge(ratio, 20, margin);
        p = paired_judge(ratio, 20 + p.more + p.more / 4, margin);
        enough += p.verdict != VERDICT_NOISY;
    }
    CHECK(enough > TRIES / 2, "as many pairs as it asked for were enough in %d of %d tries", enough,
          TRIES);
}

/* B seems faster, and there is time to be sure. */
static void promising(void)
{
    static const struct {
        struct paired p;
        double spent, until;
        bool promises;
    } cases[] = {
        {{8, 1.1, 1.02, 1.2, VERDICT_NOISY, 8}, 80, 160, true},
        {{8, 1.1, 1.02, 1.2, VERDICT_NOISY, 10}, 80, 160, false}, /* not in time */
        {{8, 1.1, 0.99, 1.2, VERDICT_NOISY, 8}, 80, 160, false},  /* perhaps slower */
        {{8, 0.9, 0.8, 0.98, VERDICT_NOISY, 8}, 80, 160, false},
        {{8, 1.1, 1.05, 1.2, VERDICT_FASTER, 0}, 80, 160, false}, /* clear */
        {{8, 1.001, 1.0005, 1.002, VERDICT_SAME, 0}, 80, 160, false},
        {{2, 1.1, 0.9, 1.3, VERDICT_NOISY, 26}, 50, 160, true}, /* too few to know how many */
        {{2, 1.1, 0.9, 1.3, VERDICT_NOISY, 26}, 80, 160, false},
        {{2, 0.9, 0.8, 1.1, VERDICT_NOISY, 26}, 50, 160, false},
        {{0, NAN, NAN, NAN, VERDICT_NOISY, 6}, 50, 160, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(paired_promises(&cases[i].p, cases[i].spent, cases[i].until) == cases[i].promises,
              "case %zu", i);
}

int main(void)
{
    promising();
    known_truths();
    few_pairs();
    odd_numbers();
    more_pairs();
    return failures != 0;
}
