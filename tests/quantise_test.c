/* SPDX-License-Identifier: Apache-2.0 */
/* quantise_test.c - operands that kernels quantise, number by number: what a kernel multiplies is
 * what the reference's encoder makes of every 16-bit float in blocks of every exponent, with
 * numbers beside it in f32, and NaN for rows with a NaN or an infinity. An identity for the other
 * factor shows it: of tokens (blocks down the rows of panels) and of weights (along the lanes). */
#include <math.h>

#include "cases.h"

enum { BLOCK = 32, MANTISSAS = 128, DEPTH = 34, ROWS_OF_EXPONENT = (MANTISSAS * DEPTH + 30) / 31 };

struct exponents {
    int low, high, step;
};

/* Those of a dtype that blocks begin with. Instructions for bf16 take subnormal numbers for 0; a
 * number of the largest exponent may be rounded up beyond it. */
static struct exponents exponents_of(moegen_rt_dtype dtype, bool all)
{
    struct exponents e = {dtype == MOEGEN_RT_BF16 ? -90 : -149, 126, all ? 1 : 60};
    if (dtype == MOEGEN_RT_F16)
        e = (struct exponents){-24, 14, 9};
    return e;
}

/* Rows of one block each: its largest number has exponent e, and the others cover those below. */
static int64_t fill_rows(moegen_rt_dtype dtype, struct exponents of, double *x)
{
    int64_t rows = 0;
    for (int e = of.low; e <= of.high; e += of.step)
        for (int way = -1; way <= (dtype == MOEGEN_RT_F32 && of.step > 1 ? 1 : -1); way++)
            for (int i = 0; i < ROWS_OF_EXPONENT * 31; i++) {
                double *to = x + (rows + i / 31) * BLOCK;
                double m = 1 + i % MANTISSAS / (double)MANTISSAS;
                m += way < 0 || i % MANTISSAS == 0 ? 0 : way ? 0x1p-23 : -0x1p-23;
                to[0] = ldexp(1, e);
                to[1 + i % 31] = ldexp(i % 3 ? m : -m, e - i / MANTISSAS);
                rows += i == ROWS_OF_EXPONENT * 31 - 1 ? ROWS_OF_EXPONENT : 0;
            }
    for (int i = 0; i < 3; i++, rows++) /* one after the other, in blocks of ones */
        for (int j = 0; j < BLOCK; j++)
            x[rows * BLOCK + j] = j != 5 + i ? 1 : i == 2 ? (double)NAN : i ? -INFINITY : INFINITY;
    for (int j = 0; j < BLOCK; j++)
        x[rows * BLOCK + j] = 0;
    return rows + 1;
}

static moegen_rt_tensor *add(moegen_rt_problem *in, const char *name, moegen_rt_dtype dtype,
                             int64_t rows, int64_t columns)
{
    moegen_rt_tensor *t = NULL;
    int64_t shape[] = {rows, columns};
    if (moegen_rt_problem_add(in, name, dtype, 2, shape, &t, NULL))
        complain("no tensor", name);
    return t;
}

static void put(moegen_rt_tensor *t, const double *x, int64_t n)
{
    moegen_rt_encode(t->dtype, x, (size_t)n, t->data);
}

/* Do all elements of `up` have the reference's values? */
static void compare(const moegen_rt_problem *out, const moegen_rt_problem *want)
{
    const moegen_rt_tensor *got = moegen_rt_problem_tensor(out, "up");
    const double *exact = moegen_rt_problem_tensor(want, "up")->data;
    int64_t wrong = 0, some = 0;
    for (int64_t i = 0; i < moegen_rt_tensor_count(got); i++) {
        double x, there = exact[i];
        moegen_rt_decode(got->dtype,
                         (const char *)got->data +
                             (size_t)i * got->bytes / (size_t)moegen_rt_tensor_count(got),
                         1, &x);
        some += there != 0;
        if (x == there || (isnan(x) && isnan(there)) || wrong++)
            continue;
        char text[120];
        snprintf(text, sizeof text, "element %lld is %a, not %a", (long long)i, x, there);
        complain("wrong", text);
    }
    if (some < 1000)
        complain("nothing to compare", "");
}

static void run(moegen_engine *engine, const moegen_override *set, size_t count, bool weights,
                moegen_rt_dtype dtype, const double *x, int64_t rows)
{
    static const char text[] = "{kernel: mlp_forward, H: 32, I_TP: 32, gated: false, "
                               "activation: relu, checkpoint: save}";
    moegen_spec spec = {.struct_size = sizeof spec,
                        .text = text,
                        .len = sizeof text - 1,
                        .overrides = set,
                        .override_count = count};
    moegen_kernel *kernel = NULL;
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    moegen_rt_error why = {{0}};
    moegen_rt_problem *in = moegen_rt_problem_create(), *out = moegen_rt_problem_create();
    moegen_rt_problem *want = moegen_rt_problem_create();
    int64_t S = weights ? BLOCK : rows, I = weights ? rows : BLOCK;
    double *unit = calloc((size_t)(BLOCK * (I > BLOCK ? I : BLOCK)), sizeof *unit);
    for (int i = 0; i < BLOCK; i++)
        unit[i * BLOCK + i] = 1;
    put(add(in, "hidden_states", dtype, S, BLOCK), weights ? unit : x, S * BLOCK);
    put(add(in, "gate_up_weights", dtype, I, BLOCK), weights ? x : unit, I * BLOCK);
    put(add(in, "down_proj_weight", dtype, BLOCK, I), unit, BLOCK * I);
    free(unit);
    moegen_status status = moegen_kernel_get(engine, &spec, &kernel, &err);
    if (!status && !(status = moegen_call_create(kernel, &call, &err)) &&
        !(status = bind(call, in, out, &err)))
        status = moegen_call_run(call, &err);
    for (size_t p = 0; !status && p < kernel->unit->param_count; p++)
        moegen_rt_problem_set(in, kernel->unit->param[p].key, kernel->unit->param[p].value);
    if (status)
        complain("cannot run", err ? moegen_error_text(err) : moegen_status_name(status));
    else if (moegen_rt_reference_find("mlp_forward")->compute(in, NULL, want, &why))
        complain("no reference", why.text);
    else
        compare(out, want);
    moegen_error_release(err);
    moegen_call_release(call);
    moegen_kernel_release(kernel);
    moegen_rt_problem_destroy(in);
    moegen_rt_problem_destroy(out);
    moegen_rt_problem_destroy(want);
}

/* all: every exponent, where that is not too slow */
static void try(moegen_engine *engine, const char *name, const char *target, bool all)
{
    static const char *const formats[] = {"mxfp8_e4m3", "mxfp8_e5m2"}, *const rules[] = {"ocp",
                                                                                         "wide"};
    moegen_rt_dtype dtype = MOEGEN_RT_F32;
    double *x = malloc((size_t)(300 * ROWS_OF_EXPONENT * BLOCK) * sizeof *x);
    moegen_rt_dtype_find(name, &dtype);
    for (int i = 0; i < 8; i++) {
        bool weights = i / 4;
        int64_t rows = fill_rows(dtype, exponents_of(dtype, all && i % 2 == 0 && !weights), x);
        char columns[24];
        snprintf(columns, sizeof columns, "%lld", (long long)(weights ? rows : BLOCK));
        moegen_override set[] = {{"target", target},
                                 {"dtype", name},
                                 {"quantize", formats[i % 2]},
                                 {"scale_rule", rules[i / 2 % 2]},
                                 {"I_TP", columns}};
        snprintf(where, sizeof where, "%s of %s, target %s: %s %s", weights ? "weights" : "tokens",
                 name, target, formats[i % 2], rules[i / 2 % 2]);
        run(engine, set, 5, weights, dtype, x, rows);
    }
    free(x);
}

int main(void)
{
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = ""};
    moegen_engine *engine = NULL;
    if (moegen_engine_create(&options, &engine, NULL))
        return 2;
    for (size_t i = 0; io_dtype(i); i++) {
        try(engine, io_dtype(i), "auto", true);
        try(engine, io_dtype(i), "scalar", false);
    }
    moegen_engine_release(engine);
    return failures != 0;
}
