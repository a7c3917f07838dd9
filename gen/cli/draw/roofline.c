/* SPDX-License-Identifier: Apache-2.0 */
/* roofline.c - speed over flop per byte, under what memory and units allow, both logarithmic. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

enum { LEFT = 76, SPAN = 620, HIGH = 360, LINE = 15, MOST_LABELS = 64 };

static bool has_place(const struct point *x)
{
    return isfinite(x->intensity) && x->intensity > 0 && isfinite(x->gflops) && x->gflops > 0;
}

static int places(const struct points *s)
{
    int count = 0;
    for (int i = 0; i < s->count; i++)
        count += has_place(&s->point[i]);
    return count;
}

static void scales(const struct points *s, struct axis_scale *x, struct axis_scale *y, double top)
{
    double left = INFINITY, right = 0, low = INFINITY, high = 0;
    for (int i = 0; i < s->count; i++)
        if (has_place(&s->point[i])) {
            const struct point *at = &s->point[i];
            left = fmin(left, at->intensity / 2);
            right = fmax(right, at->intensity * 2);
            low = fmin(low, at->gflops / 2);
            high = fmax(high, at->gflops);
        }
    for (int i = 0; i < s->ceilings; i++) {
        const struct ceiling *c = &s->ceiling[i];
        left = fmin(left, c->gflops / c->gbps / 3);
        right = fmax(right, c->gflops / c->gbps * 3);
        high = fmax(high, c->gflops);
    }
    for (int i = 0; i < s->ceilings; i++)
        low = fmin(low, s->ceiling[i].gbps * left);
    *x = axis_log(left, right, LEFT, LEFT + SPAN);
    *y = axis_log(low, high * 1.2, top + HIGH, top);
}

/* The ceilings, and right of them what each is. Returns where these words end. */
static double put_ceilings(struct page *p, const struct points *s, const struct axis_scale *x,
                           const struct axis_scale *y)
{
    double at[MOST_LABELS];
    int count = s->ceilings < MOST_LABELS ? s->ceilings : MOST_LABELS;
    for (int i = 0; i < count; i++) {
        const struct ceiling *c = &s->ceiling[i];
        double ridge = c->gflops / c->gbps, from = fmax(x->from, y->from / c->gbps);
        at[i] = axis_at(y, c->gflops);
        put_line(p, axis_at(x, from), axis_at(y, from * c->gbps), axis_at(x, ridge), at[i],
                 "ceiling");
        put_line(p, axis_at(x, ridge), at[i], x->until, at[i], "ceiling");
    }
    double want[MOST_LABELS], lowest = y->until;
    memcpy(want, at, (size_t)count * sizeof *at);
    spread_labels(at, count, LINE, y->at);
    for (int i = 0; i < count; i++) {
        const struct ceiling *c = &s->ceiling[i];
        char label[256];
        put_line(p, x->until, want[i], x->until + 14, at[i], "leader");
        snprintf(label, sizeof label, "%s, %g thread%s: %.4g GFLOP/s, %.3g GB/s", c->name,
                 c->threads, c->threads > 1 ? "s" : "", c->gflops, c->gbps);
        put_label(p, x->until + 18, at[i] + 4, ANCHOR_START, SMALL_LETTER, "ink", label);
        lowest = fmax(lowest, at[i]);
    }
    return lowest;
}

/* Numbers right of the points, those of points above one another kept apart. */
static void put_numbers(struct page *p, const double *px, const double *py, int count,
                        double bottom)
{
    enum { COLUMN = 14, APART = 13 };
    bool done[MOST_LABELS] = {false};
    for (int first = 0; first < count; first++) {
        int of[MOST_LABELS], n = 0;
        double y[MOST_LABELS];
        for (int i = first; i < count; i++)
            if (!done[i] && fabs(px[i] - px[first]) < COLUMN) {
                done[i] = true;
                y[n] = py[i];
                of[n++] = i;
            }
        spread_labels(y, n, APART, bottom - 4);
        for (int i = 0; i < n; i++) {
            char number[16];
            double x = px[of[i]];
            snprintf(number, sizeof number, "%d", of[i] + 1);
            if (fabs(y[i] - py[of[i]]) > 2)
                put_line(p, x + 5, py[of[i]], x + 15, y[i], "leader");
            put_label(p, x + (fabs(y[i] - py[of[i]]) > 2 ? 17 : 9), y[i] + 4, ANCHOR_START,
                      SMALL_LETTER, "ink", number);
        }
    }
}

/* What the numbers mean stands right of the picture, below the ceilings. */
static void put_points(struct page *p, const struct points *s, const struct axis_scale *x,
                       const struct axis_scale *y, double below)
{
    double px[MOST_LABELS], py[MOST_LABELS];
    int count = 0;
    for (int i = 0; i < s->count && count < MOST_LABELS; i++) {
        const struct point *one = &s->point[i];
        char label[330];
        if (!has_place(one))
            continue;
        px[count] = axis_at(x, one->intensity);
        py[count] = axis_at(y, one->gflops);
        put_dot(p, px[count], py[count], 5, "c0");
        snprintf(label, sizeof label, "%2d  %.140s%s%.140s", count + 1, one->kernel,
                 *one->variant ? " " : "", one->variant);
        put_label(p, x->until + 18, below + LINE * count, ANCHOR_START, SMALL_LETTER, "ink", label);
        count++;
    }
    put_numbers(p, px, py, count, y->at);
}

void put_roofline(struct page *p, const struct points *s)
{
    struct axis_scale x, y;
    if (!places(s) || !s->ceilings)
        return;
    put_title(p, "Roofline: what memory and units allow, and what is reached");
    double top = p->bottom + 44;
    scales(s, &x, &y, top);
    put_axis_x(p, &x, top, top + HIGH, "floating-point operations per byte of weights, flop/B");
    put_axis_y(p, &y, LEFT, LEFT + SPAN, "floating-point operations per second, GFLOP/s");
    double below = put_ceilings(p, s, &x, &y);
    put_points(p, s, &x, &y, below + 3 * LINE);
}
