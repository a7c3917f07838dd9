/* SPDX-License-Identifier: Apache-2.0 */
/* Index building, fillers and the forward reference against brute force without blocks. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "moegen_runtime.h"

/* "key value key value ..." */
static moegen_rt_problem *problem(const char *params)
{
    char text[512], *save = NULL;
    moegen_rt_problem *p = moegen_rt_problem_create();
    snprintf(text, sizeof text, "%s", params);
    for (char *key = strtok_r(text, " ", &save); key; key = strtok_r(NULL, " ", &save))
        moegen_rt_problem_set(p, key, strtok_r(NULL, " ", &save));
    return p;
}

static double get(const moegen_rt_problem *p, const char *name, int64_t i)
{
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, name);
    double x = NAN;
    if (t && i >= 0 && i < moegen_rt_tensor_count(t))
        moegen_rt_decode(t->dtype,
                         (char *)t->data + (size_t)i * moegen_rt_dtype_of(t->dtype)->bytes, 1, &x);
    else
        CHECK(0, "no %s[%lld]", name, (long long)i);
    return x;
}

static int64_t size(const moegen_rt_problem *p, const char *name)
{
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, name);
    return t ? moegen_rt_tensor_count(t) : -1;
}

/* ---- index building: expert after expert, token after token ---- */

static void index_case(int64_t T, int64_t E, int64_t k, int64_t B, const char *routing, int skip)
{
    char params[128];
    moegen_rt_error err = {""};
    snprintf(params, sizeof params, "E %lld top_k %lld block_size %lld skip_token %s", (long long)E,
             (long long)k, (long long)B, skip ? "true" : "false");
    moegen_rt_problem *p = problem(params), *out = moegen_rt_problem_create();
    const moegen_rt_reference *r = moegen_rt_reference_find("moe_index");
    moegen_rt_fill how = {.T = T, .seed = 3, .routing = routing};
    CHECK(r->fill(p, &how, &err) == MOEGEN_RT_OK, "%s", err.text);
    CHECK(r->compute(p, NULL, out, &err) == MOEGEN_RT_OK, "%s", err.text);
    double exact = ceil((double)(T * k - (E - 1)) / (double)B) + (double)(E - 1);
    int64_t N = exact < 1 ? 1 : (int64_t)exact, slot = 0;
    CHECK(size(out, "block_to_expert") == N && size(out, "token_position_to_id") == N * B &&
              size(out, "conditions") == N + 1,
          "sizes for %s", params);
    for (int64_t e = 0; e < E; e++) {
        for (int64_t t = 0; t < T; t++) {
            int chosen = 0;
            for (int64_t j = 0; j < k; j++)
                chosen |= get(p, "expert_index", t * k + j) == (double)e;
            if (!chosen)
                continue;
            CHECK(get(out, "token_position_to_id", slot) == (double)t, "%s: slot %lld", params,
                  (long long)slot);
            CHECK(get(out, "block_to_expert", slot / B) == (double)e, "%s: block of %lld", params,
                  (long long)slot);
            CHECK(get(out, "conditions", slot / B) == 1, "%s: condition of %lld", params,
                  (long long)slot);
            slot++;
        }
        for (; slot % B; slot++)
            CHECK(get(out, "token_position_to_id", slot) == (skip ? -1 : (double)T), "%s: padding",
                  params);
    }
    CHECK(slot <= N * B, "%s: too few blocks", params);
    for (; slot < N * B; slot++) {
        CHECK(get(out, "token_position_to_id", slot) == (skip ? -1 : (double)T), "%s: surplus",
              params);
        CHECK(get(out, "block_to_expert", slot / B) == (double)(E - 1), "%s: surplus block",
              params);
        CHECK(get(out, "conditions", slot / B) == 0, "%s: surplus condition", params);
    }
    CHECK(get(out, "conditions", N) == 0, "%s: last condition", params);
    moegen_rt_problem_destroy(p);
    moegen_rt_problem_destroy(out);
}

static void routings(void)
{
    const char *name;
    for (int i = 0; (name = moegen_rt_routing(i)); i++) {
        enum { T = 40, E = 5, K = 2 };
        int64_t count[E] = {0};
        moegen_rt_problem *p = problem("E 5 top_k 2 block_size 8");
        moegen_rt_fill how = {.T = T, .seed = 1, .routing = name};
        CHECK(moegen_rt_reference_find("moe_index")->fill(p, &how, NULL) == MOEGEN_RT_OK, "%s",
              name);
        for (int64_t j = 0; j < T * K; j++)
            count[(int64_t)get(p, "expert_index", j)]++;
        for (int64_t j = 0; j < T; j++)
            CHECK(get(p, "expert_index", 2 * j) != get(p, "expert_index", 2 * j + 1), "%s: twice",
                  name);
        if (strcmp(name, "one") == 0)
            CHECK(count[2] == T && count[3] == T, "one");
        if (strcmp(name, "empty_first") == 0)
            CHECK(count[0] == 0, "empty_first");
        if (strcmp(name, "empty_middle") == 0)
            CHECK(count[2] == 0, "empty_middle");
        if (strcmp(name, "empty_last") == 0)
            CHECK(count[4] == 0, "empty_last");
        if (strcmp(name, "one_token") == 0)
            CHECK(count[0] == 1, "one_token");
        for (int e = 0; e < E && strcmp(name, "balanced") == 0; e++)
            CHECK(count[e] == T * K / E, "balanced");
        moegen_rt_problem_destroy(p);
    }
    moegen_rt_problem *p = problem("E 5 top_k 2 block_size 8");
    moegen_rt_error err = {""};
    moegen_rt_fill how = {.T = 4, .routing = "nothing"};
    CHECK(moegen_rt_reference_find("moe_index")->fill(p, &how, &err) &&
              strstr(err.text, "'nothing'"),
          "%s", err.text);
    moegen_rt_problem_destroy(p);
}

/* ---- the forward pass, token by token and expert by expert ---- */

struct forward {
    const moegen_rt_problem *p;
    int64_t T, H, I, E, parts;
};

static double clamp(const moegen_rt_problem *p, const char *part, double v)
{
    char lo[32], hi[32];
    snprintf(lo, sizeof lo, "clamp.%s.lo", part);
    snprintf(hi, sizeof hi, "clamp.%s.hi", part);
    v = fmin(v, moegen_rt_problem_number(p, hi, INFINITY));
    return fmax(v, moegen_rt_problem_number(p, lo, -INFINITY));
}

static double weight(const struct forward *f, const char *what, int64_t i, int64_t scale)
{
    char name[64];
    snprintf(name, sizeof name, "%s_scale", what);
    double s = size(f->p, name) > 0 ? get(f->p, name, scale) : 1;
    snprintf(name, sizeof name, "%s_weight", what);
    return get(f->p, name, i) * s;
}

/* Adds expert e's part of token t to y. */
static void expert(const struct forward *f, int64_t t, int64_t e, double a, double *y)
{
    const moegen_rt_problem *p = f->p;
    const char *scale = moegen_rt_problem_text(p, "affinity.scale", "post");
    int on_i = strcmp(moegen_rt_problem_text(p, "affinity.on", "hidden"), "intermediate") == 0;
    int biased = size(p, "gate_and_up_proj_bias") > 0, down_biased = size(p, "down_proj_bias") > 0;
    double before = strcmp(scale, "pre") == 0 ? a : 1, after = strcmp(scale, "post") == 0 ? a : 1;
    const moegen_rt_activation *act =
        moegen_rt_activation_find(moegen_rt_problem_text(p, "activation", "silu"));
    double *inner = calloc((size_t)f->I, sizeof *inner);
    for (int64_t i = 0; i < f->I; i++) {
        double v[2] = {0, 0};
        for (int64_t c = 0; c < f->parts; c++) {
            for (int64_t h = 0; h < f->H; h++)
                v[c] += before * get(p, "hidden_states", t * f->H + h) *
                        weight(f, "gate_up_proj", ((e * f->H + h) * f->parts + c) * f->I + i,
                               (e * f->parts + c) * f->I + i);
            if (biased)
                v[c] += get(p, "gate_and_up_proj_bias", (e * f->parts + c) * f->I + i);
            int up = c == f->parts - 1;
            v[c] = clamp(p, up ? "up" : "gate", v[c]);
            v[c] += up ? moegen_rt_problem_number(p, "up_offset", 0) : 0;
        }
        inner[i] = f->parts == 2 ? act->value(v[0]) * v[1] : act->value(v[0]);
        inner[i] *= on_i ? after : 1;
    }
    for (int64_t h = 0; h < f->H; h++) {
        double d = 0;
        for (int64_t i = 0; i < f->I; i++)
            d += inner[i] * weight(f, "down_proj", (e * f->I + i) * f->H + h, e * f->H + h);
        if (down_biased)
            d += get(p, "down_proj_bias", e * f->H + h) * (on_i ? after : 1);
        y[h] += d * (on_i ? 1 : after);
    }
    free(inner);
}

static void check_tokens(const struct forward *f, const moegen_rt_problem *out, const char *label)
{
    double *y = calloc((size_t)f->H, sizeof *y), worst = 0;
    for (int64_t t = 0; t < f->T; t++) {
        memset(y, 0, (size_t)f->H * sizeof *y);
        for (int64_t e = 0; e < f->E; e++) {
            double a = get(f->p, "expert_affinities_masked", t * f->E + e);
            if (a != 0) /* the fillers give no chosen expert zero */
                expert(f, t, e, a, y);
        }
        for (int64_t h = 0; h < f->H; h++)
            worst = fmax(worst, fabs(y[h] - get(out, "output", t * f->H + h)));
    }
    CHECK(worst < 1e-12, "%s: off by %g", label, worst);
    for (int64_t i = f->T * f->H; i < size(out, "output"); i++)
        CHECK(get(out, "output", i) == 0, "%s: the padding row is not zero", label);
    free(y);
}

/* The gate_up checkpoint of real slots holds what the activation gets; padding is as asked. */
static void check_padding(const moegen_rt_problem *p, const moegen_rt_problem *out, int64_t T,
                          int zero)
{
    int64_t B = moegen_rt_problem_int(p, "block_size", 0), n = size(out, "gate_up_activations_T");
    int64_t N = size(p, "block_to_expert");
    for (int64_t i = 0; i < n; i++) {
        int64_t b = i / (n / N), slot = i % B;
        double id = get(p, "token_position_to_id", b * B + slot),
               v = get(out, "gate_up_activations_T", i);
        int real = id >= 0 && id < (double)T;
        CHECK(real ? !isnan(v) : zero ? v == 0 : isnan(v), "slot %lld is %g", (long long)i, v);
    }
}

static void forward_case(const char *params, int64_t T, const char *routing)
{
    moegen_rt_problem *p = problem(params), *out = moegen_rt_problem_create(),
                      *part = moegen_rt_problem_create();
    const moegen_rt_reference *r = moegen_rt_reference_find("moe_forward");
    moegen_rt_error err = {""};
    moegen_rt_fill how = {.T = T, .seed = 5, .routing = routing, .extra_blocks = T % 2};
    moegen_rt_want zero = {.padding_is_zero = 1};
    CHECK(r->fill(p, &how, &err) == MOEGEN_RT_OK, "%s: %s", params, err.text);
    CHECK(r->compute(p, NULL, out, &err) == MOEGEN_RT_OK, "%s: %s", params, err.text);
    struct forward f = {p,
                        T,
                        moegen_rt_problem_int(p, "H", 0),
                        moegen_rt_problem_int(p, "I_TP", 0),
                        moegen_rt_problem_int(p, "E", 0),
                        moegen_rt_problem_bool(p, "gated", 1) ? 2 : 1};
    check_tokens(&f, out, params);
    check_padding(p, out, T, 0);
    int64_t some[] = {0, T - 1, T / 2};
    moegen_rt_want want = {.tokens = some, .token_count = 3};
    CHECK(r->compute(p, &want, part, &err) == MOEGEN_RT_OK, "%s", err.text);
    for (int64_t i = 0; i < T * f.H; i++) {
        int64_t t = i / f.H;
        int wanted = t == 0 || t == T - 1 || t == T / 2;
        double v = get(part, "output", i);
        CHECK(wanted ? v == get(out, "output", i) : isnan(v), "%s: part of token %lld", params,
              (long long)t);
    }
    CHECK(r->compute(p, &zero, out, &err) == MOEGEN_RT_OK, "%s", err.text);
    check_padding(p, out, T, 1);
    moegen_rt_problem_destroy(p);
    moegen_rt_problem_destroy(out);
    moegen_rt_problem_destroy(part);
}

/* Blocks after the first zero of conditions count as absent, except for static ones. */
static void conditions(void)
{
    const moegen_rt_reference *r = moegen_rt_reference_find("moe_forward");
    for (int runs = 1; runs <= 3; runs++) {
        moegen_rt_problem *p = problem("H 4 I_TP 3 E 2 top_k 2 block_size 4"),
                          *out = moegen_rt_problem_create(), *want = moegen_rt_problem_create();
        moegen_rt_fill how = {.T = 16};
        CHECK(r->fill(p, &how, NULL) == MOEGEN_RT_OK, "fill");
        int32_t *condition = moegen_rt_problem_tensor(p, "conditions")->data;
        int32_t *ids = moegen_rt_problem_tensor(p, "token_position_to_id")->data;
        for (int b = 1; b < 8; b++)
            condition[b] = 0;
        moegen_rt_problem_set(p, "loop.static_blocks", runs == 1 ? NULL : runs == 2 ? "2" : "3");
        CHECK(r->compute(p, NULL, out, NULL) == MOEGEN_RT_OK, "compute");
        for (int i = 4 * runs; i < 32; i++)
            ids[i] = 16;
        moegen_rt_problem_drop(p, "conditions");
        CHECK(r->compute(p, NULL, want, NULL) == MOEGEN_RT_OK, "compute");
        for (int64_t i = 0; i < size(out, "output"); i++)
            CHECK(get(out, "output", i) == get(want, "output", i), "%d blocks: %lld", runs,
                  (long long)i);
        moegen_rt_problem_destroy(p);
        moegen_rt_problem_destroy(out);
        moegen_rt_problem_destroy(want);
    }
}

static void bad_data(void)
{
    moegen_rt_problem *p = problem("H 4 I_TP 3 E 2 block_size 4"),
                      *out = moegen_rt_problem_create();
    const moegen_rt_reference *r = moegen_rt_reference_find("moe_forward");
    moegen_rt_fill how = {.T = 5};
    moegen_rt_error err = {""};
    CHECK(r->fill(p, &how, &err) == MOEGEN_RT_OK, "%s", err.text);
    int32_t *ids = moegen_rt_problem_tensor(p, "token_position_to_id")->data;
    int32_t *experts = moegen_rt_problem_tensor(p, "block_to_expert")->data, was = ids[0];
    ids[0] = 6;
    CHECK(r->compute(p, NULL, out, &err) == MOEGEN_RT_BAD_DATA &&
              strstr(err.text, "token_position_to_id[0] is 6"),
          "%s", err.text);
    ids[0] = was;
    experts[0] = 2;
    CHECK(r->compute(p, NULL, out, &err) == MOEGEN_RT_BAD_DATA &&
              strstr(err.text, "block_to_expert[0] is 2"),
          "%s", err.text);
    moegen_rt_problem_drop(p, "down_proj_weight");
    CHECK(r->compute(p, NULL, out, &err) == MOEGEN_RT_BAD_ARGUMENT &&
              strstr(err.text, "'down_proj_weight' is missing"),
          "%s", err.text);
    moegen_rt_problem_set(p, "H", "5");
    CHECK(r->compute(p, NULL, out, &err) == MOEGEN_RT_BAD_ARGUMENT &&
              strstr(err.text, "has shape [6, 4]"),
          "%s", err.text);
    moegen_rt_problem_set(p, "H", NULL);
    CHECK(r->compute(p, NULL, out, &err) && strstr(err.text, "'H' is missing"), "%s", err.text);
    moegen_rt_problem_destroy(p);
    moegen_rt_problem_destroy(out);
}

int main(void)
{
    const char *routing;
    for (int i = 0; (routing = moegen_rt_routing(i)); i++) {
        index_case(70, 7, 3, 8, routing, i % 2);
        forward_case("H 7 I_TP 5 E 5 top_k 2 block_size 4 checkpoint save", 13, routing);
    }
    index_case(1, 64, 1, 128, NULL, 0);
    index_case(5, 64, 1, 2, NULL, 1);
    index_case(33, 4, 4, 16, NULL, 0);
    index_case(9, 1, 1, 1, NULL, 0);
    routings();
    static const char *const cases[] = {
        "gated false bias true clamp.up.lo -1 clamp.up.hi 1.5 up_offset 0.25",
        "bias true skip_token true affinity.on intermediate activation swish",
        "bias.gate_up true affinity.scale pre activation gelu clamp.gate.hi 0.5",
        "bias.down true affinity.scale none activation relu clamp.gate.lo -0.5 up_offset 1",
        "dtype bf16 activation gelu_tanh affinity_dtype f32 bias true bias_dtype f32",
        "dtype f16 activation squared_relu loop.static_blocks 2",
        "weights.dtype fp8_e4m3 weights.scale row dtype bf16",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char params[256];
        snprintf(params, sizeof params, "H 9 I_TP 6 E 3 top_k 2 block_size 4 checkpoint save %s",
                 cases[i]);
        forward_case(params, 11, NULL);
    }
    forward_case("H 1 I_TP 1 E 1 block_size 1 accumulate false", 1, NULL);
    forward_case("H 33 I_TP 17 E 4 top_k 4 block_size 64 skip_token true", 3, NULL);
    forward_case("H 9 I_TP 6 E 3 top_k 1 block_size 20 dropping true", 20, "skewed");
    conditions();
    bad_data();
    return failures != 0;
}
