/* SPDX-License-Identifier: Apache-2.0 */
/* mode_test.c - kernels and the generator in threads whose floating-point mode is not the default
 * one: flushing of subnormal numbers, other roundings, traps, flags that are set. Outputs have the
 * bits of the default mode, the C text too, and the mode is as it was. `plain` of every family, in
 * every float dtype, as bytes and in plain C.
 *
 *     mode_test DIRECTORY [FAMILY[:CASE]] */
#include "cases.h"

enum { TOKENS = 5 };

static moegen_engine *engine;
static int runs, subnormal;

#if defined(__x86_64__)
#include <xmmintrin.h>

static const struct mode {
    const char *name;
    unsigned word;
} modes[] = {
    {"default", 0x1f80},       {"flush to zero", 0x9f80}, {"subnormals are zero", 0x1fc0},
    {"both", 0x9fc0},          {"down", 0x3f80},          {"up", 0x5f80},
    {"towards zero", 0x7f80},  {"traps", 0x0000},         {"traps, flags", 0x003f},
    {"all of it", 0x9fc0 | 1}, {"flags", 0x1f80 | 0x3f},
};

static void set_mode(const struct mode *m)
{
    _mm_setcsr(m->word);
}

static unsigned get_mode(void)
{
    return _mm_getcsr();
}
#else /* what C knows; the kernels set it where they know the CPU */
#include <fenv.h>

static const struct mode {
    const char *name;
    unsigned word;
} modes[] = {{"default", FE_TONEAREST}};

static void set_mode(const struct mode *m)
{
    fesetround((int)m->word);
}

static unsigned get_mode(void)
{
    return (unsigned)fegetround();
}
#endif
enum { MODES = sizeof modes / sizeof *modes };

/* ---- inputs ---- */

/* Products become subnormal: all floats times 2^-62, or 2^-10 where their range is small. */
static void make_small(moegen_rt_problem *in)
{
    for (size_t i = 0; moegen_rt_problem_at(in, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(in, i);
        const moegen_rt_dtype_facts *facts = moegen_rt_dtype_of(t->dtype);
        double scale = t->dtype == MOEGEN_RT_F16 ? 0x1p-10 : 0x1p-66;
        for (int64_t j = 0; facts->digits && j < moegen_rt_tensor_count(t); j++) {
            char *at = (char *)t->data + (size_t)j * facts->bytes;
            double x;
            moegen_rt_decode(t->dtype, at, 1, &x);
            x *= scale;
            moegen_rt_encode(t->dtype, &x, 1, at);
        }
    }
}

static void count_subnormal(const moegen_rt_problem *out)
{
    for (size_t i = 0; moegen_rt_problem_at(out, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(out, i);
        const float *x = t->data;
        for (int64_t j = 0; t->dtype == MOEGEN_RT_F32 && j < moegen_rt_tensor_count(t); j++)
            subnormal += x[j] != 0 && x[j] > -0x1p-126f && x[j] < 0x1p-126f;
    }
}

/* ---- kernels ---- */

static void compare(const moegen_rt_problem *first, const moegen_rt_problem *out)
{
    for (size_t i = 0; moegen_rt_problem_at(out, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(out, i);
        if (memcmp(t->data, moegen_rt_problem_tensor(first, t->name)->data, t->bytes) != 0)
            complain(t->name, "other bits");
    }
}

/* A run in each mode with that many threads. The default one comes first: into `first`. */
static moegen_status run_modes(const moegen_kernel *kernel, const moegen_rt_problem *in,
                               int threads, moegen_rt_problem *first, moegen_rt_problem *out,
                               moegen_error **err)
{
    static char plain_where[sizeof where];
    memcpy(plain_where, where, sizeof where);
    moegen_status status = MOEGEN_OK;
    for (int m = 0; m < MODES && !status; m++) {
        moegen_call *call = NULL;
        moegen_rt_problem *to = m ? out : first;
        snprintf(where, sizeof where, "%.600s, mode: %s, %d threads", plain_where, modes[m].name,
                 threads);
        if (!(status = moegen_call_create(kernel, &call, err)) &&
            !(status = bind(call, in, to, err)) &&
            !(status = moegen_call_set_threads(call, threads, err))) {
            reset(call, in, to);
            set_mode(&modes[m]);
            status = moegen_call_run(call, err);
            unsigned after = get_mode();
            set_mode(&modes[0]);
            if (after != modes[m].word)
                complain("the mode is another after the call", "");
            if (!status)
                compare(first, to);
            runs++;
        }
        moegen_call_release(call);
    }
    count_subnormal(first);
    memcpy(where, plain_where, sizeof where);
    return status;
}

static void try_kernel(const moegen_kernel *kernel)
{
    for (int small = 0; small < 2; small++)
        for (int threads = 1; threads <= 2; threads++) {
            moegen_rt_problem *in = inputs(kernel, TOKENS, "uniform");
            moegen_rt_problem *first = moegen_rt_problem_create();
            moegen_rt_problem *out = moegen_rt_problem_create();
            moegen_error *err = NULL;
            if (small)
                make_small(in);
            moegen_status status = run_modes(kernel, in, threads, first, out, &err);
            if (status)
                complain("cannot run", err ? moegen_error_text(err) : moegen_status_name(status));
            moegen_error_release(err);
            moegen_rt_problem_destroy(in);
            moegen_rt_problem_destroy(first);
            moegen_rt_problem_destroy(out);
        }
}

/* ---- C text ---- */

static char *generate(const char *path, const char *name, moegen_error **err)
{
    static char text[65536];
    static const moegen_override gelu[] = {{"activation", "gelu"}};
    moegen_source *source = NULL;
    FILE *f = fopen(path, "rb");
    moegen_spec spec = {.struct_size = sizeof spec,
                        .text = text,
                        .len = f ? fread(text, 1, sizeof text, f) : 0,
                        .label = path,
                        .kernel = name,
                        .overrides = gelu,
                        .override_count = strstr(path, "mlp_") != NULL};
    if (f)
        fclose(f);
    moegen_status status = moegen_generate(engine, &spec, &source, err);
    char *copy = status ? NULL : strdup(moegen_source_c(source));
    moegen_source_release(source);
    return copy;
}

static void try_generator(const char *path, const char *name)
{
    char *first = NULL;
    for (int m = 0; m < MODES; m++) {
        moegen_error *err = NULL;
        set_mode(&modes[m]);
        char *text = generate(path, name, &err);
        unsigned after = get_mode();
        set_mode(&modes[0]);
        if (after != modes[m].word)
            complain(modes[m].name, "the mode is another after moegen_generate");
        if (!text)
            complain(modes[m].name, moegen_error_text(err));
        else if (first && strcmp(text, first) != 0)
            complain(modes[m].name, "other C text");
        moegen_error_release(err);
        if (first)
            free(text);
        else
            first = text;
    }
    free(first);
}

/* ---- all of it ---- */

static void try_case(const char *path, const char *name, void *ctx)
{
    static const char *const targets[] = {"auto", "scalar"};
    (void)ctx;
    if (strcmp(name, "plain") != 0)
        return;
    snprintf(where, sizeof where, "%s:%s", path, name);
    moegen_kernel *own = get(engine, path, name, NULL, "auto");
    bool typed = own && moegen_kernel_param(own, "dtype");
    moegen_kernel_release(own);
    for (size_t d = 0; io_dtype(d) && (typed || d == 0); d++)
        for (int i = 0; i < 2; i++) {
            snprintf(where, sizeof where, "%s:%s %s, target %s", path, name,
                     typed ? io_dtype(d) : "", targets[i]);
            moegen_kernel *kernel = get(engine, path, name, typed ? io_dtype(d) : NULL, targets[i]);
            if (kernel)
                try_kernel(kernel);
            moegen_kernel_release(kernel);
        }
    snprintf(where, sizeof where, "%s:%s", path, name);
    try_generator(path, name);
}

int main(int argc, char **argv)
{
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = shared_cache()};
    setvbuf(stdout, NULL, _IOLBF, 0); /* a trap ends the program */
    if (moegen_engine_create(&options, &engine, NULL))
        return 2;
    int cases = argc < 2 ? -1 : each_case(argv[1], argc > 2 ? argv[2] : "", try_case, NULL);
    moegen_engine_release(engine);
    if (cases < 0) {
        fprintf(stderr, "usage: mode_test DIRECTORY [FAMILY[:CASE]]\n");
        return 2;
    }
    if (subnormal == 0)
        complain("no output is subnormal", "");
    printf("%d runs, %d subnormal outputs, %d complaints\n", runs, subnormal, failures);
    return failures != 0 || runs == 0;
}
