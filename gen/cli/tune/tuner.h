/* SPDX-License-Identifier: Apache-2.0 */
/* tuner.h - what the files of `moegen tune` share. */
#ifndef MOEGEN_TUNER_H
#define MOEGEN_TUNER_H

#include "cli/compare/compare.h"
#include "tune/tune.h"

/* One kernel with one number of threads. */
struct tuned_kernel {
    char *name;         /* owned */
    struct text tokens; /* "1,16,256,1024" */
    moegen_tuning *tuning;
    struct paired paired; /* of fresh processes, or else of the search */
    bool fresh, worse;    /* worse: for one of the numbers of tokens */
    const char *what;     /* became of it, a word or two */
};

/* ---- confirm.c ---- */

/* Fresh processes, in turns: with the planner's own choice, and with the plan that was found. An
 * exit code. */
int confirm_fresh(const struct options *o, const struct job *j, int k, double budget,
                  struct tuned_kernel *x);

/* ---- history.c ---- */

/* A picture of all searches: what was tried when, and the best until then. False: out of memory. */
bool history_svg(const struct tuned_kernel *x, int count, const char *details, struct text *out);

#endif
