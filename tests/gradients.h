/* SPDX-License-Identifier: Apache-2.0 */
/* gradients.h - gradients of float64 references against central finite differences of their forward
 * passes; included once by each test. */
#include "references.h"

static int compared;

/* A forward pass as a scalar: the sum over outputs of output times weight. */
struct scalar {
    const char *family;
    const char *output[3]; /* up to the first NULL */
    const char *weight[3]; /* a tensor of the problem; NULL: 1 */
};

static inline double value(const moegen_rt_problem *p, const struct scalar *f)
{
    moegen_rt_problem *out = outputs(p, f->family);
    double sum = 0;
    for (int i = 0; i < 3 && f->output[i]; i++) {
        int64_t n, m;
        const double *y = data(out, f->output[i], &n), *w = NULL;
        if (f->weight[i]) {
            w = data(p, f->weight[i], &m);
            CHECK(n <= m, "%s has %lld weights", f->output[i], (long long)m);
        }
        for (int64_t j = 0; j < n; j++)
            sum += w ? y[j] == 0 ? 0 : w[j] * y[j] : y[j];
    }
    moegen_rt_problem_destroy(out);
    return sum;
}

/* Compares every `stride`-th element of the gradient `of` (in grads) with differences over input.
 */
static inline void differences(moegen_rt_problem *p, const struct scalar *f, const char *input,
                               const moegen_rt_problem *grads, const char *of, int64_t stride,
                               const char *what)
{
    const double step = 1e-5;
    int64_t n, m;
    double *x = data(p, input, &n), *g = data(grads, of, &m), size = 0;
    CHECK(n == m, "%s: %s has %lld elements, %s %lld", what, input, (long long)n, of, (long long)m);
    for (int64_t i = 0; i < n && n == m; i++)
        size += g[i] * g[i] / (double)n;
    size = sqrt(size);
    for (int64_t i = 0; i < n && n == m; i += stride) {
        double was = x[i];
        x[i] = was + step;
        double up = value(p, f);
        x[i] = was - step;
        double slope = (up - value(p, f)) / (2 * step);
        x[i] = was;
        compared++;
        CHECK(fabs(slope - g[i]) <= 2e-7 * (1 + size + fabs(g[i])), "%s: %s[%lld] is %g, not %g",
              what, of, (long long)i, g[i], slope);
    }
}

/* ---- what cases are made of ---- */

/* Name of an activation; i counts on through the table. */
static inline const char *act_name(int i)
{
    int n = 0;
    while (moegen_rt_activation_at(n))
        n++;
    return moegen_rt_activation_at(i % n)->name;
}

static const char *const affinities[] = {
    "affinity.scale post affinity.on hidden", "affinity.scale post affinity.on intermediate",
    "affinity.scale pre affinity.on hidden", "affinity.scale none affinity.on hidden"};
static const char *const methods[] = {"softmax_topk", "softmax_topk_renorm", "topk_softmax",
                                      "sigmoid_topk", "sigmoid_topk_renorm", "topk_sigmoid"};
