/* SPDX-License-Identifier: Apache-2.0 */
/* cli_report.c - what `moegen bench` found: tables, JSON, bars. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static void cell(struct table *t, const char *format, double value)
{
    if (isfinite(value)) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        table_add(t, format, value);
#pragma GCC diagnostic pop
    } else {
        table_add(t, "-");
    }
}

static void add_rows(struct bench *b, struct table *t)
{
    char low[32], high[32], median[32], jit[32];
    for (int i = 0; i < b->contenders; i++) {
        const struct contender *c = &b->contender[i];
        const moegen_kernel_facts *f = &c->kernel->unit->facts;
        bool timed = c->seconds.count > 0;
        table_add(t, "%s", c->name);
        table_add(t, "%s", c->variant.at ? c->variant.at : "-");
        table_add(t, "%s", f->target);
        table_add(t, "%s", f->spelling);
        table_add(t, "%s", f->dtype);
        table_add(t, "%lld", (long long)c->tokens);
        table_add(t, "%d", c->threads);
        table_add(t, "%s", timed ? show_seconds(median, samples_at(&c->seconds, 0.5)) : "-");
        table_add(t, timed ? "%s..%s" : "-", show_seconds(low, samples_at(&c->seconds, 0.2)),
                  show_seconds(high, samples_at(&c->seconds, 0.8)));
        cell(t, "%.4g", contender_gflops(c));
        cell(t, "%.1f %%", 100 * contender_share(c));
        cell(t, "%.2f", contender_gbps(c));
        table_add(t, "%s", show_seconds(jit, f->jit_seconds));
        cell(t, "%.1e", c->error);
    }
}

static void json_pair(struct text *t, const char *key, double value)
{
    text_fmt(t, ", \"%s\": ", key);
    json_number(t, value);
}

static void json_pair_text(struct text *t, const char *key, const char *value, bool first)
{
    text_fmt(t, "%s\"%s\": ", first ? "" : ", ", key);
    json_string(t, value);
}

static void add_result(struct bench *b, const struct contender *c)
{
    const moegen_kernel_facts *f = &c->kernel->unit->facts;
    struct text *t = &b->results;
    text_fmt(t, "%s\n    {", t->len ? "," : "");
    json_pair_text(t, "kernel", c->name, true);
    json_pair_text(t, "family", f->family, false);
    json_pair_text(t, "target", f->target, false);
    json_pair_text(t, "spelling", f->spelling, false);
    json_pair_text(t, "dtype", f->dtype, false);
    json_pair(t, "threads", c->threads);
    json_pair_text(t, "variant", c->variant.at ? c->variant.at : "", false);
    json_pair(t, "T", (double)c->tokens);
    json_pair(t, "rows", c->rows);
    json_pair(t, "samples", c->seconds.count);
    json_pair(t, "median_s", samples_at(&c->seconds, 0.5));
    json_pair(t, "p20_s", samples_at(&c->seconds, 0.2));
    json_pair(t, "p80_s", samples_at(&c->seconds, 0.8));
    json_pair(t, "gflops", contender_gflops(c));
    json_pair(t, "share_of_peak", contender_share(c));
    json_pair(t, "gbps", contender_gbps(c));
    json_pair(t, "jit_ms", 1e3 * f->jit_seconds);
    json_pair(t, "code_bytes", (double)f->code_bytes);
    json_pair(t, "rel_error", c->error);
    text_add(t, "}", 1);
}

void report_group(struct bench *b)
{
    static const char *const head[] = {"kernel",  "variant", "target", "spelling", "dtype",
                                       "T",       "threads", "median", "p20..p80", "GFLOP/s",
                                       "of peak", "GB/s",    "jit",    "rel error"};
    struct table t = {.columns = sizeof head / sizeof *head};
    for (int i = 0; i < t.columns; i++)
        table_add(&t, "%s", head[i]);
    add_rows(b, &t);
    for (int i = 0; i < b->contenders; i++) {
        const struct contender *c = &b->contender[i];
        double gflops = contender_gflops(c);
        add_result(b, c);
        if (isfinite(gflops)) {
            text_fmt(&b->bars, "%.4g\t%s %s %s\n", gflops, c->name, c->kernel->unit->facts.target,
                     c->variant.at ? c->variant.at : "");
            b->bar_most = fmax(b->bar_most, gflops);
            b->bar_count++;
        }
    }
    if (b->o->json && strcmp(b->o->json, "-") == 0)
        table_free(&t);
    else
        table_print(&t, stdout);
}

/* ---- the end ---- */

static void cpu_model(char *out, size_t room)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, room, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (!value)
            continue;
        snprintf(out, room, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
        break;
    }
    if (f)
        fclose(f);
}

/* The best of all probes: NAN without one. */
static double best(const struct bench *b, double (*measure)(const struct probe *p))
{
    double most = NAN;
    for (int i = 0; i < b->probes; i++)
        most = fmax(most, measure(&b->probe[i]));
    return most;
}

/* "avx2", or "avx512_bf16 dot_bf16" for another op than FMA. */
static const char *probe_name(const struct probe *p, char *out, size_t room)
{
    bool plain = strcmp(p->op, "fma") == 0;
    snprintf(out, room, "%s%s%s", p->target, plain ? "" : " ", plain ? "" : p->op);
    return out;
}

static void add_context(const struct bench *b, struct text *t)
{
    char model[128], version[32];
    cpu_model(model, sizeof model);
    snprintf(version, sizeof version, "%d.%d.%d", MOEGEN_VERSION_MAJOR, MOEGEN_VERSION_MINOR,
             MOEGEN_VERSION_PATCH);
    text_fmt(t, "{");
    json_pair_text(t, "moegen", version, true);
    json_pair_text(t, "cpu", model, false);
    json_pair(t, "cpus", moegen_rt_cpu_count());
    json_pair_text(t, "routing", b->o->routing ? b->o->routing : "uniform", false);
    json_pair(t, "seed", (double)b->o->seed);
    text_fmt(t, ", \"cold\": %s", b->o->cold ? "true" : "false");
    json_pair(t, "peak_gflops", best(b, probe_gflops));
    json_pair(t, "read_gbps", best(b, probe_gbps));
    text_fmt(t, ", \"peaks\": {");
    for (int i = 0; i < b->probes; i++) {
        char name[100];
        json_pair_text(t, probe_name(&b->probe[i], name, sizeof name), "", i == 0);
        t->len -= 2; /* the number takes the place of the empty text */
        json_number(t, probe_gflops(&b->probe[i]));
    }
    text_fmt(t, "}, \"latency\": [");
    for (int i = 0; i < b->latencies; i++) {
        text_fmt(t, "%s{", i ? ", " : "");
        json_pair_text(t, "kernel", b->latency[i].name, true);
        json_pair(t, "cold_s", b->latency[i].cold);
        json_pair(t, "disk_s", b->latency[i].disk);
        json_pair(t, "memory_s", b->latency[i].memory);
        text_add(t, "}", 1);
    }
    text_fmt(t, "]}");
}

static int write_json(const struct bench *b)
{
    struct text t = {0};
    int result = EXIT_OK;
    text_fmt(&t, "{\n  \"context\": ");
    add_context(b, &t);
    text_fmt(&t, ",\n  \"results\": [%s\n  ]\n}\n", b->results.at ? b->results.at : "");
    if (strcmp(b->o->json, "-") == 0)
        fputs(t.at, stdout);
    else
        result = write_file(b->o->json, t.at, t.len, NULL);
    text_free(&t);
    return result;
}

static void add_markup(struct text *t, const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (strchr("<>&", s[i]))
            text_fmt(t, "&#%d;", s[i]);
        else
            text_add(t, &s[i], 1);
}

static int write_plot(const struct bench *b)
{
    enum { ROW = 26, LEFT = 360, WIDTH = 480 };
    struct text t = {0};
    text_fmt(&t,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
             "font-family=\"sans-serif\" font-size=\"13\">\n",
             LEFT + WIDTH + 130, ROW * (b->bar_count + 1));
    const char *at = b->bars.at ? b->bars.at : "";
    for (int i = 0; *at; i++) {
        double value = strtod(at, NULL);
        const char *label = strchr(at, '\t') + 1;
        size_t len = strcspn(label, "\n");
        int bar = (int)(WIDTH * value / b->bar_most), y = ROW * i + 8;
        text_fmt(&t, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", LEFT - 8, y + 14);
        add_markup(&t, label, len);
        text_fmt(&t,
                 "</text><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"18\" fill=\"#4878a8\"/>"
                 "<text x=\"%d\" y=\"%d\">%.4g GFLOP/s</text>\n",
                 LEFT, y, bar, LEFT + bar + 6, y + 14, value);
        at = label + len + 1;
    }
    text_fmt(&t, "</svg>\n");
    int result = write_file(b->o->plot, t.at, t.len, NULL);
    text_free(&t);
    return result;
}

int report_end(struct bench *b)
{
    bool stdout_json = b->o->json && strcmp(b->o->json, "-") == 0;
    char a[32], c[32], d[32], name[100];
    for (int i = 0; i < b->probes && !stdout_json && !b->o->latency; i++)
        if (isfinite(probe_gflops(&b->probe[i])))
            printf("one core, %s: peak %.4g GFLOP/s, reads %.3g GB/s\n",
                   probe_name(&b->probe[i], name, sizeof name), probe_gflops(&b->probe[i]),
                   probe_gbps(&b->probe[i]));
    for (int i = 0; i < b->latencies && !stdout_json; i++)
        printf("spec to callable, %s: cold %s, from disk %s, from memory %s\n", b->latency[i].name,
               show_seconds(a, b->latency[i].cold), show_seconds(c, b->latency[i].disk),
               show_seconds(d, b->latency[i].memory));
    int result = b->o->json ? write_json(b) : EXIT_OK;
    if (!result && b->o->plot)
        result = write_plot(b);
    return result;
}
