/* SPDX-License-Identifier: Apache-2.0 */
/* codes_test.c - weights that kernels decode: each code of each format by itself, through products
 * of few and of many rows, on every target, gives its exact value; and what is not a number reaches
 * exactly the rows and columns that it must.
 *
 * u = x W * scale for rows x of zeros and one 1 or -1, p = max(u, 0), output = p times ones on the
 * diagonal: max(+-W[h][..] * scale, 0). */
#include <math.h>
#include <stdlib.h>

#include "api.h"
#include "format.h"

enum { WIDE = 80, EXPERTS = 3, MOST = 2 * WIDE, AT_H = 5, AT_I = 67 };

static const char text[] = "kernel: moe_forward\nH: 80\nI_TP: 80\nE: 3\ntop_k: 1\n"
                           "block_size: 160\ngated: false\nactivation: relu\n"
                           "affinity: {scale: none}\ndtype: f32\n"
                           "affinity_dtype: f32\n";
static const float scales[EXPERTS] = {0.25f, 2, 1}, ones[EXPERTS] = {1, 1, 1};
static uint8_t up[EXPERTS][WIDE][WIDE], down[EXPERTS][WIDE][WIDE];
static uint8_t up_turned[EXPERTS][WIDE][WIDE], down_turned[EXPERTS][WIDE][WIDE];
static bool turned; /* are matrices stored transposed? */
static double value[256];
static float x[MOST + 1][WIDE], out[MOST + 1][WIDE], affinity[EXPERTS * (MOST + 1)];
static uint16_t x_16[MOST + 1][WIDE], out_16[MOST + 1][WIDE];
static int32_t id[MOST], expert[1];

/* Expert 0 has every code that is a number, 1 and 2 one that is none, before and after the
 * activation. */
static void fill(const struct rt_format *f)
{
    uint32_t one = f->element->code(1);
    for (uint32_t c = 0; c < 256; c++)
        value[c] = f->element->value(c);
    for (int e = 0; e < EXPERTS; e++)
        for (int h = 0; h < WIDE; h++)
            for (int i = 0; i < WIDE; i++) {
                int code = (h * WIDE + i) * 37 % 256;
                up[e][h][i] = (uint8_t)(value[code] - value[code] == 0 ? code : 0);
                down[e][h][i] = (uint8_t)(h == i ? one : 0);
            }
}

static void turn(void)
{
    for (int e = 0; e < EXPERTS; e++)
        for (int h = 0; h < WIDE; h++)
            for (int i = 0; i < WIDE; i++) {
                up_turned[e][i][h] = up[e][h][i];
                down_turned[e][i][h] = down[e][h][i];
            }
}

static moegen_status run(moegen_call *call, int64_t rows, moegen_dtype io, moegen_dtype codes)
{
    if (turned)
        turn();
    for (int r = 0; r < MOST; r++)
        id[r] = (int32_t)(r < rows ? r : rows);
    for (int r = 0; r <= rows; r++)
        for (int h = 0; h < WIDE; h++) {
            uint32_t bits;
            memcpy(&bits, &x[r][h], sizeof bits);
            x_16[r][h] = (uint16_t)(bits >> 16);
            out[r][h] = NAN;
            out_16[r][h] = 0x7fc0;
        }
    const struct {
        const char *name;
        void *data;
        moegen_dtype dtype;
        int64_t shape[4];
    } t[] = {
        {"hidden_states", io == MOEGEN_F32 ? (void *)x : x_16, io, {rows + 1, WIDE, 1, 1}},
        {"expert_affinities_masked", affinity, MOEGEN_F32, {EXPERTS * (rows + 1), 1, 1, 1}},
        {"gate_up_proj_weight",
         turned ? up_turned : up,
         codes,
         {EXPERTS, WIDE, turned ? WIDE : 1, turned ? 1 : WIDE}},
        {"down_proj_weight", turned ? down_turned : down, codes, {EXPERTS, WIDE, WIDE, 1}},
        {"token_position_to_id", id, MOEGEN_I32, {MOST, 1, 1, 1}},
        {"block_to_expert", expert, MOEGEN_I32, {1, 1, 1, 1}},
        {"output", io == MOEGEN_F32 ? (void *)out : out_16, io, {rows + 1, WIDE, 1, 1}},
    };
    moegen_status status = MOEGEN_OK;
    for (size_t i = 0; i < sizeof t / sizeof *t && !status; i++)
        status = moegen_call_bind(call, t[i].name, t[i].data, t[i].dtype, 4, t[i].shape, NULL);
    status = status ? status : moegen_call_run(call, NULL);
    for (int r = 0; r <= rows && io != MOEGEN_F32; r++)
        for (int i = 0; i < WIDE; i++) {
            uint32_t bits = (uint32_t)out_16[r][i] << 16;
            memcpy(&out[r][i], &bits, sizeof bits);
        }
    return status;
}

static moegen_status bind_scales(moegen_call *call, int row)
{
    static float up_row[EXPERTS * WIDE], down_row[EXPERTS * WIDE];
    const int64_t by_row[] = {EXPERTS, 1, WIDE}, whole[] = {EXPERTS, 1, 1};
    for (int i = 0; i < EXPERTS * WIDE; i++) {
        up_row[i] = row ? ldexpf(scales[i / WIDE], i % 7 - 3) : scales[i % EXPERTS];
        down_row[i] = ones[0];
    }
    moegen_status status = moegen_call_bind(call, "gate_up_proj_scale", up_row, MOEGEN_F32, 3,
                                            row ? by_row : whole, NULL);
    return status ? status
                  : moegen_call_bind(call, "down_proj_scale", down_row, MOEGEN_F32, row ? 3 : 2,
                                     row ? by_row : whole, NULL);
}

/* Expert 0, so many rows at a time: if they are few a third of its matrix's rows, all over it, else
 * each of them with both signs. */
static int64_t try_rows(moegen_call *call, int64_t rows, int row, moegen_dtype io,
                        moegen_dtype codes)
{
    int64_t wrong = 0;
    expert[0] = 0;
    for (int from = 0; from < MOST; from += (int)rows * (rows < MOST ? 3 : 1)) {
        int64_t n = from + rows < MOST ? rows : MOST - from;
        memset(x, 0, sizeof x);
        for (int64_t r = 0; r < n; r++)
            x[r][(from + r) / 2] = (from + r) % 2 ? -1 : 1;
        CHECK(!run(call, n, io, codes));
        for (int64_t r = 0; r < n; r++)
            for (int i = 0; i < WIDE; i++) {
                double v = value[up[0][(from + r) / 2][i]] * ((from + r) % 2 ? -1 : 1);
                v = ldexp(fmax(v, 0) * (double)scales[0], row ? i % 7 - 3 : 0);
                wrong += !((double)out[r][i] == v);
            }
    }
    return wrong;
}

/* What is not a number in W[AT_H][AT_I]: of the first product of expert 1, of the second one of
 * expert 2; and expert 0, which has none. */
static int64_t try_special(moegen_call *call, int64_t rows, int e, uint8_t code, moegen_dtype io,
                           moegen_dtype codes)
{
    int64_t wrong = 0;
    uint8_t *at = e == 1 ? &up[1][AT_H][AT_I] : &down[2][AT_H][AT_I], before = *at;
    *at = e == 0 ? before : code;
    expert[0] = e;
    for (int r = 0; r < MOST; r++)
        for (int h = 0; h < WIDE; h++)
            x[r][h] = h % 3 == 0 && h != AT_H ? 0.5f : 0;
    CHECK(!run(call, rows, io, codes));
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < WIDE; i++) {
            int nan = out[r][i] != out[r][i], reached = e == 1 || (e == 2 && i == AT_I);
            /* infinity times a positive number is no NaN */
            wrong +=
                reached ? !(nan || (isinf(value[code]) && isinf(out[r][i]))) : !isfinite(out[r][i]);
        }
    *at = before;
    return wrong;
}

/* Each code that is no number, in both products; many rows, which take long: in one, in turn. */
static int64_t try_specials(moegen_call *call, int64_t rows, moegen_dtype io, moegen_dtype codes)
{
    int64_t wrong = try_special(call, rows, 0, 0, io, codes);
    for (int c = 0, turn = 0; c < 256; c++)
        if (value[c] - value[c] != 0) {
            turn++;
            for (int e = 1; e < EXPERTS; e++)
                if (rows < MOST || e % 2 == turn % 2)
                    wrong += try_special(call, rows, e, (uint8_t)c, io, codes);
        }
    return wrong;
}

static void try_kernel(moegen_kernel *kernel, const struct rt_format *f, const char *target,
                       int row, moegen_dtype io)
{
    static const int64_t few[] = {1, 2, 3, 9, MOST};
    const size_t counts = sizeof few / sizeof *few - turned; /* many are decoded alike */
    moegen_call *call = NULL;
    CHECK(!moegen_call_create(kernel, &call, NULL) && !bind_scales(call, row));
    for (size_t i = 0; i < counts && call; i++) {
        const moegen_dtype codes = (moegen_dtype)f->codes;
        int64_t wrong = try_rows(call, few[i], row, io, codes);
        int64_t special = try_specials(call, few[i], io, codes);
        if (wrong || special)
            printf("%s, %s, %s%s, %d rows: %d values wrong, %d not as they must be\n", f->name,
                   target, row ? "row" : "static", turned ? ", transposed" : "", (int)few[i],
                   (int)wrong, (int)special);
        CHECK(wrong == 0 && special == 0);
    }
    moegen_call_release(call);
}

/* 0: products do not take the format like this. */
static int try_format(moegen_engine *engine, const struct rt_format *f, const char *target,
                      const char *scale, const char *dtype)
{
    const moegen_override set[] = {
        {"target", target},       {"weights.dtype", f->name},
        {"weights.scale", scale}, {"weights.layout", turned ? "transposed" : "plain"},
        {"dtype", dtype},         {"plan.nc", "2"}, /* some are packed amid tiles */
        {"plan.pack_k", "32"}};
    moegen_spec spec = spec_of(text);
    spec.overrides = set;
    spec.override_count = sizeof set / sizeof *set - (turned ? 2 : 0);
    moegen_kernel *kernel = NULL;
    if (moegen_kernel_get(engine, &spec, &kernel, NULL))
        return 0;
    try_kernel(kernel, f, target, strcmp(scale, "row") == 0,
               strcmp(dtype, "f32") == 0 ? MOEGEN_F32 : MOEGEN_BF16);
    moegen_kernel_release(kernel);
    return 1;
}

int main(void)
{
    static const char *const targets[] = {"scalar", "avx2", "avx512", "avx512_bf16"};
    moegen_engine *engine = engine_of("", NULL);
    int tried = 0;
    for (int i = 0; rt_format_at(i); i++) {
        const struct rt_format *f = rt_format_at(i);
        if (f->element->bits != 8 || f->blocked)
            continue;
        fill(f);
        for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
            tried += try_format(engine, f, targets[t], "row", "f32");
            tried += try_format(engine, f, targets[t], "row", "bf16");
            tried += try_format(engine, f, targets[t], "static", t % 2 ? "f32" : "bf16");
            turned = true; /* each target in both dtypes, in one of them with each format */
            tried += try_format(engine, f, targets[t], "row", (i + t) % 2 ? "f32" : "bf16");
            turned = false;
        }
    }
    CHECK(tried >= 12 * 3 + 4 * 2); /* int8 has no static scale */
    moegen_engine_release(engine);
    return failures != 0;
}
