/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_tune.c - `moegen tune`: for each kernel a search (moegen_tune), the best of it against the
 * planner's own choice in fresh processes, and an entry in a file of tuned plans if it is faster.
 */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tuner.h"

enum { MAX_THREAD_COUNTS = 8 };
static const double usual_budget = 60;

static volatile sig_atomic_t interrupts;

static void interrupted(int signal)
{
    (void)signal;
    interrupts++;
}

struct session {
    const struct options *o;
    struct job job;
    int64_t tokens[MAX_COURSES], thread[MAX_THREAD_COUNTS];
    int token_count, threads;
    double budget;
    struct tuned_kernel *kernel; /* of each kernel all numbers of threads */
    int all, kernels;            /* that were begun */
    int seen;                    /* interrupts that the search at hand began with */
};

/* ---- options ---- */

/* A number from 1 on at *at, and its comma. */
static bool next_number(const char **at, int64_t most, int64_t *out)
{
    char item[ITEM], *end;
    if (!next_item(at, item))
        return false;
    *out = strtoll(item, &end, 10);
    return end != item && !*end && *out >= 1 && *out <= most;
}

/* The numbers of an option's list, each once; of `what`, such as `example`. */
static int read_list(const char *option, const char *list, const char *what, const char *example,
                     int64_t most, int room, int64_t *number, int *count)
{
    int64_t n;
    for (const char *at = list; at && *at;) {
        int seen = 0;
        if (!next_number(&at, most, &n))
            return bad("%s: '%s' is not a list of numbers of %s: %s", option, list, what, example);
        while (seen < *count && number[seen] != n)
            seen++;
        if (seen == room)
            return bad("%s: more than %d numbers", option, room);
        number[seen] = n;
        *count += seen == *count;
    }
    return EXIT_OK;
}

static int read_lists(struct session *s)
{
    int result = read_list("--T", s->o->token_list, "tokens", "1,16,256", 1 << 24, MAX_COURSES,
                           s->tokens, &s->token_count);
    if (!result)
        result = read_list("--threads", s->o->thread_list, "threads", "1,2", MOST_THREADS,
                           MAX_THREAD_COUNTS, s->thread, &s->threads);
    if (!s->threads)
        s->thread[s->threads++] = 0;
    s->budget = s->o->budget > 0 ? s->o->budget : usual_budget;
    return result;
}

/* ---- one kernel ---- */

static int on_step(void *user, const moegen_tune_step *step)
{
    struct session *s = user;
    struct text line = {0};
    text_fmt(&line, "%s, best %.3f, %.0f s left", step->what, step->best_ratio, step->seconds_left);
    progress(line.at ? line.at : step->what, step->tried, step->candidates + 1);
    text_free(&line);
    if (verbose && isfinite(step->ratio))
        note("%-10s %3d of %-3d %.3f  %s", step->what, step->tried, step->candidates, step->ratio,
             step->plan);
    int news = interrupts > s->seen;
    s->seen = interrupts;
    return news;
}

static int name_of(struct session *s, int k, struct tuned_kernel *x)
{
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    moegen_status status = job_kernel(&s->job, k, 0, 0, NULL, &kernel, &err);
    if (status)
        return fail(status, err);
    int64_t fixed = kernel_tokens(kernel, 0);
    static const int64_t usual[] = {1, 16, 256, 1024};
    const int64_t *list = fixed ? &fixed : s->token_count ? s->tokens : usual;
    int count = fixed ? 1 : s->token_count ? s->token_count : 4;
    x->name = strdup(kernel_facts(kernel)->name);
    for (int i = 0; i < count; i++)
        text_fmt(&x->tokens, "%s%lld", i ? "," : "", (long long)list[i]);
    moegen_kernel_release(kernel);
    if (!x->name || x->tokens.lost)
        return fail(MOEGEN_NO_MEMORY, NULL);
    if (fixed && s->token_count && (s->token_count > 1 || s->tokens[0] != fixed))
        return bad("%s: its spec fixes T at %lld, so --T cannot be %s", x->name, (long long)fixed,
                   s->o->token_list);
    return EXIT_OK;
}

static int write_entry(struct session *s, struct tuned_kernel *x)
{
    moegen_error *err = NULL;
    bool pinned;
    const struct paired *p = &x->paired;
    if (!tuning_entry(x->tuning, p->ratio, p->low, p->high, p->pairs))
        return fail(MOEGEN_NO_MEMORY, NULL);
    moegen_status status =
        tuning_write(x->tuning, s->job.engine, s->o->out ? s->o->out : "", &pinned, &err);
    x->what = status ? "not written" : pinned ? "pinned: not written" : "written";
    return status ? fail(status, err) : EXIT_OK;
}

static void say_small(const struct tuned_kernel *x)
{
    const long long least = x->tuning->experts[0], most = x->tuning->experts[1];
    static const char what[] = "stood for the spec's";
    if (most > least)
        note("%s: layers of %lld or %lld experts, with as many rows for each, %s", x->name, least,
             most, what);
    else if (least)
        note("%s: layers of %lld experts, with as many rows for each, %s", x->name, least, what);
    if (x->tuning->width)
        note("%s: narrower layers, I_TP %lld, %s", x->name, (long long)x->tuning->width, what);
}

/* How far it came, in words. */
static void say_search(const struct session *s, struct tuned_kernel *x)
{
    const moegen_tuning *t = x->tuning;
    bool stopped = interrupts > 0;
    x->what = !t->plans              ? "has no plan to choose"
              : t->missed < t->plans ? "nothing is faster"
              : stopped              ? "stopped: no plan was tried"
                                     : "no plan was tried: the budget is too small";
    if (t->looked_at)
        note("%s: %d of %d plans need no timing: %s", x->name, t->pruned, t->looked_at,
             t->modelled ? "the model prunes them, or their code is the same"
                         : "their code is the same; the limits that were measured here prune none, "
                           "since the planner's own is beyond them: the machine is busy");
    say_small(x);
    double enough = ceil(t->enough / 10) * 10;
    if (t->missed && !stopped && enough <= s->budget)
        note("%s: %d of the first %d were not tried: the machine is busy, else %.0f s would be "
             "enough",
             x->name, t->missed, t->plans, enough);
    else if (t->missed && !stopped)
        note("%s: %d of the first %d were not tried: %g s were too short, since calls of one plan "
             "take %.2g s; fewer --T get further, or a --budget of %.0f s",
             x->name, t->missed, t->plans, s->budget, t->once, enough);
    else if (t->waited && !stopped)
        note("%s: a first look at all plans left out the %s of T = %s: calls of one plan "
             "take %.2g s; a --budget of %.0f s leaves out none",
             x->name, t->waited == 1 ? "longest" : "longer ones", x->tokens.at, t->once, enough);
    if (verbose)
        note("%s: filling tensors took %.1f s before the search", x->name, t->filling);
}

static int tune_one(struct session *s, int k, int threads, struct tuned_kernel *x)
{
    moegen_error *err = NULL;
    int result = EXIT_OK;
    if (s->all > 1)
        note("%s, T = %s (%d of %d):", x->name, x->tokens.at, s->kernels, s->all);
    else
        note("%s, T = %s:", x->name, x->tokens.at);
    moegen_spec spec = job_spec(&s->job, k, 0);
    moegen_tune_options options = {
        .struct_size = sizeof options,
        .tokens = s->token_count ? s->tokens : NULL,
        .token_count = (size_t)s->token_count,
        .threads = threads,
        .seconds = s->budget,
        .step = on_step,
        .user = s,
    };
    s->seen = interrupts;
    int before = interrupts;
    moegen_status status = tune(s->job.engine, &spec, &options, true, &x->tuning, &err);
    progress("", 100, 100);
    if (status == MOEGEN_UNSUPPORTED) {
        note("note: %s is left out: %s", x->name,
             err && err->count ? diag_message(&err->diag[0]) : "it cannot be tried");
        moegen_error_release(err);
        x->what = "left out";
        return EXIT_OK;
    }
    if (status)
        return fail(status, err);
    x->paired = x->tuning->paired;
    say_search(s, x);
    if (verbose)
        note("%s: kernels were made in %.1f of %.1f s", x->name, x->tuning->making,
             x->tuning->took);
    if (!*moegen_tuning_plan(x->tuning))
        return EXIT_OK;
    if (interrupts == before)
        result = confirm_fresh(s->o, &s->job, k, 2 * s->budget, x);
    if (result && interrupts > before) /* it hit the processes, too */
        result = EXIT_OK;
    if (result)
        x->what = "not kept: its fresh processes failed";
    if (!result && x->fresh && (x->paired.verdict != VERDICT_FASTER || x->worse)) {
        x->what = x->worse                             ? "not kept: slower for one T"
                  : x->paired.verdict == VERDICT_NOISY ? "not kept: fresh processes are not sure"
                                                       : "not kept: fresh processes disagree";
        return EXIT_OK;
    }
    return result ? result : write_entry(s, x);
}

/* ---- showing ---- */

static void show_table(const struct session *s)
{
    struct table t = {.columns = 7};
    static const char *const head[] = {"kernel", "T", "threads", "speed", "95 %", "pairs", "plan"};
    for (int i = 0; i < 7; i++)
        table_add(&t, "%s", head[i]);
    for (int i = 0; i < s->kernels; i++) {
        const struct tuned_kernel *x = &s->kernel[i];
        if (!x->tuning)
            continue;
        const char *plan = moegen_tuning_plan(x->tuning);
        table_add(&t, "%s", x->name);
        table_add(&t, "%s", x->tokens.at);
        table_add(&t, "%d", x->tuning->threads);
        table_add(&t, "%.3f", x->paired.ratio);
        table_add(&t, "%.3f..%.3f", x->paired.low, x->paired.high);
        table_add(&t, "%d", x->paired.pairs);
        const int plans = x->tuning->plans, missed = x->tuning->missed;
        if (x->fresh && x->paired.more)
            table_add(&t, "%s, %d pairs more would tell: %s", x->what, x->paired.more, plan);
        else if (missed && missed < plans && !*plan)
            table_add(&t, "%s, of %d plans of %d", x->what, plans - missed, plans);
        else
            table_add(&t, "%s%s%s", x->what, *plan ? ": " : "", plan);
    }
    table_print(&t, stdout);
}

static int show_json(const struct session *s)
{
    struct text j = {0};
    text_fmt(&j, "{\"cpu\": ");
    json_string(&j, moegen_rt_cpu_kind());
    text_fmt(&j, ", \"tuned\": [");
    const char *comma = "";
    for (int i = 0; i < s->kernels; i++) {
        const struct tuned_kernel *x = &s->kernel[i];
        if (!x->tuning)
            continue;
        text_fmt(&j, "%s\n  {\"plans\": %d, \"pruned\": %d, \"kernel\": ", comma,
                 x->tuning->looked_at, x->tuning->pruned);
        json_string(&j, x->name);
        text_fmt(&j, ", \"T\": [%s], \"threads\": %d, \"plan\": ", x->tokens.at,
                 x->tuning->threads);
        json_string(&j, moegen_tuning_plan(x->tuning));
        text_fmt(&j, ", \"ratio\": ");
        json_number(&j, x->paired.ratio);
        text_fmt(&j, ", \"low\": ");
        json_number(&j, x->paired.low);
        text_fmt(&j, ", \"high\": ");
        json_number(&j, x->paired.high);
        text_fmt(&j, ", \"pairs\": %d, \"fresh\": %s, \"result\": ", x->paired.pairs,
                 x->fresh ? "true" : "false");
        json_string(&j, x->what);
        text_fmt(&j, "}");
        comma = ",";
    }
    text_fmt(&j, "\n]}\n");
    return strcmp(s->o->json, "-") == 0 ? put_text(&j) : write_text(s->o->json, &j);
}

static int show(const struct session *s)
{
    int result = EXIT_OK;
    if (s->o->json)
        result = show_json(s);
    if (!s->o->json || strcmp(s->o->json, "-") != 0)
        show_table(s);
    if (!result && s->o->plot) {
        struct text svg = {0}, details = {0};
        text_fmt(&details, "%s; %g s each; moegen %d.%d.%d", moegen_rt_cpu_kind(), s->budget,
                 MOEGEN_VERSION_MAJOR, MOEGEN_VERSION_MINOR, MOEGEN_VERSION_PATCH);
        result = history_svg(s->kernel, s->kernels, details.at ? details.at : "", &svg)
                     ? write_text(s->o->plot, &svg)
                     : fail(MOEGEN_NO_MEMORY, NULL);
        text_free(&svg);
        text_free(&details);
    }
    return result;
}

/* All that can be said to be wrong before anything takes minutes. */
static int prepare(struct session *s)
{
    moegen_error *err = NULL;
    const struct options *o = s->o;
    int result = read_lists(s);
    if (!result && o->operands.count && strcmp(o->operands.at[0], "-") == 0)
        result = bad("tune reads its spec again and again: a file, please, not -");
    if (!result)
        result = job_open(&s->job, o);
    s->all = result ? 0 : s->job.kernels * s->threads;
    if (!result && !(s->kernel = calloc((size_t)s->all, sizeof *s->kernel)))
        result = fail(MOEGEN_NO_MEMORY, NULL);
    for (int i = 0; i < s->all && !result; i++)
        result = name_of(s, i / s->threads, &s->kernel[i]);
    moegen_status status =
        result ? MOEGEN_OK : tuning_ready(s->job.engine, o->out ? o->out : "", &err);
    return status ? fail(status, err) : result;
}

int cmd_tune(struct options *o)
{
    struct session s = {.o = o};
    struct sigaction act = {.sa_handler = interrupted, .sa_flags = SA_RESTART};
    int result = prepare(&s);
    sigaction(SIGINT, &act, NULL);
    while (s.kernels < s.all && !result && !interrupts) {
        int i = s.kernels++;
        result = tune_one(&s, i / s.threads, (int)s.thread[i % s.threads], &s.kernel[i]);
    }
    if (s.kernels) {
        int shown = show(&s);
        result = result ? result : shown;
    }
    for (int i = 0; s.kernel && i < s.all; i++) {
        free(s.kernel[i].name);
        text_free(&s.kernel[i].tokens);
        moegen_tuning_release(s.kernel[i].tuning);
    }
    free(s.kernel);
    job_close(&s.job);
    return result;
}
