/* SPDX-License-Identifier: Apache-2.0 */
/* groups.c - scales and codes of many groups at once, along rows or beside each other, with few
 * calls: what rows.c does for one group at a time. */
#include <math.h>
#include <string.h>

#include "format.h"
#include "rt_wide.h"

/* Groups at a time, in steps of LANES; columns are as many. */
enum { GROUPS = RT_COLUMNS, BLOCK = RT_DIRECT_BLOCK };

/* ---- magnitudes ---- */

/* Sizes are compared as integers of the values' own width, whose order is theirs. */
#define F32_SIZE(x)     ((int32_t)(bits_of(x) & INT32_MAX))
#define BF16_SIZE(x)    ((int16_t)((x)&INT16_MAX))
#define F32_FLOAT(size) float_of((uint32_t)(size))
#define BF16_FLOAT(s)   float_of((uint32_t)(s) << 16)

/* Largest magnitudes of n groups, as rt_rows_most has them. */
#define MOST_OF_GROUPS(name, type, integer, size_of, float_of_size)                                \
    WIDE static void name(const void *src, int64_t n, int64_t group, float *restrict most)         \
    {                                                                                              \
        const type *restrict x = src;                                                              \
        for (int64_t g = 0; g < n; g++, x += group) {                                              \
            integer of[LANES] = {0};                                                               \
            for (int64_t i = 0; i < group; i += LANES)                                             \
                EACH                                                                               \
                {                                                                                  \
                    integer size = size_of(x[i + j]);                                              \
                    of[j] = size > of[j] ? size : of[j];                                           \
                }                                                                                  \
            for (int j = 0; j < 8; j++)                                                            \
                of[j] = of[j] > of[j + 8] ? of[j] : of[j + 8];                                     \
            for (int j = 0; j < 4; j++)                                                            \
                of[j] = of[j] > of[j + 4] ? of[j] : of[j + 4];                                     \
            of[0] = of[0] > of[2] ? of[0] : of[2];                                                 \
            of[1] = of[1] > of[3] ? of[1] : of[3];                                                 \
            most[g] = float_of_size(of[0] > of[1] ? of[0] : of[1]);                                \
        }                                                                                          \
    }
MOST_OF_GROUPS(most_of_groups_f32, float, int32_t, F32_SIZE, F32_FLOAT)
MOST_OF_GROUPS(most_of_groups_bf16, uint16_t, int16_t, BF16_SIZE, BF16_FLOAT)

/* Of n columns of so many rows. */
#define MOST_OF_COLUMNS(name, type, integer, size_of, float_of_size)                               \
    WIDE static void name(const void *src, int64_t stride, int64_t rows, int64_t n,                \
                          float *restrict most)                                                    \
    {                                                                                              \
        const type *restrict x = src;                                                              \
        for (; n >= BLOCK; n -= BLOCK, x += BLOCK, most += BLOCK) {                                \
            integer of[BLOCK] = {0};                                                               \
            for (int64_t i = 0; i < rows; i++)                                                     \
                for (int j = 0; j < BLOCK; j++) {                                                  \
                    integer size = size_of(x[i * stride + j]);                                     \
                    of[j] = size > of[j] ? size : of[j];                                           \
                }                                                                                  \
            for (int j = 0; j < BLOCK; j++)                                                        \
                most[j] = float_of_size(of[j]);                                                    \
        }                                                                                          \
        for (int64_t j = 0; j < n; j++) {                                                          \
            integer of = 0;                                                                        \
            for (int64_t i = 0; i < rows; i++)                                                     \
                of = size_of(x[i * stride + j]) > of ? size_of(x[i * stride + j]) : of;            \
            most[j] = float_of_size(of);                                                           \
        }                                                                                          \
    }
MOST_OF_COLUMNS(most_of_columns_f32, float, int32_t, F32_SIZE, F32_FLOAT)
MOST_OF_COLUMNS(most_of_columns_bf16, uint16_t, int16_t, BF16_SIZE, BF16_FLOAT)

/* How many magnitudes are less than `least`, infinite or NaN. */
WIDE static int others(const float *most, int64_t n, float least)
{
    int32_t count[LANES] = {0}, all = 0;
    for (int64_t i = 0; i < n; i += LANES)
        EACH
        {
            int32_t size = (int32_t)bits_of(most[i + j]);
            count[j] += (size < (int32_t)bits_of(least)) | (size >= 0x7f800000);
        }
    EACH all += count[j];
    return all;
}

/* ---- scales ---- */

/* Codes of powers of two, as rt_rows_scale_code has them, and their inverses; 0 for what is NaN. */
WIDE static void powers(const float *restrict most, int64_t n, int shift, uint32_t *restrict code,
                        double *restrict inverse)
{
    for (int64_t i = 0; i < n; i += LANES)
        EACH
        {
            int field = (int)(bits_of(most[i + j]) >> 23), less = field > shift ? field - shift : 0;
            uint32_t is_number = 0u - (uint32_t)(field != 255);
            code[i + j] = field == 255 ? 255 : (uint32_t)less;
            inverse[i + j] = (double)float_of((uint32_t)(254 - less) << 23 & is_number);
        }
}

WIDE static void inverses(const double *restrict scale, int64_t n, const double *restrict second,
                          double *restrict inverse)
{
    for (int64_t i = 0; i < n; i += LANES)
        EACH
        {
            double by = scale[i + j] * second[i + j], quotient = 1 / by;
            inverse[i + j] = by > 0 ? quotient : 0;
        }
}

/* What so many groups have: `second`, and what follows from their magnitudes. */
struct many {
    const struct rt_grouping *how;
    int64_t n;
    float most[GROUPS], by[GROUPS];
    double second[GROUPS], lean[GROUPS], inverse[GROUPS];
    bool direct; /* by[] is of use to all of them */
};

/* Scales that rows->scales makes of quotients, and their codes; false: of one of these groups it
 * cannot. */
static bool many_scales(const struct many *m, void *codes, double *scale)
{
    const struct rt_rows *r = m->how->rows;
    const struct rt_coding *c = r->format->scale;
    const float least = r->format->second ? 0 : 0x1p-100f; /* below: what f32 has not all bits of */
    float q[GROUPS];
    double inverse[GROUPS];
    if (!r->scales || others(m->most, m->n, least))
        return false;
    for (int64_t i = 0; i < m->n; i++) /* mostly the same */
        inverse[i] = i && m->second[i] == m->second[i - 1]
                         ? inverse[i - 1]
                         : rt_rows_inverse(r->format->element->largest, m->second[i]);
    rt_rows_scale_each(m->most, m->n, inverse, q);
    r->scales(q, m->n, codes);
    if (c->bits != 8)
        moegen_rt_convert(c->dtype, codes, MOEGEN_RT_F64, scale, (size_t)m->n);
    for (int64_t i = 0; i < m->n && c->bits == 8; i++)
        scale[i] = r->scale[((const uint8_t *)codes)[i]];
    return true;
}

/* Of groups whose magnitudes are there; how many scales are NaN. */
static int64_t scales_of(struct many *m, void *codes)
{
    const struct rt_rows *r = m->how->rows;
    uint32_t code[GROUPS];
    double scale[GROUPS] = {0};
    for (int64_t i = m->n; i % LANES; i++) {
        m->most[i] = 1;
        m->second[i] = m->lean[i] = 1;
    }
    if (r->exact) {
        powers(m->most, m->n, r->shift[m->how->rule], code, m->inverse);
        for (int64_t i = 0; i < m->n; i++)
            ((uint8_t *)codes)[i] = (uint8_t)code[i];
    } else if (many_scales(m, codes, scale)) {
        inverses(scale, m->n, m->second, m->inverse);
    } else {
        for (int64_t i = 0; i < m->n; i++)
            rt_format_put_scale(r->format, codes, i,
                                rt_rows_scale_code(r, m->how->rule, bits_of(m->most[i]),
                                                   m->second[i], &m->inverse[i]));
    }
    m->direct = rt_rows_factors(r, m->inverse, m->lean, m->n, m->by);
    return others(m->most, m->n, 0);
}

/* ---- codes ---- */

/* Of n values, BLOCK at most: of so many that follow each other in a group, or each in its own. */
static void one_by_one(const struct rt_grouping *g, const void *x, int64_t n, int64_t group,
                       const double *inverse, uint8_t *byte)
{
    float wide[BLOCK], q[BLOCK];
    moegen_rt_convert(g->dtype, x, MOEGEN_RT_F32, wide, (size_t)n);
    if (group == 1)
        rt_rows_scale_each(wide, n, inverse, q);
    for (int64_t i = 0, some; i < n && group > 1; i += some) {
        some = group < n - i ? group : n - i;
        rt_rows_scale(g->rows, wide + i, some, inverse[i / group], q + i);
    }
    rt_rows_bytes(g->rows, q, n, byte);
}

static void codes_of_groups(const struct many *m, const char *x, uint8_t *byte)
{
    const struct rt_grouping *how = m->how;
    const int64_t n = m->n * how->group, wide = how->group < BLOCK ? how->group : BLOCK;
    const size_t bytes = moegen_rt_dtype_of(how->dtype)->bytes;
    float by[RT_DIRECT_MOST / RT_DIRECT_RUN];
    uint64_t doubtful = UINT64_MAX;
    if (m->direct) {
        rt_rows_spread(m->by, m->n, how->group / RT_DIRECT_RUN, by);
        doubtful = rt_rows_direct(how->rows, how->dtype, x, n, RT_DIRECT_RUN, by, byte);
    }
    for (int64_t i = 0; i < n; i += BLOCK)
        if (doubtful >> i / BLOCK & 1)
            one_by_one(how, x + (size_t)i * bytes, n - i < BLOCK ? n - i : BLOCK, wide,
                       &m->inverse[i / how->group], byte + i);
}

int64_t rt_rows_groups(const struct rt_grouping *g, const void *x, int64_t n,
                       const struct rt_second *second, void *scales, int64_t first, uint8_t *byte)
{
    const int64_t size = g->rows->format->scale->bits / 8, most = RT_DIRECT_MOST / g->group;
    const int64_t step = most < GROUPS ? most : GROUPS;
    const int64_t bytes = (int64_t)moegen_rt_dtype_of(g->dtype)->bytes;
    struct many m;
    int64_t nans = 0;
    m.how = g;
    for (int64_t at = 0; at < n; at += m.n * g->group, first += m.n) {
        const char *from = (const char *)x + at * bytes;
        m.n = (n - at) / g->group < step ? (n - at) / g->group : step;
        (g->dtype == MOEGEN_RT_F32 ? most_of_groups_f32 : most_of_groups_bf16)(from, m.n, g->group,
                                                                               m.most);
        for (int64_t i = 0; i < m.n; i++) {
            m.second[i] = second->scale;
            m.lean[i] = second->lean;
        }
        nans += scales_of(&m, (char *)scales + first * size);
        codes_of_groups(&m, from, byte + at);
    }
    return nans;
}

/* ---- columns ---- */

void rt_rows_column_most(const struct rt_grouping *g, const void *x, int64_t stride, int64_t n,
                         float *most)
{
    (g->dtype == MOEGEN_RT_F32 ? most_of_columns_f32 : most_of_columns_bf16)(x, stride, g->group, n,
                                                                             most);
}

/* Asks memory for what the next group has in this place: what lies far apart no CPU does. */
static void fetch(const char *x, int64_t bytes)
{
    enum { LINE = 64 };
    for (int64_t i = 0; i < bytes; i += LINE)
        __builtin_prefetch((const void *)((uintptr_t)x + (uintptr_t)i));
}

int64_t rt_rows_columns(const struct rt_grouping *g, const void *x, int64_t stride, int64_t n,
                        const struct rt_second *second, void *scales, uint8_t *byte)
{
    const int64_t bytes = (int64_t)moegen_rt_dtype_of(g->dtype)->bytes;
    struct many m;
    m.how = g;
    m.n = n;
    for (int64_t i = 0; i < n; i++) {
        m.second[i] = second[i].scale;
        m.lean[i] = second[i].lean;
    }
    rt_rows_column_most(g, x, stride, n, m.most);
    int64_t nans = scales_of(&m, scales);
    for (int64_t i = 0; i < g->group; i++, byte += RT_COLUMNS) {
        const char *row = (const char *)x + i * stride * bytes;
        uint64_t doubtful = UINT64_MAX;
        fetch((const char *)((uintptr_t)row + (uintptr_t)(g->group * stride * bytes)), n * bytes);
        if (m.direct)
            doubtful = rt_rows_direct(g->rows, g->dtype, row, n, 1, m.by, byte);
        for (int64_t k = 0; k < n; k += BLOCK)
            if (doubtful >> k / BLOCK & 1)
                one_by_one(g, row + k * bytes, n - k < BLOCK ? n - k : BLOCK, 1, m.inverse + k,
                           byte + k);
    }
    return nans;
}

WIDE static void pairs_of_rows(uint8_t *byte, int64_t rows)
{
    for (int64_t i = 0; i < rows; i += 2) {
        const uint8_t *from = byte + i * RT_COLUMNS;
        uint8_t *to = byte + i / 2 * RT_COLUMNS;
        uint8_t both[RT_COLUMNS];
        for (int j = 0; j < RT_COLUMNS; j++)
            both[j] = (uint8_t)(from[j] | from[RT_COLUMNS + j] << 4);
        memcpy(to, both, sizeof both);
    }
}

void rt_rows_column_pairs(uint8_t *byte, int64_t rows)
{
    pairs_of_rows(byte, rows);
}

WIDE static void rows_of_pairs(uint8_t *byte, int64_t rows)
{
    for (int64_t i = rows - 2; i >= 0; i -= 2) {
        uint8_t both[RT_COLUMNS];
        uint8_t *to = byte + i * RT_COLUMNS;
        memcpy(both, byte + i / 2 * RT_COLUMNS, sizeof both);
        for (int j = 0; j < RT_COLUMNS; j++) {
            to[j] = both[j] & 15;
            to[RT_COLUMNS + j] = both[j] >> 4;
        }
    }
}

void rt_rows_column_apart(uint8_t *byte, int64_t rows)
{
    rows_of_pairs(byte, rows);
}
