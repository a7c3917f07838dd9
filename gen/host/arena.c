/* SPDX-License-Identifier: Apache-2.0 */
/* arena.c - memory of one sandbox. Small blocks come from chunks through free lists by size, large
 * ones from malloc; all of it is dropped at once, which spares a generation the walk through every
 * object that lua_close makes. */
#include <stdlib.h>
#include <string.h>

#include "sandbox.h"

enum { STEP = 16, SMALL = STEP * (ARENA_CLASSES - 1), CHUNK_MIN = 64 << 10, CHUNK_MAX = 1 << 20 };

/* Header of a chunk and of a large block; a multiple of STEP, so what follows is aligned. */
struct arena_block {
    struct arena_block *next, *prev;
};

static bool in_base(const struct arena *a, const void *block)
{
    return (uintptr_t)block - (uintptr_t)a->base < a->base_size;
}

/* From the newest chunk; NULL: it has no room for it. */
static void *cut(struct arena *a, size_t size)
{
    void *block = a->at;
    if (a->left < size)
        return NULL;
    a->at += size;
    a->left -= size;
    return block;
}

/* A block of at most SMALL bytes: freed ones of its class first, then the rest of the newest chunk.
 */
static void *take_small(struct arena *a, size_t size)
{
    size_t class = (size + STEP - 1) / STEP;
    void **first = a->freed[class];
    if (first) {
        a->freed[class] = *first;
        return first;
    }
    size = class * STEP;
    if (a->left < size && !a->whole) {
        size_t room = a->chunk_size ? a->chunk_size * 2 : CHUNK_MIN;
        room = room < CHUNK_MAX ? room : CHUNK_MAX;
        struct arena_block *chunk = malloc(room);
        if (!chunk)
            return NULL;
        chunk->next = a->chunks;
        a->chunks = chunk;
        a->chunk_size = room;
        a->at = (char *)(chunk + 1);
        a->left = room - sizeof *chunk;
    }
    return cut(a, size);
}

static void give_small(struct arena *a, void *block, size_t size)
{
    size_t class = (size + STEP - 1) / STEP;
    *(void **)block = a->freed[class];
    a->freed[class] = block;
}

/* Resizes a large block; `old` NULL: a new one. */
static void *take_large(struct arena *a, void *old, size_t size)
{
    if (a->whole)
        return cut(a, (size + STEP - 1) / STEP * STEP);
    struct arena_block *b = old ? (struct arena_block *)old - 1 : NULL;
    b = realloc(b, sizeof *b + size);
    if (!b)
        return NULL;
    if (!old) {
        b->prev = NULL;
        b->next = a->large;
    }
    if (b->next)
        b->next->prev = b;
    if (b->prev)
        b->prev->next = b;
    else
        a->large = b;
    return b + 1;
}

static void give_large(struct arena *a, void *block)
{
    struct arena_block *b = (struct arena_block *)block - 1;
    if (b->next)
        b->next->prev = b->prev;
    if (b->prev)
        b->prev->next = b->next;
    else
        a->large = b->next;
    free(b);
}

void arena_give(struct arena *a, void *block, size_t size)
{
    if (block && size > SMALL && !in_base(a, block))
        give_large(a, block);
    else if (block && size && size <= SMALL)
        give_small(a, block, size);
}

void *arena_resize(struct arena *a, void *old, size_t old_size, size_t size)
{
    if (old && old_size > SMALL && size > SMALL && !in_base(a, old))
        return take_large(a, old, size);
    if (old && old_size <= SMALL && size <= SMALL &&
        (old_size + STEP - 1) / STEP == (size + STEP - 1) / STEP)
        return old;
    void *block = size > SMALL ? take_large(a, NULL, size) : take_small(a, size);
    if (block && old) {
        memcpy(block, old, old_size < size ? old_size : size);
        arena_give(a, old, old_size);
    }
    return block;
}

static void free_list(struct arena_block *b)
{
    while (b) {
        struct arena_block *next = b->next;
        free(b);
        b = next;
    }
}

void arena_drop(struct arena *a)
{
    free_list(a->chunks);
    free_list(a->large);
    *a = (struct arena){0};
}
