/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - what the files of `moegen bench` share. */
#ifndef MOEGEN_BENCH_H
#define MOEGEN_BENCH_H

#include "cli/cli.h"
#include "cli/draw/draw.h"

enum { MAX_CONTENDERS = 64, MAX_SAMPLES = 4096, MAX_PROBES = 16 };

/* ---- cli_samples.c: figures of many runs ---- */

struct samples {
    double *at; /* seconds of one run each */
    int count, room;
};
bool samples_add(struct samples *s, double seconds);
double samples_at(const struct samples *s, double share); /* quantile, 0..1; NAN when empty */
void samples_free(struct samples *s);

/*
 * A core multiplies tiles in one of two states: in the slow one, which lasts from under a
 * millisecond to seconds and which no kernel can end, each takes several times its cycles. Pace:
 * time of products over that of their cycles, about 1 in the fast state and above 4 in the slow
 * one.
 */
#define FAST_PACE 2.2 /* below it a core is in the fast state */
struct by_state {
    double share;      /* of the fast state; NAN without states */
    double fast, slow; /* median seconds; NAN without such a sample */
};
/* paces: one of each sample, the most of all cores before and after it; NAN: not known. */
struct by_state samples_by_state(const struct samples *seconds, const struct samples *paces);

/* ---- cli_probe.c: the machine's limits, from kernels made for the same target ---- */

/* `threads` threads at once, each on its own data, with a common start. */
struct probe {
    char target[64], op[32]; /* op: what registers are put through, "fma" */
    int threads;
    bool ready;           /* all that follows was made */
    bool emulated;        /* the CPU lacks the target: its program in plain C */
    struct probe *lender; /* of team, buffers and bandwidth, which are the same for all targets */
    moegen_kernel *kernel, *reader;
    moegen_rt_team *team;
    struct lane *lane;     /* of each thread */
    unsigned char *memory; /* that of all lanes */
    size_t lane_bytes;
    moegen_call *evict;  /* reads it all, in the engine's own team of so many threads */
    double flops, bytes; /* of one run of all threads */
    double loop_seconds, read_seconds; /* of the fastest run: a limit is what was ever reached */
    /* Products of tiles: the pace of all threads at once, in the engine's own team; else NULL. */
    moegen_kernel *sensor;
    moegen_call *sense;
    double least_pace, most_pace; /* of any thread, ever */
};
/* A probe that could not be made measures nothing and says NAN. lender: a probe of as many threads
 * that outlives this one and borrows nothing itself, or NULL. */
void probe_open(struct probe *p, moegen_engine *engine, const char *target, const char *op,
                int threads, struct probe *lender);
void probe_measure(struct probe *p, bool reads); /* one short sample; reads: also of bandwidth */
/* Reads until no cache holds anything else, with the threads that run kernels: they are awake then.
 */
void probe_evict(struct probe *p);
double probe_pace(struct probe *p);         /* the most of its threads' now; NAN without states */
double probe_gflops(const struct probe *p); /* of all its threads together */
double probe_gbps(const struct probe *p);   /* of all its threads together */
void probe_close(struct probe *p);

/* ---- cmd_bench.c ---- */

/* One variant of one kernel, ready to run. */
struct contender {
    const char *name;
    struct text variant; /* "plan.tile_rows=6 threads=2", or empty */
    moegen_kernel *kernel;
    struct stand stand;
    struct probe *core, *all; /* of one thread; of as many as it has */
    int threads, batch;       /* batch: runs per sample */
    int64_t tokens;
    double rows, experts; /* pairs that are computed; experts with a row */
    double error;         /* worst relative L2 of all outputs; NAN: not verified */
    struct samples seconds;
    struct samples paces; /* of each of them, of all its threads; none without states */
};

/* ---- cli_turns.c ---- */

/* A run of each of them for each 'r' on stdin, until another byte, or none, comes: says so many
 * spaces and a tab, and after each run of all a newline. False: there was none, and no further
 * kernel is asked for. */
bool time_in_turns(struct contender *c, int count, bool cold);

/* ---- cli_rates.c ---- */

/* Fills rows and experts, from the blocks or sizes of the inputs, else as many as can be. */
void contender_count(struct contender *c, const moegen_rt_problem *in);
double contender_gflops(const struct contender *c);
double contender_gbps(const struct contender *c);  /* of weights */
double contender_share(const struct contender *c); /* of one core's peak * threads */
/* Of the roof: max(flop / peak, bytes of weights / bandwidth), both of all its threads at once.
 * More than 1 means that weights came from caches. */
double contender_roof_share(const struct contender *c);

/* ---- cli_vary.c: variants ---- */

/* Values of one --vary KEY=A,B. */
struct axis {
    char key[64], value[32][ITEM];
    int values, now;
};
enum { MAX_VARY = EXTRA_SETS };
/* Complains, and returns an exit code. */
int parse_axes(struct axis axes[MAX_VARY], const struct words *vary);
bool next_combination(struct axis *axes, int count);
/* Was a variant ("plan.mc=16 threads=2") refused for keys of the plan that it sets, and no other
 * reason? A note says so. NULL: nothing varies. */
bool variant_is_refused(const char *variant, const moegen_error *err);

/* ---- cli_latency.c: spec text to callable kernel ---- */

struct latency {
    const char *name;
    double cold, disk, memory; /* seconds, medians */
};
moegen_status latency_measure(const struct job *j, int k, struct latency *out, moegen_error **err);

/* ---- cli_plot.c: the pictures of --plot ---- */

struct plot {
    struct bars bars;     /* GFLOP/s under their roofs */
    struct points points; /* for the roofline and the lines */
};
/* What its bar says of a variant, beside where its point is. */
struct drawn {
    const char *kernel, *variant, *target, *spelling, *dtype;
    double peak, roof_share; /* of its threads at once, GFLOP/s; of the roof; or NAN */
};
/* Nothing, if x has no GFLOP/s. */
void plot_add_variant(struct plot *p, const struct drawn *v, const struct point *x);
/* op: what registers are put through, "fma". */
void plot_add_ceiling(struct plot *p, const char *target, const char *op, bool emulated,
                      struct ceiling limit);
/* All of it, added to *out. False: out of memory. */
bool plot_svg(const struct plot *plot, const char *title, const char *details, const char *command,
              struct text *out);

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
    bool ended;          /* --turns: no further kernel is asked for */
    struct text results; /* JSON objects */
    struct plot plot;
};
void report_group(
    struct bench *b); /* table of the contenders at hand, and their JSON into b->results */
int report_end(struct bench *b); /* context, latencies, files; an exit code */

void plot_add(struct plot *p, const struct contender *c); /* nothing, if it has no operations */
int plot_write(const struct bench *b, const char *cpu);   /* to the file of --plot; an exit code */
void plot_free(struct plot *p);

#endif
