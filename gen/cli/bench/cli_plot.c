/* SPDX-License-Identifier: Apache-2.0 */
/* cli_plot.c - the SVG of `moegen bench --plot`: a bar for each contender under the peak of its
 * threads and its roof, a roofline, and lines over T and threads where these vary. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static void add_bar(struct plot *p, const struct contender *c, const struct point *x)
{
    const moegen_kernel_facts *f = kernel_facts(c->kernel);
    struct bar_row *b = bars_add(&p->bars);
    if (!b)
        return;
    double share = contender_roof_share(c);
    b->value = x->gflops;
    b->low = x->low;
    b->high = x->high;
    b->peak = c->all ? probe_gflops(c->all) : NAN;
    b->roof = x->gflops / share;
    text_fmt(&b->label, "%s%s%s", c->name, c->variant.at ? "  " : "",
             c->variant.at ? c->variant.at : "");
    text_fmt(&b->detail, "%s %s, %s, T = %lld, %d thread%s", f->target, f->spelling, f->dtype,
             (long long)c->tokens, c->threads, c->threads == 1 ? "" : "s");
    text_fmt(&b->column[0], "%.4g", x->gflops);
    text_fmt(&b->column[1], isfinite(share) ? "%.1f %%" : "-", 100 * share);
    p->bars.lost =
        p->bars.lost || b->label.lost || b->detail.lost || b->column[0].lost || b->column[1].lost;
}

void plot_add(struct plot *p, const struct contender *c)
{
    double gflops = contender_gflops(c), median = samples_at(&c->seconds, 0.5);
    if (!isfinite(gflops))
        return;
    struct point x = {.T = (double)c->tokens,
                      .threads = c->threads,
                      .gflops = gflops,
                      .low = gflops * median / samples_at(&c->seconds, 0.8),
                      .high = gflops * median / samples_at(&c->seconds, 0.2),
                      .intensity = gflops / contender_gbps(c)};
    add_bar(p, c, &x);
    points_add(&p->points, c->name, c->variant.at ? c->variant.at : "", x);
    if (!c->all)
        return;
    struct ceiling limit = {
        .threads = c->threads, .gflops = probe_gflops(c->all), .gbps = probe_gbps(c->all)};
    probe_name(c->all, limit.name, sizeof limit.name);
    ceilings_add(&p->points, &limit);
}

void plot_free(struct plot *p)
{
    bars_free(&p->bars);
    points_free(&p->points);
}

int plot_write(const struct bench *b, const char *cpu)
{
    struct text title = {0}, details = {0}, out = {0};
    struct page page;
    struct bars bars = b->plot.bars;
    const char *slash = strrchr(b->job.label, '/');
    text_fmt(&title, "moegen bench: kernels of %s", slash ? slash + 1 : b->job.label);
    text_fmt(&details, "%s, %d CPUs; routing %s%s; moegen %d.%d.%d", cpu, moegen_rt_cpu_count(),
             b->o->routing ? b->o->routing : "uniform", b->o->cold ? ", cold caches" : "",
             MOEGEN_VERSION_MAJOR, MOEGEN_VERSION_MINOR, MOEGEN_VERSION_PATCH);
    bars.title = "Speed";
    bars.axis = "floating-point operations per second, GFLOP/s";
    bars.head[0] = "GFLOP/s";
    bars.head[1] = "of roof";
    bars.legend[0] = "20th to 80th percentile";
    bars.legend[1] = "median";
    bars.nothing = "no kernel here has floating-point operations";
    page_begin(&page, title.at ? title.at : "", details.at ? details.at : "");
    put_bars(&page, &bars);
    put_roofline(&page, &b->plot.points);
    put_lines(&page, &b->plot.points);
    page_finish(&page, title.at ? title.at : "", &out);
    bool is_lost = bars.lost || b->plot.points.lost || title.lost || details.lost;
    int result = is_lost ? fail(MOEGEN_NO_MEMORY, NULL) : write_text(b->o->plot, &out);
    text_free(&title);
    text_free(&details);
    text_free(&out);
    return result;
}
