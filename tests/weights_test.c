/* SPDX-License-Identifier: Apache-2.0 */
/* weights_test.c - the references give the same whatever way the experts' matrices are stored: each
 * layout and format against plain matrices of doubles, decoded here on their own. */
#include "stored.h"

/* All outputs of a that b has, too, agree. */
static int compare(const struct how *w, const moegen_rt_problem *a, const moegen_rt_problem *b,
                   double limit)
{
    int compared = 0;
    char text[256];
    say(w, text, sizeof text);
    for (size_t k = 0; moegen_rt_problem_at(a, k); k++) {
        const char *name = moegen_rt_problem_at(a, k)->name;
        int64_t n, m;
        if (strstr(name, "weight_grad") || strstr(name, "up_proj_bias_grad"))
            continue;
        const double *x = data(a, name, &n), *y = data(b, name, &m);
        double size = 0, worst = 0;
        for (int64_t i = 0; i < n && n == m; i++) {
            size = fmax(size, fabs(y[i]));
            worst = x[i] == y[i] || (isnan(x[i]) && isnan(y[i])) ? worst
                                                                 : fmax(worst, fabs(x[i] - y[i]));
            CHECK(isnan(x[i]) == isnan(y[i]), "%s: %s[%lld] is %g", text, name, (long long)i, x[i]);
        }
        CHECK(n == m && size > 0 && worst <= limit * size, "%s: %s is off by %g of %g", text, name,
              worst, size);
        compared++;
    }
    return compared;
}

/* The gradients of a family's parameters, where the parameters themselves are. */
static void compare_gradients(const struct how *w, const moegen_rt_problem *got,
                              const moegen_rt_problem *want)
{
    char name[64];
    struct piece all[3];
    int64_t count, C = (w->gated ? 2 : 1) * w->I;
    for (int i = 0, many = pieces(w, all); i < many; i++) {
        const struct piece *x = &all[i];
        snprintf(name, sizeof name, "%s_grad", x->weight);
        const moegen_rt_tensor *t = moegen_rt_problem_tensor(got, name);
        const double *plain =
            data(want, x->down ? "down_proj_weight_grad" : "gate_up_proj_weight_grad", &count);
        int64_t columns = x->down ? w->H : C, bad = 0, used = 0;
        CHECK(t, "no %s", name);
        if (!t)
            continue;
        EACH_CODE(w, x, t, e, n, s)
        {
            double v = plain[(e * x->K + s.k) * columns + x->first + s.c];
            bad += number(t, e * all_ + n) != v;
            used += v != 0;
        }
        CHECK(bad == 0 && used > 0, "%s: %lld elements are others", name, (long long)bad);
    }
    const moegen_rt_tensor *bias = moegen_rt_problem_tensor(got, "gate_and_up_proj_bias_grad");
    const double *plain = data(want, "gate_and_up_proj_bias_grad", &count);
    double *mine = calloc((size_t)count, sizeof *mine);
    plain_bias(w, bias, mine);
    for (int64_t i = 0; i < count; i++)
        CHECK(mine[i] == plain[i], "bias gradient %lld: %g and %g", (long long)i, mine[i],
              plain[i]);
    free(mine);
}

/* The filler gives the same matrices in all layouts; forward and backward give the same bits. */
static void layout_case(const struct how *w, const char *family, const char *more, bool backward)
{
    struct how plain = {.H = w->H, .I = w->I, .E = w->E, .gated = w->gated};
    moegen_rt_problem *p = stored_problem(w, family, more),
                      *q = stored_problem(&plain, family, more), *back = plain_problem(w, p, more);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"gate_up_proj_weight", "down_proj_weight",
                                            "gate_and_up_proj_bias"};
        const moegen_rt_tensor *a = moegen_rt_problem_tensor(back, names[i]),
                               *b = moegen_rt_problem_tensor(q, names[i]);
        int64_t bad = 0;
        for (int64_t j = 0; j < moegen_rt_tensor_count(b); j++)
            bad += number(a, j) != number(b, j);
        CHECK(bad == 0, "%s is filled with other values", names[i]);
    }
    moegen_rt_problem *got = outputs(p, family), *want = outputs(q, family);
    CHECK(compare(w, got, want, 0) > 0, "nothing to compare");
    if (backward)
        compare_gradients(w, got, want);
    moegen_rt_problem_destroy(p);
    moegen_rt_problem_destroy(q);
    moegen_rt_problem_destroy(back);
    moegen_rt_problem_destroy(got);
    moegen_rt_problem_destroy(want);
}

static void all_layouts(void)
{
    static const char *const dtypes[] = {"f32", "bf16", "f16", "f64"};
    static const struct {
        const char *family, *more;
        bool backward;
    } cases[] = {
        {"moe_forward", "bias true checkpoint save", false},
        {"moe_backward", "bias true", true},
        {"moe_backward", "bias true checkpoint recompute accumulate_grads true", true},
        {"moe_layer", "bias true", false},
        {"moe_layer", "bias true op backward accumulate_grads true", true},
    };
    for (int i = 0; i < 2 * 2 * 2 * 2; i++) {
        struct how w = {.H = 35,
                        .I = 19,
                        .E = 3,
                        .gated = i & 1,
                        .interleaved = i & 2,
                        .separate = i & 4,
                        .layout = i & 8 ? TRANSPOSED : PLAIN};
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            char more[128];
            snprintf(more, sizeof more, "dtype %s %s", dtypes[(i + (int)k) % 4], cases[k].more);
            layout_case(&w, cases[k].family, more, cases[k].backward);
        }
    }
}

/* Products of decoded matrices, whoever decodes them. */
static void format_case(const struct how *w)
{
    static const struct {
        const char *family, *more;
    } cases[] = {
        {"moe_forward", "dtype f64 bias true checkpoint save clamp.up.hi 2"},
        {"moe_backward", "dtype f64 bias true weight_grads none checkpoint recompute"},
        {"moe_layer", "dtype f64 bias true"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        moegen_rt_problem *p = stored_problem(w, cases[k].family, cases[k].more),
                          *q = plain_problem(w, p, cases[k].more);
        moegen_rt_problem *got = outputs(p, cases[k].family), *want = outputs(q, cases[k].family);
        int all = compare(w, got, want, 1e-13);
        CHECK(all == 3 - (int)k && !moegen_rt_problem_at(got, (size_t)all), "%d outputs of %s", all,
              cases[k].family);
        moegen_rt_problem_destroy(p);
        moegen_rt_problem_destroy(q);
        moegen_rt_problem_destroy(got);
        moegen_rt_problem_destroy(want);
    }
}

static void all_formats(void)
{
    for (int f = 0; f < FORMATS; f++)
        for (int i = 0; i < 2 * 2 * 2 * 2 * 4 * LAYOUTS; i++) {
            struct how w = {.H = 150,
                            .I = 70,
                            .E = 2,
                            .gated = i & 1,
                            .interleaved = i & 2,
                            .separate = i & 4,
                            .shared = i & 8,
                            .share = (enum share)(i >> 4 & 3),
                            .layout = (enum layout)(i >> 6),
                            .format = &formats[f]};
            if (!is_sound(&w))
                continue;
            if (w.layout == NKI) {
                if (w.interleaved && (w.shared || !w.gated || w.separate))
                    continue; /* gate and up have an extent: there is no order */
                w.H = w.shared ? 1024 : 512;
                w.I = w.gated && !w.shared && !w.interleaved && !w.separate ? 600 : 36;
            }
            format_case(&w);
        }
}

int main(void)
{
    all_layouts();
    all_formats();
    printf("%d complaints\n", failures);
    return failures != 0;
}
