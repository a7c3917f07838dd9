/* SPDX-License-Identifier: Apache-2.0 */
/*
 * baseline.c - `compare --baseline=F`: the kernels of a file of stored baselines, benched again in
 * fresh processes, round after round. What is compared are shares of the roof, which each process
 * measures beside its kernels; of a process counts what its faster runs reach, since other work on
 * the machine makes runs slower, never faster.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "stored.h"

enum { MOST_FILE = 1 << 22, USUAL_ROUNDS = 8 };
static const double fast_runs = 0.1; /* the quantile of a process's times that counts */
static const double usual_seconds = 0.3, usual_fail_below = 0.95;

static moegen_status parse(void *to, const char *label, const char *text, size_t len,
                           moegen_error **err)
{
    return stored_read(to, label, text, len, err);
}

static int read_stored(const char *path, struct stored *s)
{
    *s = (struct stored){0};
    return json_file(path, MOST_FILE, parse, s);
}

/* ---- benches ---- */

static void add_list(struct side *s, const char *key, const struct whole_numbers *n)
{
    struct text t = {0};
    for (int i = 0; i < n->count; i++)
        text_fmt(&t, "%s%lld", i ? "," : "",
                 (long long)(n->at[i] ? n->at[i] : moegen_rt_cpu_count()));
    s->lost = s->lost || t.lost;
    side_add(s, "--vary=%s=%s", key, t.at ? t.at : "");
    text_free(&t);
}

static void make_side(const struct options *o, const struct stored_bench *b, struct side *s)
{
    const char *slash = strrchr(o->baseline, '/');
    int dir = *b->spec != '/' && slash ? (int)(slash - o->baseline) + 1 : 0;
    add_list(s, "T", &b->T);
    add_list(s, "threads", &b->threads);
    side_add_options(o, s);
    side_add(s, "--set=plan.tuned=false");
    side_add(s, "--seconds=%g", o->seconds > 0 ? o->seconds : usual_seconds);
    side_add(s, "--");
    side_add(s, "%.*s%s", dir, o->baseline, b->spec);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One process of each bench, none of which is begun after `until`, but one is at all: adds to `now`
 * what it reached. */
static int round_of(const struct options *o, const struct stored *s, int round, double until,
                    struct stored_cpu *now)
{
    int result = EXIT_OK;
    for (int i = 0; i < s->benches && !result; i++) {
        if ((round || i) && seconds_now() >= until)
            break;
        struct side side = {0};
        struct results r = {0};
        make_side(o, &s->bench[i], &side);
        result = fresh_bench(&side, round > 0, true, &r);
        for (int k = 0; k < r.rows && !result; k++) {
            struct measured *m = &r.row[k]; /* times are multiples of what the roof allows */
            qsort(m->seconds, (size_t)m->samples, sizeof *m->seconds, compare_doubles);
            double fast = m->seconds[(int)(fast_runs * (m->samples - 1))];
            if (!stored_add(now, m->kernel, m->T, m->threads, 1 / fast))
                result = fail(MOEGEN_NO_MEMORY, NULL);
        }
        results_free(&r);
        side_free(&side);
    }
    return result;
}

/* ---- judging ---- */

/* Shares of the first so many processes, as results of one run each. */
static bool as_results(const struct stored_cpu *c, int process, struct results *out)
{
    *out = (struct results){.row = calloc((size_t)c->rows + 1, sizeof *out->row)};
    if (!out->row || !(out->cpu = strdup(c->cpu)))
        return false;
    for (int i = 0; i < c->rows; i++) {
        const struct stored_row *r = &c->row[i];
        struct measured *m = &out->row[out->rows];
        if (process >= r->shares)
            continue;
        out->rows++;
        *m = (struct measured){strdup(r->kernel),          strdup(""), r->T, r->threads,
                               malloc(sizeof *m->seconds), 1};
        if (!m->kernel || !m->variant || !m->seconds)
            return false;
        m->seconds[0] = 1 / r->share[process];
    }
    return true;
}

static int judge(const struct stored_cpu *then, const struct stored_cpu *now, int rounds,
                 double margin, struct duels *d)
{
    int result = EXIT_OK;
    duels_free(d);
    for (int i = 0; i < rounds && !result; i++) {
        struct results a, b;
        bool ok = as_results(then, i, &a);
        ok = as_results(now, i, &b) && ok;
        if (ok)
            duels_add(d, &a, &b, 1);
        if (!ok || d->lost)
            result = fail(MOEGEN_NO_MEMORY, NULL);
        results_free(&a);
        results_free(&b);
    }
    return result ? result : duels_judge(d, margin);
}

/* Of how many kernels `a` knows and `b` does not; of each a note. */
static int note_missing(const struct stored_cpu *a, const struct stored_cpu *b, const char *what)
{
    int missing = 0;
    for (int i = 0; i < a->rows; i++) {
        const struct stored_row *r = &a->row[i];
        if (stored_find(b, r->kernel, r->T, r->threads))
            continue;
        note("note: %s, T %lld, %lld threads: %s", r->kernel, (long long)r->T,
             (long long)r->threads, what);
        missing++;
    }
    return missing;
}

static int least_shares(const struct stored_cpu *c)
{
    int least = MAX_SHARES;
    for (int i = 0; i < c->rows; i++)
        least = c->row[i].shares < least ? c->row[i].shares : least;
    return least;
}

static int compare_with(const struct options *o, const struct stored *s,
                        const struct stored_cpu *then, struct stored_cpu *now, double margin)
{
    struct options own = *o;
    struct duels d = {0};
    struct text name = {0};
    int rounds = 0, most = least_shares(then), result = EXIT_OK;
    if (o->runs && o->runs < most)
        most = (int)o->runs;
    double until = o->budget > 0 ? seconds_now() + o->budget : INFINITY;
    for (; rounds < most && !result && (!rounds || seconds_now() < until); rounds++) {
        if (rounds >= PAIRED_LEAST && rounds % 2 == 0 && !o->runs && duels_settled(&d))
            break;
        progress("comparing", rounds, most);
        result = round_of(o, s, rounds, until, now);
        if (!result)
            result = judge(then, now, rounds + 1, margin, &d);
    }
    progress("", 100, 100);
    if (!result) {
        note_missing(now, then, "no baseline, `--record` makes one");
        note_missing(then, now,
                     seconds_now() < until
                         ? "its baseline was not compared: no bench makes it"
                         : "its baseline was not compared: no bench made it within --budget");
    }
    text_fmt(&name, "%s, %s by moegen %s", o->baseline, then->cpu, then->moegen);
    if (!result && name.lost)
        result = fail(MOEGEN_NO_MEMORY, NULL);
    if (!result && !d.rows)
        result = bad("%s: no kernel that was benched has a baseline", o->baseline);
    if (!(own.fail_below > 0))
        own.fail_below = usual_fail_below;
    if (!result) {
        struct shown shown = {
            .a = name.at, .b = "now", .of_files = true, .of_roof = true, .duels = d};
        result = show_compared(&own, &shown, 1, margin);
    }
    duels_free(&d);
    text_free(&name);
    return result;
}

/* ---- recording ---- */

/* What is there now takes the place of what the file had of this CPU; the file is read again, since
 * others may have changed it meanwhile. */
static int put(const struct options *o, const struct stored_cpu *now)
{
    struct stored s;
    struct text t = {0};
    int result = read_stored(o->baseline, &s);
    struct stored_cpu *c = result ? NULL : stored_renew(&s, now->cpu, now->moegen);
    for (int i = 0; c && i < now->rows; i++)
        for (int k = 0; k < now->row[i].shares && c; k++)
            if (!stored_add(c, now->row[i].kernel, now->row[i].T, now->row[i].threads,
                            now->row[i].share[k]))
                c = NULL;
    if (!result && !c)
        result = fail(MOEGEN_NO_MEMORY, NULL);
    if (!result) {
        stored_text(&s, &t);
        result = write_text(o->baseline, &t);
    }
    text_free(&t);
    stored_free(&s);
    return result;
}

static int record(const struct options *o, const struct stored *s, struct stored_cpu *now)
{
    int rounds = o->runs ? (int)fmin((double)o->runs, MAX_SHARES) : USUAL_ROUNDS;
    int result = EXIT_OK;
    for (int i = 0; i < rounds && !result; i++) {
        progress("recording", i, rounds);
        result = round_of(o, s, i, INFINITY, now);
    }
    progress("", 100, 100);
    if (!result)
        result = put(o, now);
    if (result)
        return result;
    struct table t = {.columns = 5};
    static const char *const head[] = {"kernel", "T", "threads", "of roof", "processes"};
    for (int i = 0; i < t.columns; i++)
        table_add(&t, "%s", head[i]);
    for (int i = 0; i < now->rows; i++) {
        const struct stored_row *r = &now->row[i];
        table_add(&t, "%s", r->kernel);
        table_add(&t, "%lld", (long long)r->T);
        table_add(&t, "%lld", (long long)r->threads);
        table_add(&t, "%.1f %%", 100 * median_of(r->share, r->shares));
        table_add(&t, "%d", r->shares);
    }
    printf("Recorded in %s for %s:\n", o->baseline, now->cpu);
    table_print(&t, stdout);
    return EXIT_OK;
}

/* ---- the command ---- */

static int no_such_cpu(const struct options *o, const struct stored *s, const char *cpu)
{
    struct text known = {0};
    for (int i = 0; i < s->cpus; i++)
        text_fmt(&known, "%s%s", i ? ", " : "", s->cpu[i].cpu);
    bad("%s has no baselines of this kind of CPU, %s (it has: %s); `--record` makes them",
        o->baseline, cpu, known.at ? known.at : "none");
    text_free(&known);
    return EXIT_NOT_HERE;
}

int compare_stored(const struct options *o, double margin)
{
    char version[32];
    struct stored s, own = {0};
    const char *cpu = moegen_rt_cpu_kind();
    snprintf(version, sizeof version, "%d.%d.%d", MOEGEN_VERSION_MAJOR, MOEGEN_VERSION_MINOR,
             MOEGEN_VERSION_PATCH);
    int result = read_stored(o->baseline, &s);
    struct stored_cpu *now = result ? NULL : stored_renew(&own, cpu, version);
    if (!result && !now)
        result = fail(MOEGEN_NO_MEMORY, NULL);
    const struct stored_cpu *then = result ? NULL : stored_cpu(&s, cpu);
    if (!result && o->record)
        result = record(o, &s, now);
    else if (!result)
        result =
            then && then->rows ? compare_with(o, &s, then, now, margin) : no_such_cpu(o, &s, cpu);
    stored_free(&own);
    stored_free(&s);
    return result;
}
