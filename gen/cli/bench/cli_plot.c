/* SPDX-License-Identifier: Apache-2.0 */
/* cli_plot.c - the SVG of `moegen bench --plot`: a bar for each contender under the peak of its
 * threads and its roof, a roofline, and lines over T and threads where these vary. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

void plot_add_variant(struct plot *p, const struct drawn *v, const struct point *x)
{
    struct bar_row *b = isfinite(x->gflops) ? bars_add(&p->bars) : NULL;
    if (!b)
        return;
    b->value = x->gflops;
    b->low = x->low;
    b->high = x->high;
    b->peak = v->peak;
    b->roof = x->gflops / v->roof_share;
    text_fmt(&b->label, "%s%s%s", v->kernel, *v->variant ? "  " : "", v->variant);
    text_fmt(&b->detail, "%s %s, %s, T = %.0f, %.0f thread%s", v->target, v->spelling, v->dtype,
             x->T, x->threads, x->threads > 1 ? "s" : "");
    text_fmt(&b->column[0], "%.4g", x->gflops);
    text_fmt(&b->column[1], isfinite(v->roof_share) ? "%.1f %%" : "-", 100 * v->roof_share);
    p->bars.lost =
        p->bars.lost || b->label.lost || b->detail.lost || b->column[0].lost || b->column[1].lost;
    points_add(&p->points, v->kernel, v->variant, *x);
}

void plot_add_ceiling(struct plot *p, const char *target, const char *op, bool emulated,
                      struct ceiling limit)
{
    bool plain = strcmp(op, "fma") == 0;
    snprintf(limit.name, sizeof limit.name, "%.50s%s%.50s%s", target, plain ? "" : " ",
             plain ? "" : op, emulated ? " emulated" : "");
    ceilings_add(&p->points, &limit);
}

void plot_add(struct plot *p, const struct contender *c)
{
    const moegen_kernel_facts *f = kernel_facts(c->kernel);
    double gflops = contender_gflops(c), median = samples_at(&c->seconds, 0.5);
    const struct drawn v = {.kernel = c->name,
                            .variant = c->variant.at ? c->variant.at : "",
                            .target = f->target,
                            .spelling = f->spelling,
                            .dtype = f->dtype,
                            .peak = c->all ? probe_gflops(c->all) : NAN,
                            .roof_share = contender_roof_share(c)};
    const struct point x = {.T = (double)c->tokens,
                            .threads = c->threads,
                            .gflops = gflops,
                            .low = gflops * median / samples_at(&c->seconds, 0.8),
                            .high = gflops * median / samples_at(&c->seconds, 0.2),
                            .intensity = gflops / contender_gbps(c)};
    plot_add_variant(p, &v, &x);
    if (c->all && isfinite(gflops))
        plot_add_ceiling(p, c->all->target, c->all->op, c->all->emulated,
                         (struct ceiling){.threads = c->threads,
                                          .gflops = probe_gflops(c->all),
                                          .gbps = probe_gbps(c->all)});
}

void plot_free(struct plot *p)
{
    bars_free(&p->bars);
    points_free(&p->points);
}

bool plot_svg(const struct plot *plot, const char *title, const char *details, const char *command,
              struct text *out)
{
    struct page page;
    struct bars bars = plot->bars;
    bars.title = "Speed";
    bars.axis = "floating-point operations per second, GFLOP/s";
    bars.head[0] = "GFLOP/s";
    bars.head[1] = "of roof";
    bars.legend[0] = "20th to 80th percentile";
    bars.legend[1] = "median";
    bars.nothing = "no kernel here has floating-point operations";
    page_begin(&page, title, details, command);
    put_bars(&page, &bars);
    put_roofline(&page, &plot->points);
    put_lines(&page, &plot->points);
    page_finish(&page, title, out);
    return !bars.lost && !plot->points.lost && !out->lost;
}

int plot_write(const struct bench *b, const char *cpu)
{
    struct text title = {0}, details = {0}, out = {0};
    const char *slash = strrchr(b->job.label, '/');
    text_fmt(&title, "moegen bench: kernels of %s", slash ? slash + 1 : b->job.label);
    text_fmt(&details, "%s, %d CPUs; routing %s%s; moegen %d.%d.%d", cpu, moegen_rt_cpu_count(),
             b->o->routing ? b->o->routing : "uniform", b->o->cold ? ", cold caches" : "",
             MOEGEN_VERSION_MAJOR, MOEGEN_VERSION_MINOR, MOEGEN_VERSION_PATCH);
    bool ok = !title.lost && !details.lost &&
              plot_svg(&b->plot, title.at, details.at, command_said(), &out);
    int result = ok ? write_text(b->o->plot, &out) : fail(MOEGEN_NO_MEMORY, NULL);
    text_free(&title);
    text_free(&details);
    text_free(&out);
    return result;
}
