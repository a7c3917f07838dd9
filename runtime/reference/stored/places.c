/* SPDX-License-Identifier: Apache-2.0 */
/*
 * places.c - where the elements of matrices, and their scales, lie in tensors (SEMANTICS 1.2, 1.3).
 * In every layout the place of an element is the sum of a number for its row and one for its
 * column.
 *
 * A new layout: one function (two if its scales are its own) and one row in `layouts`.
 */
#include <string.h>

#include "stored.h"

/* The column of the tensor that holds column c. */
static int64_t stored(const struct rt_matrix *x, int64_t c)
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

static void parts_of(const struct rt_matrix *x, struct rt_place *p)
{
    if (x->axis)
        extent(p, x->parts);
}

/* Places at stored column * each + row / run. */
static void put_places(const struct rt_matrix *x, struct rt_place *p, int64_t each, int64_t run)
{
    for (int64_t k = 0; k < x->K; k++)
        p->row[k] = k / run;
    for (int64_t c = 0; c < x->C; c++)
        p->column[c] = stored(x, c) * each;
}

/* ---- layouts: the extents after the experts', and the places ---- */

static void plain(const struct rt_matrix *x, struct rt_place *p)
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

static void transposed(const struct rt_matrix *x, struct rt_place *p)
{
    extent(p, x->C);
    extent(p, x->K);
    put_places(x, p, x->K, 1);
}

/* Runs of codes along K, of whole bytes or whole groups. */
static void contiguous(const struct rt_matrix *x, struct rt_place *p)
{
    int64_t groups = ceil_div(x->K, x->group), lanes = 8 / x->format->element->bits;
    int64_t bytes = x->format->blocked ? groups * (x->group / lanes) : ceil_div(x->K, lanes);
    extent(p, x->C);
    extent(p, x->format->blocked ? groups : bytes);
    if (x->format->blocked)
        extent(p, x->group / lanes);
    put_places(x, p, bytes * lanes, 1);
}

static void packed(const struct rt_matrix *x, struct rt_place *p)
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
static void nki_places(const struct rt_matrix *x, struct rt_place *p, int64_t run, int64_t lanes)
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

static void nki(const struct rt_matrix *x, struct rt_place *p)
{
    nki_places(x, p, 1, LANES);
}

static void nki_scales(const struct rt_matrix *x, struct rt_place *p)
{
    nki_places(x, p, RUN, 1);
}

/* [rows of p][parts][tiles][4] */
static void nki_bias(const struct rt_matrix *x, struct rt_place *p)
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

static void scale_of_row(const struct rt_matrix *x, struct rt_place *p)
{
    extent(p, 1);
    extent(p, x->C);
    put_places(x, p, 1, x->K);
}

static void scale_of_matrix(const struct rt_matrix *x, struct rt_place *p)
{
    parts_of(x, p);
    extent(p, 1);
    for (int64_t c = 0; c < x->C; c++)
        p->column[c] = c / x->width;
}

static void scale_of_block(const struct rt_matrix *x, struct rt_place *p)
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

static void scale_of_group(const struct rt_matrix *x, struct rt_place *p)
{
    int64_t across = ceil_div(x->K, x->group);
    extent(p, x->C);
    extent(p, across);
    put_places(x, p, across, x->group);
}

static void (*const scale_places[RT_SHARES])(const struct rt_matrix *x, struct rt_place *p) = {
    [RT_ROW] = scale_of_row,
    [RT_STATIC] = scale_of_matrix,
    [RT_BLOCK] = scale_of_block,
    [RT_GROUP] = scale_of_group,
};

rt_places *rt_scale_places(const struct rt_layout *l, const struct rt_matrix *x)
{
    return l->scales ? l->scales : scale_places[x->share];
}

void rt_second_scale(const struct rt_matrix *x, struct rt_place *p)
{
    parts_of(x, p);
    if (!x->E && !x->axis)
        extent(p, 1);
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

static const struct rt_layout layouts[] = {
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

const struct rt_layout *rt_layout_find(const char *name)
{
    for (int i = 0; i < LAYOUTS; i++)
        if (strcmp(layouts[i].name, name) == 0)
            return &layouts[i];
    return NULL;
}
