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
    LINE = 128,       /* bytes between words of different writers: a line and its prefetched twin */
    IDLE_NS = 100000, /* spinning before sleep, when every rank can have a CPU: idle threads, */
    RUN_NS = 500000,  /* ranks that wait for others in a run: waking one takes long */
    YIELDS = 4,       /* sched_yield calls instead, when they cannot */
    LOOKS = 64        /* looks at the word between two looks at the clock */
};

struct word {
    _Alignas(LINE) _Atomic uint32_t value;
    _Atomic uint32_t sleepers; /* threads in or near futex_wait on value */
};

struct rank {
    moegen_rt_team *team;
    pthread_t thread;
    moegen_worker worker;
    _Atomic uint64_t place; /* the last run that it began, and the CPU there: see place() */
};

struct moegen_rt_team {
    struct word gate;                     /* counts runs: starts the threads */
    struct word round;                    /* counts barriers: the epoch */
    struct word busy;                     /* threads of the team still inside a run */
    _Alignas(LINE) _Atomic uint32_t away; /* threads that have not begun the run */
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

/*
 * True once the word differs from old; false when patience is at its end. A thread that has no
 * work, or that waits for one that has not begun, gives way to others on its CPU: the kernel may
 * have woken one of the team there while all CPUs were spinning, and would let it wait for
 * milliseconds.
 */
static bool spin(moegen_rt_team *team, struct word *w, uint32_t old)
{
    if (team->crowded) {
        for (int i = 0; i < YIELDS; i++) {
            if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
                return true;
            sched_yield();
        }
        return false;
    }
    const bool idle = w == &team->gate;
    int64_t end = 0;
    for (;;) {
        for (int i = 0; i < LOOKS; i++) {
            if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
                return true;
            relax();
        }
        int64_t t = now();
        if (end == 0)
            end = t + (idle ? IDLE_NS : RUN_NS);
        else if (t >= end)
            return false;
        if (idle || atomic_load_explicit(&team->away, memory_order_relaxed) != 0)
            sched_yield();
    }
}

static void wait_change(moegen_rt_team *team, struct word *w, uint32_t old)
{
    if (spin(team, w, old))
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
        wait_change(team, &team->round, epoch);
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

static uint64_t place(uint32_t run, int cpu)
{
    return (uint64_t)run << 32 | (uint32_t)cpu;
}

/* Goes to a CPU and is free to be moved on by the kernel. */
static void move(const moegen_rt_team *team, int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    sched_setaffinity(0, sizeof team->allowed, &team->allowed);
}

/*
 * A CPU of one's own. A kernel may wake a thread where another rank runs and leave both there while
 * CPUs idle (seen on virtual machines: two ranks took as long as one). So a rank that begins where
 * one is that has begun moves to a CPU that no rank had, before it or in the last run.
 */
static void spread(struct rank *self, uint32_t run)
{
    moegen_rt_team *team = self->team;
    const int here = sched_getcpu();
    bool shared = false;
    cpu_set_t taken;
    CPU_ZERO(&taken);
    atomic_store(&self->place, place(run, here));
    for (int r = 0; r < team->size; r++) {
        const uint64_t other = atomic_load(&team->rank[r].place);
        const uint32_t cpu = (uint32_t)other;
        if (r != self->worker.rank && cpu < CPU_SETSIZE)
            CPU_SET(cpu, &taken);
        shared |= r != self->worker.rank && other == place(run, here);
    }
    for (int i = 0; shared && i < CPU_SETSIZE; i++) {
        const int cpu = (self->worker.rank + i) % CPU_SETSIZE; /* others look elsewhere first */
        if (!CPU_ISSET(cpu, &team->allowed) || CPU_ISSET(cpu, &taken))
            continue;
        atomic_store(&self->place, place(run, cpu));
        move(team, cpu);
        return;
    }
}

static void *work(void *at)
{
    struct rank *self = at;
    moegen_rt_team *team = self->team;
    for (uint32_t gate = 0;; gate++) {
        wait_change(team, &team->gate, gate);
        if (!team->entry)
            return NULL;
        if (!team->crowded)
            spread(self, gate + 1);
        atomic_fetch_sub_explicit(&team->away, 1, memory_order_relaxed);
        team->entry(team->ctx, &self->worker);
        if (atomic_fetch_sub(&team->busy.value, 1) == 1) /* the last? */
            wake(&team->busy);
    }
}

static void open_gate(moegen_rt_team *team, moegen_rt_entry entry, void *ctx)
{
    team->entry = entry;
    team->ctx = ctx;
    const uint32_t run = atomic_load_explicit(&team->gate.value, memory_order_relaxed) + 1;
    atomic_store(&team->rank[0].place, place(run, sched_getcpu()));
    atomic_store_explicit(&team->busy.value, (uint32_t)team->size - 1, memory_order_relaxed);
    atomic_store_explicit(&team->away, (uint32_t)team->size - 1, memory_order_relaxed);
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
    atomic_init(&team->away, 0);
    team->forks = atomic_load(&forks);
    if (sched_getaffinity(0, sizeof team->allowed, &team->allowed) != 0)
        CPU_ZERO(&team->allowed);
    for (int r = 0; r < team->size; r++)
        atomic_init(&team->rank[r].place, place(0, -1));
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
        team->rank[r] =
            (struct rank){.team = team, .worker = {r, size, barrier, team, add, pause_rank}};
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
        wait_change(team, &team->busy, left);
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
