/* SPDX-License-Identifier: Apache-2.0 */
/* trial.h - trying a kernel: inputs, made up or read, a call with guarded outputs, and what float64
 * arithmetic makes of the inputs. */
#ifndef MOEGEN_TRIAL_H
#define MOEGEN_TRIAL_H

#include <stdbool.h>

#include "moegen_runtime.h"
#include "api/api.h"

/* ---- stand.c: the tensors of one call ---- */

/* A call whose outputs and workspace are this program's: poisoned with NaN before a run, and
 * surrounded by guard bytes that a correct kernel leaves alone. Inputs come from a problem that
 * outlives the bench. */
struct stand {
    const moegen_kernel *kernel;
    moegen_kernel_facts facts;
    moegen_call *call;
    moegen_rt_problem *out; /* outputs, lent from `memory` */
    struct guarded {
        unsigned char *at; /* the allocation */
        size_t bytes;      /* between the guards */
    } memory[MAX_ARGS], workspace;
};
/* Binds every argument: inputs from `in` (f32 is rounded where a smaller float is expected: the
 * rounded copy replaces the tensor), outputs to new memory. All complaints at once, labelled with
 * `label`.
 */
moegen_status stand_open(struct stand *s, const moegen_kernel *kernel, moegen_rt_problem *in,
                         int threads, const char *label, moegen_error **err);
void stand_close(struct stand *s);
/* Size the workspace for so many threads. */
moegen_status stand_threads(struct stand *s, int threads, moegen_error **err);
/* A call of another kernel of the same tensors on the same memory; released before the stand is
 * closed. */
moegen_status stand_lend(struct stand *s, const moegen_kernel *kernel, moegen_rt_problem *in,
                         int threads, moegen_call **call, moegen_error **err);
/* The stand's workspace becomes that call's, which others may have made grow: before it runs. */
moegen_status stand_use(struct stand *s, moegen_call *call, moegen_error **err);
/* NaN everywhere but in what the kernel reads: `in` gives the start of accumulated outputs. */
void stand_poison(struct stand *s, const moegen_rt_problem *in);
/* Name of the tensor whose guard was overwritten, or NULL. */
const char *stand_damage(const struct stand *s);
/* All params of the kernel, for the references. False: out of memory. */
bool problem_params(moegen_rt_problem *p, const moegen_kernel *kernel);

/* ---- distinct.c ---- */

/* Refuses a tensor that two of the files have, of those that `wanted` answers for (NULL: of all),
 * and says which. A file that cannot be read is left to who reads it. */
moegen_status files_distinct(const char *const *path, int files,
                             int (*wanted)(void *user, const char *name), void *user,
                             moegen_error **err);

/* ---- checkpoint.c: tensors under a checkpoint's names ---- */

/* Adds to `in` what the kernel takes, under its own name or the one that the spec's `tensors`
 * gives, of tensor files and of all in directories. Where the spec gives no names, other() gets
 * those of the other tensors. A tensor that the kernel takes is in one file only. */
moegen_status checkpoint_read(const moegen_kernel *kernel, const char *const *path, int paths,
                              void (*other)(const char *name), moegen_rt_problem *in,
                              moegen_error **err);
/* Where `in` has argument `a` under a checkpoint's name only: adds it under its own, or binds a
 * list of experts' matrices to the call, and says so in *is_bound. */
moegen_status checkpoint_bind(const moegen_kernel *kernel, moegen_call *call, const moegen_arg *a,
                              moegen_rt_problem *in, bool *is_bound, moegen_error **err);

/* ---- stopwatch.c ---- */

/* Starts as {0}. One thread uses it; the others whose time it takes were there when it was told to
 * find them. */
enum { MAX_CLOCKS = 256 };
struct stopwatch {
    int clock[MAX_CLOCKS], count; /* the CPU time of each thread of this process */
    double before[MAX_CLOCKS], start;
    long interruptions;
};
void stopwatch_find(struct stopwatch *w);
void stopwatch_start(struct stopwatch *w);
/* Seconds since then; where other work took a CPU from this process, those for which the busiest of
 * its threads had one. */
double stopwatch_stop(struct stopwatch *w);

/* ---- work.c ---- */

/* Rows that a call computes, and experts that have one, from the blocks or sizes of its inputs,
 * else as many as can be. False: out of memory. */
bool work_count(const moegen_kernel *kernel, const moegen_rt_problem *in, int64_t tokens,
                double *rows, double *experts);

/* ---- inputs.c: inputs and expected outputs ---- */

/* One way to fill a kernel's inputs. */
struct trial {
    moegen_rt_fill how;
    bool long_one; /* not for the scalar spelling, which has time for some of a large kernel's */
    char text[96];
};
/* The value of a spec key that is a number. */
int64_t param_int(const moegen_kernel *kernel, const char *key, int64_t otherwise);
/* Floating-point operations of `tokens` tokens. */
double kernel_flops(const moegen_kernel *kernel, int64_t tokens);
/* The key by which the spec fixes the number of tokens, NULL if it does not. */
const char *kernel_fixes(const moegen_kernel *kernel);
/* That number, or another. */
int64_t kernel_tokens(const moegen_kernel *kernel, int64_t otherwise);
/* Inputs for a kernel, filled by its family's reference. MOEGEN_UNSUPPORTED when the family has
 * none. */
moegen_status inputs_fill(const moegen_kernel *kernel, const struct trial *t,
                          moegen_rt_problem **out, moegen_error **err);
/* Outputs that float64 arithmetic makes of them (`in` holds the kernel's params), NaN where not
 * computed: about `budget` operations are spent, of larger trials only some tokens are computed,
 * and of gradients of weights at most so many features (0: as many as there are). */
moegen_status outputs_expect(const moegen_kernel *kernel, const moegen_rt_problem *in,
                             const struct trial *t, double budget, int64_t features,
                             moegen_rt_problem **out, moegen_error **err);
/* Both, and a watch over the inputs. */
struct fixture {
    moegen_rt_problem *in, *want;
    uint64_t digest; /* of the inputs, 0 when they are too large to watch */
};
moegen_status fixture_open(struct fixture *f, const moegen_kernel *kernel, const struct trial *t,
                           double budget, moegen_error **err);
void fixture_close(struct fixture *f);
bool fixture_touched(const struct fixture *f); /* did somebody write to the inputs? */

#endif
