/* SPDX-License-Identifier: Apache-2.0 */
/* tune.c - moegen_tune: a search, from its options to its result. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune.h"

static const double usual_seconds = 60, share_of_search = 0.75;

static void take_small(moegen_tuning *t, const struct small *s)
{
    int64_t least = t->experts[0];
    t->width = s->width > t->width ? s->width : t->width;
    if (s->experts && (!least || s->experts < least))
        t->experts[0] = s->experts;
    if (s->experts > t->experts[1])
        t->experts[1] = s->experts;
}

/* The winner, for a file. False: out of memory. */
static bool take_winner(moegen_tuning *t, struct search *s)
{
    bool better = s->paired.verdict == VERDICT_FASTER && !s->worse;
    t->paired = s->paired;
    t->threads = s->threads;
    t->least = INT64_MAX;
    for (int i = 0; i < s->courses; i++) {
        int64_t tokens = s->course[i].tokens;
        t->least = tokens < t->least ? tokens : t->least;
        t->most = tokens > t->most ? tokens : t->most;
        take_small(t, &s->course[i].small);
    }
    t->history = s->history;
    t->moments = s->moments;
    t->plans = space_plans(&s->space);
    t->missed = s->missed;
    t->waited = s->waited;
    t->looked_at = s->looked_at;
    t->pruned = s->pruned;
    t->once = screen_once(s);
    t->enough = screen_enough(s, t->plans) / share_of_search;
    t->making = s->making;
    t->filling = s->filling;
    t->took = tune_now() - s->begin;
    t->modelled = s->model.used;
    s->history = NULL;
    if (!better)
        return true;
    choice_text(&s->space, &s->best.choice, &t->plan);
    choice_yaml(&s->space, &s->best.choice, &t->yaml);
    text_fmt(&t->spec, "%s", s->space.spec);
    text_fmt(&t->target, "%s", s->space.target);
    return !t->plan.lost &&
           tuning_entry(t, t->paired.ratio, t->paired.low, t->paired.high, t->paired.pairs);
}

static moegen_status search(moegen_engine *engine, const moegen_spec *spec,
                            const moegen_tune_options *o, bool lenient, moegen_tuning *t,
                            moegen_error **err)
{
    double seconds = o->seconds > 0 ? o->seconds : usual_seconds;
    struct search s = {
        .engine = engine, .spec = *spec, .options = o, .threads = o->threads, .lenient = lenient};
    s.own = spec->override_count + 1;
    s.set = calloc(s.own + MOST_SET, sizeof *s.set);
    if (!s.set)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    if (spec->override_count)
        memcpy(s.set, spec->overrides, spec->override_count * sizeof *s.set);
    s.set[s.own - 1] = (moegen_override){"plan.tuned", "false"};
    s.spec.overrides = s.set;
    s.spec.override_count = s.own;
    s.begin = tune_now();
    s.until = s.begin + share_of_search * seconds;
    s.confirm_until = s.begin + seconds;
    moegen_status status = search_open(&s, err);
    s.filling = tune_now() - s.begin;
    s.until += s.filling; /* the budget is that of the search */
    s.confirm_until += s.filling;
    if (!status)
        status = search_run(&s, err);
    if (!status && !take_winner(t, &s))
        status = error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    search_close(&s);
    return status;
}

moegen_status tune(moegen_engine *engine, const moegen_spec *spec,
                   const moegen_tune_options *options, bool lenient, moegen_tuning **tuning,
                   moegen_error **err)
{
    static const size_t sizes[] = SIZES_OF(moegen_tune_options, user);
    moegen_tune_options o = {0};
    moegen_spec own;
    moegen_engine *scratch = NULL;
    if (!engine || !tuning)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "engine and tuning must not be NULL");
    if (options && !sized_take(&o, options, sizes, sizeof sizes / sizeof *sizes))
        return error_set(err, MOEGEN_BAD_ARGUMENT,
                         "options: struct_size is %zu, not sizeof(moegen_tune_options) = %zu",
                         options->struct_size, sizeof o);
    moegen_status status = spec_take(&own, spec, err);
    if (status)
        return status;
    if (o.path && (status = tuning_ready(engine, o.path, err)))
        return status;
    moegen_tuning *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    char folder[FOLDER_NAME];
    folder_open("tune", folder); /* without one, kernels are made when they are tried */
    if ((status = engine_scratch(engine, folder, &scratch, err)) ||
        (status = search(scratch, &own, &o, lenient, t, err)))
        moegen_tuning_release(t);
    else
        *tuning = t;
    moegen_engine_release(scratch);
    folder_close(folder);
    return status;
}

moegen_status moegen_tune(moegen_engine *engine, const moegen_spec *spec,
                          const moegen_tune_options *options, moegen_tuning **tuning,
                          moegen_error **err)
{
    moegen_tuning *t = NULL;
    bool pinned;
    moegen_status status = tune(engine, spec, options, false, &t, err);
    if (!status && options && options->path && *moegen_tuning_plan(t))
        status = tuning_write(t, engine, options->path, &pinned, err);
    if (status)
        moegen_tuning_release(t);
    else
        *tuning = t;
    return status;
}

const char *moegen_tuning_plan(const moegen_tuning *t)
{
    return t && t->plan.at ? t->plan.at : "";
}

const char *moegen_tuning_entry(const moegen_tuning *t)
{
    return t && t->entry.at ? t->entry.at : "";
}

double moegen_tuning_ratio(const moegen_tuning *t, double *low, double *high)
{
    if (low)
        *low = t ? t->paired.low : NAN;
    if (high)
        *high = t ? t->paired.high : NAN;
    return t ? t->paired.ratio : NAN;
}

void moegen_tuning_release(moegen_tuning *t)
{
    if (!t)
        return;
    text_free(&t->plan);
    text_free(&t->yaml);
    text_free(&t->spec);
    text_free(&t->target);
    text_free(&t->entry);
    free(t->history);
    free(t);
}
