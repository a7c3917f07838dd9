/* SPDX-License-Identifier: Apache-2.0 */
/* bars.c - bars on a common axis, each with its interval, and under the peak of its threads and its
 * roof where there are such. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

enum {
    ROW = 44, /* pixels from bar to bar */
    BAR = 22, /* its height */
    SPAN = 520
};

struct bar_row *bars_add(struct bars *b)
{
    struct bar_row *more = realloc(b->row, (size_t)(b->rows + 1) * sizeof *more);
    if (!more) {
        b->lost = true;
        return NULL;
    }
    b->row = more;
    b->row[b->rows] =
        (struct bar_row){.low = NAN, .high = NAN, .peak = NAN, .roof = NAN, .style = "bar"};
    return &b->row[b->rows++];
}

void bars_free(struct bars *b)
{
    for (int i = 0; i < b->rows; i++) {
        text_free(&b->row[i].label);
        text_free(&b->row[i].detail);
        text_free(&b->row[i].column[0]);
        text_free(&b->row[i].column[1]);
    }
    free(b->row);
    b->row = NULL;
    b->rows = 0;
}

static double widest(const struct bars *b, size_t offset, int size, double least)
{
    for (int i = 0; i < b->rows; i++) {
        const struct text *t = (const struct text *)((const char *)&b->row[i] + offset);
        least = fmax(least, letters_wide(t->len, size));
    }
    return least;
}

/* Of every number of the picture, the most and the least. */
static void extent(const struct bars *b, double *least, double *most)
{
    *least = b->from - b->margin;
    *most = b->from + b->margin;
    for (int i = 0; i < b->rows; i++) {
        const struct bar_row *r = &b->row[i];
        const double all[] = {r->value, r->low, r->high, r->peak, r->roof};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            *most = fmax(*most, all[k]); /* never of a NAN */
            *least = fmin(*least, all[k]);
        }
    }
}

static void put_row(struct page *p, const struct bars *b, const struct bar_row *r,
                    const struct axis_scale *a, double top)
{
    double y = top + (ROW - BAR) / 2.0, middle = y + BAR / 2.0;
    double from = axis_at(a, b->from), value = axis_at(a, r->value);
    put_label(p, a->at - PAGE_GAP, middle - 3, ANCHOR_END, LETTER, "ink", r->label.at);
    put_label(p, a->at - PAGE_GAP, middle + 13, ANCHOR_END, SMALL_LETTER, "dim", r->detail.at);
    put_rect(p, fmin(from, value), y, fabs(value - from), BAR, r->style);
    if (isfinite(r->low) && isfinite(r->high))
        put_whisker(p, axis_at(a, r->low), axis_at(a, r->high), middle, false);
    if (isfinite(r->roof))
        put_line(p, axis_at(a, r->roof), top, axis_at(a, r->roof), top + ROW, "roof");
    if (isfinite(r->peak)) /* over the roof, whose colour shows between the dashes */
        put_line(p, axis_at(a, r->peak), top, axis_at(a, r->peak), top + ROW, "peak");
}

static void put_legend(struct page *p, const struct bars *b, bool roofs)
{
    double x = PAGE_GAP, y = p->bottom + 26;
    if (b->legend[1]) {
        put_rect(p, x, y - 11, 22, 14, "bar");
        put_label(p, x + 28, y, ANCHOR_START, SMALL_LETTER, "ink", b->legend[1]);
        x += 28 + letters_wide(strlen(b->legend[1]) + 2, SMALL_LETTER);
    }
    put_whisker(p, x, x + 22, y - 4, false);
    put_label(p, x + 28, y, ANCHOR_START, SMALL_LETTER, "ink", b->legend[0]);
    x += 28 + letters_wide(strlen(b->legend[0]) + 2, SMALL_LETTER);
    if (!roofs)
        return;
    put_line(p, x, y - 14, x, y + 6, "peak");
    put_label(p, x + 8, y, ANCHOR_START, SMALL_LETTER, "ink", "peak of its threads at once");
    x += 8 + letters_wide(29, SMALL_LETTER);
    put_line(p, x, y - 14, x, y + 6, "roof");
    put_label(p, x + 8, y, ANCHOR_START, SMALL_LETTER, "ink",
              "roof: the lesser of that and bandwidth x flop per byte of weights");
}

void put_bars(struct page *p, const struct bars *b)
{
    double left = 2 * PAGE_GAP + widest(b, offsetof(struct bar_row, detail), SMALL_LETTER,
                                        widest(b, offsetof(struct bar_row, label), LETTER, 120));
    double column[2], right = left + SPAN + PAGE_GAP, least, most;
    for (int i = 0; i < 2; i++) {
        size_t at = offsetof(struct bar_row, column) + (size_t)i * sizeof(struct text);
        column[i] = right += widest(b, at, LETTER, letters_wide(strlen(b->head[i]), SMALL_LETTER));
        right += PAGE_GAP;
    }
    put_title(p, b->title);
    double top = p->bottom + 30, bottom = top + ROW * (b->rows ? b->rows : 1);
    extent(b, &least, &most);
    struct axis_scale a = axis_linear(least, most, left, left + SPAN);
    if (b->margin > 0)
        put_rect(p, axis_at(&a, b->from - b->margin), top,
                 axis_at(&a, b->from + b->margin) - axis_at(&a, b->from - b->margin), bottom - top,
                 "band");
    put_axis_x(p, &a, top, bottom, b->axis);
    for (int i = 0; i < 2; i++)
        put_label(p, column[i], top - 6, ANCHOR_END, SMALL_LETTER, "dim", b->head[i]);
    bool roofs = false;
    for (int i = 0; i < b->rows; i++) {
        const struct bar_row *r = &b->row[i];
        put_row(p, b, r, &a, top + ROW * i);
        roofs = roofs || isfinite(r->roof);
        for (int k = 0; k < 2; k++)
            put_label(p, column[k], top + ROW * i + ROW / 2.0 + 5, ANCHOR_END, LETTER, "ink",
                      r->column[k].at);
    }
    if (b->margin > 0)
        put_line(p, axis_at(&a, b->from), top, axis_at(&a, b->from), bottom, "axis");
    if (!b->rows)
        put_label(p, left + PAGE_GAP, top + ROW / 2.0, ANCHOR_START, LETTER, "dim", b->nothing);
    put_legend(p, b, roofs);
}
