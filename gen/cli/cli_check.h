/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli_check.h - what `moegen check` knows while it runs: shared by cmd_check.c and cli_check.c.
 */
#ifndef MOEGEN_CLI_CHECK_H
#define MOEGEN_CLI_CHECK_H

#include "cli.h"

enum { MAX_VARIANTS = 96, MAX_THREADS = 3 };

/* What all trials together say of one output. */
struct verdict {
    double l2, limit, roundings;
    int64_t compared; /* elements; 0: the reference leaves out all of them */
    int good, bad;
};
struct variant {
    char target[ITEM], spelling[ITEM], cc[ITEM]; /* "" where the option was not given */
    moegen_kernel *kernel;                       /* NULL: not run, and `why` says why */
    bool lacking, emulated; /* the CPU lacks the target; and the kernel runs all the same */
    bool crashed;           /* and is not run any more; `why` says how */
    struct text why;
    struct verdict *verdict; /* by argument; in struct progress */
};
/* What the process in which kernels run leaves behind, in memory that is shared with it. */
struct progress {
    int trial, variant, threads; /* what is being run, and where the next process begins */
    bool ready;                  /* the inputs of the trial are there */
    int result;                  /* exit code so far: not EXIT_OK ends the trials */
    struct verdict verdict[MAX_VARIANTS][MAX_ARGS];
};
struct check {
    const struct options *o;
    struct job *job;
    int k;            /* kernel of the job */
    const char *name; /* of a one-kernel spec */
    struct variant variant[MAX_VARIANTS];
    int variants, ran, failed, idle;
    struct table *table;
    struct text *json;
    struct trial trial[MAX_TRIALS];
    int trials;
    struct progress *at;
};

/* Rows of the table and of the JSON for the variants of one kernel, counted into ran, failed and
 * idle; the variants are released. */
void check_report(struct check *c);

#endif
