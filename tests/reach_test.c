/* SPDX-License-Identifier: Apache-2.0 */
/* reach_test.c - in every case of tests/kernels whose weights are numbers: an element of a token,
 * of a gradient or of a bias that is NaN or infinite makes those rows of tokens no numbers that it
 * does in float64, and no others. (special_test.c has codes and scales.) Of routers: one that is
 * NaN, of tokens or of what an expert is chosen by.
 *
 *     reach_test DIRECTORY [FAMILY[:CASE]] */
#include "reach.h"

enum { TOKENS = 5, LARGE = 500000 };

/* Outputs with a row for each token. Gradients of weights are sums over tokens, and over what fills
 * up a vector of them: there 0 times infinity may be among them. */
static bool is_of_tokens(const char *name)
{
    return strcmp(name, "output") == 0 || strcmp(name, "hidden_states_grad") == 0 ||
           strcmp(name, "expert_affinities_masked_grad") == 0 || strcmp(name, "topk_weights") == 0;
}

static void judge(const moegen_rt_problem *got, const moegen_rt_problem *want,
                  const moegen_rt_problem *was, const char *what)
{
    for (size_t o = 0; moegen_rt_problem_at(want, o); o++) {
        const moegen_rt_tensor *w = moegen_rt_problem_at(want, o);
        const moegen_rt_tensor *g = moegen_rt_problem_tensor(got, w->name);
        const moegen_rt_tensor *b = moegen_rt_problem_tensor(was, w->name);
        if (g && is_of_tokens(w->name) && strays(g, w, b))
            complain(what, w->name);
    }
}

/* Elements of a tensor, the last one first, become NaN and infinite, one at a time. */
static void poke(const moegen_kernel *kernel, moegen_call *call, moegen_rt_problem *in,
                 moegen_rt_problem *out, const moegen_rt_problem *was, const moegen_rt_tensor *t)
{
    static const double pokes[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    const size_t bytes = moegen_rt_dtype_of(t->dtype)->bytes, count = t->bytes / bytes;
    char what[200], before[8];
    const bool is_router = strcmp(kernel->unit->facts.family, "router") == 0;
    for (size_t n = 0; n < (is_router ? 1 : 3) && count; n++) {
        const size_t at = (count - 1 + n * 7919) % count;
        char *to = (char *)t->data + at * bytes;
        snprintf(what, sizeof what, "%s[%zu] = %g", t->name, at, pokes[n]);
        memcpy(before, to, bytes);
        moegen_rt_encode(t->dtype, &pokes[n], 1, to);
        try_poked(kernel, call, in, out, was, what);
        memcpy(to, before, bytes);
    }
}

/* The way back takes logits as they are, whatever the weights. */
static bool is_poked(const moegen_kernel *kernel, const char *name)
{
    const char *op = moegen_kernel_param(kernel, "op");
    if (strcmp(name, "router_weight") == 0)
        return op && strcmp(op, "forward") == 0;
    return strcmp(name, "hidden_states") == 0 || strcmp(name, "output_hidden_states_grad") == 0 ||
           strcmp(name, "expert_affinities_masked") == 0 || strstr(name, "_bias") != NULL;
}

static void try_case(const char *path, const char *name, void *engine)
{
    static int64_t turn;
    const char *dtype = io_dtype_in_turn(turn++);
    snprintf(where, sizeof where, "%s (%s)", name, dtype);
    moegen_kernel *kernel = get(engine, path, name, dtype, "auto");
    moegen_call *call = NULL;
    if (!kernel || moegen_kernel_param(kernel, "weights.scale") ||
        kernel->unit->facts.flops_per_row * TOKENS > LARGE) {
        moegen_kernel_release(kernel);
        return;
    }
    moegen_rt_problem *in = inputs(kernel, TOKENS, "uniform"), *out = moegen_rt_problem_create();
    moegen_rt_problem *was = reference(kernel, in);
    if (moegen_call_create(kernel, &call, NULL) || bind(call, in, out, NULL))
        complain("no call", "");
    for (size_t i = 0; call && moegen_rt_problem_at(in, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(in, i);
        if (t->name && is_poked(kernel, t->name))
            poke(kernel, call, in, out, was, t);
    }
    moegen_call_release(call);
    moegen_rt_problem_destroy(in);
    moegen_rt_problem_destroy(out);
    moegen_rt_problem_destroy(was);
    moegen_kernel_release(kernel);
}

int main(int argc, char **argv)
{
    static const char *const families[] = {"moe_forward", "mlp_forward", "moe_backward",
                                           "mlp_backward", "router"};
    moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = shared_cache()};
    moegen_engine *engine = NULL;
    if (moegen_engine_create(&o, &engine, NULL))
        return 1;
    for (int i = 0; i < (argc > 2 ? 1 : 5); i++)
        each_case(argc > 1 ? argv[1] : "tests/kernels", argc > 2 ? argv[2] : families[i], try_case,
                  engine);
    printf("%d elements poked, %d reached, %d complaints\n", tried, reached, failures);
    moegen_engine_release(engine);
    return failures != 0 || tried < 10 || reached == 0;
}
