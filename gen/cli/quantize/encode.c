/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c - a tensor of floats to codes and scales. */
#include <stdlib.h>
#include <string.h>

#include "quantize.h"
#include "work.h"

struct encoding {
    struct work w;
    const moegen_rt_tensor *from;
    void *scales;
    float *second;
    uint32_t *most;  /* of each scale, or of each row where there is a second scale */
    double *inverse; /* of each scale, where a group is not of one row */
    int64_t *nans;   /* of each rank */
    bool measure;    /* only the largest magnitudes of rows */
};

/* n elements of what is stored, from element `at` on, as f32. */
static const float *floats(const struct encoding *e, int64_t at, int64_t n, float *space)
{
    size_t bytes = moegen_rt_dtype_of(e->from->dtype)->bytes;
    const char *data = (const char *)e->from->data + (size_t)at * bytes;
    if (e->from->dtype == MOEGEN_RT_F32)
        return (const float *)(const void *)data;
    moegen_rt_convert(e->from->dtype, data, MOEGEN_RT_F32, space, (size_t)n);
    return space;
}

/* Asks memory for n of these, as far as there are any: what lies far apart no CPU fetches ahead. */
static void fetch(const struct encoding *e, int64_t at, int64_t n)
{
    enum { LINE = 64 };
    int64_t bytes = (int64_t)moegen_rt_dtype_of(e->from->dtype)->bytes;
    int64_t from = at * bytes, end = from + n * bytes, all = (int64_t)e->from->bytes;
    for (end = end < all ? end : all; from < end; from += LINE)
        __builtin_prefetch((const char *)e->from->data + from);
}

static int64_t put_scale(struct encoding *e, int64_t at, uint32_t most, double second,
                         double *inverse)
{
    uint32_t code = rt_rows_scale_code(&e->w.rows, e->w.store->rule, most, second, inverse);
    rt_format_put_scale(e->w.store->format, e->scales, at, code);
    return most >= 0x7f800000;
}

/* ---- groups along rows [out, in] ---- */

/* Elements first .. end-1 of a row; panel: those of rows that were turned, or NULL. */
struct part {
    int64_t row, first, end;
    const float *panel;
};

static const float *span(const struct encoding *e, const struct part *p, int64_t i, int64_t n,
                         struct space *to)
{
    return p->panel ? p->panel + i - p->first : floats(e, p->row * e->w.store->in + i, n, to->x);
}

static int64_t span_length(int64_t left)
{
    return left < PIECE ? left : PIECE;
}

static void raise_to(uint32_t *most, uint32_t by)
{
    *most = by > *most ? by : *most;
}

/* The largest of what is finite, in groups that are. */
static void measure_part(struct encoding *e, const struct part *p, struct space *to)
{
    const int64_t group = e->w.store->group;
    for (int64_t i = p->first, n; i < p->end; i += n) {
        n = span_length(p->end - i);
        const float *x = span(e, p, i, n, to);
        uint32_t whole = rt_rows_most(x, n);
        for (int64_t k = 0; k < n && whole >= 0x7f800000; k += group) {
            uint32_t most = rt_rows_most(x + k, group);
            raise_to(&e->most[p->row], most < 0x7f800000 ? most : 0);
        }
        raise_to(&e->most[p->row], whole < 0x7f800000 ? whole : 0);
    }
}

/* codes: those of the row. */
static int64_t encode_part(struct encoding *e, const struct part *p, uint8_t *codes,
                           struct space *to)
{
    const struct store *s = e->w.store;
    double second = 1;
    int64_t nans = 0, row = p->row;
    if (e->second)
        second = (double)e->second[row / s->out * s->per_second + store_part(s, row % s->out)];
    for (int64_t i = p->first, n; i < p->end; i += n) {
        n = span_length(p->end - i);
        nans += rt_rows_groups(&e->w.rows, s->rule, span(e, p, i, n, to), n, s->group, second,
                               e->scales, row * s->cut.columns + i / s->group, to->q);
        rt_rows_codes(&e->w.rows, to->q, n, codes + rt_format_bytes(s->format, i), to->bytes);
    }
    return nans;
}

/* Elements first .. end-1 of rows of a matrix [in, out], turned. */
static void turn(const struct encoding *e, const struct rows *r, int64_t first, int64_t end,
                 struct space *to)
{
    enum { AHEAD = 8 }; /* rows of the tensor */
    const struct store *s = e->w.store;
    for (int64_t i = first; i < end; i++) {
        fetch(e, (r->matrix * s->in + i + AHEAD) * s->out + r->first, r->count);
        const float *x = floats(e, (r->matrix * s->in + i) * s->out + r->first, r->count, to->x);
        for (int64_t j = 0; j < r->count; j++)
            to->panel[j * e->w.stride + i - first] = x[j];
    }
}

static int64_t encode_rows(struct encoding *e, int64_t unit, struct space *to)
{
    const struct store *s = e->w.store;
    const struct rows r = work_rows(&e->w, unit);
    const int64_t bytes = rt_format_bytes(s->format, s->in), first = r.matrix * s->out + r.first;
    const int64_t length = s->in_first ? SLAB : s->in;
    uint8_t *all = NULL; /* codes of all rows, which are made a slab at a time */
    int64_t nans = 0;
    if (s->in_first && !e->measure)
        all = work_take(&e->w, to, first * bytes, (size_t)(r.count * bytes));
    for (int64_t k = 0; k < s->in; k += length) {
        struct part p = {.first = k, .end = k + length < s->in ? k + length : s->in};
        if (s->in_first)
            turn(e, &r, p.first, p.end, to);
        for (int64_t j = 0; j < r.count; j++) {
            p.row = first + j;
            p.panel = s->in_first ? to->panel + j * e->w.stride : NULL;
            if (e->measure)
                measure_part(e, &p, to);
            else if (all)
                nans += encode_part(e, &p, all + j * bytes, to);
            else
                nans += encode_part(e, &p, work_take(&e->w, to, p.row * bytes, (size_t)bytes), to);
        }
    }
    return nans;
}

/* ---- other parts of a matrix, as it is stored ---- */

static uint32_t *most_of(struct encoding *e, const struct rect *r, int64_t row, int64_t column)
{
    return &e->most[work_scale(&e->w, r, row, column)];
}

/* Columns from c on that are of its run and end before `end`. */
static int64_t run_length(const struct rect *r, int64_t c, int64_t end)
{
    int64_t left = r->run - (c - r->c0) % r->run;
    return left < end - c ? left : end - c;
}

static void measure_rect(struct encoding *e, const struct rect *r, struct space *to)
{
    if (r->each)
        memset(to->most, 0, (size_t)(r->c1 - r->c0) * sizeof *to->most);
    for (int64_t row = r->r0; row < r->r1; row++)
        for (int64_t c = r->c0, end, n; c < r->c1; c = end) {
            end = c + span_length(r->c1 - c);
            const float *x = floats(e, work_at(&e->w, r, row) + c - r->c0, end - c, to->x);
            if (r->each)
                rt_rows_raise(x, end - c, to->most + c - r->c0);
            for (int64_t at = c; at < end && !r->each; at += n) {
                n = run_length(r, at, end);
                raise_to(most_of(e, r, row, at), rt_rows_most(x + at - c, n));
            }
        }
    for (int64_t c = r->c0; c < r->c1 && r->each; c++)
        raise_to(most_of(e, r, r->r0, c), to->most[c - r->c0]);
}

static void encode_span(struct encoding *e, const struct rect *r, int64_t row, int64_t c,
                        int64_t end, uint8_t *codes, struct space *to)
{
    const float *x = floats(e, work_at(&e->w, r, row) + c - r->c0, end - c, to->x);
    if (r->each)
        rt_rows_scale_each(x, end - c, to->each + c - r->c0, to->q);
    for (int64_t at = c, n; at < end && !r->each; at += n) {
        n = run_length(r, at, end);
        rt_rows_scale(&e->w.rows, x + at - c, n, e->inverse[work_scale(&e->w, r, row, at)],
                      to->q + at - c);
    }
    rt_rows_codes(&e->w.rows, to->q, end - c, codes, to->bytes);
}

static int64_t encode_rect(struct encoding *e, int64_t unit, struct space *to)
{
    struct rect r = work_rect(&e->w, unit);
    int64_t nans = 0;
    measure_rect(e, &r, to);
    for (int64_t i = 0, at = r.scale; i < r.scales; i++, at += r.step)
        nans += put_scale(e, at, e->most[at], 1, &e->inverse[at]);
    for (int64_t c = r.c0; c < r.c1 && r.each; c++)
        to->each[c - r.c0] = e->inverse[work_scale(&e->w, &r, r.r0, c)];
    for (int64_t row = r.r0; row < r.r1; row++) {
        uint8_t *codes = work_take(&e->w, to, work_at(&e->w, &r, row), (size_t)(r.c1 - r.c0));
        for (int64_t c = r.c0, end; c < r.c1; c = end) {
            end = c + span_length(r.c1 - c);
            encode_span(e, &r, row, c, end, codes + c - r.c0, to);
        }
    }
    return nans;
}

/* ---- all of it ---- */

static void on_rank(void *ctx, const moegen_worker *worker)
{
    struct encoding *e = ctx;
    int64_t rank = worker ? worker->rank : 0, size = worker ? worker->size : 1;
    struct space space = work_space(&e->w, rank);
    for (int64_t unit = rank; unit < e->w.units; unit += size)
        e->nans[rank] +=
            e->w.store->group ? encode_rows(e, unit, &space) : encode_rect(e, unit, &space);
    work_flush(&e->w, &space);
}

static void put_seconds(struct encoding *e)
{
    const struct store *s = e->w.store;
    for (int64_t k = 0; k < s->count * s->per_second; k++) {
        int64_t matrix = k / s->per_second, part = k % s->per_second;
        uint32_t most = 0;
        for (int64_t o = 0; o < s->out; o++)
            if (store_part(s, o) == part)
                raise_to(&most, e->most[matrix * s->out + o]);
        e->second[k] = rt_format_second(s->format, rt_rows_amax(most));
    }
}

bool store_encode(const struct store *s, const moegen_rt_tensor *from, const struct sink *codes,
                  moegen_rt_tensor *scales, moegen_rt_tensor *second, moegen_rt_team *team,
                  int64_t *nans)
{
    struct encoding e = {
        .from = from, .scales = scales->data, .second = second ? second->data : NULL};
    int size = moegen_rt_team_size(team);
    size_t scale_count = (size_t)(s->count * (s->group ? s->out : s->per)) + 1;
    bool turned = s->in_first && s->group;
    int64_t rows = turned ? TURNED : PANEL, length = turned ? SLAB : s->in;
    size_t row = (size_t)rt_format_bytes(s->format, s->in_first && !s->group ? s->out : s->in);
    bool ok = work_open(&e.w, s, codes, rows, length, turned ? TURNED * row : row, size);
    e.most = calloc(s->group && !second ? 1 : scale_count, sizeof *e.most);
    e.inverse = calloc(s->group ? 1 : scale_count, sizeof *e.inverse);
    e.nans = calloc((size_t)size, sizeof *e.nans);
    ok = ok && e.most && e.inverse && e.nans;
    if (ok && !e.w.units) /* nothing to scale */
        memset(e.scales, 0, scales->bytes);
    if (ok && second) {
        e.measure = true;
        ok = moegen_rt_team_run(team, on_rank, &e) == MOEGEN_RT_OK;
        put_seconds(&e);
        e.measure = false;
    }
    ok = ok && moegen_rt_team_run(team, on_rank, &e) == MOEGEN_RT_OK;
    *nans = 0;
    for (int i = 0; ok && i < size; i++)
        *nans += e.nans[i];
    free(e.most);
    free(e.inverse);
    free(e.nans);
    work_close(&e.w);
    return ok;
}
