/* SPDX-License-Identifier: Apache-2.0 */
/* stopwatch_test.c - seconds of work, alone and beside other work on the same CPU: the latter do
 * not count. */
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "trial/trial.h"

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Keeps a CPU busy until so much of its time is spent. */
static void work(double much)
{
    for (double start = seconds(CLOCK_THREAD_CPUTIME_ID);
         seconds(CLOCK_THREAD_CPUTIME_ID) - start < much;)
        ;
}

static void stay_on_this_cpu(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    sched_setaffinity(0, sizeof set, &set);
}

int main(void)
{
    static const double much = 0.2;
    struct stopwatch w = {.count = 0};
    stopwatch_find(&w);
    CHECK(w.count == 1, "%d threads", w.count);
    const struct timespec pause = {.tv_nsec = 20000000};
    double slept = 0;
    for (int i = 0; i < 50 && slept < 0.019; i++) { /* other work may interrupt a try */
        stopwatch_start(&w);
        nanosleep(&pause, NULL);
        slept = stopwatch_stop(&w);
    }
    CHECK(slept >= 0.019, "sleep does not count");

    stay_on_this_cpu();
    pid_t child = fork();
    if (!child)
        for (;;)
            ;
    nanosleep(&pause, NULL);
    stopwatch_start(&w);
    double start = seconds(CLOCK_MONOTONIC);
    work(much);
    double took = seconds(CLOCK_MONOTONIC) - start, counted = stopwatch_stop(&w);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(took > 1.3 * much, "%g s beside other work: is it?", took);
    CHECK(counted >= 0.99 * much && counted < 1.1 * much, "%g s count of %g, of a clock %g",
          counted, much, took);
    return failures > 0;
}
