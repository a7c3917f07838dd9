/* SPDX-License-Identifier: Apache-2.0 */
/* special_test.c - in every case of tests/kernels whose weights have a byte as scale: what is not a
 * number among codes and scales, be it of an element or of none, reaches the outputs that it
 * reaches in float64, and no other; the least scale is one.
 *
 *     special_test DIRECTORY */
#include "reach.h"
#include "format.h"

enum { TOKENS = 5, PLACES = 2, LARGE = 2000000 };

static void judge(const moegen_rt_problem *got, const moegen_rt_problem *want,
                  const moegen_rt_problem *was, const char *what)
{
    for (size_t o = 0; moegen_rt_problem_at(want, o); o++) {
        const moegen_rt_tensor *w = moegen_rt_problem_at(want, o);
        const moegen_rt_tensor *g = moegen_rt_problem_tensor(got, w->name);
        const moegen_rt_tensor *b = moegen_rt_problem_tensor(was, w->name);
        if (!g || strays(g, w, b))
            complain(what, g ? "reaches others" : "no output");
        moegen_rt_comparison c;
        moegen_rt_error why = {{0}};
        /* not by roundings: beside a large code sums cancel */
        if (g && (moegen_rt_compare(g, w, &c, &why) || c.nans || c.l2 > c.l2_limit))
            complain(what, "the numbers are others");
    }
}

/* Bytes of a tensor, here and there, become `byte`, one at a time. */
static void poke(const moegen_kernel *kernel, moegen_call *call, moegen_rt_problem *in,
                 moegen_rt_problem *out, const moegen_rt_problem *was, const char *name,
                 uint8_t byte)
{
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(in, name);
    for (size_t n = 0; n < PLACES; n++) {
        const size_t end = byte % 2 == 0 ? 0 : t->bytes - 1;
        size_t at = n == 0 ? end : (n * 7919 + 13 * byte) * 104729 % t->bytes;
        uint8_t *to = (uint8_t *)t->data + at, before = *to;
        char what[200];
        snprintf(what, sizeof what, "%s[%zu] = %d", name, at, byte);
        *to = byte;
        try_poked(kernel, call, in, out, was, what);
        *to = before;
    }
}

/* Codes that are no numbers, then scales, of each matrix. */
static void poke_all(const moegen_kernel *kernel, moegen_call *call, moegen_rt_problem *in,
                     moegen_rt_problem *out, const moegen_rt_problem *was)
{
    const struct rt_format *f = rt_format_find(moegen_kernel_param(kernel, "weights.dtype"));
    for (size_t i = 0; moegen_rt_problem_at(in, i); i++) {
        const char *name = moegen_rt_problem_at(in, i)->name;
        const char *end = name ? strstr(name, "_weight") : NULL;
        char scale[80];
        if (!name)
            continue;
        size_t stem = end && !end[7] ? (size_t)(end - name) : strlen(name);
        snprintf(scale, sizeof scale, "%.*s_scale", (int)stem, name);
        if (!moegen_rt_problem_tensor(in, scale))
            continue;
        for (int code = 0, some = 0; f->element->bits == 8 && code < 256 && some < 2; code++)
            if (isnan(f->element->value((uint32_t)code))) {
                poke(kernel, call, in, out, was, name, (uint8_t)code);
                some++;
            }
        poke(kernel, call, in, out, was, scale, 255);
        poke(kernel, call, in, out, was, scale, 0);
    }
}

/* Numbers of all kinds in a token's row, which integers share a scale with. */
static void poke_tokens(const moegen_kernel *kernel, moegen_call *call, moegen_rt_problem *in,
                        moegen_rt_problem *out, const moegen_rt_problem *was)
{
    static const struct {
        double x;
        bool all; /* the whole row */
    } pokes[] = {{(double)NAN, false},
                 {(double)INFINITY, false},
                 {-(double)INFINITY, false},
                 {1e-40, true},
                 {0, true},
                 {64, false}};
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(in, "hidden_states");
    t = t ? t : moegen_rt_problem_tensor(in, "X");
    const size_t bytes = moegen_rt_dtype_of(t->dtype)->bytes, n = (size_t)t->shape[1];
    uint8_t *row = (uint8_t *)t->data + bytes * n, *before = malloc(bytes * n);
    for (size_t i = 0; before && i < sizeof pokes / sizeof *pokes; i++) {
        char what[200];
        snprintf(what, sizeof what, "a token with %g", pokes[i].x);
        memcpy(before, row, bytes * n);
        for (size_t k = 0; k < (pokes[i].all ? n : 1); k++)
            moegen_rt_encode(t->dtype, &pokes[i].x, 1, row + bytes * (n - 1 - k));
        try_poked(kernel, call, in, out, was, what);
        memcpy(row, before, bytes * n);
    }
    free(before);
}

static bool has_integers(const moegen_kernel *kernel)
{
    const char *how = moegen_kernel_param(kernel, "quantize_activations");
    return how && strcmp(how, "int8") == 0;
}

static void try_target(moegen_engine *engine, const char *path, const char *name, const char *dtype,
                       const char *target)
{
    snprintf(where, sizeof where, "%s (%s, target %s)", name, dtype ? dtype : "", target);
    moegen_kernel *kernel = get(engine, path, name, dtype, target);
    if (!kernel)
        return;
    moegen_call *call = NULL;
    moegen_rt_problem *in = inputs(kernel, TOKENS, "uniform"), *out = moegen_rt_problem_create();
    moegen_rt_problem *was = reference(kernel, in);
    if (moegen_call_create(kernel, &call, NULL) || bind(call, in, out, NULL))
        complain("no call", "");
    else if (has_integers(kernel))
        poke_tokens(kernel, call, in, out, was);
    else
        poke_all(kernel, call, in, out, was);
    moegen_call_release(call);
    moegen_rt_problem_destroy(in);
    moegen_rt_problem_destroy(out);
    moegen_rt_problem_destroy(was);
    moegen_kernel_release(kernel);
}

/* Whether the case's weights have such scales, or its tokens have scales; and whether a run of it
 * takes so many operations that plain C is no way to do them. */
static bool has_scales(moegen_engine *engine, const char *path, const char *name, bool *large)
{
    moegen_kernel *kernel = get(engine, path, name, io_dtype(0), "auto");
    const char *dtype = kernel ? moegen_kernel_param(kernel, "weights.dtype") : NULL;
    const struct rt_format *f = dtype ? rt_format_find(dtype) : NULL;
    const bool integers = kernel && has_integers(kernel);
    const char *top_k = kernel ? moegen_kernel_param(kernel, "top_k") : NULL;
    *large =
        kernel && kernel->unit->facts.flops_per_row * TOKENS * (top_k ? atoi(top_k) : 1) > LARGE;
    moegen_kernel_release(kernel);
    return integers || (f && rt_format_has_rule(f));
}

static void try_case(const char *path, const char *name, void *engine)
{
    static const char *const targets[] = {"auto", "scalar", "auto", "avx512_bf16",
                                          "auto", "avx2",   "auto"};
    enum { TARGETS = sizeof targets / sizeof *targets };
    static int turn, small; /* each case has the next ones */
    bool large;
    snprintf(where, sizeof where, "%s", name);
    if (!has_scales(engine, path, name, &large))
        return;
    const char *target = large ? "auto" : targets[small++ % TARGETS];
    try_target(engine, path, name, io_dtype_in_turn(turn++), target);
}

int main(int argc, char **argv)
{
    moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = shared_cache()};
    moegen_engine *engine = NULL;
    if (moegen_engine_create(&o, &engine, NULL))
        return 1;
    static const char *const families[] = {"moe_forward", "mlp_forward", "mlp_backward",
                                           "moe_backward", "grouped_gemm"};
    for (int i = 0; i < 5; i++)
        each_case(argc > 1 ? argv[1] : "tests/kernels", families[i], try_case, engine);
    printf("%d bytes, %d elements reached, %d complaints\n", tried, reached, failures);
    moegen_engine_release(engine);
    return failures != 0 || tried < 100 || reached == 0;
}
