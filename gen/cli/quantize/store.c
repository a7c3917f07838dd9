/* SPDX-License-Identifier: Apache-2.0 */
/* store.c - shapes: what of a tensor is contracted, what shares a scale, where that scale is. */
#include <stdlib.h>
#include <string.h>

#include "quantize.h"

static const char *const parts_names[PARTS] = {
    [WHOLE] = "whole", [SPLIT] = "split", [INTERLEAVED] = "interleaved"};

const char *parts_name(enum parts parts)
{
    return parts_names[parts];
}

static bool no(struct text *why, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool no(struct text *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    text_vfmt(why, format, args);
    va_end(args);
    return false;
}

/* Matrices of the tensor. */
static bool matrices(struct store *s, const struct wish *w, struct text *why)
{
    if (s->rank < 2)
        return no(why, "has %d extent%s; a matrix is needed", s->rank, s->rank == 1 ? "" : "s");
    s->axis = w->axis < 0 ? s->rank - 1 : w->axis;
    if (s->axis >= s->rank)
        return no(why, "has no axis %d: its axes are 0 to %d", s->axis, s->rank - 1);
    s->in_first = s->axis < s->rank - 1;
    s->lead = s->in_first ? s->axis : s->rank - 2;
    s->in = s->shape[s->axis];
    s->count = s->out = 1;
    int64_t all = 1;
    bool small = true;
    for (int d = 0; d < s->rank; d++) {
        int64_t *to = d < s->lead ? &s->count : &s->out;
        small = small && s->shape[d] < INT64_MAX / 64 / all;
        all *= small && s->shape[d] ? s->shape[d] : 1;
        *to *= small && d != s->axis ? s->shape[d] : 1;
    }
    return small || no(why, "is too large");
}

static bool has_group(const struct rt_format *f, int64_t group)
{
    int i = 0;
    while (i < 3 && f->groups[i] && f->groups[i] != group)
        i++;
    return i < 3 && f->groups[i];
}

bool store_open(struct store *s, const struct wish *w, int rank, const int64_t *shape,
                struct text *why)
{
    const struct rt_format *f = w->format;
    *s = (struct store){.format = f, .share = w->share, .rule = w->rule, .parts = w->parts};
    s->rank = rank;
    memcpy(s->shape, shape, (size_t)rank * sizeof *shape);
    if (!matrices(s, w, why))
        return false;
    s->group = !rt_format_grouped(f) ? 0 : w->group ? w->group : f->groups[0];
    if (s->group && !has_group(f, s->group))
        return no(why, "cannot be in groups of %lld", (long long)s->group);
    if (s->group && s->in % s->group)
        return no(why, "axis %d has %lld elements, no multiple of a group of %lld", s->axis,
                  (long long)s->in, (long long)s->group);
    if (s->group && s->lead + 3 > 8)
        return no(why, "has %d extents; its blocks would need more than 8", s->rank);
    bool by_parts = s->share == RT_STATIC || f->second;
    if (!by_parts)
        s->parts = WHOLE;
    int64_t parts = s->parts == WHOLE ? 1 : 2;
    if (s->out % parts)
        return no(why, "has %lld output channels: no gate and up of as many", (long long)s->out);
    s->cut = rt_format_cut(f, s->share, s->group, s->out, s->in);
    s->per = s->share == RT_STATIC ? parts : s->cut.rows * s->cut.columns;
    s->per_second = f->second ? parts : 0;
    return true;
}

/* ---- shapes ---- */

static int leading(const struct store *s, int64_t shape[8])
{
    memcpy(shape, s->shape, (size_t)s->lead * sizeof *shape);
    return s->lead;
}

int store_codes_shape(const struct store *s, int64_t shape[8])
{
    if (!s->group) {
        memcpy(shape, s->shape, (size_t)s->rank * sizeof *shape);
        return s->rank;
    }
    int n = leading(s, shape);
    shape[n++] = s->out;
    if (s->format->blocked)
        shape[n++] = s->in / s->group;
    shape[n++] = rt_format_bytes(s->format, s->format->blocked ? s->group : s->in);
    return n;
}

int store_scales_shape(const struct store *s, int64_t shape[8])
{
    int n = leading(s, shape);
    switch (s->share) {
    case RT_STATIC:
        if (s->parts != WHOLE)
            shape[n++] = 2;
        shape[n++] = 1;
        break;
    case RT_ROW:
        shape[n++] = 1;
        shape[n++] = s->out;
        break;
    default:
        shape[n++] = s->cut.rows;
        shape[n++] = s->cut.columns;
    }
    return n;
}

int store_second_shape(const struct store *s, int64_t shape[8])
{
    int n = leading(s, shape);
    if (s->parts != WHOLE)
        shape[n++] = 2;
    return n;
}

/* ---- which scale ---- */

int64_t store_part(const struct store *s, int64_t o)
{
    return s->parts == SPLIT ? o / (s->out / 2) : s->parts == INTERLEAVED ? o % 2 : 0;
}

int64_t store_scale(const struct store *s, int64_t o, int64_t i)
{
    if (s->share == RT_STATIC)
        return store_part(s, o);
    return o / s->cut.tile_out * s->cut.columns + i / s->cut.tile_in;
}

/* ---- metadata ---- */

void store_print(const struct store *s, struct text *to)
{
    text_fmt(to, "moegen %s scale=%s group=%lld axis=%d parts=%s shape=", s->format->name,
             rt_sharings[s->share].name, (long long)s->group, s->axis, parts_names[s->parts]);
    for (int d = 0; d < s->rank; d++)
        text_fmt(to, "%s%lld", d ? "," : "", (long long)s->shape[d]);
}

static bool parse_shape(const char *at, int64_t shape[8], int *rank)
{
    char *end;
    for (*rank = 0; *rank < 8; at = end + 1) {
        shape[*rank] = strtoll(at, &end, 10);
        if (end == at || shape[(*rank)++] < 0 || (*end && *end != ','))
            return false;
        if (!*end)
            return true;
    }
    return false;
}

bool store_parse(struct store *s, const char *line)
{
    char format[16], share[16], parts[16];
    int at = 0, rank;
    int64_t shape[8];
    struct wish w = {0};
    struct text why = {0};
    long long group;
    if (sscanf(line, "moegen %15s scale=%15s group=%lld axis=%d parts=%15s shape=%n", format, share,
               &group, &w.axis, parts, &at) != 5 ||
        !at || !parse_shape(line + at, shape, &rank))
        return false;
    w.group = group;
    w.format = rt_format_find(format);
    if (!w.format || (w.share = rt_format_share(w.format, share)) == RT_SHARES)
        return false;
    while (w.parts < PARTS && strcmp(parts_names[w.parts], parts) != 0)
        w.parts++;
    if (w.parts == PARTS || w.group < 0 || w.axis < 0)
        return false;
    bool ok = store_open(s, &w, rank, shape, &why);
    text_free(&why);
    return ok;
}
