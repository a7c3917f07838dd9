/* SPDX-License-Identifier: Apache-2.0 */
/* work.c - units of work of one tensor, and the room that ranks need for them. */
#include "work.h"

static int64_t ceiling(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* What a unit spans of a matrix of others than groups. */
static void rectangles(struct work *w)
{
    const struct store *s = w->store;
    w->tall = w->height;
    w->wide = w->width;
    if (w->strips)
        w->wide = STRIP; /* columns share a scale */
    else if (s->share == RT_ROW)
        w->tall = ROWS * (s->in_first ? 8 : 1) / larger(w->width, 1); /* rows are read twice */
    else if (s->share == RT_BLOCK)
        w->tall = s->in_first ? s->cut.tile_in : s->cut.tile_out;
    w->tall = larger(w->tall, 1);
    w->wide = larger(w->wide, 1);
    w->per_matrix = ceiling(w->height, w->tall) * ceiling(w->width, w->wide);
}

enum { ALIGNED = 64, BATCH = 256 << 10 };

/* The next `bytes` from base + *at on; NULL without a base. */
static void *take(char *base, size_t *at, size_t bytes)
{
    size_t first = *at;
    *at += (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    return base ? base + first : NULL;
}

/* The parts of a rank's room; its size. */
static size_t carve(const struct work *w, char *base, struct space *to)
{
    const bool columns = w->store->group && w->store->in_first;
    const int64_t row = larger(w->store->in, w->width), slab = columns ? SLAB * RT_COLUMNS : 0;
    const size_t n = (size_t)larger(row, RT_COLUMNS);
    size_t at = 0;
    to->each = take(base, &at, (size_t)larger((int64_t)n, slab / 16) * sizeof *to->each);
    to->x = take(base, &at, n * sizeof *to->x);
    to->q = take(base, &at, n * sizeof *to->q);
    to->by = take(base, &at, n * sizeof *to->by);
    to->most = take(base, &at, n * sizeof *to->most);
    to->panel = take(base, &at, (size_t)slab * sizeof *to->panel);
    to->bytes = take(base, &at, (size_t)larger((int64_t)n, slab));
    to->out = take(base, &at, w->sink->data ? 0 : w->batch);
    return at;
}

bool store_streams(const struct store *s, bool back)
{
    return !(s->in_first && s->group && back);
}

void work_strips(struct work *w, bool strips)
{
    w->strips = strips;
    if (w->store->group)
        w->per_matrix = ceiling(w->store->out, w->panel);
    else
        rectangles(w);
    w->units = w->height && w->width ? w->store->count * w->per_matrix : 0;
}

bool work_open(struct work *w, const struct store *s, const struct sink *sink, int64_t rows,
               size_t row, int ranks)
{
    struct space space;
    *w = (struct work){.store = s, .sink = sink, .panel = rows};
    w->batch = row > BATCH ? row : BATCH;
    rt_rows_open(&w->rows, s->format);
    w->height = s->in_first ? s->in : s->out;
    w->width = s->in_first ? s->out : s->in;
    work_strips(w, false);
    w->bytes = carve(w, NULL, &space);
    w->at = moegen_rt_alloc(w->bytes * (size_t)ranks);
    return w->at != NULL;
}

void work_close(struct work *w)
{
    moegen_rt_free(w->at);
    w->at = NULL;
}

struct space work_space(const struct work *w, int64_t rank)
{
    struct space space = {0};
    carve(w, w->at + w->bytes * (size_t)rank, &space);
    return space;
}

void work_flush(const struct work *w, struct space *to)
{
    if (to->used)
        rt_file_put(w->sink->file, w->sink->number, (size_t)to->from, to->out, to->used);
    to->used = 0;
}

void *work_take(const struct work *w, struct space *to, int64_t at, size_t bytes)
{
    if (w->sink->data)
        return w->sink->data + at;
    if (at != to->from + (int64_t)to->used || to->used + bytes > w->batch)
        work_flush(w, to);
    if (!to->used)
        to->from = at;
    to->used += bytes;
    return to->out + to->used - bytes;
}

struct rows work_rows(const struct work *w, int64_t unit)
{
    struct rows r = {unit / w->per_matrix, unit % w->per_matrix * w->panel, 0};
    r.count = smaller(w->store->out - r.first, w->panel);
    return r;
}

struct rect work_rect(const struct work *w, int64_t unit)
{
    const struct store *s = w->store;
    const int64_t across = ceiling(w->width, w->wide);
    const int64_t k = unit % w->per_matrix;
    struct rect r = {.matrix = unit / w->per_matrix, .step = 1, .run = w->width};
    r.r0 = k / across * w->tall;
    r.r1 = smaller(r.r0 + w->tall, w->height);
    r.c0 = k % across * w->wide;
    r.c1 = smaller(r.c0 + w->wide, w->width);
    r.scale = work_scale(w, &r, r.r0, r.c0);
    if (s->share == RT_STATIC) {
        r.scales = s->per;
        r.each = s->in_first && s->parts == INTERLEAVED;
        if (s->in_first && s->parts == SPLIT)
            r.run = s->out / 2;
    } else if (s->share == RT_ROW) {
        r.scales = s->in_first ? r.c1 - r.c0 : r.r1 - r.r0;
        r.each = s->in_first;
    } else {
        r.scales = s->in_first ? s->cut.rows : s->cut.columns;
        r.step = s->in_first ? s->cut.columns : 1;
        r.run = s->in_first ? s->cut.tile_out : s->cut.tile_in;
    }
    return r;
}

int64_t work_scale(const struct work *w, const struct rect *r, int64_t row, int64_t column)
{
    const struct store *s = w->store;
    int64_t in_matrix = s->in_first ? store_scale(s, column, row) : store_scale(s, row, column);
    return r->matrix * s->per + in_matrix;
}

int64_t work_at(const struct work *w, const struct rect *r, int64_t row)
{
    return (r->matrix * w->height + row) * w->width + r->c0;
}

bool work_each(const struct rect *r)
{
    return r->each && r->step == 1 && r->scales == r->c1 - r->c0;
}
