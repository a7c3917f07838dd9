/* SPDX-License-Identifier: Apache-2.0 */
/* rows_test.c - weights whose rows are contracted, of the families that have none of the experts'
 * tensors, as codes of every format: outputs have the same bits as those of the f32 numbers that
 * the codes are, decoded here on their own; and a code or a scale that is no number reaches what it
 * must and nothing else, for many tokens and for few, whose sums have another order. */
#include <stdlib.h>

#include "coded.h"
#include "settings.h"

/* Rows [E][C][K] in `parts`. */
struct rows {
    const char *weight, *scale, *second;
    int64_t E, C, K, parts;
};

/* like: the input that the output has the shape of; codes, numbers: plans for many tokens in which
 * both have the same order of sums */
static const struct family {
    const char *name, *spec, *output, *like, *codes, *numbers;
    struct rows rows[2];
} families[] = {
    {"mlp_forward",
     "H 150 I_TP 70",
     "output",
     "hidden_states",
     " plan.along 0",
     " plan.along 0",
     {{"gate_up_weights", "gate_up_weights_scale", "gate_up_weights_scale_2", 1, 140, 150, 2},
      {"down_proj_weight", "down_proj_scale", "down_proj_scale_2", 1, 150, 70, 1}}},
    {"mlp_forward",
     "H 37 I_TP 133 gated false",
     "output",
     "hidden_states",
     " plan.along 0",
     " plan.along 0",
     {{"gate_up_weights", "gate_up_weights_scale", "gate_up_weights_scale_2", 1, 133, 37, 1},
      {"down_proj_weight", "down_proj_scale", "down_proj_scale_2", 1, 37, 133, 1}}},
    {"mlp_backward",
     "H 150 I_TP 70 weight_grads none checkpoint recompute",
     "hidden_states_grad",
     "hidden_states",
     " plan.along 0",
     " plan.along 0 plan.across 0",
     {{"gate_up_weights", "gate_up_weights_scale", "gate_up_weights_scale_2", 1, 140, 150, 2},
      {"down_proj_weight", "down_proj_scale", "down_proj_scale_2", 1, 150, 70, 1}}},
    {"grouped_gemm",
     "op forward N 150 K 150 E 3",
     "Y",
     "X",
     " plan.along 0",
     " plan.along 0",
     {{"W", "W_scale", "W_scale_2", 3, 150, 150, 1}}},
    {"grouped_gemm",
     "op dX N 150 K 150 E 3",
     "dX",
     "dY",
     "",
     " plan.direct_rows 1",
     {{"W", "W_scale", "W_scale_2", 3, 150, 150, 1}}},
};
enum { FAMILIES = sizeof families / sizeof *families };
enum { MANY = 45 }; /* all of them, and 15 of each of 3 experts, fill more than half of a vector */

static int compared, infected;

static moegen_kernel *kernel_of(moegen_engine *engine, const struct family *f, const char *params)
{
    char head[64], sets[512];
    snprintf(head, sizeof head, "kernel: %s\nname: k\n", f->name);
    snprintf(sets, sizeof sets, "dtype f32 %s %s", f->spec, params);
    return kernel_with(engine, head, sets);
}

/* The output, for the caller to free. */
static float *run(const struct family *f, const moegen_kernel *kernel, const moegen_rt_problem *p)
{
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    CHECK(!moegen_call_create(kernel, &call, NULL), "no call");
    for (size_t i = 0; moegen_rt_problem_at(p, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(p, i);
        moegen_call_bind_const(call, t->name, t->data, (moegen_dtype)t->dtype, t->rank, t->shape,
                               NULL); /* or the kernel has no such tensor */
    }
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, f->like);
    size_t bytes = (size_t)moegen_rt_tensor_count(t) * sizeof(float);
    float *out = malloc(bytes);
    memset(out, 0xff, bytes);
    CHECK(!moegen_call_bind(call, f->output, out, MOEGEN_F32, t->rank, t->shape, &err), "%s",
          err ? moegen_error_text(err) : "");
    CHECK(!moegen_call_run(call, &err), "%s", err ? moegen_error_text(err) : "cannot run");
    moegen_error_release(err);
    moegen_call_release(call);
    return out;
}

static int64_t up_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

/* ---- what codes are ---- */

/* The scale of an element of row c of an expert. */
static int64_t scale_at(const struct format *of, enum share share, const struct rows *r, int64_t c,
                        int64_t k)
{
    if (share == STATIC)
        return c / (r->C / r->parts);
    if (share == BLOCK)
        return c / 128 * up_div(r->K, 128) + k / 128;
    return share == GROUP ? c * up_div(r->K, of->group) + k / of->group : c;
}

static double scale_of(const struct format *of, const moegen_rt_tensor *t, int64_t i)
{
    return of->scale ? of->scale(((const uint8_t *)t->data)[i]) : number(t, i);
}

/* Adds the f32 numbers of a tensor of codes to q. */
static void add_numbers(const struct format *of, enum share share, const struct rows *r,
                        const moegen_rt_problem *p, moegen_rt_problem *q)
{
    const moegen_rt_tensor *codes = moegen_rt_problem_tensor(p, r->weight),
                           *scales = moegen_rt_problem_tensor(p, r->scale),
                           *seconds = of->second ? moegen_rt_problem_tensor(p, r->second) : NULL;
    int64_t shape[] = {r->E, r->C, r->K}, all = moegen_rt_tensor_count(scales) / r->E;
    int64_t row = (int64_t)codes->bytes * 8 / of->bits / (r->E * r->C);
    moegen_rt_tensor *t = NULL;
    moegen_rt_problem_add(q, r->weight, MOEGEN_RT_F32, r->E > 1 ? 3 : 2,
                          r->E > 1 ? shape : shape + 1, &t, NULL);
    for (int64_t i = 0; i < r->E * r->C; i++)
        for (int64_t k = 0; k < r->K; k++) {
            int64_t e = i / r->C, c = i % r->C;
            double x = of->value(code_at(codes, of->bits, i * row + k));
            x *= scale_of(of, scales, e * all + scale_at(of, share, r, c, k));
            x *= seconds ? number(seconds, e * r->parts + c / (r->C / r->parts)) : 1;
            ((float *)t->data)[i * r->K + k] = (float)x;
        }
}

static moegen_rt_problem *numbers_of(const struct family *f, const struct format *of,
                                     enum share share, const moegen_rt_problem *p)
{
    moegen_rt_problem *q = moegen_rt_problem_create();
    for (size_t i = 0; moegen_rt_problem_at(p, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(p, i);
        bool its = false;
        for (int r = 0; r < 2 && f->rows[r].weight; r++)
            its |= strncmp(t->name, f->rows[r].scale, strlen(f->rows[r].scale)) == 0 ||
                   strcmp(t->name, f->rows[r].weight) == 0;
        if (!its)
            moegen_rt_problem_lend(q, t->name, t->dtype, t->rank, t->shape, t->data, NULL);
    }
    for (int r = 0; r < 2 && f->rows[r].weight; r++)
        add_numbers(of, share, &f->rows[r], p, q);
    return q;
}

/* Second scales as powers of two: then values are exact. */
static void round_seconds(const struct family *f, const moegen_rt_problem *p)
{
    for (int r = 0; r < 2 && f->rows[r].weight; r++) {
        const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, f->rows[r].second);
        for (int64_t i = 0; t && i < moegen_rt_tensor_count(t); i++)
            ((float *)t->data)[i] = exp2f(rintf(log2f(((float *)t->data)[i])));
    }
}

/* ---- comparing ---- */

/* Of both kernels, and of the reference: equal bits, or no number in all three. exactly: else only
 * what is a number. */
static void compare(const struct family *f, const struct format *of, enum share share,
                    const moegen_kernel *coded, const moegen_kernel *plain,
                    const moegen_rt_problem *p, bool exactly, const char *params)
{
    moegen_rt_problem *q = numbers_of(f, of, share, p), *exact = outputs(p, f->name);
    int64_t n, bad = 0, lost = 0, nan = 0;
    const double *want = data(exact, f->output, &n);
    float *got = run(f, coded, p), *same = run(f, plain, q);
    for (int64_t i = 0; i < n; i++) {
        bad += exactly && !isnan(want[i]) && memcmp(&got[i], &same[i], sizeof *got) != 0;
        lost += (isnan(got[i]) != 0) != (isnan(want[i]) != 0);
        nan += isnan(want[i]);
    }
    CHECK(bad == 0, "%s, %s: %s has %lld other bits", f->name, params, f->output, (long long)bad);
    CHECK(lost == 0, "%s, %s: %s: %lld are numbers or not", f->name, params, f->output,
          (long long)lost);
    compared++;
    infected += nan > 0 && nan < n;
    free(got);
    free(same);
    moegen_rt_problem_destroy(q);
    moegen_rt_problem_destroy(exact);
}

/* A code, or a scale of those, that is no number: where way says. false: there is none. */
static bool infect(const struct family *f, const struct format *of, const moegen_rt_problem *p,
                   int way)
{
    const struct rows *r = &f->rows[f->rows[1].weight ? way & 1 : 0];
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, of->scale ? r->scale : r->weight);
    for (int c = 0; c < 256; c++)
        if (isnan(of->scale ? of->scale(c) : of->value(c % (1 << of->bits)))) {
            ((uint8_t *)t->data)[moegen_rt_tensor_count(t) / 2 + 1] = (uint8_t)c;
            return true;
        }
    return false;
}

/* tokens: if they are few, K lies in lanes, and sums have another order; so they have if tokens
 * fill no more than half of an expert's last vector. */
static void one_case(moegen_engine *engine, const struct family *f, const struct format *of,
                     enum share share, int64_t tokens, const char *target)
{
    char as_codes[256], as_numbers[256], weights[160];
    bool many = tokens > 20;
    static int way;
    snprintf(weights, sizeof weights, "weights.dtype %s%s%s%s", of->name,
             of->fp8 ? " weights.scale " : "", of->fp8 ? shares[share] : "",
             of->group == 128 ? " weights.group 128" : "");
    snprintf(as_numbers, sizeof as_numbers, "plan.kc 128%s target %s spelling %s",
             many ? f->numbers : "", target, strcmp(target, "auto") ? "scalar" : "auto");
    snprintf(as_codes, sizeof as_codes, "%s plan.kc 128%s target %s spelling %s", weights,
             many ? f->codes : "", target, strcmp(target, "auto") ? "scalar" : "auto");
    moegen_kernel *coded = kernel_of(engine, f, as_codes),
                  *plain = kernel_of(engine, f, as_numbers);
    moegen_rt_problem *p = moegen_rt_problem_create();
    set(p, "dtype f32");
    set(p, f->spec);
    set(p, weights);
    fill(p, f->name, tokens, "balanced");
    round_seconds(f, p);
    if (coded && plain) {
        compare(f, of, share, coded, plain, p, many, as_codes);
        if (infect(f, of, p, way++))
            compare(f, of, share, coded, plain, p, many, as_codes);
    }
    moegen_rt_problem_destroy(p);
    moegen_kernel_release(coded);
    moegen_kernel_release(plain);
}

int main(void)
{
    static const char *const targets[] = {"auto", "avx512", "scalar"};
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = ""};
    moegen_engine *engine = NULL;
    if (moegen_engine_create(&options, &engine, NULL))
        return 2;
    for (int i = 0, way = 0; i < FAMILIES; i++)
        for (int f = 0; f < FORMATS; f++)
            for (int share = ROW; share <= GROUP; share++) {
                bool has = formats[f].group ? share == GROUP
                                            : share == ROW || (formats[f].fp8 && share != GROUP);
                if (!has)
                    continue;
                one_case(engine, &families[i], &formats[f], (enum share)share, MANY, "auto");
                one_case(engine, &families[i], &formats[f], (enum share)share, 3, targets[way % 3]);
                way++;
            }
    moegen_engine_release(engine);
    printf("%d outputs compared, %d with what is no number, %d complaints\n", compared, infected,
           failures);
    return failures != 0 || compared == 0 || infected == 0;
}
