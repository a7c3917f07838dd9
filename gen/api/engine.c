/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.c - from a request to callable code: memory, else disk, else generate and compile. The
 * engine owns the registry, the disk cache and the crew of threads; its settings never change.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "moegen_runtime.h"
#include "engine.h"
#include "unit.h"

struct moegen_engine {
    _Atomic int refs;
    struct registry *registry;
    struct cache *cache; /* NULL: none */
    struct crew *crew;
    pthread_mutex_t making; /* one thread at a time generates, so that none does another's work;
                               recursive: a plan may want a kernel that measures */
    char *cc;               /* NULL: found by cc.c */
    struct text features;   /* names, each NUL-terminated: part of every disk key */
    const char **feature;   /* the same as a list */
    struct tuned tuned;     /* plans; part of every disk key */
    size_t feature_count;
    void (*log)(void *user, int level, const char *message);
    void *log_user;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void say(const moegen_engine *e, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void say(const moegen_engine *e, int level, const char *format, ...)
{
    if (!e->log)
        return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    e->log(e->log_user, level, line);
}

/* ---- making one ---- */

/* The features that plans may use: those given, or those this CPU has. */
static bool find_features(moegen_engine *e, const char *given)
{
    struct text *out = &e->features;
    if (!given)
        for (int i = 0; moegen_rt_cpu_feature(i); i++) {
            const char *name = moegen_rt_cpu_feature(i);
            if (moegen_rt_cpu_has(name))
                text_add(out, name, strlen(name) + 1);
        }
    for (const char *at = given ? given : ""; *at;) {
        size_t len = strcspn(at, " ,");
        if (len) {
            text_add(out, at, len);
            text_add(out, "", 1);
        }
        at += len + (at[len] != '\0');
    }
    if (out->lost)
        return false;
    for (size_t i = 0; i < out->len; i++)
        e->feature_count += !out->at[i];
    e->feature = calloc(e->feature_count + 1, sizeof *e->feature);
    const char *at = out->at;
    for (size_t i = 0; e->feature && i < e->feature_count; i++, at += strlen(at) + 1)
        e->feature[i] = at;
    return e->feature != NULL;
}

/* How many threads calls that say none have; 0: as kernels want it. */
static moegen_status find_threads(int asked, int *threads, moegen_error **err)
{
    const char *set = getenv("MOEGEN_THREADS");
    *threads = asked;
    if (asked || !set || !*set)
        return MOEGEN_OK;
    size_t digits = strspn(set, "0123456789");
    long n = strtol(set, NULL, 10);
    if (set[digits] || n > CREW_MOST)
        return error_set(err, MOEGEN_BAD_ARGUMENT,
                         "MOEGEN_THREADS: '%s' is not a whole number in 0..%d", set, CREW_MOST);
    *threads = (int)n;
    return MOEGEN_OK;
}

moegen_status moegen_engine_create(const moegen_engine_options *options, moegen_engine **engine,
                                   moegen_error **err)
{
    static const size_t sizes[] = SIZES_OF(moegen_engine_options, max_kernels);
    moegen_engine_options o = {0};
    if (options && !sized_take(&o, options, sizes, sizeof sizes / sizeof *sizes))
        return error_set(err, MOEGEN_BAD_ARGUMENT,
                         "options: struct_size is %zu, not sizeof(moegen_engine_options) = %zu",
                         options->struct_size, sizeof o);
    if (!engine)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "engine must not be NULL");
    if (o.threads < 0 || o.threads > CREW_MOST)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "threads: %d is not in 0..%d", o.threads,
                         CREW_MOST);
    int threads;
    moegen_status status = find_threads(o.threads, &threads, err);
    if (status)
        return status;
    moegen_engine *e = calloc(1, sizeof *e);
    if (!e)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    e->refs = 1;
    e->log = o.log;
    e->log_user = o.log_user;
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&e->making, &recursive);
    pthread_mutexattr_destroy(&recursive);
    e->registry = registry_create(o.max_kernels, &unit_ops);
    e->crew = crew_create(threads);
    e->cc = o.cc ? strdup(o.cc) : NULL;
    if (!find_features(e, o.features) || !e->registry || !e->crew || (o.cc && !e->cc) ||
        !tuned_open(&e->tuned, o.tuned, o.log, o.log_user)) {
        moegen_engine_release(e);
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    }
    e->cache = cache_open(o.cache_dir, o.log, o.log_user);
    *engine = e;
    return MOEGEN_OK;
}

moegen_status engine_scratch(const moegen_engine *like, const char *cache_dir,
                             moegen_engine **engine, moegen_error **err)
{
    struct text features = {0};
    for (size_t i = 0; i < like->feature_count; i++)
        text_fmt(&features, "%s ", like->feature[i]);
    int threads = crew_threads(like->crew, -1) == -1 ? 0 : crew_threads(like->crew, 0);
    moegen_engine_options o = {
        .struct_size = sizeof o,
        .cache_dir = cache_dir,
        .threads = threads,
        .features = features.at ? features.at : "",
        .cc = like->cc,
        .tuned = "",
    };
    moegen_status status = features.lost ? error_set(err, MOEGEN_NO_MEMORY, "out of memory")
                                         : moegen_engine_create(&o, engine, err);
    text_free(&features);
    return status;
}

void moegen_engine_retain(moegen_engine *engine)
{
    if (engine)
        engine->refs++;
}

void moegen_engine_release(moegen_engine *engine)
{
    if (!engine || --engine->refs)
        return;
    registry_destroy(engine->registry);
    cache_close(engine->cache);
    crew_release(engine->crew);
    pthread_mutex_destroy(&engine->making);
    free(engine->cc);
    tuned_close(&engine->tuned);
    free(engine->feature);
    text_free(&engine->features);
    free(engine);
}

size_t moegen_engine_trim(moegen_engine *engine, size_t keep)
{
    return engine ? registry_trim(engine->registry, keep) : 0;
}

const char *moegen_engine_cache_dir(const moegen_engine *engine)
{
    return engine ? cache_path(engine->cache) : "";
}

struct cache *engine_cache(const moegen_engine *engine)
{
    return engine->cache;
}

void engine_features(const moegen_engine *engine, const char *const **names, size_t *count)
{
    *names = engine->feature;
    *count = engine->feature_count;
}

const struct tuned *engine_tuned(const moegen_engine *engine, int *threads, int *cpus)
{
    *cpus = crew_threads(engine->crew, 0);
    *threads = crew_threads(engine->crew, -1) == -1 ? 0 : *cpus;
    return &engine->tuned;
}

/* ---- from request to kernel ---- */

/* Name of the request on disk, from all that its code depends on, this library and machine
 * included. */
static bool disk_key(const moegen_engine *e, const struct request *r, unsigned char key[32])
{
    char generator[65];
    if (!host_digest(generator))
        return false;
    const char *parts[] = {"moegen abi 1", generator, jit_identity(), moegen_rt_cpu_kind()};
    struct sha256 s;
    sha256_start(&s);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        sha256_add(&s, parts[i], strlen(parts[i]) + 1);
    sha256_add(&s, &e->features.len, sizeof e->features.len);
    if (e->features.len)
        sha256_add(&s, e->features.at, e->features.len);
    if (e->tuned.files) {
        int threads[2];
        tuned_hash(engine_tuned(e, &threads[0], &threads[1]), &s);
        sha256_add(&s, threads, sizeof threads);
    }
    sha256_add(&s, r->at, r->len);
    sha256_end(&s, key);
    return true;
}

static moegen_status from_disk(moegen_engine *e, const unsigned char key[32], double start,
                               struct unit **out)
{
    struct blob blob = {0};
    struct text meta = {0};
    struct code code = {0};
    struct unit *u = NULL;
    moegen_status status = MOEGEN_IO;
    if (!cache_get(e->cache, key, &blob, &meta))
        return status;
    if (!(status = unit_create(meta.at, meta.len, e->crew, &u, NULL)) &&
        !(status = unit_check_cpu(u, NULL)) && !(status = code_map(&blob, &code, NULL))) {
        unit_attach(u, &code, "disk", now() - start);
        code_note(&u->code, u->facts.name);
        *out = u;
        u = NULL;
    }
    unit_release(u);
    text_free(&meta);
    blob_free(&blob);
    return status;
}

/* The C text through a compiler, with the unit's flags. */
static moegen_status through_cc(const struct unit *u, const char *text, const char *cc,
                                const char *const *symbols, struct code *code, moegen_error **err)
{
    enum { MAX_FLAGS = 32 };
    const char *list[MAX_FLAGS];
    char *words = strdup(u->cflags), *rest = NULL;
    int n = 0;
    if (!words)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    for (char *w = strtok_r(words, " ", &rest); w && n < MAX_FLAGS - 1;
         w = strtok_r(NULL, " ", &rest))
        list[n++] = w;
    list[n] = NULL;
    moegen_status status = cc_compile(text, cc, list, symbols, 2, code, err);
    free(words);
    return status;
}

/* Generate and compile. cc: through that compiler; NULL: libtcc, or the engine's compiler for
 * intrinsics. key: where to keep it on disk, or NULL. */
static moegen_status from_spec(moegen_engine *e, const moegen_spec *spec, const char *cc,
                               const unsigned char *key, double start, struct unit **out,
                               moegen_error **err)
{
    struct ask a;
    struct generated built = {0};
    struct blob blob = {0};
    struct code code = {0};
    struct unit *u = NULL;
    moegen_status status = ask_open(&a, e, spec, cc ? "file" : "jit", err);
    if (status || (status = ask_build(&a, e, &built, err)))
        goto out;
    double generated = now();
    for (size_t i = 0; i < built.notes.count; i++)
        say(e, 1, "%s", built.notes.item[i].text ? built.notes.item[i].text : "");
    if ((status = unit_create(built.meta.at, built.meta.len, e->crew, &u, err)) ||
        (status = unit_check_cpu(u, err)))
        goto out;
    const char *symbols[2] = {u->entry_name, u->workspace_name};
    bool external = cc || strcmp(u->facts.spelling, "intrinsics") == 0;
    if (external && !cc) { /* that compiler wants the text with its includes */
        generated_free(&built);
        a.request.purpose = "file";
        if ((status = ask_build(&a, e, &built, err)))
            goto out;
    }
    if (external)
        status = through_cc(u, built.c.at, cc ? cc : e->cc, symbols, &code, err);
    else if (!(status = jit_compile(built.c.at, &built.code, symbols, 2, &blob, err)))
        status = code_map(&blob, &code, err);
    if (status)
        goto out;
    unit_attach(u, &code, external ? "cc" : "jit", now() - start);
    code_note(&u->code, u->facts.name);
    if (blob.at && key)
        cache_put(e->cache, key, &blob, built.meta.at, built.meta.len);
    say(e, 2, "%s for %s (%s): generated in %.2f ms, compiled in %.2f ms", u->facts.name,
        u->facts.target, u->facts.spelling, 1e3 * (generated - start), 1e3 * (now() - generated));
    *out = u;
    u = NULL;
out:
    unit_release(u);
    code_unmap(&code);
    blob_free(&blob);
    generated_free(&built);
    ask_close(&a);
    return status;
}

/* What is not in memory: one thread at a time, which looks again first. */
static moegen_status make(moegen_engine *e, const moegen_spec *spec, const char *cc,
                          const struct request *r, struct unit **out, bool *fresh,
                          moegen_error **err)
{
    moegen_status status = MOEGEN_OK;
    double start = now();
    unsigned char key[32];
    struct unit *u;
    pthread_mutex_lock(&e->making);
    u = registry_find(e->registry, r->at, r->len);
    if (!u) {
        *fresh = true;
        bool disk = !cc && e->cache && !tuned_named(spec) && disk_key(e, r, key);
        if (!disk || from_disk(e, key, start, &u))
            status = from_spec(e, spec, cc, disk ? key : NULL, start, &u, err);
        struct unit *made = status ? NULL : u;
        if (!status && !(u = registry_add(e->registry, r->at, r->len, made)))
            status = error_set(err, MOEGEN_NO_MEMORY, "out of memory");
        unit_release(made); /* the registry has a reference of its own, and so has u */
    }
    pthread_mutex_unlock(&e->making);
    *out = u;
    return status;
}

moegen_status kernel_get(moegen_engine *e, const moegen_spec *given, const char *cc,
                         moegen_kernel **kernel, moegen_error **err)
{
    moegen_spec own;
    const moegen_spec *spec = &own;
    if (!e || !kernel)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "engine and kernel must not be NULL");
    moegen_status status = spec_take(&own, given, err);
    struct request r;
    if (status)
        return status;
    if (!request_make(&r, spec, cc))
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    bool fresh = false;
    struct unit *u = registry_find(e->registry, r.at, r.len);
    if (!u)
        status = make(e, spec, cc, &r, &u, &fresh, err);
    request_free(&r);
    if (status)
        return status;
    *kernel = fresh ? &u->made : &u->kept;
    return MOEGEN_OK;
}

moegen_status moegen_kernel_get(moegen_engine *engine, const moegen_spec *spec,
                                moegen_kernel **kernel, moegen_error **err)
{
    return kernel_get(engine, spec, NULL, kernel, err);
}
