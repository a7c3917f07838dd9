/* SPDX-License-Identifier: Apache-2.0 */
/* layouts_test.c - kernels give the same bits whatever the layout of the matrices: outputs as they
 * are, gradients of weights where the layout puts them. Two sums are of products in another
 * order, which other tests hold to limits: gradients of hidden states where gate and up come in
 * turn or are tensors of their own, and products of few rows, which plain weights compensate in
 * f32, and others sum with K in lanes, or in two lanes each those that fill half a vector: here
 * experts have more, and these fill vectors.
 *
 *     layouts_test DIRECTORY */
#include "cases.h"

enum { TOKENS = 400, SETS = 8 };

static int compared;

static moegen_rt_problem *run(const moegen_kernel *kernel, const moegen_rt_problem *in)
{
    moegen_rt_problem *out = moegen_rt_problem_create();
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    moegen_status status = moegen_call_create(kernel, &call, &err);
    if (!status && !(status = bind(call, in, out, &err))) {
        reset(call, in, out);
        status = moegen_call_run(call, &err);
    }
    if (status)
        complain("cannot run", err ? moegen_error_text(err) : moegen_status_name(status));
    moegen_error_release(err);
    moegen_call_release(call);
    return out;
}

/* Where a layout has element n of the plain gradient of a tensor: of gate and up [E][K][2][I], of
 * the second matrices [E][K][C], of the bias [E][2][I]. Of one MLP, whose plain ones are rows: of
 * gate and up [2][I][K]. */
static int64_t place(const char *name, const moegen_rt_tensor *t, int64_t n, bool turned,
                     bool turns)
{
    bool both = strstr(name, "gate") != NULL;
    if (t->rank == 2 && !strstr(name, "bias")) {
        int64_t columns = t->shape[1], row = n / columns, half = t->shape[0] / 2;
        return both && turns ? (row % half * 2 + row / half) * columns + n % columns : n;
    }
    int64_t I = t->shape[t->rank - 1], parts = both ? t->shape[t->rank - 2] : 1, C = parts * I;
    int64_t c = n % C, k = n / C;
    if (both && turns)
        c = c % I * parts + c / I;
    if (!turned || strstr(name, "bias"))
        return k * C + c;
    int64_t K = t->shape[1], e = k / K;
    return (e * C + c) * K + k % K;
}

/* Gradients [E][K][2][I] of gate and up, or [2 * I][K] of one MLP, against those of tensors of
 * their own. */
static void compare_apart(const moegen_rt_tensor *x, const moegen_rt_problem *b, bool turned)
{
    const char *const names[] = {"gate_proj_weight_grad", "up_proj_weight_grad"};
    const bool rows = x->rank == 2;
    const int64_t K = x->shape[1], I = rows ? 0 : x->shape[3], count = moegen_rt_tensor_count(x);
    const size_t width = moegen_rt_dtype_of(x->dtype)->bytes;
    for (int64_t part = 0; part < 2; part++) {
        const moegen_rt_tensor *y = moegen_rt_problem_tensor(b, names[part]);
        int64_t others = 0;
        if (!y || 2 * moegen_rt_tensor_count(y) != count) {
            complain(names[part], "is missing, or another size");
            continue;
        }
        for (int64_t m = 0; m < count / 2; m++) {
            int64_t n = part * count / 2 + m, at = m;
            if (!rows) {
                int64_t i = m % I, k = m / I % K, e = m / I / K;
                n = ((e * K + k) * 2 + part) * I + i;
                at = turned ? (e * I + i) * K + k : m;
            }
            others += memcmp((char *)x->data + (size_t)n * width,
                             (char *)y->data + (size_t)at * width, width) != 0;
        }
        if (others)
            complain(names[part], "has other bits");
        compared++;
    }
}

static void compare(const moegen_rt_problem *a, const moegen_rt_problem *b, bool turned, bool turns,
                    bool apart)
{
    for (size_t i = 0; moegen_rt_problem_at(a, i); i++) {
        const moegen_rt_tensor *x = moegen_rt_problem_at(a, i);
        const moegen_rt_tensor *y = moegen_rt_problem_tensor(b, x->name);
        bool moved = strstr(x->name, "weight_grad") || strstr(x->name, "up_proj_bias_grad");
        int64_t count = moegen_rt_tensor_count(x), others = 0;
        size_t width = moegen_rt_dtype_of(x->dtype)->bytes;
        if ((turns || apart) && strcmp(x->name, "hidden_states_grad") == 0)
            continue;
        if (apart && strstr(x->name, "gate_up_") && strstr(x->name, "weight_grad")) {
            compare_apart(x, b, turned);
            continue;
        }
        if (!y || moegen_rt_tensor_count(y) != count) {
            complain(x->name, "is missing, or another size");
            continue;
        }
        for (int64_t n = 0; n < count; n++) {
            int64_t m = moved ? place(x->name, x, n, turned, turns) : n;
            others += memcmp((char *)x->data + (size_t)n * width,
                             (char *)y->data + (size_t)m * width, width) != 0;
        }
        if (others)
            complain(x->name, "has other bits");
        compared++;
    }
}

/* The outputs of a case with these overrides; NULL after a complaint. */
static moegen_rt_problem *outputs(moegen_engine *engine, const char *path, const char *name,
                                  const moegen_override *set, size_t count)
{
    moegen_kernel *kernel = get_set(engine, path, name, set, count);
    if (!kernel)
        return NULL;
    moegen_rt_problem *in = inputs(kernel, TOKENS, "balanced"), *out = run(kernel, in);
    moegen_rt_problem_destroy(in);
    moegen_kernel_release(kernel);
    return out;
}

static void run_case(moegen_engine *engine, const char *path, const char *name, const char *dtype,
                     const char *target)
{
    moegen_rt_problem *plain = NULL;
    for (int way = 0; way < 6; way++) { /* plain; each layout and order, and tensors of their own */
        bool turned = way & 1, turns = way & 2, apart = way & 4;
        moegen_override set[SETS] = {{"dtype", dtype}, {"target", target}};
        size_t n = 2;
        snprintf(where, sizeof where, "%s: %s%s%s%s (%s, target %s)", strrchr(path, '/') + 1, name,
                 turned ? ", transposed" : "", turns ? ", interleaved" : "",
                 apart ? ", separate" : "", dtype, target);
        if (turned)
            set[n++] = (moegen_override){"weights.layout", "transposed"};
        if (turns)
            set[n++] = (moegen_override){"weights.gate_up_order", "interleaved"};
        if (apart)
            set[n++] = (moegen_override){"weights.gate_up", "separate"};
        moegen_rt_problem *out = outputs(engine, path, name, set, n);
        if (way == 0) {
            plain = out;
            continue;
        }
        if (plain && out)
            compare(plain, out, turned, turns, apart);
        moegen_rt_problem_destroy(out);
    }
    moegen_rt_problem_destroy(plain);
}

int main(int argc, char **argv)
{
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = shared_cache()};
    static const char *const cases[][2] = {
        {"moe_forward", "plain"},      {"moe_forward", "bias"},     {"moe_forward", "save"},
        {"moe_forward", "odd"},        {"moe_backward", "plain"},   {"moe_backward", "bias"},
        {"moe_backward", "recompute"}, {"moe_backward", "odd"},     {"moe_backward", "accumulate"},
        {"moe_layer", "all_experts"},  {"moe_layer", "back_again"}, {"mlp_forward", "plain"},
        {"mlp_forward", "save"},       {"mlp_forward", "odd"},      {"mlp_backward", "plain"},
        {"mlp_backward", "recompute"}, {"mlp_backward", "odd"},     {"mlp_backward", "accumulate"}};
    moegen_engine *engine = NULL;
    if (argc != 2 || moegen_engine_create(&options, &engine, NULL))
        return 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s.yaml", argv[1], cases[i][0]);
        for (size_t d = 0; io_dtype(d); d++)
            run_case(engine, path, cases[i][1], io_dtype(d), "auto");
        run_case(engine, path, cases[i][1], "f32", "avx2");
        run_case(engine, path, cases[i][1], "bf16", "scalar");
    }
    moegen_engine_release(engine);
    printf("%d outputs compared, %d complaints\n", compared, failures);
    return failures != 0 || compared == 0;
}
