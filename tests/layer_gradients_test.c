/* SPDX-License-Identifier: Apache-2.0 */
/* layer_gradients_test.c - the gradients of the whole layer's float64 reference against finite
 * differences of its forward pass; and that both dispatches are the same function. */
#include "gradients.h"

/* Every input of the layer; losses as bits: 1 load balance, 2 z. */
static void layer_case(const char *params, int64_t T, const char *routing, int losses)
{
    struct scalar loss = {"moe_layer", {"output"}, {"output_hidden_states_grad"}};
    static const char *const inputs[] = {
        "hidden_states",           "router_weight",         "router_bias",
        "gate_up_proj_weight",     "gate_and_up_proj_bias", "down_proj_weight",
        "down_proj_bias",          "top_k_weights",         "shared_gate_up_proj_weight",
        "shared_down_proj_weight", "shared_gate_weight"};
    if (losses & 1)
        loss.output[1] = "load_balance_loss";
    if (losses & 2)
        loss.output[1 + (losses & 1)] = "z_loss";
    moegen_rt_problem *p = moegen_rt_problem_create();
    set(p, "H 5 I_TP 4 E 4 top_k 2 block_size 3 dtype f64 op backward");
    set(p, params);
    set(p, losses & 1 ? "aux_loss.load_balance 0.7" : "");
    set(p, losses & 2 ? "aux_loss.z 0.3" : "");
    fill(p, "moe_layer", T, routing);
    moegen_rt_problem *g = outputs(p, "moe_layer");
    moegen_rt_problem_set(p, "op", "forward");
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        char of[64];
        snprintf(of, sizeof of, "%s_grad", inputs[i]);
        if (moegen_rt_problem_tensor(p, inputs[i]))
            differences(p, &loss, inputs[i], g, of, i == 3 ? 3 : 1, params);
    }
    moegen_rt_problem_destroy(g);
    moegen_rt_problem_destroy(p);
}

/* The same in both dispatches: outputs and gradients. */
static void dispatch_case(const char *params)
{
    static const char *const ways[] = {"dense", "sparse"};
    static const char *const both[] = {"output",
                                       "hidden_states_grad",
                                       "router_weight_grad",
                                       "router_bias_grad",
                                       "gate_up_proj_weight_grad",
                                       "down_proj_weight_grad",
                                       "gate_and_up_proj_bias_grad",
                                       "down_proj_bias_grad"};
    moegen_rt_problem *all[2] = {0};
    for (int i = 0; i < 2; i++) {
        moegen_rt_problem *p = moegen_rt_problem_create();
        set(p, "H 5 I_TP 4 E 4 top_k 2 block_size 3 dtype f64 op backward bias true");
        set(p, params);
        moegen_rt_problem_set(p, "dispatch", ways[i]);
        fill(p, "moe_layer", 7, NULL);
        all[i] = outputs(p, "moe_layer");
        moegen_rt_problem_set(p, "op", "forward");
        moegen_rt_error err = {""};
        CHECK(!moegen_rt_reference_find("moe_layer")->compute(p, NULL, all[i], &err), "%s",
              err.text);
        moegen_rt_problem_destroy(p);
    }
    for (size_t k = 0; k < sizeof both / sizeof *both; k++) {
        int64_t n, m;
        if (!moegen_rt_problem_tensor(all[0], both[k]))
            continue;
        const double *x = data(all[0], both[k], &n), *y = data(all[1], both[k], &m);
        CHECK(n == m, "%s", both[k]);
        for (int64_t i = 0; i < n && n == m; i++)
            CHECK(fabs(x[i] - y[i]) <= 1e-12 * (1 + fabs(y[i])), "%s: %s[%lld]", params, both[k],
                  (long long)i);
    }
    moegen_rt_problem_destroy(all[0]);
    moegen_rt_problem_destroy(all[1]);
}

static void layer_cases(void)
{
    for (int turn = 0; turn < 24; turn++) {
        char params[400];
        snprintf(params, sizeof params,
                 "method %s activation %s %s checkpoint %s gated %s bias %s router_bias %s "
                 "dispatch %s%s%s",
                 methods[turn % 6], act_name(turn * 5), affinities[turn / 2 % 4],
                 turn % 5 < 2 ? "recompute" : "saved", turn % 7 ? "true" : "false",
                 turn & 2 ? "true" : "false", turn & 1 ? "true" : "false",
                 turn % 8 < 2 ? "dense" : "sparse",
                 turn & 4 ? " correction_bias true routing_scale 2.5" : "",
                 turn & 8 ? " clamp.up.lo -0.4 clamp.up.hi 0.7 up_offset 1" : "");
        layer_case(params, 7, turn & 1 ? "skewed" : "uniform", turn % 4);
    }
    layer_case("method topk_softmax block_size 16", 1, "uniform", 0);
    layer_case("method softmax_topk_renorm top_k 4 block_size 1", 5, "one", 3);
    layer_case("method sigmoid_topk renorm.eps 0.1 groups.count 2 groups.keep 1 routing_scale 2.5 "
               "correction_bias true router_bias true",
               9, "uniform", 1);
    layer_case("method softmax_topk score sqrt_softplus softcap 2 renorm.min 1.5", 7, "skewed", 2);
    layer_case("method topk_softmax norm layer gated false bias true", 7, "skewed", 1);
    layer_case("router given", 9, "uniform", 0);
    layer_case("router given top_k 4 affinity.on intermediate bias true checkpoint recompute", 5,
               "skewed", 0);
    layer_case("router given top_k 1 affinity.scale pre index_dtype i64 gated false", 7, "skewed",
               0);
    layer_case("method topk_softmax shared.I 3", 7, "uniform", 1);
    layer_case("method sigmoid_topk shared.I 3 shared.gate sigmoid dispatch dense gated false", 6,
               "skewed", 0);
    layer_case("router given shared.I 5 shared.gate sigmoid checkpoint recompute up_offset 1 "
               "clamp.up.lo -0.4 clamp.up.hi 0.7",
               7, "uniform", 0);
    layer_case("method softmax_topk shared.I 3 clamp.activated 0.2 checkpoint recompute", 7,
               "uniform", 0);
    dispatch_case("method topk_softmax checkpoint recompute");
    dispatch_case("method sigmoid_topk affinity.on intermediate router_bias true");
}

int main(void)
{
    layer_cases();
    printf("%d differences, %d complaints\n", compared, failures);
    return failures != 0;
}
