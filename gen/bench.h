/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - what the files of `moegen bench` share. */
#ifndef MOEGEN_BENCH_H
#define MOEGEN_BENCH_H

#include "cli.h"

enum { MAX_CONTENDERS = 64, MAX_SAMPLES = 4096, MAX_PROBES = 8 };

struct samples {
    double *at; /* seconds of one run each */
    int count, room;
};
bool samples_add(struct samples *s, double seconds);
double samples_at(const struct samples *s, double share); /* quantile, 0..1; NAN when empty */
void samples_free(struct samples *s);

/* ---- cli_probe.c: the machine's limits, from kernels made for the same target ---- */

struct probe {
    char target[64], op[32]; /* op: what registers are put through, "fma" */
    moegen_kernel *kernel;
    moegen_call *fma, *read; /* the op from registers; streaming reads; one thread each */
    moegen_rt_problem *own;
    double flops, bytes; /* of one run */
    struct samples fma_seconds, read_seconds;
};
/* A probe that could not be made measures nothing and says NAN. */
void probe_open(struct probe *p, moegen_engine *engine, const char *target, const char *op);
void probe_measure(struct probe *p, bool reads); /* one short sample; reads: also of bandwidth */
void probe_evict(struct probe *p);               /* read until no cache holds anything else */
double probe_gflops(const struct probe *p);      /* of one core */
double probe_gbps(const struct probe *p);        /* of one core */
void probe_close(struct probe *p);

/* ---- cmd_bench.c ---- */

/* One variant of one kernel, ready to run. */
struct contender {
    const char *name;
    struct text variant; /* "tile.rows=12 threads=2", or empty */
    moegen_kernel *kernel;
    struct stand stand;
    struct probe *probe;
    int threads, batch; /* batch: runs per sample */
    int64_t tokens;
    double rows, experts; /* pairs that are computed; experts with a row */
    double error;         /* worst relative L2 of all outputs; NAN: not verified */
    struct samples seconds;
};
double contender_gflops(const struct contender *c);
double contender_gbps(const struct contender *c);  /* of weights */
double contender_share(const struct contender *c); /* of peak * threads */

/* ---- cli_latency.c: spec text to callable kernel ---- */

struct latency {
    const char *name;
    double cold, disk, memory; /* seconds, medians */
};
moegen_status latency_measure(const struct job *j, int k, struct latency *out, moegen_error **err);

/* ---- cli_report.c: how a bench is shown ---- */

struct bench {
    const struct options *o;
    struct job job;
    struct probe probe[MAX_PROBES];
    int probes;
    struct contender *contender;
    int contenders, reported;
    struct latency *latency;
    int latencies;
    bool wrong;          /* an output was not right */
    struct text results; /* JSON objects */
    struct text bars;    /* for --plot */
    int bar_count;
    double bar_most;
};
void report_group(
    struct bench *b); /* table of the contenders at hand, and their JSON into b->results */
int report_end(struct bench *b); /* context, latencies, files; an exit code */

#endif
