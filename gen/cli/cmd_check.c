/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_check.c - `moegen check`: every kernel, target, spelling and compiler asked for, on edge
 * cases, with 1, 2 and 3 threads, against the float64 reference. A target that this CPU lacks runs
 * in the scalar spelling, which emulates it. Kernels run in a child: one that crashes has failed,
 * and the others are still checked.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_check.h"
#include "cli_child.h"
#include "jit/jit.h"

/* ---- variants ---- */

static moegen_status get(struct check *c, struct variant *v, const char *spelling,
                         moegen_error **err)
{
    moegen_override *set = &c->job->set[c->job->sets];
    int extra = 0;
    if (*v->target)
        set[extra++] = (moegen_override){"target", v->target};
    if (*spelling)
        set[extra++] = (moegen_override){"spelling", spelling};
    return job_kernel(c->job, c->k, extra, c->o->tokens, *v->cc ? v->cc : NULL, &v->kernel, err);
}

/* One row of the matrix. A combination that cannot be is told, not dropped; when it is the only one
 * asked for, it is an error. */
static int add_variant(struct check *c, const char *target, const char *spelling, const char *cc,
                       bool alone)
{
    moegen_error *err = NULL;
    if (c->variants == MAX_VARIANTS)
        return bad("more than %d combinations of target, spelling and compiler", MAX_VARIANTS);
    struct variant *v = &c->variant[c->variants];
    *v = (struct variant){.verdict = c->at->verdict[c->variants]};
    snprintf(v->target, sizeof v->target, "%s", target);
    snprintf(v->spelling, sizeof v->spelling, "%s", spelling);
    snprintf(v->cc, sizeof v->cc, "%s", cc);
    moegen_status status = get(c, v, spelling, &err);
    v->lacking = status == MOEGEN_UNSUPPORTED;
    if (status == MOEGEN_UNSUPPORTED && (!*spelling || strcmp(spelling, "auto") == 0)) {
        moegen_error_release(err);
        err = NULL;
        status = get(c, v, "scalar", &err);
        v->emulated = !status;
    }
    if (status && (alone || status != MOEGEN_UNSUPPORTED))
        return fail(status, err);
    c->variants++;
    const char *got = v->kernel ? kernel_facts(v->kernel)->target : "";
    if (v->kernel && !alone && *target && strcmp(target, "auto") != 0 && strcmp(got, target) != 0) {
        text_fmt(&v->why, "the kernel is that of target %s", got);
        moegen_kernel_release(v->kernel);
        v->kernel = NULL;
    }
    if (status)
        text_fmt(&v->why, "%s",
                 err && err->count ? diag_message(err->diag) : moegen_status_name(status));
    if (v->why.lost)
        lost();
    moegen_error_release(err);
    return EXIT_OK;
}

/* A scalar program for a target whose other spellings this CPU cannot run emulates it. */
static void mark_emulated(struct check *c)
{
    for (int i = 0; i < c->variants; i++)
        for (int j = 0; j < c->variants; j++)
            if (c->variant[i].kernel && c->variant[j].lacking && !*c->variant[j].cc &&
                strcmp(c->variant[i].target, c->variant[j].target) == 0)
                c->variant[i].emulated = true;
}

/* "all" as a list of the targets the generator knows. */
static int target_list(const char *asked, struct text *out)
{
    struct listing l = {0};
    moegen_error *err = NULL;
    text_fmt(out, "%s", asked ? asked : "");
    if (!asked || strcmp(asked, "all") != 0)
        return EXIT_OK;
    moegen_status status = host_list("targets", &l, &err);
    if (status)
        return fail(status, err);
    out->len = 0;
    for (size_t i = 0; i < l.count; i++)
        if (strcmp(l.item[i].name, "auto") != 0)
            text_fmt(out, "%s%s", out->len ? "," : "", l.item[i].name);
    listing_free(&l);
    return EXIT_OK;
}

/* The next item, or one empty item for an empty list. */
static bool each(const char **at, char out[ITEM], bool *first)
{
    bool empty = *first && (!*at || !**at);
    *first = false;
    *out = '\0';
    return empty || next_item(at, out);
}

static int add_variants(struct check *c)
{
    static const char all[] = "bytes,intrinsics,scalar";
    const struct options *o = c->o;
    const char *spellings = o->spelling && strcmp(o->spelling, "all") == 0 ? all : o->spelling;
    struct text targets = {0};
    char target[ITEM], spelling[ITEM], cc[ITEM];
    memset(c->at, 0, sizeof *c->at);
    int result = target_list(o->target, &targets);
    if (!result && targets.lost)
        result = fail(MOEGEN_NO_MEMORY, NULL);
    if (result)
        return result;
    bool alone = !strchr(targets.at, ',') && !(spellings && strchr(spellings, ',')) && !o->cc;
    bool first = true;
    for (const char *t = targets.at; !result && each(&t, target, &first);) {
        bool first_spelling = true;
        for (const char *s = spellings; !result && each(&s, spelling, &first_spelling);) {
            result = add_variant(c, target, spelling, "", alone);
            for (const char *g = o->cc; !result && next_item(&g, cc);)
                result = add_variant(c, target, spelling, cc, false);
        }
    }
    mark_emulated(c);
    text_free(&targets);
    return result;
}

/* ---- one run ---- */

static void complain(const struct variant *v, const struct trial *t, int threads, const char *where,
                     const char *what)
{
    const moegen_kernel_facts *f = kernel_facts(v->kernel);
    fprintf(stderr, "FAIL %s --target %s --spelling %s%s%s --threads %d, %s: %s: %s\n", f->name,
            f->target, f->spelling, *v->cc ? " --cc " : "", v->cc, threads, t->text, where, what);
}

/* An output of the first run of a trial, and how far it is from the reference. */
struct first {
    struct text bits;
    moegen_rt_comparison r;
};

/* Output `arg` against the reference, and against the first run: the same bits are as far from it.
 */
static void judge_output(struct variant *v, int arg, const struct trial *t, const struct fixture *f,
                         const struct stand *s, int threads, struct first *first)
{
    const char *name = s->facts.args[arg].name, *damage = stand_damage(s);
    const moegen_rt_tensor *got = moegen_rt_problem_tensor(s->out, name);
    const moegen_rt_tensor *want = moegen_rt_problem_tensor(f->want, name);
    struct verdict *verdict = &v->verdict[arg];
    moegen_rt_comparison r = {.ok = 0};
    moegen_rt_error why = {{0}};
    const char *what = NULL;
    bool again = first->bits.at != NULL;
    bool same = again && memcmp(first->bits.at, got->data, got->bytes) == 0;
    if (same && first->r.ok)
        r = first->r;
    else if (!want)
        what = "the reference does not compute it";
    else if (moegen_rt_compare(got, want, &r, &why))
        what = why.text;
    if (!what && !r.ok)
        what = r.text;
    else if (!what && again && !same)
        what = "its bits differ from those of the first run";
    else if (!what && damage && strcmp(damage, name) == 0)
        what = "the kernel wrote outside of it";
    if (!again) {
        text_add(&first->bits, got->data, got->bytes);
        first->r = r;
    }
    if (first->bits.lost) /* later runs are not compared with it */
        lost();
    verdict->l2 = fmax(verdict->l2, r.l2);
    verdict->roundings = fmax(verdict->roundings, r.roundings);
    verdict->limit = fmax(verdict->limit, r.l2_limit);
    verdict->compared += r.compared;
    verdict->good += !what;
    verdict->bad += what != NULL;
    if (what)
        complain(v, t, threads, name, what);
}

static int first_output(const moegen_kernel_facts *facts)
{
    int arg = 0;
    while (arg < facts->arg_count - 1 && facts->args[arg].role == MOEGEN_IN)
        arg++;
    return arg;
}

static void judge_rest(struct variant *v, const struct trial *t, const struct fixture *f,
                       const struct stand *s, int threads)
{
    const char *damage = stand_damage(s);
    bool workspace = damage && strcmp(damage, "the workspace") == 0, touched = fixture_touched(f);
    if (workspace)
        complain(v, t, threads, "workspace", "the kernel wrote outside of it");
    if (touched)
        complain(v, t, threads, "inputs", "the kernel changed them");
    v->verdict[first_output(&s->facts)].bad += workspace || touched;
}

/* Lane by lane: a hundred times as long. With 1 and 3 threads only. */
static bool is_slow(const struct variant *v)
{
    return v->kernel && strcmp(kernel_facts(v->kernel)->spelling, "scalar") == 0;
}

/* One variant on one trial, with every number of threads: the same bits each time. */
static int run_trial(struct check *c, struct variant *v, const struct trial *t,
                     const struct fixture *f)
{
    int threads[] = {1, 2, 3}, runs = 3;
    struct stand s = {0};
    struct first first[MAX_ARGS] = {0};
    moegen_error *err = NULL;
    if (c->o->threads) {
        threads[1] = (int)c->o->threads;
        runs = threads[1] > 1 ? 2 : 1;
    } else if (is_slow(v)) {
        threads[1] = threads[2];
        runs = 2;
    }
    c->at->threads = threads[0];
    moegen_status status = stand_open(&s, v->kernel, f->in, 1, t->text, &err);
    for (int i = 0; i < runs && !status; i++) {
        status = i ? stand_threads(&s, threads[i], &err) : MOEGEN_OK;
        if (status)
            break;
        stand_poison(&s, f->in);
        c->at->threads = threads[i];
        status = moegen_call_run(s.call, &err);
        for (int a = 0; a < s.facts.arg_count && !status; a++)
            if (s.facts.args[a].role != MOEGEN_IN)
                judge_output(v, a, t, f, &s, threads[i], &first[a]);
        if (!status)
            judge_rest(v, t, f, &s, threads[i]);
    }
    for (int a = 0; a < MAX_ARGS; a++)
        text_free(&first[a].bits);
    stand_close(&s);
    return status ? fail(status, err) : EXIT_OK;
}

/* ---- all of them, in a process of their own: a kernel may crash ---- */

static const moegen_kernel *any_kernel(const struct check *c)
{
    const moegen_kernel *any = NULL;
    for (int i = 0; i < c->variants && !any; i++)
        any = c->variant[i].kernel;
    return any;
}

/* Do two kernels read the same inputs? Packed weights may be those of one plan only. */
static bool reads_same(const moegen_kernel *a, const moegen_kernel *b)
{
    return param_int(a, "weights.run", 0) == param_int(b, "weights.run", 0);
}

/* From where the last process ended. */
static void run_trials(void *ctx)
{
    struct check *c = ctx;
    const moegen_kernel *any = any_kernel(c);
    for (; c->at->trial < c->trials && !c->at->result; c->at->trial++, c->at->variant = 0) {
        const struct trial *t = &c->trial[c->at->trial];
        const moegen_kernel *of = any;
        struct fixture f;
        moegen_error *err = NULL;
        progress(t->text, c->at->trial, c->trials);
        c->at->ready = false;
        moegen_status status = fixture_open(&f, any, t, 2e9, &err);
        if (status)
            c->at->result = fail(status, err);
        c->at->ready = true;
        for (; c->at->variant < c->variants && !c->at->result; c->at->variant++) {
            struct variant *v = &c->variant[c->at->variant];
            if (!v->kernel || v->crashed || (t->long_one && is_slow(v)))
                continue;
            if (!reads_same(of, v->kernel)) {
                of = v->kernel;
                fixture_close(&f);
                if ((status = fixture_open(&f, of, t, 2e9, &err))) {
                    c->at->result = fail(status, err);
                    break;
                }
            }
            c->at->result = run_trial(c, v, t, &f);
        }
        fixture_close(&f);
    }
}

/* What was running when the process ended is not run again. */
static void note_crash(struct check *c, const char *how)
{
    const moegen_kernel *any = any_kernel(c);
    if (c->at->trial >= c->trials || !c->at->ready) {
        const char *when =
            c->at->trial < c->trials ? c->trial[c->at->trial].text : "after all cases";
        fprintf(stderr, "FAIL %s, %s: not the kernel, but what checks it crashed: %s\n",
                kernel_facts(any)->name, when, how);
        c->at->result = EXIT_BUG;
        return;
    }
    const struct trial *t = &c->trial[c->at->trial];
    struct variant *v = &c->variant[c->at->variant++];
    text_fmt(&v->why, "crashed on %s, --threads %d: %s", t->text, c->at->threads, how);
    complain(v, t, c->at->threads, "the kernel crashed", how);
    v->crashed = true;
    v->verdict[first_output(kernel_facts(v->kernel))].bad++;
}

static int check_trials(struct check *c)
{
    char how[128];
    const moegen_kernel *any = any_kernel(c);
    c->trials = any ? trials_plan(any, c->o, c->trial) : 0;
    while (c->at->trial < c->trials && !c->at->result)
        if (!child_run(run_trials, c, how))
            note_crash(c, how);
    progress("", c->trials, c->trials);
    return c->at->result;
}

/* ---- the command ---- */

/* One that is not there would be a row that did not run, among others that are right. */
static int find_compilers(const char *asked)
{
    char cc[ITEM];
    moegen_error *err = NULL;
    int result = items_fit("--cc", asked);
    while (!result && next_item(&asked, cc)) {
        moegen_status status = cc_there(cc, &err);
        if (status)
            result = fail(status, err);
    }
    return result;
}

int cmd_check(struct options *o)
{
    static const char *const head[] = {"kernel", "target", "spelling", "compiler", "output",
                                       "runs",   "rel L2", "limit",    "ulp",      "result"};
    struct job j;
    struct table table = {.columns = 10};
    struct text json = {0};
    struct progress *at = child_share(sizeof *at);
    struct check *c = calloc(1, sizeof *c);
    int result = c && at ? job_open(&j, o) : fail(MOEGEN_NO_MEMORY, NULL);
    if (!c || !at) {
        child_unshare(at, sizeof *at);
        free(c);
        return result;
    }
    *c = (struct check){.o = o, .job = &j, .table = &table, .json = &json, .at = at};
    if (!result)
        result = find_compilers(o->cc);
    for (int i = 0; i < 10; i++)
        table_add(&table, "%s", head[i]);
    for (c->k = 0; c->k < j.kernels && !result; c->k++) {
        if (!(result = add_variants(c)))
            result = check_trials(c);
        c->at->result = result;
        check_report(c);
    }
    if (o->json && !result && json.lost)
        lost();
    else if (o->json && !result)
        printf("[%s\n]\n", json.at ? json.at : "");
    else if (table.cells > 10 && !result)
        table_print(&table, stdout);
    if (!result && !o->json)
        printf("%d ok, %d failed, %d not run\n", c->ran, c->failed, c->idle);
    if (!result)
        result = c->failed ? EXIT_FAILED : c->ran ? EXIT_OK : EXIT_NOT_HERE;
    table_free(&table);
    text_free(&json);
    child_unshare(at, sizeof *at);
    free(c);
    job_close(&j);
    return result;
}
