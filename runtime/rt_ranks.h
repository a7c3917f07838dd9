/* SPDX-License-Identifier: Apache-2.0 */
/* rt_ranks.h - ranks on threads that a host brings, all of them at the same time: what a kernel's
 * worker asks of these. A rank that waits spins, then gives way to others, then sleeps. */
#ifndef MOEGEN_RT_RANKS_H
#define MOEGEN_RT_RANKS_H

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "moegen_rt.h"

enum { RT_RANKS_LINE = 128, RT_RANKS_SPINS = 2000, RT_RANKS_YIELDS = 400 };

/* All but the size starts at 0. */
struct rt_ranks {
    int64_t size;
    _Alignas(RT_RANKS_LINE) _Atomic uint32_t here; /* ranks that have reached the barrier */
    _Alignas(RT_RANKS_LINE) _Atomic uint32_t round;
    _Atomic uint32_t sleepers; /* in or near futex_wait on round */
};

static inline void rt_ranks_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void rt_ranks_barrier(void *at)
{
    struct rt_ranks *ranks = at;
    const uint32_t round = atomic_load_explicit(&ranks->round, memory_order_relaxed);
    if (atomic_fetch_add(&ranks->here, 1) + 1 == (uint32_t)ranks->size) { /* the last? */
        atomic_store_explicit(&ranks->here, 0, memory_order_relaxed);
        atomic_store(&ranks->round, round + 1);
        if (atomic_load(&ranks->sleepers) != 0)
            syscall(SYS_futex, &ranks->round, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
        return;
    }
    for (int i = 0; i < RT_RANKS_SPINS + RT_RANKS_YIELDS; i++) {
        if (atomic_load_explicit(&ranks->round, memory_order_acquire) != round)
            return;
        if (i < RT_RANKS_SPINS)
            rt_ranks_relax();
        else
            sched_yield(); /* the rank that is waited for may want this CPU */
    }
    atomic_fetch_add(&ranks->sleepers, 1);
    while (atomic_load(&ranks->round) == round)
        syscall(SYS_futex, &ranks->round, FUTEX_WAIT_PRIVATE, round, NULL, NULL, 0);
    atomic_fetch_sub(&ranks->sleepers, 1);
}

static inline int64_t rt_ranks_add(int64_t *counter, int64_t n)
{
    return __atomic_fetch_add(counter, n, __ATOMIC_ACQ_REL);
}

static inline void rt_ranks_pause(void *at)
{
    (void)at;
    rt_ranks_relax();
    sched_yield();
}

static inline moegen_worker rt_ranks_worker(struct rt_ranks *ranks, int64_t rank)
{
    return (moegen_worker){rank,  ranks->size,  rt_ranks_barrier,
                           ranks, rt_ranks_add, rt_ranks_pause};
}

#endif
