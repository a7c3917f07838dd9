/* SPDX-License-Identifier: Apache-2.0 */
/* products.c - rows of float64 times matrices. */
#include <string.h>

#include "reference.h"
#include "rt_wide.h"

WIDE static void add_four(double *restrict acc, const double *restrict w, const double *x,
                          int64_t n)
{
    const double a = x[0], b = x[1], c = x[2], d = x[3];
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        EACH acc[i + j] +=
            (a * w[i + j] + b * w[n + i + j]) + (c * w[2 * n + i + j] + d * w[3 * n + i + j]);
    for (; i < n; i++)
        acc[i] += (a * w[i] + b * w[n + i]) + (c * w[2 * n + i] + d * w[3 * n + i]);
}

/* n elements from element `first` on: where they lie if they are doubles, else in `work`. */
static const double *elements(const moegen_rt_tensor *t, int64_t first, int64_t n, double *work)
{
    if (t->dtype == MOEGEN_RT_F64)
        return (const double *)t->data + first;
    rt_elements(t, first, n, work);
    return work;
}

void rt_product(const double *x, int64_t rows, int64_t k, const moegen_rt_tensor *t, int64_t first,
                int64_t n, double *acc, double *work)
{
    for (int64_t i = 0; i < k; i += 4) {
        int64_t m = k - i < 4 ? k - i : 4; /* rows of W at a time */
        const double *w = m == 4 ? elements(t, first + i * n, m * n, work) : work;
        if (m < 4) {
            rt_elements(t, first + i * n, m * n, work);
            memset(work + m * n, 0, (size_t)((4 - m) * n) * sizeof *work);
        }
        for (int64_t r = 0; r < rows; r++) {
            double four[4] = {0};
            memcpy(four, x + r * k + i, (size_t)m * sizeof *four);
            add_four(acc + r * n, w, four, n);
        }
    }
}

WIDE static double dot(const double *x, const double *y, int64_t n)
{
    double sum[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        EACH sum[j] += x[i + j] * y[i + j];
    for (; i < n; i++)
        sum[0] += x[i] * y[i];
    for (int half = LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            sum[j] += sum[j + half];
    return sum[0];
}

double rt_dot(const double *x, const double *y, int64_t n)
{
    return dot(x, y, n);
}

void rt_product_t(const double *x, int64_t rows, int64_t k, const moegen_rt_tensor *t,
                  int64_t first, int64_t n, double *acc, double *work)
{
    for (int64_t j = 0; j < n; j++) {
        const double *w = elements(t, first + j * k, k, work);
        for (int64_t r = 0; r < rows; r++)
            acc[r * n + j] += dot(x + r * k, w, k);
    }
}

/* to[y_at[j]] += f[0] y[j] + .. + f[count - 1] y[(count - 1) n + j], count 1 or 4 */
static void add_rows(double *restrict to, const double *restrict y, int64_t n, const int64_t *y_at,
                     const double *f, int64_t count)
{
    for (int64_t j = 0; y_at && j < n; j++)
        for (int64_t r = 0; r < count; r++)
            to[y_at[j]] += f[r] * y[r * n + j];
    if (!y_at && count == 4)
        add_four(to, y, f, n);
    for (int64_t j = 0; !y_at && count == 1 && j < n; j++)
        to[j] += f[0] * y[j];
}

void rt_outer(const double *x, int64_t rows, int64_t m, const int64_t *x_at, const double *y,
              int64_t n, const int64_t *y_at, double *acc, int64_t stride)
{
    for (int64_t i = 0; i < m; i++) {
        double *to = acc + (x_at ? x_at[i] : i) * stride;
        for (int64_t r = 0; r < rows;) {
            int64_t count = rows - r >= 4 ? 4 : 1;
            double f[4] = {0};
            for (int64_t j = 0; j < count; j++)
                f[j] = x[(r + j) * m + i];
            add_rows(to, y + r * n, n, y_at, f, count);
            r += count;
        }
    }
}
