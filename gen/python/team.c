/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.c - ranks on the threads of a host's parallel loop.
 *
 * A loop over 0..n-1 with grain 1 gives each of n threads one rank, or, where the host has fewer
 * threads to give (it limits them, or this is inside of a loop of its own), several to some. Ranks
 * meet at barriers, so they have to run at the same time: either every part is one rank, on the
 * thread of its number, or the thread that has rank 0 runs the kernel alone and the others nothing.
 * All threads see alike which of the two it is: a host of m < n threads gives the first of them
 * more than one rank, and later ones numbers that are not theirs.
 */
#include "team.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "rt_ranks.h"

struct run {
    moegen_entry entry;
    moegen_team_index index;
    const int64_t *args;
    int32_t status; /* of rank 0 */
    struct rt_ranks ranks;
};

static void ranks(int64_t from, int64_t to, void *at)
{
    struct run *run = at;
    uint32_t self = 0;
    const bool one =
        to - from == 1 && run->index(&self) == 0 && self == from && run->ranks.size > 1;
    if (!one && from != 0)
        return;
    const moegen_worker worker = rt_ranks_worker(&run->ranks, from);
    const int32_t status = run->entry(run->args, one ? &worker : NULL);
    if (from == 0)
        run->status = status;
}

/* ---- the workspace of a thread ---- */

struct room {
    void *memory;
    size_t bytes;
};

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool has_key;

static void drop(void *at)
{
    struct room *room = at;
    free(room->memory);
    free(room);
}

static void make_key(void)
{
    has_key = pthread_key_create(&key, drop) == 0;
}

/* Memory of this thread with room for so many bytes; NULL: there is none. */
static void *room_for(size_t bytes)
{
    pthread_once(&once, make_key);
    struct room *room = has_key ? pthread_getspecific(key) : NULL;
    if (!room && has_key && (room = calloc(1, sizeof *room)) && pthread_setspecific(key, room)) {
        free(room);
        room = NULL;
    }
    if (!room)
        return NULL;
    if (bytes > room->bytes) {
        free(room->memory);
        room->bytes = (bytes + 4095) / 4096 * 4096;
        room->memory = aligned_alloc(bytes >= 2u << 20 ? 4096 : 64, room->bytes);
        if (!room->memory)
            room->bytes = 0;
    }
    return room->memory;
}

int32_t moegen_team_version(void)
{
    return MOEGEN_TEAM_VERSION;
}

int32_t moegen_team_run(const struct moegen_team *team, const int64_t *given, int64_t threads)
{
    const int64_t words = team->words;
    int64_t own[MOEGEN_TEAM_WORDS];
    if (words < 2 || words > MOEGEN_TEAM_WORDS)
        return MOEGEN_TEAM_FAILED;
    for (int64_t i = 0; i < words - 2; i++) {
        own[i] = given[team->word[i].at] + given[team->word[i].more];
        if (own[i] == 0 && team->word[i].needed)
            return MOEGEN_TEAM_NO_TENSOR;
    }
    own[words - 2] = own[words - 1] = 0;
    int64_t bytes = team->workspace(own, 1); /* a host may give one thread only */
    if (threads > 1) {
        const int64_t together = team->workspace(own, threads);
        bytes = together > bytes ? together : bytes;
    }
    void *memory = bytes > 0 ? room_for((size_t)bytes) : NULL;
    if (bytes > 0 && !memory)
        return MOEGEN_TEAM_NO_MEMORY;
    own[words - 2] = (int64_t)(intptr_t)memory;
    own[words - 1] = bytes;
    if (threads == 1)
        return team->entry(own, NULL);
    struct run run = {team->entry, team->index, own, MOEGEN_TEAM_FAILED, {.size = threads}};
    return team->loop(0, threads, 1, ranks, &run) ? MOEGEN_TEAM_FAILED : run.status;
}
