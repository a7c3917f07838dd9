/* SPDX-License-Identifier: Apache-2.0 */
/* quantised_test.c - quantised weights in the references and their fillers: which codes there are,
 * how far NaN reaches, operands quantised on the way, and what is refused. */
#include "stored.h"

static const char *const MORE = "dtype f64 checkpoint save";

static struct how how_of(const struct format *f)
{
    return (struct how){.H = 64,
                        .I = 32,
                        .E = 4,
                        .gated = true,
                        .layout = f->group ? CONTIGUOUS : TRANSPOSED,
                        .share = f->group ? GROUP : ROW,
                        .format = f};
}

/* ---- fillers ---- */

static double root_mean_square(const moegen_rt_problem *p, const char *name)
{
    int64_t n, used = 0;
    const double *x = data(p, name, &n);
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(x[i])) {
            sum += x[i] * x[i];
            used++;
        }
    return sqrt(sum / (double)used);
}

/* All codes but those of NaN and infinity; scales that differ; outputs of order 1. */
static void filled(const struct format *f)
{
    struct how w = how_of(f);
    moegen_rt_problem *p = stored_problem(&w, "moe_forward", MORE),
                      *out = outputs(p, "moe_forward");
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, "gate_up_proj_weight"),
                           *s = moegen_rt_problem_tensor(p, "gate_up_proj_scale");
    int seen[256] = {0};
    for (int64_t i = 0; i < (int64_t)t->bytes * 8 / f->bits; i++)
        seen[code_at(t, f->bits, i)] = 1;
    for (int code = 0; code < 1 << f->bits; code++)
        CHECK(seen[code] == isfinite(f->value(code)), "%s: code %d appears %d times", f->name, code,
              seen[code]);
    int64_t others = 0, n = moegen_rt_tensor_count(s);
    for (int64_t i = 1; i < n; i++)
        others += number(s, i) != number(s, 0);
    CHECK(others > n / 4, "%s: %lld of %lld scales differ", f->name, (long long)others,
          (long long)n);
    double g = root_mean_square(out, "gate_up_activations_T"), y = root_mean_square(out, "output");
    CHECK(g > 0.3 && g < 3 && y > 0.02 && y < 5, "%s: sizes %g and %g", f->name, g, y);
    moegen_rt_problem_destroy(p);
    moegen_rt_problem_destroy(out);
}

/* ---- NaN ---- */

/* Output elements that are NaN now: those of tokens of that expert, at column h alone, or all. */
static void reached(const moegen_rt_problem *p, const moegen_rt_problem *before, int64_t expert,
                    int64_t column, const char *what)
{
    int64_t n, m, hit = 0;
    moegen_rt_problem *out = outputs(p, "moe_forward");
    const double *y = data(out, "output", &n), *was = data(before, "output", &m);
    const moegen_rt_tensor *a = moegen_rt_problem_tensor(p, "expert_affinities_masked");
    for (int64_t i = 0; i < n; i++) {
        bool its = i / 64 < 9 && number(a, i / 64 * 4 + expert) != 0;
        bool nan = its && (column < 0 || i % 64 == column);
        CHECK(nan ? isnan(y[i]) : y[i] == was[i], "%s: output[%lld] is %g", what, (long long)i,
              y[i]);
        hit += nan;
    }
    CHECK(hit > 0 && hit < n, "%s: %lld are NaN", what, (long long)hit);
    moegen_rt_problem_destroy(out);
}

/* One byte of a tensor is changed, judged, and put back. */
static void with_byte(const moegen_rt_problem *p, const moegen_rt_problem *before, const char *name,
                      int64_t at, int byte, int64_t expert, int64_t column)
{
    char what[96];
    uint8_t *to = (uint8_t *)moegen_rt_problem_tensor(p, name)->data + at, was = *to;
    snprintf(what, sizeof what, "%s[%lld] = %d", name, (long long)at, byte);
    *to = (uint8_t)byte;
    reached(p, before, expert, column, what);
    *to = was;
}

static void nan_codes(const struct format *f)
{
    struct how w = how_of(f);
    enum { H = 64, I = 32, E2 = 2 }; /* expert 2 */
    moegen_rt_problem *p = stored_problem(&w, "moe_forward",
                                          "dtype f64 clamp.up.hi 3 clamp.up.lo "
                                          "-3 clamp.gate.hi 3");
    moegen_rt_problem *out = outputs(p, "moe_forward");
    for (int code = 0; f->bits == 8 && code < 256; code++)
        if (isnan(f->value(code))) {
            with_byte(p, out, "gate_up_proj_weight", E2 * 2 * I * H + 77, code, 2, -1);
            with_byte(p, out, "down_proj_weight", (E2 * H + 5) * I + 7, code, 2, 5);
        }
    if (f->scale) {
        int64_t groups = H / f->group;
        with_byte(p, out, "gate_up_proj_scale", E2 * 2 * I * groups, 255, 2, -1);
        with_byte(p, out, "down_proj_scale", (E2 * H + 63) * (I / f->group), 255, 2, 63);
    }
    moegen_rt_problem_destroy(p);
    moegen_rt_problem_destroy(out);
}

/* ---- operands quantised on the way ---- */

/* The number of that coding nearest to x, ties to even codes, none beyond the largest. */
static double nearest(double x)
{
    double best = 0, v;
    int code = 0;
    for (int i = 0; i < 127; i++) {
        v = e4m3(i);
        if (fabs(fabs(x) - v) < fabs(fabs(x) - best) ||
            (fabs(fabs(x) - v) == fabs(fabs(x) - best) && i % 2 == 0)) {
            best = v;
            code = i;
        }
    }
    CHECK(best == e4m3(code), "code %d", code);
    return x < 0 ? -best : best;
}

/* A row of up to 512 elements in blocks of 32: consecutive ones, or 8 of each of 4 parts. */
static void quantise(double *x, int64_t n, bool parts, bool wide)
{
    for (int64_t block = 0; block < n / 32; block++) {
        int64_t at[32];
        double amax = 0;
        for (int64_t i = 0; i < 32; i++) {
            at[i] = parts ? i / 8 * (n / 4) + block * 8 + i % 8 : block * 32 + i;
            amax = fmax(amax, fabs(x[at[i]]));
        }
        double scale = amax > 0 ? ldexp(1, ilogb(amax) - (wide ? 7 : 8)) : 1;
        for (int i = 0; i < 32; i++)
            x[at[i]] = nearest(x[at[i]] / scale) * scale;
    }
}

/* One expert, no gate: by hand. */
static void on_the_way(enum layout layout, const struct format *f, bool wide)
{
    enum { H = 512, I = 64 };
    struct how w = {.H = H, .I = I, .E = 1, .layout = layout, .share = GROUP, .format = f};
    char more[128];
    snprintf(more, sizeof more,
             "dtype f64 top_k 1 affinity.scale none activation relu quantize_activations mxfp8 "
             "scale_rule %s",
             wide ? "wide" : "ocp");
    moegen_rt_problem *p = stored_problem(&w, "moe_forward", more), *q = plain_problem(&w, p, more);
    moegen_rt_problem *out = outputs(p, "moe_forward");
    int64_t n;
    const double *W = data(q, "gate_up_proj_weight", &n), *D = data(q, "down_proj_weight", &n);
    const double *hidden = data(p, "hidden_states", &n), *y = data(out, "output", &n);
    for (int t = 0; t < 9; t++) {
        double x[H], g[I] = {0}, worst = 0;
        memcpy(x, hidden + t * H, sizeof x);
        quantise(x, H, layout == NKI, wide);
        for (int i = 0; i < I; i++) {
            for (int k = 0; k < H; k++)
                g[i] += x[k] * W[k * I + i];
            g[i] = fmax(g[i], 0);
        }
        quantise(g, I, layout == NKI, wide);
        for (int h = 0; h < H; h++) {
            double d = 0;
            for (int i = 0; i < I; i++)
                d += g[i] * D[i * H + h];
            worst = fmax(worst, fabs(d - y[t * H + h]));
        }
        CHECK(worst < 1e-12, "%s, token %d: off by %g", layouts[layout], t, worst);
    }
    moegen_rt_problem_destroy(p);
    moegen_rt_problem_destroy(q);
    moegen_rt_problem_destroy(out);
}

/* A number that f32 may round to either of two codes makes noise, others none: p is (1, x). */
static void told(double x, bool noise)
{
    enum { H = 64, I = 32, ONE = 0x38, SCALE_ONE = 127 };
    struct how w = {
        .H = H, .I = I, .E = 1, .layout = CONTIGUOUS, .share = GROUP, .format = &formats[3]};
    moegen_rt_problem *p = stored_problem(&w, "moe_forward",
                                          "dtype f64 top_k 1 affinity.scale none activation relu "
                                          "quantize_activations mxfp8");
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, "gate_up_proj_weight"),
                           *s = moegen_rt_problem_tensor(p, "gate_up_proj_scale"),
                           *hidden = moegen_rt_problem_tensor(p, "hidden_states");
    double *row = hidden->data;
    uint8_t *codes = t->data;
    memset(hidden->data, 0, hidden->bytes);
    memset(codes, 0, t->bytes);
    memset(s->data, SCALE_ONE, s->bytes);
    row[0] = 1;
    row[1] = x - 1;
    codes[0] = codes[H] = codes[H + 1] = ONE; /* 1, and the sum of both */
    moegen_rt_problem *out = outputs(p, "moe_forward");
    double is = moegen_rt_problem_tensor(out, "output")->noise;
    CHECK(noise ? is > 1e-3 && is < 1 : is == 0, "p = %g makes noise of %g", x, is);
    moegen_rt_problem_destroy(p);
    moegen_rt_problem_destroy(out);
}

/* ---- what is refused ---- */

static void refused(void)
{
    static const struct {
        const char *params, *says;
    } cases[] = {
        {"weights.dtype mxfp4", "weights.layout: plain does not hold mxfp4"},
        {"weights.layout contiguous", "weights.layout: contiguous does not hold numbers"},
        {"weights.dtype nvfp4 weights.layout nki", "weights.layout: nki does not hold nvfp4"},
        {"weights.layout panels", "weights.layout: the float64 reference does not read 'panels'"},
        {"weights.layout packed", "weights.run: packed weights have runs"},
        {"weights.dtype int8 weights.scale block", "weights.scale: int8 has no scale 'block'"},
        {"weights.dtype int4 weights.layout contiguous weights.group 64",
         "weights.group: int4 has no groups of 64"},
        {"weights.dtype mxfp4 weights.layout nki H 520",
         "weights.layout: nki needs a multiple of 512 for H, here 520"},
        {"weights.dtype fp8_e5m2", "weights in fp8_e5m2 have no gradients: weight_grads"},
        {"weights.dtype fp7", "weights.dtype: the runtime has no dtype 'fp7'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        moegen_rt_error err = {""};
        moegen_rt_fill how = {.T = 5};
        moegen_rt_problem *p = moegen_rt_problem_create();
        const char *family = strstr(cases[i].says, "gradients") ? "moe_backward" : "moe_forward";
        set(p, "H 64 I_TP 32 E 2 block_size 4");
        set(p, cases[i].params);
        CHECK(moegen_rt_reference_find(family)->fill(p, &how, &err) &&
                  strstr(err.text, cases[i].says),
              "%s: %s", cases[i].params, err.text);
        moegen_rt_problem_destroy(p);
    }
}

/* Tensors of a dtype that codes or scales are not. */
static void other_dtypes(void)
{
    static const char *const names[] = {"gate_up_proj_weight", "gate_up_proj_scale"};
    static const char *const says[] = {"'gate_up_proj_weight' is of f32, which is not of 8 bits",
                                       "'gate_up_proj_scale' is of f32, expected u8"};
    for (int i = 0; i < 2; i++) {
        struct how w = how_of(&formats[5]);
        moegen_rt_error err = {""};
        moegen_rt_problem *p = stored_problem(&w, "moe_forward", MORE),
                          *out = moegen_rt_problem_create();
        moegen_rt_tensor t = *moegen_rt_problem_tensor(p, names[i]);
        moegen_rt_problem_add(p, names[i], MOEGEN_RT_F32, t.rank, t.shape, NULL, NULL);
        CHECK(moegen_rt_reference_find("moe_forward")->compute(p, NULL, out, &err) ==
                      MOEGEN_RT_BAD_ARGUMENT &&
                  strstr(err.text, says[i]),
              "%s", err.text);
        moegen_rt_problem_destroy(p);
        moegen_rt_problem_destroy(out);
    }
}

int main(void)
{
    for (int f = 0; f < FORMATS; f++) {
        filled(&formats[f]);
        nan_codes(&formats[f]);
    }
    for (int wide = 0; wide < 2; wide++) {
        on_the_way(CONTIGUOUS, &formats[3], wide);
        on_the_way(NKI, &formats[3], wide);
        on_the_way(TRANSPOSED, NULL, wide);
    }
    told(1.0625, true); /* in the middle of two codes */
    told(1.125, false);
    told(2, true); /* the largest, where exponents change */
    refused();
    other_dtypes();
    printf("%d complaints\n", failures);
    return failures != 0;
}
