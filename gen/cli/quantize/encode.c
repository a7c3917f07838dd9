/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c - a tensor of floats to codes and scales. */
#include <stdlib.h>
#include <string.h>

#include "packed.h"
#include "quantize.h"
#include "work.h"

struct encoding {
    struct work w;
    const moegen_rt_tensor *from;
    struct rt_grouping how; /* its dtype: what values() gives */
    size_t bytes;           /* of a value of that */
    void *scales;
    float *second;
    uint32_t *most;         /* of each scale, or of each row where there is a second scale */
    double *inverse, *lean; /* of each scale, where a group is not of one row */
    struct rt_second *seconds;
    int64_t *nans; /* of each rank */
    bool measure;  /* only the largest magnitudes: a second scale, or one of columns, needs all */
};

/* n elements of what is stored, from element `at` on, as they are, or as f32. */
static const char *values(const struct encoding *e, int64_t at, int64_t n, float *space)
{
    size_t bytes = moegen_rt_dtype_of(e->from->dtype)->bytes;
    const char *data = (const char *)e->from->data + (size_t)at * bytes;
    if (e->from->dtype == e->how.dtype)
        return data;
    moegen_rt_convert(e->from->dtype, data, MOEGEN_RT_F32, space, (size_t)n);
    return (const char *)space;
}

static const float *floats(const struct encoding *e, int64_t at, int64_t n, float *space)
{
    size_t bytes = moegen_rt_dtype_of(e->from->dtype)->bytes;
    moegen_rt_convert(e->from->dtype, (const char *)e->from->data + (size_t)at * bytes,
                      MOEGEN_RT_F32, space, (size_t)n);
    return space;
}

static const struct rt_second *second_of(const struct encoding *e, int64_t matrix, int64_t o)
{
    static const struct rt_second none = {1, 1};
    const struct store *s = e->w.store;
    return s->per_second ? &e->seconds[matrix * s->per_second + store_part(s, o)] : &none;
}

/* Number `at`, of values whose largest magnitude is there. */
static int64_t put_scale(struct encoding *e, int64_t at)
{
    const struct rt_format *f = e->w.store->format;
    const uint32_t most = e->most[at];
    uint32_t code = rt_rows_scale_code(&e->w.rows, e->w.store->rule, most, 1, &e->inverse[at]);
    rt_format_put_scale(f, e->scales, at, code);
    e->lean[at] =
        rt_rows_lean(e->how.dtype, rt_rows_amax(most) * e->inverse[at] / f->element->largest);
    return most >= 0x7f800000;
}

static void raise_to(uint32_t *most, uint32_t by)
{
    *most = by > *most ? by : *most;
}

static int64_t span_length(int64_t left)
{
    return left < PIECE ? left : PIECE;
}

/* ---- groups along rows [out, in] ---- */

/* The largest of what is finite, in groups that are. */
static void measure_row(struct encoding *e, int64_t row, struct space *to)
{
    const struct store *s = e->w.store;
    for (int64_t i = 0, n; i < s->in; i += n) {
        n = span_length(s->in - i);
        const char *x = values(e, row * s->in + i, n, to->x);
        uint32_t whole = rt_rows_most(e->how.dtype, x, n);
        for (int64_t k = 0; k < n && whole >= 0x7f800000; k += s->group) {
            uint32_t most = rt_rows_most(e->how.dtype, x + (size_t)k * e->bytes, s->group);
            raise_to(&e->most[row], most < 0x7f800000 ? most : 0);
        }
        raise_to(&e->most[row], whole < 0x7f800000 ? whole : 0);
    }
}

static int64_t encode_row(struct encoding *e, int64_t row, struct space *to)
{
    const struct store *s = e->w.store;
    const int64_t bytes = rt_format_bytes(s->format, s->in);
    const struct rt_second *second = second_of(e, row / s->out, row % s->out);
    const bool pairs = s->format->element->bits == 4;
    uint8_t *codes = work_take(&e->w, to, row * bytes, (size_t)bytes);
    int64_t nans = 0;
    for (int64_t i = 0, n; i < s->in; i += n) {
        n = span_length(s->in - i);
        uint8_t *byte = pairs ? to->bytes : codes + i;
        nans += rt_rows_groups(&e->how, values(e, row * s->in + i, n, to->x), n, second, e->scales,
                               row * s->cut.columns + i / s->group, byte);
        if (pairs)
            rt_rows_pairs(byte, n, codes + rt_format_bytes(s->format, i));
    }
    return nans;
}

static int64_t encode_rows(struct encoding *e, int64_t unit, struct space *to)
{
    const struct rows r = work_rows(&e->w, unit);
    int64_t nans = 0;
    for (int64_t j = 0, row = r.matrix * e->w.store->out + r.first; j < r.count; j++, row++)
        if (e->measure)
            measure_row(e, row, to);
        else
            nans += encode_row(e, row, to);
    return nans;
}

/* ---- groups along columns [in, out] ---- */

/* Values of a group's rows, from row i on, and the distance of these. */
static const char *group_values(const struct encoding *e, const struct rows *r, int64_t i,
                                int64_t *stride, struct space *to)
{
    const struct store *s = e->w.store;
    const int64_t at = (r->matrix * s->in + i) * s->out + r->first;
    *stride = s->out;
    if (e->from->dtype == e->how.dtype)
        return values(e, at, r->count, NULL);
    *stride = RT_COLUMNS;
    for (int64_t k = 0; k < s->group; k++)
        (void)values(e, at + k * s->out, r->count, to->panel + k * RT_COLUMNS);
    return (const char *)to->panel;
}

static void measure_columns(struct encoding *e, const struct rows *r, struct space *to)
{
    const struct store *s = e->w.store;
    float most[RT_COLUMNS];
    for (int64_t i = 0, stride; i < s->in; i += s->group) {
        const char *x = group_values(e, r, i, &stride, to);
        rt_rows_column_most(&e->how, x, stride, r->count, most);
        for (int64_t j = 0; j < r->count; j++) {
            uint32_t bits;
            memcpy(&bits, &most[j], sizeof bits);
            raise_to(&e->most[r->matrix * s->out + r->first + j], bits < 0x7f800000 ? bits : 0);
        }
    }
}

/* Codes in bytes and scales of a group's columns. */
static int64_t encode_group(struct encoding *e, const struct rows *r, int64_t i, uint8_t *byte,
                            struct space *to)
{
    const struct store *s = e->w.store;
    const size_t size = (size_t)s->format->scale->bits / 8;
    uint32_t scales[RT_COLUMNS];
    struct rt_second second[RT_COLUMNS];
    int64_t stride, first = r->matrix * s->out + r->first;
    for (int64_t j = 0; j < r->count; j++)
        second[j] = *second_of(e, r->matrix, r->first + j);
    const char *x = group_values(e, r, i, &stride, to);
    int64_t nans = rt_rows_columns(&e->how, x, stride, r->count, second, scales, byte);
    for (int64_t j = 0; j < r->count; j++)
        memcpy((char *)e->scales + (size_t)((first + j) * s->cut.columns + i / s->group) * size,
               (const char *)scales + (size_t)j * size, size);
    return nans;
}

static int64_t encode_columns(struct encoding *e, int64_t unit, struct space *to)
{
    const struct store *s = e->w.store;
    const struct rows r = work_rows(&e->w, unit);
    const int64_t bytes = rt_format_bytes(s->format, s->in), first = r.matrix * s->out + r.first;
    int64_t nans = 0;
    if (e->measure) {
        measure_columns(e, &r, to);
        return 0;
    }
    uint8_t *codes = work_take(&e->w, to, first * bytes, (size_t)(r.count * bytes));
    for (int64_t k = 0, n; k < s->in; k += n) {
        n = s->in - k < SLAB ? s->in - k : SLAB;
        for (int64_t i = 0; i < n; i += s->group)
            nans += encode_group(e, &r, k + i, to->bytes + i * RT_COLUMNS, to);
        if (s->format->element->bits == 4)
            rt_rows_column_pairs(to->bytes, n);
        rt_turn(to->bytes, RT_COLUMNS, rt_format_bytes(s->format, n), r.count,
                codes + rt_format_bytes(s->format, k), bytes);
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
            const char *x = values(e, work_at(&e->w, r, row) + c - r->c0, end - c, to->x);
            if (r->each)
                rt_rows_raise(e->how.dtype, x, end - c, to->most + c - r->c0);
            for (int64_t at = c; at < end && !r->each; at += n) {
                n = run_length(r, at, end);
                raise_to(most_of(e, r, row, at),
                         rt_rows_most(e->how.dtype, x + (size_t)(at - c) * e->bytes, n));
            }
        }
    for (int64_t c = r->c0; c < r->c1 && r->each; c++)
        raise_to(most_of(e, r, r->r0, c), to->most[c - r->c0]);
}

/* What all of a row's columns are multiplied by; false if f32 is of no use to some. */
static bool factors(const struct encoding *e, const struct rect *r, int64_t row, struct space *to)
{
    bool all = true;
    if (work_each(r))
        return rt_rows_factors(&e->w.rows, &e->inverse[r->scale], &e->lean[r->scale], r->scales,
                               to->by);
    for (int64_t c = r->c0, n; c < r->c1; c += n) {
        float by;
        const int64_t at = work_scale(&e->w, r, row, c);
        n = r->each ? 1 : run_length(r, c, r->c1);
        all &= rt_rows_factors(&e->w.rows, &e->inverse[at], &e->lean[at], 1, &by);
        rt_rows_spread(&by, 1, n, to->by + c - r->c0);
    }
    return all;
}

/* By quotients. */
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
    rt_rows_bytes(&e->w.rows, to->q, end - c, codes);
}

static void encode_line(struct encoding *e, const struct rect *r, int64_t row, bool direct,
                        struct space *to)
{
    uint8_t *codes = work_take(&e->w, to, work_at(&e->w, r, row), (size_t)(r->c1 - r->c0));
    for (int64_t c = r->c0, end; c < r->c1; c = end) {
        uint64_t doubtful = UINT64_MAX;
        end = c + span_length(r->c1 - c);
        if (direct)
            doubtful = rt_rows_direct(&e->w.rows, e->how.dtype,
                                      values(e, work_at(&e->w, r, row) + c - r->c0, end - c, to->x),
                                      end - c, 1, to->by + c - r->c0, codes + c - r->c0);
        for (int64_t at = c, stop; at < end; at = stop) {
            stop = end - at < RT_DIRECT_BLOCK ? end : at + RT_DIRECT_BLOCK;
            if (doubtful >> (at - c) / RT_DIRECT_BLOCK & 1)
                encode_span(e, r, row, at, stop, codes + at - r->c0, to);
        }
    }
}

/* Of columns they are needed before any row is encoded. */
static bool scales_first(const struct store *s)
{
    return s->share == RT_ROW && s->in_first;
}

static int64_t scales_rect(struct encoding *e, const struct rect *r, struct space *to)
{
    int64_t nans = 0;
    measure_rect(e, r, to);
    for (int64_t i = 0, at = r->scale; i < r->scales; i++, at += r->step)
        nans += put_scale(e, at);
    return nans;
}

static int64_t encode_rect(struct encoding *e, int64_t unit, struct space *to)
{
    const struct store *s = e->w.store;
    const struct rect r = work_rect(&e->w, unit);
    const bool own = s->share != RT_BLOCK && !s->in_first; /* other scales in each row */
    bool direct = false;
    int64_t nans = e->measure || !scales_first(s) ? scales_rect(e, &r, to) : 0;
    if (work_each(&r))
        memcpy(to->each, &e->inverse[r.scale], (size_t)r.scales * sizeof *to->each);
    for (int64_t c = r.c0; c < r.c1 && r.each && !work_each(&r); c++)
        to->each[c - r.c0] = e->inverse[work_scale(&e->w, &r, r.r0, c)];
    for (int64_t row = r.r0; row < r.r1 && !e->measure; row++) {
        if (own || row == r.r0)
            direct = factors(e, &r, row, to);
        encode_line(e, &r, row, direct, to);
    }
    return nans;
}

/* ---- all of it ---- */

static void on_rank(void *ctx, const moegen_worker *worker)
{
    struct encoding *e = ctx;
    int64_t rank = worker ? worker->rank : 0, size = worker ? worker->size : 1;
    struct space space = work_space(&e->w, rank);
    int64_t (*one)(struct encoding * e, int64_t unit, struct space * to) =
        !e->w.store->group     ? encode_rect
        : e->w.store->in_first ? encode_columns
                               : encode_rows;
    for (int64_t unit = rank; unit < e->w.units; unit += size)
        e->nans[rank] += one(e, unit, &space);
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
        const struct rt_format *f = s->format;
        const double amax = rt_rows_amax(most),
                     second = (double)(e->second[k] = rt_format_second(f, amax));
        e->seconds[k] = (struct rt_second){second, 1};
        e->seconds[k].lean =
            rt_rows_lean(e->how.dtype, amax / (f->element->largest * f->scale->largest * second));
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
    size_t row = (size_t)rt_format_bytes(s->format, s->in_first && !s->group ? s->out : s->in);
    bool ok = work_open(&e.w, s, codes, turned ? RT_COLUMNS : PANEL,
                        turned ? RT_COLUMNS * row : row, size);
    e.how = (struct rt_grouping){&e.w.rows, s->rule, MOEGEN_RT_F32, s->group};
    if (from->dtype == MOEGEN_RT_BF16)
        e.how.dtype = MOEGEN_RT_BF16;
    e.bytes = moegen_rt_dtype_of(e.how.dtype)->bytes;
    e.most = calloc(s->group && !second ? 1 : scale_count, sizeof *e.most);
    e.inverse = calloc(s->group ? 1 : scale_count, sizeof *e.inverse);
    e.lean = calloc(s->group ? 1 : scale_count, sizeof *e.lean);
    e.seconds = calloc((size_t)(s->count * s->per_second) + 1, sizeof *e.seconds);
    e.nans = calloc((size_t)size, sizeof *e.nans);
    ok = ok && e.most && e.inverse && e.lean && e.seconds && e.nans;
    if (ok && !e.w.units) /* nothing to scale */
        memset(e.scales, 0, scales->bytes);
    if (ok && (second || scales_first(s))) {
        e.measure = true;
        work_strips(&e.w, scales_first(s));
        ok = moegen_rt_team_run(team, on_rank, &e) == MOEGEN_RT_OK;
        put_seconds(&e);
        work_strips(&e.w, false);
        e.measure = false;
    }
    ok = ok && moegen_rt_team_run(team, on_rank, &e) == MOEGEN_RT_OK;
    *nans = 0;
    for (int i = 0; ok && i < size; i++)
        *nans += e.nans[i];
    free(e.most);
    free(e.inverse);
    free(e.lean);
    free(e.seconds);
    free(e.nans);
    work_close(&e.w);
    return ok;
}
