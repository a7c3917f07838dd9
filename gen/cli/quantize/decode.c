/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c - codes and scales to a tensor of floats. */
#include <stdlib.h>
#include <string.h>

#include "packed.h"
#include "quantize.h"
#include "work.h"

struct decoding {
    struct work w;
    const uint8_t *codes;
    const moegen_rt_tensor *scales;
    moegen_rt_dtype dtype; /* of values */
    const float *second;
    size_t bytes; /* of a value */
};

/* Where n values go. */
static char *value_at(const struct decoding *d, struct space *room, int64_t at, int64_t n)
{
    return work_take(&d->w, room, at * (int64_t)d->bytes, (size_t)n * d->bytes);
}

static double second_of(const struct decoding *d, int64_t matrix, int64_t o)
{
    const struct store *s = d->w.store;
    return d->second ? (double)d->second[matrix * s->per_second + store_part(s, o)] : 1;
}

/* Scales first .. first+n-1 times `second`. */
static void scales_of(const struct decoding *d, int64_t first, int64_t n, double second, double *by)
{
    const moegen_rt_tensor *t = d->scales;
    const char *data = t->data;
    const size_t bytes = moegen_rt_dtype_of(t->dtype)->bytes;
    if (t->dtype == MOEGEN_RT_U8)
        for (int64_t i = 0; i < n; i++)
            by[i] = d->w.rows.scale[(uint8_t)data[first + i]];
    else
        moegen_rt_decode(t->dtype, data + (size_t)first * bytes, (size_t)n, by);
    for (int64_t i = 0; i < n; i++)
        by[i] *= second;
}

/* ---- groups along rows [out, in] ---- */

static void decode_row(const struct decoding *d, int64_t row, char *to, struct space *room)
{
    const struct store *s = d->w.store;
    const double second = second_of(d, row / s->out, row % s->out);
    rt_rows_elements(&d->w.rows, d->codes + row * rt_format_bytes(s->format, s->in), s->in,
                     room->q);
    scales_of(d, row * s->cut.columns, s->cut.columns, second, room->each);
    rt_rows_values(&d->w.rows, room->q, s->in, s->group, room->each, d->dtype, to, room->x);
}

static void decode_rows(const struct decoding *d, int64_t unit, struct space *room)
{
    const struct store *s = d->w.store;
    struct rows r = work_rows(&d->w, unit);
    for (int64_t j = 0, row = r.matrix * s->out + r.first; j < r.count; j++, row++)
        decode_row(d, row, value_at(d, room, row * s->in, s->in), room);
}

/* ---- groups along columns [in, out] ---- */

/* What elements of a slab are multiplied by: of each group, of each column. */
static void slab_factors(const struct decoding *d, const struct rows *r, int64_t group, int64_t n,
                         double *by)
{
    const struct store *s = d->w.store;
    double some[SLAB];
    for (int64_t j = 0; j < r->count; j++) {
        int64_t row = r->matrix * s->out + r->first + j;
        scales_of(d, row * s->cut.columns + group, n, second_of(d, r->matrix, r->first + j), some);
        for (int64_t g = 0; g < n; g++)
            by[g * RT_COLUMNS + j] = some[g];
    }
}

static void decode_columns(const struct decoding *d, int64_t unit, struct space *room)
{
    const struct store *s = d->w.store;
    const struct rows r = work_rows(&d->w, unit);
    const int64_t bytes = rt_format_bytes(s->format, s->in), first = r.matrix * s->out + r.first;
    for (int64_t k = 0, n; k < s->in; k += n) {
        n = s->in - k < SLAB ? s->in - k : SLAB;
        rt_turn(d->codes + first * bytes + rt_format_bytes(s->format, k), bytes, r.count,
                rt_format_bytes(s->format, n), room->bytes, RT_COLUMNS);
        if (s->format->element->bits == 4)
            rt_rows_column_apart(room->bytes, n);
        slab_factors(d, &r, k / s->group, n / s->group, room->each);
        for (int64_t i = 0; i < n; i++) {
            rt_rows_bytes_elements(&d->w.rows, room->bytes + i * RT_COLUMNS, r.count, room->q);
            rt_rows_values(
                &d->w.rows, room->q, r.count, 1, room->each + i / s->group * RT_COLUMNS, d->dtype,
                value_at(d, room, (r.matrix * s->in + k + i) * s->out + r.first, r.count), room->x);
        }
    }
}

/* ---- other parts of a matrix, as it is stored ---- */

static double scale_of(const struct decoding *d, int64_t at)
{
    double by;
    scales_of(d, at, 1, 1, &by);
    return by;
}

static void decode_rect(const struct decoding *d, int64_t unit, struct space *room)
{
    struct rect r = work_rect(&d->w, unit);
    const int64_t n = r.c1 - r.c0, run = r.each ? 1 : r.run < n ? r.run : n;
    if (work_each(&r))
        scales_of(d, r.scale, n, 1, room->each);
    for (int64_t row = r.r0; row < r.r1; row++) {
        int64_t at = work_at(&d->w, &r, row);
        for (int64_t c = r.c0; c < r.c1 && (!r.each || (row == r.r0 && !work_each(&r))); c += run)
            room->each[(c - r.c0) / run] = scale_of(d, work_scale(&d->w, &r, row, c));
        rt_rows_elements(&d->w.rows, d->codes + at, n, room->q);
        rt_rows_values(&d->w.rows, room->q, n, run, room->each, d->dtype, value_at(d, room, at, n),
                       room->x);
    }
}

static void on_rank(void *ctx, const moegen_worker *worker)
{
    const struct decoding *d = ctx;
    int64_t rank = worker ? worker->rank : 0, size = worker ? worker->size : 1;
    struct space room = work_space(&d->w, rank);
    void (*one)(const struct decoding *d, int64_t unit, struct space *room) =
        !d->w.store->group     ? decode_rect
        : d->w.store->in_first ? decode_columns
                               : decode_rows;
    for (int64_t unit = rank; unit < d->w.units; unit += size)
        one(d, unit, &room);
    work_flush(&d->w, &room);
}

bool store_decode(const struct store *s, const moegen_rt_tensor *codes,
                  const moegen_rt_tensor *scales, const moegen_rt_tensor *second,
                  moegen_rt_dtype dtype, const struct sink *to, moegen_rt_team *team)
{
    struct decoding d = {.codes = codes->data,
                         .scales = scales,
                         .second = second ? second->data : NULL,
                         .dtype = dtype,
                         .bytes = moegen_rt_dtype_of(dtype)->bytes};
    size_t row = (size_t)(s->in_first ? s->out : s->in) * d.bytes;
    bool ok = work_open(&d.w, s, to, s->group && s->in_first ? RT_COLUMNS : PANEL, row,
                        moegen_rt_team_size(team)) &&
              moegen_rt_team_run(team, on_rank, &d) == MOEGEN_RT_OK;
    work_close(&d.w);
    return ok;
}
