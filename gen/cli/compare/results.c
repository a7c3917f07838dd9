/* SPDX-License-Identifier: Apache-2.0 */
/* results.c - the results of `bench --json`, from its text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"

static const double longest = 1e6, shortest = 1e-12; /* seconds of a sample */

static moegen_status no_memory(moegen_error **err)
{
    return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
}

static moegen_status read_samples(struct measured *m, const struct json *j, int map,
                                  moegen_error **err)
{
    int list;
    moegen_status status = json_find(j, map, "samples_s", &list, err);
    if (status)
        return status;
    if (!list)
        return json_refuse(j, map, err,
                           "there is no \"samples_s\" here: an older `moegen bench` made this");
    if (j->node[list].kind != JSON_LIST)
        return json_refuse(j, list, err, "\"samples_s\": a list of seconds is wanted");
    int most = j->node[list].after - list - 1;
    if (!(m->seconds = malloc((size_t)most * sizeof *m->seconds + 1)))
        return no_memory(err);
    for (int i = list + 1; i < j->node[list].after && !status; i = j->node[i].after)
        status = json_as_number(j, i, shortest, longest, &m->seconds[m->samples++], err);
    return status;
}

/* Times become multiples of what the roof of their run allows: on a machine that is slower today,
 * both are. */
static moegen_status scale_by_roof(struct measured *m, const struct json *j, int map,
                                   moegen_error **err)
{
    double share, median;
    moegen_status status = json_may_number(j, map, "share_of_roof", 1e-9, 1e3, &share, err);
    if (!status)
        status = json_may_number(j, map, "median_s", shortest, longest, &median, err);
    if (!status && !(isfinite(share) && isfinite(median)))
        status = json_refuse(j, map, err, "there is no \"share_of_roof\" here, or no \"median_s\"");
    for (int i = 0; i < m->samples && !status; i++)
        m->seconds[i] /= share * median;
    return status;
}

static moegen_status read_row(struct measured *m, const struct json *j, int map, bool of_roof,
                              moegen_error **err)
{
    const char *kernel, *variant;
    double T, threads;
    moegen_status status = json_get_text(j, map, "kernel", &kernel, err);
    if (!status)
        status = json_get_text(j, map, "variant", &variant, err);
    if (!status)
        status = json_get_number(j, map, "T", 0, 1e15, &T, err);
    if (!status)
        status = json_get_number(j, map, "threads", 1, 1e6, &threads, err);
    if (status)
        return status;
    m->kernel = strdup(kernel);
    m->variant = strdup(variant);
    m->T = (int64_t)T;
    m->threads = (int64_t)threads;
    if (!m->kernel || !m->variant)
        return no_memory(err);
    status = read_samples(m, j, map, err);
    return !status && of_roof && m->samples ? scale_by_roof(m, j, map, err) : status;
}

static void row_free(struct measured *m)
{
    free(m->kernel);
    free(m->variant);
    free(m->seconds);
    *m = (struct measured){0};
}

static moegen_status read_context(struct results *r, const struct json *j, moegen_error **err)
{
    int context;
    const char *cpu;
    moegen_status status = json_find(j, 0, "context", &context, err);
    if (!status && !context)
        status = json_refuse(j, 0, err,
                             "there is no \"context\": this is no file of `moegen bench --json`");
    if (!status)
        status = json_get_text(j, context, "cpu", &cpu, err);
    if (!status)
        status = json_may_true(j, context, "cold", &r->cold, err);
    if (status)
        return status;
    return (r->cpu = strdup(cpu)) ? MOEGEN_OK : no_memory(err);
}

static moegen_status read_rows(struct results *r, const struct json *j, bool of_roof,
                               moegen_error **err)
{
    int list, count = 0;
    moegen_status status = json_get_list(j, 0, "results", &list, err);
    if (status)
        return status;
    for (int i = list + 1; i < j->node[list].after; i = j->node[i].after)
        count++;
    if (!(r->row = calloc((size_t)count + 1, sizeof *r->row)))
        return no_memory(err);
    for (int i = list + 1; i < j->node[list].after && !status; i = j->node[i].after) {
        struct measured *m = &r->row[r->rows];
        status = read_row(m, j, i, of_roof, err);
        if (m->samples && !status)
            r->rows++;
        else
            row_free(m);
    }
    return status;
}

moegen_status results_read(struct results *r, const char *label, const char *text, size_t len,
                           bool of_roof, moegen_error **err)
{
    struct json j;
    *r = (struct results){0};
    moegen_status status = json_read(&j, label, text, len, err);
    if (!status)
        status = read_context(r, &j, err);
    if (!status)
        status = read_rows(r, &j, of_roof, err);
    if (!status && !r->rows)
        status = json_refuse(&j, 0, err, "nothing was timed here");
    json_free(&j);
    return status;
}

void results_free(struct results *r)
{
    for (int i = 0; i < r->rows; i++)
        row_free(&r->row[i]);
    free(r->row);
    free(r->cpu);
    *r = (struct results){0};
}
