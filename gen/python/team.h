/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.h - runs a kernel on the threads of a host that has a parallel loop, as PyTorch has: a
 * second team of threads would compete with those of the first, which spin for a while after each
 * loop.
 */
#ifndef MOEGEN_TEAM_H
#define MOEGEN_TEAM_H

#include <stdint.h>

#include "moegen_rt.h"

/* The host's: body(from, to, ctx) for parts of begin..end, each at least `grain` long, at the same
 * time on threads of its own; 0 is success. */
typedef void (*moegen_team_body)(int64_t from, int64_t to, void *ctx);
typedef int32_t (*moegen_team_loop)(int64_t begin, int64_t end, int64_t grain,
                                    moegen_team_body body, void *ctx);
/* The host's: number of the thread within the loop that it runs, from 0 on. */
typedef int32_t (*moegen_team_index)(uint32_t *index);

/* VERSION: a number that changes with struct moegen_team, its parts and what is given. */
enum {
    MOEGEN_TEAM_VERSION = 2,
    MOEGEN_TEAM_WORDS = 64,
    MOEGEN_TEAM_NO_MEMORY = -1,
    MOEGEN_TEAM_FAILED = -2,
    MOEGEN_TEAM_NO_TENSOR = -3
};

/* A word of a kernel's argument structure: the sum of two of those that a call gives. */
struct moegen_team_word {
    int32_t at, more;
    int32_t needed; /* not 0: what it points to has to be there */
};

/* A kernel and the host that runs it. */
struct moegen_team {
    moegen_entry entry;
    moegen_workspace workspace;
    moegen_team_loop loop; /* may be NULL with one thread, as may index */
    moegen_team_index index;
    const struct moegen_team_word *word; /* where each of these comes from: */
    int64_t words; /* of the kernel's argument structure, 8 bytes each; at most MOEGEN_TEAM_WORDS */
};

/* MOEGEN_TEAM_VERSION of the library, which may have been built with another package. */
__attribute__((visibility("default"))) int32_t moegen_team_version(void);

/*
 * Runs a kernel once, by up to `threads` ranks on the host's threads, and returns when it is done,
 * with its status or one of those above. given: what the kernel's argument structure is made of,
 * addresses and sizes, all but its last two words: the workspace belongs to the calling thread and
 * stays with it. Nothing is validated, but a tensor without memory is refused. A host that gives
 * fewer threads than asked for runs the kernel on one of them: the results are the same. Any
 * threads may call at the same time.
 */
__attribute__((visibility("default"))) int32_t
moegen_team_run(const struct moegen_team *team, const int64_t *given, int64_t threads);

#endif
