/* SPDX-License-Identifier: Apache-2.0 */
/* reach.h - what is put among the inputs of a case and is no number, followed to the outputs that
 * it reaches in float64: included once by each program that does so. */
#include <math.h>

#include "cases.h"

static int tried, reached;

/* The outputs of a call, against float64: `was` has those of inputs that are numbers. The
 * program's. */
static void judge(const moegen_rt_problem *got, const moegen_rt_problem *want,
                  const moegen_rt_problem *was, const char *what);

static inline bool is_finite(const moegen_rt_tensor *t, int64_t i)
{
    double x;
    const size_t bytes = moegen_rt_dtype_of(t->dtype)->bytes;
    moegen_rt_decode(t->dtype, (const char *)t->data + (size_t)i * bytes, 1, &x);
    return isfinite(x);
}

/* Elements that are numbers in one of `got` and `want` alone. Those that never were, in `was`, are
 * not compared. */
static inline int64_t strays(const moegen_rt_tensor *got, const moegen_rt_tensor *want,
                             const moegen_rt_tensor *was)
{
    int64_t others = 0, count = moegen_rt_tensor_count(want);
    for (int64_t i = 0; i < count; i++) {
        if (!is_finite(was, i))
            continue;
        others += is_finite(got, i) != is_finite(want, i);
        reached += !is_finite(want, i);
    }
    return others;
}

static inline moegen_rt_problem *reference(const moegen_kernel *kernel, const moegen_rt_problem *in)
{
    moegen_rt_problem *out = moegen_rt_problem_create();
    moegen_rt_error why = {{0}};
    const moegen_rt_want want = {.own_choice = 1};
    if (moegen_rt_reference_find(kernel->unit->facts.family)->compute(in, &want, out, &why))
        complain("no reference", why.text);
    return out;
}

/* Calls with inputs of which something is no number any more. */
static inline void try_poked(const moegen_kernel *kernel, moegen_call *call, moegen_rt_problem *in,
                             moegen_rt_problem *out, const moegen_rt_problem *was, const char *what)
{
    moegen_rt_problem *want = reference(kernel, in);
    reset(call, in, out);
    if (moegen_call_run(call, NULL))
        complain(what, "cannot run");
    else
        judge(out, want, was, what);
    moegen_rt_problem_destroy(want);
    tried++;
}
