/* SPDX-License-Identifier: Apache-2.0 */
/* vectors_test.c - every case of tests/vectors (spec.yaml, in and expect.safetensors; an expected
 * NaN is not compared) through the program's own path, on this CPU's best target, on the scalar one
 * and, emulated, on one with more lanes.
 *
 *     vectors_test DIRECTORY */
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moegen.h"
#include "moegen_runtime.h"

static int failures;

static void complain(const char *where, const char *what)
{
    printf("FAIL %s: %s\n", where, what);
    failures++;
}

static char *read_text(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 65536);
    *len = f && text ? fread(text, 1, 65535, f) : 0;
    if (f)
        fclose(f);
    return text;
}

/* Binds inputs of the file by name and outputs to new memory in `out`. */
static moegen_status bind_all(moegen_call *call, const moegen_kernel_facts *facts,
                              const moegen_rt_problem *in, moegen_rt_problem *out,
                              moegen_error **err)
{
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < facts->arg_count && !status; i++) {
        const moegen_arg *a = &facts->args[i];
        const moegen_rt_tensor *t = moegen_rt_problem_tensor(in, a->name);
        if (a->role == MOEGEN_IN && t)
            status = moegen_call_bind_const(call, a->name, t->data, (moegen_dtype)t->dtype, t->rank,
                                            t->shape, err);
    }
    for (int i = 0; i < facts->arg_count && !status; i++) {
        const moegen_arg *a = &facts->args[i];
        moegen_rt_tensor *t = NULL;
        int rank;
        int64_t shape[8];
        if (a->role == MOEGEN_IN || (status = moegen_call_shape(call, a->name, &rank, shape, err)))
            continue;
        if (moegen_rt_problem_add(out, a->name, (moegen_rt_dtype)a->dtype, rank, shape, &t, NULL))
            return MOEGEN_NO_MEMORY;
        moegen_rt_poison(t->dtype, t->data, (size_t)moegen_rt_tensor_count(t));
        status = moegen_call_bind(call, a->name, t->data, a->dtype, rank, shape, err);
    }
    return status;
}

/* Expected values as f64, which is what the comparison wants. */
static void compare(const char *where, const moegen_rt_tensor *want, const moegen_rt_problem *out)
{
    const moegen_rt_tensor *got = moegen_rt_problem_tensor(out, want->name);
    moegen_rt_problem *wide = moegen_rt_problem_create();
    moegen_rt_tensor *exact = NULL;
    moegen_rt_comparison r;
    moegen_rt_error why;
    if (!got) {
        complain(where, want->name);
    } else if (moegen_rt_problem_add(wide, want->name, MOEGEN_RT_F64, want->rank, want->shape,
                                     &exact, &why)) {
        complain(where, why.text);
    } else {
        moegen_rt_decode(want->dtype, want->data, (size_t)moegen_rt_tensor_count(want),
                         exact->data);
        if (moegen_rt_compare(got, exact, &r, &why))
            complain(where, why.text);
        else if (r.nans || r.l2 > 3e-6) /* the vectors are f32: their own rounding counts */
            complain(where, r.text);
    }
    moegen_rt_problem_destroy(wide);
}

static void run_case(moegen_engine *engine, const char *folder, const char *target)
{
    char path[1024], where[1100];
    size_t len;
    moegen_kernel *kernel = NULL;
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    moegen_rt_error why = {{0}};
    moegen_kernel_facts facts = {.struct_size = sizeof facts};
    moegen_rt_problem *in = moegen_rt_problem_create(), *out = moegen_rt_problem_create();
    moegen_rt_problem *want = moegen_rt_problem_create();
    snprintf(where, sizeof where, "%s (target %s)", folder, target);
    snprintf(path, sizeof path, "%s/spec.yaml", folder);
    char *text = read_text(path, &len);
    const char *spelling = strcmp(target, "auto") == 0 ? "auto" : "scalar"; /* runs on any CPU */
    moegen_override set[] = {{"target", target}, {"spelling", spelling}};
    moegen_spec spec = {.struct_size = sizeof spec,
                        .text = text,
                        .len = len,
                        .label = path,
                        .overrides = set,
                        .override_count = 2};
    moegen_status status = moegen_kernel_get(engine, &spec, &kernel, &err);
    snprintf(path, sizeof path, "%s/in.safetensors", folder);
    bool bad = moegen_rt_safetensors_read(path, in, &why);
    snprintf(path, sizeof path, "%s/expect.safetensors", folder);
    bad = bad || moegen_rt_safetensors_read(path, want, &why);
    if (!status && !bad && !(status = moegen_call_create(kernel, &call, &err)) &&
        !moegen_kernel_info(kernel, &facts) && !(status = bind_all(call, &facts, in, out, &err)))
        status = moegen_call_run(call, &err);
    if (bad)
        complain(where, why.text);
    else if (status)
        complain(where, err ? moegen_error_text(err) : moegen_status_name(status));
    for (size_t i = 0; !bad && !status && moegen_rt_problem_at(want, i); i++)
        compare(where, moegen_rt_problem_at(want, i), out);
    moegen_error_release(err);
    moegen_call_release(call);
    moegen_kernel_release(kernel);
    moegen_rt_problem_destroy(in);
    moegen_rt_problem_destroy(out);
    moegen_rt_problem_destroy(want);
    free(text);
}

int main(int argc, char **argv)
{
    static const char *const targets[] = {"auto", "scalar", "avx512"};
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = ""};
    moegen_engine *engine = NULL;
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    int cases = 0;
    if (!dir || moegen_engine_create(&options, &engine, NULL)) {
        fprintf(stderr, "usage: vectors_test DIRECTORY\n");
        return 2;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        char folder[600];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(folder, sizeof folder, "%s/%s", argv[1], entry->d_name);
        for (int i = 0; i < 3; i++, cases++)
            run_case(engine, folder, targets[i]);
    }
    closedir(dir);
    moegen_engine_release(engine);
    printf("%d cases, %d complaints\n", cases, failures);
    return failures != 0 || cases == 0;
}
