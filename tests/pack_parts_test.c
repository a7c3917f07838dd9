/* SPDX-License-Identifier: Apache-2.0 */
/* pack_parts_test.c - matrices that are packed in many parts: the same bytes as all at once,
 * however many threads pack, and each element where its slice's header says. */
#include <math.h>

#include "api.h"
#include "api/api.h"
#include "moegen_runtime.h"

enum { EXPERTS = 4, DEEP = 300, WIDE = 700 };

static void put(void *ctx, size_t at, const void *bytes, size_t len)
{
    memcpy((char *)ctx + at, bytes, len);
}

/* Is each element of the matrices [DEEP][C] where its slice's header says, and zero between? */
static bool lies(const float *packed, int64_t each, const float *from, int64_t C)
{
    int64_t wrong = 0;
    double sum[2] = {0, 0};
    for (int64_t e = 0; e < EXPERTS; e++) {
        const float *slice = packed + e * each, *matrix = from + e * DEEP * C;
        int64_t is[6]; /* K, C, rows, run, parts, order */
        memcpy(is, slice + 4, sizeof is);
        wrong += is[0] != DEEP || is[1] != C;
        for (int64_t k = 0; k < DEEP; k++)
            for (int64_t c = 0; c < C; c++) {
                int64_t at = 16 + (k / is[3] * is[2] + c) * is[3] + k % is[3];
                wrong += slice[at] != matrix[k * C + c];
                sum[0] += fabsf(matrix[k * C + c]);
            }
        for (int64_t i = 16; i < each; i++)
            sum[1] += fabsf(slice[i]);
    }
    CHECK(fabs(sum[0] - sum[1]) < 1e-6 * sum[0]);
    return wrong == 0;
}

static void test_parts(moegen_engine *engine)
{
    moegen_kernel *kernel = get(
        engine, "{kernel: moe_forward, name: k, E: 4, top_k: 2, block_size: 8, H: 300, I_TP: "
                "700, dtype: f32, target: scalar, spelling: scalar, weights: {layout: packed}}");
    moegen_call *call = NULL;
    int64_t shape[8];
    int rank;
    size_t count = (size_t)EXPERTS * DEEP * 2 * WIDE;
    float *from = malloc(count * sizeof *from);
    for (size_t i = 0; i < count; i++)
        from[i] = (float)(i % 999983) - 499991.0f;
    moegen_tensor t = {"gate_up_proj_weight", from, MOEGEN_F32, 3, {EXPERTS, DEEP, 2 * WIDE}};
    CHECK(!moegen_call_create(kernel, &call, NULL));
    CHECK(!moegen_call_shape(call, t.name, &rank, shape, NULL) && rank == 2);
    size_t bytes = (size_t)(shape[0] * shape[1]) * sizeof *from;
    char *one = malloc(bytes), *two = malloc(bytes);
    memset(one, 1, bytes);
    memset(two, 2, bytes);
    CHECK(!moegen_pack(kernel, "plain", &t, one, bytes, 1, NULL));
    struct pack_sink sink = {.put = put, .ctx = two};
    CHECK(!pack_in_parts(kernel, "plain", &t, &sink, bytes, 3, NULL));
    CHECK(memcmp(one, two, bytes) == 0);
    CHECK(lies((float *)(void *)one, shape[1], from, (int64_t)2 * WIDE));
    free(from);
    free(one);
    free(two);
    moegen_call_release(call);
    moegen_kernel_release(kernel);
}

int main(void)
{
    moegen_engine *engine = engine_of("", NULL);
    test_parts(engine);
    moegen_engine_release(engine);
    return failures != 0;
}
