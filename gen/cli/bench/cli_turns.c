/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli_turns.c - `moegen bench --turns`: runs when another process asks for them, see
 * cli/compare/turns.c. Where other work took a CPU from a run, what counts is the time for which
 * the busiest of its threads had one: on a busy machine the time of a clock says more of the others
 * than of the kernel.
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "bench.h"

enum { MAX_CLOCKS = 1024 };

/* The CPU time of each thread of this process. */
struct clocks {
    clockid_t id[MAX_CLOCKS];
    double before[MAX_CLOCKS];
    int count;
};

static double read_clock(clockid_t id)
{
    struct timespec t = {0};
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void find_clocks(struct clocks *c)
{
    DIR *dir = opendir("/proc/self/task");
    struct dirent *entry;
    c->count = 0;
    while (dir && (entry = readdir(dir)) && c->count < MAX_CLOCKS) {
        long tid = strtol(entry->d_name, NULL, 10);
        if (tid > 0) /* as pthread_getcpuclockid makes it of a thread that it knows */
            c->id[c->count++] = (clockid_t)(~(unsigned)tid << 3 | 6);
    }
    if (dir)
        closedir(dir);
}

static void start_clocks(struct clocks *c)
{
    for (int i = 0; i < c->count; i++)
        c->before[i] = read_clock(c->id[i]);
}

static double busiest(const struct clocks *c)
{
    double most = 0;
    for (int i = 0; i < c->count; i++)
        most = fmax(most, read_clock(c->id[i]) - c->before[i]);
    return most;
}

/* How often other work took a CPU from this process. */
static long interruptions(void)
{
    struct rusage r;
    return getrusage(RUSAGE_SELF, &r) ? 0 : r.ru_nivcsw;
}

static void run_once(struct contender *c, struct clocks *clocks, bool cold)
{
    if (cold && c->all)
        probe_evict(c->all);
    else if (c->batch > 1) /* another process ran meanwhile */
        moegen_call_run(c->stand.call, NULL);
    long before = interruptions();
    start_clocks(clocks);
    double start = seconds_now();
    for (int i = 0; i < c->batch; i++)
        if (moegen_call_run(c->stand.call, NULL))
            return;
    double took = seconds_now() - start, busy = busiest(clocks);
    if (interruptions() > before && busy > 0)
        took = fmin(took, busy);
    if (c->batch)
        samples_add(&c->seconds, took / c->batch);
}

void time_in_turns(struct contender *c, int count, bool cold)
{
    struct clocks *clocks = calloc(1, sizeof *clocks);
    if (!clocks)
        lost();
    else
        find_clocks(clocks);
    printf("%*s\t", count, "");
    fflush(stdout);
    for (int round = 0; clocks && round < MAX_SAMPLES && getchar() == 'r'; round++) {
        for (int i = 0; i < count; i++)
            run_once(&c[i], clocks, cold);
        putchar('\n');
        fflush(stdout);
    }
    free(clocks);
}
