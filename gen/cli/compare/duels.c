/* SPDX-License-Identifier: Apache-2.0 */
/* duels.c - which results are of the same kernel, and the ratios of their times. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The mean of two of the sorted numbers; NAN: none, or no memory. */
static double mean_of_two(const double *at, int count, int one, int other)
{
    double *sorted = count > 0 ? malloc((size_t)count * sizeof *sorted) : NULL;
    if (!sorted) {
        if (count > 0)
            lost();
        return NAN;
    }
    memcpy(sorted, at, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, compare);
    double mean = (sorted[one] + sorted[other]) / 2;
    free(sorted);
    return mean;
}

double median_of(const double *at, int count)
{
    return mean_of_two(at, count, (count - 1) / 2, count / 2);
}

static double quartile_of(const double *at, int count)
{
    return mean_of_two(at, count, (count - 1) / 4, (count - 1) / 4);
}

/* ---- partners ---- */

static bool same(const struct measured *x, const struct measured *y)
{
    return strcmp(x->kernel, y->kernel) == 0 && strcmp(x->variant, y->variant) == 0 &&
           x->T == y->T && x->threads == y->threads;
}

/* The only row of that kernel without a partner, or -1. */
static int only(const struct results *r, const char *kernel, const bool *has_partner)
{
    int found = -1;
    for (int i = 0; i < r->rows; i++) {
        if (has_partner[i] || strcmp(r->row[i].kernel, kernel) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

/* partner[i]: of A's row i, in B, or -1. */
static bool find_partners(const struct results *a, const struct results *b, int *partner)
{
    bool *of_a = calloc((size_t)(a->rows + b->rows) + 1, sizeof *of_a), *of_b = of_a + a->rows;
    if (!of_a)
        return false;
    for (int i = 0; i < a->rows; i++) {
        partner[i] = -1;
        for (int k = 0; k < b->rows && partner[i] < 0; k++)
            if (!of_b[k] && same(&a->row[i], &b->row[k])) {
                partner[i] = k;
                of_a[i] = of_b[k] = true;
            }
    }
    for (int i = 0; i < a->rows; i++) {
        const char *kernel = a->row[i].kernel;
        int k = of_a[i] ? -1 : only(b, kernel, of_b);
        if (k >= 0 && only(a, kernel, of_a) == i) {
            partner[i] = k;
            of_a[i] = of_b[k] = true;
        }
    }
    free(of_a);
    return true;
}

/* ---- pairs ---- */

/* The duel of these two, a new one if need be; NULL: out of memory. */
static struct duel *duel_of(struct duels *d, const struct measured *a, const struct measured *b,
                            const bool *taken)
{
    for (int i = 0; i < d->rows; i++) {
        struct duel *x = &d->row[i];
        if (!taken[i] && strcmp(x->kernel, a->kernel) == 0 && x->T == a->T &&
            x->threads == a->threads && strcmp(x->a_variant, a->variant) == 0 &&
            strcmp(x->b_variant, b->variant) == 0)
            return x;
    }
    struct duel *more = realloc(d->row, (size_t)(d->rows + 1) * sizeof *more);
    if (!more)
        return NULL;
    d->row = more;
    struct duel *x = &d->row[d->rows++];
    *x = (struct duel){.kernel = strdup(a->kernel),
                       .a_variant = strdup(a->variant),
                       .b_variant = strdup(b->variant),
                       .T = a->T,
                       .threads = a->threads};
    return x->kernel && x->a_variant && x->b_variant ? x : NULL;
}

static bool add_pair(struct duel *x, double a, double b)
{
    if (x->pairs == x->room) {
        int room = x->room ? 2 * x->room : 16;
        double *more_a = realloc(x->a, (size_t)room * sizeof *more_a);
        x->a = more_a ? more_a : x->a;
        double *more_b = realloc(x->b, (size_t)room * sizeof *more_b);
        x->b = more_b ? more_b : x->b;
        if (!more_a || !more_b)
            return false;
        x->room = room;
    }
    x->a[x->pairs] = a;
    x->b[x->pairs++] = b;
    return isfinite(a) && isfinite(b);
}

/* A pair of what each takes in turns. Its ratio is, halfway between both, the median of the turns'
 * and that of the lower quartiles: the former knows of a machine that gets slower, the latter
 * leaves out runs that other work made slower. */
static bool add_turns(struct duel *x, const struct measured *a, const struct measured *b)
{
    int n = a->samples < b->samples ? a->samples : b->samples;
    double *at = malloc(((size_t)n + 1) * sizeof *at);
    for (int i = 0; at && i < n; i++)
        at[i] = log(a->seconds[i] / b->seconds[i]);
    double ratio = (median_of(at, at ? n : 0) + log(quartile_of(a->seconds, n)) -
                    log(quartile_of(b->seconds, n))) /
                   2;
    double typical = median_of(a->seconds, n);
    bool ok = at && add_pair(x, typical, typical / exp(ratio));
    free(at);
    return ok;
}

static bool add_pairs(struct duel *x, const struct measured *a, const struct measured *b, int parts)
{
    int least = a->samples < b->samples ? a->samples : b->samples;
    if (parts == IN_TURNS)
        return add_turns(x, a, b);
    parts = parts < least ? parts : least;
    bool ok = true;
    for (int i = 0; i < parts && ok; i++) {
        int at_a = (int)((int64_t)a->samples * i / parts),
            at_b = (int)((int64_t)b->samples * i / parts);
        int end_a = (int)((int64_t)a->samples * (i + 1) / parts),
            end_b = (int)((int64_t)b->samples * (i + 1) / parts);
        ok = add_pair(x, median_of(a->seconds + at_a, end_a - at_a),
                      median_of(b->seconds + at_b, end_b - at_b));
    }
    return ok;
}

int duels_add(struct duels *d, const struct results *a, const struct results *b, int parts)
{
    int *partner = malloc(((size_t)a->rows + 1) * sizeof *partner), alone = b->rows;
    /* Two rows may look the same: each has a duel of its own. */
    bool *taken = calloc((size_t)(d->rows + a->rows) + 1, sizeof *taken);
    bool ok = partner && taken && find_partners(a, b, partner);
    if (ok && !d->cpu && a->cpu)
        ok = (d->cpu = strdup(a->cpu)) != NULL;
    for (int i = 0; ok && i < a->rows; i++) {
        if (partner[i] < 0) {
            alone++;
            continue;
        }
        const struct measured *of_b = &b->row[partner[i]];
        struct duel *x = duel_of(d, &a->row[i], of_b, taken);
        alone--;
        if ((ok = x && add_pairs(x, &a->row[i], of_b, parts)))
            taken[x - d->row] = true;
    }
    d->lost = d->lost || !ok;
    free(partner);
    free(taken);
    return alone;
}

/* ---- judging ---- */

int duels_judge(struct duels *d, double margin)
{
    double ratio[PAIRED_MOST], mean[PAIRED_MOST] = {0};
    int least = d->rows ? PAIRED_MOST : 0;
    for (int i = 0; i < d->rows; i++) {
        struct duel *x = &d->row[i];
        int pairs = x->pairs < PAIRED_MOST ? x->pairs : PAIRED_MOST;
        for (int k = 0; k < pairs; k++) {
            ratio[k] = log(x->a[k] / x->b[k]);
            mean[k] += ratio[k] / d->rows;
        }
        x->a_seconds = median_of(x->a, pairs);
        x->b_seconds = median_of(x->b, pairs);
        d->lost = d->lost || !isfinite(x->a_seconds) || !isfinite(x->b_seconds);
        x->paired = paired_judge(ratio, pairs, margin);
        least = pairs < least ? pairs : least;
    }
    d->overall = paired_judge(mean, least, margin);
    return d->lost ? fail(MOEGEN_NO_MEMORY, NULL) : EXIT_OK;
}

static void doubt(struct paired *p, int processes, int parts)
{
    int least = PAIRED_LEAST - processes;
    if (p->verdict != VERDICT_SAME && fabs(log(p->ratio)) < log(2))
        p->verdict = VERDICT_NOISY;
    p->more = p->verdict == VERDICT_NOISY ? (p->more + parts - 1) / parts : 0;
    if (p->verdict == VERDICT_NOISY && p->more < least)
        p->more = least;
}

void duels_doubt(struct duels *d, int processes, int parts)
{
    for (int i = 0; i < d->rows; i++)
        doubt(&d->row[i].paired, processes, parts);
    doubt(&d->overall, processes, parts);
}

bool duels_settled(const struct duels *d)
{
    for (int i = 0; i < d->rows; i++)
        if (d->row[i].paired.verdict == VERDICT_NOISY)
            return false;
    return d->overall.verdict != VERDICT_NOISY;
}

void duels_free(struct duels *d)
{
    for (int i = 0; i < d->rows; i++) {
        struct duel *x = &d->row[i];
        free(x->kernel);
        free(x->a_variant);
        free(x->b_variant);
        free(x->a);
        free(x->b);
    }
    free(d->row);
    free(d->cpu);
    *d = (struct duels){0};
}
