/* SPDX-License-Identifier: Apache-2.0 */
/* given_test.c - a layer whose caller says which experts a token has: what a router of the layer's
 * own would choose gives the same bits, forward and backward; pairs without an expert give nothing,
 * whatever their weights are; an expert that is named twice is refused.
 *
 *     given_test DIRECTORY */
#include <math.h>

#include "cases.h"

enum { TOKENS = 37, SETS = 7, THREADS = 3 };

static moegen_engine *engine;
static char path[600];
static int compared;

/* The case `save` of the layer, forward or backward, with its own router or without. */
static moegen_kernel *layer(const char *dtype, bool backward, bool given)
{
    moegen_override set[SETS] = {{"dtype", dtype},
                                 {"op", backward ? "backward" : "forward"},
                                 {"checkpoint", backward ? "saved" : "save"},
                                 {"plan.experts.product", "widen"}, /* of both */
                                 {"router", "given"},
                                 {"index_dtype", "i64"},
                                 {"affinity_dtype", "f32"}};
    return get_set(engine, path, "save", set, given ? SETS : 4);
}

/* What a call makes of tensors among which are the kernel's. */
static moegen_rt_problem *run(const moegen_kernel *kernel, const moegen_rt_problem *in, int threads,
                              moegen_error **err)
{
    moegen_rt_problem *out = moegen_rt_problem_create();
    moegen_call *call = NULL;
    moegen_status status = moegen_call_create(kernel, &call, err);
    if (!status && !(status = bind(call, in, out, err)) &&
        !(status = moegen_call_set_threads(call, threads, err))) {
        reset(call, in, out);
        status = moegen_call_run(call, err);
    }
    if (status && status != MOEGEN_BAD_DATA)
        complain("cannot run", *err ? moegen_error_text(*err) : moegen_status_name(status));
    moegen_call_release(call);
    return out;
}

static void lend_all(moegen_rt_problem *to, const moegen_rt_problem *from)
{
    for (size_t i = 0; moegen_rt_problem_at(from, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(from, i);
        moegen_rt_problem_lend(to, t->name, t->dtype, t->rank, t->shape, t->data, NULL);
    }
}

/* Tensors that both have are the same. */
static void compare(const moegen_rt_problem *a, const moegen_rt_problem *b, const char *except)
{
    for (size_t i = 0; moegen_rt_problem_at(a, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(a, i),
                               *other = moegen_rt_problem_tensor(b, t->name);
        if (!other || strcmp(t->name, except) == 0)
            continue;
        if (t->bytes != other->bytes || memcmp(t->data, other->data, t->bytes) != 0)
            complain(t->name, "is another one with a router");
        compared++;
    }
}

/* The choice and the affinities of a router as pairs. */
static void give_pairs(moegen_rt_problem *in, const moegen_rt_problem *routed)
{
    const moegen_rt_tensor *chosen = moegen_rt_problem_tensor(routed, "expert_index"),
                           *all = moegen_rt_problem_tensor(routed, "expert_affinities_masked");
    moegen_rt_tensor *index, *weights;
    int64_t pairs = moegen_rt_tensor_count(chosen), E = moegen_rt_tensor_count(all) / TOKENS;
    if (moegen_rt_problem_add(in, "top_k_index", MOEGEN_RT_I64, 2, chosen->shape, &index, NULL) ||
        moegen_rt_problem_add(in, "top_k_weights", MOEGEN_RT_F32, 2, chosen->shape, &weights, NULL))
        abort();
    for (int64_t i = 0; i < pairs; i++) {
        int32_t e = ((const int32_t *)chosen->data)[i];
        ((int64_t *)index->data)[i] = e;
        ((float *)weights->data)[i] = ((const float *)all->data)[i / chosen->shape[1] * E + e];
    }
}

static bool is_zero(const moegen_rt_problem *out, const char *name, int64_t token)
{
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(out, name);
    size_t row = t->bytes / (size_t)t->shape[0], set = 0;
    for (size_t i = 0; i < row; i++)
        set += ((const unsigned char *)t->data)[(size_t)token * row + i] != 0;
    return set == 0;
}

/* Some tokens have no expert, and NaN for weights. */
static void try_none(const moegen_kernel *forward, const moegen_kernel *backward,
                     moegen_rt_problem *in, int threads)
{
    static const int64_t tokens[] = {0, 5, 6, TOKENS - 1};
    const int64_t none[] = {-1, moegen_rt_problem_int(in, "E", 0), INT64_MIN, (int64_t)1 << 40};
    moegen_error *err = NULL;
    int64_t *index = moegen_rt_problem_tensor(in, "top_k_index")->data;
    float *weights = moegen_rt_problem_tensor(in, "top_k_weights")->data;
    const int64_t k = moegen_rt_problem_tensor(in, "top_k_index")->shape[1];
    for (int i = 0; i < 4; i++)
        for (int64_t j = 0; j < k; j++) {
            index[tokens[i] * k + j] = none[(i + j) % 4];
            weights[tokens[i] * k + j] = NAN;
        }
    moegen_rt_problem *out = run(forward, in, threads, &err), *both = moegen_rt_problem_create();
    lend_all(both, in);
    lend_all(both, out);
    moegen_rt_problem *grads = run(backward, both, threads, &err);
    for (int i = 0; i < 4; i++)
        if (!is_zero(out, "output", tokens[i]) ||
            !is_zero(grads, "hidden_states_grad", tokens[i]) ||
            !is_zero(grads, "top_k_weights_grad", tokens[i]))
            complain("a token without an expert", "has an output or a gradient");
    index[TOKENS / 2 * k] = index[TOKENS / 2 * k + 1] = 1;
    moegen_rt_problem *refused = run(forward, in, threads, &err);
    if (!err || !strstr(moegen_error_text(err), "names an expert twice for one token"))
        complain("an expert twice", err ? moegen_error_text(err) : "was taken");
    moegen_error_release(err);
    moegen_rt_problem_destroy(refused);
    moegen_rt_problem_destroy(grads);
    moegen_rt_problem_destroy(both);
    moegen_rt_problem_destroy(out);
}

static void try_dtype(const char *dtype, const char *routing, int threads)
{
    moegen_kernel *own = layer(dtype, false, false), *given = layer(dtype, false, true);
    moegen_kernel *own_back = layer(dtype, true, false), *given_back = layer(dtype, true, true);
    moegen_error *err = NULL;
    snprintf(where, sizeof where, "%s, %s, %d threads", dtype, routing, threads);
    if (!own || !given || !own_back || !given_back)
        return;
    moegen_rt_problem *in = inputs(own_back, TOKENS, routing), *more = inputs(own, TOKENS, routing);
    for (size_t i = 0; moegen_rt_problem_at(more, i); i++) /* what only forward has */
        if (!moegen_rt_problem_tensor(in, moegen_rt_problem_at(more, i)->name)) {
            const moegen_rt_tensor *t = moegen_rt_problem_at(more, i);
            moegen_rt_problem_lend(in, t->name, t->dtype, t->rank, t->shape, t->data, NULL);
        }
    moegen_rt_problem *routed = run(own, in, threads, &err), *both = moegen_rt_problem_create();
    give_pairs(in, routed);
    moegen_rt_problem *out = run(given, in, threads, &err);
    compare(out, routed, "");
    lend_all(both, in);
    for (size_t i = 0; moegen_rt_problem_at(routed, i); i++)
        moegen_rt_problem_drop(both, moegen_rt_problem_at(routed, i)->name);
    lend_all(both, routed);
    moegen_rt_problem *a = run(own_back, both, threads, &err);
    moegen_rt_problem *b = run(given_back, both, threads, &err);
    compare(b, a, "hidden_states_grad"); /* which comes through the router, too */
    try_none(given, given_back, in, threads);
    moegen_rt_problem *const all[] = {a, b, both, out, routed, in, more};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        moegen_rt_problem_destroy(all[i]);
    moegen_error_release(err);
    moegen_kernel *const kernels[] = {own, given, own_back, given_back};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        moegen_kernel_release(kernels[i]);
}

int main(int argc, char **argv)
{
    moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = "", .threads = THREADS};
    if (argc < 2 || moegen_engine_create(&o, &engine, NULL))
        return 2;
    snprintf(path, sizeof path, "%s/moe_layer.yaml", argv[1]);
    for (size_t i = 0; io_dtype(i); i++) {
        try_dtype(io_dtype(i), "uniform", 1);
        try_dtype(io_dtype(i), "skewed", THREADS);
    }
    moegen_engine_release(engine);
    printf("%d tensors compared\n", compared);
    return failures != 0 || compared == 0;
}
