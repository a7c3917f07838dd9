/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h - what an engine is made of: what it remembers, asks and measures. */
#ifndef MOEGEN_API_ENGINE_H
#define MOEGEN_API_ENGINE_H

#include "api.h"
#include "cache/cache.h"

/* ---- request.c ---- */

/* The request as bytes: every part preceded by its length, so that no two requests look alike.
 * Small ones stay in `small`; the result is freed by request_free. */
struct request {
    unsigned char small[8192], *at;
    size_t len, room;
};
/* False: out of memory. */
bool request_make(struct request *r, const moegen_spec *s, const char *cc);
void request_free(struct request *r);

/* ---- registry.c ---- */

/* Request bytes -> value, in memory: at most `limit` (0: 1024), and those in use. Thread-safe.
 * Values are reference-counted: the registry holds one reference of each, and what find and add
 * return comes with another one for the caller. */
struct registry_ops {
    void (*retain)(void *value);
    void (*release)(void *value);
    bool (*in_use)(const void *value); /* has it more references than the registry's? */
};
struct registry;
struct registry *registry_create(size_t limit,
                                 const struct registry_ops *ops);     /* NULL: out of memory */
void *registry_find(struct registry *r, const void *key, size_t len); /* NULL: not there */
/* Returns the value now stored under key: `value`, or the one that another thread stored first.
 * NULL: out of memory. Makes room as registry_trim does. */
void *registry_add(struct registry *r, const void *key, size_t len, void *value);
/* Forget what was not used for longest and is not in use, until at most `keep` are left. Returns
 * how many went. */
size_t registry_trim(struct registry *r, size_t keep);
void registry_destroy(struct registry *r);

/* ---- diagnostic.c ---- */

int dtype_find(const char *name); /* moegen_dtype, or -1 */

/* ---- engine.c ---- */

struct cache *engine_cache(const moegen_engine *engine); /* NULL: none */
void engine_features(const moegen_engine *engine, const char *const **names, size_t *count);

/* The files of tuned plans, and the threads of calls that ask for none: 0: as the spec says, or
 * else `cpus`. */
const struct tuned *engine_tuned(const moegen_engine *engine, int *threads, int *cpus);

/* ---- tuned.c ---- */

/* path NULL: this CPU's own file, and what this library has for it; "": none. A file that is not
 * there or cannot be read is logged if it was named. False: out of memory. */
bool tuned_open(struct tuned *t, const char *path, cache_log *log, void *user);
void tuned_hash(const struct tuned *t, struct sha256 *s);
/* The file that the override plan.tuned names; NULL: none does. */
const char *tuned_named(const moegen_spec *spec);

/* ---- generate.c ---- */

/* ---- property.c ---- */

/* A measured property of this CPU, TARGET.OP; 0 when it cannot be measured here, -1 when memory is
 * out. The first call takes some milliseconds. Thread-safe; a thread that makes a kernel may call
 * it. */
double property_of(moegen_engine *engine, const char *name);
/* The same if it need not be measured: -1 otherwise. Of: an engine. */
double property_known(const void *of, const char *name);
/* What is kept on disk of it, in thousandths. */
bool property_load(struct cache *cache, const char *name, long *value);
void property_save(struct cache *cache, const char *name, long value);

#endif
