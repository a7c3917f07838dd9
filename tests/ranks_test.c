/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_test.c - every case of tests/kernels on ranks of a host's own making: such that keep to
 * their shares, and such of which one is slow, so that the others do its work. The bits are those
 * of one thread.
 *
 *     ranks_test DIRECTORY [FAMILY[:CASE] [DTYPE TARGET]]      CASE: odd* is all that begin so */
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cases.h"

enum { RANKS = 3, TOKENS = 100, NAP_US = 200 };

static moegen_engine *engine;
static moegen_rt_team *team;
static _Thread_local void (*meet)(void *);
static _Thread_local int64_t (*add)(int64_t *, int64_t);
static _Thread_local bool is_slow;
static _Thread_local int64_t added; /* to counters, times */
static _Atomic int64_t helped;      /* chunks that a rank looked for in another one's share */

static void meet_and_nap(void *at)
{
    meet(at);
    if (is_slow)
        usleep(NAP_US);
}

/* Other ranks run between any two steps. */
static int64_t add_and_yield(int64_t *counter, int64_t n)
{
    const int64_t was = add(counter, n);
    helped += n > 1;
    if (is_slow && n > 0 && added++ % 3 == 0)
        usleep(NAP_US); /* with a chunk that others may be waiting for */
    sched_yield();
    return was;
}

struct run {
    const moegen_call *call;
    int slow; /* this rank; -1: none, and nobody helps */
    _Atomic int32_t answer;
};

static void run_rank(void *ctx, const moegen_worker *worker)
{
    struct run *run = ctx;
    moegen_worker mine = *worker;
    meet = worker->barrier;
    add = worker->add;
    mine.barrier = meet_and_nap;
    mine.add = run->slow < 0 ? NULL : add_and_yield;
    is_slow = worker->rank == run->slow;
    int32_t answer = run->call->unit->entry(run->call->cell, &mine);
    if (answer)
        run->answer = answer;
}

static void compare(const moegen_rt_problem *alone, const moegen_rt_problem *out, int slow)
{
    char with[60];
    snprintf(with, sizeof with,
             slow < 0 ? "other bits with fixed shares" : "other bits, rank %d slow", slow);
    for (size_t i = 0; moegen_rt_problem_at(out, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(out, i);
        if (memcmp(t->data, moegen_rt_problem_tensor(alone, t->name)->data, t->bytes) != 0)
            complain(t->name, with);
    }
}

/* With one thread into `alone`, then on the team. */
static moegen_status try_kernel(const moegen_kernel *kernel, const moegen_rt_problem *in,
                                moegen_rt_problem *alone, moegen_rt_problem *out,
                                moegen_error **err)
{
    moegen_call *one = NULL, *call = NULL;
    moegen_status status;
    if ((status = moegen_call_create(kernel, &one, err)) || (status = bind(one, in, alone, err)) ||
        (status = moegen_call_set_threads(one, 1, err)) ||
        (status = moegen_call_create(kernel, &call, err)) || (status = bind(call, in, out, err)) ||
        (status = moegen_call_set_threads(call, RANKS, err)))
        goto done;
    reset(one, in, alone);
    reset(call, in, out);
    if ((status = moegen_call_run(one, err)) || (status = moegen_call_run(call, err)))
        goto done; /* the latter gives the workspace */
    for (int slow = -1; slow < RANKS; slow++) {
        struct run run = {.call = call, .slow = slow};
        reset(call, in, out);
        if (moegen_rt_team_run(team, run_rank, &run) || run.answer)
            complain("fails on a team", "");
        else
            compare(alone, out, slow);
    }
done:
    moegen_call_release(one);
    moegen_call_release(call);
    return status;
}

struct choice {
    const char *dtype, *target; /* NULL: of each dtype in turn */
};

static void try_case(const char *path, const char *name, void *ctx)
{
    static int turn;
    const struct choice *c = ctx;
    const char *dtype = !is_typed(path) ? NULL : c->dtype ? c->dtype : io_dtype_in_turn(turn++);
    snprintf(where, sizeof where, "%s:%s dtype %s target %s", path, name, dtype ? dtype : "-",
             c->target);
    moegen_kernel *kernel = get(engine, path, name, dtype, c->target);
    if (!kernel)
        return;
    moegen_rt_problem *in = inputs(kernel, TOKENS, "skewed");
    moegen_rt_problem *alone = moegen_rt_problem_create(), *out = moegen_rt_problem_create();
    moegen_error *err = NULL;
    moegen_status status = try_kernel(kernel, in, alone, out, &err);
    if (status)
        complain("cannot run", err ? moegen_error_text(err) : moegen_status_name(status));
    moegen_error_release(err);
    moegen_rt_problem_destroy(in);
    moegen_rt_problem_destroy(alone);
    moegen_rt_problem_destroy(out);
    moegen_kernel_release(kernel);
}

int main(int argc, char **argv)
{
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = shared_cache()};
    if (moegen_engine_create(&options, &engine, NULL) || moegen_rt_team_create(RANKS, &team, NULL))
        return 2;
    struct choice c = {argc > 4 ? argv[3] : NULL, argc > 4 ? argv[4] : "auto"};
    int cases = argc < 2 ? -1 : each_case(argv[1], argc > 2 ? argv[2] : "", try_case, &c);
    moegen_rt_team_destroy(team);
    moegen_engine_release(engine);
    if (cases < 0) {
        fprintf(stderr, "usage: ranks_test DIRECTORY [FAMILY[:CASE] [DTYPE TARGET]]\n");
        return 2;
    }
    if (helped == 0)
        complain("no rank helped another one", "");
    printf("%d cases, %d complaints; %lld looks at others' shares\n", cases, failures,
           (long long)helped);
    return failures != 0 || cases == 0;
}
