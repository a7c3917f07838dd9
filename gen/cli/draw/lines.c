/* SPDX-License-Identifier: Apache-2.0 */
/* lines.c - speed over the number of tokens, and over that of threads: a line for each kernel and
 * variant that was measured with several. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

enum {
    LEFT = 76,
    SPAN = 620,
    HIGH = 300,
    LINE = 15,
    MOST_SERIES = 24,
    COLOURS = 6,
    MOST_TICKS = 64
};

/* What a line is over. */
static const struct quantity {
    const char *title, *axis, *word; /* word: of a variant, which differs along a line */
    size_t at;
} quantities[] = {
    {"Speed over the number of tokens", "tokens, T", "T=", offsetof(struct point, T)},
    {"Speed over threads", "threads", "threads=", offsetof(struct point, threads)},
};

static double value_of(const struct quantity *q, const struct point *x)
{
    double value;
    memcpy(&value, (const char *)x + q->at, sizeof value);
    return value;
}

/* Kernel and variant, without the word that differs. */
static void name_of(const struct quantity *q, const struct point *x, char out[300])
{
    int n = snprintf(out, 300, "%.140s", x->kernel);
    for (const char *s = x->variant; *s && n < 150;) {
        size_t len = strcspn(s, " ");
        if (strncmp(s, q->word, strlen(q->word)) != 0)
            n += snprintf(out + n, (size_t)(300 - n), " %.*s", (int)(len < 100 ? len : 100), s);
        s += len + (s[len] == ' ');
    }
}

/* series[i]: of point i, or -1. Returns how many series have two values at least. */
static int find_series(const struct points *s, const struct quantity *q, int *series)
{
    int count = 0;
    for (int i = 0; i < s->count; i++)
        series[i] = -1;
    for (int i = 0; i < s->count && count < MOST_SERIES; i++) {
        char mine[300], other[300];
        bool several = false;
        double value = value_of(q, &s->point[i]);
        if (series[i] >= 0 || !isfinite(s->point[i].gflops) || !(value > 0))
            continue;
        name_of(q, &s->point[i], mine);
        series[i] = count;
        for (int k = i + 1; k < s->count; k++) {
            name_of(q, &s->point[k], other);
            if (series[k] >= 0 || strcmp(mine, other) != 0 || !isfinite(s->point[k].gflops) ||
                !(value_of(q, &s->point[k]) > 0))
                continue;
            series[k] = count;
            several = several || fabs(value_of(q, &s->point[k]) - value) > 0;
        }
        count += several;
        for (int k = i; k < s->count && !several; k++)
            series[k] = series[k] == count ? -1 : series[k];
    }
    return count;
}

/* The point of that series with the least value above `above`, or -1. */
static int next_point(const struct points *s, const struct quantity *q, const int *series, int one,
                      double above)
{
    int found = -1;
    for (int i = 0; i < s->count; i++) {
        double value = value_of(q, &s->point[i]);
        if (series[i] == one && value > above &&
            (found < 0 || value < value_of(q, &s->point[found])))
            found = i;
    }
    return found;
}

/* Returns its last point. */
static int put_series(struct page *p, const struct points *s, const struct quantity *q,
                      const int *series, int one, const struct axis_scale *x,
                      const struct axis_scale *y)
{
    char line[16], dot[8];
    int last = -1;
    snprintf(dot, sizeof dot, "c%d", one % COLOURS);
    snprintf(line, sizeof line, "line %s", dot);
    for (int i = next_point(s, q, series, one, 0); i >= 0;
         i = next_point(s, q, series, one, value_of(q, &s->point[i]))) {
        const struct point *at = &s->point[i];
        double px = axis_at(x, value_of(q, at)), py = axis_at(y, at->gflops);
        if (last >= 0)
            put_line(p, axis_at(x, value_of(q, &s->point[last])), axis_at(y, s->point[last].gflops),
                     px, py, line);
        if (isfinite(at->low) && isfinite(at->high))
            put_whisker(p, axis_at(y, at->low), axis_at(y, at->high), px, true);
        put_dot(p, px, py, 4, dot);
        last = i;
    }
    return last;
}

/* The values that are measured, ascending. */
static int ticks_of(const struct points *s, const struct quantity *q, const int *series,
                    double tick[MOST_TICKS])
{
    int count = 0;
    for (double above = 0; count < MOST_TICKS; above = tick[count - 1]) {
        double least = INFINITY;
        for (int i = 0; i < s->count; i++)
            if (series[i] >= 0 && value_of(q, &s->point[i]) > above)
                least = fmin(least, value_of(q, &s->point[i]));
        if (!isfinite(least))
            break;
        tick[count++] = least;
    }
    return count;
}

static void put_quantity(struct page *p, const struct points *s, const struct quantity *q,
                         const int *series, int count)
{
    double tick[MOST_TICKS], high = 0, label[MOST_SERIES], want[MOST_SERIES];
    int last[MOST_SERIES], ticks = ticks_of(s, q, series, tick);
    for (int i = 0; i < s->count; i++)
        if (series[i] >= 0)
            high = fmax(high, fmax(s->point[i].gflops, s->point[i].high));
    put_title(p, q->title);
    double top = p->bottom + 44, beside = pow(tick[ticks - 1] / tick[0], 0.05);
    struct axis_scale y = axis_linear(0, high, top + HIGH, top),
                      x = {.from = tick[0] / beside,
                           .to = tick[ticks - 1] * beside,
                           .at = LEFT,
                           .until = LEFT + SPAN,
                           .log = true};
    put_axis_x_at(p, &x, tick, ticks, top, top + HIGH, q->axis);
    put_axis_y(p, &y, LEFT, LEFT + SPAN, "floating-point operations per second, GFLOP/s");
    for (int i = 0; i < count; i++) {
        last[i] = put_series(p, s, q, series, i, &x, &y);
        label[i] = want[i] = axis_at(&y, s->point[last[i]].gflops);
    }
    spread_labels(label, count, LINE, y.at);
    for (int i = 0; i < count; i++) {
        char name[300], style[24];
        snprintf(style, sizeof style, "leader c%d", i % COLOURS);
        name_of(q, &s->point[last[i]], name);
        put_line(p, axis_at(&x, value_of(q, &s->point[last[i]])), want[i], x.until + 14, label[i],
                 style);
        put_label(p, x.until + 18, label[i] + 4, ANCHOR_START, SMALL_LETTER, "ink", name);
    }
}

void put_lines(struct page *p, const struct points *s)
{
    int *series = malloc((size_t)(s->count + 1) * sizeof *series);
    if (!series) {
        text_lose(&p->body);
        return;
    }
    for (size_t i = 0; i < sizeof quantities / sizeof *quantities; i++) {
        int count = find_series(s, &quantities[i], series);
        if (count)
            put_quantity(p, s, &quantities[i], series, count);
    }
    free(series);
}
