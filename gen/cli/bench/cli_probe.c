/* SPDX-License-Identifier: Apache-2.0 */
/* cli_probe.c - measures what threads can do at once: peak of FMA or a like op and streaming reads,
 * by kernels of family `probe`, each thread with a call and data of its own; and in which state the
 * cores are, where an op has states. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { STATE_PASSES = 3 }; /* the first brings code and data near */

/* ---- making ---- */

/* One thread's part: what it runs and reads, and when it last did. */
struct lane {
    moegen_call *loop, *read; /* the op from registers; a stream */
    unsigned char *buffer;
    float result[16];
    double from, to;
    bool failed;
};

/* What each thread reads: all together more than any cache, within reason. */
static size_t lane_bytes(int threads)
{
    const size_t least = 256 << 20, most = 1024 << 20, own = 32 << 20;
    size_t bytes = 2 * moegen_rt_cpu_cache(3);
    bytes = (bytes < least ? least : bytes > most ? most : bytes) / (size_t)threads;
    return (bytes < own ? own : bytes) / 4096 * 4096;
}

/* Memory belongs to the node of the thread that writes it first. */
static void touch(void *ctx, const moegen_worker *worker)
{
    struct probe *p = ctx;
    memset(p->lane[worker->rank].buffer, 1, p->lane_bytes);
}

/* A call that has not run, or NULL. */
static moegen_call *make_call(moegen_kernel *kernel, struct lane *l, size_t bytes,
                              int64_t iterations, int threads)
{
    moegen_call *call;
    if (!probe_call(kernel, l->buffer, bytes, l->result, iterations, threads, &call))
        return call;
    moegen_call_release(call);
    return NULL;
}

/* A team, a buffer for each of its ranks, and the reading of it: by the best target that this CPU
 * has, since memory is as fast for all. */
static moegen_status make_readers(struct probe *p, moegen_engine *engine, moegen_error **err)
{
    p->lane_bytes = lane_bytes(p->threads);
    const size_t bytes = p->lane_bytes * (size_t)p->threads;
    p->bytes = (double)bytes;
    const struct probe_kind reads = {"auto", "fma", "auto", "false"};
    moegen_status status = probe_kernel(engine, &reads, &p->reader, err);
    if (status)
        return status;
    p->memory = moegen_rt_alloc(bytes);
    for (int i = 0; i < p->threads && p->memory; i++) {
        struct lane *l = &p->lane[i];
        l->buffer = p->memory + p->lane_bytes * (size_t)i;
        l->read = make_call(p->reader, l, p->lane_bytes, 0, 1);
        if (!l->read)
            return MOEGEN_NO_MEMORY;
    }
    p->evict = p->memory ? make_call(p->reader, p->lane, bytes, 0, p->threads) : NULL;
    if (!p->evict)
        return MOEGEN_NO_MEMORY;
    return moegen_rt_team_create(p->threads, &p->team, NULL) ||
                   moegen_rt_team_run(p->team, touch, p)
               ? MOEGEN_NO_MEMORY
               : MOEGEN_OK;
}

/* As many iterations as take a thread 2 ms. 0: it cannot run. */
static int64_t calibrate(struct probe *p)
{
    int64_t iterations = p->emulated ? 1 : 1000;
    moegen_call *call = make_call(p->kernel, &p->lane[0], 4096, iterations, 1);
    for (double took = 0; call && took < 2e-3 && iterations < (int64_t)1 << 40;) {
        double start = seconds_now();
        if (moegen_call_run(call, NULL))
            iterations = 0;
        if (!iterations || (took = seconds_now() - start) >= 2e-3)
            break;
        moegen_call_set_size(call, "ITERATIONS", iterations *= 2, NULL);
    }
    moegen_call_release(call);
    return call ? iterations : 0;
}

static moegen_status make_loops(struct probe *p, moegen_engine *engine, moegen_error **err)
{
    struct probe_kind kind = {p->target, p->op, "auto", "false"};
    moegen_status status = probe_kernel(engine, &kind, &p->kernel, err);
    if (status)
        return status;
    const char *spelling = kernel_facts(p->kernel)->spelling;
    p->emulated = strcmp(spelling, "scalar") == 0 && strcmp(p->target, spelling) != 0;
    if (moegen_kernel_param(p->kernel, "probe.has_states")) {
        kind.state = "true";
        if ((status = probe_kernel(engine, &kind, &p->sensor, err)))
            return status;
        if (!(p->sense = make_call(p->sensor, &p->lane[0], 4096, STATE_PASSES, p->threads)))
            return MOEGEN_NO_MEMORY;
    }
    const char *flops = moegen_kernel_param(p->kernel, "probe.flops_per_iteration");
    int64_t iterations = calibrate(p);
    p->flops = flops ? strtod(flops, NULL) * (double)iterations * p->threads : NAN;
    for (int i = 0; i < p->threads && iterations; i++)
        if (!(p->lane[i].loop = make_call(p->kernel, &p->lane[i], 4096, iterations, 1)))
            return MOEGEN_NO_MEMORY;
    return iterations ? MOEGEN_OK : MOEGEN_NO_MEMORY;
}

void probe_open(struct probe *p, moegen_engine *engine, const char *target, const char *op,
                int threads, struct probe *lender)
{
    moegen_error *err = NULL;
    moegen_status status = MOEGEN_OK;
    *p = (struct probe){.threads = threads};
    p->loop_seconds = p->read_seconds = p->least_pace = p->most_pace = NAN;
    snprintf(p->target, sizeof p->target, "%s", target);
    snprintf(p->op, sizeof p->op, "%s", op);
    p->lane = calloc((size_t)threads, sizeof *p->lane);
    if (!p->lane)
        status = MOEGEN_NO_MEMORY;
    else if (!lender || !lender->team)
        status = make_readers(p, engine, &err);
    else
        p->lender = lender;
    for (int i = 0; i < threads && p->lender; i++)
        p->lane[i].buffer = p->lender->lane[i].buffer;
    if (!status)
        status = make_loops(p, engine, &err);
    p->ready = !status;
    if (status)
        note("note: the limits of target %s with %d thread%s cannot be measured: %s", target,
             threads, threads == 1 ? "" : "s",
             err && err->count ? diag_message(err->diag) : moegen_status_name(status));
    moegen_error_release(err);
}

/* ---- measuring ---- */

static void go(struct lane *l, const moegen_worker *worker, moegen_call *call)
{
    if (worker->size > 1)
        worker->barrier(worker->team);
    l->from = seconds_now();
    l->failed = moegen_call_run(call, NULL) != MOEGEN_OK;
    l->to = seconds_now();
}

static void run_loop(void *ctx, const moegen_worker *worker)
{
    struct lane *l = &((struct probe *)ctx)->lane[worker->rank];
    go(l, worker, l->loop);
}

static void run_read(void *ctx, const moegen_worker *worker)
{
    struct lane *l = &((struct probe *)ctx)->lane[worker->rank];
    go(l, worker, l->read);
}

/* Seconds from the first thread's start to the last one's end; for work that needs no memory, those
 * that it takes at the sum of the threads' rates: a core that is slow for a while counts as what it
 * does, and not for all others. NAN when one failed. */
static double timed(struct probe *p, moegen_rt_entry run)
{
    if (moegen_rt_team_run(p->lender ? p->lender->team : p->team, run, p))
        return NAN;
    double from = p->lane[0].from, to = p->lane[0].to, rates = 0;
    for (int i = 0; i < p->threads; i++) {
        if (p->lane[i].failed)
            return NAN;
        from = fmin(from, p->lane[i].from);
        to = fmax(to, p->lane[i].to);
        rates += 1 / (p->lane[i].to - p->lane[i].from);
    }
    const bool own =
        run == run_loop && p->threads <= moegen_rt_cpu_count(); /* CPUs of their own? */
    return own ? p->threads / rates : to - from;
}

void probe_measure(struct probe *p, bool reads)
{
    if (p->ready)
        p->loop_seconds = fmin(p->loop_seconds, timed(p, run_loop));
    if (p->ready && reads && !p->lender)
        p->read_seconds = fmin(p->read_seconds, timed(p, run_read));
}

double probe_pace(struct probe *p)
{
    if (!p->ready || !p->sense || moegen_call_run(p->sense, NULL))
        return NAN;
    const double most = (double)p->lane[0].result[0], least = (double)p->lane[0].result[1];
    if (!(least > 0))
        return NAN;
    p->most_pace = fmax(p->most_pace, most);
    p->least_pace = fmin(p->least_pace, least);
    return most;
}

void probe_evict(struct probe *p)
{
    p = p->lender ? p->lender : p;
    if (p->ready)
        moegen_call_run(p->evict, NULL);
}

double probe_gflops(const struct probe *p)
{
    return 1e-9 * p->flops / p->loop_seconds;
}

double probe_gbps(const struct probe *p)
{
    p = p->lender ? p->lender : p;
    return 1e-9 * p->bytes / p->read_seconds;
}

void probe_close(struct probe *p)
{
    for (int i = 0; i < p->threads && p->lane; i++) {
        moegen_call_release(p->lane[i].loop);
        moegen_call_release(p->lane[i].read);
    }
    moegen_call_release(p->evict);
    moegen_call_release(p->sense);
    moegen_rt_free(p->memory);
    moegen_rt_team_destroy(p->team);
    free(p->lane);
    moegen_kernel_release(p->kernel);
    moegen_kernel_release(p->reader);
    moegen_kernel_release(p->sensor);
}
