/* SPDX-License-Identifier: Apache-2.0 */
/* Thread teams: every rank once, barriers keep phases apart, fork, bad sizes, generated entries. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "moegen_runtime.h"

enum { MAX = 8 };
struct job {
    int phases;
    int64_t at[MAX]; /* plain memory: the barrier alone orders its use */
    _Atomic int wrong;
    _Atomic int calls;
};

static void phases(void *ctx, const moegen_worker *w)
{
    struct job *job = ctx;
    atomic_fetch_add(&job->calls, 1);
    for (int p = 0; p < job->phases; p++) {
        job->at[w->rank]++;
        if (w->size > 1)
            w->barrier(w->team);
        for (int r = 0; r < w->size; r++)
            if (job->at[r] != job->at[w->rank])
                atomic_fetch_add(&job->wrong, 1);
        if (w->size > 1)
            w->barrier(w->team);
    }
}

static void run_many(int size, int runs, int phase_count, int nap)
{
    moegen_rt_team *team = NULL;
    moegen_rt_error err;
    CHECK(moegen_rt_team_create(size, &team, &err) == MOEGEN_RT_OK, "create");
    for (int i = 0; i < runs; i++) {
        struct job job = {.phases = phase_count};
        CHECK(moegen_rt_team_run(team, phases, &job) == MOEGEN_RT_OK, "run");
        CHECK(job.wrong == 0 && job.calls == size, "size %d: %d wrong, %d calls", size, job.wrong,
              job.calls);
        for (int r = 0; r < size; r++)
            CHECK(job.at[r] == phase_count, "rank %d did %lld", r, (long long)job.at[r]);
        if (nap) /* let the threads fall asleep */
            usleep((useconds_t)(i % 3) * 60);
    }
    moegen_rt_team_destroy(team);
}

static int32_t entry(const void *args, const moegen_worker *w)
{
    _Atomic int *count = *(_Atomic int *const *)args;
    atomic_fetch_add(count, 1);
    if (w && w->size > 1)
        w->barrier(w->team);
    return 17;
}

static void generated_entry(int size)
{
    moegen_rt_team *team = NULL;
    _Atomic int count = 0;
    _Atomic int *args = &count;
    CHECK(moegen_rt_team_create(size, &team, NULL) == MOEGEN_RT_OK, "create");
    CHECK(moegen_rt_team_call(team, entry, &args) == 17 && count == size, "call of %d", size);
    CHECK(moegen_rt_team_size(team) == size, "size");
    moegen_rt_team_destroy(team);
}

static void in_child(void)
{
    moegen_rt_team *team = NULL;
    struct job job = {.phases = 3};
    moegen_rt_team_create(3, &team, NULL);
    moegen_rt_team_run(team, phases, &job);
    pid_t child = fork();
    if (child == 0) {
        struct job again = {.phases = 3};
        alarm(10);
        moegen_rt_team_run(team, phases, &again);
        moegen_rt_team_destroy(team);
        _exit(again.wrong || again.calls != 3);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK(status == 0, "a team after fork: status %#x", (unsigned)status);
    CHECK(moegen_rt_team_run(team, phases, &job) == MOEGEN_RT_OK, "parent after fork");
    moegen_rt_team_destroy(team);
}

/* ---- CPUs ---- */

struct crowd {
    int cpu;     /* where all ranks go, from the next run on; -1: they stay */
    int free[2]; /* CPUs that each rank may use */
};

static void gather(void *ctx, const moegen_worker *w)
{
    struct crowd *crowd = ctx;
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    crowd->free[w->rank] = CPU_COUNT(&set);
    if (crowd->cpu < 0)
        return;
    CPU_ZERO(&set);
    CPU_SET(crowd->cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* A rank that begins where another one is goes elsewhere, and is free to go on. */
static void spreads(void)
{
    moegen_rt_team *team = NULL;
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    if (CPU_COUNT(&before) < 2 || moegen_rt_cpu_count() < 2) /* nowhere to go */
        return;
    struct crowd crowd = {.cpu = sched_getcpu()};
    CHECK(moegen_rt_team_create(2, &team, NULL) == MOEGEN_RT_OK, "create");
    moegen_rt_team_run(team, gather, &crowd);
    crowd.cpu = -1;
    moegen_rt_team_run(team, gather, &crowd);
    CHECK(crowd.free[0] == 1, "rank 0 stays where its caller keeps it: %d CPUs", crowd.free[0]);
    CHECK(crowd.free[1] == CPU_COUNT(&before),
          "rank 1 left the CPU of rank 0: it has %d of %d CPUs", crowd.free[1], CPU_COUNT(&before));
    moegen_rt_team_destroy(team);
    sched_setaffinity(0, sizeof before, &before);
}

static void latency(void)
{
    moegen_rt_team *team = NULL;
    struct job job = {.phases = 1};
    struct timespec a, b;
    enum { RUNS = 20000 };
    moegen_rt_team_create(2, &team, NULL);
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < RUNS; i++)
        moegen_rt_team_run(team, phases, &job);
    clock_gettime(CLOCK_MONOTONIC, &b);
    double ns = (double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec);
    printf("2 threads: %.0f ns for a run with 2 barriers\n", ns / RUNS);
    moegen_rt_team_destroy(team);
}

/* ThreadSanitizer cannot start threads after fork. */
#if defined(__SANITIZE_THREAD__)
#define NO_FORK 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NO_FORK 1
#endif
#endif
#ifndef NO_FORK
#define NO_FORK 0
#endif

int main(int argc, char **argv)
{
    moegen_rt_team *team = NULL;
    moegen_rt_error err = {""};
    int few = argc > 1 && strcmp(argv[1], "few") == 0; /* for slow tools */
    CHECK(moegen_rt_team_create(0, &team, &err) == MOEGEN_RT_BAD_ARGUMENT && *err.text, "size 0");
    CHECK(moegen_rt_team_create(1025, &team, NULL) == MOEGEN_RT_BAD_ARGUMENT, "size 1025");
    CHECK(moegen_rt_team_size(NULL) == 1, "NULL team");
    moegen_rt_team_destroy(NULL);
    struct job alone = {.phases = 1};
    CHECK(moegen_rt_team_run(NULL, phases, &alone) == MOEGEN_RT_OK && alone.calls == 1, "alone");
    for (int size = 1; size <= MAX; size++) {
        run_many(size, few ? 20 : size <= 2 ? 2000 : 100, 5, 0);
        run_many(size, few ? 10 : 60, 2, 1);
        generated_entry(size);
    }
    run_many(2, 2, few ? 100 : 20000, 0);
    for (int i = 0; i < (few ? 3 : 30); i++) { /* made and ended at once */
        moegen_rt_team_create(4, &team, NULL);
        moegen_rt_team_destroy(team);
    }
    if (!NO_FORK)
        in_child();
    spreads();
    latency();
    return failures != 0;
}
