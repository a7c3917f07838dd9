/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search.c - the search for a plan.
 *
 * Screening: see screen.c. Combining: the fastest of what is left, one after the other, laid over
 * the best so far, checked against float64, and measured with it in pairs; what is faster stays,
 * and its value is doubled or halved again. Both are repeated while there is time, until two in a
 * row find nothing. Confirming: the best against the planner's own choice.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune.h"

enum { KEPT = 16, FRUITLESS = 2, DUEL_FEW = 12, DUEL_MOST = 24 };
static const double worth_trying = 0.002; /* log of a ratio */
static const double margin = 0.01, loss_allowed = 0.98;

void (*model_hook)(struct model *m);

/* ---- telling ---- */

bool search_stopped(const struct search *s)
{
    return s->stops > 0 || tune_now() > s->until;
}

void search_tell(struct search *s, const char *what, const struct choice *tried, double gain,
                 int done, int all)
{
    struct text plan = {0}, best = {0};
    double now = tune_now();
    choice_text(&s->space, tried, &plan);
    choice_text(&s->space, &s->best.choice, &best);
    if (isfinite(gain) && s->moments == s->room) {
        int room = s->room ? 2 * s->room : 64;
        struct moment *more = realloc(s->history, (size_t)room * sizeof *more);
        s->history = more ? more : s->history;
        s->room = more ? room : s->room;
    }
    if (isfinite(gain) && s->moments < s->room)
        s->history[s->moments++] =
            (struct moment){now - s->begin, exp(gain + s->best_gain), exp(s->best_gain)};
    moegen_tune_step step = {
        .struct_size = sizeof step,
        .what = what,
        .plan = plan.at ? plan.at : "",
        .ratio = exp(gain),
        .best = best.at ? best.at : "",
        .best_ratio = exp(s->best_gain),
        .tried = done,
        .candidates = all,
        .seconds_left = fmax(0, s->confirm_until - now),
        .pruned = s->pruned,
        .looked_at = s->looked_at,
    };
    if (s->options->step && s->options->step(s->options->user, &step))
        s->stops++;
    text_free(&plan);
    text_free(&best);
}

/* ---- candidates ---- */

void candidate_close(struct candidate *c)
{
    for (int i = 0; i < MAX_COURSES; i++) {
        moegen_call_release(c->call[i]);
        moegen_kernel_release(c->kernel[i]);
    }
    *c = (struct candidate){0};
}

static bool takes_the_same(const moegen_kernel *a, const moegen_kernel *b)
{
    const moegen_kernel_facts *x = kernel_facts(a), *y = kernel_facts(b);
    bool same = x->arg_count == y->arg_count;
    for (int i = 0; same && i < x->arg_count; i++) {
        same = x->args[i].rank == y->args[i].rank && x->args[i].dtype == y->args[i].dtype;
        for (int d = 0; same && d < x->args[i].rank; d++)
            same = strcmp(x->args[i].extent[d], y->args[i].extent[d]) == 0;
    }
    return same;
}

moegen_status candidate_kernel(struct search *s, const struct choice *choice, int course,
                               moegen_kernel **kernel, moegen_error **err)
{
    moegen_spec spec = s->spec;
    int count = small_overrides(&s->course[course].small, s->set + s->own);
    count += choice_overrides(&s->space, choice, s->set + s->own + count);
    spec.override_count = s->own + (size_t)count;
    return moegen_kernel_get(s->engine, &spec, kernel, err);
}

/* Its kernel and call of one course. */
static moegen_status open_call(struct search *s, struct candidate *c, int i, bool *legal,
                               moegen_error **err)
{
    struct course *at = &s->course[i];
    double start = tune_now();
    moegen_status status = candidate_kernel(s, &c->choice, i, &c->kernel[i], err);
    s->making += tune_now() - start;
    *legal = !status && (!s->base.kernel[i] || takes_the_same(c->kernel[i], s->base.kernel[i]));
    if (*legal) {
        status = stand_lend(&at->stand, c->kernel[i], at->in, s->threads, &c->call[i], err);
        *legal = !status;
    }
    return status;
}

moegen_status candidate_open(struct search *s, struct candidate *c, bool *legal, moegen_error **err)
{
    moegen_error *own = NULL;
    moegen_status status = MOEGEN_OK;
    *legal = true;
    for (int i = 0; i < s->courses && *legal; i++)
        status = open_call(s, c, i, legal, &own);
    if (status == MOEGEN_BAD_SPEC || status == MOEGEN_UNSUPPORTED ||
        status == MOEGEN_BAD_ARGUMENT || !status) {
        moegen_error_release(own);
        return MOEGEN_OK;
    }
    *err = own;
    return status;
}

bool candidate_same_code(const struct search *s, const struct candidate *a,
                         const struct candidate *b)
{
    bool same = true;
    for (int i = 0; i < s->courses && same; i++)
        same = kernel_same_code(a->kernel[i], b->kernel[i]);
    return same;
}

static moegen_status candidate_check(struct search *s, struct candidate *c, bool *right,
                                     moegen_error **err)
{
    moegen_status status = MOEGEN_OK;
    *right = true;
    for (int i = 0; i < s->courses && !status && *right; i++)
        status = course_check(&s->course[i], c->call[i], right, err);
    return status;
}

/* ---- pairs ---- */

/* Log ratios of speeds, b over a, of each course and over all. */
struct pairs {
    double all[PAIRED_MOST], of[MAX_COURSES][PAIRED_MOST];
    int count;
};

static void add_pair(struct search *s, struct pairs *p, struct candidate *a, struct candidate *b)
{
    double sum = 0;
    for (int i = 0; i < s->courses; i++) {
        bool turned = p->count % 2;
        struct course *at = &s->course[i];
        double first = course_time(at, (turned ? b : a)->call[i]),
               second = course_time(at, (turned ? a : b)->call[i]);
        p->of[i][p->count] = turned ? log(second / first) : log(first / second);
        sum += p->of[i][p->count];
    }
    p->all[p->count] = sum / s->courses;
    p->count += isfinite(sum);
}

/* Is c faster than the best? */
static bool wins(struct search *s, struct candidate *c, struct pairs *p)
{
    p->count = 0;
    struct paired judged = {0};
    for (int i = 0; i < (judged.ratio > 1 + margin ? DUEL_MOST : DUEL_FEW); i++) {
        if (search_stopped(s))
            break;
        add_pair(s, p, &s->best, c);
        if (p->count < 4 || p->count % 2)
            continue;
        judged = paired_judge(p->all, p->count, margin / 2);
        if (judged.ratio < 1 || (p->count >= PAIRED_LEAST && judged.verdict != VERDICT_NOISY))
            break;
    }
    c->gain = judged.pairs ? log(judged.ratio) : NAN;
    return p->count >= PAIRED_LEAST &&
           (judged.verdict == VERDICT_FASTER ||
            (judged.verdict == VERDICT_NOISY && judged.ratio > 1 + margin && judged.low > 1));
}

/* ---- combining ---- */

/* Lays a turn over the best; *won: it is the best now. */
static moegen_status combine(struct search *s, const struct turn *t, struct pairs *p, int done,
                             int all, bool *won, moegen_error **err)
{
    struct candidate c = {.choice = choice_with(&s->best.choice, t->knob, t->value), .gain = NAN};
    bool legal = false, right = false;
    *won = false;
    moegen_status status = candidate_open(s, &c, &legal, err);
    if (!status && legal)
        status = candidate_check(s, &c, &right, err);
    if (!status && right)
        *won = wins(s, &c, p);
    if (!status)
        search_tell(s, "combining", &c.choice, c.gain, done, all);
    if (*won) {
        s->best_gain += c.gain;
        struct candidate old = s->best;
        s->best = c;
        c = old;
    }
    candidate_close(&c);
    return status;
}

/* The fastest turns one after the other. *found: one of them won. */
static moegen_status combine_all(struct search *s, struct turn *turn, int count, struct pairs *p,
                                 bool *found, moegen_error **err)
{
    moegen_status status = MOEGEN_OK;
    int most = count < KEPT ? count : KEPT;
    while (most && turn[most - 1].gain < worth_trying)
        most--;
    *found = false;
    for (int i = 0; i < most && !status && !search_stopped(s); i++) {
        bool won;
        struct turn t = turn[i];
        do {
            status = combine(s, &t, p, i + 1, most, &won, err);
            *found = *found || won;
            t.value = won ? knob_farther(&s->space.knob[t.knob], t.value) : -1;
        } while (!status && t.value >= 0 && !search_stopped(s));
    }
    return status;
}

/* ---- the end ---- */

static moegen_status confirm(struct search *s, struct pairs *p, moegen_error **err)
{
    int stops = s->stops, count = s->courses;
    double begin = tune_now();
    p->count = 0;
    s->paired = (struct paired){.ratio = 1, .low = 1, .high = 1, .verdict = VERDICT_SAME};
    if (choice_is_none(&s->best.choice))
        return MOEGEN_OK;
    if (s->lenient && !stops) {
        s->paired = (struct paired){.ratio = exp(s->best_gain), .low = NAN, .high = NAN};
        s->paired.verdict = VERDICT_FASTER;
        return MOEGEN_OK;
    }
    bool right = true; /* as it is of smaller layers */
    moegen_status status = s->smaller ? courses_whole(s, &right, err) : MOEGEN_OK;
    if (!status && right && s->courses == count && s->smaller)
        status = candidate_check(s, &s->best, &right, err);
    if (status)
        return status;
    s->confirm_until += tune_now() - begin;
    if (s->courses < count || !right) { /* stopped meanwhile? */
        s->paired.verdict = VERDICT_NOISY;
        return MOEGEN_OK;
    }
    for (int i = 0; i < PAIRED_MOST; i++) {
        bool enough = p->count >= PAIRED_LEAST && p->count % 2 == 0;
        if (enough)
            s->paired = paired_judge(p->all, p->count, margin);
        if (enough && (s->paired.verdict != VERDICT_NOISY || tune_now() > s->confirm_until))
            break;
        add_pair(s, p, &s->base, &s->best);
        search_tell(s, "confirming", &s->best.choice, NAN, p->count, PAIRED_LEAST);
        if (s->stops > stops) {
            s->paired.verdict = VERDICT_NOISY;
            return MOEGEN_OK;
        }
    }
    for (int i = 0; i < s->courses; i++) {
        struct paired own = paired_judge(p->of[i], p->count, margin);
        s->worse = s->worse || (own.verdict == VERDICT_SLOWER && own.ratio < loss_allowed);
    }
    return MOEGEN_OK;
}

/* The caller's numbers of tokens, the spec's, or the usual ones. */
static moegen_status find_tokens(const struct search *s, const moegen_kernel *kernel,
                                 int64_t *tokens, int *count, moegen_error **err)
{
    static const int64_t usual[] = {1, 16, 256, 1024};
    const int64_t *given = s->options->tokens, fixed = kernel_tokens(kernel, 0);
    const size_t all = given ? s->options->token_count : fixed ? 1 : 4;
    if (given && fixed && (all != 1 || given[0] != fixed))
        return error_set(err, MOEGEN_BAD_ARGUMENT, "tokens: the spec fixes them");
    if (!all || all > MAX_COURSES)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "tokens: 1 to %d numbers", MAX_COURSES);
    memcpy(tokens, given ? given : fixed ? &fixed : usual, all * sizeof *tokens);
    for (size_t i = 0; i < all; i++)
        if (tokens[i] < 1)
            return error_set(err, MOEGEN_BAD_ARGUMENT, "tokens: %lld is less than 1",
                             (long long)tokens[i]);
    *count = (int)all;
    return MOEGEN_OK;
}

/* The planner's own choice, ready to run, which is the best at first; and what no plan can do. */
static moegen_status open_base(struct search *s, const moegen_kernel *kernel, moegen_error **err)
{
    bool legal;
    moegen_status status = candidate_open(s, &s->base, &legal, err);
    if (!status)
        status = candidate_open(s, &s->best, &legal, err);
    if (status)
        return status;
    if (!legal)
        return error_set(err, MOEGEN_INTERNAL, "the kernel cannot be called");
    if (!s->courses || s->stops)
        return MOEGEN_OK;
    model_open(&s->model, s->engine, kernel, s->threads);
    if (model_hook)
        model_hook(&s->model);
    if (!model_check(s))
        search_tell(s, "without a model", &s->best.choice, NAN, 0, 0);
    return MOEGEN_OK;
}

moegen_status search_open(struct search *s, moegen_error **err)
{
    int64_t tokens[MAX_COURSES];
    int count = 0;
    moegen_kernel *kernel = NULL;
    moegen_status status = space_read(&s->space, s->engine, &s->spec, err);
    s->base.choice = s->best.choice = choice_none();
    s->missed = space_plans(&s->space);
    if (status || (status = moegen_kernel_get(s->engine, &s->spec, &kernel, err)))
        return status;
    status = find_tokens(s, kernel, tokens, &count, err);
    if (!status && s->threads <= 0)
        s->threads = kernel_facts(kernel)->threads;
    if (!status && s->space.knobs)
        status = courses_open(s, kernel, tokens, count, false, err);
    if (!status)
        status = open_base(s, kernel, err);
    moegen_kernel_release(kernel);
    return status;
}

moegen_status search_run(struct search *s, moegen_error **err)
{
    moegen_status status = MOEGEN_OK;
    struct turn *turn = malloc(MOST_TURNS * sizeof *turn);
    struct pairs *p = malloc(sizeof *p);
    int fruitless = 0;
    bool found = false;
    if (!turn || !p)
        status = error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    while (!status && fruitless < FRUITLESS && !search_stopped(s)) {
        int count = 0;
        if ((status = screen(s, turn, &count, err)) || !count)
            break;
        status = combine_all(s, turn, count, p, &found, err);
        fruitless = found ? 0 : fruitless + 1;
    }
    if (!status)
        status = confirm(s, p, err);
    free(turn);
    free(p);
    return status;
}

void search_close(struct search *s)
{
    courses_close(s);
    space_free(&s->space);
    free(s->history);
    free(s->set);
}
