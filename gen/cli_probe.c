/* SPDX-License-Identifier: Apache-2.0 */
/* cli_probe.c - measures what one core can do: peak of FMA or a like op and streaming reads, by
 * kernels of family `probe`. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bool samples_add(struct samples *s, double seconds)
{
    if (s->count == s->room) {
        int room = s->room ? 2 * s->room : 64;
        double *more = realloc(s->at, (size_t)room * sizeof *more);
        if (!more)
            return false;
        s->at = more;
        s->room = room;
    }
    s->at[s->count++] = seconds;
    return true;
}

double samples_at(const struct samples *s, double share)
{
    if (!s->count)
        return NAN;
    double *sorted = malloc((size_t)s->count * sizeof *sorted);
    if (!sorted)
        return NAN;
    memcpy(sorted, s->at, (size_t)s->count * sizeof *sorted);
    qsort(sorted, (size_t)s->count, sizeof *sorted, compare);
    double value = sorted[(int)(share * (s->count - 1) + 0.5)];
    free(sorted);
    return value;
}

void samples_free(struct samples *s)
{
    free(s->at);
    *s = (struct samples){0};
}

/* Larger than any cache, within reason. */
static int64_t read_bytes(void)
{
    const int64_t least = 256 << 20, most = 1024 << 20;
    int64_t bytes = 2 * (int64_t)moegen_rt_cpu_cache(3);
    return bytes < least ? least : bytes > most ? most : bytes;
}

static moegen_call *make_call(struct probe *p, int64_t bytes, int64_t iterations)
{
    moegen_call *call = NULL;
    moegen_rt_tensor *buffer = NULL, *result = moegen_rt_problem_tensor(p->own, "result");
    char name[32];
    int64_t sixteen = 16;
    snprintf(name, sizeof name, "buffer %s", iterations ? "loop" : "read");
    if (!result)
        moegen_rt_problem_add(p->own, "result", MOEGEN_RT_F32, 1, &sixteen, &result, NULL);
    if (!result || moegen_rt_problem_add(p->own, name, MOEGEN_RT_U8, 1, &bytes, &buffer, NULL) ||
        moegen_call_create(p->kernel, &call, NULL))
        return NULL;
    memset(buffer->data, 1, buffer->bytes);
    if (moegen_call_bind(call, "buffer", buffer->data, MOEGEN_U8, 1, &bytes, NULL) ||
        moegen_call_bind(call, "result", result->data, MOEGEN_F32, 1, &sixteen, NULL) ||
        moegen_call_set_size(call, "ITERATIONS", iterations, NULL) ||
        moegen_call_set_threads(call, 1, NULL) || moegen_call_run(call, NULL)) {
        moegen_call_release(call);
        return NULL;
    }
    return call;
}

static double timed(moegen_call *call)
{
    double start = seconds_now();
    moegen_status status = moegen_call_run(call, NULL);
    return status ? NAN : seconds_now() - start;
}

void probe_open(struct probe *p, moegen_engine *engine, const char *target, const char *op)
{
    *p = (struct probe){0};
    snprintf(p->target, sizeof p->target, "%s", target);
    snprintf(p->op, sizeof p->op, "%s", op);
    static const char text[] = "kernel: probe\n";
    moegen_override set[] = {{"target", target}, {"op", op}};
    moegen_spec spec = {.struct_size = sizeof spec,
                        .text = text,
                        .len = sizeof text - 1,
                        .label = "probe",
                        .overrides = set,
                        .override_count = 2};
    moegen_error *err = NULL;
    p->own = moegen_rt_problem_create();
    if (moegen_kernel_get(engine, &spec, &p->kernel, &err) || !p->own) {
        note("note: the peak of target %s cannot be measured: %s", target,
             err && err->count ? err->diag[0].message : "out of memory");
        moegen_error_release(err);
        return;
    }
    const char *flops = moegen_kernel_param(p->kernel, "probe.flops_per_iteration");
    int64_t iterations = 10000;
    p->fma = make_call(p, 4096, iterations);
    while (p->fma && timed(p->fma) < 2e-3 && iterations < (int64_t)1 << 40) {
        iterations *= 2;
        moegen_call_set_size(p->fma, "ITERATIONS", iterations, NULL);
    }
    p->flops = flops ? strtod(flops, NULL) * (double)iterations : NAN;
    p->bytes = (double)read_bytes();
    p->read = make_call(p, (int64_t)p->bytes, 0);
}

void probe_measure(struct probe *p, bool reads)
{
    if (p->fma)
        samples_add(&p->fma_seconds, timed(p->fma));
    if (p->read && reads)
        samples_add(&p->read_seconds, timed(p->read));
}

void probe_evict(struct probe *p)
{
    if (p->read)
        moegen_call_run(p->read, NULL);
}

double probe_gflops(const struct probe *p)
{
    return 1e-9 * p->flops / samples_at(&p->fma_seconds, 0.5);
}

double probe_gbps(const struct probe *p)
{
    return 1e-9 * p->bytes / samples_at(&p->read_seconds, 0.5);
}

void probe_close(struct probe *p)
{
    moegen_call_release(p->fma);
    moegen_call_release(p->read);
    moegen_kernel_release(p->kernel);
    moegen_rt_problem_destroy(p->own);
    samples_free(&p->fma_seconds);
    samples_free(&p->read_seconds);
}
