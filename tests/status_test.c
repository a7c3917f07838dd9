/* SPDX-License-Identifier: Apache-2.0 */
/* status_test.c - every case of tests/kernels with one element of an integer input out of range,
 * for each such input: one thread and a team give the same complaint, and where there is one no
 * output was written.
 *
 *     status_test DIRECTORY [FAMILY[:CASE]] */
#include "cases.h"

enum { RANKS = 3, TOKENS = 70 };

static moegen_engine *engine;
static int refused; /* calls */

/* Sets an element of an integer tensor. 0: it has none, or is of another type. */
static int damage(moegen_rt_tensor *t)
{
    const int64_t count = moegen_rt_tensor_count(t), i = count * 2 / 3;
    if (count == 0 || (t->dtype != MOEGEN_RT_I32 && t->dtype != MOEGEN_RT_I64))
        return 0;
    if (t->dtype == MOEGEN_RT_I32)
        ((int32_t *)t->data)[i] = -77777;
    else
        ((int64_t *)t->data)[i] = -77777;
    return 1;
}

/* Runs with so many threads. What is complained of goes to `text`. */
static void run(moegen_call *call, int threads, const moegen_rt_problem *in, moegen_rt_problem *out,
                const moegen_rt_problem *clean, char *text, size_t size)
{
    moegen_error *err = NULL;
    moegen_status status = moegen_call_set_threads(call, threads, &err);
    reset(call, in, out);
    if (!status)
        status = moegen_call_run(call, &err);
    snprintf(text, size, "%s", err ? moegen_error_text(err) : moegen_status_name(status));
    moegen_error_release(err);
    if (status && status != MOEGEN_BAD_DATA)
        complain("cannot run", text);
    for (size_t i = 0; status && moegen_rt_problem_at(out, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(out, i);
        if (memcmp(t->data, moegen_rt_problem_tensor(clean, t->name)->data, t->bytes) != 0)
            complain(t->name, "was written");
    }
    refused += status == MOEGEN_BAD_DATA;
}

static void try_input(const moegen_kernel *kernel, const char *name)
{
    moegen_rt_problem *in = inputs(kernel, TOKENS, "skewed");
    moegen_rt_problem *out = moegen_rt_problem_create(), *clean = moegen_rt_problem_create();
    moegen_rt_tensor *t = moegen_rt_problem_tensor(in, name);
    moegen_call *call = NULL, *other = NULL;
    char alone[1000], team[1000];
    if (t && damage(t)) {
        if (moegen_call_create(kernel, &call, NULL) || bind(call, in, out, NULL) ||
            moegen_call_create(kernel, &other, NULL) || bind(other, in, clean, NULL)) {
            complain("cannot bind", name);
        } else {
            reset(other, in, clean);
            run(call, 1, in, out, clean, alone, sizeof alone);
            run(call, RANKS, in, out, clean, team, sizeof team);
            if (strcmp(alone, team) != 0)
                complain(name, team);
        }
    }
    moegen_call_release(call);
    moegen_call_release(other);
    moegen_rt_problem_destroy(in);
    moegen_rt_problem_destroy(out);
    moegen_rt_problem_destroy(clean);
}

static void try_case(const char *path, const char *name, void *ctx)
{
    static int turn;
    const char *dtype = is_typed(path) ? io_dtype_in_turn(turn++) : NULL;
    (void)ctx;
    snprintf(where, sizeof where, "%s:%s dtype %s", path, name, dtype ? dtype : "-");
    moegen_kernel *kernel = get(engine, path, name, dtype, "auto");
    for (int i = 0; kernel && i < kernel->unit->facts.arg_count; i++) {
        const moegen_arg *a = &kernel->unit->facts.args[i];
        if (a->role == MOEGEN_IN && (a->dtype == MOEGEN_I32 || a->dtype == MOEGEN_I64))
            try_input(kernel, a->name);
    }
    moegen_kernel_release(kernel);
}

int main(int argc, char **argv)
{
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = shared_cache()};
    if (moegen_engine_create(&options, &engine, NULL))
        return 2;
    int cases = argc < 2 ? -1 : each_case(argv[1], argc > 2 ? argv[2] : "", try_case, NULL);
    moegen_engine_release(engine);
    if (cases < 0) {
        fprintf(stderr, "usage: status_test DIRECTORY [FAMILY[:CASE]]\n");
        return 2;
    }
    printf("%d cases, %d calls refused, %d complaints\n", cases, refused, failures);
    return failures != 0 || refused == 0;
}
