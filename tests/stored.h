/* SPDX-License-Identifier: Apache-2.0 */
/* stored.h - how the experts' matrices are stored, told from the tensors' side: which element of
 * the mathematics each code is, and what its bits mean. Included once by each test. */
#include <stdlib.h>

#include "coded.h"

enum layout { PLAIN, TRANSPOSED, CONTIGUOUS, NKI, LAYOUTS };
static const char *const layouts[] = {"plain", "transposed", "contiguous", "nki"};

/* ---- places ---- */

/* How a problem's matrices are stored. */
struct how {
    int64_t H, I, E;
    bool gated, interleaved, separate, shared;
    enum layout layout;
    const struct format *format; /* NULL: numbers */
    enum share share;
};

/* Is there such a way? Numbers have one share, which says nothing. */
static inline bool is_sound(const struct how *w)
{
    const struct format *f = w->format;
    if (!f)
        return w->layout <= TRANSPOSED && w->share == ROW && !w->shared;
    if (f->group)
        return w->share == GROUP &&
               (w->layout == CONTIGUOUS || (w->layout == NKI && f->scale == e8m0));
    return w->layout <= TRANSPOSED && (f->fp8 ? w->share != GROUP : w->share == ROW);
}

/* One tensor of matrices [K][C], parts of `width` columns that start at column `first`. */
struct piece {
    const char *weight, *scale, *second;
    int64_t K, parts, width, first;
    bool down, joined;
};

/* The tensors of a problem; returns how many. */
static int pieces(const struct how *w, struct piece to[3])
{
    int n = 0, gates = w->gated ? 2 : 1;
    if (w->separate && w->gated)
        to[n++] = (struct piece){.weight = "gate_proj_weight",
                                 .scale = "gate_proj_scale",
                                 .second = "gate_proj_scale_2",
                                 .K = w->H,
                                 .parts = 1,
                                 .width = w->I};
    if (w->separate)
        to[n++] = (struct piece){.weight = "up_proj_weight",
                                 .scale = "up_proj_scale",
                                 .second = "up_proj_scale_2",
                                 .K = w->H,
                                 .parts = 1,
                                 .width = w->I,
                                 .first = (gates - 1) * w->I};
    else
        to[n++] = (struct piece){.weight = "gate_up_proj_weight",
                                 .scale = "gate_up_proj_scale",
                                 .second = "gate_up_proj_scale_2",
                                 .K = w->H,
                                 .parts = gates,
                                 .width = w->I,
                                 .joined = true};
    to[n++] = (struct piece){.weight = "down_proj_weight",
                             .scale = "down_proj_scale",
                             .second = "down_proj_scale_2",
                             .K = w->I,
                             .parts = 1,
                             .width = w->H,
                             .down = true};
    return n;
}

/* What code n of an expert is: row k and column c of the piece, and the number of its scale among
 * the expert's. k -1: padding. */
struct spot {
    int64_t k, c, scale;
};

static int64_t up_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static struct spot nki_spot(const struct piece *x, int64_t n)
{
    int64_t q = n % 4, column = n / 4 % x->width, tiles = up_div(x->K, 512);
    int64_t tile = n / 4 / x->width % tiles, part = n / 4 / x->width / tiles % x->parts;
    int64_t p = n / 4 / x->width / tiles / x->parts;
    struct spot s = {0, part * x->width + column,
                     ((p / 8 * x->parts + part) * tiles + tile) * x->width + column};
    int64_t rest = x->K - 512 * tile, S = rest < 512 ? rest : 512;
    if (x->down)
        s.k = p < S / 4 ? 512 * tile + q * (S / 4) + p : -1;
    else
        s.k = q * (x->K / 4) + tile * 128 + p;
    return s;
}

/* `codes`: of a row along K in `contiguous`, padding included. */
static struct spot spot_of(const struct how *w, const struct piece *x, int64_t codes, int64_t n)
{
    int64_t C = x->parts * x->width, column = n / codes, k = n % codes;
    if (w->layout == NKI)
        return nki_spot(x, n);
    if (w->layout == PLAIN) {
        column = n % C;
        k = n / C;
    }
    bool turn = w->interleaved && x->parts == 2;
    struct spot s = {k < x->K ? k : -1, turn ? column % 2 * x->width + column / 2 : column, 0};
    int64_t group = w->format ? w->format->group : 0;
    if (w->share == ROW)
        s.scale = column;
    else if (w->share == STATIC)
        s.scale = s.c / x->width;
    else if (w->share == BLOCK)
        s.scale = column / 128 * up_div(x->K, 128) + k / 128;
    else if (group)
        s.scale = column * up_div(x->K, group) + k / group;
    return s;
}

/* ---- a problem's matrices in the order and the numbers of the mathematics ---- */

/* Codes of an expert: their number, and those of a row along K. */
static int64_t count_codes(const struct how *w, const struct piece *x, const moegen_rt_tensor *t,
                           int64_t *row)
{
    int64_t bits = w->format ? w->format->bits : 8 * (int64_t)moegen_rt_dtype_of(t->dtype)->bytes;
    int64_t all = (int64_t)t->bytes * 8 / bits / w->E;
    *row = w->layout == CONTIGUOUS ? all / (x->parts * x->width) : x->K;
    return all;
}

/* Code n of expert e as a number, without its scales. */
static double element(const struct how *w, const moegen_rt_tensor *t, int64_t n)
{
    return w->format ? w->format->value(code_at(t, w->format->bits, n)) : number(t, n);
}

/* What scales a spot of expert e; t and second: the tensors of scales. */
static double scale_of(const struct how *w, const moegen_rt_tensor *t,
                       const moegen_rt_tensor *second, const struct piece *x, int64_t e,
                       const struct spot *s)
{
    if (!t)
        return 1;
    int64_t sets = w->shared ? 1 : w->E, each = moegen_rt_tensor_count(t) / sets;
    int64_t at = (w->shared ? 0 : e * each) + s->scale;
    double scale = w->format->scale ? w->format->scale(((uint8_t *)t->data)[at]) : number(t, at);
    int64_t part = s->c / x->width;
    return second ? scale * number(second, (w->shared ? 0 : e * x->parts) + part) : scale;
}

/* Every code of a piece: give(number of the code, canonical index, scale). */
#define EACH_CODE(w, x, t, e, n, s)                                                                \
    for (int64_t row_, all_ = count_codes(w, x, t, &row_), e = 0; e < (w)->E; e++)                 \
        for (int64_t n = 0; n < all_; n++)                                                         \
            for (struct spot s = spot_of(w, x, row_, n), *once_ = &s; once_; once_ = NULL)

/* Adds the matrices as f64 in `plain`: gate_up_proj_weight, down_proj_weight, and the bias of gate
 * and up, if p has one. Every element must be in one place. */
static inline void add_plain(const struct how *w, const moegen_rt_problem *p, moegen_rt_problem *q)
{
    int64_t gates = w->gated ? 2 : 1, C = gates * w->I;
    int64_t shapes[2][4] = {{w->E, w->H, gates, w->I}, {w->E, w->I, w->H}};
    struct piece all[3];
    moegen_rt_tensor *to[2];
    moegen_rt_problem_add(q, "gate_up_proj_weight", MOEGEN_RT_F64, 4, shapes[0], &to[0], NULL);
    moegen_rt_problem_add(q, "down_proj_weight", MOEGEN_RT_F64, 3, shapes[1], &to[1], NULL);
    int64_t left = moegen_rt_tensor_count(to[0]) + moegen_rt_tensor_count(to[1]);
    for (int i = 0, count = pieces(w, all); i < count; i++) {
        const struct piece *x = &all[i];
        const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, x->weight),
                               *scale = moegen_rt_problem_tensor(p, x->scale),
                               *second = moegen_rt_problem_tensor(p, x->second);
        CHECK(t && !scale == !w->format && !second == !(w->format && w->format->second),
              "tensors of %s", x->weight);
        double *data = to[x->down]->data;
        int64_t columns = x->down ? w->H : C;
        if (!t)
            continue;
        EACH_CODE(w, x, t, e, n, s)
        {
            if (s.k < 0)
                continue;
            data[(e * x->K + s.k) * columns + x->first + s.c] =
                element(w, t, e * all_ + n) * scale_of(w, scale, second, x, e, &s);
            left--;
        }
    }
    CHECK(left == 0, "%lld elements are nowhere, or some twice", (long long)left);
}

/* Column of gate and up that element n of an expert's bias is of; -1: none. */
static int64_t bias_column(const struct how *w, int64_t n)
{
    int64_t gates = w->gated ? 2 : 1, tiles = up_div(w->I, 512);
    if (w->layout == NKI) {
        int64_t q = n % 4, tile = n / 4 % tiles, part = n / 4 / tiles % gates;
        int64_t p = n / 4 / tiles / gates, rest = w->I - 512 * tile, S = rest < 512 ? rest : 512;
        return p < S / 4 ? part * w->I + 512 * tile + q * (S / 4) + p : -1;
    }
    return w->interleaved && w->gated ? n % 2 * w->I + n / 2 : n;
}

/* [E][gates * I] of a bias, or its gradient. */
static inline void plain_bias(const struct how *w, const moegen_rt_tensor *t, double *to)
{
    int64_t C = (w->gated ? 2 : 1) * w->I, each = moegen_rt_tensor_count(t) / w->E;
    for (int64_t e = 0; e < w->E; e++)
        for (int64_t n = 0; n < each; n++)
            if (bias_column(w, n) >= 0)
                to[e * C + bias_column(w, n)] = number(t, e * each + n);
}

/* ---- problems ---- */

/* "key value ..." of how the matrices are stored. */
static void say(const struct how *w, char *to, size_t size)
{
    int n = snprintf(to, size, "weights.layout %s", layouts[w->layout]);
    if (w->interleaved)
        n += snprintf(to + n, size - (size_t)n, " weights.gate_up_order interleaved");
    if (w->separate)
        n += snprintf(to + n, size - (size_t)n, " weights.gate_up separate");
    if (!w->format)
        return;
    n += snprintf(to + n, size - (size_t)n, " weights.dtype %s", w->format->name);
    if (w->format->fp8)
        n += snprintf(to + n, size - (size_t)n, " weights.scale %s", shares[w->share]);
    if (w->format->group == 128)
        n += snprintf(to + n, size - (size_t)n, " weights.group 128");
    if (w->shared)
        snprintf(to + n, size - (size_t)n, " weights.shared true");
}

/* A problem of the family, filled. */
static moegen_rt_problem *stored_problem(const struct how *w, const char *family, const char *more)
{
    char text[256];
    moegen_rt_problem *p = moegen_rt_problem_create();
    snprintf(text, sizeof text, "H %lld I_TP %lld E %lld top_k 2 block_size 4 gated %s",
             (long long)w->H, (long long)w->I, (long long)w->E, w->gated ? "true" : "false");
    set(p, text);
    set(p, more);
    say(w, text, sizeof text);
    set(p, text);
    fill(p, family, 9, "uniform");
    return p;
}

/* The same problem with the matrices of the mathematics. */
static inline moegen_rt_problem *plain_problem(const struct how *w, const moegen_rt_problem *p,
                                               const char *more)
{
    char text[256];
    moegen_rt_problem *q = moegen_rt_problem_create();
    snprintf(text, sizeof text, "H %lld I_TP %lld E %lld top_k 2 block_size 4 gated %s",
             (long long)w->H, (long long)w->I, (long long)w->E, w->gated ? "true" : "false");
    set(q, text);
    set(q, more);
    for (size_t i = 0; moegen_rt_problem_at(p, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(p, i);
        moegen_rt_problem_lend(q, t->name, t->dtype, t->rank, t->shape, t->data, NULL);
    }
    add_plain(w, p, q);
    const moegen_rt_tensor *bias = moegen_rt_problem_tensor(p, "gate_and_up_proj_bias");
    int64_t shape[] = {w->E, w->gated ? 2 : 1, w->I};
    moegen_rt_tensor *to = NULL;
    if (bias)
        moegen_rt_problem_add(q, "gate_and_up_proj_bias", MOEGEN_RT_F64, 3, shape, &to, NULL);
    if (to)
        plain_bias(w, bias, to->data);
    return q;
}
