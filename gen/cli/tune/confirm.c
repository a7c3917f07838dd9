/* SPDX-License-Identifier: Apache-2.0 */
/* confirm.c - is a plan that was found faster in processes that know nothing of the search? */
#include <string.h>

#include "tuner.h"

static const double margin = 0.01, loss_allowed = 0.98;
static const double patience = 3; /* budgets of a plan that is faster, but not for sure */

static void make_side(const struct options *o, const struct job *j, int k,
                      const struct tuned_kernel *x, bool with_plan, struct side *s)
{
    side_add_kernel(o, s);
    side_add(s, "--set=plan.tuned=false");
    for (const char *at = moegen_tuning_plan(x->tuning); with_plan && *at;) {
        size_t len = strcspn(at, " ");
        side_add(s, "--set=%.*s", (int)len, at);
        at += len + (at[len] == ' ');
    }
    side_add(s, "--threads=%d", x->tuning->threads);
    side_add(s, "--vary=T=%s", x->tokens.at);
    side_add(s, "--");
    if (*j->kernel[k])
        side_add(s, "%s:%s", j->path, j->kernel[k]);
    else
        side_add(s, "%s", j->path);
}

int confirm_fresh(const struct options *o, const struct job *j, int k, double budget,
                  struct tuned_kernel *x)
{
    struct side side[2] = {{0}};
    struct duels duels = {0};
    struct limits limits = {.margin = margin, .budget = budget, .longest = patience * budget};
    int result = EXIT_OK;
    for (int i = 0; i < 2; i++) {
        make_side(o, j, k, x, i == 1, &side[i]);
        if (side[i].lost)
            result = fail(MOEGEN_NO_MEMORY, NULL);
    }
    if (!result)
        result = fresh_duels(side, 2, &limits, &duels);
    if (!result) {
        x->fresh = true;
        x->paired = duels.overall;
        for (int i = 0; i < duels.rows; i++) {
            const struct paired *p = &duels.row[i].paired;
            x->worse = x->worse || (p->verdict == VERDICT_SLOWER && p->ratio < loss_allowed);
        }
    }
    duels_free(&duels);
    for (int i = 0; i < 2; i++)
        side_free(&side[i]);
    return result;
}
