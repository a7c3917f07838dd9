/* SPDX-License-Identifier: Apache-2.0 */
/* few_tokens_test.c - an expert with few tokens, and as many as are where another tile takes over:
 * every dtype that weights may have in every layout that holds it, as `moegen list keys` says them,
 * against float64. Numbers of tokens: 1 to 5; around lanes, two vectors of them, half a vector more
 * than several whole ones, and around every limit that `moegen explain` has for the kernel
 * (tile_rows, along, direct_rows, "to N" of products).
 */
#include "cases.h"

enum { VALUES = 24, TOKENS = 6 * 16 + 1, LANES = 16 };

/* Sizes of H and of I, the first of which a layout takes: odd ones, and multiples. */
static const char *const sizes[][2] = {{"69", "37"}, {"512", "132"}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static const struct family {
    const char *name, *also; /* of the spec */
} families[] = {
    {"moe_forward", ""},
    {"moe_backward", ", weight_grads: none, checkpoint: recompute"},
};

struct values {
    char name[VALUES][24];
    int kernels[VALUES]; /* that had it */
    int count;
};

static moegen_engine *engine;
static int compared;

/* ---- what there is to try ---- */

/* The values of a family's key: "one of a, b [default] ...". */
static void read_values(const char *family, const char *key, struct values *v)
{
    static struct listing keys;
    char full[80], list[400];
    if (!keys.count && host_list("keys", &keys, NULL))
        complain("cannot list keys", "");
    snprintf(full, sizeof full, "%s: %s", family, key);
    for (size_t i = 0; i < keys.count; i++) {
        char *at = list;
        if (strcmp(keys.item[i].name, full) != 0 ||
            sscanf(keys.item[i].text, "one of %399[^[]", list) != 1)
            continue;
        for (char *word; v->count < VALUES && (word = strtok_r(at, ", ", &at));)
            snprintf(v->name[v->count++], sizeof v->name[0], "%s", word);
    }
    snprintf(where, sizeof where, "%s", full);
    if (v->count == 0)
        complain("has no values", "");
}

/* Numbers of tokens. */
struct numbers {
    bool of[TOKENS];
};

static void add_around(struct numbers *n, long limit)
{
    for (long i = limit - 1; i <= limit + 1; i++)
        if (i > 0 && i < TOKENS)
            n->of[i] = true;
}

/* The numbers around what is said of the plan: lines "  KEY  N  why", products' "to N". */
static void add_limits(struct numbers *n, const char *text)
{
    static const char *const keys[] = {"\n  tile_rows ", "\n  along ", "\n  direct_rows "};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const char *at = strstr(text, keys[k]);
        if (at)
            add_around(n, strtol(at + strlen(keys[k]), NULL, 10));
    }
    for (const char *at = strstr(text, "\nproducts\n"); at && (at = strstr(at, " to ")); at++)
        add_around(n, strtol(at + 4, NULL, 10));
}

/* ---- trials ---- */

static void compare(const moegen_rt_problem *out, const moegen_rt_problem *want)
{
    for (size_t i = 0; moegen_rt_problem_at(want, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(want, i);
        const moegen_rt_tensor *got = moegen_rt_problem_tensor(out, t->name);
        moegen_rt_comparison r;
        moegen_rt_error why;
        if (!got || moegen_rt_compare(got, t, &r, &why))
            complain(t->name, got ? why.text : "is missing");
        else if (!r.ok)
            complain(t->name, r.text);
        else
            compared += r.compared > 0;
    }
}

static void try_tokens(const moegen_kernel *kernel, int64_t T)
{
    moegen_rt_problem *in = inputs(kernel, T, "one");
    moegen_rt_problem *out = moegen_rt_problem_create(), *want = moegen_rt_problem_create();
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    moegen_rt_error why = {{0}};
    moegen_status status = moegen_call_create(kernel, &call, &err);
    if (!status)
        status = moegen_call_set_threads(call, 1, &err);
    if (!status && !(status = bind(call, in, out, &err))) {
        reset(call, in, out);
        status = moegen_call_run(call, &err);
    }
    if (status)
        complain("cannot run", err ? moegen_error_text(err) : moegen_status_name(status));
    else if (moegen_rt_reference_find(kernel->unit->facts.family)->compute(in, NULL, want, &why))
        complain("no reference", why.text);
    else
        compare(out, want);
    moegen_error_release(err);
    moegen_call_release(call);
    moegen_rt_problem_destroy(in);
    moegen_rt_problem_destroy(out);
    moegen_rt_problem_destroy(want);
}

/* The kernel of a spec, and for how many tokens to try it. NULL: there is no such kernel. */
static moegen_kernel *make(const char *text, struct numbers *n)
{
    moegen_spec spec = {.struct_size = sizeof spec, .text = text, .len = strlen(text)};
    struct ask ask = {0};
    struct text said = {0};
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    moegen_status status = ask_open(&ask, engine, &spec, "jit", &err);
    if (!status)
        status = ask_explain(&ask, engine, &said, &err);
    if (!status) {
        add_limits(n, said.at);
        status = moegen_kernel_get(engine, &spec, &kernel, &err);
    }
    if (status && (status != MOEGEN_BAD_SPEC || !strstr(moegen_error_text(err), "weights.")))
        complain("cannot be made", err ? moegen_error_text(err) : moegen_status_name(status));
    moegen_error_release(err);
    ask_close(&ask);
    text_free(&said);
    return kernel;
}

/* Returns how many kernels there were: 1, or 0 if the layout does not hold such weights. */
static int try_weights(const struct family *f, const char *layout, const char *weights,
                       const char *dtype, const char *target)
{
    const bool own = strcmp(target, "auto") == 0;
    for (int s = 0; s < SIZES; s++) {
        struct numbers n = {{false}};
        char text[400];
        for (int i = 1; i <= (own ? 5 : 2); i++)
            n.of[i] = true;
        for (int lanes = LANES / 2; own && lanes <= 2 * LANES; lanes *= 2)
            add_around(&n, lanes);
        for (int halves = 9; own && halves < TOKENS * 2 / LANES; halves += 2)
            add_around(&n, halves * LANES / 2);
        snprintf(text, sizeof text,
                 "{kernel: %s, dtype: %s, H: %s, I_TP: %s, E: 1, top_k: 1, block_size: 48, "
                 "bias: true, weights: {layout: %s, dtype: %s}, target: %s, spelling: %s%s}",
                 f->name, dtype, sizes[s][0], sizes[s][1], layout, weights, target,
                 own ? "auto" : "scalar", f->also);
        snprintf(where, sizeof where, "%s", text);
        moegen_kernel *kernel = make(text, &n);
        for (int T = 1; kernel && T < TOKENS; T++)
            if (n.of[T]) {
                snprintf(where, sizeof where, "%s, %d tokens", text, T);
                try_tokens(kernel, T);
            }
        moegen_kernel_release(kernel);
        if (kernel)
            return 1;
    }
    return 0;
}

/* Numbers are those of tokens; codes are beside one dtype of tokens after the other. Each is tried
 * on this CPU's best target, and for fewer numbers in plain C, on one target after the other. */
static void try_family(const struct family *f)
{
    struct values layouts = {.count = 0}, weights = {.count = 0};
    static struct listing targets;
    size_t turn = 0;
    if (!targets.count && host_list("targets", &targets, NULL))
        complain("cannot list targets", "");
    read_values(f->name, "weights.layout", &layouts);
    read_values(f->name, "weights.dtype", &weights);
    for (int l = 0; l < layouts.count; l++)
        for (int w = 0; w < weights.count; w++) {
            const char *dtype = io_dtype_in_turn((int64_t)turn);
            for (size_t d = 0; io_dtype(d); d++)
                if (strcmp(io_dtype(d), weights.name[w]) == 0)
                    dtype = io_dtype(d);
            int kernels = try_weights(f, layouts.name[l], weights.name[w], dtype, "auto");
            if (kernels > 0)
                kernels += try_weights(f, layouts.name[l], weights.name[w], dtype,
                                       targets.item[turn++ % targets.count].name);
            layouts.kernels[l] += kernels;
            weights.kernels[w] += kernels;
        }
    for (int w = 0; w < weights.count; w++) {
        snprintf(where, sizeof where, "%s: %s", f->name, weights.name[w]);
        if (weights.kernels[w] == 0)
            complain("no layout holds it", "");
    }
    printf("%s:", f->name);
    for (int l = 0; l < layouts.count; l++)
        printf(" %s %d", layouts.name[l], layouts.kernels[l]);
    printf(" kernels\n");
}

int main(void)
{
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = shared_cache()};
    if (moegen_engine_create(&options, &engine, NULL))
        return 2;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        try_family(&families[i]);
    moegen_engine_release(engine);
    printf("%d outputs compared, %d complaints\n", compared, failures);
    return failures != 0 || compared == 0;
}
