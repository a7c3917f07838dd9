/* SPDX-License-Identifier: Apache-2.0 */
/* of_bench.c - a file of `moegen bench --json` as table and picture. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

static const double least = 1e-12, most = 1e12; /* of every number: also keeps axes in bounds */

/* One result. */
struct row {
    const char *kernel, *variant, *target, *spelling, *dtype;
    double T, threads, median, fast, slow, gflops, gbps, peak_share, roof_share;
};

static moegen_status read_row(const struct json *j, int map, struct row *r, moegen_error **err)
{
    const struct {
        const char *key, **out;
    } texts[] = {{"kernel", &r->kernel},
                 {"variant", &r->variant},
                 {"target", &r->target},
                 {"spelling", &r->spelling},
                 {"dtype", &r->dtype}};
    const struct {
        const char *key;
        double *out;
    } numbers[] = {
        {"median_s", &r->median},         {"p20_s", &r->fast}, {"p80_s", &r->slow},
        {"gflops", &r->gflops},           {"gbps", &r->gbps},  {"share_of_peak", &r->peak_share},
        {"share_of_roof", &r->roof_share}};
    moegen_status status = MOEGEN_OK;
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !status; i++)
        status = json_get_text(j, map, texts[i].key, texts[i].out, err);
    if (!status)
        status = json_get_number(j, map, "T", 0, most, &r->T, err);
    if (!status)
        status = json_get_number(j, map, "threads", 1, 1e6, &r->threads, err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !status; i++)
        status = json_may_number(j, map, numbers[i].key, least, most, numbers[i].out, err);
    return status;
}

/* ---- the machine's limits ---- */

static moegen_status add_limits(const struct json *j, int context, struct plot *plot,
                                moegen_error **err)
{
    int list;
    moegen_status status = json_get_list(j, context, "limits", &list, err);
    for (int i = list + 1; !status && i < j->node[list].after; i = j->node[i].after) {
        const char *target, *op;
        struct ceiling limit = {.threads = 1};
        bool emulated = false;
        if ((status = json_get_text(j, i, "target", &target, err)) ||
            (status = json_get_text(j, i, "op", &op, err)) ||
            (status = json_get_number(j, i, "threads", 1, 1e6, &limit.threads, err)) ||
            (status = json_may_number(j, i, "peak_gflops", least, most, &limit.gflops, err)) ||
            (status = json_may_number(j, i, "read_gbps", least, most, &limit.gbps, err)) ||
            (status = json_may_true(j, i, "emulated", &emulated, err)))
            break;
        plot_add_ceiling(plot, target, op, emulated, limit);
    }
    return status;
}

/* The peak of a result's threads at once; NAN: not there. */
static moegen_status peak_of(const struct json *j, int context, int result, const struct row *r,
                             double *peak, moegen_error **err)
{
    int list, op;
    moegen_status status = json_get_list(j, context, "limits", &list, err);
    *peak = NAN;
    if (!status)
        status = json_find(j, result, "op", &op, err);
    if (status || !op || j->node[op].kind != JSON_TEXT)
        return status;
    for (int i = list + 1; !status && i < j->node[list].after; i = j->node[i].after) {
        const char *target, *its_op;
        double threads;
        if ((status = json_get_text(j, i, "target", &target, err)) ||
            (status = json_get_text(j, i, "op", &its_op, err)) ||
            (status = json_get_number(j, i, "threads", 1, 1e6, &threads, err)))
            break;
        if (strcmp(target, r->target) == 0 && strcmp(its_op, j->node[op].text) == 0 &&
            fabs(threads - r->threads) < 0.5)
            status = json_may_number(j, i, "peak_gflops", least, most, peak, err);
    }
    return status;
}

/* ---- table and picture ---- */

static void add_number(struct table *t, const char *unit, double scale, double value)
{
    if (isfinite(value))
        table_add(t, "%.4g%s", scale * value, unit);
    else
        table_add(t, "-");
}

static void add_cells(struct table *t, const struct row *r)
{
    char median[32], fast[32], slow[32];
    table_add(t, "%s", r->kernel);
    table_add(t, "%s", *r->variant ? r->variant : "-");
    table_add(t, "%s", r->target);
    table_add(t, "%s", r->spelling);
    table_add(t, "%s", r->dtype);
    table_add(t, "%.0f", r->T);
    table_add(t, "%.0f", r->threads);
    table_add(t, "%s", isfinite(r->median) ? show_seconds(median, r->median) : "-");
    if (isfinite(r->fast) && isfinite(r->slow))
        table_add(t, "%s..%s", show_seconds(fast, r->fast), show_seconds(slow, r->slow));
    else
        table_add(t, "-");
    add_number(t, "", 1, r->gflops);
    add_number(t, " %", 100, r->peak_share);
    add_number(t, " %", 100, r->roof_share);
    add_number(t, "", 1, r->gbps);
}

static moegen_status add_rows(const struct json *j, int context, struct table *t, struct plot *plot,
                              moegen_error **err)
{
    int list;
    moegen_status status = json_get_list(j, 0, "results", &list, err);
    for (int i = list + 1; !status && i < j->node[list].after; i = j->node[i].after) {
        struct row r;
        double peak;
        if ((status = read_row(j, i, &r, err)) || (status = peak_of(j, context, i, &r, &peak, err)))
            break;
        add_cells(t, &r);
        struct drawn drawn = {r.kernel, r.variant, r.target,    r.spelling,
                              r.dtype,  peak,      r.roof_share};
        struct point x = {.T = r.T,
                          .threads = r.threads,
                          .gflops = r.gflops,
                          .low = r.gflops * r.median / r.slow,
                          .high = r.gflops * r.median / r.fast,
                          .intensity = r.gflops / r.gbps};
        plot_add_variant(plot, &drawn, &x);
    }
    return status;
}

moegen_status report_bench(const struct json *j, struct text *out, moegen_error **err)
{
    static const char *const head[] = {"kernel",  "variant", "target", "spelling", "dtype",
                                       "T",       "threads", "median", "p20..p80", "GFLOP/s",
                                       "of peak", "of roof", "GB/s"};
    struct table t = {.columns = sizeof head / sizeof *head};
    struct plot plot = {0};
    struct text details = {0};
    int context;
    const char *cpu, *version, *routing, *command = "";
    double cpus;
    bool cold;
    moegen_status status = json_find(j, 0, "context", &context, err);
    for (int i = 0; i < t.columns; i++)
        table_add(&t, "%s", head[i]);
    if (!status && !context)
        status = json_refuse(j, 0, err, "there is no \"context\" here");
    if (!status && !(status = json_get_text(j, context, "cpu", &cpu, err)) &&
        !(status = json_get_text(j, context, "moegen", &version, err)) &&
        !(status = json_get_text(j, context, "routing", &routing, err)) &&
        !(status = json_get_number(j, context, "cpus", 1, 1e6, &cpus, err)) &&
        !(status = json_may_text(j, context, "command", &command, err)) &&
        !(status = json_may_true(j, context, "cold", &cold, err)) &&
        !(status = add_rows(j, context, &t, &plot, err)))
        status = add_limits(j, context, &plot, err);
    if (!status) {
        text_fmt(&details, "%s, %.0f CPUs; routing %s%s; moegen %s", cpu, cpus, routing,
                 cold ? ", cold caches" : "", version);
        html_table(out, &t);
        if (details.lost || !plot_svg(&plot, "moegen bench", details.at, command, out))
            status = error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    }
    table_free(&t);
    text_free(&details);
    plot_free(&plot);
    return status;
}
