/* SPDX-License-Identifier: Apache-2.0 */
/* infinite_test.c - an infinite sum of few rows is infinite, also where sums are compensated: the
 * activation of -infinity is 0, and so is what the expert gives. Every target. */
#include <math.h>

#include "api.h"

enum { WIDE = 16 };

static const char text[] = "kernel: moe_forward\nH: 16\nI_TP: 16\nE: 1\ntop_k: 1\nblock_size: 4\n"
                           "gated: false\ndtype: f32\n";
static float x[2 * WIDE], up[WIDE * WIDE], down[WIDE * WIDE], affinity[2] = {1, 0}, out[2 * WIDE];
static int32_t id[4] = {0, 1, 1, 1}, expert[1];

static moegen_status bind_all(moegen_call *call)
{
    const struct {
        const char *name;
        void *data;
        moegen_dtype dtype;
        int64_t shape[4];
    } t[] = {
        {"hidden_states", x, MOEGEN_F32, {2, WIDE, 1, 1}},
        {"expert_affinities_masked", affinity, MOEGEN_F32, {2, 1, 1, 1}},
        {"gate_up_proj_weight", up, MOEGEN_F32, {1, WIDE, 1, WIDE}},
        {"down_proj_weight", down, MOEGEN_F32, {1, WIDE, WIDE, 1}},
        {"token_position_to_id", id, MOEGEN_I32, {4, 1, 1, 1}},
        {"block_to_expert", expert, MOEGEN_I32, {1, 1, 1, 1}},
        {"output", out, MOEGEN_F32, {2, WIDE, 1, 1}},
    };
    moegen_status status = MOEGEN_OK;
    for (size_t i = 0; i < sizeof t / sizeof *t && !status; i++)
        status = moegen_call_bind(call, t[i].name, t[i].data, t[i].dtype, 4, t[i].shape, NULL);
    return status;
}

static void try_target(moegen_engine *engine, const char *target, float sign)
{
    const moegen_override set[] = {{"target", target},
                                   {"spelling", strcmp(target, "auto") ? "scalar" : "auto"}};
    moegen_spec spec = spec_of(text);
    spec.overrides = set;
    spec.override_count = 2;
    moegen_kernel *kernel = NULL;
    moegen_call *call = NULL;
    x[0] = sign * INFINITY;
    CHECK(!moegen_kernel_get(engine, &spec, &kernel, NULL));
    CHECK(!moegen_call_create(kernel, &call, NULL) && !bind_all(call));
    CHECK(!moegen_call_run(call, NULL));
    for (int h = 0; h < WIDE; h++)
        if (sign < 0 ? out[h] != 0 : !(isinf(out[h]) && out[h] > 0))
            printf("%s, %g: %g\n", target, (double)x[0], (double)out[h]);
    for (int h = 0; h < WIDE; h++)
        CHECK(sign < 0 ? out[h] == 0 : isinf(out[h]) && out[h] > 0);
    moegen_call_release(call);
    moegen_kernel_release(kernel);
}

int main(void)
{
    static const char *const targets[] = {"auto", "scalar", "avx2", "avx512", "avx512_bf16"};
    moegen_engine *engine = engine_of("", NULL);
    for (int i = 0; i < WIDE * WIDE; i++)
        up[i] = i < WIDE ? 1 : 0.1f;
    for (int i = 0; i < WIDE * WIDE; i++)
        down[i] = 0.3f;
    for (int h = 0; h < WIDE; h++)
        x[h] = 0.5f;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        for (float sign = -1; sign <= 1; sign += 2)
            try_target(engine, targets[i], sign);
    moegen_engine_release(engine);
    return failures != 0;
}
