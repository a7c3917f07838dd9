/* SPDX-License-Identifier: Apache-2.0 */
/* pack_test.c - moegen_pack: the same bits as from transposed weights for every dtype, target,
 * order of gate and up and odd sizes, however many threads pack; and what is refused. */
#include "api.h"
#include "moegen_runtime.h"

enum { ROWS = 61, SLOTS = 128, HIDDEN = 40, INNER = 53, EXPERTS = 4, BLOCK = 8 };
enum { FIRST = EXPERTS * 2 * INNER * HIDDEN, SECOND = EXPERTS * INNER * HIDDEN };

static float values[FIRST]; /* and of everything else the first of them */
static float output[2][ROWS * HIDDEN];
static int32_t ids[SLOTS], experts[SLOTS / BLOCK];

static void fill(void)
{
    unsigned seed = 11;
    for (int i = 0; i < FIRST; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = ((float)(seed >> 8) / 8388608.0f - 1.0f) / 4;
    }
    for (int b = 0; b < SLOTS / BLOCK; b++)
        experts[b] = b < 9 ? 1 : b * EXPERTS / (SLOTS / BLOCK);
}

/* So many tokens of each expert's, which is few or many. */
static void route(int tokens)
{
    for (int i = 0; i < SLOTS; i++)
        ids[i] = i < tokens ? i : ROWS - 1;
}

/* The same elements in the other layout, [n][k] of each expert. */
static void turn(const void *from, void *to, int bytes, int64_t k, int64_t n)
{
    for (int64_t e = 0; e < EXPERTS; e++)
        for (int64_t i = 0; i < k; i++)
            for (int64_t c = 0; c < n; c++)
                memcpy((char *)to + (e * k * n + c * k + i) * bytes,
                       (const char *)from + (e * k * n + i * n + c) * bytes, (size_t)bytes);
}

struct weights {
    moegen_dtype dtype;
    void *plain[2], *turned[2];
};

static void *copy_of(moegen_dtype dtype, int count)
{
    size_t bytes = (size_t)count * moegen_dtype_size(dtype);
    void *to = malloc(bytes);
    moegen_rt_convert(MOEGEN_RT_F32, values, (moegen_rt_dtype)dtype, to, (size_t)count);
    return to;
}

static void bind_rest(moegen_call *call, const void *rows, moegen_dtype dtype, float *out)
{
    const int64_t hidden[] = {ROWS, HIDDEN}, pairs[] = {ROWS * EXPERTS}, slots[] = {SLOTS},
                  blocks[] = {SLOTS / BLOCK};
    CHECK(!moegen_call_bind_const(call, "hidden_states", rows, dtype, 2, hidden, NULL));
    CHECK(!moegen_call_bind_const(call, "expert_affinities_masked", values, MOEGEN_F32, 1, pairs,
                                  NULL));
    CHECK(!moegen_call_bind_const(call, "token_position_to_id", ids, MOEGEN_I32, 1, slots, NULL));
    CHECK(!moegen_call_bind_const(call, "block_to_expert", experts, MOEGEN_I32, 1, blocks, NULL));
    memset(out, 0xff, sizeof output[0]);
    CHECK(!moegen_call_bind(call, "output", out, MOEGEN_F32, 2, hidden, NULL));
}

static moegen_kernel *kernel_of(moegen_engine *engine, const char *dtype, const char *target,
                                const char *layout, const char *order)
{
    char text[512];
    snprintf(text, sizeof text,
             "{kernel: moe_forward, name: k, E: %d, top_k: 2, block_size: %d, H: %d, I_TP: %d, "
             "dtype: %s, target: %s, spelling: scalar, output_dtype: f32, affinity_dtype: f32, "
             "weights: {layout: %s, gate_up_order: %s}}",
             EXPERTS, BLOCK, HIDDEN, INNER, dtype, target, layout, order);
    return get(engine, text);
}

static const char *const tensor[] = {"gate_up_proj_weight", "down_proj_weight"};
static const int64_t turned_shape[2][3] = {{EXPERTS, 2 * INNER, HIDDEN}, {EXPERTS, HIDDEN, INNER}};
static const int64_t plain_shape[2][3] = {{EXPERTS, HIDDEN, 2 * INNER}, {EXPERTS, INNER, HIDDEN}};

static moegen_tensor source(int i, void *data, moegen_dtype dtype, const int64_t *shape)
{
    moegen_tensor t = {.name = tensor[i], .data = data, .dtype = dtype, .rank = 3};
    memcpy(t.shape, shape, 3 * sizeof *shape);
    return t;
}

/* What the tensor takes, packed from either layout. The caller frees it. */
static void *pack(const moegen_kernel *kernel, const moegen_call *call, const struct weights *w,
                  int i, int64_t *shape)
{
    int rank;
    CHECK(!moegen_call_shape(call, tensor[i], &rank, shape, NULL) && rank == 2);
    size_t bytes = (size_t)(shape[0] * shape[1]) * moegen_dtype_size(w->dtype);
    void *one = malloc(bytes), *two = malloc(bytes);
    memset(one, 1, bytes);
    memset(two, 2, bytes);
    moegen_tensor plain = source(i, w->plain[i], w->dtype, plain_shape[i]);
    moegen_tensor turned = source(i, w->turned[i], w->dtype, turned_shape[i]);
    CHECK(!moegen_pack(kernel, "plain", &plain, one, bytes, 1, NULL));
    CHECK(!moegen_pack(kernel, "transposed", &turned, two, bytes, 3, NULL));
    CHECK(memcmp(one, two, bytes) == 0);
    free(one);
    return two;
}

static void test_same(moegen_engine *engine, const char *dtype, const char *target,
                      const char *order, const struct weights *w)
{
    moegen_kernel *kernel[2] = {kernel_of(engine, dtype, target, "transposed", order),
                                kernel_of(engine, dtype, target, "packed", order)};
    moegen_call *call[2];
    void *packed[2];
    for (int k = 0; k < 2; k++) {
        CHECK(!moegen_call_create(kernel[k], &call[k], NULL));
        bind_rest(call[k], w->plain[0], w->dtype, output[k]);
    }
    for (int i = 0; i < 2; i++) {
        int64_t shape[8];
        packed[i] = pack(kernel[1], call[1], w, i, shape);
        CHECK(!moegen_call_bind_const(call[0], tensor[i], w->turned[i], w->dtype, 3,
                                      turned_shape[i], NULL));
        CHECK(!moegen_call_bind_const(call[1], tensor[i], packed[i], w->dtype, 2, shape, NULL));
    }
    moegen_kernel_release(kernel[1]); /* the call keeps it */
    for (int tokens = 1; tokens < ROWS; tokens = tokens * 3 + 1) {
        route(tokens);
        for (int k = 0; k < 2; k++) {
            CHECK(!moegen_call_set_threads(call[k], 1 + k, NULL));
            CHECK(!moegen_call_run(call[k], NULL));
        }
        bool same = memcmp(output[0], output[1], sizeof output[0]) == 0;
        if (!same)
            fprintf(stderr, "%s %s %s, %d tokens: other bits than transposed\n", dtype, target,
                    order, tokens);
        CHECK(same && output[0][0] != 0);
    }
    moegen_error *err = NULL; /* of another plan */
    ((char *)packed[1])[40] ^= 1;
    CHECK(moegen_call_run(call[1], &err) == MOEGEN_BAD_DATA &&
          strstr(moegen_error_text(err), "moegen pack"));
    moegen_error_release(err);
    for (int k = 0; k < 2; k++) {
        moegen_call_release(call[k]);
        free(packed[k]);
    }
    moegen_kernel_release(kernel[0]);
}

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

static void test_refused(moegen_engine *engine, const struct weights *w)
{
    moegen_kernel *kernel = kernel_of(engine, "f32", "scalar", "packed", "split"),
                  *other = kernel_of(engine, "f32", "scalar", "transposed", "split");
    moegen_tensor t = source(1, w->turned[1], MOEGEN_F32, turned_shape[1]), bad = t;
    moegen_error *err = NULL;
    static char room[1 << 20];
    refused(moegen_pack(NULL, "plain", &t, room, 1, 1, &err), &err, "NULL");
    refused(moegen_pack(kernel, "plain", NULL, room, 1, 1, &err), &err, "NULL");
    refused(moegen_pack(kernel, "plain", &t, NULL, 1, 1, &err), &err, "NULL");
    refused(moegen_pack(kernel, "nki", &t, room, 1, 1, &err), &err, "not one of plain, transposed");
    refused(moegen_pack(kernel, "plain", &t, room, 1, 1, &err), &err, "expected f32 [4, 53, 40]");
    refused(moegen_pack(kernel, "transposed", &t, room, 1, 1, &err), &err, "bytes, not 1");
    refused(moegen_pack(other, "transposed", &t, room, 1, 1, &err), &err, "takes no packed");
    bad.name = "nothing";
    refused(moegen_pack(kernel, "plain", &bad, room, 1, 1, &err), &err, "no tensor 'nothing'");
    bad.name = "hidden_states";
    refused(moegen_pack(kernel, "plain", &bad, room, 1, 1, &err), &err, "takes no packed");
    bad = t;
    bad.dtype = MOEGEN_BF16;
    refused(moegen_pack(kernel, "transposed", &bad, room, 1, 1, &err), &err, "expected f32");
    moegen_kernel_release(kernel);
    moegen_kernel_release(other);
}

int main(void)
{
    static const moegen_dtype dtypes[] = {MOEGEN_F32, MOEGEN_BF16, MOEGEN_F16};
    static const char *const targets[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};
    moegen_engine *engine = engine_of("", NULL);
    fill();
    for (int d = 0; d < 3; d++) {
        struct weights w = {.dtype = dtypes[d]};
        for (int i = 0; i < 2; i++) {
            int count = i ? SECOND : FIRST;
            w.plain[i] = copy_of(w.dtype, count);
            w.turned[i] = malloc((size_t)count * moegen_dtype_size(w.dtype));
            turn(w.plain[i], w.turned[i], (int)moegen_dtype_size(w.dtype), i ? INNER : HIDDEN,
                 i ? HIDDEN : 2 * INNER);
        }
        for (int t = 0; t < 5; t++) {
            test_same(engine, moegen_dtype_name(w.dtype), targets[t], "split", &w);
            test_same(engine, moegen_dtype_name(w.dtype), targets[t], "interleaved", &w);
        }
        if (d == 0)
            test_refused(engine, &w);
        for (int i = 0; i < 2; i++) {
            free(w.plain[i]);
            free(w.turned[i]);
        }
    }
    moegen_engine_release(engine);
    return failures != 0;
}
