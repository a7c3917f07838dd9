/* SPDX-License-Identifier: Apache-2.0 */
/* scales_test.c - weights whose codes share scales along K: each code of a scale, through products
 * of few and of many rows, on every target, gives the exact value; and a scale that is no number
 * reaches exactly what shares it.
 *
 * u = x W for rows x of zeros and one 1 or -1, p = max(u, 0), output = p times ones on the
 * diagonal. */
#include <math.h>

#include "api.h"
#include "format.h"

enum { WIDE = 160, SIGNED = 2 * WIDE, LEAST = 16, MOST = 96, SOME = 40, AT_ROW = 67, AT_RUN = 1 };
enum { USUAL, UP, DOWN, UP_SECOND, DOWN_SECOND, EXPERTS }; /* where something is no number */

static const char text[] = "kernel: moe_forward\nH: 160\nI_TP: 160\nE: 5\ntop_k: 1\n"
                           "block_size: 96\ngated: false\nactivation: relu\n"
                           "affinity: {scale: none}\naffinity_dtype: f32\noutput_dtype: f32\n";
static uint8_t up[EXPERTS][WIDE][WIDE], down[EXPERTS][WIDE][WIDE];
static uint16_t up_scale[EXPERTS * WIDE * WIDE / LEAST], down_scale[EXPERTS * WIDE * WIDE / LEAST];
static float up_second[EXPERTS], down_second[EXPERTS];
static double value[WIDE][WIDE]; /* of W[i][h] of expert USUAL */
static float x[MOST + 1][WIDE], out[MOST + 1][WIDE], affinity[EXPERTS * (MOST + 1)];
static uint16_t x_16[MOST + 1][WIDE];
static int32_t id[MOST], expert[1];

/* A format, and what of it the kernel at hand has. */
struct how {
    const struct rt_format *f;
    int64_t run, runs;
    bool wide;    /* products are of f32 */
    double apart; /* of the largest of 8 neighbours that the others may lose */
};

static int64_t row_bytes(const struct how *w)
{
    return rt_format_bytes(w->f, w->f->blocked ? w->runs * w->run : WIDE);
}

static void put(const struct how *w, uint8_t codes[WIDE][WIDE], int row, int k, uint32_t code)
{
    uint8_t *bytes = &codes[0][0] + row * row_bytes(w);
    if (w->f->element->bits == 8)
        bytes[k] = (uint8_t)code;
    else
        bytes[k / 2] = (uint8_t)((bytes[k / 2] & 0xf0 >> 4 * (k & 1)) | code << 4 * (k & 1));
}

static int64_t scale_at(const struct how *w, int e, int row, int64_t run)
{
    return (e * WIDE + row) * w->runs + run;
}

/* Codes of elements and of scales in turn, but none of scales that are no numbers, of values that
 * are infinite, and, where products have narrower operands, of values that these have not. */
static void fill(const struct how *w)
{
    const struct rt_format *f = w->f;
    uint32_t one = f->element->code(1), unit = f->scale->code(1);
    double lowest = w->wide ? 0x1p-149 : 0x1p-126, second = f->second ? 0.75 : 1;
    memset(up, 0, sizeof up);
    memset(down, 0, sizeof down);
    for (int e = 0; e < EXPERTS; e++) {
        up_second[e] = e == UP_SECOND ? NAN : (float)second;
        down_second[e] = e == DOWN_SECOND ? INFINITY : 1;
        for (int i = 0; i < WIDE; i++) {
            for (int64_t g = 0; g < w->runs; g++) {
                int64_t n = (i * w->runs + g) * (f->scale->bits == 8 ? 1 : 251);
                uint32_t code = (uint32_t)(n % (1 << f->scale->bits));
                double scale = f->scale->value(code);
                code = isfinite(scale) ? code : unit;
                rt_format_put_scale(f, up_scale, scale_at(w, e, i, g), code);
                rt_format_put_scale(f, down_scale, scale_at(w, e, i, g), unit);
            }
            for (int h = 0; h < WIDE; h++) {
                uint32_t code = (uint32_t)((h * 7 + i * 5) % (1 << f->element->bits));
                double scale = rt_format_scale(f, up_scale, scale_at(w, e, i, h / w->run));
                double v = f->element->value(code) * scale * second;
                if (!(fabs(v) <= 0x1.fffffep127 && (v == 0 || fabs(v) >= lowest))) {
                    code = f->element->code(0);
                    v = 0;
                }
                value[i][h] = v;
                put(w, up[e], i, h, code);
                put(w, down[e], i, h, h == i ? one : f->element->code(0));
            }
        }
    }
}

static moegen_status run(moegen_call *call, const struct how *w, int64_t rows)
{
    const struct rt_format *f = w->f;
    moegen_dtype io = w->wide ? MOEGEN_F32 : MOEGEN_BF16;
    for (int r = 0; r < MOST; r++)
        id[r] = (int32_t)(r < rows ? r : rows);
    for (int r = 0; r <= rows; r++)
        for (int h = 0; h < WIDE; h++) {
            uint32_t bits;
            memcpy(&bits, &x[r][h], sizeof bits);
            x_16[r][h] = (uint16_t)(bits >> 16);
            out[r][h] = NAN;
        }
    moegen_dtype codes = (moegen_dtype)f->codes, scales = (moegen_dtype)f->scale->dtype;
    int64_t apart = f->blocked ? w->runs : row_bytes(w), in[] = {apart, row_bytes(w) / apart};
    const struct {
        const char *name;
        void *data;
        moegen_dtype dtype;
        int64_t shape[4];
    } t[] = {
        {"hidden_states", w->wide ? (void *)x : x_16, io, {rows + 1, WIDE, 1, 1}},
        {"expert_affinities_masked", affinity, MOEGEN_F32, {EXPERTS * (rows + 1), 1, 1, 1}},
        {"gate_up_proj_weight", up, codes, {EXPERTS, WIDE, in[0], in[1]}},
        {"down_proj_weight", down, codes, {EXPERTS, WIDE, in[0], in[1]}},
        {"gate_up_proj_scale", up_scale, scales, {EXPERTS, WIDE, w->runs, 1}},
        {"down_proj_scale", down_scale, scales, {EXPERTS, WIDE, w->runs, 1}},
        {"gate_up_proj_scale_2", up_second, MOEGEN_F32, {EXPERTS, 1, 1, 1}},
        {"down_proj_scale_2", down_second, MOEGEN_F32, {EXPERTS, 1, 1, 1}},
        {"token_position_to_id", id, MOEGEN_I32, {MOST, 1, 1, 1}},
        {"block_to_expert", expert, MOEGEN_I32, {1, 1, 1, 1}},
        {"output", out, MOEGEN_F32, {rows + 1, WIDE, 1, 1}},
    };
    moegen_status status = MOEGEN_OK;
    for (size_t i = 0; i < sizeof t / sizeof *t && !status; i++)
        if (f->second || !strstr(t[i].name, "_scale_2"))
            status = moegen_call_bind(call, t[i].name, t[i].data, t[i].dtype, 4, t[i].shape, NULL);
    return status ? status : moegen_call_run(call, NULL);
}

/* Expert USUAL: columns of its matrix with both signs, more of them if there are many rows at a
 * time. */
static int64_t try_rows(moegen_call *call, const struct how *w, int64_t rows)
{
    int64_t wrong = 0;
    expert[0] = USUAL;
    for (int from = 0; from < SIGNED; from += (rows < SOME ? 11 : 2) * (int)rows) {
        int64_t n = from + rows < SIGNED ? rows : SIGNED - from;
        memset(x, 0, sizeof x);
        for (int64_t r = 0; r < n; r++)
            x[r][(from + r) / 2] = (from + r) % 2 ? -1 : 1;
        CHECK(!run(call, w, n));
        for (int64_t r = 0; r < n; r++)
            for (int i = 0; i < WIDE; i++) {
                double v = value[i][(from + r) / 2] * ((from + r) % 2 ? -1 : 1), most = 0;
                for (int j = i / 8 * 8; j < i / 8 * 8 + 8 && w->apart > 0; j++)
                    most = fmax(most, fabs(value[j][(from + r) / 2]));
                wrong += !(fabs((double)out[r][i] - fmax(v, 0)) <= w->apart * most);
            }
    }
    return wrong;
}

/* A scale that is no number, of the first product, then of the second one. */
static int64_t try_special(moegen_call *call, const struct how *w, int64_t rows, uint32_t code)
{
    int64_t wrong = 0, run_at = w->runs > AT_RUN ? AT_RUN : 0;
    rt_format_put_scale(w->f, up_scale, scale_at(w, UP, AT_ROW, run_at), code);
    rt_format_put_scale(w->f, down_scale, scale_at(w, DOWN, AT_ROW, run_at), code);
    for (int e = 0; e < (w->f->second ? EXPERTS : UP_SECOND); e++) {
        expert[0] = e;
        memset(x, 0, sizeof x);
        for (int r = 0; r < MOST; r++)
            x[r][r % WIDE] = 0x1p-100f;
        CHECK(!run(call, w, rows));
        for (int64_t r = 0; r < rows; r++)
            for (int i = 0; i < WIDE; i++)
                wrong += !isfinite(out[r][i]) != (e != USUAL && (e != DOWN || i == AT_ROW));
    }
    return wrong;
}

/* A token with an element that is no number, beside others: all that it gives is none. */
static int64_t try_token(moegen_call *call, const struct how *w, int64_t rows, float element)
{
    int64_t wrong = 0;
    expert[0] = USUAL;
    for (int r = 0; r < MOST; r++)
        for (int h = 0; h < WIDE; h++)
            x[r][h] = 0x1p-100f;
    x[1][AT_ROW] = element;
    CHECK(!run(call, w, rows));
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < WIDE; i++)
            wrong += !isfinite(out[r][i]) != (r == 1);
    return wrong;
}

static void try_kernel(moegen_kernel *kernel, const struct how *w, const char *target)
{
    static const int64_t few[] = {3, MOST};
    moegen_call *call = NULL;
    CHECK(!moegen_call_create(kernel, &call, NULL));
    for (size_t i = 0; i < sizeof few / sizeof *few && call; i++) {
        fill(w);
        int64_t wrong = try_rows(call, w, few[i]), special = 0;
        for (uint32_t c = 0; c < 1u << w->f->scale->bits; c += w->f->scale->bits == 8 ? 1 : 64)
            if (!isfinite(w->f->scale->value(c)))
                special += try_special(call, w, few[i] < SOME ? few[i] : SOME, c);
        for (int c = 0; c < (few[i] < SOME ? 3 : 1); c++)
            special += try_token(call, w, few[i] < SOME ? few[i] : SOME,
                                 c == 0   ? NAN
                                 : c == 1 ? INFINITY
                                          : -INFINITY);
        if (wrong || special)
            printf("%s, %s, %s, %d rows: %d values wrong, %d not as they must be\n", w->f->name,
                   target, w->wide ? "f32" : "bf16", (int)few[i], (int)wrong, (int)special);
        CHECK(wrong == 0 && special == 0);
    }
    moegen_call_release(call);
}

/* 0: there is no such kernel. What this CPU has not is emulated. A target that has nothing for a
 * kernel gives that of another one, which is tried as such. */
static int try_format(moegen_engine *engine, const struct rt_format *f, int64_t group,
                      const char *target, const char *dtype)
{
    char number[8];
    (void)snprintf(number, sizeof number, "%d", (int)group);
    const moegen_override emulated[] = {{"spelling", "scalar"},
                                        {"target", target},
                                        {"dtype", dtype},
                                        {"weights.layout", "contiguous"},
                                        {"weights.dtype", f->name},
                                        {"weights.group", number}},
                          *set = emulated + 1;
    struct how w = {f, group, (WIDE + group - 1) / group, strcmp(dtype, "f32") == 0, 0};
    if (!w.wide && f->element->bits == 4 && strcmp(target, "amx") == 0)
        w.apart = 0x1p-22; /* integers, see templates/along/digits.lua */
    moegen_spec spec = spec_of(text);
    moegen_kernel *kernel = NULL;
    spec.overrides = set;
    spec.override_count = f->groups[1] ? 5 : 4;
    if (moegen_kernel_get(engine, &spec, &kernel, NULL)) {
        spec.overrides = emulated;
        spec.override_count++;
        if (moegen_kernel_get(engine, &spec, &kernel, NULL))
            return 0;
    }
    if (strcmp(target_of(kernel), target) == 0)
        try_kernel(kernel, &w, target);
    moegen_kernel_release(kernel);
    return 1;
}

int main(void)
{
    static const char *const targets[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};
    enum { TARGETS = sizeof targets / sizeof *targets };
    moegen_engine *engine = engine_of("", NULL);
    int tried = 0, ways = 0;
    for (int i = 0; rt_format_at(i); i++)
        for (const int *group = rt_format_at(i)->groups; *group; group++, ways++)
            for (size_t t = 0; t < TARGETS; t++) {
                tried += try_format(engine, rt_format_at(i), *group, targets[t], "f32");
                tried += try_format(engine, rt_format_at(i), *group, targets[t], "bf16");
            }
    CHECK(tried == ways * 2 * TARGETS);
    moegen_engine_release(engine);
    return failures != 0;
}
