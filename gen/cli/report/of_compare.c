/* SPDX-License-Identifier: Apache-2.0 */
/* of_compare.c - a file of `moegen compare --json` as table and picture. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

enum { MOST_SIDES = 64 };
static const double least = 1e-12, most = 1e12; /* of ratios and seconds */

static moegen_status no_memory(moegen_error **err)
{
    return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
}

static moegen_status read_paired(const struct json *j, int map, struct paired *p,
                                 moegen_error **err)
{
    const char *verdict;
    double pairs, more;
    moegen_status status;
    if ((status = json_may_number(j, map, "ratio", least, most, &p->ratio, err)) ||
        (status = json_may_number(j, map, "low", least, most, &p->low, err)) ||
        (status = json_may_number(j, map, "high", least, most, &p->high, err)) ||
        (status = json_get_number(j, map, "pairs", 0, 1e9, &pairs, err)) ||
        (status = json_get_number(j, map, "more_pairs", 0, 1e9, &more, err)) ||
        (status = json_get_text(j, map, "verdict", &verdict, err)))
        return status;
    p->pairs = (int)pairs;
    p->more = (int)more;
    for (int v = VERDICT_NOISY; v <= VERDICT_SLOWER; v++)
        if (strcmp(verdict, verdict_name((enum verdict)v)) == 0) {
            p->verdict = (enum verdict)v;
            return MOEGEN_OK;
        }
    return json_refuse(j, map, err, "\"verdict\": one of noisy, same, faster, slower is wanted");
}

static moegen_status read_duel(const struct json *j, int map, struct duel *d, moegen_error **err)
{
    const char *kernel, *a, *b;
    double T, threads;
    moegen_status status;
    if ((status = json_get_text(j, map, "kernel", &kernel, err)) ||
        (status = json_get_text(j, map, "a_variant", &a, err)) ||
        (status = json_get_text(j, map, "b_variant", &b, err)) ||
        (status = json_get_number(j, map, "T", 0, most, &T, err)) ||
        (status = json_get_number(j, map, "threads", 1, 1e6, &threads, err)) ||
        (status = json_get_number(j, map, "a_s", least, most, &d->a_seconds, err)) ||
        (status = json_get_number(j, map, "b_s", least, most, &d->b_seconds, err)) ||
        (status = read_paired(j, map, &d->paired, err)))
        return status;
    d->kernel = strdup(kernel);
    d->a_variant = strdup(a);
    d->b_variant = strdup(b);
    d->T = (int64_t)T;
    d->threads = (int64_t)threads;
    return d->kernel && d->a_variant && d->b_variant ? MOEGEN_OK : no_memory(err);
}

static moegen_status read_shown(const struct json *j, int map, struct shown *s, moegen_error **err)
{
    int list, overall, count = 0;
    moegen_status status;
    if ((status = json_get_text(j, map, "b", &s->b, err)) ||
        (status = json_get_list(j, map, "kernels", &list, err)) ||
        (status = json_find(j, map, "overall", &overall, err)))
        return status;
    if (!overall)
        return json_refuse(j, map, err, "there is no \"overall\" here");
    for (int i = list + 1; i < j->node[list].after; i = j->node[i].after)
        count++;
    if (!(s->duels.row = calloc((size_t)count + 1, sizeof *s->duels.row)))
        return no_memory(err);
    for (int i = list + 1; i < j->node[list].after && !status; i = j->node[i].after)
        status = read_duel(j, i, &s->duels.row[s->duels.rows++], err);
    return status ? status : read_paired(j, overall, &s->duels.overall, err);
}

moegen_status report_compare(const struct json *j, struct text *out, moegen_error **err)
{
    struct shown shown[MOST_SIDES] = {0};
    struct table t = {0};
    int list, count = 0;
    const char *a, *cpu = "", *command = "";
    double margin;
    bool of_files;
    moegen_status status;
    if ((status = json_get_text(j, 0, "a", &a, err)) ||
        (status = json_get_number(j, 0, "margin", 1e-6, 0.5, &margin, err)) ||
        (status = json_may_text(j, 0, "cpu", &cpu, err)) ||
        (status = json_may_text(j, 0, "command", &command, err)) ||
        (status = json_may_true(j, 0, "of_files", &of_files, err)) ||
        (status = json_get_list(j, 0, "comparisons", &list, err)))
        return status;
    for (int i = list + 1; i < j->node[list].after && !status; i = j->node[i].after) {
        if (count == MOST_SIDES) {
            status = json_refuse(j, i, err, "more than %d comparisons", MOST_SIDES);
            break;
        }
        shown[count].a = a;
        shown[count].of_files = of_files;
        status = read_shown(j, i, &shown[count++], err);
    }
    if (!status && !count)
        status = json_refuse(j, list, err, "no comparison");
    if (!status && !(shown[0].duels.cpu = strdup(cpu)))
        status = no_memory(err);
    if (!status) {
        compared_table(shown, count, &t);
        html_table(out, &t);
        if (!compared_svg(shown, count, margin, "moegen compare", command, out))
            status = no_memory(err);
    }
    for (int i = 0; i < count; i++)
        duels_free(&shown[i].duels);
    return status;
}
