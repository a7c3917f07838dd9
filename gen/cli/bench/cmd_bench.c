/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_bench.c - `moegen bench`: the variants of a kernel, verified and then timed in turns (A B C,
 * C B A, ...), with the machine's FMA peak and read bandwidth measured between them, and before and
 * after each the state of the cores, where tiles multiply.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { TOKENS = 1024, LEAST_ROUNDS = 3, SOME_FEATURES = 16 };

/* Inputs that contenders of the same arguments share. */
struct shared {
    struct text signature;
    moegen_rt_problem *in;
};
struct group {
    struct bench *b;
    int k; /* kernel of the job */
    struct contender contender[MAX_CONTENDERS];
    moegen_rt_problem *view[MAX_CONTENDERS];
    struct shared shared[MAX_CONTENDERS];
    int count, shares;
};

/* ---- contenders ---- */

/* The probe for a kernel's target and op, made at first use; NULL when there are too many. */
static struct probe *probe_for(struct bench *b, const moegen_kernel *kernel, int threads)
{
    struct probe *lender = NULL;
    const char *target = kernel_facts(kernel)->target,
               *op = moegen_kernel_param(kernel, "product.op");
    op = op ? op : "fma";
    for (int i = 0; i < b->probes; i++) {
        struct probe *p = &b->probe[i];
        if (p->threads != threads)
            continue;
        if (strcmp(p->target, target) == 0 && strcmp(p->op, op) == 0)
            return p;
        if (p->ready && !p->lender)
            lender = p;
    }
    if (b->probes == MAX_PROBES)
        return NULL;
    probe_open(&b->probe[b->probes], b->job.engine, target, op, threads, lender);
    return &b->probe[b->probes++];
}

static int threads_of(const char *value) /* 0: it is none */
{
    char *end;
    long n = strtol(value, &end, 10);
    return !*end && n >= 1 && n <= MOST_THREADS ? (int)n : 0;
}

static int add_contender(struct group *g, const struct axis *axes, int count)
{
    struct bench *b = g->b;
    moegen_override *set = &b->job.set[b->job.sets];
    int extra = 0;
    if (g->count == MAX_CONTENDERS)
        return bad("--vary: more than %d combinations", MAX_CONTENDERS);
    struct contender *c = &g->contender[g->count++];
    *c = (struct contender){.error = NAN, .batch = 1};
    for (int i = 0; i < count; i++) {
        const char *key = axes[i].key, *value = axes[i].value[axes[i].now];
        text_fmt(&c->variant, "%s%s=%s", i ? " " : "", key, value);
        if (strcmp(key, "threads") != 0)
            set[extra++] = (moegen_override){key, value};
        else if (!(c->threads = threads_of(value)))
            return bad("threads: '%s' is not in 1..%d", value, MOST_THREADS);
    }
    moegen_error *err = NULL;
    moegen_status status =
        c->variant.lost ? MOEGEN_NO_MEMORY
                        : job_kernel(&b->job, g->k, extra, b->o->tokens, NULL, &c->kernel, &err);
    if (status && variant_is_refused(c->variant.at, err)) {
        moegen_error_release(err);
        text_free(&c->variant);
        g->count--;
        return EXIT_OK;
    }
    if (status)
        return fail(status, err);
    c->name = kernel_facts(c->kernel)->name;
    const char *fixed = b->o->tokens ? kernel_fixes(c->kernel) : NULL;
    for (int i = 0; fixed && i < count; i++)
        if (strcmp(axes[i].key, fixed) == 0)
            return bad("--vary %s: --T says how many tokens", fixed);
    if (!c->threads)
        c->threads = kernel_facts(c->kernel)->threads;
    bool probes = !b->o->turns || b->o->cold; /* of limits, and what empties caches */
    c->core = probes ? probe_for(b, c->kernel, 1) : NULL;
    c->all = probes ? probe_for(b, c->kernel, c->threads) : NULL;
    c->tokens = kernel_tokens(c->kernel, b->o->tokens ? b->o->tokens : TOKENS);
    return EXIT_OK;
}

static int add_contenders(struct group *g)
{
    const struct words *vary = &g->b->o->vary;
    struct axis *axes = calloc(MAX_VARY, sizeof *axes);
    int result = axes ? parse_axes(axes, vary) : fail(MOEGEN_NO_MEMORY, NULL);
    if (!result)
        do
            result = add_contender(g, axes, vary->count);
        while (!result && next_combination(axes, vary->count));
    free(axes);
    return result;
}

/* ---- inputs ---- */

static void signature(struct text *t, const struct contender *c)
{
    static const char *const keys[] = {"top_k",      "E",        "block_size",
                                       "skip_token", "dropping", "weights.run"};
    const moegen_kernel_facts *f = kernel_facts(c->kernel);
    for (int i = 0; i < f->arg_count; i++) {
        text_fmt(t, "%s %d %d", f->args[i].name, (int)f->args[i].dtype, (int)f->args[i].role);
        for (int d = 0; d < f->args[i].rank; d++)
            text_fmt(t, " %s", f->args[i].extent[d]);
    }
    for (int i = 0; i < 6; i++) {
        const char *value = moegen_kernel_param(c->kernel, keys[i]);
        text_fmt(t, " %s", value ? value : "-");
    }
    text_fmt(t, " %lld", (long long)c->tokens);
}

static struct trial trial_of(const struct group *g, const struct contender *c)
{
    struct trial t = {.how = {.T = c->tokens, .seed = (uint64_t)g->b->o->seed}};
    t.how.routing = g->b->o->routing;
    snprintf(t.text, sizeof t.text, "T=%lld", (long long)c->tokens);
    return t;
}

/* The shared tensors under this kernel's own params. */
static moegen_status open_view(struct group *g, int i, moegen_error **err)
{
    struct contender *c = &g->contender[i];
    struct text mine = {0};
    struct shared *s = g->shared;
    struct trial t = trial_of(g, c);
    signature(&mine, c);
    moegen_status status = mine.lost ? MOEGEN_NO_MEMORY : MOEGEN_OK;
    if (status)
        return status;
    while (s < g->shared + g->shares && strcmp(s->signature.at, mine.at) != 0)
        s++;
    if (s == g->shared + g->shares) {
        if ((status = inputs_fill(c->kernel, &t, &s->in, err))) {
            text_free(&mine);
            return status;
        }
        s->signature = mine;
        mine = (struct text){0};
        g->shares++;
    }
    text_free(&mine);
    g->view[i] = moegen_rt_problem_create();
    bool ok = g->view[i] && problem_params(g->view[i], c->kernel);
    for (size_t n = 0; ok && moegen_rt_problem_at(s->in, n); n++) {
        const moegen_rt_tensor *x = moegen_rt_problem_at(s->in, n);
        ok = !moegen_rt_problem_lend(g->view[i], x->name, x->dtype, x->rank, x->shape, x->data,
                                     NULL);
    }
    return ok ? MOEGEN_OK : error_set(err, MOEGEN_NO_MEMORY, "out of memory");
}

/* ---- verifying and timing ---- */

static moegen_status verify(struct group *g, int i, moegen_error **err)
{
    struct contender *c = &g->contender[i];
    struct trial t = trial_of(g, c);
    moegen_rt_problem *want = NULL;
    bool again = g->b->o->turns; /* one of many processes: less will do */
    moegen_status status = outputs_expect(c->kernel, g->view[i], &t, again ? 1e7 : 0.6e9,
                                          again ? SOME_FEATURES : 0, &want, err);
    stand_poison(&c->stand, g->view[i]);
    if (!status)
        status = moegen_call_run(c->stand.call, err);
    int64_t compared = 0;
    c->error = 0;
    for (size_t n = 0; !status && moegen_rt_problem_at(c->stand.out, n); n++) {
        const moegen_rt_tensor *got = moegen_rt_problem_at(c->stand.out, n);
        const moegen_rt_tensor *expected = moegen_rt_problem_tensor(want, got->name);
        moegen_rt_comparison r = {.ok = 1};
        moegen_rt_error why;
        if (!expected || moegen_rt_compare(got, expected, &r, &why) || !r.ok) {
            bad("%s %s: wrong result, not timed: %s: %s", c->name,
                c->variant.at ? c->variant.at : "", got->name, r.text);
            g->b->wrong = true;
            c->batch = 0;
        }
        c->error = fmax(c->error, r.l2);
        compared += r.compared;
    }
    if (!compared)
        c->error = NAN;
    moegen_rt_problem_destroy(want);
    return status;
}

static int prepare(struct group *g)
{
    const double least = g->b->o->turns ? 2e-3 : 2e-4; /* seconds of a sample */
    moegen_error *err = NULL;
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < g->count && !status; i++) {
        struct contender *c = &g->contender[i];
        progress("filling and verifying", i, g->count + 1);
        if ((status = open_view(g, i, &err)) ||
            (status = stand_open(&c->stand, c->kernel, g->view[i], c->threads, c->name, &err)) ||
            (status = verify(g, i, &err)))
            break;
        contender_count(c, g->view[i]);
        if (!c->batch)
            continue;
        double start = seconds_now();
        status = moegen_call_run(c->stand.call, &err);
        double once = seconds_now() - start;
        c->batch = once > least || g->b->o->cold ? 1 : (int)(least / fmax(once, 1e-8)) + 1;
    }
    progress("", g->count + 1, g->count + 1);
    return status ? fail(status, err) : EXIT_OK;
}

static void sample(struct contender *c, bool cold)
{
    if (cold && c->all)
        probe_evict(c->all);
    double before = c->all ? probe_pace(c->all) : NAN, start = seconds_now();
    for (int i = 0; i < c->batch; i++)
        if (moegen_call_run(c->stand.call, NULL))
            return;
    double took = seconds_now() - start, after = isfinite(before) ? probe_pace(c->all) : NAN;
    if (c->batch && samples_add(&c->seconds, took / c->batch) && isfinite(before))
        samples_add(&c->paces, fmax(before, after));
}

/* The seconds that it took to measure bandwidths. */
static double measure_probes(struct bench *b, bool reads)
{
    double took = 0;
    for (int i = 0; i < b->probes; i++) {
        double start = seconds_now();
        probe_measure(&b->probe[i], reads);
        took += reads ? seconds_now() - start : 0;
    }
    return took;
}

/* Rounds of all contenders, with the machine's limits measured before, between and after them. */
static void time_all(struct group *g)
{
    const struct options *o = g->b->o;
    double budget = (o->seconds > 0 ? o->seconds : 1) * g->count, reads = 0;
    double begin = seconds_now();
    for (int round = 0; round < MAX_SAMPLES; round++) {
        double spent = seconds_now() - begin;
        if (o->runs ? round >= o->runs : round >= LEAST_ROUNDS && spent > budget)
            break;
        progress("timing", o->runs ? round : (int)(spent * 100),
                 o->runs ? (int)o->runs : (int)(budget * 100) + 1);
        reads += measure_probes(g->b, round < LEAST_ROUNDS || reads < 0.1 * spent);
        for (int i = 0; i < g->count; i++)
            sample(&g->contender[round % 2 ? g->count - 1 - i : i], o->cold);
    }
    measure_probes(g->b, true);
    progress("", 100, 100);
}

/* ---- the command ---- */

static void group_close(struct group *g)
{
    for (int i = 0; i < g->count; i++) {
        struct contender *c = &g->contender[i];
        stand_close(&c->stand);
        moegen_kernel_release(c->kernel);
        moegen_rt_problem_destroy(g->view[i]);
        samples_free(&c->seconds);
        samples_free(&c->paces);
        text_free(&c->variant);
    }
    for (int i = 0; i < g->shares; i++) {
        moegen_rt_problem_destroy(g->shared[i].in);
        text_free(&g->shared[i].signature);
    }
    free(g);
}

static int bench_kernel(struct bench *b, int k)
{
    struct group *g = calloc(1, sizeof *g);
    if (!g)
        return fail(MOEGEN_NO_MEMORY, NULL);
    g->b = b;
    g->k = k;
    int result = add_contenders(g);
    if (!result && g->count == 0) { /* all are left out */
        group_close(g);
        return EXIT_OK;
    }
    if (!result && !b->o->latency && !(result = prepare(g))) {
        if (b->o->turns)
            b->ended = !time_in_turns(g->contender, g->count, b->o->cold);
        else
            time_all(g);
        b->contender = g->contender;
        b->contenders = g->count;
        report_group(b);
    }
    moegen_error *err = NULL;
    struct latency *l = &b->latency[b->latencies];
    moegen_status status = result ? MOEGEN_OK : latency_measure(&b->job, k, l, &err);
    if (status)
        result = fail(status, err);
    else if (!result)
        l->name = *b->job.kernel[k] ? b->job.kernel[k] : strdup(g->contender[0].name);
    result = !result && !l->name ? fail(MOEGEN_NO_MEMORY, NULL) : result;
    b->latencies += !result;
    group_close(g);
    return result;
}

int cmd_bench(struct options *o)
{
    struct bench b = {.o = o};
    if (o->turns && !(o->json && strcmp(o->json, "-") == 0))
        return bad("--turns: with --json, please");
    int result = job_open(&b.job, o);
    if (!result && !(b.latency = calloc((size_t)b.job.kernels + 1, sizeof *b.latency)))
        result = fail(MOEGEN_NO_MEMORY, NULL);
    for (int k = 0; k < b.job.kernels && !result && !b.ended; k++)
        result = bench_kernel(&b, k);
    if (!result && b.latencies == 0)
        result = bad("--vary: no variant is left");
    if (!result)
        result = report_end(&b);
    if (!result && b.wrong)
        result = EXIT_FAILED;
    for (int i = 0; i < b.latencies; i++)
        if (!*b.job.kernel[i])
            free((char *)(uintptr_t)b.latency[i].name);
    for (int i = 0; i < b.probes; i++)
        probe_close(&b.probe[i]);
    free(b.latency);
    text_free(&b.results);
    plot_free(&b.plot);
    job_close(&b.job);
    return result;
}
