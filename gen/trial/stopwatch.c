/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stopwatch.c - how long something takes. Where other work took a CPU from it, what counts is the
 * time for which the busiest of its threads had one: on a busy machine the time of a clock says
 * more of the others than of the kernel.
 */
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "trial.h"

static double read_clock(clockid_t id)
{
    struct timespec t = {0};
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* How often other work took a CPU from this process. */
static long interruptions(void)
{
    struct rusage r;
    return getrusage(RUSAGE_SELF, &r) ? 0 : r.ru_nivcsw;
}

void stopwatch_find(struct stopwatch *w)
{
    DIR *dir = opendir("/proc/self/task");
    struct dirent *entry;
    w->count = 0;
    while (dir && (entry = readdir(dir)) && w->count < MAX_CLOCKS) {
        long tid = strtol(entry->d_name, NULL, 10);
        if (tid > 0) /* as pthread_getcpuclockid makes it of a thread that it knows */
            w->clock[w->count++] = (int)(~(unsigned)tid << 3 | 6);
    }
    if (dir)
        closedir(dir);
}

void stopwatch_start(struct stopwatch *w)
{
    w->interruptions = interruptions();
    for (int i = 0; i < w->count; i++)
        w->before[i] = read_clock(w->clock[i]);
    w->start = read_clock(CLOCK_MONOTONIC);
}

double stopwatch_stop(struct stopwatch *w)
{
    double took = read_clock(CLOCK_MONOTONIC) - w->start, busy = 0;
    if (interruptions() == w->interruptions)
        return took;
    for (int i = 0; i < w->count; i++)
        busy = fmax(busy, read_clock(w->clock[i]) - w->before[i]);
    return busy > 0 ? fmin(took, busy) : took;
}
