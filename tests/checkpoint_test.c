/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_test.c - `moegen run` reads the tensors of a checkpoint under their own names. The
 * files are small, but laid out as published: for Qwen3-30B-A3B shards of bf16 with a matrix [out,
 * in] for each expert and projection, for GPT-OSS-20B MXFP4 with gate and up in turn, and much
 * else; what comes of them is what comes of the same weights as the kernels' own tensors.
 *
 *     checkpoint_test MOEGEN SOURCE */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "moegen_runtime.h"

enum { H = 72, I = 40, E = 6, T = 21, LAYERS = 2 };

static const char *moegen, *source;
static char dir[] = "/tmp/moegen-checkpoint-XXXXXX";

/* ---- tensors ---- */

static float gate[LAYERS][E][I][H], up[LAYERS][E][I][H], down[LAYERS][E][H][I];
static float router[LAYERS][E][H], hidden[T][H];

static void fill(float *to, size_t count, unsigned seed, float scale)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = scale * ((float)(int)(seed >> 17 & 127) - 63.5f); /* exact in bf16 */
    }
}

/* Adds floats as bf16, which hold them exactly; or as f32. */
static void add(moegen_rt_problem *p, const char *name, const float *from, bool wide, int rank,
                const int64_t *shape)
{
    moegen_rt_tensor *t;
    moegen_rt_dtype dtype = wide ? MOEGEN_RT_F32 : MOEGEN_RT_BF16;
    moegen_rt_error err;
    bool bad = moegen_rt_problem_add(p, name, dtype, rank, shape, &t, &err) != MOEGEN_RT_OK;
    CHECK(!bad, "%s: %s", name, err.text);
    if (!bad)
        moegen_rt_convert(MOEGEN_RT_F32, from, dtype, t->data, (size_t)moegen_rt_tensor_count(t));
}

static void save(moegen_rt_problem *p, const char *file)
{
    static moegen_rt_tensor list[256];
    char path[128];
    moegen_rt_error err;
    size_t n = 0;
    for (; moegen_rt_problem_at(p, n) && n < 256; n++)
        list[n] = *moegen_rt_problem_at(p, n);
    snprintf(path, sizeof path, "%s/%s", dir, file);
    CHECK(!moegen_rt_safetensors_write(path, list, n, &err), "%s", err.text);
    moegen_rt_problem_destroy(p);
}

static void add_expert(moegen_rt_problem *p, int layer, int e, bool wide)
{
    static const struct {
        const char *name;
        const float *at;
        int64_t shape[2];
    } all[] = {{"gate_proj", &gate[0][0][0][0], {I, H}},
               {"up_proj", &up[0][0][0][0], {I, H}},
               {"down_proj", &down[0][0][0][0], {H, I}}};
    char name[128];
    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, e,
                 all[k].name);
        add(p, name, all[k].at + (layer * E + e) * H * I, wide, 2, all[k].shape);
    }
}

/* The checkpoint in two files: experts in the order of names as text, the last ones in the second.
 */
static void write_checkpoint(const char *folder, bool wide, int experts)
{
    char name[128];
    const int64_t line[] = {H}, logits[] = {E, H};
    for (int shard = 1; shard <= 2; shard++) {
        moegen_rt_problem *p = moegen_rt_problem_create();
        for (int l = 0; l < LAYERS; l++) {
            snprintf(name, sizeof name, "model.layers.%d.self_attn.q_proj.weight", l);
            add(p, name, &gate[l][0][0][0], false, 2, (const int64_t[]){I, H});
            snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", l);
            add(p, name, &up[l][0][0][0], false, 1, line);
            snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", l);
            if (shard == 2)
                add(p, name, &router[l][0][0], wide, 2, logits);
            for (int e = 0; e < experts; e++)
                if ((e > 3) == (shard == 2))
                    add_expert(p, l, e, wide);
        }
        add(p, "hidden", &down[0][0][0][0], false, 1, line);
        snprintf(name, sizeof name, "%s/model-0000%d-of-00002.safetensors", folder, shard);
        save(p, name);
    }
}

/* The same weights of a layer as the kernels' own tensors: [out, in] or [in, out]. */
static void write_own(const char *file, int l, bool transposed)
{
    static float both[E][2 * I * H], last[E][I * H], columns[H][E];
    for (int e = 0; e < E; e++)
        for (int i = 0; i < I; i++)
            for (int h = 0; h < H; h++) {
                both[e][transposed ? i * H + h : h * 2 * I + i] = gate[l][e][i][h];
                both[e][transposed ? (I + i) * H + h : h * 2 * I + I + i] = up[l][e][i][h];
                last[e][transposed ? h * I + i : i * H + h] = down[l][e][h][i];
                columns[h][e] = router[l][e][h];
            }
    moegen_rt_problem *p = moegen_rt_problem_create();
    add(p, "gate_up_proj_weight", both[0], false, transposed ? 3 : 4,
        transposed ? (const int64_t[]){E, 2 * I, H, 1} : (const int64_t[]){E, H, 2, I});
    add(p, "down_proj_weight", last[0], false, 3,
        transposed ? (const int64_t[]){E, H, I} : (const int64_t[]){E, I, H});
    add(p, "router_weight", columns[0], false, 2, (const int64_t[]){H, E});
    save(p, file);
}

/* ---- runs ---- */

static const char *model = "qwen3-30b-a3b.yaml:stored_layer";

/* Runs the layer of the model's spec, made small, in the directory of the files; its exit status.
 * Paths that may have any characters the shell finds as variables. */
static int run(const char *options, const char *inputs)
{
    char command[2048];
    snprintf(command, sizeof command,
             "cd %s && rm -f out.safetensors && MOEGEN_CACHE_DIR=cache \"$MOEGEN\" run "
             "\"$SOURCE\"/specs/%s -q "
             "--set H=%d --set I_TP=%d --set E=%d --set top_k=2 --set block_size=8 %s "
             "--in hidden.safetensors %s --out out.safetensors 2>said",
             dir, model, H, I, E, options, inputs);
    bool told = setenv("MOEGEN", moegen, 1) == 0 && setenv("SOURCE", source, 1) == 0;
    int status = told ? system(command) : -1;
    return status < 0 ? -1 : status / 256;
}

/* The output of a run that must succeed. */
static moegen_rt_problem *output_of(const char *options, const char *inputs)
{
    char path[128], text[512] = "";
    moegen_rt_problem *p = moegen_rt_problem_create();
    moegen_rt_error err = {{0}};
    int status = run(options, inputs);
    snprintf(path, sizeof path, "%s/said", dir);
    FILE *f = fopen(path, "r");
    if (f) {
        text[fread(text, 1, sizeof text - 1, f)] = '\0';
        fclose(f);
    }
    snprintf(path, sizeof path, "%s/out.safetensors", dir);
    CHECK(status == 0, "%s %s: exit status %d: %s", options, inputs, status, text);
    CHECK(!moegen_rt_safetensors_read(path, p, &err), "%s", err.text);
    return p;
}

/* bits: are they the same? Otherwise they are alike. */
static void compare(const char *what, moegen_rt_problem *a, moegen_rt_problem *b, bool bits)
{
    static double x[T * H], y[T * H];
    const moegen_rt_tensor *s = moegen_rt_problem_tensor(a, "output"),
                           *t = moegen_rt_problem_tensor(b, "output");
    bool both = s && t && s->bytes == t->bytes && s->dtype == t->dtype && s->rank == 2;
    CHECK(both && moegen_rt_tensor_count(s) == T * H, "%s: no outputs of one shape", what);
    if (both && bits)
        CHECK(memcmp(s->data, t->data, s->bytes) == 0, "%s: other bits", what);
    if (both) {
        double off = 0, all = 0;
        moegen_rt_decode(s->dtype, s->data, T * H, x);
        moegen_rt_decode(t->dtype, t->data, T * H, y);
        for (int i = 0; i < T * H; i++) {
            off += (x[i] - y[i]) * (x[i] - y[i]);
            all += y[i] * y[i];
        }
        CHECK(all > 0 && sqrt(off / all) < 2e-3, "%s: off by %g", what, sqrt(off / all));
    }
    moegen_rt_problem_destroy(a);
}

static void refuse(const char *options, const char *inputs, const char *sentence)
{
    char command[512];
    int status = run(options, inputs);
    CHECK(status == 2, "%s %s: exit status %d", options, inputs, status);
    snprintf(command, sizeof command, "grep -qF \"%s\" %s/said", sentence, dir);
    CHECK(system(command) == 0, "%s %s: not said: %s", options, inputs, sentence);
}

static void try_layer(int l)
{
    char layer[64], options[256];
    snprintf(layer, sizeof layer, "--set layer=%d", l);
    write_own("transposed.safetensors", l, true);
    write_own("plain.safetensors", l, false);
    moegen_rt_problem *want =
        output_of("--set weights='{layout: transposed, gate_up: joined, experts: joined}'",
                  "--in transposed.safetensors");
    compare("a checkpoint", output_of(layer, "--in shards"), want, true);
    compare("its files",
            output_of(layer, "--in shards/model-00002-of-00002.safetensors --in "
                             "shards/model-00001-of-00002.safetensors"),
            want, true);
    compare("a checkpoint of f32, rounded", output_of(layer, "--in wide"), want, true);
    snprintf(options, sizeof options, "%s --set weights.experts=joined", layer);
    compare("experts joined", output_of(options, "--in shards"), want, true);
    compare("plain",
            output_of("--set weights='{layout: plain, gate_up: joined, experts: joined}'",
                      "--in plain.safetensors"),
            want, false);
    snprintf(options, sizeof options, "%s --set weights.layout=plain", layer);
    refuse(options, "--in shards", "tensor 'gate_proj_weight' is bf16 [6, 40, 72], expected");
    moegen_rt_problem_destroy(want);
}

/* ---- MXFP4 ---- */

enum { RUN = 32, RUNS = (H + RUN - 1) / RUN, RUNS_I = (I + RUN - 1) / RUN };
static uint8_t up_codes[E][2 * I][RUNS][RUN / 2], down_codes[E][H][RUNS_I][RUN / 2];
static uint8_t up_scales[E][2 * I][RUNS], down_scales[E][H][RUNS_I];
static float up_bias[E][2 * I], down_bias[E][H], router_bias[E];

static void add_bytes(moegen_rt_problem *p, const char *name, const void *from, int rank,
                      const int64_t *shape)
{
    moegen_rt_tensor *t;
    moegen_rt_error err;
    if (moegen_rt_problem_add(p, name, MOEGEN_RT_U8, rank, shape, &t, &err))
        CHECK(false, "%s: %s", name, err.text);
    else
        memcpy(t->data, from, t->bytes);
}

/* Codes of anything, scales of about 2^-4; behind the end of a row zeros. */
static void fill_runs(uint8_t *codes, uint8_t *scales, int rows, int K, unsigned seed)
{
    int runs = (K + RUN - 1) / RUN;
    for (int r = 0; r < rows * runs; r++) {
        scales[r] = (uint8_t)(121 + (r * 7 + (int)seed) % 5);
        for (int i = 0; i < RUN / 2; i++) {
            seed = seed * 1664525u + 1013904223u;
            codes[r * RUN / 2 + i] = r % runs * RUN + 2 * i < K ? (uint8_t)(seed >> 19) : 0;
        }
    }
}

/* Element k of a row, as OCP defines it. */
static float element(const uint8_t *codes, const uint8_t *scales, int k)
{
    static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    int code = codes[k / 2] >> (k % 2 * 4) & 15;
    return ldexpf(code < 8 ? values[code] : -values[code - 8], scales[k / RUN] - 127);
}

static void write_mxfp4(void)
{
    moegen_rt_problem *p = moegen_rt_problem_create();
#define NAME(rest) "model.layers.3.mlp." rest
    add(p, NAME("router.weight"), router[0][0], false, 2, (const int64_t[]){E, H});
    add(p, NAME("router.bias"), router_bias, false, 1, (const int64_t[]){E});
    add_bytes(p, NAME("experts.gate_up_proj_blocks"), up_codes, 4,
              (const int64_t[]){E, 2 * I, RUNS, RUN / 2});
    add_bytes(p, NAME("experts.gate_up_proj_scales"), up_scales, 3,
              (const int64_t[]){E, 2 * I, RUNS});
    add(p, NAME("experts.gate_up_proj_bias"), up_bias[0], false, 2, (const int64_t[]){E, 2 * I});
    add_bytes(p, NAME("experts.down_proj_blocks"), down_codes, 4,
              (const int64_t[]){E, H, RUNS_I, RUN / 2});
    add_bytes(p, NAME("experts.down_proj_scales"), down_scales, 3, (const int64_t[]){E, H, RUNS_I});
    add(p, NAME("experts.down_proj_bias"), down_bias[0], false, 2, (const int64_t[]){E, H});
    add(p, "lm_head.weight", gate[0][0][0], false, 2, (const int64_t[]){I, H});
    save(p, "mxfp4/model-00000-of-00000.safetensors");
}

/* The same as numbers, gate before up. */
static void write_numbers(void)
{
    static float both[E][H][2][I], last[E][I][H], columns[H][E], bias[E][2][I];
    for (int e = 0; e < E; e++)
        for (int h = 0; h < H; h++)
            for (int i = 0; i < I; i++) {
                for (int g = 0; g < 2; g++) {
                    both[e][h][g][i] =
                        element(up_codes[e][2 * i + g][0], up_scales[e][2 * i + g], h);
                    bias[e][g][i] = up_bias[e][2 * i + g];
                }
                last[e][i][h] = element(down_codes[e][h][0], down_scales[e][h], i);
                columns[h][e] = router[0][e][h];
            }
    moegen_rt_problem *p = moegen_rt_problem_create();
    add(p, "gate_up_proj_weight", both[0][0][0], false, 4, (const int64_t[]){E, H, 2, I});
    add(p, "down_proj_weight", last[0][0], false, 3, (const int64_t[]){E, I, H});
    add(p, "gate_and_up_proj_bias", bias[0][0], false, 3, (const int64_t[]){E, 2, I});
    add(p, "down_proj_bias", down_bias[0], false, 2, (const int64_t[]){E, H});
    add(p, "router_weight", columns[0], false, 2, (const int64_t[]){H, E});
    add(p, "router_bias", router_bias, false, 1, (const int64_t[]){E});
    save(p, "numbers.safetensors");
}

static void try_mxfp4(void)
{
    fill_runs(up_codes[0][0][0], up_scales[0][0], E * 2 * I, H, 6);
    fill_runs(down_codes[0][0][0], down_scales[0][0], E * H, I, 7);
    fill(up_bias[0], sizeof up_bias / 4, 8, 0x1p-7f);
    fill(down_bias[0], sizeof down_bias / 4, 9, 0x1p-7f);
    fill(router_bias, E, 10, 0x1p-7f);
    write_mxfp4();
    write_numbers();
    model = "gpt-oss-20b.yaml:layer";
    moegen_rt_problem *want = output_of("", "--in numbers.safetensors");
    model = "gpt-oss-20b.yaml:mxfp4_layer";
    compare("mxfp4", output_of("--set layer=3", "--in mxfp4"), want, false);
    refuse("", "--in mxfp4", "there is no 'model.layers.0.mlp.router.weight'");
    moegen_rt_problem_destroy(want);
}

int main(int argc, char **argv)
{
    char command[256];
    if (argc != 3 || !mkdtemp(dir))
        return 2;
    moegen = argv[1];
    source = argv[2];
    snprintf(command, sizeof command, "cd %s && mkdir shards wide few empty mxfp4", dir);
    CHECK(system(command) == 0, "no directories");
    fill(&gate[0][0][0][0], sizeof gate / 4, 1, 0x1p-9f);
    fill(&up[0][0][0][0], sizeof up / 4, 2, 0x1p-9f);
    fill(&down[0][0][0][0], sizeof down / 4, 3, 0x1p-9f);
    fill(&router[0][0][0], sizeof router / 4, 4, 0x1p-9f);
    fill(&hidden[0][0], sizeof hidden / 4, 5, 0x1p-5f);
    write_checkpoint("shards", false, E);
    write_checkpoint("wide", true, E);
    write_checkpoint("few", false, E - 1);
    moegen_rt_problem *p = moegen_rt_problem_create();
    add(p, "hidden_states", hidden[0], false, 2, (const int64_t[]){T, H});
    save(p, "hidden.safetensors");
    for (int l = 0; l < LAYERS; l++)
        try_layer(l);
    refuse("", "--in few",
           "tensor 'gate_proj_weight' is missing: there is no 'model.layers.0.mlp.experts.5."
           "gate_proj.weight'");
    refuse("--set layer=7", "--in shards", "there is no 'model.layers.7.mlp.gate.weight'");
    refuse("--set tensors.router_weight.transposed=false", "--in shards", "router_weight");
    refuse("", "--in empty", "empty: no *.safetensors in this directory");
    refuse("", "--in nowhere", "nowhere: cannot open");
    try_mxfp4();
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(system(command) == 0, "not removed");
    return failures != 0;
}
