/* SPDX-License-Identifier: Apache-2.0 */
/* cache.h - kernels on disk. */
#ifndef MOEGEN_CACHE_CACHE_H
#define MOEGEN_CACHE_CACHE_H

#include "base/base.h"

/* Thread-safe; concurrent processes are fine. Never fails the program: a problem is logged once and
 * the cache then misses. A NULL cache is legal everywhere and always misses. */
struct cache;
typedef void cache_log(void *user, int level, const char *message);
/* dir NULL: $MOEGEN_CACHE_DIR, else $XDG_CACHE_HOME/moegen, else ~/.cache/moegen; made if missing.
 * NULL when dir is "" (no message) or not usable (logged). */
struct cache *cache_open(const char *dir, cache_log *log, void *user);
void cache_close(struct cache *c);
const char *
cache_path(const struct cache *c); /* absolute directory; "" for NULL; owned by the cache */
/* True: *out and *meta (kernel metadata, NUL-terminated, caller frees with text_free) are as they
 * were put. */
bool cache_get(struct cache *c, const unsigned char key[32], struct blob *out, struct text *meta);
/* True when the entry is there now. meta: the metadata text. */
bool cache_put(struct cache *c, const unsigned char key[32], const struct blob *b, const char *meta,
               size_t meta_len);
struct cache_entry {
    char key[65];        /* hex */
    const char *meta;    /* metadata text; "" when the entry is damaged */
    const char *problem; /* NULL, or why the entry will not be used: one sentence */
    uint64_t bytes;      /* size of the file */
    int64_t used;        /* seconds since 1970: when it was last used, to the hour */
};
/* Read and verify every entry, sorted by key; visit returns false to stop. Returns the number of
 * entries visited; SIZE_MAX: memory was out before the end. */
size_t cache_each(struct cache *c, bool (*visit)(void *user, const struct cache_entry *e),
                  void *user);
/* Remove least recently used entries until at most max_bytes remain, and forgotten temporary files.
 * 0 removes all. Returns the number of entries removed; *bytes (may be NULL) gets the bytes freed.
 * SIZE_MAX: out of memory, and none was. */
size_t cache_prune(struct cache *c, uint64_t max_bytes, uint64_t *bytes);
bool cache_drop(struct cache *c,
                const char *key); /* remove one entry by its hex key; true if it was there */

#endif
