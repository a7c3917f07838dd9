/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli_plot.c - the SVG of `moegen bench --plot`: a bar for each contender on a common axis, under
 * the peak of its threads and its roof. Text is monospaced, so that its width is known here.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum {
    ROW = 44,  /* pixels from bar to bar */
    BAR = 22,  /* its height */
    TOP = 78,  /* above the first row: title, CPU, head of the numbers */
    FOOT = 96, /* below the last: ticks, axis title, legend */
    SPAN = 520,
    GAP = 16,
    LABEL = 14,
    SMALL = 12,   /* font sizes */
    LEGEND = 1040 /* the least width */
};

/* ---- collecting ---- */

void plot_add(struct plot *p, const struct contender *c)
{
    const moegen_kernel_facts *f = kernel_facts(c->kernel);
    double gflops = contender_gflops(c), median = samples_at(&c->seconds, 0.5);
    if (!isfinite(gflops))
        return;
    struct bar *more = realloc(p->bar, (size_t)(p->count + 1) * sizeof *more);
    if (!more) {
        p->lost = true;
        return;
    }
    p->bar = more;
    struct bar *b = &p->bar[p->count++];
    *b = (struct bar){.median = gflops,
                      .low = gflops * median / samples_at(&c->seconds, 0.8),
                      .high = gflops * median / samples_at(&c->seconds, 0.2),
                      .peak = c->all ? probe_gflops(c->all) : NAN,
                      .roof = gflops / contender_roof_share(c)};
    text_fmt(&b->label, "%s%s%s", c->name, c->variant.at ? "  " : "",
             c->variant.at ? c->variant.at : "");
    text_fmt(&b->detail, "%s %s, %s, T = %lld, %d thread%s", f->target, f->spelling, f->dtype,
             (long long)c->tokens, c->threads, c->threads == 1 ? "" : "s");
    p->lost = p->lost || b->label.lost || b->detail.lost;
}

void plot_free(struct plot *p)
{
    for (int i = 0; i < p->count; i++) {
        text_free(&p->bar[i].label);
        text_free(&p->bar[i].detail);
    }
    free(p->bar);
    *p = (struct plot){0};
}

/* ---- drawing ---- */

/* Where things are. */
struct page {
    struct text *t;
    int left, bottom; /* ends of the axes */
    int rate, share;  /* right ends of the columns of numbers */
    int width, height;
    double most, step; /* of the axis */
};

static int wide(size_t letters, int size)
{
    return (int)ceil((double)letters * size * 0.62);
}

static void put_markup(struct text *t, const char *s)
{
    for (; *s; s++)
        if (strchr("<>&\"", *s))
            text_fmt(t, "&#%d;", *s);
        else
            text_add(t, s, 1);
}

/* anchor: start, middle, end; style: further attributes. */
static void put_label(const struct page *p, double x, double y, const char *anchor, int size,
                      const char *style, const char *s)
{
    text_fmt(p->t, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\" %s>", x, y,
             anchor, size, style);
    put_markup(p->t, s);
    text_fmt(p->t, "</text>\n");
}

static void put_line(const struct page *p, double x1, double y1, double x2, double y2,
                     const char *style)
{
    text_fmt(p->t, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2,
             style);
}

static void put_rect(const struct page *p, double x, double y, double w, double h, const char *fill)
{
    text_fmt(p->t, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x,
             y, w, h, fill);
}

static const char peak_line[] = "stroke=\"#777777\" stroke-width=\"2\" stroke-dasharray=\"5 3\"",
                  roof_line[] = "stroke=\"#c0392b\" stroke-width=\"3\"",
                  whisker[] = "stroke=\"#1c3144\" stroke-width=\"1.5\"", fill[] = "#4a7fb0",
                  dark[] = "fill=\"#222222\"", grey[] = "fill=\"#555555\"";

/* A step of 1, 2 or 5 times a power of ten that gives the axis 4 to 10 ticks. */
static void scale(struct page *p, const struct plot *plot)
{
    static const double steps[] = {1, 2, 5, 10};
    double most = 0;
    for (int i = 0; i < plot->count; i++) {
        const struct bar *b = &plot->bar[i];
        most = fmax(fmax(most, b->median), fmax(b->high, fmax(b->peak, b->roof)));
    }
    most = most > 0 ? most : 1;
    double ten = pow(10, floor(log10(most / 4)));
    p->step = ten;
    for (int i = 0; i < 4 && most / p->step > 8; i++)
        p->step = ten * steps[i];
    p->most = p->step * ceil(most * 1.02 / p->step);
}

static double at(const struct page *p, double gflops)
{
    return p->left + SPAN * gflops / p->most;
}

static void put_axis(const struct page *p)
{
    char number[32];
    for (int i = 0; i * p->step <= p->most * 1.0001; i++) {
        double x = at(p, i * p->step);
        put_line(p, x, TOP, x, p->bottom + 5, i ? "stroke=\"#dddddd\"" : "stroke=\"#222222\"");
        snprintf(number, sizeof number, "%g", i * p->step);
        put_label(p, x, p->bottom + 20, "middle", SMALL, dark, number);
    }
    put_line(p, p->left, p->bottom, p->left + SPAN, p->bottom, "stroke=\"#222222\"");
    put_label(p, p->left + SPAN / 2.0, p->bottom + 40, "middle", SMALL, dark,
              "floating-point operations per second, GFLOP/s");
}

static void put_bar(const struct page *p, const struct bar *b, int row)
{
    char number[64];
    double top = TOP + ROW * row, y = top + (ROW - BAR) / 2.0, middle = y + BAR / 2.0;
    put_label(p, p->left - GAP, middle - 3, "end", LABEL, dark, b->label.at ? b->label.at : "");
    put_label(p, p->left - GAP, middle + 13, "end", SMALL, grey, b->detail.at ? b->detail.at : "");
    put_rect(p, p->left, y, at(p, b->median) - p->left, BAR, fill);
    put_line(p, at(p, b->low), middle, at(p, b->high), middle, whisker);
    put_line(p, at(p, b->low), middle - 5, at(p, b->low), middle + 5, whisker);
    put_line(p, at(p, b->high), middle - 5, at(p, b->high), middle + 5, whisker);
    if (isfinite(b->roof))
        put_line(p, at(p, b->roof), top, at(p, b->roof), top + ROW, roof_line);
    if (isfinite(b->peak)) /* over the roof, whose colour shows between the dashes */
        put_line(p, at(p, b->peak), top, at(p, b->peak), top + ROW, peak_line);
    snprintf(number, sizeof number, "%.4g", b->median);
    put_label(p, p->rate, middle + 5, "end", LABEL, dark, number);
    snprintf(number, sizeof number, "%.1f %%", 100 * b->median / b->roof);
    put_label(p, p->share, middle + 5, "end", LABEL, dark, isfinite(b->roof) ? number : "-");
}

static void put_legend(const struct page *p)
{
    int x = GAP, y = p->bottom + 70;
    put_rect(p, x, y - 11, 22, 14, fill);
    put_label(p, x + 28, y, "start", SMALL, dark, "median");
    x += 28 + wide(8, SMALL);
    put_line(p, x, y - 4, x + 22, y - 4, whisker);
    put_line(p, x, y - 9, x, y + 1, whisker);
    put_line(p, x + 22, y - 9, x + 22, y + 1, whisker);
    put_label(p, x + 28, y, "start", SMALL, dark, "20th to 80th percentile");
    x += 28 + wide(25, SMALL);
    put_line(p, x, y - 14, x, y + 6, peak_line);
    put_label(p, x + 8, y, "start", SMALL, dark, "peak of its threads at once");
    x += 8 + wide(29, SMALL);
    put_line(p, x, y - 14, x, y + 6, roof_line);
    put_label(p, x + 8, y, "start", SMALL, dark,
              "roof: the lesser of that and bandwidth x flop per byte of weights");
}

static void put_head(const struct page *p, const struct bench *b, const char *cpu)
{
    struct text line = {0};
    const char *slash = strrchr(b->job.label, '/');
    text_fmt(&line, "moegen bench: kernels of %s", slash ? slash + 1 : b->job.label);
    put_label(p, GAP, 28, "start", 18, "fill=\"#222222\" font-weight=\"bold\"",
              line.at ? line.at : "");
    line.len = 0;
    text_fmt(&line, "%s, %d CPUs; routing %s%s; moegen %d.%d.%d", cpu, moegen_rt_cpu_count(),
             b->o->routing ? b->o->routing : "uniform", b->o->cold ? ", cold caches" : "",
             MOEGEN_VERSION_MAJOR, MOEGEN_VERSION_MINOR, MOEGEN_VERSION_PATCH);
    put_label(p, GAP, 48, "start", SMALL, grey, line.at ? line.at : "");
    if (line.lost)
        text_lose(p->t);
    text_free(&line);
    put_label(p, p->rate, TOP - 6, "end", SMALL, grey, "GFLOP/s");
    put_label(p, p->share, TOP - 6, "end", SMALL, grey, "of roof");
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

int plot_write(const struct bench *b, const char *cpu)
{
    const struct plot *plot = &b->plot;
    struct text t = {0};
    struct page p = {.t = &t, .left = 200};
    for (int i = 0; i < plot->count; i++)
        p.left = max_int(p.left, 2 * GAP + max_int(wide(plot->bar[i].label.len, LABEL),
                                                   wide(plot->bar[i].detail.len, SMALL)));
    p.bottom = TOP + ROW * max_int(plot->count, 1);
    p.height = p.bottom + FOOT;
    p.rate = p.left + SPAN + GAP + wide(8, LABEL);
    p.share = p.rate + wide(10, LABEL);
    p.width = max_int(p.share + GAP, LEGEND);
    scale(&p, plot);
    text_fmt(&t,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
             "viewBox=\"0 0 %d %d\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" "
             "xml:space=\"preserve\">\n",
             p.width, p.height, p.width, p.height);
    put_rect(&p, 0, 0, p.width, p.height, "#ffffff");
    put_head(&p, b, cpu);
    put_axis(&p);
    for (int i = 0; i < plot->count; i++)
        put_bar(&p, &plot->bar[i], i);
    if (!plot->count)
        put_label(&p, p.left + GAP, TOP + ROW / 2.0, "start", LABEL, grey,
                  "no kernel here has floating-point operations");
    put_legend(&p);
    text_fmt(&t, "</svg>\n");
    int result = plot->lost ? fail(MOEGEN_NO_MEMORY, NULL) : write_text(b->o->plot, &t);
    text_free(&t);
    return result;
}
