/* SPDX-License-Identifier: Apache-2.0 */
/*
 * property.c - properties of this CPU that plans ask for, measured once: kept in memory for the
 * process and in the disk cache for the machine. A cache that fails only makes that a second time.
 *
 * A property is called TARGET.OP, as in avx512_bf16.dot_bf16: products per second of that op over
 * those of FMA, both from registers on one core. Kernels of family `probe` measure it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "moegen_runtime.h"
#include "engine.h"

/* As thousandths: what is kept, and given back, is exactly the same number. */
enum { KNOWN = 16, NAME = 64, MOST = 1000000, ITERATIONS = 2000, ROUNDS = 5 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char name[NAME];
    long value;
} known[KNOWN];
static int count;

static bool recall(const char *name, long *value)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count && !found; i++)
        if ((found = strcmp(known[i].name, name) == 0))
            *value = known[i].value;
    pthread_mutex_unlock(&lock);
    return found;
}

static void remember(const char *name, long value)
{
    long before;
    if (recall(name, &before))
        return;
    pthread_mutex_lock(&lock);
    if (count < KNOWN) {
        snprintf(known[count].name, NAME, "%s", name);
        known[count++].value = value;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- on disk: an entry of the cache whose metadata says it ---- */

static void key_of(const char *name, unsigned char key[32])
{
    const char *parts[] = {"moegen property 1", name, moegen_rt_cpu_kind()};
    struct sha256 s;
    sha256_start(&s);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        sha256_add(&s, parts[i], strlen(parts[i]) + 1);
    sha256_end(&s, key);
}

bool property_load(struct cache *cache, const char *name, long *value)
{
    static const char line[] = "\nthousandths ";
    unsigned char key[32];
    struct blob blob = {0};
    struct text meta = {0};
    key_of(name, key);
    if (!cache_get(cache, key, &blob, &meta))
        return false;
    const char *at = strstr(meta.at, line);
    *value = at ? strtol(at + strlen(line), NULL, 10) : -1;
    text_free(&meta);
    blob_free(&blob);
    return *value >= 0 && *value <= MOST;
}

void property_save(struct cache *cache, const char *name, long value)
{
    unsigned char key[32], nothing = 0;
    struct blob blob = {.at = &nothing, .len = 1}; /* an entry has some code */
    struct text meta = {0};
    key_of(name, key);
    text_fmt(&meta, "moegen-property 1\nname %s of %s\nthousandths %ld\n", name,
             moegen_rt_cpu_kind(), value);
    if (!meta.lost)
        cache_put(cache, key, &blob, meta.at, meta.len);
    text_free(&meta);
}

/* ---- probes ---- */

moegen_status probe_kernel(moegen_engine *e, const struct probe_kind *kind, moegen_kernel **kernel,
                           moegen_error **err)
{
    static const char text[] = "kernel: probe\n";
    const moegen_override all[] = {{"target", kind->target},
                                   {"op", kind->op},
                                   {"spelling", kind->spelling},
                                   {"state", kind->state}};
    moegen_override set[4];
    size_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value)
            set[n++] = all[i];
    moegen_spec spec = {.struct_size = sizeof spec,
                        .text = text,
                        .len = sizeof text - 1,
                        .label = "probe",
                        .overrides = set,
                        .override_count = n};
    return moegen_kernel_get(e, &spec, kernel, err);
}

moegen_status probe_call(moegen_kernel *kernel, const void *buffer, size_t bytes, float *result,
                         int64_t iterations, int threads, moegen_call **call)
{
    const int64_t size = (int64_t)bytes, sixteen = 16;
    moegen_status status;
    *call = NULL;
    if ((status = moegen_call_create(kernel, call, NULL)) ||
        (status = moegen_call_bind_const(*call, "buffer", buffer, MOEGEN_U8, 1, &size, NULL)) ||
        (status = moegen_call_bind(*call, "result", result, MOEGEN_F32, 1, &sixteen, NULL)) ||
        (status = moegen_call_set_size(*call, "ITERATIONS", iterations, NULL)))
        return status;
    return moegen_call_set_threads(*call, threads, NULL);
}

/* ---- measuring ---- */

/* A probe of one op, ready to run. */
struct loop {
    moegen_kernel *kernel;
    moegen_call *call;
    double products, seconds; /* of a run; the least so far */
    unsigned char buffer[64];
    float result[16];
};

/* It measures nothing (products 0) where this CPU cannot run it; MOEGEN_NO_MEMORY otherwise. */
static moegen_status open_loop(struct loop *l, moegen_engine *e, const char *target, const char *op)
{
    const struct probe_kind kind = {.target = target, .op = op};
    moegen_status status;
    *l = (struct loop){.seconds = 1e9};
    if ((status = probe_kernel(e, &kind, &l->kernel, NULL)) ||
        (status = probe_call(l->kernel, l->buffer, sizeof l->buffer, l->result, ITERATIONS, 1,
                             &l->call)) ||
        (status = moegen_call_run(l->call, NULL)))
        return status == MOEGEN_NO_MEMORY ? status : MOEGEN_OK;
    const char *flops = moegen_kernel_param(l->kernel, "probe.flops_per_iteration");
    l->products = flops ? (double)atol(flops) / 2 * ITERATIONS : 0;
    return MOEGEN_OK;
}

static void close_loop(struct loop *l)
{
    moegen_call_release(l->call);
    moegen_kernel_release(l->kernel);
}

static void run_loop(struct loop *l)
{
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    moegen_call_run(l->call, NULL);
    clock_gettime(CLOCK_MONOTONIC, &to);
    double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    if (seconds > 0 && seconds < l->seconds)
        l->seconds = seconds;
}

/* In turns, so that a CPU that changes its clock, or other work on it, meets both; the least time
 * of each counts. 0: this CPU cannot run it; -1: memory is out. */
static long measure(moegen_engine *e, const char *name)
{
    char target[NAME];
    const char *dot = strchr(name, '.');
    struct loop fma = {0}, op = {0};
    long value = 0;
    snprintf(target, sizeof target, "%.*s", dot ? (int)(dot - name) : 0, name);
    if (dot && (open_loop(&fma, e, target, "fma") || open_loop(&op, e, target, dot + 1)))
        value = -1;
    if (!value && fma.products > 0 && op.products > 0) {
        for (int i = 0; i < ROUNDS; i++) {
            run_loop(&fma);
            run_loop(&op);
        }
        double ratio = op.products / op.seconds * fma.seconds / fma.products;
        value = ratio > 0 && ratio < MOST / 1000 ? (long)(1000 * ratio + 0.5) : 0;
    }
    close_loop(&fma);
    close_loop(&op);
    return value;
}

double property_known(const void *of, const char *name)
{
    long value = 0;
    if (!recall(name, &value)) {
        if (!property_load(engine_cache(of), name, &value))
            return -1;
        remember(name, value);
    }
    return (double)value / 1000;
}

double property_of(moegen_engine *e, const char *name)
{
    double kept = property_known(e, name);
    if (kept >= 0)
        return kept;
    long value = measure(e, name);
    if (value < 0)
        return -1;
    if (value > 0)
        property_save(engine_cache(e), name, value);
    remember(name, value);
    return (double)value / 1000;
}
