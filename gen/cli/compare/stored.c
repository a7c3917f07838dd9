/* SPDX-License-Identifier: Apache-2.0 */
/* stored.c - the file of stored baselines: which benches there are, and of each kind of CPU the
 * shares of the roof that they reached. It may come from anybody: everything is bounded. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "stored.h"

static const double least_share = 1e-6, most_share = 1e3;

static moegen_status no_memory(moegen_error **err)
{
    return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
}

/* ---- reading ---- */

/* One more row, of zeroes; NULL: out of memory. */
static struct stored_row *new_row(struct stored_cpu *c)
{
    struct stored_row *more = realloc(c->row, (size_t)(c->rows + 1) * sizeof *more);
    if (!more)
        return NULL;
    c->row = more;
    more[c->rows] = (struct stored_row){0};
    return &more[c->rows++];
}

static struct stored_cpu *new_cpu(struct stored *s)
{
    struct stored_cpu *more = realloc(s->cpu, (size_t)(s->cpus + 1) * sizeof *more);
    if (!more)
        return NULL;
    s->cpu = more;
    more[s->cpus] = (struct stored_cpu){0};
    return &more[s->cpus++];
}

/* Text that is printed: of letters, digits and what names have between them. */
static moegen_status get_name(const struct json *j, int map, const char *key, const char *between,
                              char **out, moegen_error **err)
{
    const char *text;
    int node;
    moegen_status status = json_get_text(j, map, key, &text, err);
    if (status || (status = json_find(j, map, key, &node, err)))
        return status;
    size_t len = strlen(text), good = 0;
    while (good < len && (isalnum((unsigned char)text[good]) || strchr(between, text[good])))
        good++;
    if (!len || good < len || len > MAX_STORED_NAME)
        return json_refuse(j, node, err, "\"%s\": this is no name", key);
    return (*out = strdup(text)) ? MOEGEN_OK : no_memory(err);
}

/* A list of 1 to `most` numbers. */
static moegen_status get_numbers(const struct json *j, int map, const char *key, double low,
                                 double high, double *out, int most, int *count, moegen_error **err)
{
    int list;
    moegen_status status = json_get_list(j, map, key, &list, err);
    *count = 0;
    if (status)
        return status;
    for (int i = list + 1; i < j->node[list].after && !status; i = j->node[i].after) {
        if (*count == most)
            return json_refuse(j, i, err, "\"%s\": more than %d numbers", key, most);
        status = json_as_number(j, i, low, high, &out[(*count)++], err);
    }
    return !status && !*count ? json_refuse(j, list, err, "\"%s\": an empty list", key) : status;
}

static moegen_status get_whole(const struct json *j, int map, const char *key, double low,
                               double high, struct whole_numbers *out, moegen_error **err)
{
    double at[MAX_STORED_LIST];
    moegen_status status =
        get_numbers(j, map, key, low, high, at, MAX_STORED_LIST, &out->count, err);
    for (int i = 0; i < out->count && !status; i++) {
        out->at[i] = (int64_t)at[i];
        if (at[i] != (double)out->at[i])
            status = json_refuse(j, map, err, "\"%s\": whole numbers are wanted", key);
    }
    return status;
}

static moegen_status read_bench(struct stored_bench *b, const struct json *j, int map,
                                moegen_error **err)
{
    moegen_status status = get_name(j, map, "spec", "/._-:", &b->spec, err);
    if (!status)
        status = get_whole(j, map, "T", 1, 1 << 24, &b->T, err);
    return status ? status : get_whole(j, map, "threads", 0, 1024, &b->threads, err);
}

static moegen_status read_row(const struct stored_cpu *c, struct stored_row *r,
                              const struct json *j, int map, moegen_error **err)
{
    double T, threads;
    moegen_status status = get_name(j, map, "kernel", "_", &r->kernel, err);
    if (!status)
        status = json_get_number(j, map, "T", 0, 1 << 24, &T, err);
    if (!status)
        status = json_get_number(j, map, "threads", 1, 1024, &threads, err);
    if (!status)
        status = get_numbers(j, map, "of_roof", least_share, most_share, r->share, MAX_SHARES,
                             &r->shares, err);
    if (status)
        return status;
    r->T = (int64_t)T;
    r->threads = (int64_t)threads;
    if (stored_find(c, r->kernel, r->T, r->threads) != r)
        return json_refuse(j, map, err, "%s, T %lld, %lld threads: it is there twice", r->kernel,
                           (long long)r->T, (long long)r->threads);
    return MOEGEN_OK;
}

static moegen_status read_cpu(struct stored *s, struct stored_cpu *c, const struct json *j, int map,
                              moegen_error **err)
{
    int list = 0;
    moegen_status status = get_name(j, map, "cpu", "_.-+ ", &c->cpu, err);
    if (!status && stored_cpu(s, c->cpu) != c)
        return json_refuse(j, map, err, "CPU %s: it is there twice", c->cpu);
    if (!status)
        status = get_name(j, map, "moegen", "._-", &c->moegen, err);
    if (!status)
        status = json_get_list(j, map, "kernels", &list, err);
    for (int i = list + 1; !status && i < j->node[list].after; i = j->node[i].after) {
        struct stored_row *r = new_row(c);
        status = r ? read_row(c, r, j, i, err) : no_memory(err);
    }
    return status;
}

moegen_status stored_read(struct stored *s, const char *label, const char *text, size_t len,
                          moegen_error **err)
{
    struct json j;
    int list = 0;
    *s = (struct stored){0};
    moegen_status status = json_read(&j, label, text, len, err);
    if (!status)
        status = json_get_list(&j, 0, "benches", &list, err);
    for (int i = list + 1; !status && i < j.node[list].after; i = j.node[i].after) {
        if (s->benches == MAX_BENCHES)
            status = json_refuse(&j, i, err, "more than %d benches", MAX_BENCHES);
        else
            status = read_bench(&s->bench[s->benches++], &j, i, err);
    }
    if (!status && !s->benches)
        status = json_refuse(&j, list, err, "\"benches\": nothing to bench");
    if (!status)
        status = json_get_list(&j, 0, "cpus", &list, err);
    for (int i = list + 1; !status && i < j.node[list].after; i = j.node[i].after) {
        struct stored_cpu *c = new_cpu(s);
        status = c ? read_cpu(s, c, &j, i, err) : no_memory(err);
    }
    json_free(&j);
    return status;
}

static void free_cpu(struct stored_cpu *c)
{
    for (int i = 0; i < c->rows; i++)
        free(c->row[i].kernel);
    free(c->row);
    free(c->cpu);
    free(c->moegen);
    *c = (struct stored_cpu){0};
}

void stored_free(struct stored *s)
{
    for (int i = 0; i < s->benches; i++)
        free(s->bench[i].spec);
    for (int i = 0; i < s->cpus; i++)
        free_cpu(&s->cpu[i]);
    free(s->cpu);
    *s = (struct stored){0};
}

struct stored_cpu *stored_cpu(const struct stored *s, const char *cpu)
{
    for (int i = 0; i < s->cpus; i++)
        if (s->cpu[i].cpu && strcmp(s->cpu[i].cpu, cpu) == 0)
            return &s->cpu[i];
    return NULL;
}

struct stored_row *stored_find(const struct stored_cpu *c, const char *kernel, int64_t T,
                               int64_t threads)
{
    for (int i = 0; i < c->rows; i++) {
        struct stored_row *r = &c->row[i];
        if (r->kernel && strcmp(r->kernel, kernel) == 0 && r->T == T && r->threads == threads)
            return r;
    }
    return NULL;
}

/* ---- changing ---- */

struct stored_cpu *stored_renew(struct stored *s, const char *cpu, const char *moegen)
{
    struct stored_cpu *c = stored_cpu(s, cpu);
    if (c)
        free_cpu(c);
    else
        c = new_cpu(s);
    if (!c || !(c->cpu = strdup(cpu)) || !(c->moegen = strdup(moegen)))
        return NULL;
    return c;
}

bool stored_add(struct stored_cpu *c, const char *kernel, int64_t T, int64_t threads, double share)
{
    struct stored_row *r = stored_find(c, kernel, T, threads);
    if (!r) {
        if (!(r = new_row(c)) || !(r->kernel = strdup(kernel)))
            return false;
        r->T = T;
        r->threads = threads;
    }
    if (r->shares < MAX_SHARES && share >= least_share && share <= most_share)
        r->share[r->shares++] = share;
    return true;
}

/* ---- writing ---- */

static void put_whole(struct text *t, const char *key, const struct whole_numbers *n)
{
    text_fmt(t, ", \"%s\": [", key);
    for (int i = 0; i < n->count; i++)
        text_fmt(t, "%s%lld", i ? ", " : "", (long long)n->at[i]);
    text_fmt(t, "]");
}

static void put_row(struct text *t, const struct stored_row *r)
{
    text_fmt(t, "{\"kernel\": \"%s\", \"T\": %lld, \"threads\": %lld, \"of_roof\": [", r->kernel,
             (long long)r->T, (long long)r->threads);
    for (int i = 0; i < r->shares; i++)
        text_fmt(t, "%s%.4g", i ? ", " : "", r->share[i]);
    text_fmt(t, "]}");
}

void stored_text(const struct stored *s, struct text *t)
{
    text_fmt(t, "{\n  \"benches\": [");
    for (int i = 0; i < s->benches; i++) {
        text_fmt(t, "%s\n    {\"spec\": \"%s\"", i ? "," : "", s->bench[i].spec);
        put_whole(t, "T", &s->bench[i].T);
        put_whole(t, "threads", &s->bench[i].threads);
        text_fmt(t, "}");
    }
    text_fmt(t, "\n  ],\n  \"cpus\": [");
    for (int i = 0; i < s->cpus; i++) {
        const struct stored_cpu *c = &s->cpu[i];
        text_fmt(t, "%s\n    {\"cpu\": \"%s\", \"moegen\": \"%s\", \"kernels\": [", i ? "," : "",
                 c->cpu, c->moegen);
        for (int k = 0; k < c->rows; k++) {
            text_fmt(t, "%s\n      ", k ? "," : "");
            put_row(t, &c->row[k]);
        }
        text_fmt(t, "\n    ]}");
    }
    text_fmt(t, "\n  ]\n}\n");
}
