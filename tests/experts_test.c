/* SPDX-License-Identifier: Apache-2.0 */
/* experts_test.c - each expert's matrices at addresses of their own: what binding them refuses, and
 * that nothing else comes of it than of one tensor, even if experts share matrices. */
#include "api.h"

/* The toy with its weights as lists; gate and up in tensors of their own. */
static const char listed[] = "kernel: moe_forward\nname: toy\nH: 24\nI_TP: 20\nE: 3\ntop_k: 1\n"
                             "block_size: 4\ndtype: f32\n"
                             "weights: {experts: separate, gate_up: separate}\n";
enum { EACH = H * I, MANY = 40 }; /* elements of a matrix; blocks of a long call */

static float gate[E][EACH], up[E][EACH], down[E][EACH];
static const int64_t first[] = {H, I}, second[] = {I, H};

static float hidden[(MANY * B + 1) * H], affinity[(MANY * B + 1) * E], output[(MANY * B + 1) * H];
static int32_t ids[MANY * B], experts[MANY];

static void fill(void)
{
    unsigned seed = 11;
    float *all[] = {gate[0], up[0], down[0], hidden, affinity};
    size_t count[] = {E * EACH, E * EACH, E * EACH, sizeof hidden / 4, sizeof affinity / 4};
    for (int k = 0; k < 5; k++)
        for (size_t i = 0; i < count[k]; i++) {
            seed = seed * 1664525u + 1013904223u;
            all[k][i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
        }
}

static void bind_rest(moegen_call *call, int blocks)
{
    const int64_t tokens = blocks * B;
    const int64_t rows[] = {tokens + 1, H}, pairs[] = {(tokens + 1) * E}, slots[] = {tokens};
    const int64_t all[] = {blocks};
    for (int64_t i = 0; i < tokens; i++)
        ids[i] = (int32_t)i;
    for (int b = 0; b < blocks; b++)
        experts[b] = b * E / blocks;
    memset(output, 0xff, sizeof output);
    CHECK(!moegen_call_bind_const(call, "hidden_states", hidden, MOEGEN_F32, 2, rows, NULL));
    CHECK(!moegen_call_bind_const(call, "expert_affinities_masked", affinity, MOEGEN_F32, 1, pairs,
                                  NULL));
    CHECK(!moegen_call_bind_const(call, "token_position_to_id", ids, MOEGEN_I32, 1, slots, NULL));
    CHECK(!moegen_call_bind_const(call, "block_to_expert", experts, MOEGEN_I32, 1, all, NULL));
    CHECK(!moegen_call_bind(call, "output", output, MOEGEN_F32, 2, rows, NULL));
}

static moegen_call *call_of(moegen_engine *engine, const char *text)
{
    moegen_kernel *kernel = get(engine, text);
    moegen_call *call = NULL;
    CHECK(!moegen_call_create(kernel, &call, NULL));
    moegen_kernel_release(kernel);
    return call;
}

static void bind_lists(moegen_call *call, const void *const *g, const void *const *u,
                       const void *const *d)
{
    CHECK(!moegen_call_bind_experts(call, "gate_proj_weight", g, E, MOEGEN_F32, 2, first, NULL));
    CHECK(!moegen_call_bind_experts(call, "up_proj_weight", u, E, MOEGEN_F32, 2, first, NULL));
    CHECK(!moegen_call_bind_experts(call, "down_proj_weight", d, E, MOEGEN_F32, 2, second, NULL));
}

/* The matrices of experts e as one tensor each. */
static void bind_joined(moegen_call *call, const int *g, const int *u, const int *d)
{
    static float copy[3][E][EACH];
    const int64_t one[] = {E, H, I}, two[] = {E, I, H};
    for (int e = 0; e < E; e++) {
        memcpy(copy[0][e], gate[g[e]], sizeof *copy[0]);
        memcpy(copy[1][e], up[u[e]], sizeof *copy[1]);
        memcpy(copy[2][e], down[d[e]], sizeof *copy[2]);
    }
    CHECK(!moegen_call_bind_const(call, "gate_proj_weight", copy[0], MOEGEN_F32, 3, one, NULL));
    CHECK(!moegen_call_bind_const(call, "up_proj_weight", copy[1], MOEGEN_F32, 3, one, NULL));
    CHECK(!moegen_call_bind_const(call, "down_proj_weight", copy[2], MOEGEN_F32, 3, two, NULL));
}

/* Lists against tensors, which a kernel of lists takes as well as another one. */
static void test_same(moegen_engine *engine, int blocks)
{
    static const int orders[][3][E] = {
        {{0, 1, 2}, {0, 1, 2}, {0, 1, 2}},
        {{2, 0, 1}, {1, 2, 0}, {2, 1, 0}},
        {{0, 0, 0}, {0, 1, 2}, {2, 2, 2}}, /* shared */
        {{1, 1, 2}, {2, 0, 0}, {0, 0, 1}},
    };
    static float want[2][sizeof output / sizeof *output];
    char joined[sizeof listed];
    snprintf(joined, sizeof joined, "%.*s{gate_up: separate}\n",
             (int)(strchr(strstr(listed, "weights"), '{') - listed), listed);
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        const void *list[3][E];
        for (int e = 0; e < E; e++) {
            list[0][e] = gate[orders[o][0][e]];
            list[1][e] = up[orders[o][1][e]];
            list[2][e] = down[orders[o][2][e]];
        }
        for (int k = 0; k < 3; k++) {
            moegen_call *call = call_of(engine, k ? listed : joined);
            bind_rest(call, blocks);
            if (k < 2)
                bind_joined(call, orders[o][0], orders[o][1], orders[o][2]);
            else
                bind_lists(call, list[0], list[1], list[2]);
            memset(list, 0, k == 2 ? sizeof list : 0); /* the list need not stay */
            CHECK(!moegen_call_run(call, NULL));
            CHECK(!moegen_call_run(call, NULL));
            if (k < 2)
                memcpy(want[k], output, sizeof output);
            CHECK(memcmp(want[0], output, sizeof output) == 0 && output[0] != 0);
            moegen_call_release(call);
        }
    }
}

/* ---- what is refused ---- */

static void refused(moegen_status got, moegen_error **err, const char *sentence)
{
    bool right = got == MOEGEN_BAD_ARGUMENT && *err && strstr(moegen_error_text(*err), sentence);
    if (!right)
        fprintf(stderr, "status %d, expected '%s':\n%s", (int)got, sentence,
                moegen_error_text(*err));
    CHECK(right);
    moegen_error_release(*err);
    *err = NULL;
}

static void test_refused(moegen_engine *engine)
{
    moegen_call *call = call_of(engine, listed), *plain = call_of(engine, toy);
    moegen_error *err = NULL;
    const void *list[] = {down[0], down[1], down[2]}, *holes[] = {down[0], NULL, down[2]};
    const void *odd[] = {down[0], down[1], (char *)down[2] + 2};
    const void *inside[] = {down[0], output + 5, down[2]};
    const char *name = "down_proj_weight";
#define BIND(c, name, list, count, dtype, rank, shape)                                             \
    moegen_call_bind_experts(c, name, (const void *const *)(list), count, dtype, rank, shape, &err)
    refused(BIND(plain, name, list, E, MOEGEN_F32, 2, second), &err, "as one tensor");
    refused(BIND(call, "output", list, E, MOEGEN_F32, 2, second), &err, "as one tensor");
    refused(BIND(call, "nothing", list, E, MOEGEN_F32, 2, second), &err, "no tensor 'nothing'");
    refused(BIND(NULL, name, list, E, MOEGEN_F32, 2, second), &err, "needed");
    refused(BIND(call, name, list, E, MOEGEN_F32, 8, second), &err, "rank of 0..7");
    refused(BIND(call, name, list, E, MOEGEN_F32, 2, NULL), &err, "needed");
    refused(BIND(call, name, list, 2, MOEGEN_F32, 2, second), &err,
            "is of 3 experts, but 2 matrices");
    refused(BIND(call, name, list, E, MOEGEN_BF16, 2, second), &err, "expected f32 [3, 20, 24]");
    refused(BIND(call, name, list, E, MOEGEN_F32, 2, first), &err, "expected f32 [3, 20, 24]");
    refused(BIND(call, name, holes, E, MOEGEN_F32, 2, second), &err, "expert 1 is NULL");
    refused(BIND(call, name, odd, E, MOEGEN_F32, 2, second), &err,
            "expert 2 is not aligned to 4 bytes");
    bind_rest(call, 4);
    bind_lists(call, list, list, list);
    CHECK(!moegen_call_run(call, &err));
    CHECK(!BIND(call, name, NULL, 0, MOEGEN_F32, 0, NULL)); /* unbinds */
    refused(moegen_call_run(call, &err), &err, "tensor 'down_proj_weight' is not bound");
    CHECK(!BIND(call, name, inside, E, MOEGEN_F32, 2, second));
    refused(moegen_call_run(call, &err), &err, "'output' overlaps tensor 'down_proj_weight'");
    CHECK(!BIND(call, name, list, E, MOEGEN_F32, 2, second));
    CHECK(!moegen_call_run(call, &err));
    moegen_call_release(call);
    moegen_call_release(plain);
}

int main(void)
{
    moegen_engine *engine = engine_of("", NULL);
    fill();
    test_same(engine, 4);
    test_same(engine, MANY); /* rows enough that weights are packed */
    test_refused(engine);
    moegen_engine_release(engine);
    return failures != 0;
}
