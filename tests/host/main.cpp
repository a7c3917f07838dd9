// SPDX-License-Identifier: Apache-2.0
// The same layer compiled at run time and ahead of time gives the same answer.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "moegen.h"

extern "C" int ahead_of_time(int64_t tokens, int64_t blocks, const float *hidden,
                             const float *affinity, const float *gate_up, const float *down,
                             const int32_t *ids, const int32_t *experts, float *out);

enum { T = 13, H = 48, I = 40, E = 4, B = 8, BLOCKS = 8 };

static int stop(const char *where, moegen_error *err)
{
    std::fprintf(stderr, "%s:\n%s", where, moegen_error_text(err));
    moegen_error_release(err);
    return 1;
}

static std::vector<float> numbers(size_t n, unsigned seed)
{
    std::vector<float> v(n);
    for (float &x : v) {
        seed = seed * 1664525u + 1013904223u;
        x = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
    }
    return v;
}

static bool same(const std::vector<float> &ours, const std::vector<float> &theirs)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < ours.size(); i++) {
        difference += std::pow(ours[i] - theirs[i], 2);
        size += std::pow(theirs[i], 2);
    }
    std::printf("relative difference %.1e\n", std::sqrt(difference / size));
    return size > 1 && difference <= 1e-10 * size;
}

int main()
{
    std::vector<float> hidden = numbers((T + 1) * H, 1), affinity((T + 1) * E);
    std::vector<float> gate_up = numbers(E * H * 2 * I, 2), down = numbers(E * I * H, 3);
    std::vector<float> ours((T + 1) * H), theirs((T + 1) * H);
    std::vector<int32_t> ids(BLOCKS * B, T), experts(BLOCKS);
    for (int block = 0; block < BLOCKS; block++)
        experts[block] = block / 2;
    int used[E] = {};
    for (int t = 0; t < T; t++)
        for (int e : {t % E, (t + 1) % E}) {
            affinity[t * E + e] = 0.5f;
            ids[2 * e * B + used[e]++] = t;
        }

    moegen_engine_options options = {};
    options.struct_size = sizeof options;
    options.cache_dir = "";
    moegen_spec spec = {};
    spec.struct_size = sizeof spec;
    spec.text = "kernel: moe_forward\ndtype: f32\nH: 48\nI_TP: 40\nE: 4\ntop_k: 2\nblock_size: 8\n";
    spec.len = std::strlen(spec.text);
    moegen_engine *engine = nullptr;
    moegen_kernel *kernel = nullptr;
    moegen_call *call = nullptr;
    moegen_error *err = nullptr;
    if (moegen_engine_create(&options, &engine, &err))
        return stop("engine", err);
    if (moegen_kernel_get(engine, &spec, &kernel, &err))
        return stop("kernel", err);
    if (moegen_call_create(kernel, &call, &err))
        return stop("call", err);

    const int64_t rows[] = {T + 1, H}, pairs[] = {(T + 1) * E, 1}, first[] = {E, H, 2, I};
    const int64_t second[] = {E, I, H}, slots[] = {BLOCKS * B}, blocks[] = {BLOCKS};
    struct {
        const char *name;
        void *data;
        moegen_dtype dtype;
        int rank;
        const int64_t *shape;
    } tensors[] = {
        {"hidden_states", hidden.data(), MOEGEN_F32, 2, rows},
        {"expert_affinities_masked", affinity.data(), MOEGEN_F32, 2, pairs},
        {"gate_up_proj_weight", gate_up.data(), MOEGEN_F32, 4, first},
        {"down_proj_weight", down.data(), MOEGEN_F32, 3, second},
        {"token_position_to_id", ids.data(), MOEGEN_I32, 1, slots},
        {"block_to_expert", experts.data(), MOEGEN_I32, 1, blocks},
        {"output", ours.data(), MOEGEN_F32, 2, rows},
    };
    for (const auto &t : tensors)
        if (moegen_call_bind(call, t.name, t.data, t.dtype, t.rank, t.shape, &err))
            return stop("bind", err);
    if (moegen_call_run(call, &err))
        return stop("run", err);
    int status = ahead_of_time(T, BLOCKS, hidden.data(), affinity.data(), gate_up.data(),
                               down.data(), ids.data(), experts.data(), theirs.data());
    moegen_call_release(call);
    moegen_kernel_release(kernel);
    moegen_engine_release(engine);
    return status || !same(ours, theirs);
}
