/* SPDX-License-Identifier: Apache-2.0 */
/* same_test.c - pairs of cases of a family that are the same function (FAMILY.same: names of two
 * cases of FAMILY.yaml on each line) give the same values, in every 16-bit and 32-bit float, on
 * this CPU's best target and on the scalar one.
 *
 *     same_test DIRECTORY */
#include "cases.h"

enum { TOKENS = 37 };

static int pairs;

/* Outputs of a kernel; those that it adds to start as the inputs have them. */
static moegen_rt_problem *run(const moegen_kernel *kernel, const moegen_rt_problem *in)
{
    moegen_rt_problem *out = moegen_rt_problem_create();
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    moegen_status status = moegen_call_create(kernel, &call, &err);
    if (!status && !(status = bind(call, in, out, &err))) {
        reset(call, in, out);
        status = moegen_call_run(call, &err);
    }
    if (status)
        complain("cannot run", err ? moegen_error_text(err) : moegen_status_name(status));
    moegen_error_release(err);
    moegen_call_release(call);
    return out;
}

static void compare(const moegen_rt_problem *a, const moegen_rt_problem *b)
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
            complain(t->name, "is missing");
        } else {
            moegen_rt_decode(t->dtype, t->data, (size_t)moegen_rt_tensor_count(t), want->data);
            if (moegen_rt_compare(other, want, &r, &why))
                complain(t->name, why.text);
            else if (!r.ok || r.skipped)
                complain(t->name, r.skipped ? "NaN" : r.text);
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
            if (dtype->digits == 0 || dtype->bytes < 2 || dtype->bytes > 4)
                continue;
            snprintf(where, sizeof where, "%s and %s (%s, target %s)", one, two, dtype->name,
                     targets[i]);
            moegen_kernel *a = get(engine, path, one, dtype->name, targets[i]);
            moegen_kernel *b = get(engine, path, two, dtype->name, targets[i]);
            for (int r = 0; a && b && moegen_rt_routing(r); r++) {
                moegen_rt_problem *in = inputs(a, TOKENS, moegen_rt_routing(r));
                moegen_rt_problem *x = run(a, in), *y = run(b, in);
                compare(x, y);
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
