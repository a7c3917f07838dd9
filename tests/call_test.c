/* SPDX-License-Identifier: Apache-2.0 */
/* call_test.c - calls: binding, workspace, threads, overhead. Uses moegen.h only; a kernel is
 * compared with itself. */
#include <pthread.h>
#include <time.h>

#include "api.h"

/* ---- tensors ---- */

struct tensors {
    float hidden[(T + 1) * H], affinity[(T + 1) * E], gate_up[E * H * 2 * I], down[E * I * H];
    float out[(T + 1) * H];
    int32_t ids[BLOCKS * B], experts[BLOCKS];
};

static struct tensors *make_tensors(void)
{
    struct tensors *x = aligned_alloc(64, (sizeof *x + 63) / 64 * 64);
    unsigned seed = 7;
    int used[E] = {0};
    if (!x)
        abort();
    for (float *f = x->hidden; f < x->out; f++) {
        seed = seed * 1664525u + 1013904223u;
        *f = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
    memset(x->out, 0xff, sizeof x->out);
    for (int s = 0; s < BLOCKS * B; s++)
        x->ids[s] = T;
    for (int b = 0; b < BLOCKS; b++)
        x->experts[b] = b < 2 * E ? b / 2 : E - 1;
    for (int t = 0; t < T; t++) /* expert 2 has one block left */
        x->ids[2 * (t % E) * B + used[t % E]++] = t;
    return x;
}

static moegen_status bind_all(moegen_call *call, struct tensors *x, moegen_error **err)
{
    const int64_t rows[] = {T + 1, H}, pairs[] = {(T + 1) * E}, first[] = {E, H, 2, I};
    const int64_t second[] = {E, I, H}, slots[] = {BLOCKS * B, 1}, blocks[] = {BLOCKS};
    const struct {
        const char *name;
        void *data;
        moegen_dtype dtype;
        int rank;
        const int64_t *shape;
    } all[] = {
        {"hidden_states", x->hidden, MOEGEN_F32, 2, rows},
        {"expert_affinities_masked", x->affinity, MOEGEN_F32, 1, pairs},
        {"gate_up_proj_weight", x->gate_up, MOEGEN_F32, 4, first},
        {"down_proj_weight", x->down, MOEGEN_F32, 3, second},
        {"token_position_to_id", x->ids, MOEGEN_I32, 2, slots},
        {"block_to_expert", x->experts, MOEGEN_I32, 1, blocks},
        {"output", x->out, MOEGEN_F32, 2, rows},
    };
    moegen_status status = MOEGEN_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && !status; i++)
        status = moegen_call_bind(call, all[i].name, all[i].data, all[i].dtype, all[i].rank,
                                  all[i].shape, err);
    return status;
}

static bool says(moegen_status got, moegen_status want, moegen_error **err, const char *sentence)
{
    bool right = got == want && *err && strstr(moegen_error_text(*err), sentence);
    if (!right)
        fprintf(stderr, "status %d, expected %d and '%s':\n%s", (int)got, (int)want, sentence,
                moegen_error_text(*err));
    moegen_error_release(*err);
    *err = NULL;
    return right;
}

static void test_binding(void)
{
    moegen_engine *engine = engine_of("", NULL);
    moegen_kernel *kernel = get(engine, toy);
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    struct tensors *x = make_tensors();
    const int64_t rows[] = {T + 1, H}, wrong[] = {T, H + 1}, other[] = {T + 2, H};
    CHECK(moegen_call_create(kernel, &call, NULL) == MOEGEN_OK);
    moegen_kernel_release(kernel); /* the call keeps it */

    moegen_status status = moegen_call_run(call, &err);
    CHECK(moegen_error_count(err) == 7);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "tensor 'output' is not bound"));
    status = moegen_call_bind(call, "outputs", x->out, MOEGEN_F32, 2, rows, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "no tensor 'outputs'; it takes hidden_states"));
    status = moegen_call_bind(call, "output", x->out, MOEGEN_BF16, 2, rows, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err,
               "tensor 'output' is bf16 [10, 24], expected f32 [T+1, 24]"));
    status = moegen_call_bind(call, "output", x->out, MOEGEN_F32, 2, wrong, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "is f32 [9, 25], expected"));
    status = moegen_call_bind(call, "output", (char *)x->out + 1, MOEGEN_F32, 2, rows, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "not aligned to 4 bytes"));
    status = moegen_call_bind_const(call, "output", x->out, MOEGEN_F32, 2, rows, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "is written"));

    CHECK(bind_all(call, x, &err) == MOEGEN_OK);
    CHECK(moegen_call_run(call, &err) == MOEGEN_OK);
    CHECK(x->out[T * H] == 0 && x->out[0] == x->out[0]);
    CHECK(moegen_call_bind(call, "output", x->out, MOEGEN_F32, 2, other, &err) == MOEGEN_OK);
    CHECK(says(moegen_call_run(call, &err), MOEGEN_BAD_ARGUMENT, &err, "with T = 9"));
    CHECK(moegen_call_bind(call, "output", x->hidden, MOEGEN_F32, 2, rows, &err) == MOEGEN_OK);
    CHECK(says(moegen_call_run(call, &err), MOEGEN_BAD_ARGUMENT, &err,
               "output 'output' overlaps tensor 'hidden_states'"));
    CHECK(bind_all(call, x, &err) == MOEGEN_OK);
    CHECK(moegen_call_set_size(call, "T", 8, &err) == MOEGEN_OK);
    CHECK(says(moegen_call_run(call, &err), MOEGEN_BAD_ARGUMENT, &err, "with T = 8"));
    CHECK(says(moegen_call_set_size(call, "Q", 8, &err), MOEGEN_BAD_ARGUMENT, &err, "size 'Q'"));
    CHECK(moegen_call_set_size(call, "T", T, &err) == MOEGEN_OK);
    CHECK(moegen_call_run(call, &err) == MOEGEN_OK);

    float before[(T + 1) * H];
    memcpy(before, x->out, sizeof before);
    x->ids[0] = 1000000;
    CHECK(says(moegen_call_run(call, &err), MOEGEN_BAD_DATA, &err, "token_position_to_id"));
    CHECK(memcmp(before, x->out, sizeof before) == 0);
    x->ids[0] = 0;
    CHECK(moegen_call_run(call, &err) == MOEGEN_OK);
    CHECK(memcmp(before, x->out, sizeof before) == 0);
    moegen_call_release(call);
    moegen_engine_release(engine);
    free(x);
}

static void test_workspace(void)
{
    moegen_engine *engine = engine_of("", NULL);
    moegen_kernel *kernel = get(engine, toy);
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    struct tensors *x = make_tensors();
    size_t bytes = 0;
    CHECK(moegen_call_create(kernel, &call, NULL) == MOEGEN_OK);
    CHECK(bind_all(call, x, &err) == MOEGEN_OK);
    CHECK(moegen_call_set_threads(call, 3, &err) == MOEGEN_OK);
    CHECK(moegen_call_workspace_bytes(call, &bytes, &err) == MOEGEN_OK);
    char *own = aligned_alloc(64, (bytes + 127) / 64 * 64);
    CHECK(says(moegen_call_set_workspace(call, own + 8, bytes, &err), MOEGEN_BAD_ARGUMENT, &err,
               "aligned to 64"));
    if (bytes) {
        CHECK(moegen_call_set_workspace(call, own, bytes - 1, &err) == MOEGEN_OK);
        CHECK(says(moegen_call_run(call, &err), MOEGEN_BAD_ARGUMENT, &err, "the kernel needs"));
    }
    CHECK(moegen_call_set_workspace(call, own, bytes, &err) == MOEGEN_OK);
    memset(own, 0xff, bytes + 1);
    CHECK(moegen_call_run(call, &err) == MOEGEN_OK);
    CHECK(own[bytes] == (char)0xff);
    CHECK(says(moegen_call_set_threads(call, -1, &err), MOEGEN_BAD_ARGUMENT, &err, "not in"));
    moegen_call_release(call);
    moegen_kernel_release(kernel);
    moegen_engine_release(engine);
    free(own);
    free(x);
}

/* ---- threads and time ---- */

static size_t workspace_of(moegen_call *call, int threads)
{
    size_t bytes = 0;
    CHECK(moegen_call_set_threads(call, threads, NULL) == MOEGEN_OK);
    CHECK(moegen_call_workspace_bytes(call, &bytes, NULL) == MOEGEN_OK);
    return bytes;
}

/* Who asks for a number of threads first: the call, the engine, the spec. Each rank needs some
 * workspace, so its size tells how many there are. */
static void test_team_size(void)
{
    unsetenv("MOEGEN_THREADS");
    static const char *const on[] = {"hidden", "block", "intermediate"};
    struct tensors *x = make_tensors();
    for (int i = 0; i < 6; i++) {
        moegen_engine *engine = NULL;
        moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = "", .threads = i % 2 * 5};
        int expected = i % 2 ? 5 : 3;
        char text[512];
        snprintf(text, sizeof text, "%sshard: {on: %s, cores: 3}\n", toy, on[i / 2]);
        CHECK(moegen_engine_create(&o, &engine, NULL) == MOEGEN_OK);
        moegen_kernel *kernel = get(engine, text);
        moegen_call *call = NULL;
        moegen_kernel_facts facts = {.struct_size = sizeof facts};
        CHECK(moegen_kernel_info(kernel, &facts) == MOEGEN_OK && facts.threads == expected);
        CHECK(moegen_call_create(kernel, &call, NULL) == MOEGEN_OK);
        CHECK(bind_all(call, x, NULL) == MOEGEN_OK);
        CHECK(workspace_of(call, 0) == workspace_of(call, expected));
        CHECK(workspace_of(call, 0) < workspace_of(call, 6));
        CHECK(workspace_of(call, 0) > workspace_of(call, 2));
        CHECK(moegen_call_set_threads(call, 0, NULL) == MOEGEN_OK);
        CHECK(moegen_call_run(call, NULL) == MOEGEN_OK);
        moegen_call_release(call);
        moegen_kernel_release(kernel);
        moegen_engine_release(engine);
    }
    free(x);
}

/* A host's threads: `give` of them are there, and `lose` of the ranks are not called. */
struct host {
    int give, lose, runs;
    void (*rank)(void *at, int number);
    void *at;
    struct place {
        struct host *host;
        int number;
        pthread_t thread;
    } place[8];
};

static void *run_place(void *at)
{
    struct place *place = at;
    place->host->rank(place->host->at, place->number);
    return NULL;
}

static int run_on_host(void *at, int ranks, void (*rank)(void *at, int number), void *rank_at)
{
    struct host *host = at;
    host->runs++;
    if (host->give < ranks)
        return 1;
    host->rank = rank;
    host->at = rank_at;
    for (int r = 0; r < ranks - host->lose; r++) {
        host->place[r].host = host;
        host->place[r].number = r;
        CHECK(pthread_create(&host->place[r].thread, NULL, run_place, &host->place[r]) == 0);
    }
    for (int r = 0; r < ranks - host->lose; r++)
        pthread_join(host->place[r].thread, NULL);
    return 0;
}

static void test_runner(void)
{
    moegen_engine *engine = engine_of("", NULL);
    moegen_kernel *kernel = get(engine, toy);
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    struct tensors *x = make_tensors();
    struct host host = {.give = 4};
    float want[(T + 1) * H];
    CHECK(moegen_call_create(kernel, &call, NULL) == MOEGEN_OK);
    CHECK(says(moegen_call_set_runner(NULL, run_on_host, &host, &err), MOEGEN_BAD_ARGUMENT, &err,
               "NULL"));
    CHECK(moegen_call_set_runner(call, run_on_host, &host, &err) == MOEGEN_OK);
    CHECK(moegen_call_set_threads(call, 4, &err) == MOEGEN_OK);
    CHECK(says(moegen_call_run(call, &err), MOEGEN_BAD_ARGUMENT, &err, "is not bound"));
    CHECK(host.runs == 0 && bind_all(call, x, &err) == MOEGEN_OK);
    for (host.give = 4; host.give > 2; host.give--) { /* enough for all ranks, and too few */
        for (int i = 0; i < 20; i++) {
            memset(x->out, 0xff, sizeof x->out);
            CHECK(moegen_call_run(call, &err) == MOEGEN_OK);
            if (host.runs == 1)
                memcpy(want, x->out, sizeof want);
            CHECK(memcmp(want, x->out, sizeof want) == 0);
        }
    }
    CHECK(host.runs == 40);
    x->ids[0] = 1000000;
    host.give = 4;
    CHECK(says(moegen_call_run(call, &err), MOEGEN_BAD_DATA, &err, "token_position_to_id"));
    x->ids[0] = 0;
    host.lose = 4;
    CHECK(says(moegen_call_run(call, &err), MOEGEN_BAD_ARGUMENT, &err, "all of 4 ranks"));
    CHECK(host.runs == 42 && moegen_call_set_threads(call, 1, &err) == MOEGEN_OK);
    CHECK(moegen_call_run(call, &err) == MOEGEN_OK); /* one rank needs no other threads */
    CHECK(moegen_call_set_runner(call, NULL, NULL, &err) == MOEGEN_OK);
    CHECK(moegen_call_set_threads(call, 3, &err) == MOEGEN_OK);
    memset(x->out, 0xff, sizeof x->out);
    CHECK(moegen_call_run(call, &err) == MOEGEN_OK);
    CHECK(host.runs == 42 && memcmp(want, x->out, sizeof want) == 0);
    moegen_call_release(call);
    moegen_kernel_release(kernel);
    moegen_engine_release(engine);
    free(x);
}

static moegen_engine *shared;

static void *get_and_run(void *result)
{
    moegen_kernel *kernel = get(shared, toy);
    moegen_call *call = NULL;
    struct tensors *x = make_tensors();
    CHECK(moegen_call_create(kernel, &call, NULL) == MOEGEN_OK);
    CHECK(bind_all(call, x, NULL) == MOEGEN_OK);
    for (int i = 0; i < 20; i++)
        CHECK(moegen_call_run(call, NULL) == MOEGEN_OK);
    memcpy(result, x->out, sizeof x->out);
    moegen_call_release(call);
    moegen_kernel_release(kernel);
    free(x);
    return NULL;
}

static void test_concurrency(void)
{
    enum { THREADS = 6 };
    static float out[THREADS][(T + 1) * H];
    pthread_t thread[THREADS];
    shared = engine_of("", NULL);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, get_and_run, out[i]) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 1; i < THREADS; i++)
        CHECK(memcmp(out[0], out[i], sizeof out[0]) == 0);
    moegen_engine_release(shared);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Overhead: a bound call of no work at all against the bare entry. Times are told, not judged. */
static void test_overhead(void)
{
    enum { TIMES = 20000 };
    moegen_engine *engine = engine_of("", NULL);
    moegen_kernel *kernel = get(engine, toy);
    moegen_call *call = NULL;
    struct tensors *x = make_tensors();
    const int64_t none[] = {0}, rows[] = {1, H}, pairs[] = {E};
    CHECK(moegen_call_create(kernel, &call, NULL) == MOEGEN_OK);
    CHECK(bind_all(call, x, NULL) == MOEGEN_OK);
    moegen_call_bind(call, "hidden_states", x->hidden, MOEGEN_F32, 2, rows, NULL);
    moegen_call_bind(call, "expert_affinities_masked", x->affinity, MOEGEN_F32, 1, pairs, NULL);
    moegen_call_bind(call, "token_position_to_id", x->ids, MOEGEN_I32, 1, none, NULL);
    moegen_call_bind(call, "block_to_expert", x->experts, MOEGEN_I32, 1, none, NULL);
    moegen_call_bind(call, "output", x->out, MOEGEN_F32, 2, rows, NULL);
    moegen_call_set_threads(call, 1, NULL);
    double start = now();
    for (int i = 0; i < TIMES; i++)
        CHECK(moegen_call_run(call, NULL) == MOEGEN_OK);
    double run = (now() - start) / TIMES;
    start = now();
    for (int i = 0; i < TIMES; i++)
        moegen_kernel_release(get(engine, toy));
    printf("a call without work: %.0f ns; a kernel from memory: %.0f ns\n", 1e9 * run,
           1e9 * (now() - start) / TIMES);
    moegen_call_release(call);
    moegen_kernel_release(kernel);
    moegen_engine_release(engine);
    free(x);
}

int main(void)
{
    test_binding();
    test_workspace();
    test_team_size();
    test_runner();
    test_concurrency();
    test_overhead();
    return failures != 0;
}
