/* SPDX-License-Identifier: Apache-2.0 */
/* large_test.c - tensors of more than 2^31 elements, mapped sparsely: only what a few tokens and
 * experts need is ever touched. The rows of an output all have to be zeroed: its pages share one
 * piece of memory. Exit status 77 when the system refuses such mappings. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "moegen.h"

enum { B = 4, SLOTS = 3, SKIPPED = 77, WINDOW = 1 << 26 };

/* One kernel, and three tokens of one expert at the far end of everything. */
struct layer {
    const char *name;
    int64_t T, H, I, E;
};

static void die(const char *what, moegen_error *err)
{
    printf("FAIL %s: %s\n", what, err ? moegen_error_text(err) : "");
    exit(1);
}

static void *sparse(int64_t count)
{
    void *at = mmap(NULL, (size_t)count * 4, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        printf("no address space for %lld elements\n", (long long)count);
        exit(SKIPPED);
    }
    return at;
}

/* The same, but each window of the mapping is the same memory; the last one has its own. */
static void *folded(int64_t count)
{
    char *at = sparse(count);
    int64_t bytes = count * 4, last = (bytes - 1) / WINDOW * WINDOW;
    int fd = memfd_create("large_test", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, WINDOW))
        exit(SKIPPED);
    for (int64_t i = 0; i < last; i += WINDOW)
        if (mmap(at + i, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
            MAP_FAILED)
            exit(SKIPPED);
    close(fd);
    return at;
}

/* In (-1, 1), by place. */
static float some(int64_t i)
{
    uint64_t z = (uint64_t)i * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 29) * 0xbf58476d1ce4e5b9u;
    return (float)(int32_t)(z >> 32) * 0x1p-31f;
}

static void fill(float *at, int64_t first, int64_t count)
{
    for (int64_t i = first; i < first + count; i++)
        at[i] = some(i);
}

static void bind(moegen_call *call, const char *name, void *data, moegen_dtype dtype, int rank,
                 const int64_t *shape)
{
    moegen_error *err = NULL;
    if (moegen_call_bind(call, name, data, dtype, rank, shape, &err))
        die(name, err);
}

/* Relative error of one row of the output. */
static double check_row(const struct layer *l, int64_t token, int64_t e, const float *x,
                        const float *affinity, const float *up, const float *down, const float *y)
{
    double *p = calloc((size_t)(l->I + l->H), sizeof *p), *want = p + l->I;
    double difference = 0, size = 0;
    for (int64_t i = 0; i < l->I; i++) {
        double g = 0, u = 0;
        for (int64_t h = 0; h < l->H; h++) {
            const float *w = up + ((e * l->H + h) * 2) * l->I + i;
            g += (double)x[token * l->H + h] * w[0];
            u += (double)x[token * l->H + h] * w[l->I];
        }
        p[i] = g / (1 + exp(-g)) * u;
    }
    for (int64_t i = 0; i < l->I; i++)
        for (int64_t h = 0; h < l->H; h++)
            want[h] += p[i] * down[(e * l->I + i) * l->H + h];
    for (int64_t h = 0; h < l->H; h++) {
        double w = affinity[token * l->E + e] * want[h], d = w - y[token * l->H + h];
        difference += d * d;
        size += w * w;
    }
    free(p);
    return sqrt(difference / size);
}

static moegen_kernel *kernel_for(moegen_engine *engine, const struct layer *l)
{
    char text[256];
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    snprintf(text, sizeof text,
             "{kernel: moe_forward, dtype: f32, H: %lld, I_TP: %lld, E: %lld, block_size: %d}",
             (long long)l->H, (long long)l->I, (long long)l->E, B);
    moegen_spec spec = {.struct_size = sizeof spec, .text = text, .len = strlen(text)};
    if (moegen_kernel_get(engine, &spec, &kernel, &err))
        die(l->name, err);
    return kernel;
}

static void run(moegen_engine *engine, const struct layer *l)
{
    int64_t T = l->T, H = l->H, I = l->I, E = l->E, e = E - 1;
    int64_t x_shape[] = {T + 1, H}, a_shape[] = {(T + 1) * E, 1}, up_shape[] = {E, H, 2, I};
    int64_t down_shape[] = {E, I, H}, slots[] = {B}, blocks[] = {1};
    int32_t expert = (int32_t)e, id[B] = {0, (int32_t)(T / 2 + 1), (int32_t)(T - 1), (int32_t)T};
    float *x = sparse((T + 1) * H), *y = folded((T + 1) * H), *affinity = sparse((T + 1) * E);
    float *up = sparse(E * H * 2 * I), *down = sparse(E * I * H);
    for (int i = 0; i < SLOTS; i++) {
        fill(x, id[i] * H, H);
        fill(affinity, id[i] * E + e, 1);
    }
    fill(up, e * H * 2 * I, H * 2 * I);
    fill(down, e * I * H, I * H);
    moegen_kernel *kernel = kernel_for(engine, l);
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    if (moegen_call_create(kernel, &call, &err))
        die(l->name, err);
    bind(call, "hidden_states", x, MOEGEN_F32, 2, x_shape);
    bind(call, "expert_affinities_masked", affinity, MOEGEN_F32, 2, a_shape);
    bind(call, "gate_up_proj_weight", up, MOEGEN_F32, 4, up_shape);
    bind(call, "down_proj_weight", down, MOEGEN_F32, 3, down_shape);
    bind(call, "token_position_to_id", id, MOEGEN_I32, 1, slots);
    bind(call, "block_to_expert", &expert, MOEGEN_I32, 1, blocks);
    bind(call, "output", y, MOEGEN_F32, 2, x_shape);
    if (moegen_call_run(call, &err))
        die(l->name, err);
    for (int i = 0; i < SLOTS; i++) {
        double error = check_row(l, id[i], e, x, affinity, up, down, y);
        printf("%s: token %d, expert %d: relative error %.1e\n", l->name, id[i], expert, error);
        if (!(error < 2e-6))
            die(l->name, NULL);
    }
    if (y[T * H] != 0 || y[(T - 2) * H] != 0)
        die("a row that no block names is not zero", NULL);
    moegen_call_release(call);
    moegen_kernel_release(kernel);
    munmap(x, (size_t)((T + 1) * H) * 4);
    munmap(y, (size_t)((T + 1) * H) * 4);
    munmap(affinity, (size_t)((T + 1) * E) * 4);
    munmap(up, (size_t)(E * H * 2 * I) * 4);
    munmap(down, (size_t)(E * I * H) * 4);
}

int main(void)
{
    static const struct layer layers[] = {
        /* name                T              H     I    E */
        {"weights", 270 * 1000, 16, 16 * 1024, 8200},
        {"tokens", ((int64_t)1 << 25) + 3, 64, 8, 2},
    };
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = ""};
    moegen_engine *engine = NULL;
    moegen_error *err = NULL;
    if (moegen_engine_create(&options, &engine, &err))
        die("engine", err);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        run(engine, &layers[i]);
    moegen_engine_release(engine);
    return 0;
}
