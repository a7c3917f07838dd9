/* SPDX-License-Identifier: Apache-2.0 */
/* paired.c - medians of ratios, their bootstrap intervals, and what they mean. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "paired.h"

enum { RESAMPLES = 2000, MANY = 1000000 };
static const double tail = 0.025; /* outside of the interval, on each side */
/* To call B faster or slower, the interval must be clear of 1 so many times over: more often at the
 * first looks than at later ones, since who looks after every few pairs looks often, and on a busy
 * machine six pairs agree by chance. */
static const double early = 10;
static double clear(int n)
{
    return 2 * sqrt(1 + early / n);
}
/* An interval from few pairs is too short, as if the spread that they show were known: it becomes
 * 1 + few / pairs times as wide. Measured: of normal, heavy-tailed and skewed noise it then holds
 * the true ratio 95 to 98 times of 100, from 6 pairs on. */
static const double few = 2.0;
/* Log of a ratio that no other work makes: two pairs of it are enough. */
static const double far_apart = 1.4;

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static uint64_t next(uint64_t *state) /* splitmix64 */
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* The median of as many as there are, drawn with repetition. */
static double redraw(const double *sorted, int n, uint64_t *state)
{
    int times[PAIRED_MOST] = {0};
    double low = 0;
    for (int i = 0; i < n; i++)
        times[(uint32_t)((next(state) >> 32) * (uint64_t)n >> 32)]++;
    for (int i = 0, seen = 0; i < n; i++) {
        int before = seen;
        seen += times[i];
        if (before <= (n - 1) / 2 && (n - 1) / 2 < seen)
            low = sorted[i];
        if (n / 2 < seen)
            return (low + sorted[i]) / 2;
    }
    return low; /* never */
}

/* Ends of the interval about the median, all logarithms. */
static void interval(const double *sorted, int n, double median, double *low, double *high)
{
    double drawn[RESAMPLES], wider = 1 + few / n;
    uint64_t state = 1;
    for (int i = 0; i < RESAMPLES; i++)
        drawn[i] = redraw(sorted, n, &state);
    qsort(drawn, RESAMPLES, sizeof *drawn, compare);
    *low = median - wider * (median - drawn[(int)(tail * RESAMPLES)]);
    *high = median + wider * (drawn[(int)((1 - tail) * RESAMPLES)] - median);
}

/* Of `all` pairs, those that n at hand lack: an even number of all, at least PAIRED_LEAST. */
static int pairs_more(int n, double all)
{
    int more = all - n < MANY ? (int)ceil(all - n) : MANY;
    more = more > PAIRED_LEAST - n ? more : PAIRED_LEAST - n;
    more = more > 1 ? more : 1;
    return more + (n + more) % 2;
}

/* Pairs that it would take until an interval that reaches `towards` from the median is clear of 1,
 * if it then shrinks with the root of their number: the n that solves n = k (1 + early / n). */
static double pairs_until_clear(int n, double towards, double median)
{
    double k = n * 4 * (towards / median) * (towards / median);
    return (k + sqrt(k * k + 4 * early * k)) / 2;
}

/* How far all pairs are from 1, on the same side of it; 0: they are not. */
static double towards_one(const double *sorted, int n)
{
    return fmax(0, fmax(sorted[0], -sorted[n - 1]));
}

struct paired paired_judge(const double *log_ratio, int pairs, double margin)
{
    double sorted[PAIRED_MOST], edge = log1p(margin);
    int n = pairs < PAIRED_MOST ? pairs : PAIRED_MOST;
    struct paired p = {n, NAN, NAN, NAN, VERDICT_NOISY, PAIRED_LEAST};
    if (n < 1)
        return p;
    memcpy(sorted, log_ratio, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare);
    double median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2, low = median, high = median;
    p.ratio = exp(median);
    p.more = pairs_more(n, 0);
    if (n < 2)
        return p;
    interval(sorted, n, median, &low, &high);
    p.low = exp(low);
    p.high = exp(high);
    double towards = median > 0 ? median - low : high - median, far = fmax(high, -low);
    double room = 2 * edge - fabs(median);
    bool apart = fabs(median) > edge;
    if (towards_one(sorted, n) > far_apart)
        p.verdict = median > 0 ? VERDICT_FASTER : VERDICT_SLOWER;
    else if (n >= PAIRED_LEAST && apart && fabs(median) > clear(n) * towards)
        p.verdict = median > 0 ? VERDICT_FASTER : VERDICT_SLOWER;
    else if (n >= PAIRED_LEAST && !apart && far <= 2 * edge)
        p.verdict = VERDICT_SAME;
    if (p.verdict != VERDICT_NOISY)
        p.more = 0;
    else
        p.more = pairs_more(n, apart ? pairs_until_clear(n, towards, median)
                                     : n * pow((far - fabs(median)) / room, 2));
    return p;
}

bool paired_promises(const struct paired *p, double spent, double until)
{
    if (p->verdict != VERDICT_NOISY || !(p->ratio > 1) || p->pairs < 1)
        return false;
    int all = p->pairs < PAIRED_LEAST ? PAIRED_LEAST : p->pairs + p->more;
    return (p->pairs < PAIRED_LEAST || p->low > 1) && spent * all <= until * p->pairs;
}

const char *verdict_name(enum verdict v)
{
    static const char *const names[] = {
        [VERDICT_NOISY] = "noisy",
        [VERDICT_SAME] = "same",
        [VERDICT_FASTER] = "faster",
        [VERDICT_SLOWER] = "slower",
    };
    return names[v];
}
