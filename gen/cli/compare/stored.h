/* SPDX-License-Identifier: Apache-2.0 */
/* stored.h - baselines that are kept: shares of the roof, by kind of CPU. */
#ifndef MOEGEN_STORED_H
#define MOEGEN_STORED_H

#include "compare.h"

/* ---- stored.c: the file ----
 *
 * {"benches": [{"spec": "../specs/toy.yaml:forward", "T": [1, 64], "threads": [1, 0]}],
 *  "cpus": [{"cpu": "AuthenticAMD-...", "moegen": "0.1.0", "kernels": [
 *    {"kernel": "toy_forward", "T": 1, "threads": 1, "of_roof": [0.81, 0.8]}]}]}
 *
 * spec: from the file's directory on; threads 0: as many as there are CPUs; of_roof: of each
 * process. Benches are written by hand, the rest by `compare --baseline=F --record`.
 */

enum { MAX_BENCHES = 64, MAX_STORED_LIST = 16, MAX_SHARES = 64, MAX_STORED_NAME = 255 };

struct whole_numbers {
    int64_t at[MAX_STORED_LIST];
    int count;
};
struct stored_bench {
    char *spec; /* owned */
    struct whole_numbers T, threads;
};
struct stored_row {
    char *kernel; /* owned */
    int64_t T, threads;
    double share[MAX_SHARES]; /* of the roof, 1 is all of it */
    int shares;
};
struct stored_cpu {
    char *cpu, *moegen; /* owned */
    struct stored_row *row;
    int rows;
};
struct stored {
    struct stored_bench bench[MAX_BENCHES];
    int benches;
    struct stored_cpu *cpu;
    int cpus;
};
/* Refuses what is not such a file, with its place. Free it in any case. */
moegen_status stored_read(struct stored *s, const char *label, const char *text, size_t len,
                          moegen_error **err);
void stored_free(struct stored *s);
/* NULL: not there. */
struct stored_cpu *stored_cpu(const struct stored *s, const char *cpu);
struct stored_row *stored_find(const struct stored_cpu *c, const char *kernel, int64_t T,
                               int64_t threads);
/* That CPU, without kernels; others stay. NULL: out of memory. */
struct stored_cpu *stored_renew(struct stored *s, const char *cpu, const char *moegen);
/* Adds what one more process reached, up to MAX_SHARES. False: out of memory. */
bool stored_add(struct stored_cpu *c, const char *kernel, int64_t T, int64_t threads, double share);
/* The file's text, the same for the same content. */
void stored_text(const struct stored *s, struct text *t);

/* ---- baseline.c ---- */

/* `compare --baseline=F`: benches F's kernels in fresh processes and compares their shares of the
 * roof with F's, or with --record puts them there. An exit code. */
int compare_stored(const struct options *o, double margin);

#endif
