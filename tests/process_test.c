/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_test.c - the library inside a host's process.
 *
 *     process_test           16 threads that start cold, 100 times over, each time in a new
 * process: all get the same kernels, right ones, and no page of the process is writable and
 * executable process_test locale    under the environment's locale, which must have another decimal
 * point (else exit status 77): the same text and the same results as under "C" process_test once
 * one kernel made and run without vector instructions, for valgrind
 */
#include <locale.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moegen.h"

enum { THREADS = 16, TIMES = 100, KINDS = 4, T = 3, H = 6, I = 5, B = 4 };

static const char *const kinds[KINDS] = {
    "{kernel: moe_forward, dtype: f32, H: 6, I_TP: 5, E: 1, block_size: 4}",
    "{kernel: moe_forward, dtype: f32, H: 6, I_TP: 5, E: 1, block_size: 4, up_offset: 0.5}",
    "{kernel: moe_forward, dtype: f32, H: 6, I_TP: 5, E: 1, block_size: 4, clamp: {up: [-1, 1]}}",
    "{kernel: moe_forward, dtype: f32, H: 6, I_TP: 5, E: 1, block_size: 4, activation: gelu}",
};

static void die(const char *what, moegen_error *err)
{
    printf("FAIL %s: %s\n", what, err ? moegen_error_text(err) : "");
    fflush(stdout);
    _exit(1);
}

static moegen_engine *engine_of(const char *cache, const char *features)
{
    moegen_engine_options o = {
        .struct_size = sizeof o, .cache_dir = cache, .features = features, .threads = 1};
    moegen_engine *engine = NULL;
    moegen_error *err = NULL;
    if (moegen_engine_create(&o, &engine, &err))
        die("engine", err);
    return engine;
}

static moegen_spec spec_of(int kind)
{
    return (moegen_spec){
        .struct_size = sizeof(moegen_spec), .text = kinds[kind], .len = strlen(kinds[kind])};
}

static moegen_kernel *get(moegen_engine *engine, int kind)
{
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    moegen_spec spec = spec_of(kind);
    if (moegen_kernel_get(engine, &spec, &kernel, &err))
        die("kernel", err);
    return kernel;
}

/* Runs a kernel on fixed inputs. */
static void run(moegen_kernel *kernel, float out[(T + 1) * H])
{
    float x[(T + 1) * H], a[T + 1] = {0.5f, 1, -0.25f, 0}, up[H * 2 * I], down[I * H];
    int32_t id[B] = {0, 1, 2, T}, expert = 0;
    const struct {
        const char *name;
        void *data;
        moegen_dtype dtype;
        int rank;
        int64_t shape[4];
    } tensors[] = {
        {"hidden_states", x, MOEGEN_F32, 2, {T + 1, H}},
        {"expert_affinities_masked", a, MOEGEN_F32, 1, {T + 1}},
        {"gate_up_proj_weight", up, MOEGEN_F32, 4, {1, H, 2, I}},
        {"down_proj_weight", down, MOEGEN_F32, 3, {1, I, H}},
        {"token_position_to_id", id, MOEGEN_I32, 1, {B}},
        {"block_to_expert", &expert, MOEGEN_I32, 1, {1}},
        {"output", out, MOEGEN_F32, 2, {T + 1, H}},
    };
    for (int i = 0; i < (T + 1) * H; i++)
        x[i] = i < T * H ? (float)(i % 7) * 0.25f - 0.75f : 0;
    for (int i = 0; i < H * 2 * I; i++)
        up[i] = (float)(i % 11) * 0.125f - 0.5f;
    for (int i = 0; i < I * H; i++)
        down[i] = (float)(i % 5) * 0.5f - 1;
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    if (moegen_call_create(kernel, &call, &err))
        die("call", err);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        if (moegen_call_bind(call, tensors[i].name, tensors[i].data, tensors[i].dtype,
                             tensors[i].rank, tensors[i].shape, &err))
            die(tensors[i].name, err);
    size_t bytes; /* lanes beyond a row's end are computed, though never stored: zeros keep valgrind
                     calm */
    void *memory = NULL;
    if (moegen_call_workspace_bytes(call, &bytes, &err) ||
        !(memory = aligned_alloc(64, (bytes + 63) / 64 * 64)))
        die("workspace", err);
    memset(memory, 0, bytes);
    if (moegen_call_set_workspace(call, memory, bytes, &err) || moegen_call_run(call, &err))
        die("run", err);
    moegen_call_release(call);
    free(memory);
}

/* ---- cold threads ---- */

static struct {
    moegen_engine *engine;
    pthread_barrier_t start;
    float out[THREADS][KINDS][(T + 1) * H];
} shared;

static void *cold(void *number)
{
    int self = (int)(intptr_t)number;
    pthread_barrier_wait(&shared.start);
    for (int i = 0; i < KINDS; i++) {
        int kind = (self + i) % KINDS;
        moegen_kernel *kernel = get(shared.engine, kind);
        run(kernel, shared.out[self][kind]);
        moegen_kernel_release(kernel);
    }
    return NULL;
}

static void check_pages(void)
{
    char line[512];
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f))
        if (strstr(line, " rwx"))
            die(line, NULL);
    if (f)
        fclose(f);
}

static void one_process(const char *cache)
{
    pthread_t thread[THREADS];
    pthread_barrier_init(&shared.start, NULL, THREADS);
    shared.engine = engine_of(cache, NULL);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, cold, (void *)(intptr_t)i))
            die("pthread_create", NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 1; i < THREADS; i++)
        if (memcmp(shared.out[0], shared.out[i], sizeof shared.out[0]) != 0)
            die("two threads got different results", NULL);
    check_pages();
    moegen_engine_release(shared.engine);
}

static int run_cold(void)
{
    char cache[] = "/tmp/moegen-process-XXXXXX", remove[80];
    int failed = 0;
    if (!mkdtemp(cache))
        die("mkdtemp", NULL);
    for (int i = 0; i < TIMES && !failed; i++) { /* with a disk cache that fills, and without one */
        pid_t child = fork();
        if (child == 0) {
            one_process(i % 2 ? cache : "");
            exit(0);
        }
        int status = 1;
        failed = waitpid(child, &status, 0) != child || status != 0;
        if (failed)
            printf("FAIL cold start %d: wait status %d\n", i, status);
    }
    snprintf(remove, sizeof remove, "rm -rf %s", cache);
    return system(remove) != 0 || failed;
}

/* ---- locale ---- */

static int run_locale(void)
{
    float out[2][KINDS][(T + 1) * H];
    moegen_source *source[2][KINDS] = {{NULL}};
    for (int pass = 0; pass < 2; pass++) {
        if (pass && (!setlocale(LC_ALL, "") || *localeconv()->decimal_point == '.')) {
            printf("the environment's locale has no other decimal point\n");
            return 77;
        }
        moegen_engine *engine = engine_of("", NULL);
        for (int i = 0; i < KINDS; i++) {
            moegen_spec spec = spec_of(i);
            moegen_error *err = NULL;
            if (moegen_generate(engine, &spec, &source[pass][i], &err))
                die("generate", err);
            moegen_kernel *kernel = get(engine, i);
            run(kernel, out[pass][i]);
            moegen_kernel_release(kernel);
        }
        moegen_engine_release(engine);
    }
    int failed = memcmp(out[0], out[1], sizeof out[0]) != 0;
    for (int i = 0; i < KINDS; i++) {
        failed |= strcmp(moegen_source_c(source[0][i]), moegen_source_c(source[1][i])) != 0;
        moegen_source_release(source[0][i]);
        moegen_source_release(source[1][i]);
    }
    if (failed)
        printf("FAIL the locale changes texts or results\n");
    return failed;
}

static int run_once(void)
{
    float out[(T + 1) * H];
    moegen_engine *engine = engine_of("", "");
    moegen_kernel *kernel = get(engine, 0);
    run(kernel, out);
    moegen_kernel_release(kernel);
    moegen_engine_release(engine);
    return out[T * H] != 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "cold";
    return strcmp(what, "locale") == 0 ? run_locale()
           : strcmp(what, "once") == 0 ? run_once()
                                       : run_cold();
}
