/* SPDX-License-Identifier: Apache-2.0 */
/* unit.h - a kernel as its handles share it, and what it is made of. */
#ifndef MOEGEN_API_UNIT_H
#define MOEGEN_API_UNIT_H

#include "api.h"
#include "jit/jit.h"

/* ---- crew.c ---- */

/* Idle thread teams, shared by an engine and its kernels. Thread-safe, reference-counted. */
struct crew;
enum { CREW_MOST = 1024 };             /* threads of a team */
struct crew *crew_create(int threads); /* 0: as kernels want it; NULL: out of memory */
struct crew *crew_retain(struct crew *c);
void crew_release(struct crew *c);
/* The team size of a call that asks for none: the crew's own, else what the kernel wants (0:
 * nothing), else the number of CPUs. */
int crew_threads(const struct crew *c, int wanted);
/* Run one entry on `size` ranks (the caller is rank 0); *result is the entry's. */
moegen_status crew_run(struct crew *c, int size, moegen_entry entry, const void *args,
                       int32_t *result);
/* The same on a host's threads; false: it called some ranks, but not all. */
bool crew_run_on(moegen_runner runner, void *host, int size, moegen_entry entry, const void *args,
                 int32_t *result);

/* ---- shape.c ---- */

/* An extent of a tensor, times * dim + plus. */
struct extent {
    int64_t times, plus;
    int dim; /* index of the run-time size, or -1 for a constant */
};
/* Parse "2048", "T", "T+1", "128*N", "64*T+64"; false if it is none of these. */
bool extent_parse(const char *text, const char *const *dims, int dim_count, struct extent *out);
/* Value with the given sizes, or -1 when its size is unknown (< 0) or it overflows. */
int64_t extent_value(const struct extent *x, const int64_t *size);
/* The size that makes the extent equal `value`, or -1 if none does. */
int64_t extent_solve(const struct extent *x, int64_t value);
/* A run-time size that no input fixes: max(least, ceil((from * times - less) / per) + less), the
 * most blocks of `per` slots that from * times rows of less + 1 experts can need. */
struct derived {
    int dim, from; /* indices of run-time sizes */
    int64_t times, less, per, least;
};
/* Parse "N T 8 63 128 1": dim, from, times, less, per, least. */
bool derived_parse(const char *text, const char *const *dims, int dim_count, struct derived *out);
/* Its value, or -1 when size[from] is unknown (< 0) or it overflows. */
int64_t derived_value(const struct derived *x, const int64_t *size);

/* ---- kernel.c ---- */

/* What all handles of one kernel share. Immutable after unit_create. */
struct moegen_kernel {
    struct unit *unit;
    const char *origin;
};
struct unit {
    _Atomic int refs;
    struct moegen_kernel made; /* handle for whoever caused it to be made or loaded */
    struct moegen_kernel kept; /* handle for later requests (origin "memory") */
    struct text meta;          /* split in place; the strings below point into it */
    bool memory_out;           /* why parsing it failed */
    moegen_kernel_facts facts;
    moegen_arg arg[MAX_ARGS];
    struct extent extent[MAX_ARGS][MAX_RANK];
    const char *extent_text[MAX_ARGS][MAX_RANK];
    bool listed[MAX_ARGS]; /* the argument is a list of addresses, of the first extent's length */
    const char *dim[MAX_DIMS];
    struct derived derived[MAX_DIMS];
    int derived_count;
    struct pair {
        const char *key, *value;
    } * param, *answer; /* spec keys (sorted); sentences of positive return codes */
    size_t param_count, answer_count;
    const char *requires; /* CPU features */
    const char *cflags;   /* what gcc and clang need to compile its C */
    const char *entry_name, *workspace_name;
    moegen_entry entry; /* NULL when this CPU cannot run it */
    moegen_workspace workspace;
    struct code code;
    struct crew *crew;
};
/* A unit with one reference from metadata text (copied); no code yet. */
moegen_status unit_create(const char *meta, size_t len, struct crew *crew, struct unit **out,
                          moegen_error **err);
/* MOEGEN_UNSUPPORTED: this CPU cannot run it. */
moegen_status unit_check_cpu(const struct unit *u, moegen_error **err);
/* Give it its code: fn[0] is the entry, fn[1] the workspace function. *code is emptied. */
void unit_attach(struct unit *u, struct code *code, const char *origin, double seconds);
void unit_retain(struct unit *u);
void unit_release(struct unit *u);
extern const struct registry_ops unit_ops; /* the same, for a registry of units */
const char *unit_answer(const struct unit *u,
                        int32_t code); /* sentence of a positive return code */

#endif
