/* SPDX-License-Identifier: Apache-2.0 */
/* references_test.c - identities that the float64 references must keep: options that only move or
 * scale, ties, experts without a token, accumulated and partial gradients. */
#include <stdlib.h>

#include "reference/kept.h"
#include "references.h"

/* fuse_mul scales row g[r] by its weight; without reduce_topk the rows of a token are apart. */
static void grouped_options(void)
{
    moegen_rt_problem *p = moegen_rt_problem_create();
    int64_t n, m;
    set(p, "N 5 K 3 E 4 top_k 2 dtype f64 permute y fuse_mul post");
    fill(p, "grouped_gemm", 6, NULL);
    moegen_rt_problem *with = outputs(p, "grouped_gemm");
    moegen_rt_problem_set(p, "fuse_mul", "none");
    moegen_rt_problem *without = outputs(p, "grouped_gemm");
    const double *y = data(with, "Y", &n), *plain = data(without, "Y", &m);
    const double *w = data(p, "topk_weights", &m);
    for (int64_t i = 0; i < n; i++)
        CHECK(fabs(y[i] - w[i / 5] * plain[i]) < 1e-13, "fuse_mul: Y[%lld]", (long long)i);
    moegen_rt_problem_destroy(with);
    moegen_rt_problem_destroy(without);
    set(p, "permute x op dX");
    fill(p, "grouped_gemm", 6, NULL);
    with = outputs(p, "grouped_gemm");
    moegen_rt_problem_set(p, "reduce_topk", "false");
    without = outputs(p, "grouped_gemm");
    const double *dx = data(with, "dX", &n), *apart = data(without, "dX", &m);
    CHECK(m == 2 * n, "expanded dX has %lld elements", (long long)m);
    for (int64_t i = 0; i < n; i++)
        CHECK(fabs(dx[i] - apart[i / 3 * 6 + i % 3] - apart[i / 3 * 6 + 3 + i % 3]) < 1e-13,
              "reduce_topk: dX[%lld]", (long long)i);
    ((int32_t *)moegen_rt_problem_tensor(p, "m_sizes")->data)[0]++;
    moegen_rt_error err = {""};
    CHECK(moegen_rt_reference_find("grouped_gemm")->compute(p, NULL, with, &err) ==
                  MOEGEN_RT_BAD_DATA &&
              strstr(err.text, "sum of m_sizes is 13; there are 12 rows"),
          "%s", err.text);
    moegen_rt_problem_destroy(with);
    moegen_rt_problem_destroy(without);
    moegen_rt_problem_destroy(p);
}

/* All outputs of two problems agree. */
static void same(const moegen_rt_problem *a, const moegen_rt_problem *b, double limit,
                 const char *what)
{
    int64_t n, m;
    for (size_t k = 0; moegen_rt_problem_at(a, k); k++) {
        const char *name = moegen_rt_problem_at(a, k)->name;
        const double *x = data(a, name, &n), *y = data(b, name, &m);
        CHECK(n == m, "%s: sizes of %s", what, name);
        for (int64_t i = 0; i < n && n == m; i++)
            CHECK(fabs(x[i] - y[i]) <= limit * (1 + fabs(x[i])), "%s: %s[%lld]: %g and %g", what,
                  name, (long long)i, x[i], y[i]);
    }
}

static void renormalised(void)
{
    static const char *const ops[] = {"forward", "backward"};
    for (int i = 0; i < 2; i++) {
        moegen_rt_problem *p = moegen_rt_problem_create();
        set(p, "H 6 E 7 top_k 3 dtype f64 bias true method topk_softmax");
        moegen_rt_problem_set(p, "op", ops[i]);
        fill(p, "router", 20, NULL);
        moegen_rt_problem *a = outputs(p, "router");
        moegen_rt_problem_set(p, "method", "softmax_topk_renorm");
        moegen_rt_problem *b = outputs(p, "router");
        same(a, b, 1e-13, "topk_softmax and softmax_topk_renorm");
        moegen_rt_problem_destroy(a);
        moegen_rt_problem_destroy(b);
        moegen_rt_problem_destroy(p);
    }
}

/* Equal logits: the lower index first. The routing of the filler is the router's. */
static void ties(void)
{
    int64_t n;
    moegen_rt_problem *p = moegen_rt_problem_create();
    set(p, "H 4 E 5 top_k 3 dtype f64");
    fill(p, "router", 4, NULL);
    double *w = data(p, "router_weight", &n);
    for (int64_t i = 0; i < n; i++)
        w[i] = 0.25;
    moegen_rt_problem *out = outputs(p, "router");
    const double *index = data(out, "expert_index", &n);
    for (int64_t i = 0; i < n; i++)
        CHECK(index[i] == (double)(i % 3), "tie: place %lld is %g", (long long)i, index[i]);
    moegen_rt_problem_destroy(out);
    set(p, "H 64 E 5 top_k 2");
    fill(p, "router", 40, "empty_middle");
    out = outputs(p, "router");
    index = data(out, "expert_index", &n);
    for (int64_t i = 0; i < n; i++)
        CHECK(index[i] != 2, "expert 2 is not empty");
    moegen_rt_problem_destroy(out);
    moegen_rt_problem_destroy(p);
}

/* ---- what holds for all ---- */

/* Experts without a token have gradients that are exactly zero. */
static void empty_experts(void)
{
    static const char *const of[] = {"gate_up_proj_weight_grad", "down_proj_weight_grad",
                                     "gate_and_up_proj_bias_grad", "down_proj_bias_grad"};
    moegen_rt_problem *p = moegen_rt_problem_create();
    set(p, "H 5 I_TP 4 E 3 top_k 2 block_size 4 bias true dtype f64");
    fill(p, "moe_backward", 9, "empty_middle");
    moegen_rt_problem *g = outputs(p, "moe_backward");
    for (int k = 0; k < 4; k++) {
        int64_t n, used = 0;
        const double *x = data(g, of[k], &n);
        for (int64_t i = 0; i < n; i++) {
            CHECK(i / (n / 3) != 1 || x[i] == 0, "%s[%lld] is %g", of[k], (long long)i, x[i]);
            used += x[i] != 0;
        }
        CHECK(used == n / 3 * 2, "%s has %lld elements that are not zero", of[k], (long long)used);
    }
    moegen_rt_problem_destroy(g);
    moegen_rt_problem_destroy(p);
}

/* What is kept of a reference compares as all of it does: a result with an error here and there,
 * and one that is NaN where something is compared. Returns whether something was left out. */
static bool kept(const moegen_rt_tensor *want, const double *exact)
{
    int64_t n = moegen_rt_tensor_count(want), at = 0;
    float *x = malloc((size_t)n * sizeof *x);
    moegen_rt_tensor got = *want;
    got.dtype = MOEGEN_RT_F32;
    got.data = x;
    got.bytes = (size_t)n * sizeof *x;
    struct rt_kept k;
    int worthwhile = 0;
    CHECK(x && !rt_keep(want, &k, &worthwhile), "%s: no memory", want->name);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)exact[i] * (i % 7 ? 1 : 1 + 0x1p-21f);
        at = isnan(((const double *)want->data)[i]) ? at : i;
    }
    for (int round = 0; worthwhile && round < 2; round++) {
        moegen_rt_comparison a, b;
        x[at] = round ? NAN : x[at];
        CHECK(!moegen_rt_compare(&got, want, &a, NULL) && !rt_kept_compare(&k, &got, &b, NULL),
              "%s: not compared", want->name);
        bool alike = a.ok == b.ok && a.compared == b.compared && a.nans == b.nans;
        bool close = fabs(a.l2 / b.l2 - 1) < 1e-9 && fabs(a.roundings / b.roundings - 1) < 1e-9;
        CHECK(alike && (a.nans || close), "%s: kept %s, whole %s", want->name, b.text, a.text);
    }
    rt_kept_free(&k);
    free(x);
    return worthwhile;
}

/* Gradients of parameters start from the caller's, all others do not. A part of the tokens gives
 * the same values as all of them, where it gives any. */
static void parts_and_sums(const char *family, const char *params)
{
    moegen_rt_error err = {""};
    moegen_rt_problem *p = moegen_rt_problem_create();
    set(p, "H 5 I_TP 9 E 3 top_k 2 block_size 4 bias true dtype f64 N 11 K 4");
    set(p, params);
    moegen_rt_problem_set(p, "accumulate_grads", "true");
    fill(p, family, 30, NULL);
    moegen_rt_problem *sums = outputs(p, family), *part = moegen_rt_problem_create();
    moegen_rt_problem_set(p, "accumulate_grads", "false");
    moegen_rt_problem *g = outputs(p, family);
    int64_t tokens[] = {0, 17, 29}, n, m, starts = 0, given = 0, all = 0;
    moegen_rt_want want = {.tokens = tokens, .token_count = 3}, few = {.features = 2};
    int left_out = 0;
    CHECK(!moegen_rt_reference_find(family)->compute(p, &want, part, &err), "%s", err.text);
    moegen_rt_problem *features = moegen_rt_problem_create();
    CHECK(!moegen_rt_reference_find(family)->compute(p, &few, features, &err), "%s", err.text);
    for (size_t k = 0; moegen_rt_problem_at(g, k); k++) {
        const char *name = moegen_rt_problem_at(g, k)->name;
        const double *x = data(g, name, &n), *y = data(sums, name, &m),
                     *some = data(part, name, &m), *lean = data(features, name, &m);
        left_out += kept(moegen_rt_problem_tensor(part, name), x) +
                    kept(moegen_rt_problem_tensor(features, name), x);
        const double *start = moegen_rt_problem_tensor(p, name) ? data(p, name, &m) : NULL;
        starts += start != NULL;
        for (int64_t i = 0; i < n; i++) {
            double from = start ? start[i] : 0;
            CHECK(fabs(y[i] - x[i] - from) < 1e-12, "%s: sum %s[%lld]", family, name, (long long)i);
            CHECK(isnan(some[i]) || fabs(some[i] - x[i]) < 1e-12, "%s: part of %s[%lld]", family,
                  name, (long long)i);
            CHECK(isnan(lean[i]) || fabs(lean[i] - x[i]) < 1e-12, "%s: features of %s[%lld]",
                  family, name, (long long)i);
            given += !isnan(some[i]);
        }
        all += n;
    }
    CHECK(starts > 0 || strcmp(params, "op dX permute x") == 0, "%s: nothing to add to", family);
    CHECK(left_out > 0 || strcmp(family, "router") == 0, "%s: nothing is left out", family);
    CHECK(given > 0 && (given < all / 2 || strcmp(family, "router") == 0), "%s: %lld of %lld given",
          family, (long long)given, (long long)all);
    moegen_rt_problem_destroy(p);
    moegen_rt_problem_destroy(g);
    moegen_rt_problem_destroy(sums);
    moegen_rt_problem_destroy(part);
    moegen_rt_problem_destroy(features);
}

int main(void)
{
    grouped_options();
    renormalised();
    ties();
    empty_experts();
    parts_and_sums("moe_backward", "checkpoint saved");
    parts_and_sums("moe_backward", "checkpoint recompute affinity.on intermediate");
    parts_and_sums("moe_backward", "checkpoint recompute weights.layout transposed "
                                   "weights.gate_up_order interleaved");
    parts_and_sums("moe_backward", "weights.layout transposed weights.gate_up separate");
    parts_and_sums("mlp_backward", "activation gelu");
    parts_and_sums("grouped_gemm", "op dW permute y");
    parts_and_sums("grouped_gemm", "op dX permute x");
    parts_and_sums("router", "op backward");
    printf("%d complaints\n", failures);
    return failures != 0;
}
