/* SPDX-License-Identifier: Apache-2.0 */
/* deepseek_test.c - a small checkpoint in the layout in which DeepSeek-V3 was published (names,
 * dtypes, shapes): FP8 matrices [out, in] of each expert with an f32 scale for each block of 128 x
 * 128, the router's weight [E, H] in bf16, its correction bias in f32. What `moegen run` makes of
 * it is what comes of the model's definition in float64.
 *
 *     deepseek_test MOEGEN SOURCE */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "moegen_runtime.h"

/* Not of whole blocks; LAYER is the second of the file's. */
enum { H = 300, I = 200, E = 16, K = 4, GROUPS = 4, KEEP = 2, T = 33, BLOCK = 128, LAYER = 4 };
enum { MATRICES = 3, MOST = H * I, MOST_SCALES = 6 };

static char dir[] = "/tmp/moegen-deepseek-XXXXXX";

static const struct {
    const char *name;
    int64_t out, in;
} kinds[MATRICES] = {{"gate_proj", I, H}, {"up_proj", I, H}, {"down_proj", H, I}};

static uint8_t codes[E + 1][MATRICES][MOST];
static float scales[E + 1][MATRICES][MOST_SCALES];
static double value[E + 1][MATRICES][MOST]; /* code times scale */
static double router[E * H], correction[E], hidden[T * H], want[T * H],
    whole[T * H]; /* with the shared expert */

static uint32_t random_bits(void)
{
    static uint32_t seed = 5;
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* Numbers in -size .. size that bf16 holds. */
static void fill(double *to, int n, double size)
{
    for (int i = 0; i < n; i++)
        to[i] = size / 64 * ((double)(random_bits() >> 9 & 127) - 63.5);
}

static void make_weights(void)
{
    fill(router, E * H, 0.25);
    fill(hidden, T * H, 2);
    fill(correction, E, 0.25);
    for (int e = 0; e <= E; e++) /* the last one is shared */
        for (int m = 0; m < MATRICES; m++) {
            int64_t out = kinds[m].out, in = kinds[m].in, across = (in + BLOCK - 1) / BLOCK;
            for (int i = 0; i < MOST_SCALES; i++)
                scales[e][m][i] = 1e-3f * (float)(1 + random_bits() % 1000) / 1000;
            for (int64_t i = 0; i < out * in; i++) {
                uint8_t code = (uint8_t)random_bits();
                codes[e][m][i] = (code & 127) == 127 ? 0 : code; /* no NaN */
                moegen_rt_decode(MOEGEN_RT_FP8_E4M3, &codes[e][m][i], 1, &value[e][m][i]);
                value[e][m][i] *= (double)scales[e][m][i / in / BLOCK * across + i % in / BLOCK];
            }
        }
}

/* ---- files ---- */

static void *add(moegen_rt_problem *p, const char *name, moegen_rt_dtype dtype, int rank,
                 int64_t rows, int64_t columns)
{
    moegen_rt_tensor *t = NULL;
    moegen_rt_error err = {{0}};
    int64_t shape[] = {rows, columns};
    CHECK(!moegen_rt_problem_add(p, name, dtype, rank, shape, &t, &err), "%s: %s", name, err.text);
    return t ? t->data : NULL;
}

static void save(moegen_rt_problem *p, const char *file)
{
    static moegen_rt_tensor list[256];
    char path[128];
    moegen_rt_error err = {{0}};
    size_t n = 0;
    for (; moegen_rt_problem_at(p, n) && n < 256; n++)
        list[n] = *moegen_rt_problem_at(p, n);
    snprintf(path, sizeof path, "%s/%s", dir, file);
    CHECK(!moegen_rt_safetensors_write(path, list, n, &err), "%s", err.text);
    moegen_rt_problem_destroy(p);
}

/* The layer before it holds zeros. */
static void write_checkpoint(void)
{
    char name[128];
    moegen_rt_problem *p = moegen_rt_problem_create();
    for (int layer = LAYER - 1; layer <= LAYER; layer++) {
        bool real = layer == LAYER;
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", layer);
        void *at = add(p, name, MOEGEN_RT_BF16, 2, E, H);
        if (real)
            moegen_rt_encode(MOEGEN_RT_BF16, router, E * H, at);
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.e_score_correction_bias", layer);
        at = add(p, name, MOEGEN_RT_F32, 1, E, 1);
        if (real)
            moegen_rt_encode(MOEGEN_RT_F32, correction, E, at);
        for (int e = 0; e <= E; e++)
            for (int m = 0; m < MATRICES; m++) {
                char which[32];
                int64_t out = kinds[m].out, in = kinds[m].in;
                int64_t down = (out + BLOCK - 1) / BLOCK, across = (in + BLOCK - 1) / BLOCK;
                snprintf(which, sizeof which, e < E ? "experts.%d" : "shared_experts", e);
                int end = snprintf(name, sizeof name, "model.layers.%d.mlp.%s.%s.weight", layer,
                                   which, kinds[m].name);
                at = add(p, name, MOEGEN_RT_FP8_E4M3, 2, out, in);
                if (real)
                    memcpy(at, codes[e][m], (size_t)(out * in));
                snprintf(name + end, sizeof name - (size_t)end, "_scale_inv");
                at = add(p, name, MOEGEN_RT_F32, 2, down, across);
                if (real)
                    memcpy(at, scales[e][m], (size_t)(down * across) * sizeof(float));
            }
    }
    save(p, "model.safetensors");
    p = moegen_rt_problem_create();
    moegen_rt_encode(MOEGEN_RT_BF16, hidden, T * H,
                     add(p, "hidden_states", MOEGEN_RT_BF16, 2, T, H));
    save(p, "hidden.safetensors");
    p = moegen_rt_problem_create();
    add(p, "hidden_bias", MOEGEN_RT_F32, 1, E, 1); /* zeros */
    save(p, "other.safetensors");
}

/* ---- the model's definition ---- */

/* The best n of x[count], as flags; the lower index of equals. */
static void best(const double *x, int count, int n, bool *is_best)
{
    memset(is_best, 0, (size_t)count);
    for (int j = 0; j < n; j++) {
        int at = -1;
        for (int i = 0; i < count; i++)
            if (!is_best[i] && (at < 0 || x[i] > x[at]))
                at = i;
        is_best[at] = true;
    }
}

/* Weights of all experts, those that are not chosen being 0. */
static void gate(const double *x, double *weight)
{
    double choice[E], group[GROUPS], sum = 0;
    bool stays[GROUPS], chosen[E];
    for (int e = 0; e < E; e++) {
        double z = 0;
        for (int h = 0; h < H; h++)
            z += x[h] * router[e * H + h];
        weight[e] = 1 / (1 + exp(-z));
        choice[e] = weight[e] + correction[e];
    }
    for (int g = 0; g < GROUPS; g++) {
        bool two[E / GROUPS];
        best(choice + g * (E / GROUPS), E / GROUPS, 2, two);
        group[g] = 0;
        for (int i = 0; i < E / GROUPS; i++)
            group[g] += two[i] ? choice[g * (E / GROUPS) + i] : 0;
    }
    best(group, GROUPS, KEEP, stays);
    for (int e = 0; e < E; e++)
        choice[e] = stays[e / (E / GROUPS)] ? choice[e] : -INFINITY;
    best(choice, E, K, chosen);
    for (int e = 0; e < E; e++)
        sum += weight[e] = chosen[e] ? weight[e] : 0;
    for (int e = 0; e < E; e++)
        weight[e] *= 2.5 / (sum + 1e-20);
}

static void expert(const double *x, int e, double weight, double *y)
{
    for (int i = 0; i < I; i++) {
        double g = 0, u = 0;
        for (int h = 0; h < H; h++) {
            g += x[h] * value[e][0][i * H + h];
            u += x[h] * value[e][1][i * H + h];
        }
        double p = g / (1 + exp(-g)) * u;
        for (int h = 0; h < H; h++)
            y[h] += weight * p * value[e][2][h * I + i];
    }
}

static void compute(void)
{
    for (int t = 0; t < T; t++) {
        double weight[E];
        gate(hidden + t * H, weight);
        for (int e = 0; e < E; e++)
            if (weight[e] != 0)
                expert(hidden + t * H, e, weight[e], want + t * H);
        memcpy(whole + t * H, want + t * H, H * sizeof *whole);
        expert(hidden + t * H, E, 1, whole + t * H);
    }
}

/* ---- runs ---- */

/* Of kernel stored_layer, or another; other: the options are those of another model. */
static void run_kernel(const char *moegen, const char *source, const char *kernel,
                       const char *options, const double *right, bool other)
{
    char command[2048], path[128];
    static double got[T * H];
    snprintf(command, sizeof command,
             "cd %s && rm -f out.safetensors && MOEGEN_CACHE_DIR=cache \"$MOEGEN\" run "
             "\"$SOURCE\"/specs/deepseek-v3.yaml:%s -q --set layer=%d --set H=%d --set I_TP=%d "
             "--set E=%d --set top_k=%d --set groups.count=%d --set groups.keep=%d "
             "--set block_size=8 %s --in hidden.safetensors --in model.safetensors "
             "--out out.safetensors",
             dir, kernel, LAYER, H, I, E, K, GROUPS, KEEP, options);
    /* paths that may have any characters */
    CHECK(setenv("MOEGEN", moegen, 1) == 0 && setenv("SOURCE", source, 1) == 0, "no variables");
    CHECK(system(command) == 0, "%s", command);
    moegen_rt_problem *p = moegen_rt_problem_create();
    moegen_rt_error err = {{0}};
    snprintf(path, sizeof path, "%s/out.safetensors", dir);
    CHECK(!moegen_rt_safetensors_read(path, p, &err), "%s", err.text);
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, "output");
    bool sound = t && t->dtype == MOEGEN_RT_BF16 && moegen_rt_tensor_count(t) == T * H;
    CHECK(sound, "no output");
    if (sound) {
        double off = 0, all = 0;
        moegen_rt_decode(t->dtype, t->data, T * H, got);
        for (int i = 0; i < T * H; i++) {
            off += (got[i] - right[i]) * (got[i] - right[i]);
            all += right[i] * right[i];
        }
        off = sqrt(off / all);
        CHECK(other ? off > 0.05 : off <= 4e-3, "%s: off by %g", options, off);
    }
    moegen_rt_problem_destroy(p);
}

static void run(const char *moegen, const char *source, const char *options, bool other)
{
    run_kernel(moegen, source, "stored_layer", options, want, other);
}

int main(int argc, char **argv)
{
    char command[256];
    if (argc != 3 || !mkdtemp(dir))
        return 2;
    make_weights();
    write_checkpoint();
    compute();
    run(argv[1], argv[2], "", false);
    run(argv[1], argv[2], " --set target=scalar --threads 1", false);
    run(argv[1], argv[2], " --set weights.experts=joined --threads 2", false);
    run_kernel(argv[1], argv[2], "stored_whole", " --set shared.I=200", whole, false);
    run_kernel(argv[1], argv[2], "stored_whole", " --set shared.I=200 --threads 3", want, true);
    run(argv[1], argv[2], " --set groups.score=max", true);
    run(argv[1], argv[2], " --set groups.keep=3", true);
    run(argv[1], argv[2], " --set routing_scale=2", true);
    run(argv[1], argv[2], " --set 'renorm={eps: 0.5}'", true);
    run(argv[1], argv[2], " --set tensors.correction_bias=hidden_bias --in other.safetensors",
        true);
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(system(command) == 0, "not removed");
    return failures != 0;
}
