/* SPDX-License-Identifier: Apache-2.0 */
/* prequantised_test.c - operands given as codes with scales: a code or a scale that is NaN is
 * followed through mlp_forward, whose outputs say which element it was of. Places are those of
 * SEMANTICS 3, by hand. */
#include "api.h"

enum {
    S_ = 5,
    H_ = 440,
    NEAR_H = 448,
    I_ = 72,
    ONE = 0x38,
    NAN_CODE = 0x7f,
    NAN_SCALE = 255,
    FILL = 127
};
enum { DENSE, OVERSIZED, PACKED, SCALES };
static const char *const form_name[] = {"plain", "swizzled"};
static const char *const scales_name[] = {"dense", "oversized", "packed"};

/* An operand of F contractions of K elements, F rows of K if it is plain. */
struct operand {
    const char *name;
    int64_t K, F;
    int form, scales;
    uint8_t *code, *scale;
    int64_t codes[4], rows[4]; /* shapes */
};

/* ---- places: 440 = 256 + 128 + 32 + 24, 72 = 32 + 32 + 8 ---- */

static int64_t tile(int64_t K, int64_t k, bool wrapped, int64_t *length)
{
    int64_t from = 0;
    for (;; from += *length) {
        int64_t left = K - from;
        *length = !wrapped || left < 128 ? 32 : left < 256 ? 128 : left < 512 ? 256 : 512;
        if (k < from + *length)
            return from;
    }
}

/* Element k's row of codes, its place among 4, and its scale. */
static void place(int64_t K, int64_t k, bool wrapped, int64_t *row, int64_t *lane, int64_t *scale)
{
    int64_t length, from = tile(K, k, wrapped, &length), quarter = length / 4, at = k - from;
    *row = wrapped ? from / 4 + at % quarter : k / 4;
    *lane = wrapped ? at / quarter : k % 4;
    *scale = *row / 8;
}

static int64_t code_at(const struct operand *o, int64_t k, int64_t f, bool wrapped)
{
    int64_t row, lane, scale;
    place(o->K, k, wrapped, &row, &lane, &scale);
    return o->form ? (row * o->F + f) * 4 + lane : f * o->K + k;
}

static int64_t scale_at(const struct operand *o, int64_t k, int64_t f, bool wrapped)
{
    int64_t row, lane, i;
    place(o->K, k, wrapped, &row, &lane, &i);
    if (o->scales == OVERSIZED)
        i = i / 4 * 32 + i % 4;
    else if (o->scales == PACKED) /* all of one 512-tile */
        i = i / 4 * 32 + i % 4;
    return i * o->F + f;
}

/* ---- calls ---- */

/* As many bytes as its tensors have, all ones, under scales of 1; NaN is what nobody may read. */
static void lay(struct operand *o, bool wrapped)
{
    int64_t steps = (o->K + 31) / 32;
    int64_t rows = o->scales == DENSE ? steps : o->scales == OVERSIZED ? 8 * steps : 128;
    int64_t codes[] = {o->F, o->K, 1, 1}, swizzled[] = {8 * steps, 4 * o->F, 1, 1};
    int64_t scales[] = {rows, o->F, 1, 1};
    memcpy(o->codes, o->form ? swizzled : codes, sizeof codes);
    memcpy(o->rows, scales, sizeof scales);
    o->code = malloc((size_t)(o->codes[0] * o->codes[1]));
    o->scale = malloc((size_t)(rows * o->F));
    memset(o->code, NAN_CODE, (size_t)(o->codes[0] * o->codes[1]));
    memset(o->scale, NAN_SCALE, (size_t)(rows * o->F));
    for (int64_t f = 0; f < o->F; f++)
        for (int64_t k = 0; k < o->K; k++) {
            o->code[code_at(o, k, f, wrapped)] = ONE;
            o->scale[scale_at(o, k, f, wrapped)] = FILL;
        }
}

static moegen_status bind_operand(moegen_call *call, const struct operand *o)
{
    char scales[64];
    snprintf(scales, sizeof scales, "%s_scales", o->name);
    moegen_status status = moegen_call_bind(call, o->name, o->code, MOEGEN_U8, 4, o->codes, NULL);
    return status ? status : moegen_call_bind(call, scales, o->scale, MOEGEN_U8, 4, o->rows, NULL);
}

/* Which outputs are NaN: of token s, or all (-1), or none (-2); of column h, or all. What is
 * between the products is H, rounded. */
static void expect(moegen_call *call, const float *out, int64_t s, int64_t h, const char *what)
{
    int wrong = 0;
    CHECK(!moegen_call_run(call, NULL));
    for (int64_t i = 0; i < S_ * H_; i++) {
        bool nan = s != -2 && (s == -1 || i / H_ == s) && (h == -1 || i % H_ == h);
        wrong += nan ? out[i] == out[i] : out[i] != (float)(NEAR_H * I_);
    }
    if (wrong)
        printf("%s: %d outputs are wrong\n", what, wrong);
    CHECK(wrong == 0);
}

/* One byte at a time: some codes and scales of an operand. */
static void follow(moegen_call *call, const float *out, const struct operand *o, int which,
                   bool wrapped)
{
    for (int64_t k = 0; k < o->K; k += 37)
        for (int64_t f = 0; f<o->F; f += o->F> 100 ? 41 : 3) {
            uint8_t *const bytes[] = {o->code + code_at(o, k, f, wrapped),
                                      o->scale + scale_at(o, k, f, wrapped)};
            const uint8_t nan[] = {NAN_CODE, NAN_SCALE};
            for (int i = 0; i < 2; i++) {
                uint8_t was = *bytes[i];
                *bytes[i] = nan[i];
                expect(call, out, which == 0 ? f : -1, which == 2 ? f : -1, o->name);
                *bytes[i] = was;
            }
        }
}

static void try(moegen_engine *engine, bool wrapped, int form, int scales)
{
    static float out[S_ * H_];
    struct operand of[] = {
        {"hidden_states", H_, S_, form, scales, 0, 0, {0}, {0}},
        {"gate_up_weights", H_, I_, !form, scales, 0, 0, {0}, {0}},
        {"down_proj_weight", I_, H_, form, (scales + 1) % SCALES, 0, 0, {0}, {0}}};
    char text[640];
    int n = snprintf(text, sizeof text,
                     "kernel: mlp_forward\nH: %d\nI_TP: %d\ndtype: f32\ngated: false\n"
                     "activation: relu\nquantize: mxfp8_e4m3\nblock_order: %s\n"
                     "prequantised:\n",
                     H_, I_, wrapped ? "wrapx" : "contiguous");
    for (int i = 0; i < 3; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "  %s: {form: %s, scales: %s}\n",
                      of[i].name, form_name[of[i].form], scales_name[of[i].scales]);
    moegen_kernel *kernel = get(engine, text);
    moegen_call *call = NULL;
    const int64_t shape[] = {S_, H_, 1, 1};
    CHECK(kernel && !moegen_call_create(kernel, &call, NULL));
    for (int i = 0; i < 3; i++) {
        lay(&of[i], wrapped);
        CHECK(!bind_operand(call, &of[i]));
    }
    CHECK(!moegen_call_bind(call, "output", out, MOEGEN_F32, 4, shape, NULL));
    expect(call, out, -2, -2, "nothing");
    for (int i = 0; i < 3; i++)
        follow(call, out, &of[i], i, wrapped);
    moegen_call_release(call);
    moegen_kernel_release(kernel);
    for (int i = 0; i < 3; i++) {
        free(of[i].code);
        free(of[i].scale);
    }
}

int main(void)
{
    moegen_engine *engine = NULL;
    moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = "", .threads = 1};
    CHECK(!moegen_engine_create(&o, &engine, NULL));
    for (int wrapped = 0; wrapped < 2; wrapped++)
        for (int scales = 0; scales < SCALES; scales++)
            try(engine, wrapped, (scales + wrapped) % 2, scales);
    moegen_engine_release(engine);
    return failures != 0;
}
