/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trim_test.c - an engine that is asked for ever new kernels keeps as many as it was told, in
 * mappings and in memory; kernels in use stay, and handles got before go on working.
 */
#include <malloc.h>
#include <pthread.h>

#include "api.h"

enum { LIMIT = 8, SPECS = 60, SETTLED = 20, KEPT = 4, THREADS = 3 };

static moegen_engine *engine_with(size_t max_kernels)
{
    moegen_engine *engine = NULL;
    moegen_engine_options o = {
        .struct_size = sizeof o, .cache_dir = "", .threads = 1, .max_kernels = max_kernels};
    CHECK(moegen_engine_create(&o, &engine, NULL) == MOEGEN_OK);
    return engine;
}

static moegen_kernel *get_nth(moegen_engine *engine, int n)
{
    char text[160];
    snprintf(text, sizeof text,
             "{kernel: moe_index, name: trim_%d, top_k: 2, E: 4, block_size: %d}", n, 4 + n);
    return get(engine, text);
}

static bool comes_from(const moegen_kernel *kernel, const char *origin)
{
    moegen_kernel_facts f = {.struct_size = sizeof f};
    CHECK(moegen_kernel_info(kernel, &f) == MOEGEN_OK);
    return strcmp(f.origin, origin) == 0;
}

/* Does it place T tokens, all of experts 0 and 1, where the n-th kernel should? */
static bool works(const moegen_kernel *kernel, int n)
{
    enum { TOKENS = 3, ROOM = 5 * (4 + SPECS) };
    int32_t index[2 * TOKENS] = {0, 1, 1, 0, 0, 1}, slots[ROOM], expert[5], conditions[6];
    int64_t block = 4 + n, blocks = 4;
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    CHECK(moegen_call_create(kernel, &call, &err) == MOEGEN_OK);
    const struct {
        const char *name;
        int32_t *at;
        int rank;
        int64_t shape[2];
    } tensors[] = {
        {"expert_index", index, 2, {TOKENS, 2}},
        {"token_position_to_id", slots, 1, {blocks * block, 0}},
        {"block_to_expert", expert, 1, {blocks, 0}},
        {"conditions", conditions, 1, {blocks + 1, 0}},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        CHECK(moegen_call_bind(call, tensors[i].name, tensors[i].at, MOEGEN_I32, tensors[i].rank,
                               tensors[i].shape, &err) == MOEGEN_OK);
    moegen_status status = moegen_call_run(call, &err);
    if (status)
        fprintf(stderr, "%s", moegen_error_text(err));
    bool ok = !status && expert[0] == 0 && expert[1] == 1;
    for (int i = 0; i < TOKENS && ok; i++)
        ok = slots[i] == i && slots[block + i] == i;
    moegen_error_release(err);
    moegen_call_release(call);
    return ok;
}

/* Mappings that can be executed and are no file of the system. */
static int code_mappings(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        const char *path = strchr(line, '/');
        count += strstr(line, " r-xp ") && (!path || strstr(path, "memfd:") || strstr(path, "#"));
    }
    if (maps)
        fclose(maps);
    return count;
}

static size_t heap_bytes(void)
{
    struct mallinfo2 m = mallinfo2(); /* zeros where another allocator stands in */
    return m.uordblks + m.hblkhd;
}

static void test_bound(void)
{
    moegen_engine *engine = engine_with(LIMIT);
    moegen_kernel *kept[KEPT];
    int before = code_mappings(), mappings = 0;
    size_t heap = 0;
    for (int n = 0; n < KEPT; n++)
        kept[n] = get_nth(engine, n);
    for (int n = KEPT; n < SPECS; n++) {
        moegen_kernel *k = get_nth(engine, n);
        if (n == SETTLED) {
            mappings = code_mappings();
            heap = heap_bytes();
        }
        moegen_kernel_release(k);
    }
    CHECK(mappings - before == LIMIT + 1 || mappings - before == LIMIT);
    CHECK(code_mappings() <= mappings);
    CHECK(heap_bytes() < heap + 100000); /* 40 kernels would be 800 kB */
    for (int n = 0; n < KEPT; n++) {     /* in use: not made again, and working */
        moegen_kernel *again = get_nth(engine, n);
        CHECK(comes_from(again, "memory") && works(kept[n], n) && works(again, n));
        moegen_kernel_release(again);
    }
    moegen_kernel *gone = get_nth(engine, KEPT), *there = get_nth(engine, SPECS - 1);
    CHECK(!comes_from(gone, "memory") && works(gone, KEPT)); /* forgotten, and made again */
    CHECK(comes_from(there, "memory"));
    moegen_kernel_release(gone);
    moegen_kernel_release(there);

    CHECK(moegen_engine_trim(engine, LIMIT) == 0);
    CHECK(moegen_engine_trim(engine, KEPT + 1) == LIMIT - KEPT - 1);
    CHECK(moegen_engine_trim(engine, 0) == 1 && moegen_engine_trim(engine, 0) == 0);
    CHECK(code_mappings() == before + KEPT);
    moegen_call *call = NULL; /* a call alone keeps its kernel in use */
    CHECK(moegen_call_create(kept[0], &call, NULL) == MOEGEN_OK);
    for (int n = 0; n < KEPT; n++) {
        CHECK(works(kept[n], n));
        moegen_kernel_release(kept[n]);
    }
    CHECK(moegen_engine_trim(engine, 0) == KEPT - 1);
    moegen_call_release(call);
    moegen_kernel *last = get_nth(engine, 0);
    CHECK(comes_from(last, "memory") && moegen_engine_trim(NULL, 0) == 0);
    moegen_engine_release(engine);
    CHECK(works(last, 0));
    moegen_kernel_release(last);
    CHECK(code_mappings() == before);
}

/* What the options do not say is no small number. */
static void test_default(void)
{
    moegen_engine *engine = engine_of("", NULL);
    for (int n = 0; n < 2 * LIMIT; n++) {
        moegen_kernel *kernel = get_nth(engine, n % (LIMIT + 4));
        CHECK(comes_from(kernel, "memory") == (n >= LIMIT + 4));
        moegen_kernel_release(kernel);
    }
    CHECK(moegen_engine_trim(engine, 0) == LIMIT + 4);
    moegen_engine_release(engine);
}

/* ---- threads that ask, forget and run at once ---- */

static void *serve(void *at)
{
    moegen_engine *engine = at;
    for (int i = 0; i < 40; i++) {
        moegen_kernel *k = get_nth(engine, i * 7 % 5);
        if (i % 8 == 0)
            moegen_engine_trim(engine, (size_t)i % 3);
        CHECK(works(k, i * 7 % 5));
        moegen_kernel_release(k);
    }
    return NULL;
}

static void test_threads(void)
{
    moegen_engine *engine = engine_with(3);
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, serve, engine) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    moegen_engine_release(engine);
}

int main(void)
{
    test_bound();
    test_default();
    test_threads();
    return failures != 0;
}
