/* SPDX-License-Identifier: Apache-2.0 */
/* infinite_rows_test.c - the same as infinite_test.c where dot products take rows of weights in
 * pairs and their number is odd: what has no partner, and what fills up a step, adds nothing. From
 * one row to more than are multiplied with weights as they lie. */
#include "api.h"

enum { ROWS = 40, WIDE = 17, DEEP = 15, INF = 0x7f80, MINUS = 0x8000 };

static const char text[] = "kernel: moe_forward\nH: 17\nI_TP: 15\nE: 1\ntop_k: 1\nblock_size: 40\n"
                           "gated: false\ndtype: bf16\naffinity_dtype: f32\n"
                           "plan: {product: dot}\n";
/* bf16 */
static uint16_t x[(ROWS + 1) * WIDE], up[WIDE * DEEP], down[DEEP * WIDE], out[(ROWS + 1) * WIDE];
static float affinity[ROWS + 1];
static int32_t id[ROWS], expert[1];

static moegen_status bind_all(moegen_call *call, int64_t rows)
{
    const struct {
        const char *name;
        void *data;
        moegen_dtype dtype;
        int64_t shape[4];
    } t[] = {
        {"hidden_states", x, MOEGEN_BF16, {rows + 1, WIDE, 1, 1}},
        {"expert_affinities_masked", affinity, MOEGEN_F32, {rows + 1, 1, 1, 1}},
        {"gate_up_proj_weight", up, MOEGEN_BF16, {1, WIDE, 1, DEEP}},
        {"down_proj_weight", down, MOEGEN_BF16, {1, DEEP, WIDE, 1}},
        {"token_position_to_id", id, MOEGEN_I32, {ROWS, 1, 1, 1}},
        {"block_to_expert", expert, MOEGEN_I32, {1, 1, 1, 1}},
        {"output", out, MOEGEN_BF16, {rows + 1, WIDE, 1, 1}},
    };
    moegen_status status = MOEGEN_OK;
    for (size_t i = 0; i < sizeof t / sizeof *t && !status; i++)
        status = moegen_call_bind(call, t[i].name, t[i].data, t[i].dtype, 4, t[i].shape, NULL);
    return status;
}

/* Every other row is infinite, the first one too. */
static void try_rows(moegen_kernel *kernel, int rows, int sign)
{
    moegen_call *call = NULL;
    for (int r = 0; r < ROWS; r++)
        id[r] = r < rows ? r : rows; /* rows: none */
    for (int r = 0; r < rows; r += 2)
        x[r * WIDE + WIDE - 1] = (uint16_t)(sign < 0 ? INF | MINUS : INF);
    CHECK(!moegen_call_create(kernel, &call, NULL) && !bind_all(call, rows));
    CHECK(!moegen_call_run(call, NULL));
    int wrong = 0;
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < WIDE; h++) {
            uint16_t y = out[r * WIDE + h];
            wrong += r % 2 ? y == 0 || y >= INF : y != (sign < 0 ? 0 : INF);
        }
    if (wrong)
        printf("%d rows, %d: %d elements are wrong\n", rows, sign, wrong);
    CHECK(wrong == 0);
    moegen_call_release(call);
}

static void try_spelling(moegen_engine *engine, const char *spelling)
{
    const moegen_override set[] = {{"target", "avx512_bf16"}, {"spelling", spelling}};
    moegen_spec spec = spec_of(text);
    spec.overrides = set;
    spec.override_count = 2;
    moegen_kernel *kernel = NULL;
    CHECK(!moegen_kernel_get(engine, &spec, &kernel, NULL));
    for (int rows = 1; kernel && rows <= ROWS; rows++)
        for (int sign = -1; sign <= 1; sign += 2)
            try_rows(kernel, rows, sign);
    moegen_kernel_release(kernel);
}

int main(void)
{
    moegen_engine *engine = engine_of("", NULL);
    for (int i = 0; i < WIDE * DEEP; i++)
        up[i] = down[i] = 0x3e80; /* 1/4 */
    for (int i = 0; i < (ROWS + 1) * WIDE; i++)
        x[i] = 0x3f00; /* 1/2 */
    for (int r = 0; r < ROWS; r++)
        affinity[r] = 1;
    try_spelling(engine, "scalar");
    moegen_engine_release(engine);
    return failures != 0;
}
