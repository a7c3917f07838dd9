/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_activation.c - activations and their derivatives in float64, from the mathematics.
 *
 * A new activation: two functions and one row here (and one row in templates/math/activation.lua).
 */
#include <math.h>
#include <string.h>

#include "reference.h"

static double sigmoid(double x)
{
    if (x >= 0)
        return 1 / (1 + exp(-x));
    double e = exp(x); /* does not overflow */
    return e / (1 + e);
}

/* x times a factor that falls faster than x grows: 0 where it is 0, at infinity too. */
static double fading(double x, double factor)
{
    return factor == 0 ? 0 : x * factor;
}

static double silu(double x)
{
    return fading(x, sigmoid(x));
}

static double silu_slope(double x)
{
    return sigmoid(x) + fading(x, sigmoid(x) * sigmoid(-x));
}

static double gelu(double x)
{
    return fading(0.5 * x, erfc(-x * M_SQRT1_2));
}

static double gelu_slope(double x)
{
    double density = exp(-0.5 * x * x) * (0.5 * M_2_SQRTPI * M_SQRT1_2);
    return 0.5 * erfc(-x * M_SQRT1_2) + fading(x, density);
}

/* 0.5 (1 + tanh z) is sigmoid(2 z). */
static double gelu_tanh_argument(double x)
{
    return M_2_SQRTPI * M_SQRT1_2 * (x + 0.044715 * x * x * x);
}

static double gelu_tanh(double x)
{
    return fading(x, sigmoid(2 * gelu_tanh_argument(x)));
}

static double gelu_tanh_slope(double x)
{
    double z = gelu_tanh_argument(x), s = sigmoid(2 * z);
    double inner = M_2_SQRTPI * M_SQRT1_2 * (1 + 3 * 0.044715 * x * x);
    return s + fading(2 * x * inner, s * sigmoid(-2 * z));
}

static double swish(double x)
{
    return fading(x, sigmoid(1.702 * x));
}

static double swish_slope(double x)
{
    return sigmoid(1.702 * x) + fading(1.702 * x, sigmoid(1.702 * x) * sigmoid(-1.702 * x));
}

static double relu(double x)
{
    return x < 0 ? 0 : x; /* NaN stays */
}

static double relu_slope(double x)
{
    return x > 0 ? 1 : relu(x);
}

static double squared_relu(double x)
{
    return relu(x) * relu(x);
}

static double squared_relu_slope(double x)
{
    return 2 * relu(x);
}

static const moegen_rt_activation activations[] = {
    {"silu", silu, silu_slope, 0},
    {"gelu", gelu, gelu_slope, 0.5}, /* (1 + erf) / 2 */
    {"gelu_tanh", gelu_tanh, gelu_tanh_slope, 0},
    {"swish", swish, swish_slope, 0},
    {"relu", relu, relu_slope, 0},
    {"squared_relu", squared_relu, squared_relu_slope, 0},
};
enum { ACTIVATIONS = sizeof activations / sizeof *activations };

/* What is added to a sum of which a term is moved. */
static double moved_by(double term, int64_t way, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return term * (rt_moved(way, bits) - 1);
}

double rt_act(const moegen_rt_activation *act, int64_t way, double x)
{
    return act->value(x) + (act->term > 0 && isfinite(x) ? moved_by(x * act->term, way, x) : 0);
}

double rt_act_slope(const moegen_rt_activation *act, int64_t way, double x)
{
    if (way == 0 || x == 0 || !isfinite(x))
        return act->slope(x);
    return act->slope(x) + moved_by(fmax(act->term, fabs(act->value(x) / x)), way, x);
}

const moegen_rt_activation *moegen_rt_activation_at(int i)
{
    return i >= 0 && i < ACTIVATIONS ? &activations[i] : NULL;
}

const moegen_rt_activation *moegen_rt_activation_find(const char *name)
{
    for (int i = 0; i < ACTIVATIONS; i++)
        if (strcmp(activations[i].name, name) == 0)
            return &activations[i];
    return NULL;
}
