/* SPDX-License-Identifier: Apache-2.0 */
/* states_test.c - which samples of `moegen bench` count for which state of the cores, from paces
 * that are given here: the file is built with the program's own. */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "check.h"
#include "cli/bench/bench.h"

static int times_lost;

void lost(void)
{
    times_lost++;
}

struct row {
    const char *what;
    int count, paces;
    double seconds[5], pace[5];
    struct by_state want; /* NAN: there is none */
};

/* About 1 is fast, about 4 slow. */
static const struct row rows[] = {
    {"all fast", 3, 3, {3, 1, 2}, {1, 1.2, 2.1}, {1, 2, NAN}},
    {"all slow", 3, 3, {3, 1, 2}, {4.1, 5, 4.4}, {0, NAN, 2}},
    {"one slow", 4, 4, {9, 1, 2, 3}, {4.2, 1, 1.1, 1}, {0.75, 2, 9}},
    {"one fast", 4, 4, {1, 9, 8, 7}, {0.9, 4.2, 4.4, 4}, {0.25, 1, 8}},
    {"about the bound", 2, 2, {1, 4}, {FAST_PACE - 1e-9, FAST_PACE}, {0.5, 1, 4}},
    {"one that is not known", 3, 3, {4, 5, 6}, {NAN, 1, 4}, {0.5, 5, 6}},
    {"none that is known", 2, 2, {4, 5}, {NAN, NAN}, {NAN, NAN, NAN}},
    {"no samples", 0, 0, {0}, {0}, {NAN, NAN, NAN}},
    {"no tiles", 2, 0, {4, 5}, {0}, {NAN, NAN, NAN}},
    {"one pace is lost", 2, 1, {4, 5}, {1}, {NAN, NAN, NAN}},
};

static bool same(double a, double b)
{
    return isnan(a) ? isnan(b) : fabs(a - b) < 1e-12;
}

int main(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        struct samples seconds = {0}, paces = {0};
        for (int k = 0; k < r->count; k++)
            samples_add(&seconds, r->seconds[k]);
        for (int k = 0; k < r->paces; k++)
            samples_add(&paces, r->pace[k]);
        const struct by_state got = samples_by_state(&seconds, &paces);
        CHECK(same(got.share, r->want.share), "%s: share %g, not %g", r->what, got.share,
              r->want.share);
        CHECK(same(got.fast, r->want.fast), "%s: fast %g, not %g", r->what, got.fast, r->want.fast);
        CHECK(same(got.slow, r->want.slow), "%s: slow %g, not %g", r->what, got.slow, r->want.slow);
        samples_free(&seconds);
        samples_free(&paces);
    }
    CHECK(times_lost == 0, "memory was lost %d times", times_lost);
    return failures != 0;
}
