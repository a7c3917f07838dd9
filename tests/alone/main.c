/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - runs each generated kernel of table.h on its family's inputs with teams of 1 and 3, and
 * compares every output with float64 arithmetic. Needs moegen_rt and the kernels, nothing else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moegen_runtime.h"

struct arg {
    const char *name, *dtype;
    int is_input, is_optional;
};
struct kernel {
    const char *name, *family;
    moegen_entry entry;
    moegen_workspace workspace;
    const struct arg *arg;     /* ends without a name; in the order of the argument structure */
    const char *const *dim;    /* ends with NULL */
    const char *const *params; /* key, value, ...; ends with NULL */
};
#include "table.h"

enum { MAX_CELLS = 64, TOKENS = 13 };

static int failures;

static void complain(const struct kernel *k, int threads, const char *what, const char *detail)
{
    printf("FAIL %s, %d threads: %s: %s\n", k->name, threads, what, detail);
    failures++;
}

/* T or S is the number of tokens; N that of blocks. */
static int64_t size_of(const moegen_rt_problem *in, const char *dim)
{
    const moegen_rt_tensor *blocks = moegen_rt_problem_tensor(in, "block_to_expert");
    return strcmp(dim, "N") == 0 && blocks ? blocks->shape[0] : TOKENS;
}

static void judge(const struct kernel *k, int threads, const moegen_rt_problem *out,
                  const moegen_rt_problem *want)
{
    for (size_t i = 0; moegen_rt_problem_at(out, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(out, i);
        moegen_rt_comparison r = {0};
        moegen_rt_error why = {{0}};
        if (moegen_rt_compare(t, moegen_rt_problem_tensor(want, t->name), &r, &why))
            complain(k, threads, t->name, why.text);
        else if (!r.ok || !r.compared)
            complain(k, threads, t->name, r.text);
    }
}

static void run(const struct kernel *k, int threads, const moegen_rt_problem *in,
                const moegen_rt_problem *want)
{
    union {
        const void *pointer;
        int64_t size;
    } cell[MAX_CELLS] = {{0}};
    moegen_rt_problem *out = moegen_rt_problem_create();
    moegen_rt_team *team = NULL;
    moegen_rt_error why = {{0}};
    int n = 0;
    for (const struct arg *a = k->arg; a->name; a++) {
        const moegen_rt_tensor *like = moegen_rt_problem_tensor(a->is_input ? in : want, a->name);
        moegen_rt_tensor *t = NULL;
        moegen_rt_dtype dtype;
        if (!a->is_input && like && moegen_rt_dtype_find(a->dtype, &dtype) &&
            !moegen_rt_problem_add(out, a->name, dtype, like->rank, like->shape, &t, &why))
            moegen_rt_poison(dtype, t->data, (size_t)moegen_rt_tensor_count(t));
        if (a->is_input ? !like && !a->is_optional : !t)
            complain(k, threads, a->name, "no such tensor");
        cell[n++].pointer = t ? t->data : like ? like->data : NULL;
    }
    for (const char *const *d = k->dim; *d; d++)
        cell[n++].size = size_of(in, *d);
    int64_t bytes = k->workspace(cell, threads);
    void *memory = aligned_alloc(64, (size_t)(bytes + 127) / 64 * 64);
    cell[n].pointer = memory;
    cell[n + 1].size = bytes;
    if (failures || !memory || moegen_rt_team_create(threads, &team, &why))
        complain(k, threads, "cannot run", why.text);
    else if (moegen_rt_team_call(team, k->entry, cell))
        complain(k, threads, "its status", "not 0");
    else
        judge(k, threads, out, want);
    moegen_rt_team_destroy(team);
    free(memory);
    moegen_rt_problem_destroy(out);
}

int main(void)
{
    size_t count = sizeof kernels / sizeof *kernels;
    for (const struct kernel *k = kernels; k < kernels + count; k++) {
        const moegen_rt_reference *reference = moegen_rt_reference_find(k->family);
        moegen_rt_problem *in = moegen_rt_problem_create(), *want = moegen_rt_problem_create();
        moegen_rt_fill how = {.T = TOKENS, .seed = 5, .routing = "skewed"};
        moegen_rt_want all = {0};
        moegen_rt_error why = {{0}};
        for (const char *const *p = k->params; *p; p += 2)
            moegen_rt_problem_set(in, p[0], p[1]);
        if (!reference || reference->fill(in, &how, &why) ||
            reference->compute(in, &all, want, &why))
            complain(k, 0, "no reference", why.text);
        for (int threads = 1; threads <= 3 && !failures; threads += 2)
            run(k, threads, in, want);
        moegen_rt_problem_destroy(in);
        moegen_rt_problem_destroy(want);
    }
    printf("%zu kernels, %d failures\n", count, failures);
    return failures != 0 || count == 0;
}
