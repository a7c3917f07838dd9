/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weights_lay.c - where the elements of the experts' matrices, and their scales, lie in the tensors
 * (SEMANTICS 1.2, 1.3). In every layout the place of an element is the sum of a number for its row
 * and one for its column.
 *
 * A new layout: one function (two if its scales are its own) and one row in `layouts`.
 */
#include <stdlib.h>
#include <string.h>

#include "reference.h"

/* The matrix at hand: [K][C], its columns in `parts` of `width`. */
struct matrix {
    enum rt_kind kind;
    int64_t K, C, parts, width;
    bool axis;        /* the tensor has an axis for the parts, unless they are interleaved */
    bool interleaved; /* columns of the parts in turn */
    const struct rt_format *format; /* NULL: numbers */
    enum rt_share share;
    int64_t group;
    struct rt_packed packed; /* run 0: not packed */
};

/* The column of the tensor that holds column c. */
static int64_t stored(const struct matrix *x, int64_t c)
{
    return x->interleaved ? c % x->width * x->parts + c / x->width : c;
}

static int64_t ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

/* Appends an extent to the shape. */
static void extent(struct rt_place *p, int64_t n)
{
    p->shape[p->rank++] = n;
}

static void parts_of(const struct matrix *x, struct rt_place *p)
{
    if (x->axis)
        extent(p, x->parts);
}

/* Places at stored column * each + row / run. */
static void put_places(const struct matrix *x, struct rt_place *p, int64_t each, int64_t run)
{
    for (int64_t k = 0; k < x->K; k++)
        p->row[k] = k / run;
    for (int64_t c = 0; c < x->C; c++)
        p->column[c] = stored(x, c) * each;
}

/* ---- layouts: the extents after the experts', and the places ---- */

static void plain(const struct matrix *x, struct rt_place *p)
{
    if (x->kind != RT_GATE_UP_BIAS)
        extent(p, x->K);
    if (!x->interleaved)
        parts_of(x, p);
    extent(p, x->axis && !x->interleaved ? x->width : x->C);
    for (int64_t k = 0; k < x->K; k++)
        p->row[k] = k * x->C;
    for (int64_t c = 0; c < x->C; c++)
        p->column[c] = stored(x, c);
}

static void transposed(const struct matrix *x, struct rt_place *p)
{
    extent(p, x->C);
    extent(p, x->K);
    put_places(x, p, x->K, 1);
}

/* Runs of codes along K, of whole bytes or whole groups. */
static void contiguous(const struct matrix *x, struct rt_place *p)
{
    int64_t groups = ceil_div(x->K, x->group), lanes = 8 / x->format->element->bits;
    int64_t bytes = x->format->blocked ? groups * (x->group / lanes) : ceil_div(x->K, lanes);
    extent(p, x->C);
    extent(p, x->format->blocked ? groups : bytes);
    if (x->format->blocked)
        extent(p, x->group / lanes);
    put_places(x, p, bytes * lanes, 1);
}

static void packed(const struct matrix *x, struct rt_place *p)
{
    const struct rt_packed *l = &x->packed;
    bool back = (l->is.order & RT_PACKED_BACK) != 0; /* columns are contracted */
    extent(p, l->each);
    for (int64_t k = 0; k < x->K; k++)
        p->row[k] = back ? k * l->run : rt_packed_at(l, 0, k);
    for (int64_t c = 0; c < x->C; c++)
        p->column[c] = back ? rt_packed_at(l, 0, stored(x, c)) : stored(x, c) * l->run;
}

/* nki: four codes make an element of the tensor. Stored column q * (H/4) + t * 128 + p of the
 * hidden states is (t, p, q) of gate and up's contraction. Column i of these is in tile n of
 * TILE; with S columns in it, r = i - n * TILE is (r mod S/4, r div S/4) = (p, q) of down's. */
enum { TILE = 512, LANES = 4, DEEP = 128, RUN = 8 /* p that share a scale, with all q */ };

static int64_t tile_rows(int64_t n)
{
    return n < TILE ? n / LANES : DEEP;
}

struct coordinates {
    int64_t p, tile, q;
};

static struct coordinates of_hidden(int64_t k, int64_t H)
{
    int64_t r = k % (H / LANES);
    return (struct coordinates){r % DEEP, r / DEEP, k / (H / LANES)};
}

static struct coordinates of_intermediate(int64_t i, int64_t I)
{
    int64_t tile = i / TILE, rest = I - tile * TILE, quarter = (rest < TILE ? rest : TILE) / LANES;
    return (struct coordinates){i % TILE % quarter, tile, i % TILE / quarter};
}

/* [rows of p / run][parts][tiles][columns] of `lanes` codes each. */
static void nki_places(const struct matrix *x, struct rt_place *p, int64_t run, int64_t lanes)
{
    bool down = x->kind == RT_DOWN;
    int64_t deep = ceil_div(x->K, TILE), across = x->parts * deep * x->width;
    extent(p, ceil_div(down ? tile_rows(x->K) : DEEP, run));
    parts_of(x, p);
    extent(p, deep);
    extent(p, x->width);
    for (int64_t k = 0; k < x->K; k++) {
        struct coordinates at = down ? of_intermediate(k, x->K) : of_hidden(k, x->K);
        p->row[k] = (at.p / run * across + at.tile * x->width) * lanes + (lanes > 1 ? at.q : 0);
    }
    for (int64_t c = 0; c < x->C; c++)
        p->column[c] = (c / x->width * deep * x->width + c % x->width) * lanes;
}

static void nki(const struct matrix *x, struct rt_place *p)
{
    nki_places(x, p, 1, LANES);
}

static void nki_scales(const struct matrix *x, struct rt_place *p)
{
    nki_places(x, p, RUN, 1);
}

/* [rows of p][parts][tiles][4] */
static void nki_bias(const struct matrix *x, struct rt_place *p)
{
    int64_t wide = ceil_div(x->width, TILE), rows = tile_rows(x->width);
    extent(p, rows);
    extent(p, x->parts);
    extent(p, wide);
    extent(p, LANES);
    for (int64_t c = 0; c < x->C; c++) {
        struct coordinates at = of_intermediate(c % x->width, x->width);
        int64_t part = c / x->width;
        p->column[c] = ((at.p * x->parts + part) * wide + at.tile) * LANES + at.q;
    }
}

/* ---- scales, where the layout does not say: by what shares one ---- */

static void scale_of_row(const struct matrix *x, struct rt_place *p)
{
    extent(p, 1);
    extent(p, x->C);
    put_places(x, p, 1, x->K);
}

static void scale_of_matrix(const struct matrix *x, struct rt_place *p)
{
    parts_of(x, p);
    extent(p, 1);
    for (int64_t c = 0; c < x->C; c++)
        p->column[c] = c / x->width;
}

static void scale_of_block(const struct matrix *x, struct rt_place *p)
{
    const struct rt_sharing *of = &rt_sharings[RT_BLOCK];
    int64_t across = ceil_div(x->K, of->in);
    extent(p, ceil_div(x->C, of->out));
    extent(p, across);
    for (int64_t k = 0; k < x->K; k++)
        p->row[k] = k / of->in;
    for (int64_t c = 0; c < x->C; c++)
        p->column[c] = stored(x, c) / of->out * across;
}

static void scale_of_group(const struct matrix *x, struct rt_place *p)
{
    int64_t across = ceil_div(x->K, x->group);
    extent(p, x->C);
    extent(p, across);
    put_places(x, p, across, x->group);
}

static void (*const scale_places[RT_SHARES])(const struct matrix *x, struct rt_place *p) = {
    [RT_ROW] = scale_of_row,
    [RT_STATIC] = scale_of_matrix,
    [RT_BLOCK] = scale_of_block,
    [RT_GROUP] = scale_of_group,
};

/* One more for each matrix. */
static void second_scale(const struct matrix *x, struct rt_place *p)
{
    parts_of(x, p);
    for (int64_t c = 0; c < x->C; c++)
        p->column[c] = c / x->width;
}

/* ---- the table ---- */

static bool single(const struct rt_format *f)
{
    return !f || !rt_format_grouped(f);
}

static bool grouped(const struct rt_format *f)
{
    return f && rt_format_grouped(f);
}

static bool powers(const struct rt_format *f)
{
    return f && rt_format_has_rule(f);
}

typedef void places(const struct matrix *x, struct rt_place *p);
static const struct layout {
    const char *name;
    int64_t of_H, of_I; /* these must be multiples of it */
    int lanes;          /* codes of an element of the tensor; 0: those of a byte */
    bool (*holds)(const struct rt_format *f);
    places *codes, *scales, *bias; /* scales NULL: by what shares one */
} layouts[] = {
    /* clang-format off */
    /* name        of_H  of_I   lanes  holds    codes       scales      bias */
    {"plain",      1,    1,     1,     single,  plain,      NULL,       plain},
    {"transposed", 1,    1,     1,     single,  transposed, NULL,       plain},
    {"packed",     1,    1,     1,     single,  packed,     NULL,       plain},
    {"contiguous", 1,    1,     0,     grouped, contiguous, NULL,       plain},
    {"nki",        TILE, LANES, LANES, powers,  nki,        nki_scales, nki_bias},
    /* clang-format on */
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* Names of a kind's tensors, and of those of gate and up apart. */
struct names {
    const char *weight, *scale, *second;
};
static const struct names joined[RT_KINDS] = {
    [RT_GATE_UP] = {"gate_up_proj_weight", "gate_up_proj_scale", "gate_up_proj_scale_2"},
    [RT_DOWN] = {"down_proj_weight", "down_proj_scale", "down_proj_scale_2"},
    [RT_GATE_UP_BIAS] = {"gate_and_up_proj_bias", NULL, NULL},
};
static const struct names apart[] = {
    {"gate_proj_weight", "gate_proj_scale", "gate_proj_scale_2"},
    {"up_proj_weight", "up_proj_scale", "up_proj_scale_2"},
};

/* ---- what the spec says ---- */

static bool is(const moegen_rt_problem *p, const char *key, const char *value,
               const char *otherwise)
{
    return strcmp(moegen_rt_problem_text(p, key, otherwise), value) == 0;
}

static moegen_rt_status find_layout(const moegen_rt_problem *p, const struct rt_moe *m,
                                    const struct rt_format *f, const struct layout **layout,
                                    moegen_rt_error *err)
{
    const char *name = moegen_rt_problem_text(p, "weights.layout", "plain");
    const struct layout *l = layouts;
    while (l < layouts + LAYOUTS && strcmp(l->name, name) != 0)
        l++;
    *layout = l;
    if (l == layouts + LAYOUTS)
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED,
                       "weights.layout: the float64 reference does not read '%s'", name);
    if (!l->holds(f))
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED, "weights.layout: %s does not hold %s", name,
                       f ? f->name : "numbers without scales");
    if (m->H % l->of_H || m->I % l->of_I)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT,
                       "weights.layout: %s needs a multiple of %lld for H, here %lld, and of %lld "
                       "for I_TP, here %lld",
                       name, (long long)l->of_H, (long long)m->H, (long long)l->of_I,
                       (long long)m->I);
    return MOEGEN_RT_OK;
}

static moegen_rt_status find_format(const moegen_rt_problem *p, struct rt_weights *w,
                                    struct matrix *x, moegen_rt_error *err)
{
    const char *scale = moegen_rt_problem_text(p, "weights.scale", NULL);
    w->format = x->format = rt_weights_format(p);
    if (!w->format)
        return MOEGEN_RT_OK;
    w->share = x->share = rt_format_share(w->format, scale);
    if (w->share == RT_SHARES)
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED, "weights.scale: %s has no scale '%s'",
                       w->format->name, scale);
    x->group = moegen_rt_problem_int(p, "weights.group", w->format->groups[0]);
    bool known = w->share != RT_GROUP;
    for (int i = 0; i < 3 && w->format->groups[i] && !known; i++)
        known = x->group == w->format->groups[i];
    return known ? MOEGEN_RT_OK
                 : rt_fail(err, MOEGEN_RT_UNSUPPORTED, "weights.group: %s has no groups of %lld",
                           w->format->name, (long long)x->group);
}

/* ---- the tensors of a kind ---- */

static bool lay_place(const struct matrix *x, places *how, int64_t E, bool shared,
                      struct rt_place *p)
{
    p->row = calloc((size_t)(x->K + x->C), sizeof *p->row);
    if (!p->row)
        return false;
    p->column = p->row + x->K;
    extent(p, shared ? 1 : E);
    how(x, p);
    p->count = 1;
    for (int i = 1; i < p->rank; i++)
        p->count *= p->shape[i];
    p->each = shared ? 0 : p->count;
    return true;
}

static moegen_rt_status lay_tensors(const struct layout *l, const struct matrix *x,
                                    const struct names *names, int64_t E, bool shared,
                                    struct rt_stored *to, moegen_rt_error *err)
{
    const struct rt_format *f = x->format;
    bool bias = x->kind == RT_GATE_UP_BIAS, ok;
    *to = (struct rt_stored){.name = names->weight,
                             .scale_name = names->scale,
                             .second_name = names->second,
                             .C = x->C,
                             .lanes = bias || !f ? 1
                                      : l->lanes ? l->lanes
                                                 : 8 / f->element->bits};
    ok = lay_place(x, bias ? l->bias : l->codes, E, false, &to->code);
    to->code.each *= to->lanes;
    if (ok && f && !bias)
        ok = lay_place(x, l->scales ? l->scales : scale_places[x->share], E, shared, &to->scale);
    if (ok && f && !bias && f->second)
        ok = lay_place(x, second_scale, E, shared, &to->second);
    return ok ? MOEGEN_RT_OK : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
}

moegen_rt_status rt_weights_lay(const moegen_rt_problem *p, const struct rt_moe *m,
                                enum rt_kind kind, struct rt_weights *w, moegen_rt_error *err)
{
    const struct layout *l = NULL;
    bool down = kind == RT_DOWN, shared = moegen_rt_problem_bool(p, "weights.shared", 0);
    bool separate = kind == RT_GATE_UP && is(p, "weights.gate_up", "separate", "joined");
    int64_t K = down ? m->I : m->H;
    struct matrix x = {.kind = kind,
                       .K = kind == RT_GATE_UP_BIAS ? 1 : K,
                       .width = down ? m->H : m->I,
                       .parts = down || separate ? 1 : m->parts,
                       .axis = !down && !separate};
    x.C = x.parts * x.width;
    x.interleaved = x.parts > 1 && is(p, "weights.gate_up_order", "interleaved", "split");
    *w = (struct rt_weights){
        .kind = kind, .E = m->E, .K = x.K, .expert = -1, .whole = joined[kind].weight};
    w->C = down ? m->H : m->parts * m->I;
    moegen_rt_status status = find_format(p, w, &x, err);
    if (status == MOEGEN_RT_OK)
        status = find_layout(p, m, w->format, &l, err);
    if (status == MOEGEN_RT_OK && kind != RT_GATE_UP_BIAS)
        status = rt_packed_of(p, moegen_rt_problem_text(p, "weights.dtype", ""), x.K, x.C, x.parts,
                              x.interleaved, &x.packed, err);
    int count = separate ? (int)m->parts : 1;
    for (int i = 0; i < count && status == MOEGEN_RT_OK; i++) {
        const struct names *names = separate ? &apart[2 - count + i] : &joined[kind];
        status = lay_tensors(l, &x, names, m->E, shared, &w->of[i], err);
        w->of[i].first = i * x.width;
        w->of[i].packed = x.packed;
        w->count++;
    }
    w->format = kind == RT_GATE_UP_BIAS ? NULL : w->format; /* a bias has none */
    w->canonical = status == MOEGEN_RT_OK && rt_weights_canonical(w);
    return status;
}
