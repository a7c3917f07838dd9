/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensors_test.c - what a binding asks before it allocates: every tensor of every case of
 * tests/kernels has a description; every layer says which tensors are its state, and the shapes
 * that it gives are those that the references' inputs have.
 *     tensors_test DIRECTORY [FAMILY[:CASE]]
 */
#include "cases.h"

static moegen_engine *engine;
static int described, layers, compared;

/* One line of at least two letters, which is no other way to write the name. */
static bool tells(const moegen_arg *a)
{
    return a->doc && strlen(a->doc) > 1 && !strchr(a->doc, '\n') && strcmp(a->doc, a->name) != 0;
}

static void check_docs(const moegen_kernel *kernel)
{
    moegen_kernel_facts f = {.struct_size = sizeof f};
    moegen_kernel_info(kernel, &f);
    for (int i = 0; i < f.arg_count; i++, described++)
        if (!tells(&f.args[i]))
            complain("a tensor without a description", f.args[i].name);
}

static bool is_state(const moegen_layer *layer, const char *name)
{
    const moegen_arg *a;
    for (size_t i = 0; (a = moegen_layer_state_arg(layer, i)); i++)
        if (strcmp(a->name, name) == 0)
            return true;
    return false;
}

static const moegen_arg *arg_of(const moegen_kernel *kernel, const char *name)
{
    const moegen_kernel_facts *f = &kernel->unit->facts;
    for (int i = 0; i < f->arg_count; i++)
        if (strcmp(f->args[i].name, name) == 0)
            return &f->args[i];
    return NULL;
}

/* What backward reads is what forward was given, its state, or a gradient that comes in; and the
 * state is nothing that forward reads. */
static void check_state(const moegen_layer *layer)
{
    const moegen_kernel *forward = moegen_layer_kernel(layer, 0);
    const moegen_kernel_facts *f = &moegen_layer_kernel(layer, 1)->unit->facts;
    for (int i = 0; i < f->arg_count; i++) {
        const char *name = f->args[i].name;
        const moegen_arg *given = arg_of(forward, name);
        size_t len = strlen(name);
        bool gradient = len > 5 && strcmp(name + len - 5, "_grad") == 0;
        bool state = is_state(layer, name), input = given && given->role == MOEGEN_IN;
        if (f->args[i].role == MOEGEN_IN && gradient + state + input != 1)
            complain("neither input, state nor gradient, or more than one of them", name);
        if (f->args[i].role != MOEGEN_IN && (state || !gradient))
            complain("an output of backward that is no gradient", name);
    }
}

/* Every extent, but for trailing extents of 1. */
static bool same_shape(const moegen_rt_tensor *t, int rank, const int64_t *shape)
{
    for (int d = 0; d < t->rank || d < rank; d++)
        if ((d < t->rank ? t->shape[d] : 1) != (d < rank ? shape[d] : 1))
            return false;
    return true;
}

static void check_shapes(const moegen_layer *layer, int pass, int64_t T)
{
    const moegen_kernel *kernel = moegen_layer_kernel(layer, pass);
    const moegen_kernel_facts *f = &kernel->unit->facts;
    moegen_rt_problem *in = inputs(kernel, T, "skewed");
    const moegen_rt_tensor *tokens = moegen_rt_problem_tensor(in, "hidden_states");
    int64_t sizes[MAX_DIMS], shape[MAX_RANK];
    int rank = 0;
    for (int k = 0; k < MAX_DIMS; k++)
        sizes[k] = -1;
    for (int k = 0; k < f->dim_count; k++)
        if (strcmp(f->dims[k], "T") == 0 && tokens)
            sizes[k] = tokens->shape[0];
    for (int i = 0; i < f->arg_count; i++) {
        const char *name = f->args[i].name;
        moegen_error *err = NULL;
        if (moegen_layer_shape(layer, pass, name, sizes, &rank, shape, &err))
            complain("no shape", moegen_error_text(err));
        moegen_error_release(err);
        const moegen_rt_tensor *t = moegen_rt_problem_tensor(in, name);
        char of[100]; /* a gradient has the shape of what it is of */
        snprintf(of, sizeof of, "%.*s", (int)strlen(name) - 5, name);
        t = t ? t : moegen_rt_problem_tensor(in, of);
        compared += t != NULL;
        if (t && !same_shape(t, rank, shape))
            complain("another shape than the reference's input", name);
    }
    rank = -1;
    moegen_error *err = NULL;
    if (moegen_layer_shape(layer, pass, "hidden_states", NULL, &rank, shape, &err) !=
            MOEGEN_BAD_ARGUMENT ||
        rank != -1 || !strstr(moegen_error_text(err), "size T is needed"))
        complain("a shape without its size", "");
    moegen_error_release(err);
    const char *router = moegen_kernel_param(moegen_layer_kernel(layer, pass), "router");
    bool given = router && strcmp(router, "given") == 0;
    const char *fixed = given ? "down_proj_weight" : "router_weight";
    if (moegen_layer_shape(layer, pass, fixed, NULL, &rank, shape, NULL) || rank < 2)
        complain("no shape without sizes", fixed);
    if (moegen_layer_shape(layer, pass, "no_such", sizes, &rank, shape, NULL) !=
        MOEGEN_BAD_ARGUMENT)
        complain("the shape of a tensor that is none", "");
    moegen_rt_problem_destroy(in);
}

static void try(const char *path, const char *name, void *ctx)
{
    (void)ctx;
    static char text[65536];
    snprintf(where, sizeof where, "%s:%s", path, name);
    moegen_kernel *kernel = get(engine, path, name, is_typed(path) ? io_dtype(0) : NULL, "scalar");
    if (!kernel)
        return;
    check_docs(kernel);
    bool both = moegen_kernel_param(kernel, "op") && moegen_kernel_param(kernel, "router_bias");
    both = both || strcmp(kernel->unit->facts.family, "router") == 0;
    const moegen_override set[] = {{"target", "scalar"}, {"checkpoint", "saved"}};
    moegen_spec spec = {.struct_size = sizeof spec,
                        .text = text,
                        .len = text_of_case(path, name, text, sizeof text),
                        .label = path,
                        .kernel = name,
                        .overrides = set,
                        .override_count = moegen_kernel_param(kernel, "checkpoint") ? 2 : 1};
    moegen_layer *layer = NULL;
    moegen_error *err = NULL;
    moegen_status status = both ? moegen_layer_create(engine, &spec, &layer, &err) : MOEGEN_OK;
    if (status && status != MOEGEN_BAD_SPEC) /* some cases say what one pass alone can */
        complain("no layer", moegen_error_text(err));
    for (int pass = 0; layer && pass < 2; pass++) {
        check_docs(moegen_layer_kernel(layer, pass));
        check_shapes(layer, pass, 13);
        check_shapes(layer, pass, 1);
    }
    if (layer)
        check_state(layer);
    layers += layer != NULL;
    moegen_error_release(err);
    moegen_layer_release(layer);
    moegen_kernel_release(kernel);
}

/* The names in their order, as forward gives them. */
static void check_names(void)
{
    static const char text[] =
        "{kernel: router, method: softmax_topk, dtype: f32, H: 8, E: 4, top_k: 2}";
    static const char *const names[] = {"logits", "expert_index"};
    moegen_spec spec = {.struct_size = sizeof spec, .text = text, .len = strlen(text)};
    moegen_layer *layer = NULL;
    snprintf(where, sizeof where, "%s", text);
    moegen_error *err = NULL;
    if (moegen_layer_create(engine, &spec, &layer, &err))
        complain("no layer", moegen_error_text(err));
    moegen_error_release(err);
    for (size_t i = 0; layer && i < 2; i++) {
        const moegen_arg *a = moegen_layer_state_arg(layer, i);
        if (!a || strcmp(a->name, names[i]) != 0 || a->role != MOEGEN_OUT)
            complain("not in the state at its place", names[i]);
    }
    if (moegen_layer_state_arg(layer, 2) || moegen_layer_state_arg(NULL, 0))
        complain("more tensors in the state than it has", "");
    moegen_layer_release(layer);
}

int main(int argc, char **argv)
{
    moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = shared_cache()};
    if (argc < 2 || moegen_engine_create(&o, &engine, NULL))
        return 2;
    int cases = each_case(argv[1], argc > 2 ? argv[2] : "", try, NULL);
    check_names();
    moegen_engine_release(engine);
    printf("%d cases: %d tensors described; %d layers, %d shapes compared\n", cases, described,
           layers, compared);
    return failures || cases < 1 || (argc == 2 && (layers < 80 || compared < 2000));
}
