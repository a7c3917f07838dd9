/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.c - what no plan can do: multiply faster than the op that it multiplies by, and read
 * weights that no cache holds faster than memory gives them. The rates are measured here, by
 * kernels of family `probe`. A plan whose least time is above the best one's time is not timed.
 *
 * Bounds are kept low on purpose: the rate of all threads is that of one times their number, where
 * in truth they share. A model that says of the planner's own choice what cannot be is not used.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tune.h"

enum { ROUNDS = 10 };
static const double loop_seconds = 1e-3;
static const double slack = 0.05; /* log: a bound must be so far beyond the best */

/* ---- rates ---- */

/* The least seconds of some runs; NAN: it cannot run. */
static double least_seconds(moegen_call *call, int rounds)
{
    struct stopwatch watch = {.count = 0};
    double least = NAN;
    if (moegen_call_run(call, NULL)) /* then its threads are there */
        return NAN;
    stopwatch_find(&watch);
    for (int i = 0; i < rounds; i++) {
        stopwatch_start(&watch);
        if (moegen_call_run(call, NULL))
            return NAN;
        least = fmin(least, stopwatch_stop(&watch));
    }
    return least;
}

/* Operations per second of one thread; NAN: not known. */
static double measure_op(moegen_engine *e, const char *target, const char *op)
{
    const struct probe_kind kind = {.target = target, .op = op};
    moegen_kernel *k = NULL;
    unsigned char buffer[4096] = {0};
    float result[16];
    double rate = NAN;
    if (probe_kernel(e, &kind, &k, NULL))
        return NAN;
    const char *flops = moegen_kernel_param(k, "probe.flops_per_iteration");
    for (int64_t n = 1000; flops && n < (int64_t)1 << 40; n *= 4) {
        moegen_call *call;
        moegen_status status = probe_call(k, buffer, sizeof buffer, result, n, 1, &call);
        double took = status ? NAN : least_seconds(call, 2);
        if (took > loop_seconds)
            rate = strtod(flops, NULL) * (double)n / fmin(took, least_seconds(call, ROUNDS));
        moegen_call_release(call);
        if (!(took <= loop_seconds))
            break;
    }
    moegen_kernel_release(k);
    return rate;
}

/* Bytes per second that all threads together read of memory; NAN: not known. */
static double measure_reads(moegen_engine *e, int threads)
{
    moegen_kernel *k = NULL;
    float result[16];
    size_t bytes = 4 * moegen_rt_cpu_cache(3), least = (size_t)64 << 20, most = (size_t)512 << 20;
    bytes = bytes < least ? least : bytes > most ? most : bytes;
    double took = NAN;
    const struct probe_kind kind = {.target = "auto", .op = "fma"};
    unsigned char *buffer = probe_kernel(e, &kind, &k, NULL) ? NULL : moegen_rt_alloc(bytes);
    if (buffer) {
        moegen_call *call;
        memset(buffer, 1, bytes);
        if (!probe_call(k, buffer, bytes, result, 0, threads, &call))
            took = least_seconds(call, ROUNDS);
        moegen_call_release(call);
    }
    moegen_rt_free(buffer);
    moegen_kernel_release(k);
    return (double)bytes / took;
}

/* Operations per second of one thread, measured at first use; NAN: not known. */
static double rate_of(struct model *m, moegen_engine *e, const char *target, const char *op)
{
    for (int i = 0; i < m->rates; i++)
        if (strcmp(m->rate[i].target, target) == 0 && strcmp(m->rate[i].op, op) == 0)
            return m->rate[i].flops;
    if (m->rates == MAX_RATES)
        return NAN;
    struct rate *r = &m->rate[m->rates++];
    snprintf(r->target, sizeof r->target, "%s", target);
    snprintf(r->op, sizeof r->op, "%s", op);
    r->flops = measure_op(e, target, op);
    return r->flops;
}

/* ---- bounds ---- */

/* What a cache holds it may give: only the rest comes from memory. */
static double from_memory(const struct model *m, double bytes)
{
    return fmax(0, bytes - 2 * m->cache);
}

static double weight_bytes(const moegen_kernel *kernel, double experts)
{
    const moegen_kernel_facts *f = kernel_facts(kernel);
    return (double)f->weight_bytes_per_expert * experts + (double)f->weight_bytes;
}

void model_open(struct model *m, moegen_engine *e, const moegen_kernel *kernel, int threads)
{
    m->used = true;
    m->threads = threads;
    m->cache = (double)moegen_rt_cpu_cache(3);
    m->bytes = NAN; /* no call reads more than caches hold? */
    if (from_memory(m, weight_bytes(kernel, (double)param_int(kernel, "E", 1))) > 0)
        m->bytes = measure_reads(e, threads);
}

/* The least seconds of a kernel's run on the course; 0: nothing is known. */
static double least_of(struct model *m, moegen_engine *e, const struct course *c,
                       const moegen_kernel *kernel)
{
    const moegen_kernel_facts *f = kernel_facts(kernel);
    const char *op = moegen_kernel_param(kernel, "product.op");
    double rows, experts;
    if (!work_count(kernel, c->in, c->small.tokens, &rows, &experts))
        return NAN;
    double flops =
        (double)f->flops_per_row * rows + (double)f->flops_per_token * (double)c->small.tokens;
    bool emulated =
        strcmp(f->spelling, "scalar") == 0; /* a compiler may do better than the probe */
    double rate = flops > 0 && !emulated ? rate_of(m, e, f->target, op ? op : "fma") : NAN;
    double multiplied = flops / (rate * m->threads);
    double read = from_memory(m, weight_bytes(kernel, experts)) / m->bytes;
    return fmax(isfinite(multiplied) ? multiplied : 0, isfinite(read) ? read : 0);
}

double model_gain(struct search *s, const struct candidate *c)
{
    double sum = 0;
    for (int i = 0; i < s->courses; i++) {
        double least = least_of(&s->model, s->engine, &s->course[i], c->kernel[i]);
        if (!(least > 0))
            return INFINITY;
        sum += log(s->course[i].seconds / least) / s->courses;
    }
    return sum - s->best_gain;
}

bool model_prunes(struct search *s, const struct candidate *c)
{
    return s->model.used && !choice_is_none(&c->choice) && model_gain(s, c) < -slack;
}

bool model_check(struct search *s)
{
    for (int i = 0; i < s->courses; i++)
        if (log(s->course[i].seconds /
                least_of(&s->model, s->engine, &s->course[i], s->base.kernel[i])) < -slack)
            s->model.used = false;
    return s->model.used;
}
