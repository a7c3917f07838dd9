/* SPDX-License-Identifier: Apache-2.0 */
/* activations_test.c - the float64 activations: each derivative of the table against finite
 * differences of its function, from the smallest to large numbers, and both at their ends. */
#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "check.h"
#include "moegen_runtime.h"

static int compared;

/* A derivative at x against a difference over steps that fit x, with its error's next term taken
 * off. Beside a kink of the function (at 0) the difference would be that of both sides. */
static void slope_at(const moegen_rt_activation *a, double x)
{
    double step = fmax(1, fabs(x)) * 0x1p-10, one, two;
    if (x != 0 && fabs(x) <= 2 * step)
        step = fabs(x) / 4;
    one = (a->value(x + step) - a->value(x - step)) / (2 * step);
    two = (a->value(x + 2 * step) - a->value(x - 2 * step)) / (4 * step);
    double found = one + (one - two) / 3, slope = a->slope(x);
    compared++;
    CHECK(fabs(found - slope) <= 2e-9 * (1 + fabs(slope)), "%s: slope at %g is %g, not %g", a->name,
          x, slope, found);
}

/* f(x) tends to x or x^2 to the right and to 0 to the left, slopes accordingly. */
static void ends_of(const moegen_rt_activation *a, double x)
{
    double growth = a->value(1000) / 1000; /* 1, or x for a square */
    bool square = growth > 1;
    double y = a->value(x), d = a->slope(x), up = a->value(-x), slope_up = a->slope(-x);
    CHECK(y == 0 && d == 0, "%s: %g and %g at %g, not 0", a->name, y, d, x);
    CHECK(up == (square ? x * x : -x), "%s: %g at %g", a->name, up, -x);
    CHECK(slope_up == (square ? -2 * x : 1), "%s: slope %g at %g", a->name, slope_up, -x);
}

static void known_values(void)
{
    CHECK(fabs(moegen_rt_activation_find("silu")->value(1) - 0.7310585786300049) < 1e-15,
          "silu(1)");
    CHECK(fabs(moegen_rt_activation_find("gelu")->value(1) - 0.8413447460685429) < 1e-15,
          "gelu(1)");
    CHECK(fabs(moegen_rt_activation_find("gelu_tanh")->value(1) - 0.8411919906082768) < 1e-15,
          "gelu_tanh(1)");
    CHECK(fabs(moegen_rt_activation_find("swish")->value(1) - 0.8457957659328212) < 1e-15,
          "swish(1)");
}

int main(void)
{
    const moegen_rt_activation *a;
    for (int i = 0; (a = moegen_rt_activation_at(i)); i++) {
        const int before = failures;
        for (int n = 1; n <= 4000; n++) { /* from the smallest to the largest that matter */
            slope_at(a, n / 100.0);
            slope_at(a, -n / 100.0);
            slope_at(a, ldexp(1, n / 20 - 100));
            slope_at(a, -ldexp(1, n / 20 - 100));
        }
        ends_of(a, -1e4);
        ends_of(a, -(double)FLT_MAX);
        ends_of(a, -INFINITY);
        CHECK(isnan(a->value(NAN)) && isnan(a->slope(NAN)), "%s: NaN", a->name);
        CHECK(a->value(0) == 0 && a->slope(0) >= 0 && a->slope(0) <= 1, "%s: 0", a->name);
        printf("%s: %d complaints\n", a->name, failures - before);
    }
    known_values();
    printf("%d differences, %d complaints\n", compared, failures);
    return failures != 0 || compared == 0;
}
