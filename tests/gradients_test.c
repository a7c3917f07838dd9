/* SPDX-License-Identifier: Apache-2.0 */
/* gradients_test.c - the gradients of the float64 references against central finite differences of
 * their forward passes. */
#include "gradients.h"

/* ---- moe_backward ---- */

static void moe_case(const char *params, int64_t T, const char *routing)
{
    static const struct scalar loss = {"moe_forward", {"output"}, {"output_hidden_states_grad"}};
    moegen_rt_problem *p = moegen_rt_problem_create();
    set(p, "H 5 I_TP 4 E 3 top_k 2 block_size 4 dtype f64");
    set(p, params);
    fill(p, "moe_backward", T, routing);
    moegen_rt_problem *g = outputs(p, "moe_backward");
    differences(p, &loss, "hidden_states", g, "hidden_states_grad", 1, params);
    differences(p, &loss, "expert_affinities_masked", g, "expert_affinities_masked_grad", 1,
                params);
    differences(p, &loss, "gate_up_proj_weight", g, "gate_up_proj_weight_grad", 3, params);
    differences(p, &loss, "down_proj_weight", g, "down_proj_weight_grad", 2, params);
    if (moegen_rt_problem_tensor(p, "norm_weight")) {
        differences(p, &loss, "norm_weight", g, "norm_weight_grad", 1, params);
        differences(p, &loss, "norm_bias", g, "norm_bias_grad", 1, params);
    }
    if (moegen_rt_problem_bool(p, "bias", 0)) {
        differences(p, &loss, "gate_and_up_proj_bias", g, "gate_and_up_proj_bias_grad", 1, params);
        differences(p, &loss, "down_proj_bias", g, "down_proj_bias_grad", 1, params);
    }
    moegen_rt_problem_destroy(g);
    moegen_rt_problem_destroy(p);
}

/* Linear, normalisation, activation, linear. */
static void norm_cases(void)
{
    for (int i = 0; i < 12; i++) {
        char params[300];
        snprintf(params, sizeof params,
                 "norm layer gated false activation %s %s checkpoint %s bias %s norm_eps %s",
                 act_name(i), affinities[i % 4], i & 4 ? "recompute" : "saved",
                 i & 1 ? "true" : "false", i & 2 ? "1e-5" : "0.3");
        moe_case(params, 6, i & 8 ? "skewed" : "uniform");
    }
}

/* Options vary with the bits of a counter that runs on. */
static void moe_cases(void)
{
    unsigned turn = 0;
    for (int act = 0; moegen_rt_activation_at(act); act++)
        for (int a = 0; a < 4; a++)
            for (int again = 0; again < 2; again++, turn += 7) {
                char params[400];
                bool gated = turn % 5 != 0, bias = turn & 2 || turn % 3 == 0, clamp = turn & 4;
                snprintf(params, sizeof params,
                         "activation %s %s checkpoint %s gated %s bias %s%s%s%s", act_name(act),
                         affinities[a], again ? "recompute" : "saved", gated ? "true" : "false",
                         bias ? "true" : "false", clamp ? " clamp.up.lo -0.4 clamp.up.hi 0.7" : "",
                         clamp && gated ? " clamp.gate.hi 0.5" : "",
                         turn & 8 ? " skip_token true up_offset 1" : "");
                moe_case(params, 6, turn & 1 ? "uniform" : "skewed");
            }
    moe_case("bias true dropping true block_size 3", 7, "uniform");
    moe_case("bias true clamp.gate.lo -0.3 clamp.gate.hi 0.3 affinity.on intermediate", 5, "one");
}

/* ---- grouped_gemm ---- */

static void grouped_case(const char *params, int64_t T, const char *routing)
{
    static const struct scalar loss = {"grouped_gemm", {"Y"}, {"dY"}};
    static const char *const ops[] = {"dX", "dW", "forward"};
    moegen_rt_problem *p = moegen_rt_problem_create(), *g[2] = {0};
    set(p, "N 5 K 3 E 4 top_k 2 dtype f64");
    set(p, params);
    for (int i = 0; i < 3; i++) { /* all inputs, seen by every operation */
        moegen_rt_problem_set(p, "op", ops[i]);
        fill(p, "grouped_gemm", T, routing);
    }
    for (int i = 0; i < 2; i++) {
        moegen_rt_problem_set(p, "op", ops[i]);
        g[i] = outputs(p, "grouped_gemm");
    }
    moegen_rt_problem_set(p, "op", "forward");
    differences(p, &loss, "X", g[0], "dX", 1, params);
    differences(p, &loss, "W", g[1], "dW", 1, params);
    int64_t n;
    const double *dw = data(g[1], "dW", &n);
    const int32_t *rows = moegen_rt_problem_tensor(p, "m_sizes")->data;
    for (int64_t i = 0; i < n; i++)
        CHECK(rows[i / 15] || dw[i] == 0, "%s: dW[%lld] of an empty expert", params, (long long)i);
    moegen_rt_problem_destroy(g[0]);
    moegen_rt_problem_destroy(g[1]);
    moegen_rt_problem_destroy(p);
}

/* ---- mlp_backward ---- */

static void mlp_case(const char *params)
{
    static const struct scalar loss = {"mlp_forward", {"output"}, {"output_hidden_states_grad"}};
    static const char *const kept[] = {"gate_pre", "gate_act", "up", "hidden"};
    moegen_rt_problem *p = moegen_rt_problem_create();
    int64_t n, m;
    set(p, "H 5 I_TP 4 dtype f64");
    set(p, params);
    fill(p, "mlp_backward", 6, NULL);
    moegen_rt_problem *g = outputs(p, "mlp_backward");
    differences(p, &loss, "hidden_states", g, "hidden_states_grad", 1, params);
    differences(p, &loss, "gate_up_weights", g, "gate_up_weight_grad", 1, params);
    differences(p, &loss, "down_proj_weight", g, "down_proj_weight_grad", 1, params);
    moegen_rt_problem_set(p, "checkpoint", "save");
    moegen_rt_problem *out = outputs(p, "mlp_forward");
    for (int some = 1; some < 16; some++) { /* any of the intermediates given */
        for (int i = 0; i < 4; i++) {
            moegen_rt_tensor *t = moegen_rt_problem_tensor(out, kept[i]);
            moegen_rt_problem_drop(p, kept[i]);
            if (t && some & 1 << i)
                moegen_rt_problem_lend(p, kept[i], t->dtype, t->rank, t->shape, t->data, NULL);
        }
        moegen_rt_problem *again = outputs(p, "mlp_backward"), *one = again;
        for (size_t k = 0; moegen_rt_problem_at(g, k); k++) {
            const char *name = moegen_rt_problem_at(g, k)->name;
            const double *x = data(g, name, &n), *y = data(one, name, &m);
            for (int64_t i = 0; i < n; i++)
                CHECK(x[i] == y[i], "%s: %s[%lld] with intermediates %d", params, name,
                      (long long)i, some);
        }
        moegen_rt_problem_destroy(again);
    }
    moegen_rt_problem_destroy(p);
    moegen_rt_problem_destroy(out);
    moegen_rt_problem_destroy(g);
}

static void mlp_cases(void)
{
    for (int i = 0; i < 24; i++) {
        char params[200];
        snprintf(params, sizeof params, "activation %s gated %s%s%s%s", act_name(i),
                 i % 4 == 3 ? "false" : "true", i & 8 ? " clamp.up.lo -0.4 clamp.up.hi 0.7" : "",
                 i & 16 ? " clamp.gate.hi 0.5" : "", i & 2 ? " up_offset 1" : "");
        mlp_case(params);
    }
}

/* ---- router ---- */

static void router_case(const char *params, bool bias, bool balance, bool z)
{
    struct scalar loss = {"router", {"expert_affinities"}, {"expert_affinities_grad"}};
    if (balance)
        loss.output[1] = "load_balance_loss";
    if (z)
        loss.output[1 + balance] = "z_loss";
    moegen_rt_problem *p = moegen_rt_problem_create();
    set(p, "H 6 E 5 top_k 2 dtype f64 op backward");
    set(p, params);
    fill(p, "router", 9, NULL);
    moegen_rt_problem *g = outputs(p, "router");
    moegen_rt_problem_set(p, "op", "forward");
    differences(p, &loss, "hidden_states", g, "hidden_states_grad", 1, params);
    differences(p, &loss, "router_weight", g, "router_weight_grad", 1, params);
    if (bias)
        differences(p, &loss, "router_bias", g, "router_bias_grad", 1, params);
    moegen_rt_problem_destroy(g);
    moegen_rt_problem_destroy(p);
}

static void router_cases(void)
{
    for (int m = 0; m < 6; m++)
        for (int options = 0; options < 16; options++) {
            char params[300];
            bool bias = options & 1, balance = options & 2, z = options & 4, more = options & 8;
            snprintf(params, sizeof params, "method %s bias %s%s%s%s", methods[m],
                     bias ? "true" : "false", balance ? " aux_loss.load_balance 0.7" : "",
                     z ? " aux_loss.z 0.3" : "",
                     more ? " correction_bias true routing_scale 2.5" : "");
            router_case(params, bias, balance, z);
        }
}

/* The keys of SEMANTICS 5.1 with each other and with the methods; of a sum's least value, both what
 * it is mostly above and mostly below. */
static void router_key_cases(void)
{
    static const char *const scores[] = {"", " score softmax", " score sigmoid",
                                         " score sqrt_softplus"};
    static const char *const sums[] = {"", " renorm.eps 0.3", " renorm.min 0.35",
                                       " renorm.min 1.4"};
    static const char *const groups[] = {
        "", " groups.count 3 groups.keep 2 groups.score top2_sum groups.fill minus_infinity",
        " groups.count 2 groups.keep 1 groups.score max groups.fill zero",
        " groups.count 6 groups.keep 2 groups.score max groups.fill minus_infinity"};
    int turn = 0;
    for (int m = 0; m < 6; m++)
        for (int score = 0; score < 4; score++)
            for (int sum = 0; sum < 4; sum++, turn++) {
                char params[400];
                bool bias = turn & 1, balance = turn % 3 == 0, z = turn % 5 == 0;
                snprintf(params, sizeof params, "E 6 method %s%s%s%s%s bias %s%s%s%s", methods[m],
                         scores[score], sums[sum], groups[(turn + turn / 4) % 4],
                         turn % 7 < 3   ? " softcap 1.3 logit_scale 0.8"
                         : turn % 7 < 4 ? " logit_scale -1.7"
                                        : "",
                         bias ? "true" : "false", balance ? " aux_loss.load_balance 0.7" : "",
                         z ? " aux_loss.z 0.3" : "",
                         turn & 2 ? " correction_bias true routing_scale 2.5" : "");
                router_case(params, bias, balance, z);
            }
}

/* What the activation gives is clamped. */
static void activated_cases(void)
{
    for (int i = 0; i < 12; i++) {
        char params[300];
        snprintf(params, sizeof params,
                 "activation %s %s checkpoint %s gated %s bias %s clamp.activated 0.1%s",
                 act_name(i), affinities[i % 4], i & 4 ? "recompute" : "saved",
                 i & 1 ? "true" : "false", i & 2 ? "true" : "false",
                 i & 8 ? " clamp.up.hi 0.5" : "");
        moe_case(params, 6, i & 1 ? "skewed" : "uniform");
    }
}

int main(void)
{
    moe_cases();
    activated_cases();
    norm_cases();
    grouped_case("permute none", 6, NULL);
    grouped_case("permute x", 6, "empty_first");
    grouped_case("permute y", 6, "one");
    grouped_case("permute x top_k 4", 3, NULL);
    mlp_cases();
    router_cases();
    router_key_cases();
    printf("%d differences, %d complaints\n", compared, failures);
    return failures != 0;
}
