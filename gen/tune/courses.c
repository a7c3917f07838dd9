/* SPDX-License-Identifier: Apache-2.0 */
/*
 * courses.c - the calls that a search runs, and layers of fewer experts that stand for the spec's.
 *
 * A call of all experts takes seconds, above all a backward pass, which writes the gradients of all
 * their weights. One of some of them, each with as many rows as it has among all, tells in a
 * fraction of that time which plan is faster: plans know of an expert's matrices and rows, not of
 * how many experts there are. Where there are none, or large ones, fewer columns do the same. That
 * this is so is asked of the planner: a layer for which it chooses something else does not stand
 * in.
 */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tune.h"

enum { SOME_CHOSEN = 2, SOME_ROWS = 2, EXPERTS_OF_THREAD = 2 };
enum {
    LEAST_WIDTH = 1024,
    TILES = 64
}; /* columns: some sums of products; a multiple of all tiles */

double stand_in_caches = 2;

/* ---- which ---- */

static const struct {
    const char *key;
    size_t at; /* in struct small */
} keys[SMALL_KEYS] = {
    {"E", offsetof(struct small, experts)},
    {"top_k", offsetof(struct small, chosen)},
    {"I_TP", offsetof(struct small, width)},
};

static int64_t value_of(const struct small *s, int key)
{
    int64_t value;
    memcpy(&value, (const char *)s + keys[key].at, sizeof value);
    return value;
}

bool small_is(const struct small *s)
{
    return s->experts || s->width;
}

int small_overrides(const struct small *s, moegen_override *out)
{
    int count = 0;
    for (int i = 0; i < SMALL_KEYS; i++)
        if (value_of(s, i))
            out[count++] = (moegen_override){keys[i].key, s->text[i]};
    return count;
}

static void write_texts(struct small *s)
{
    for (int i = 0; i < SMALL_KEYS; i++)
        snprintf(s->text[i], sizeof s->text[i], "%" PRId64, value_of(s, i));
}

/* ---- fewer experts ---- */

/* Bytes of weights and their gradients, those whose first extent is the number of experts only,
 * unless that is 0. */
static double matrix_bytes(const moegen_kernel *kernel, int64_t experts)
{
    const moegen_kernel_facts *f = kernel_facts(kernel);
    double bytes = 0;
    for (int i = 0; i < f->arg_count; i++) {
        const moegen_arg *a = &f->args[i];
        if (a->rank < 2 || !arg_is_fixed(a) ||
            (experts && strtoll(a->extent[0], NULL, 10) != experts))
            continue;
        double own = (double)moegen_dtype_size(a->dtype);
        for (int d = 0; d < a->rank; d++)
            own *= strtod(a->extent[d], NULL);
        bytes += own;
    }
    return bytes;
}

static double cached_bytes(void)
{
    return stand_in_caches * (double)moegen_rt_cpu_cache(3);
}

/* Does the number of tokens, and only that, say how many rows an expert has? */
static bool rows_follow(const moegen_kernel *kernel)
{
    const char *dispatch = moegen_kernel_param(kernel, "dispatch");
    return !kernel_fixes(kernel) && !moegen_kernel_param(kernel, "N_blocks") &&
           !(dispatch && strcmp(dispatch, "dense") == 0);
}

/* Have most experts few rows, or none? Such a call takes little time. */
static bool is_sparse(const moegen_kernel *kernel, int64_t tokens)
{
    return tokens * param_int(kernel, "top_k", 1) < SOME_ROWS * param_int(kernel, "E", 1);
}

/* The smallest layer that tells of a call of so many tokens, if the spec allows it: experts that no
 * cache holds and that are enough for the threads, of which a token has few; with less than some
 * rows for each, when most have none, a token has as many as otherwise. */
static struct small fewest(const moegen_kernel *kernel, int64_t tokens, int threads)
{
    int64_t all = param_int(kernel, "E", 1), chosen = param_int(kernel, "top_k", 1);
    double bytes = matrix_bytes(kernel, all) / (double)all;
    if (!bytes || !rows_follow(kernel))
        return (struct small){0};
    bool few = is_sparse(kernel, tokens);
    double uncached = ceil(cached_bytes() / bytes);
    int64_t some = chosen < SOME_CHOSEN ? chosen : SOME_CHOSEN, least = few ? chosen : some;
    least = (int64_t)fmax(SOME_CHOSEN * (double)least, fmax(EXPERTS_OF_THREAD * threads, uncached));
    return (struct small){.experts = few && tokens == 1 ? chosen : least,
                          .chosen = few ? chosen : some};
}

/* With as many rows for an expert, but one for each where tokens could give that. */
static void set_experts(struct small *s, const moegen_kernel *kernel, int64_t tokens,
                        int64_t experts)
{
    double share = (double)param_int(kernel, "top_k", 1) / (double)param_int(kernel, "E", 1);
    double rows = (double)(tokens * experts) * share;
    s->experts = experts;
    s->tokens = (int64_t)fmax(round(rows / (double)s->chosen),
                              fmin((double)tokens, (double)(experts / s->chosen)));
    write_texts(s);
}

/* Does the planner choose for it what it chooses for the spec's layer? */
static moegen_status has_same_plan(struct search *s, const struct small *small, bool *same,
                                   moegen_error **err)
{
    moegen_error *own = NULL;
    moegen_spec spec = s->spec;
    struct space space = {0};
    spec.override_count = s->own + (size_t)small_overrides(small, s->set + s->own);
    moegen_status status = space_read(&space, s->engine, &spec, &own);
    *same = !status && space_same(&space, &s->space);
    space_free(&space);
    if (status == MOEGEN_BAD_SPEC || status == MOEGEN_UNSUPPORTED || !status) {
        moegen_error_release(own);
        return MOEGEN_OK;
    }
    *err = own;
    return status;
}

static moegen_status find_fewer(struct search *s, const moegen_kernel *kernel, int64_t tokens,
                                struct small *small, bool *found, moegen_error **err)
{
    int64_t most = param_int(kernel, "E", 1) / 2, power = 1;
    moegen_status status = MOEGEN_OK;
    *small = fewest(kernel, tokens, s->threads);
    int64_t next = small->experts;
    while (next && next <= most && !*found && !status) { /* groups of experts want a power of two */
        set_experts(small, kernel, tokens, next);
        status = has_same_plan(s, small, found, err);
        while (power <= next)
            power *= 2;
        next = power;
    }
    return status;
}

/* ---- narrower ones ---- */

/* Makes a layer of so many bytes narrower: of columns that no cache holds, as many of them left
 * over after the last tile. */
static moegen_status narrow(struct search *s, const moegen_kernel *kernel, double bytes,
                            struct small *small, bool *found, moegen_error **err)
{
    int64_t all = param_int(kernel, "I_TP", 0);
    double least = fmin((double)all, (double)all * cached_bytes() / bytes);
    int64_t fewer = (all - (int64_t)fmax(LEAST_WIDTH, least)) / TILES * TILES;
    struct small own = *small;
    bool same = false;
    own.width = all - fewer;
    write_texts(&own);
    moegen_status status =
        fewer > 0 && fewer >= all / 2 ? has_same_plan(s, &own, &same, err) : MOEGEN_OK;
    if (same)
        *small = own;
    *found = *found || same;
    return status;
}

/* The layer in whose calls a search of the kernel's with so many tokens is done. */
static moegen_status small_find(struct search *s, const moegen_kernel *kernel, int64_t tokens,
                                struct small *small, moegen_error **err)
{
    bool found = false;
    int64_t all = param_int(kernel, "E", 0);
    double bytes = matrix_bytes(kernel, all);
    moegen_status status = MOEGEN_OK;
    *small = (struct small){.tokens = tokens};
    if (all)
        status = find_fewer(s, kernel, tokens, small, &found, err);
    if (found)
        bytes *= (double)small->experts / (double)all;
    if (!status && (all ? found && !is_sparse(kernel, tokens) : bytes > 0))
        status = narrow(s, kernel, bytes, small, &found, err);
    if (!found)
        *small = (struct small){.tokens = tokens};
    return status;
}

/* ---- opening ---- */

/* An earlier course whose weights serve this one, too; NULL: none. */
static const struct course *alike(const struct search *s, int of)
{
    for (int i = 0; i < of; i++)
        if (s->course[i].small.experts == s->course[of].small.experts &&
            s->course[i].small.width == s->course[of].small.width)
            return &s->course[i];
    return NULL;
}

static moegen_status open_one(struct search *s, int i, const moegen_kernel *kernel, bool whole,
                              int64_t tokens, moegen_error **err)
{
    moegen_kernel *own = NULL;
    moegen_spec spec = s->spec;
    struct small small = {.tokens = tokens};
    moegen_status status = whole ? MOEGEN_OK : small_find(s, kernel, tokens, &small, err);
    if (status)
        return status;
    spec.override_count = s->own + (size_t)small_overrides(&small, s->set + s->own);
    if ((status = moegen_kernel_get(s->engine, &spec, &own, err)))
        return status;
    s->course[i] = (struct course){.small = small, .tokens = tokens};
    status = course_open(&s->course[i], alike(s, i), own, s->threads, err);
    s->courses++;
    s->smaller += small_is(&small);
    moegen_kernel_release(own);
    return status;
}

moegen_status courses_open(struct search *s, const moegen_kernel *kernel, const int64_t *tokens,
                           int count, bool whole, moegen_error **err)
{
    int stops = s->stops;
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < count && s->stops == stops && !status; i++) {
        search_tell(s, "filling", &s->best.choice, NAN, i, count);
        status = open_one(s, i, kernel, whole, tokens[i], err);
    }
    return status;
}

void courses_close(struct search *s)
{
    candidate_close(&s->base);
    candidate_close(&s->best);
    while (s->courses)
        course_close(&s->course[--s->courses]);
}

moegen_status courses_whole(struct search *s, bool *legal, moegen_error **err)
{
    int64_t tokens[MAX_COURSES];
    int count = s->courses;
    struct choice best = s->best.choice;
    moegen_kernel *kernel = NULL;
    for (int i = 0; i < count; i++)
        tokens[i] = s->course[i].tokens;
    courses_close(s);
    s->base.choice = choice_none();
    s->best.choice = best;
    moegen_spec spec = s->spec;
    spec.override_count = s->own;
    moegen_status status = moegen_kernel_get(s->engine, &spec, &kernel, err);
    if (!status)
        status = courses_open(s, kernel, tokens, count, true, err);
    if (!status)
        status = candidate_open(s, &s->base, legal, err);
    if (!status)
        status = candidate_open(s, &s->best, legal, err);
    moegen_kernel_release(kernel);
    return status;
}
