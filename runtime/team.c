/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.c - a thread team: start gate, barrier, end gate; each spins a while and then sleeps.
 *
 * Every wait is for a 32-bit word to leave a value. The writer stores the word and then looks
 * whether anyone sleeps on it; the sleeper announces itself and then looks at the word (the kernel
 * looks again, inside futex). Both orders are sequentially consistent, so one of them sees the
 * other.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime_private.h"

enum {
    MAX_TEAM = 1024,
    LINE = 128,      /* bytes between words of different writers: a line and its prefetched twin */
    IDLE_NS = 30000, /* spinning before sleep, when every rank can have a CPU: idle threads, */
    RUN_NS = 500000, /* ranks that wait for others in a run: waking one takes long */
    YIELDS = 4,      /* sched_yield calls instead, when they cannot */
    LOOKS = 64       /* looks at the word between two looks at the clock */
};

struct word {
    _Alignas(LINE) _Atomic uint32_t value;
    _Atomic uint32_t sleepers; /* threads in or near futex_wait on value */
};

struct rank {
    moegen_rt_team *team;
    pthread_t thread;
    moegen_worker worker;
    _Atomic int cpu; /* where it ran when the last run started */
};

struct moegen_rt_team {
    struct word gate;                     /* counts runs: starts the threads */
    struct word round;                    /* counts barriers: the epoch */
    struct word busy;                     /* threads of the team still inside a run */
    _Alignas(LINE) _Atomic uint32_t here; /* ranks that have reached the barrier */
    _Alignas(LINE) moegen_rt_entry entry; /* of the run in progress; NULL: the threads end */
    void *ctx;
    int size;
    bool crowded;      /* more ranks than CPUs: spinning only keeps others from working */
    cpu_set_t allowed; /* CPUs of the thread that made the team */
    unsigned forks;    /* value of `forks` when the threads were made */
    struct rank *rank;
};

static _Atomic unsigned forks; /* forks that this process descends from */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void count_fork(void)
{
    atomic_fetch_add(&forks, 1);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, count_fork);
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* True once the word differs from old; false when patience is at its end. */
static bool spin(struct word *w, uint32_t old, bool crowded, int64_t patience_ns)
{
    if (crowded) {
        for (int i = 0; i < YIELDS; i++) {
            if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
                return true;
            sched_yield();
        }
        return false;
    }
    int64_t end = 0;
    for (;;) {
        for (int i = 0; i < LOOKS; i++) {
            if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
                return true;
            relax();
        }
        int64_t t = now();
        if (end == 0)
            end = t + patience_ns;
        else if (t >= end)
            return false;
    }
}

static void wait_change(struct word *w, uint32_t old, bool crowded, int64_t patience_ns)
{
    if (spin(w, old, crowded, patience_ns))
        return;
    atomic_fetch_add(&w->sleepers, 1);
    while (atomic_load(&w->value) == old)
        syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&w->sleepers, 1);
}

static void wake(struct word *w)
{
    if (atomic_load(&w->sleepers) != 0)
        syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, MAX_TEAM, NULL, NULL, 0);
}

static void barrier(void *at)
{
    moegen_rt_team *team = at;
    uint32_t epoch = atomic_load_explicit(&team->round.value, memory_order_relaxed);
    if (atomic_fetch_add(&team->here, 1) + 1 == (uint32_t)team->size) { /* the last? */
        atomic_store_explicit(&team->here, 0, memory_order_relaxed);
        atomic_store(&team->round.value, epoch + 1);
        wake(&team->round);
    } else {
        wait_change(&team->round, epoch, team->crowded, RUN_NS);
    }
}

static int64_t add(int64_t *counter, int64_t n)
{
    return __atomic_fetch_add(counter, n, __ATOMIC_ACQ_REL);
}

static void pause_rank(void *at)
{
    const moegen_rt_team *team = at;
    if (team->crowded)
        sched_yield();
    else
        relax();
}

/*
 * A CPU of one's own. A kernel may wake a thread on the CPU of the rank that woke it and leave both
 * there while others idle (seen on a virtual machine: two ranks took as long as one). So a rank
 * that finds itself where a lower one is moves to a CPU that no rank had, and is free to be moved
 * on by the kernel.
 */
static void spread(struct rank *self)
{
    moegen_rt_team *team = self->team;
    const int here = sched_getcpu();
    bool shared = false;
    cpu_set_t taken;
    CPU_ZERO(&taken);
    for (int r = 0; r < team->size; r++) {
        const int cpu = atomic_load_explicit(&team->rank[r].cpu, memory_order_relaxed);
        if (cpu >= 0 && cpu < CPU_SETSIZE && r != self->worker.rank)
            CPU_SET(cpu, &taken);
        shared |= r < self->worker.rank && cpu == here;
    }
    atomic_store_explicit(&self->cpu, here, memory_order_relaxed);
    for (int cpu = 0; shared && cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &team->allowed) || CPU_ISSET(cpu, &taken))
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one) == 0)
            atomic_store_explicit(&self->cpu, cpu, memory_order_relaxed);
        sched_setaffinity(0, sizeof team->allowed, &team->allowed);
        return;
    }
}

static void *work(void *at)
{
    struct rank *self = at;
    moegen_rt_team *team = self->team;
    for (uint32_t gate = 0;; gate++) {
        wait_change(&team->gate, gate, team->crowded, IDLE_NS);
        if (!team->entry)
            return NULL;
        if (!team->crowded)
            spread(self);
        team->entry(team->ctx, &self->worker);
        if (atomic_fetch_sub(&team->busy.value, 1) == 1) /* the last? */
            wake(&team->busy);
    }
}

static void open_gate(moegen_rt_team *team, moegen_rt_entry entry, void *ctx)
{
    team->entry = entry;
    team->ctx = ctx;
    atomic_store_explicit(&team->rank[0].cpu, sched_getcpu(), memory_order_relaxed);
    atomic_store_explicit(&team->busy.value, (uint32_t)team->size - 1, memory_order_relaxed);
    atomic_fetch_add(&team->gate.value, 1);
    wake(&team->gate);
}

static void join(moegen_rt_team *team, int made)
{
    open_gate(team, NULL, NULL);
    for (int r = 1; r < made; r++)
        pthread_join(team->rank[r].thread, NULL);
}

/* Starts the threads of ranks 1.. with all words at rest. Returns 0 or an errno. */
static int start(moegen_rt_team *team)
{
    struct word *words[] = {&team->gate, &team->round, &team->busy};
    for (int i = 0; i < 3; i++) {
        atomic_init(&words[i]->value, 0);
        atomic_init(&words[i]->sleepers, 0);
    }
    atomic_init(&team->here, 0);
    team->forks = atomic_load(&forks);
    if (sched_getaffinity(0, sizeof team->allowed, &team->allowed) != 0)
        CPU_ZERO(&team->allowed);
    for (int r = 0; r < team->size; r++)
        atomic_init(&team->rank[r].cpu, -1);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int made = 1, failed = 0;
    for (; made < team->size && !failed; made += !failed)
        failed = pthread_create(&team->rank[made].thread, NULL, work, &team->rank[made]);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        join(team, made);
        team->forks--; /* differs: has no threads */
    }
    return failed;
}

moegen_rt_status moegen_rt_team_create(int size, moegen_rt_team **out, moegen_rt_error *err)
{
    if (size < 1 || size > MAX_TEAM)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "a team of %d threads is not in 1..%d", size,
                       MAX_TEAM);
    pthread_once(&once, watch_forks);
    void *at;
    if (posix_memalign(&at, LINE, sizeof(moegen_rt_team)))
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory for a team of %d threads", size);
    moegen_rt_team *team = at;
    team->size = size;
    team->crowded = size > moegen_rt_cpu_count();
    team->rank = calloc((size_t)size, sizeof *team->rank);
    if (!team->rank) {
        free(team);
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory for a team of %d threads", size);
    }
    for (int r = 0; r < size; r++)
        team->rank[r] = (struct rank){
            .team = team, .worker = {r, size, barrier, team, add, pause_rank}, .cpu = -1};
    int failed = start(team);
    if (failed) {
        free(team->rank);
        free(team);
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "cannot start %d threads (error %d)", size - 1,
                       failed);
    }
    *out = team;
    return MOEGEN_RT_OK;
}

void moegen_rt_team_destroy(moegen_rt_team *team)
{
    if (!team)
        return;
    if (team->size > 1 && team->forks == atomic_load(&forks)) /* threads of this process? */
        join(team, team->size);
    free(team->rank);
    free(team);
}

int moegen_rt_team_size(const moegen_rt_team *team)
{
    return team ? team->size : 1;
}

moegen_rt_status moegen_rt_team_run(moegen_rt_team *team, moegen_rt_entry entry, void *ctx)
{
    static const moegen_worker alone = {0, 1, NULL, NULL, NULL, NULL};
    if (!team || team->size == 1) {
        entry(ctx, &alone);
        return MOEGEN_RT_OK;
    }
    if (team->forks != atomic_load_explicit(&forks, memory_order_relaxed) && start(team))
        return MOEGEN_RT_NO_MEMORY;
    open_gate(team, entry, ctx);
    entry(ctx, &team->rank[0].worker);
    for (uint32_t left;
         (left = atomic_load_explicit(&team->busy.value, memory_order_acquire)) != 0;)
        wait_change(&team->busy, left, team->crowded, RUN_NS);
    return MOEGEN_RT_OK;
}

struct call {
    moegen_entry entry;
    const void *args;
    int32_t status;
};

static void call_rank(void *ctx, const moegen_worker *worker)
{
    struct call *call = ctx;
    int32_t status = call->entry(call->args, worker);
    if (worker->rank == 0)
        call->status = status;
}

int32_t moegen_rt_team_call(moegen_rt_team *team, moegen_entry entry, const void *args)
{
    if (!team || team->size == 1)
        return entry(args, NULL);
    struct call call = {entry, args, -1};
    if (moegen_rt_team_run(team, call_rank, &call) != MOEGEN_RT_OK)
        return -1;
    return call.status;
}
