/* SPDX-License-Identifier: Apache-2.0 */
/* same_test.c - pairs of cases of a family that are the same function (FAMILY.same: names of two
 * cases of FAMILY.yaml on each line) give the same values, in every 16-bit and 32-bit float, on
 * this CPU's best target and on the scalar one.
 *
 *     same_test DIRECTORY */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moegen.h"
#include "moegen_runtime.h"
#include "private.h"

static int failures, pairs;

static void complain(const char *where, const char *what)
{
    printf("FAIL %s: %s\n", where, what);
    failures++;
}

static moegen_kernel *get(moegen_engine *engine, const char *path, const char *name,
                          const char *dtype, const char *target)
{
    static char text[65536];
    moegen_override set[] = {{"dtype", dtype}, {"target", target}};
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    FILE *f = fopen(path, "rb");
    moegen_spec spec = {.struct_size = sizeof spec,
                        .text = text,
                        .len = f ? fread(text, 1, sizeof text, f) : 0,
                        .label = path,
                        .kernel = name,
                        .overrides = set,
                        .override_count = 2};
    if (f)
        fclose(f);
    if (moegen_kernel_get(engine, &spec, &kernel, &err))
        complain(name, moegen_error_text(err));
    moegen_error_release(err);
    return kernel;
}

static moegen_rt_problem *inputs(const moegen_kernel *kernel, const char *routing)
{
    const struct unit *u = kernel->unit;
    moegen_rt_problem *p = moegen_rt_problem_create();
    const moegen_rt_reference *family = moegen_rt_reference_find(u->facts.family);
    moegen_rt_fill how = {.T = 37, .seed = 5, .routing = routing};
    moegen_rt_error why = {{0}};
    for (size_t i = 0; i < u->param_count; i++)
        moegen_rt_problem_set(p, u->param[i].key, u->param[i].value);
    if (family->fill(p, &how, &why))
        complain(u->facts.name, why.text);
    return p;
}

/* Outputs of a kernel; those that it adds to start as the inputs have them. */
static moegen_rt_problem *run(const moegen_kernel *kernel, const moegen_rt_problem *in)
{
    const moegen_kernel_facts *facts = &kernel->unit->facts;
    moegen_rt_problem *out = moegen_rt_problem_create();
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    moegen_status status = moegen_call_create(kernel, &call, &err);
    for (int i = 0; i < facts->arg_count && !status; i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_tensor(in, facts->args[i].name);
        if (facts->args[i].role == MOEGEN_IN && t)
            status = moegen_call_bind_const(call, t->name, t->data, (moegen_dtype)t->dtype, t->rank,
                                            t->shape, &err);
    }
    for (int i = 0; i < facts->arg_count && !status; i++) {
        const moegen_arg *a = &facts->args[i];
        const moegen_rt_tensor *start = moegen_rt_problem_tensor(in, a->name);
        moegen_rt_tensor *t = NULL;
        int rank;
        int64_t shape[8];
        if (a->role == MOEGEN_IN)
            continue;
        status = moegen_call_shape(call, a->name, &rank, shape, &err);
        if (status ||
            moegen_rt_problem_add(out, a->name, (moegen_rt_dtype)a->dtype, rank, shape, &t, NULL))
            break;
        moegen_rt_poison(t->dtype, t->data, (size_t)moegen_rt_tensor_count(t));
        if (start)
            memcpy(t->data, start->data, t->bytes);
        status = moegen_call_bind(call, a->name, t->data, a->dtype, rank, shape, &err);
    }
    if (status || (status = moegen_call_run(call, &err)))
        complain(facts->name, moegen_error_text(err));
    moegen_error_release(err);
    moegen_call_release(call);
    return out;
}

static void compare(const char *where, const moegen_rt_problem *a, const moegen_rt_problem *b)
{
    for (size_t i = 0; moegen_rt_problem_at(a, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(a, i);
        const moegen_rt_tensor *other = moegen_rt_problem_tensor(b, t->name);
        moegen_rt_problem *wide = moegen_rt_problem_create();
        moegen_rt_tensor *want = NULL;
        moegen_rt_comparison r;
        moegen_rt_error why;
        if (!other ||
            moegen_rt_problem_add(wide, t->name, MOEGEN_RT_F64, t->rank, t->shape, &want, &why)) {
            complain(where, t->name);
        } else {
            moegen_rt_decode(t->dtype, t->data, (size_t)moegen_rt_tensor_count(t), want->data);
            if (moegen_rt_compare(other, want, &r, &why))
                complain(where, why.text);
            else if (!r.ok || r.skipped)
                complain(where, r.skipped ? "NaN" : r.text);
        }
        moegen_rt_problem_destroy(wide);
    }
}

static void run_pair(moegen_engine *engine, const char *path, const char *one, const char *two)
{
    static const char *const targets[] = {"auto", "scalar"};
    for (int d = 0; moegen_rt_dtype_of((moegen_rt_dtype)d); d++)
        for (int i = 0; i < 2; i++) {
            const moegen_rt_dtype_facts *dtype = moegen_rt_dtype_of((moegen_rt_dtype)d);
            char where[300];
            if (dtype->digits == 0 || dtype->bytes < 2 || dtype->bytes > 4)
                continue;
            snprintf(where, sizeof where, "%s and %s (%s, target %s)", one, two, dtype->name,
                     targets[i]);
            moegen_kernel *a = get(engine, path, one, dtype->name, targets[i]);
            moegen_kernel *b = get(engine, path, two, dtype->name, targets[i]);
            for (int r = 0; a && b && moegen_rt_routing(r); r++) {
                moegen_rt_problem *in = inputs(a, moegen_rt_routing(r));
                moegen_rt_problem *x = run(a, in), *y = run(b, in);
                compare(where, x, y);
                pairs++;
                moegen_rt_problem_destroy(in);
                moegen_rt_problem_destroy(x);
                moegen_rt_problem_destroy(y);
            }
            moegen_kernel_release(a);
            moegen_kernel_release(b);
        }
}

int main(int argc, char **argv)
{
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = ""};
    moegen_engine *engine = NULL;
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    if (!dir || moegen_engine_create(&options, &engine, NULL)) {
        fprintf(stderr, "usage: same_test DIRECTORY\n");
        return 2;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[600], line[200], one[100], two[100];
        size_t len = strlen(entry->d_name);
        if (len < 5 || strcmp(entry->d_name + len - 5, ".same") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        FILE *f = fopen(path, "r");
        snprintf(path + strlen(path) - 5, 6, ".yaml");
        while (f && fgets(line, sizeof line, f))
            if (line[0] != '#' && sscanf(line, "%99s %99s", one, two) == 2)
                run_pair(engine, path, one, two);
        if (f)
            fclose(f);
    }
    closedir(dir);
    moegen_engine_release(engine);
    printf("%d pairs, %d complaints\n", pairs, failures);
    return failures != 0 || pairs == 0;
}
