/* SPDX-License-Identifier: Apache-2.0 */
/* cli_turns.c - `moegen bench --turns`: runs when another process asks for them, see
 * cli/compare/turns.c. */
#include <stdio.h>

#include "bench.h"

static void run_once(struct contender *c, struct stopwatch *watch, bool cold)
{
    if (cold && c->all)
        probe_evict(c->all);
    else if (c->batch > 1) /* another process ran meanwhile */
        moegen_call_run(c->stand.call, NULL);
    stopwatch_start(watch);
    for (int i = 0; i < c->batch; i++)
        if (moegen_call_run(c->stand.call, NULL))
            return;
    double took = stopwatch_stop(watch);
    if (c->batch)
        samples_add(&c->seconds, took / c->batch);
}

bool time_in_turns(struct contender *c, int count, bool cold)
{
    struct stopwatch watch;
    stopwatch_find(&watch);
    printf("%*s\t", count, "");
    fflush(stdout);
    int asked = 0;
    for (int round = 0; round < MAX_SAMPLES && (asked = getchar()) == 'r'; round++) {
        for (int i = 0; i < count; i++)
            run_once(&c[i], &watch, cold);
        putchar('\n');
        fflush(stdout);
    }
    return asked != EOF;
}
