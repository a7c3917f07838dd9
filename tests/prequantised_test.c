/* SPDX-License-Identifier: Apache-2.0 */
/* prequantised_test.c - operands given as codes with scales: a code or a scale that is NaN is
 * followed through mlp_forward, and moe_backward, whose outputs say which element it was of. Places
 * are those of SEMANTICS 3, by hand. */
#include "api.h"

enum {
    S_ = 5,
    H_ = 440,
    NEAR_H = 448,
    I_ = 72,
    ONE = 0x38,
    NAN_CODE = 0x7f,
    NAN_SCALE = 255,
    FILL = 127,
    EXPERTS = 2, /* of moe_backward: token s has expert s % 2 */
    BLOCK = 8    /* slots for its tokens */
};
enum { DENSE, OVERSIZED, PACKED, SCALES, OPERANDS = 3 };
static const char *const form_name[] = {"plain", "swizzled"};
static const char *const scales_name[] = {"dense", "oversized", "packed"};

/* An operand of F contractions of K elements; of each expert, some parts. */
struct operand {
    const char *name;
    int64_t K, F, experts, parts;
    int64_t k_step, f_step, part_step; /* from a plain code to the next one */
    int form, scales;
    uint8_t *code, *scale;
    int64_t codes[4], rows[4]; /* shapes */
};
struct element {
    int64_t expert, part, k, f;
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

static int64_t blocks(const struct operand *o)
{
    return (o->K + 31) / 32;
}

static int64_t scale_rows(const struct operand *o)
{
    return o->scales == DENSE ? blocks(o) : o->scales == OVERSIZED ? 8 * blocks(o) : 128;
}

static int64_t code_at(const struct operand *o, struct element x, bool wrapped)
{
    int64_t row, lane, scale, part = x.expert * o->parts + x.part;
    place(o->K, x.k, wrapped, &row, &lane, &scale);
    return o->form ? ((part * 8 * blocks(o) + row) * o->F + x.f) * 4 + lane
                   : x.expert * o->parts * o->K * o->F + x.part * o->part_step + x.k * o->k_step +
                         x.f * o->f_step;
}

static int64_t scale_at(const struct operand *o, struct element x, bool wrapped)
{
    int64_t row, lane, i;
    place(o->K, x.k, wrapped, &row, &lane, &i);
    if (o->scales == OVERSIZED)
        i = i / 4 * 32 + i % 4;
    else if (o->scales == PACKED) /* all of one 512-tile */
        i = i / 4 * 32 + i % 4;
    return ((x.expert * o->parts + x.part) * scale_rows(o) + i) * o->F + x.f;
}

/* ---- calls ---- */

/* The element after x in the order of experts, parts, contractions; false: it was the last one. */
static bool next(const struct operand *o, struct element *x, int64_t k, int64_t f)
{
    if ((x->k += k) < o->K)
        return true;
    x->k = 0;
    if ((x->f += f) < o->F)
        return true;
    x->f = 0;
    if (++x->part < o->parts)
        return true;
    x->part = 0;
    return ++x->expert < o->experts;
}

/* As many bytes as its tensors have, all ones, under scales of 1; NaN is what nobody may read. */
static void lay(struct operand *o, bool wrapped)
{
    int64_t all = o->experts * o->parts, codes = all * (o->form ? 32 * blocks(o) : o->K) * o->F;
    int64_t scales = all * scale_rows(o) * o->F;
    int64_t swizzled[] = {o->experts, 8 * blocks(o) * o->parts, 4 * o->F, 1};
    int64_t rows[] = {o->experts, scale_rows(o) * o->parts, o->F, 1};
    if (o->form) /* else the caller knows */
        memcpy(o->codes, swizzled, sizeof swizzled);
    memcpy(o->rows, rows, sizeof rows);
    o->code = malloc((size_t)codes);
    o->scale = malloc((size_t)scales);
    memset(o->code, NAN_CODE, (size_t)codes);
    memset(o->scale, NAN_SCALE, (size_t)scales);
    struct element x = {0};
    do {
        o->code[code_at(o, x, wrapped)] = ONE;
        o->scale[scale_at(o, x, wrapped)] = FILL;
    } while (next(o, &x, 1, 1));
}

static void let_go(struct operand *o)
{
    free(o->code);
    free(o->scale);
}

/* Without experts tensors have no extent for these. */
static void bind_operand(moegen_call *call, const struct operand *o)
{
    char scales[64];
    int skip = o->experts == 1;
    snprintf(scales, sizeof scales, "%s_scales", o->name);
    CHECK(!moegen_call_bind(call, o->name, o->code, MOEGEN_U8, 4 - skip, o->codes + skip, NULL));
    CHECK(!moegen_call_bind(call, scales, o->scale, MOEGEN_U8, 4 - skip, o->rows + skip, NULL));
}

/* Outputs [S_, H_], and which of them are NaN: of one token, or of those with one expert; of one
 * column. ANY: of all; NONE: not one. What is between the products is H, rounded. */
enum { ANY = -1, NONE = -2 };
struct reach {
    int64_t token, expert, column;
};
struct seen {
    moegen_call *call;
    const float *out;
    float number; /* where nothing is NaN */
};

static void expect(const struct seen *s, struct reach at, const char *what)
{
    int wrong = 0;
    CHECK(!moegen_call_run(s->call, NULL));
    for (int64_t i = 0; i < S_ * H_; i++) {
        int64_t token = i / H_;
        bool nan = (at.token == ANY || token == at.token) &&
                   (at.expert == ANY || token % EXPERTS == at.expert) &&
                   (at.column == ANY || i % H_ == at.column);
        wrong += nan ? s->out[i] == s->out[i] : s->out[i] != s->number;
    }
    if (wrong)
        fprintf(stderr, "%s: %d outputs are wrong, the first one is %g\n", what, wrong,
                (double)s->out[0]);
    CHECK(wrong == 0);
}

/* What an element of an operand reaches: `token` and `column` say whether a contraction is one. */
struct role {
    bool token, column;
};

/* One byte at a time: some codes and scales of an operand. */
static void follow(const struct seen *s, const struct operand *o, struct role role, bool wrapped)
{
    struct element x = {0};
    do {
        struct reach at = {role.token ? x.f : ANY, o->experts > 1 ? x.expert : ANY,
                           role.column ? x.f : ANY};
        uint8_t *const bytes[] = {o->code + code_at(o, x, wrapped),
                                  o->scale + scale_at(o, x, wrapped)};
        const uint8_t nan[] = {NAN_CODE, NAN_SCALE};
        for (int i = 0; i < 2; i++) {
            uint8_t was = *bytes[i];
            *bytes[i] = nan[i];
            expect(s, at, o->name);
            *bytes[i] = was;
        }
    } while (next(o, &x, 37, o->F > 100 ? 41 : o->experts > 1 ? 13 : 3));
}

static const char *text_of(const char *start, bool wrapped, const struct operand *of)
{
    static char text[800];
    int n = snprintf(text, sizeof text,
                     "%s\nH: %d\nI_TP: %d\ndtype: f32\nactivation: relu\n"
                     "quantize: mxfp8_e4m3\nblock_order: %s\nprequantised:\n",
                     start, H_, I_, wrapped ? "wrapx" : "contiguous");
    for (int i = 0; i < OPERANDS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "  %s: {form: %s, scales: %s}\n",
                      of[i].name, form_name[of[i].form], scales_name[of[i].scales]);
    return text;
}

/* A call whose operands are bound, with its output. */
static moegen_call *call_of(moegen_kernel *kernel, struct operand *of, bool wrapped,
                            const char *output, float *out)
{
    moegen_call *call = NULL;
    const int64_t shape[] = {S_, H_};
    CHECK(kernel && !moegen_call_create(kernel, &call, NULL));
    for (int i = 0; i < OPERANDS; i++) {
        lay(&of[i], wrapped);
        bind_operand(call, &of[i]);
    }
    CHECK(!moegen_call_bind(call, output, out, MOEGEN_F32, 2, shape, NULL));
    return call;
}

static void follow_all(const struct seen *s, struct operand *of, const struct role *role,
                       bool wrapped)
{
    expect(s, (struct reach){NONE, NONE, NONE}, "nothing");
    for (int i = 0; i < OPERANDS; i++)
        follow(s, &of[i], role[i], wrapped);
    for (int i = 0; i < OPERANDS; i++)
        let_go(&of[i]);
}

/* Rows of K elements. */
static struct operand rows_of(const char *name, int64_t K, int64_t F, int form, int scales)
{
    return (struct operand){.name = name,
                            .K = K,
                            .F = F,
                            .experts = 1,
                            .parts = 1,
                            .k_step = 1,
                            .f_step = K,
                            .form = form,
                            .scales = scales,
                            .codes = {1, F, K, 1}};
}

static void try_mlp(moegen_engine *engine, bool wrapped, int form, int scales)
{
    static float out[S_ * H_];
    struct operand of[OPERANDS] = {
        rows_of("hidden_states", H_, S_, form, scales),
        rows_of("gate_up_weights", H_, I_, !form, scales),
        rows_of("down_proj_weight", I_, H_, form, (scales + 1) % SCALES)};
    const struct role role[OPERANDS] = {{.token = true}, {0}, {.column = true}};
    moegen_kernel *kernel = get(engine, text_of("kernel: mlp_forward\ngated: false", wrapped, of));
    struct seen s = {call_of(kernel, of, wrapped, "output", out), out, NEAR_H * I_};
    follow_all(&s, of, role, wrapped);
    moegen_call_release(s.call);
    moegen_kernel_release(kernel);
}

/* Weights [E, H, 2, I] and [E, I, H], or transposed; scales are along I, and along H. */
static void set_experts(struct operand *of, bool transposed)
{
    const int64_t gate_up[] = {EXPERTS, transposed ? 2 * I_ : H_, transposed ? H_ : 2 * I_, 1};
    const int64_t down[] = {EXPERTS, transposed ? H_ : I_, transposed ? I_ : H_, 1};
    of[1].experts = of[2].experts = EXPERTS;
    of[1].parts = 2;
    of[1].k_step = transposed ? H_ : 1;
    of[1].f_step = transposed ? 1 : 2 * I_;
    of[1].part_step = transposed ? I_ * H_ : I_;
    of[2].k_step = transposed ? I_ : 1;
    of[2].f_step = transposed ? 1 : H_;
    memcpy(of[1].codes, gate_up, sizeof gate_up);
    memcpy(of[2].codes, down, sizeof down);
    if (!transposed) { /* the gates are an extent of their own */
        const int64_t with_gates[] = {EXPERTS, H_, 2, I_};
        memcpy(of[1].codes, with_gates, sizeof with_gates);
    }
}

static void try_moe(moegen_engine *engine, bool wrapped, int form, int scales, bool transposed)
{
    static float out[S_ * H_], kept[EXPERTS * 2 * I_ * BLOCK], a[S_ * EXPERTS], da[S_ * EXPERTS];
    static int32_t ids[EXPERTS * BLOCK], experts[EXPERTS];
    const int64_t kept_shape[] = {EXPERTS, 2, I_, BLOCK}, a_shape[] = {S_ * EXPERTS, 1};
    const int64_t x_shape[] = {S_, H_}, ids_shape[] = {EXPERTS * BLOCK}, e_shape[] = {EXPERTS};
    static float x[S_ * H_];
    char start[160];
    struct operand of[OPERANDS] = {
        rows_of("output_hidden_states_grad", H_, S_, form, scales),
        rows_of("gate_up_proj_weight", I_, H_, !form, scales),
        rows_of("down_proj_weight", H_, I_, form, (scales + 1) % SCALES)};
    const struct role role[OPERANDS] = {{.token = true}, {.column = true}, {0}};
    set_experts(of, transposed);
    for (int i = 0; i < EXPERTS * 2 * I_ * BLOCK; i++)
        kept[i] = 1;
    for (int i = 0; i < EXPERTS * BLOCK; i++) {
        int token = i % BLOCK * EXPERTS + i / BLOCK;
        ids[i] = token < S_ ? token : -1;
        experts[i / BLOCK] = i / BLOCK;
    }
    snprintf(start, sizeof start,
             "kernel: moe_backward\nE: %d\ntop_k: 1\nblock_size: %d\nskip_token: true\n"
             "weight_grads: none\naffinity: {scale: none}\nweights: {layout: %s}",
             EXPERTS, BLOCK, transposed ? "transposed" : "plain");
    moegen_kernel *kernel = get(engine, text_of(start, wrapped, of));
    moegen_call *call = call_of(kernel, of, wrapped, "hidden_states_grad", out);
    const struct {
        const char *name;
        void *data;
        moegen_dtype dtype;
        int rank;
        const int64_t *shape;
    } bound[] = {{"hidden_states", x, MOEGEN_F32, 2, x_shape},
                 {"gate_up_proj_act_checkpoint_T", kept, MOEGEN_F32, 4, kept_shape},
                 {"expert_affinities_masked", a, MOEGEN_F32, 2, a_shape},
                 {"expert_affinities_masked_grad", da, MOEGEN_F32, 2, a_shape},
                 {"token_position_to_id", ids, MOEGEN_I32, 1, ids_shape},
                 {"block_to_expert", experts, MOEGEN_I32, 1, e_shape}};
    for (size_t i = 0; i < sizeof bound / sizeof *bound; i++)
        CHECK(!moegen_call_bind(call, bound[i].name, bound[i].data, bound[i].dtype, bound[i].rank,
                                bound[i].shape, NULL));
    struct seen s = {call, out, 2 * NEAR_H * I_};
    follow_all(&s, of, role, wrapped);
    moegen_call_release(call);
    moegen_kernel_release(kernel);
}

int main(void)
{
    moegen_engine *engine = NULL;
    moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = "", .threads = 1};
    CHECK(!moegen_engine_create(&o, &engine, NULL));
    for (int wrapped = 0; wrapped < 2; wrapped++)
        for (int scales = 0; scales < SCALES; scales++) {
            try_mlp(engine, wrapped, (scales + wrapped) % 2, scales);
            try_moe(engine, wrapped, (scales + wrapped) % 2, scales, scales % 2);
            try_moe(engine, wrapped, (scales + wrapped + 1) % 2, scales, scales % 2 == 0);
        }
    moegen_engine_release(engine);
    return failures != 0;
}
