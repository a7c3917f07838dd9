/* SPDX-License-Identifier: Apache-2.0 */
/* pack_test.c - moegen_pack: the same bits as from the same rows unpacked for every family, dtype,
 * target, order of gate and up and odd sizes, however many threads pack; what is refused. */
#include "api.h"
#include "moegen_runtime.h"
#include "packed.h"

enum { ROWS = 61, SLOTS = 128, HIDDEN = 40, INNER = 53, EXPERTS = 4, BLOCK = 8 };
enum { WHOLE = INNER + 1 }; /* of a family whose pairs must not join a gate and an up */
enum { FIRST = EXPERTS * 2 * WHOLE * HIDDEN };

static float values[FIRST]; /* and of everything else the first of them */
static float output[2][ROWS * HIDDEN], affinities[ROWS * EXPERTS];
static int32_t ids[SLOTS], experts[SLOTS / BLOCK], sizes[EXPERTS];

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
    int64_t plain_shape[2][3], turned_shape[2][3];
};

static void *copy_of(moegen_dtype dtype, int count)
{
    size_t bytes = (size_t)count * moegen_dtype_size(dtype);
    void *to = malloc(bytes);
    moegen_rt_convert(MOEGEN_RT_F32, values, (moegen_rt_dtype)dtype, to, (size_t)count);
    return to;
}

static void bind_shaped(moegen_call *call, const char *name, const void *data, moegen_dtype dtype)
{
    int64_t shape[8];
    int rank;
    CHECK(!moegen_call_shape(call, name, &rank, shape, NULL));
    CHECK(!moegen_call_bind_const(call, name, data, dtype, rank, shape, NULL));
}

static void bind(moegen_call *call, const char *name, const void *data, moegen_dtype dtype,
                 int64_t rows, int64_t columns)
{
    const int64_t shape[] = {rows, columns};
    CHECK(!moegen_call_bind_const(call, name, data, dtype, columns ? 2 : 1, shape, NULL));
}

/* What each family takes beside weights; `tokens` are few or many. */
static void bind_blocks(moegen_call *call, const void *rows, moegen_dtype dtype, int tokens)
{
    (void)tokens; /* `ids` says */
    bind(call, "hidden_states", rows, dtype, ROWS, HIDDEN);
    bind(call, "expert_affinities_masked", values, MOEGEN_F32, ROWS * EXPERTS, 0);
    bind(call, "token_position_to_id", ids, MOEGEN_I32, SLOTS, 0);
    bind(call, "block_to_expert", experts, MOEGEN_I32, SLOTS / BLOCK, 0);
}

static void bind_back(moegen_call *call, const void *rows, moegen_dtype dtype, int tokens)
{
    const int64_t shape[] = {ROWS * EXPERTS, 1};
    bind_blocks(call, rows, dtype, tokens);
    bind(call, "output_hidden_states_grad", rows, dtype, ROWS, HIDDEN);
    bind_shaped(call, "gate_up_proj_act_checkpoint_T", rows, dtype);
    bind_shaped(call, "down_proj_act_checkpoint", rows, dtype);
    CHECK(!moegen_call_bind(call, "expert_affinities_masked_grad", affinities, MOEGEN_F32, 2, shape,
                            NULL));
}

static void bind_layer(moegen_call *call, const void *rows, moegen_dtype dtype, int tokens)
{
    bind(call, "hidden_states", rows, dtype, tokens, HIDDEN);
    bind(call, "router_weight", rows, dtype, HIDDEN, EXPERTS);
}

static void bind_sorted(moegen_call *call, const void *rows, moegen_dtype dtype, int tokens)
{
    for (int e = 0; e < EXPERTS; e++)
        sizes[e] = e == 1 ? tokens - tokens / 3 : e == 3 ? tokens / 3 : 0;
    bind(call, "m_sizes", sizes, MOEGEN_I32, EXPERTS, 0);
    bind(call, "X", rows, dtype, tokens, INNER);
}

static void bind_tokens(moegen_call *call, const void *rows, moegen_dtype dtype, int tokens)
{
    bind(call, "hidden_states", rows, dtype, tokens, HIDDEN);
}

#define EXPERT_KEYS "E: 4, top_k: 2, block_size: 8, "
#define BACK_KEYS   "affinity_dtype: f32, hidden_grad_dtype: f32, weight_grads: none, "
static const struct family {
    const char *name, *keys, *hidden, *inner_key;
    const char *rows; /* the layout in which its products contract rows */
    bool single;      /* one matrix */
    bool sole;        /* in no other layout */
    bool routed;      /* its output has a row for each of ROWS */
    int inner;
    const char *tensor[2], *output; /* tensors: of gate and up, of down, or NULL */
    void (*bind)(moegen_call *call, const void *rows, moegen_dtype dtype, int tokens);
} families[] = {
    /* clang-format off */
    {"moe_forward",  EXPERT_KEYS "affinity_dtype: f32, ", "H", "I_TP", "transposed", false, false, true,  INNER,
     {"gate_up_proj_weight", "down_proj_weight"}, "output", bind_blocks},
    {"moe_backward", EXPERT_KEYS BACK_KEYS,               "H", "I_TP", "plain",      false, false, true,  WHOLE,
     {"gate_up_proj_weight", "down_proj_weight"}, "hidden_states_grad", bind_back},
    {"moe_layer",    EXPERT_KEYS,                         "H", "I_TP", "transposed", false, false, false, INNER,
     {"gate_up_proj_weight", "down_proj_weight"}, "output", bind_layer},
    {"grouped_gemm", "op: forward, E: 4, ",               "N", "K",    "plain",      false, true,  false, INNER,
     {NULL, "W"}, "Y", bind_sorted},
    {"mlp_forward",  "",                                  "H", "I_TP", "plain",      true,  true,  false, INNER,
     {"gate_up_weights", "down_proj_weight"}, "output", bind_tokens},
    /* clang-format on */
};
enum { FAMILIES = sizeof families / sizeof *families };

static moegen_kernel *kernel_of(moegen_engine *engine, const struct family *f, const char *dtype,
                                const char *target, const char *layout, const char *order)
{
    char text[512];
    snprintf(text, sizeof text,
             "{kernel: %s, name: k, %s%s: %d, %s: %d, dtype: %s, target: %s, spelling: scalar, "
             "output_dtype: f32, weights: {layout: %s, gate_up_order: %s}}",
             f->name, f->keys, f->hidden, HIDDEN, f->inner_key, f->inner, dtype, target, layout,
             order);
    return get(engine, text);
}

static void open_weights(struct weights *w, moegen_dtype dtype, int64_t inner)
{
    *w = (struct weights){.dtype = dtype};
    for (int i = 0; i < 2; i++) {
        int64_t k = i ? inner : HIDDEN, n = i ? HIDDEN : 2 * inner;
        w->plain[i] = copy_of(dtype, (int)(EXPERTS * k * n));
        w->turned[i] = malloc((size_t)(EXPERTS * k * n) * moegen_dtype_size(dtype));
        turn(w->plain[i], w->turned[i], (int)moegen_dtype_size(dtype), k, n);
        memcpy(w->plain_shape[i], (int64_t[]){EXPERTS, k, n}, sizeof w->plain_shape[i]);
        memcpy(w->turned_shape[i], (int64_t[]){EXPERTS, n, k}, sizeof w->turned_shape[i]);
    }
}

static void close_weights(struct weights *w)
{
    for (int i = 0; i < 2; i++) {
        free(w->plain[i]);
        free(w->turned[i]);
    }
}

static moegen_tensor source(const struct family *f, int i, void *data, moegen_dtype dtype,
                            const int64_t *shape)
{
    moegen_tensor t = {.name = f->tensor[i], .data = data, .dtype = dtype, .rank = 3 - f->single};
    memcpy(t.shape, shape + f->single, (size_t)t.rank * sizeof *shape);
    return t;
}

/* What the tensor takes, packed from either layout. The caller frees it. */
static void *pack(const struct family *f, const moegen_kernel *kernel, const moegen_call *call,
                  const struct weights *w, int i, int *rank, int64_t *shape)
{
    CHECK(!moegen_call_shape(call, f->tensor[i], rank, shape, NULL) && *rank == 2 - f->single);
    size_t bytes = (size_t)(shape[0] * (*rank > 1 ? shape[1] : 1)) * moegen_dtype_size(w->dtype);
    void *one = malloc(bytes), *two = malloc(bytes);
    memset(one, 1, bytes);
    memset(two, 2, bytes);
    moegen_tensor plain = source(f, i, w->plain[i], w->dtype, w->plain_shape[i]);
    moegen_tensor turned = source(f, i, w->turned[i], w->dtype, w->turned_shape[i]);
    if (f->sole)
        plain = turned;
    CHECK(!moegen_pack(kernel, "plain", &plain, one, bytes, 1, NULL));
    CHECK(!moegen_pack(kernel, f->sole ? "plain" : "transposed", &turned, two, bytes, 3, NULL));
    CHECK(memcmp(one, two, bytes) == 0);
    free(one);
    return two;
}

/* A header of another plan, or of products that lead the other way, of either tensor. */
static void test_of_other(const struct family *f, moegen_call *call, void *const *packed)
{
    static const struct {
        int byte, bits;
    } others[] = {{offsetof(struct rt_packed_header, run), 1},
                  {offsetof(struct rt_packed_header, order), RT_PACKED_BACK}};
    for (int i = f->tensor[0] ? 0 : 2; i < 4; i++) {
        moegen_error *err = NULL;
        char *at = (char *)packed[i / 2] + others[i % 2].byte;
        *at ^= (char)others[i % 2].bits;
        bool right = moegen_call_run(call, &err) == MOEGEN_BAD_DATA && err &&
                     strstr(moegen_error_text(err), "`moegen pack SPEC --in");
        if (!right)
            fprintf(stderr, "%s, %s: %s\n", f->name, f->tensor[i / 2], moegen_error_text(err));
        CHECK(right);
        moegen_error_release(err);
        *at ^= (char)others[i % 2].bits;
    }
    CHECK(!moegen_call_run(call, NULL));
}

static void test_same(moegen_engine *engine, const struct family *f, const char *target,
                      const char *order, const struct weights *w)
{
    const char *dtype = moegen_dtype_name(w->dtype);
    moegen_kernel *kernel[2] = {kernel_of(engine, f, dtype, target, f->rows, order), NULL};
    if (strcmp(target_of(kernel[0]), target) != 0) { /* tried as that of another target */
        moegen_kernel_release(kernel[0]);
        return;
    }
    kernel[1] = kernel_of(engine, f, dtype, target, "packed", order);
    moegen_call *call[2];
    void *packed[2] = {NULL, NULL};
    bool turned = f->sole || strcmp(f->rows, "transposed") == 0;
    for (int k = 0; k < 2; k++) {
        CHECK(!moegen_call_create(kernel[k], &call[k], NULL));
        f->bind(call[k], w->plain[0], w->dtype, ROWS);
    }
    for (int i = !f->tensor[0]; i < 2; i++) {
        int64_t shape[8];
        int rank;
        packed[i] = pack(f, kernel[1], call[1], w, i, &rank, shape);
        bind_shaped(call[0], f->tensor[i], turned ? w->turned[i] : w->plain[i], w->dtype);
        CHECK(
            !moegen_call_bind_const(call[1], f->tensor[i], packed[i], w->dtype, rank, shape, NULL));
    }
    moegen_kernel_release(kernel[1]); /* the call keeps it */
    for (int tokens = 1; tokens < ROWS; tokens = tokens * 3 + 1) {
        const int64_t given[] = {f->routed ? ROWS : tokens, HIDDEN};
        route(tokens);
        for (int k = 0; k < 2; k++) {
            memset(output[k], 0xff, sizeof output[k]);
            f->bind(call[k], w->plain[0], w->dtype, tokens);
            CHECK(!moegen_call_bind(call[k], f->output, output[k], MOEGEN_F32, 2, given, NULL));
            CHECK(!moegen_call_set_threads(call[k], 1 + k, NULL));
            CHECK(!moegen_call_run(call[k], NULL));
        }
        bool same = memcmp(output[0], output[1], sizeof output[0]) == 0;
        if (!same)
            fprintf(stderr, "%s %s %s %s, %d tokens: other bits than %s\n", f->name, dtype, target,
                    order, tokens, f->rows);
        CHECK(same && output[0][0] != 0 && output[0][0] == output[0][0]);
    }
    test_of_other(f, call[1], packed);
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
    const struct family *f = &families[0];
    moegen_kernel *kernel = kernel_of(engine, f, "f32", "scalar", "packed", "split"),
                  *other = kernel_of(engine, f, "f32", "scalar", "transposed", "split");
    moegen_tensor t = source(f, 1, w->turned[1], MOEGEN_F32, w->turned_shape[1]), bad = t;
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
    f = &families[FAMILIES - 1]; /* one matrix */
    kernel = kernel_of(engine, f, "f32", "scalar", "packed", "split");
    bad = t = source(f, 1, w->turned[1], MOEGEN_F32, w->turned_shape[1]);
    refused(moegen_pack(kernel, "transposed", &t, room, 1, 1, &err), &err, "is not plain");
    refused(moegen_pack(kernel, "plain", &t, room, 1, 1, &err), &err, "bytes, not 1");
    bad.rank = 3;
    refused(moegen_pack(kernel, "plain", &bad, room, 1, 1, &err), &err,
            "expected f32 [40, 53], pl");
    bad.name = "hidden_states";
    refused(moegen_pack(kernel, "plain", &bad, room, 1, 1, &err), &err, "takes no packed");
    moegen_kernel_release(kernel);
}

int main(void)
{
    static const moegen_dtype dtypes[] = {MOEGEN_F32, MOEGEN_BF16, MOEGEN_F16};
    static const char *const targets[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};
    moegen_engine *engine = engine_of("", NULL);
    fill();
    for (int d = 0; d < 3; d++) {
        struct weights w[2];
        for (int even = 0; even < 2; even++)
            open_weights(&w[even], dtypes[d], INNER + even);
        for (int t = 0; t < 5; t++)
            for (int f = 0; f < FAMILIES; f++) {
                const struct weights *of = &w[families[f].inner == WHOLE];
                test_same(engine, &families[f], targets[t], "split", of);
                if (families[f].tensor[0])
                    test_same(engine, &families[f], targets[t], "interleaved", of);
            }
        if (d == 0)
            test_refused(engine, &w[0]);
        close_weights(&w[0]);
        close_weights(&w[1]);
    }
    moegen_engine_release(engine);
    return failures != 0;
}
