/* SPDX-License-Identifier: Apache-2.0 */
/* losses_test.c - the load balancing loss by its definition, and who wins a tie: a router whose
 * logits are all equal sends every token to the experts 0 .. k-1, each expert's share is 1/E, and
 * the loss is its coefficient, or top_k times that when it is per token. */
#include <math.h>

#include "api.h"
#include "moegen_runtime.h"

enum { TOKENS = 7, EXPERTS = 6, CHOICES = 3, HIDDEN = 8 };

static double kernel_loss(moegen_engine *engine, const char *per, int32_t *index)
{
    static float x[TOKENS * HIDDEN], w[HIDDEN * EXPERTS], logits[TOKENS * EXPERTS];
    static float affinities[TOKENS * EXPERTS], weights[TOKENS * CHOICES], loss[1];
    char text[300];
    snprintf(
        text, sizeof text,
        "{kernel: router, op: forward, method: softmax_topk, dtype: f32, H: 8, E: 6, top_k: 3, "
        "aux_loss: {load_balance: 0.25%s}}",
        per);
    moegen_kernel *kernel = get(engine, text);
    moegen_call *call = NULL;
    const int64_t xs[] = {TOKENS, HIDDEN}, ws[] = {HIDDEN, EXPERTS}, all[] = {TOKENS, EXPERTS};
    const int64_t few[] = {TOKENS, CHOICES}, one[] = {1};
    if (!kernel)
        return 0;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (float)i;
    CHECK(moegen_call_create(kernel, &call, NULL) == MOEGEN_OK);
    CHECK(!moegen_call_bind_const(call, "hidden_states", x, MOEGEN_F32, 2, xs, NULL));
    CHECK(!moegen_call_bind_const(call, "router_weight", w, MOEGEN_F32, 2, ws, NULL));
    CHECK(!moegen_call_bind(call, "logits", logits, MOEGEN_F32, 2, all, NULL));
    CHECK(!moegen_call_bind(call, "expert_index", index, MOEGEN_I32, 2, few, NULL));
    CHECK(!moegen_call_bind(call, "expert_affinities", affinities, MOEGEN_F32, 2, all, NULL));
    CHECK(!moegen_call_bind(call, "topk_weights", weights, MOEGEN_F32, 2, few, NULL));
    CHECK(!moegen_call_bind(call, "load_balance_loss", loss, MOEGEN_F32, 1, one, NULL));
    CHECK(moegen_call_run(call, NULL) == MOEGEN_OK);
    moegen_call_release(call);
    moegen_kernel_release(kernel);
    return (double)*loss;
}

static double reference_loss(const char *per)
{
    moegen_rt_problem *in = moegen_rt_problem_create(), *out = moegen_rt_problem_create();
    moegen_rt_error why = {{0}};
    moegen_rt_want want = {0};
    const int64_t xs[] = {TOKENS, HIDDEN}, ws[] = {HIDDEN, EXPERTS};
    moegen_rt_tensor *t = NULL;
    static const char *const set[][2] = {{"H", "8"},
                                         {"E", "6"},
                                         {"top_k", "3"},
                                         {"method", "softmax_topk"},
                                         {"op", "forward"},
                                         {"dtype", "f32"},
                                         {"aux_loss.load_balance", "0.25"}};
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        moegen_rt_problem_set(in, set[i][0], set[i][1]);
    moegen_rt_problem_set(in, "aux_loss.per", per);
    CHECK(!moegen_rt_problem_add(in, "hidden_states", MOEGEN_RT_F32, 2, xs, &t, &why));
    memset(t->data, 0, t->bytes);
    CHECK(!moegen_rt_problem_add(in, "router_weight", MOEGEN_RT_F32, 2, ws, &t, &why));
    memset(t->data, 0, t->bytes);
    CHECK(!moegen_rt_reference_find("router")->compute(in, &want, out, &why));
    t = moegen_rt_problem_tensor(out, "load_balance_loss");
    double loss = t ? *(double *)t->data : 0;
    moegen_rt_problem_destroy(in);
    moegen_rt_problem_destroy(out);
    return loss;
}

int main(void)
{
    moegen_engine *engine = engine_of("", NULL);
    static const struct {
        const char *spec, *per;
        double loss;
    } row[] = {
        {"", "tokens_and_choices", 0.25},
        {", per: tokens_and_choices", "tokens_and_choices", 0.25},
        {", per: tokens", "tokens", 0.25 * CHOICES},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        int32_t index[TOKENS * CHOICES];
        memset(index, -1, sizeof index);
        CHECK(fabs(kernel_loss(engine, row[i].spec, index) - row[i].loss) < 1e-6);
        CHECK(fabs(reference_loss(row[i].per) - row[i].loss) < 1e-12);
        for (int t = 0; t < TOKENS * CHOICES; t++)
            CHECK(index[t] == t % CHOICES);
    }
    moegen_engine_release(engine);
    return failures != 0;
}
