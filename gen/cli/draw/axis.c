/* SPDX-License-Identifier: Apache-2.0 */
/* axis.c - axes: where values are, ticks, titles. */
#include <math.h>
#include <stdlib.h>

#include "draw.h"

static const double steps[] = {1, 2, 5, 10};

struct axis_scale axis_linear(double from, double most, double at, double until)
{
    double span = most - from > 0 ? most - from : 1, ten = pow(10, floor(log10(span / 4)));
    struct axis_scale a = {.from = from, .at = at, .until = until, .step = ten};
    for (int i = 0; i < 4 && span / a.step > 8; i++)
        a.step = ten * steps[i];
    a.from = a.step * floor(from / a.step + 1e-9);
    a.to = a.from + a.step * ceil((most - a.from) * 1.02 / a.step);
    a.to = a.to > a.from ? a.to : a.from + a.step;
    return a;
}

/* The largest of 1, 2, 5 times a power of ten that is at most x. */
static double tidy(double x)
{
    double ten = pow(10, floor(log10(x) + 1e-9));
    return x >= 5 * ten ? 5 * ten : x >= 2 * ten ? 2 * ten : ten;
}

struct axis_scale axis_log(double least, double most, double at, double until)
{
    struct axis_scale a = {.from = tidy(least), .at = at, .until = until, .log = true};
    a.to = tidy(most);
    if (a.to < most)
        a.to = tidy(a.to * 2.6);
    if (a.to < a.from * 4)
        a.to = tidy(a.from * 5.2);
    return a;
}

double axis_at(const struct axis_scale *a, double value)
{
    double share = a->log ? log(value / a->from) / log(a->to / a->from)
                          : (value - a->from) / (a->to - a->from);
    return a->at + share * (a->until - a->at);
}

static bool is_long(const struct axis_scale *a)
{
    return a->to / a->from > 2e4;
}

/* The tick after `value`; of a logarithmic axis 1, 2, 5, 10, or 1, 10, 100 where it is long. */
static double next_tick(const struct axis_scale *a, double value)
{
    if (!a->log)
        return value + a->step;
    double ten = pow(10, floor(log10(value) + 1e-9)), of = value / ten;
    return ten * (is_long(a) ? 10 : of < 1.5 ? 2 : of < 3 ? 5 : 10);
}

static double first_tick(const struct axis_scale *a)
{
    return a->log && is_long(a) ? pow(10, ceil(log10(a->from) - 1e-9)) : a->from;
}

static void put_tick_x(struct page *p, const struct axis_scale *a, double v, double from, double to)
{
    char number[32];
    double x = axis_at(a, v);
    put_line(p, x, from, x, to + 5, v > a->from ? "grid" : "axis");
    snprintf(number, sizeof number, "%.6g", v);
    put_label(p, x, to + 20, ANCHOR_MIDDLE, SMALL_LETTER, "ink", number);
}

static void put_base_x(struct page *p, const struct axis_scale *a, double to, const char *title)
{
    put_line(p, a->at, to, a->until, to, "axis");
    put_label(p, (a->at + a->until) / 2, to + 40, ANCHOR_MIDDLE, SMALL_LETTER, "ink", title);
}

void put_axis_x(struct page *p, const struct axis_scale *a, double from, double to,
                const char *title)
{
    for (double v = first_tick(a); v <= a->to * (1 + 1e-9); v = next_tick(a, v))
        put_tick_x(p, a, v, from, to);
    put_base_x(p, a, to, title);
}

void put_axis_x_at(struct page *p, const struct axis_scale *a, const double *value, int values,
                   double from, double to, const char *title)
{
    enum { ROOM = 44 };
    double last = -INFINITY;
    for (int i = 0; i < values; i++)
        if (axis_at(a, value[i]) - last >= ROOM) {
            last = axis_at(a, value[i]);
            put_tick_x(p, a, value[i], from, to);
        }
    put_base_x(p, a, to, title);
}

void put_axis_y(struct page *p, const struct axis_scale *a, double from, double to,
                const char *title)
{
    char number[32];
    for (double v = first_tick(a); v <= a->to * (1 + 1e-9); v = next_tick(a, v)) {
        double y = axis_at(a, v);
        put_line(p, from - 5, y, to, y, v > a->from ? "grid" : "axis");
        snprintf(number, sizeof number, "%.6g", v);
        put_label(p, from - 8, y + 4, ANCHOR_END, SMALL_LETTER, "ink", number);
    }
    put_line(p, from, a->at, from, a->until, "axis");
    put_label(p, PAGE_GAP, a->until - 14, ANCHOR_START, SMALL_LETTER, "ink", title);
}

void spread_labels(double *y, int count, double least, double bottom)
{
    /* Few: the nearest free place below all that are above, then back from the bottom. */
    int order[64];
    count = count < 64 ? count : 64;
    for (int i = 0; i < count; i++) {
        int k = i;
        for (; k > 0 && y[order[k - 1]] > y[i]; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
    for (int i = 1; i < count; i++)
        y[order[i]] = fmax(y[order[i]], y[order[i - 1]] + least);
    for (int i = count - 1; i >= 0; i--)
        y[order[i]] = fmin(y[order[i]], i == count - 1 ? bottom : y[order[i + 1]] - least);
}
