/* SPDX-License-Identifier: Apache-2.0 */
/* cli_samples.c - figures of many runs: their quantiles, all together and by the state of the
 * cores.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bool samples_add(struct samples *s, double seconds)
{
    if (s->count == s->room) {
        int room = s->room ? 2 * s->room : 64;
        double *more = realloc(s->at, (size_t)room * sizeof *more);
        if (!more) {
            lost();
            return false;
        }
        s->at = more;
        s->room = room;
    }
    s->at[s->count++] = seconds;
    return true;
}

double samples_at(const struct samples *s, double share)
{
    if (!s->count)
        return NAN;
    double *sorted = malloc((size_t)s->count * sizeof *sorted);
    if (!sorted) {
        lost();
        return NAN;
    }
    memcpy(sorted, s->at, (size_t)s->count * sizeof *sorted);
    qsort(sorted, (size_t)s->count, sizeof *sorted, compare);
    double value = sorted[(int)(share * (s->count - 1) + 0.5)];
    free(sorted);
    return value;
}

void samples_free(struct samples *s)
{
    free(s->at);
    *s = (struct samples){0};
}

struct by_state samples_by_state(const struct samples *seconds, const struct samples *paces)
{
    struct samples fast = {0}, slow = {0};
    struct by_state out = {NAN, NAN, NAN};
    bool whole = seconds->count && seconds->count == paces->count;
    for (int i = 0; whole && i < seconds->count; i++)
        if (isfinite(paces->at[i]))
            whole = samples_add(paces->at[i] < FAST_PACE ? &fast : &slow, seconds->at[i]);
    if (whole && fast.count + slow.count)
        out = (struct by_state){(double)fast.count / (fast.count + slow.count),
                                samples_at(&fast, 0.5), samples_at(&slow, 0.5)};
    samples_free(&fast);
    samples_free(&slow);
    return out;
}
