/* SPDX-License-Identifier: Apache-2.0 */
/* draw.h - pictures of measurements as SVG: pages of panels, one below the other. Text is
 * monospaced, so that its width is known here, and nothing is cut off. Colours follow the reader's
 * light or dark scheme. */
#ifndef MOEGEN_DRAW_H
#define MOEGEN_DRAW_H

#include "cli/cli.h"

/* ---- page.c: marks on a page ---- */

enum { PAGE_GAP = 16, LETTER = 14, SMALL_LETTER = 12 }; /* pixels; sizes of letters */

struct page {
    struct text body;
    double width;  /* grows with what is put on it */
    double bottom; /* of what is drawn so far: the next panel begins there */
};
enum anchor { ANCHOR_START, ANCHOR_MIDDLE, ANCHOR_END };
double letters_wide(size_t letters, int size);
/* style: classes of page.c's style sheet. */
void put_label(struct page *p, double x, double y, enum anchor anchor, int size, const char *style,
               const char *text);
void put_line(struct page *p, double x1, double y1, double x2, double y2, const char *style);
void put_rect(struct page *p, double x, double y, double w, double h, const char *style);
void put_dot(struct page *p, double x, double y, double radius, const char *style);
/* A whisker from x1 to x2 at y, or with `upright` from y1 = x1 to y2 = x2 at x = y. */
void put_whisker(struct page *p, double from, double to, double at, bool upright);
void put_title(struct page *p, const char *title); /* of the next panel */
/* Title, details and the command that measured, "" or NULL if none is known, stand above all. */
void page_begin(struct page *p, const char *title, const char *details, const char *command);
/* Adds the page as an SVG element to *out, which is lost if something of it is; frees the page. */
void page_finish(struct page *p, const char *title, struct text *out);

/* ---- axis.c ---- */

struct axis_scale {
    double from, to;  /* values at its ends */
    double at, until; /* pixels there */
    bool log;
    double step; /* of ticks, where it is not logarithmic */
};
/* From 0, or another start, to a bit more than `most`, with 4 to 10 ticks of 1, 2 or 5 times a
 * power of ten. */
struct axis_scale axis_linear(double from, double most, double at, double until);
/* Whole decades, or halves of them, around both. */
struct axis_scale axis_log(double least, double most, double at, double until);
double axis_at(const struct axis_scale *a, double value);
/* Lines of its grid from `from` to `to`, the numbers below or left of it, and its title. */
void put_axis_x(struct page *p, const struct axis_scale *a, double from, double to,
                const char *title);
/* The same with ticks at these values, in their order, where there is room. */
void put_axis_x_at(struct page *p, const struct axis_scale *a, const double *value, int values,
                   double from, double to, const char *title);
void put_axis_y(struct page *p, const struct axis_scale *a, double from, double to,
                const char *title);
/* Moves heights of labels apart, to `least` between any two, and not below `bottom`. */
void spread_labels(double *y, int count, double least, double bottom);

/* ---- bars.c ---- */

struct bar_row {
    struct text label, detail, column[2]; /* owned */
    double value, low, high;
    double peak, roof; /* marks across the row; NAN: none */
    const char *style; /* a class */
};
struct bars {
    const char *title, *axis, *head[2];
    const char *legend[2]; /* of whiskers; of bars */
    double from;           /* where bars begin */
    double margin;         /* a band around `from`; 0: none */
    const char *nothing;   /* said where there is no row */
    struct bar_row *row;
    int rows;
    bool lost;
};
struct bar_row *bars_add(struct bars *b); /* NULL: lost */
void put_bars(struct page *p, const struct bars *b);
void bars_free(struct bars *b);

/* ---- roofline.c, lines.c: variants as points ---- */

/* One variant of one kernel. */
struct point {
    char *kernel, *variant; /* owned */
    double T, threads;
    double gflops, low, high; /* median; of the 80th and 20th percentile of time */
    double intensity;         /* flop per byte of weights; NAN where it reads none */
};
struct ceiling {
    char name[128]; /* "avx512 fma" */
    double threads, gflops, gbps;
};
struct points {
    struct point *point;
    int count;
    struct ceiling *ceiling;
    int ceilings;
    bool lost;
};
/* Copies the strings. */
void points_add(struct points *p, const char *kernel, const char *variant, struct point values);
void ceilings_add(struct points *p, const struct ceiling *c); /* once each */
void points_free(struct points *p);
/* Nothing, where there is no point with weights, or no ceiling. */
void put_roofline(struct page *p, const struct points *points);
/* Speed over T, and over threads: each where one series has several of them. */
void put_lines(struct page *p, const struct points *points);

#endif
