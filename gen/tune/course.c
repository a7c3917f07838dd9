/* SPDX-License-Identifier: Apache-2.0 */
/* course.c - runs of many kernels on the same tensors, their times, and whether they are right. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tune.h"

static const double some_flops = 2e8;    /* of a check in float64 */
static const double sample_least = 2e-3; /* seconds: shorter runs are repeated */
enum { BATCH_MOST = 256, SHARED_LEAST = 1 << 16, SOME = 2, SOME_FEATURES = 16 };

double tune_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool arg_is_fixed(const moegen_arg *a)
{
    for (int d = 0; d < a->rank; d++)
        for (const char *at = a->extent[d]; *at; at++)
            if (*at >= 'A')
                return false;
    return a->rank > 0;
}

/* Weights of one course serve others. */
static moegen_status share(struct course *c, const struct course *like, const moegen_kernel *kernel,
                           moegen_error **err)
{
    const moegen_kernel_facts *f = kernel_facts(kernel);
    for (int i = 0; i < f->arg_count; i++) {
        const moegen_rt_tensor *from = moegen_rt_problem_tensor(like->in, f->args[i].name);
        if (!from || from->bytes < SHARED_LEAST || f->args[i].role != MOEGEN_IN ||
            !arg_is_fixed(&f->args[i]))
            continue;
        if (moegen_rt_problem_lend(c->in, from->name, from->dtype, from->rank, from->shape,
                                   from->data, NULL))
            return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    }
    return MOEGEN_OK;
}

/* Replaces what is expected of large outputs by the rows that are compared: of gradients of weights
 * these are few. */
static moegen_status keep_rows(struct course *c, moegen_error **err)
{
    for (size_t n = 0; moegen_rt_problem_at(c->stand.out, n) && n < MAX_ARGS; n++) {
        const char *name = moegen_rt_problem_at(c->stand.out, n)->name;
        const moegen_rt_tensor *want = moegen_rt_problem_tensor(c->want, name);
        int worthwhile = 0;
        if (want && want->bytes >= SHARED_LEAST && rt_keep(want, &c->kept[n], &worthwhile))
            return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
        if (worthwhile)
            moegen_rt_problem_drop(c->want, name);
    }
    return MOEGEN_OK;
}

/* The worst error of the outputs; NAN: one is wrong. */
static double error_of(struct course *c)
{
    double worst = 0;
    for (size_t n = 0; moegen_rt_problem_at(c->stand.out, n); n++) {
        const moegen_rt_tensor *got = moegen_rt_problem_at(c->stand.out, n);
        const moegen_rt_tensor *expected = moegen_rt_problem_tensor(c->want, got->name);
        struct rt_kept *kept = n < MAX_ARGS && c->kept[n].rows ? &c->kept[n] : NULL;
        moegen_rt_comparison r = {.ok = 1};
        moegen_rt_error why;
        if (kept ? rt_kept_compare(kept, got, &r, &why)
                 : !expected || moegen_rt_compare(got, expected, &r, &why))
            return NAN;
        if (!r.ok)
            return NAN;
        worst = fmax(worst, r.l2);
    }
    return stand_damage(&c->stand) ? NAN : worst;
}

moegen_status course_open(struct course *c, const struct course *like, const moegen_kernel *kernel,
                          int threads, moegen_error **err)
{
    moegen_status status;
    int64_t T = c->small.tokens;
    c->trial.how = (moegen_rt_fill){.T = T, .seed = 1};
    c->batch = 1;
    snprintf(c->trial.text, sizeof c->trial.text, "T=%" PRId64, T);
    if ((status = inputs_fill(kernel, &c->trial, &c->in, err)) ||
        (like && (status = share(c, like, kernel, err))))
        return status;
    c->lends = true;
    if ((status = stand_open(&c->stand, kernel, c->in, threads, c->trial.text, err)) ||
        (status =
             outputs_expect(kernel, c->in, &c->trial, some_flops, SOME_FEATURES, &c->want, err)) ||
        (status = keep_rows(c, err)))
        return status;
    stand_poison(&c->stand, c->in);
    if ((status = moegen_call_run(c->stand.call, err)))
        return status;
    c->error = error_of(c);
    if (isnan(c->error))
        return error_set(err, MOEGEN_INTERNAL, "%s: the planner's own choice gives wrong results",
                         c->trial.text);
    stopwatch_find(&c->watch);
    c->seconds = course_time(c, c->stand.call);
    c->batch = (int)fmin(BATCH_MOST, ceil(sample_least / fmax(c->seconds, 1e-9)));
    for (int i = 0; i < SOME; i++)
        c->seconds = fmin(c->seconds, course_time(c, c->stand.call));
    return MOEGEN_OK;
}

void course_close(struct course *c)
{
    if (c->lends)
        stand_close(&c->stand);
    moegen_rt_problem_destroy(c->in);
    moegen_rt_problem_destroy(c->want);
    for (int i = 0; i < MAX_ARGS; i++)
        rt_kept_free(&c->kept[i]);
    *c = (struct course){0};
}

double course_time(struct course *c, moegen_call *call)
{
    if (stand_use(&c->stand, call, NULL))
        return NAN;
    stopwatch_start(&c->watch);
    for (int i = 0; i < c->batch; i++)
        if (moegen_call_run(call, NULL))
            return NAN;
    return stopwatch_stop(&c->watch) / c->batch;
}

moegen_status course_check(struct course *c, moegen_call *call, bool *right, moegen_error **err)
{
    static const double slack = 1.25; /* sums in another order */
    moegen_status status = stand_use(&c->stand, call, err);
    if (status)
        return status;
    stand_poison(&c->stand, c->in);
    if ((status = moegen_call_run(call, err)))
        return status;
    double error = error_of(c);
    *right = !isnan(error) && error <= slack * c->error + 1e-9;
    return MOEGEN_OK;
}
