/* SPDX-License-Identifier: Apache-2.0 */
/* cli_report.c - what `moegen bench` found: tables and JSON. */
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

static struct by_state states_of(const struct contender *c)
{
    return samples_by_state(&c->seconds, &c->paces);
}

static bool any_states(const struct bench *b)
{
    for (int i = 0; i < b->contenders; i++)
        if (isfinite(states_of(&b->contender[i]).share))
            return true;
    return false;
}

static void add_seconds(struct table *t, double seconds)
{
    char cell[32];
    table_add(t, "%s", isfinite(seconds) ? show_seconds(cell, seconds) : "-");
}

static void add_rows(struct bench *b, struct table *t, bool states)
{
    char low[32], high[32], median[32], jit[32];
    for (int i = 0; i < b->contenders; i++) {
        const struct contender *c = &b->contender[i];
        const moegen_kernel_facts *f = kernel_facts(c->kernel);
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
        if (states) {
            const struct by_state by = states_of(c);
            add_seconds(t, by.fast);
            add_seconds(t, by.slow);
            cell(t, "%.0f %%", 100 * by.share);
        }
        cell(t, "%.4g", contender_gflops(c));
        cell(t, "%.1f %%", 100 * contender_share(c));
        cell(t, "%.1f %%", 100 * contender_roof_share(c));
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
    const moegen_kernel_facts *f = kernel_facts(c->kernel);
    struct text *t = &b->results;
    text_fmt(t, "%s\n    {", t->len ? "," : "");
    json_pair_text(t, "kernel", c->name, true);
    json_pair_text(t, "family", f->family, false);
    json_pair_text(t, "target", f->target, false);
    json_pair_text(t, "spelling", f->spelling, false);
    json_pair_text(t, "dtype", f->dtype, false);
    if (c->all)
        json_pair_text(t, "op", c->all->op, false);
    json_pair(t, "threads", c->threads);
    json_pair_text(t, "variant", c->variant.at ? c->variant.at : "", false);
    json_pair(t, "T", (double)c->tokens);
    json_pair(t, "rows", c->rows);
    json_pair(t, "samples", c->seconds.count);
    text_fmt(t, ", \"samples_s\": [");
    for (int i = 0; i < c->seconds.count; i++) {
        text_fmt(t, "%s", i ? ", " : "");
        json_number(t, c->seconds.at[i]);
    }
    text_fmt(t, "]");
    json_pair(t, "median_s", samples_at(&c->seconds, 0.5));
    json_pair(t, "p20_s", samples_at(&c->seconds, 0.2));
    json_pair(t, "p80_s", samples_at(&c->seconds, 0.8));
    const struct by_state by = states_of(c);
    if (isfinite(by.share)) {
        json_pair(t, "fast_median_s", by.fast);
        json_pair(t, "slow_median_s", by.slow);
        json_pair(t, "fast_share", by.share);
    }
    json_pair(t, "gflops", contender_gflops(c));
    json_pair(t, "share_of_peak", contender_share(c));
    json_pair(t, "share_of_roof", contender_roof_share(c));
    json_pair(t, "gbps", contender_gbps(c));
    json_pair(t, "jit_ms", 1e3 * f->jit_seconds);
    json_pair(t, "code_bytes", (double)f->code_bytes);
    json_pair(t, "rel_error", c->error);
    text_add(t, "}", 1);
}

void report_group(struct bench *b)
{
    static const struct {
        const char *title;
        bool states; /* only where tiles multiply */
    } head[] = {
        {"kernel", false},   {"variant", false},   {"target", false},  {"spelling", false},
        {"dtype", false},    {"T", false},         {"threads", false}, {"median", false},
        {"p20..p80", false}, {"fast", true},       {"slow", true},     {"runs fast", true},
        {"GFLOP/s", false},  {"of peak", false},   {"of roof", false}, {"GB/s", false},
        {"jit", false},      {"rel error", false},
    };
    bool states = any_states(b);
    struct table t = {0};
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        if (states || !head[i].states) {
            table_add(&t, "%s", head[i].title);
            t.columns++;
        }
    add_rows(b, &t, states);
    for (int i = 0; i < b->contenders; i++) {
        add_result(b, &b->contender[i]);
        plot_add(&b->plot, &b->contender[i]);
    }
    if (b->o->json && strcmp(b->o->json, "-") == 0) {
        table_free(&t);
        return;
    }
    table_print(&t, stdout);
    for (int i = 0; i < b->contenders; i++)
        if (contender_roof_share(&b->contender[i]) > 1) {
            note("note: above the roof, weights came from caches; --cold reads them from memory");
            break;
        }
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

/* The best of all probes of one thread: NAN without one. */
static double best(const struct bench *b, double (*measure)(const struct probe *p))
{
    double most = NAN;
    for (int i = 0; i < b->probes; i++)
        if (b->probe[i].threads == 1)
            most = fmax(most, measure(&b->probe[i]));
    return most;
}

/* "avx2", or "avx512_bf16 dot_bf16" for another op than FMA. */
static const char *probe_name(const struct probe *p, char *out, size_t room)
{
    bool plain = strcmp(p->op, "fma") == 0;
    snprintf(out, room, "%s%s%s%s", p->target, plain ? "" : " ", plain ? "" : p->op,
             p->emulated ? " emulated" : "");
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
    json_pair_text(t, "command", command_said(), false);
    text_fmt(t, ", \"cold\": %s", b->o->cold ? "true" : "false");
    json_pair(t, "peak_gflops", best(b, probe_gflops));
    json_pair(t, "read_gbps", best(b, probe_gbps));
    text_fmt(t, ", \"limits\": [");
    for (int i = 0; i < b->probes; i++) {
        const struct probe *p = &b->probe[i];
        text_fmt(t, "%s{", i ? ", " : "");
        json_pair_text(t, "target", p->target, true);
        json_pair_text(t, "op", p->op, false);
        json_pair(t, "threads", p->threads);
        json_pair(t, "peak_gflops", probe_gflops(p));
        json_pair(t, "read_gbps", probe_gbps(p));
        if (p->emulated)
            text_fmt(t, ", \"emulated\": true");
        if (isfinite(p->least_pace)) {
            json_pair(t, "least_pace", p->least_pace);
            json_pair(t, "most_pace", p->most_pace);
            json_pair(t, "fast_pace", FAST_PACE);
        }
        text_add(t, "}", 1);
    }
    text_fmt(t, "], \"latency\": [");
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
    if (b->results.lost)
        result = fail(MOEGEN_NO_MEMORY, NULL);
    else if (strcmp(b->o->json, "-") == 0)
        return put_text(&t);
    else
        result = write_text(b->o->json, &t);
    text_free(&t);
    return result;
}

/* What the machine can do, a line for each number of threads and op. */
static void print_limits(const struct bench *b)
{
    char name[100], who[40];
    for (int i = 0; i < b->probes; i++) {
        const struct probe *p = &b->probe[i];
        if (!isfinite(probe_gflops(p)))
            continue;
        snprintf(who, sizeof who, "%d threads at once", p->threads);
        printf("%s, %s: peak %.4g GFLOP/s, reads %.3g GB/s", p->threads == 1 ? "one core" : who,
               probe_name(p, name, sizeof name), probe_gflops(p), probe_gbps(p));
        if (isfinite(p->least_pace))
            printf("; tiles took %.1f..%.1f times their cycles, fast is below %.1f", p->least_pace,
                   p->most_pace, FAST_PACE);
        printf("\n");
    }
}

int report_end(struct bench *b)
{
    bool stdout_json = b->o->json && strcmp(b->o->json, "-") == 0;
    char a[32], c[32], d[32], model[128];
    if (!stdout_json && !b->o->latency)
        print_limits(b);
    for (int i = 0; i < b->latencies && !stdout_json; i++)
        printf("spec to callable, %s: cold %s, from disk %s, from memory %s\n", b->latency[i].name,
               show_seconds(a, b->latency[i].cold), show_seconds(c, b->latency[i].disk),
               show_seconds(d, b->latency[i].memory));
    int result = b->o->json ? write_json(b) : EXIT_OK;
    cpu_model(model, sizeof model);
    if (!result && b->o->plot)
        result = plot_write(b, model);
    return result;
}
