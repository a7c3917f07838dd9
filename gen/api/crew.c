/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew.c - idle thread teams, shared by an engine and the calls of its kernels, so that a model
 * with hundreds of calls has one set of threads. A run takes a team of its size and gives it back;
 * concurrent runs get different ones. And runs on the threads of a host, which brings its own.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "moegen_runtime.h"
#include "rt_ranks.h"
#include "unit.h"

enum { IDLE = 8 /* teams kept */ };

struct crew {
    _Atomic int refs;
    int threads; /* asked for; 0: nobody did */
    int cpus;
    pthread_mutex_t lock;
    moegen_rt_team *idle[IDLE]; /* most recently used last */
    int count;
};

struct crew *crew_create(int threads)
{
    struct crew *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->refs = 1;
    c->threads = threads < CREW_MOST ? threads : CREW_MOST;
    c->cpus = moegen_rt_cpu_count();
    if (c->cpus > CREW_MOST)
        c->cpus = CREW_MOST;
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

struct crew *crew_retain(struct crew *c)
{
    c->refs++;
    return c;
}

void crew_release(struct crew *c)
{
    if (!c || --c->refs)
        return;
    while (c->count)
        moegen_rt_team_destroy(c->idle[--c->count]);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

int crew_threads(const struct crew *c, int wanted)
{
    return c->threads ? c->threads : wanted ? wanted : c->cpus;
}

static moegen_rt_team *take(struct crew *c, int size)
{
    moegen_rt_team *team = NULL;
    pthread_mutex_lock(&c->lock);
    for (int i = c->count - 1; i >= 0 && !team; i--)
        if (moegen_rt_team_size(c->idle[i]) == size) {
            team = c->idle[i];
            for (c->count--; i < c->count; i++)
                c->idle[i] = c->idle[i + 1];
        }
    pthread_mutex_unlock(&c->lock);
    if (!team && moegen_rt_team_create(size, &team, NULL))
        return NULL;
    return team;
}

static void give(struct crew *c, moegen_rt_team *team)
{
    moegen_rt_team *oldest = NULL;
    pthread_mutex_lock(&c->lock);
    if (c->count == IDLE) {
        oldest = c->idle[0];
        for (int i = 1; i < IDLE; i++)
            c->idle[i - 1] = c->idle[i];
        c->count--;
    }
    c->idle[c->count++] = team;
    pthread_mutex_unlock(&c->lock);
    moegen_rt_team_destroy(oldest);
}

moegen_status crew_run(struct crew *c, int size, moegen_entry entry, const void *args,
                       int32_t *result)
{
    if (size == 1) {
        *result = entry(args, NULL);
        return MOEGEN_OK;
    }
    moegen_rt_team *team = take(c, size);
    if (!team)
        return MOEGEN_NO_MEMORY;
    *result = moegen_rt_team_call(team, entry, args);
    give(c, team);
    return *result == -1 ? MOEGEN_NO_MEMORY : MOEGEN_OK;
}

/* ---- a host's threads ---- */

struct run {
    moegen_entry entry;
    const void *args;
    int32_t result;           /* of rank 0 */
    _Atomic int begun, ended; /* ranks */
    struct rt_ranks ranks;
};

static void run_rank(void *at, int number)
{
    struct run *run = at;
    if (number < 0 || number >= run->ranks.size ||
        atomic_fetch_add(&run->begun, 1) >= run->ranks.size)
        return;
    const moegen_worker worker = rt_ranks_worker(&run->ranks, number);
    const int32_t result = run->entry(run->args, &worker);
    if (number == 0)
        run->result = result;
    atomic_fetch_add(&run->ended, 1);
}

bool crew_run_on(moegen_runner runner, void *host, int size, moegen_entry entry, const void *args,
                 int32_t *result)
{
    struct run run = {.entry = entry, .args = args, .ranks = {.size = size}};
    if (size == 1 || runner(host, size, run_rank, &run)) {
        if (atomic_load(&run.begun) == 0)
            *result = entry(args, NULL);
        return atomic_load(&run.begun) == 0;
    }
    *result = run.result;
    return atomic_load(&run.ended) == size;
}
