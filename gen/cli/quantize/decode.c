/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c - codes and scales to a tensor of floats. */
#include <stdlib.h>
#include <string.h>

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
    double second = 1;
    if (d->second)
        second = (double)d->second[row / s->out * s->per_second + store_part(s, row % s->out)];
    rt_rows_elements(&d->w.rows, d->codes + row * rt_format_bytes(s->format, s->in), s->in,
                     room->q);
    scales_of(d, row * s->cut.columns, s->cut.columns, second, room->each);
    rt_rows_values(&d->w.rows, room->q, s->in, s->group, room->each, d->dtype, to, room->x);
}

/* The panel's rows become columns o .. o+n-1 of a matrix [in, out]. */
static void turn(const struct decoding *d, const struct rows *r, struct space *room)
{
    const struct store *s = d->w.store;
    for (int64_t i = 0; i < s->in; i++) {
        char *to = value_at(d, room, (r->matrix * s->in + i) * s->out + r->first, r->count);
        const char *from = (const char *)room->panel + (size_t)i * d->bytes;
        for (int64_t j = 0; j < r->count; j++) {
            const char *one = from + (size_t)(j * d->w.stride) * d->bytes;
            if (d->bytes == 2)
                memcpy(to + 2 * j, one, 2);
            else
                memcpy(to + 4 * j, one, 4);
        }
    }
}

static void decode_rows(const struct decoding *d, int64_t unit, struct space *room)
{
    const struct store *s = d->w.store;
    struct rows r = work_rows(&d->w, unit);
    for (int64_t j = 0; j < r.count; j++) {
        int64_t row = r.matrix * s->out + r.first + j;
        char *to = s->in_first ? (char *)room->panel + (size_t)(j * d->w.stride) * d->bytes
                               : value_at(d, room, row * s->in, s->in);
        decode_row(d, row, to, room);
    }
    if (s->in_first)
        turn(d, &r, room);
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
    for (int64_t row = r.r0; row < r.r1; row++) {
        int64_t at = work_at(&d->w, &r, row);
        for (int64_t c = r.c0; c < r.c1 && (!r.each || row == r.r0); c += run)
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
    for (int64_t unit = rank; unit < d->w.units; unit += size)
        if (d->w.store->group)
            decode_rows(d, unit, &room);
        else
            decode_rect(d, unit, &room);
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
    bool ok = work_open(&d.w, s, to, PANEL, s->in, row, moegen_rt_team_size(team)) &&
              moegen_rt_team_run(team, on_rank, &d) == MOEGEN_RT_OK;
    work_close(&d.w);
    return ok;
}
