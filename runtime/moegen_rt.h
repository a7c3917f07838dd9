/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moegen_rt.h - the ABI between a generated kernel and whoever calls it.
 *
 * Generated C includes this header and nothing else of moegen. A host may bring its own threads:
 * fill one moegen_worker per rank, all sharing one barrier, and call the kernel's entry once on
 * every rank.
 *
 * A kernel's argument structure consists of 8-byte members only, in this order:
 *     one pointer per tensor, in the order of the kernel's header (NULL for an absent optional
 * tensor; where the header has `const T *const *`, as of experts' matrices at addresses of their
 * own, the pointer is to a list of the tensors' addresses), one int64_t per run-time size (T, N,
 * ...), in the order of the kernel's header, void *workspace, int64_t workspace_bytes. Tensors are
 * dense and row-major. 16-bit floats (bf16, f16) are passed as uint16_t, 8-bit floats as uint8_t.
 */
#ifndef MOEGEN_RT_H
#define MOEGEN_RT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOEGEN_RT_ABI 3

/* On the declaration of a tile: it is defined in this file and stays in this library. */
#if defined(__GNUC__)
#define MOEGEN_HIDDEN __attribute__((visibility("hidden")))
#else
#define MOEGEN_HIDDEN
#endif

/* What one rank of a team needs during a call. Every rank passes the same args and its own worker.
 * NULL in place of a worker means a team of one. */
typedef struct moegen_worker {
    int64_t rank; /* 0 .. size-1 */
    int64_t size; /* ranks in the team, >= 1 */
    void (*barrier)(
        void *team); /* returns when all ranks have called it; not called when size is 1 */
    void *team;      /* passed to barrier */
    /* Adds n to a counter and returns what it was before, in one step as all ranks see it (an
     * atomic fetch-and-add that acquires and releases). A rank that is done then helps the others,
     * and ranks, which must run at the same time, may wait for a counter. NULL: every rank keeps to
     * its share; the results have the same bits. */
    int64_t (*add)(int64_t *counter, int64_t n);
    /* Called again and again with `team` while a rank waits for a counter; NULL: nothing is. */
    void (*pause)(void *team);
} moegen_worker;

/* Entry of a kernel. Returns 0, or a positive status whose text the kernel's header lists; then no
 * output was written. Every rank returns the same value. Never writes outside the tensors and the
 * workspace. On each rank it computes (and calls the barrier) in the default floating-point mode:
 * round to nearest even, subnormal numbers kept, no traps. The caller's mode comes back before it
 * returns, flags included: MXCSR on x86-64, FPCR on AArch64; on other CPUs the mode stays what it
 * is, and a host calls in the default one. */
typedef int32_t (*moegen_entry)(const void *args, const moegen_worker *worker);

/* Bytes of workspace (alignment 64) that a call with these args needs with a team of `size` ranks.
 * Reads only the run-time sizes of args. */
typedef int64_t (*moegen_workspace)(const void *args, int64_t size);

#ifdef __cplusplus
}
#endif
#endif
