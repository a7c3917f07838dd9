/* SPDX-License-Identifier: Apache-2.0 */
/* format_groups.c - scales and quotients of many f32 in groups that share a scale, with few calls:
 * what format_rows.c does for one group at a time. */
#include <math.h>

#include "format.h"
#include "rt_wide.h"

enum { GROUPS = 128 }; /* at a time; loops take steps of LANES of them */

/* Largest magnitudes of n groups, as rt_rows_most has them. */
WIDE static void most_of_groups(const float *restrict x, int64_t n, int64_t group,
                                float *restrict most)
{
    for (int64_t g = 0; g < n; g++, x += group) {
        int32_t of[LANES] = {0};
        for (int64_t i = 0; i < group; i += LANES)
            EACH
            {
                int32_t size = (int32_t)(bits_of(x[i + j]) & INT32_MAX);
                of[j] = size > of[j] ? size : of[j];
            }
        for (int j = 0; j < 8; j++)
            of[j] = of[j] > of[j + 8] ? of[j] : of[j + 8];
        for (int j = 0; j < 4; j++)
            of[j] = of[j] > of[j + 4] ? of[j] : of[j + 4];
        of[0] = of[0] > of[2] ? of[0] : of[2];
        of[1] = of[1] > of[3] ? of[1] : of[3];
        most[g] = float_of((uint32_t)(of[0] > of[1] ? of[0] : of[1]));
    }
}

WIDE static void scale_groups(const float *restrict x, int64_t n, int64_t group,
                              const double *restrict inverse, float *restrict q)
{
    for (int64_t g = 0; g < n; g++, x += group, q += group) {
        double by = inverse[g];
        for (int64_t i = 0; i < group; i += LANES)
            EACH q[i + j] = odd((double)x[i + j] * by, true);
    }
}

WIDE static void scale_groups_exact(const float *restrict x, int64_t n, int64_t group,
                                    const float *restrict power, float *restrict q)
{
    for (int64_t g = 0; g < n; g++, x += group, q += group) {
        float by = power[g];
        for (int64_t i = 0; i < group; i += LANES)
            EACH q[i + j] = x[i + j] * by;
    }
}

/* Codes of powers of two, as rt_rows_scale_code has them, and their inverses; 0 for what is NaN. */
WIDE static void powers(const float *restrict most, int64_t n, int shift, uint32_t *restrict code,
                        float *restrict inverse)
{
    for (int64_t i = 0; i < n; i += LANES)
        EACH
        {
            int field = (int)(bits_of(most[i + j]) >> 23), less = field > shift ? field - shift : 0;
            uint32_t is_number = 0u - (uint32_t)(field != 255);
            code[i + j] = field == 255 ? 255 : (uint32_t)less;
            inverse[i + j] = float_of((uint32_t)(254 - less) << 23 & is_number);
        }
}

WIDE static void inverses(const double *restrict scale, int64_t n, double second,
                          double *restrict inverse)
{
    for (int64_t i = 0; i < n; i += LANES)
        EACH
        {
            double by = scale[i + j] * second, quotient = 1 / by;
            inverse[i + j] = by > 0 ? quotient : 0;
        }
}

/* What the values of groups are multiplied by: as `exact` says, one or the other. */
struct factors {
    float power[GROUPS];
    double inverse[GROUPS];
};

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

/* Are some of n factors 0? */
static bool zeros(const struct factors *f, int64_t n, bool exact)
{
    int count = 0;
    for (int64_t i = 0; i < n && exact; i++)
        count += f->power[i] == 0;
    for (int64_t i = 0; i < n && !exact; i++)
        count += f->inverse[i] == 0;
    return count != 0;
}

/* Scales that r->scales makes of quotients, and their codes; false: of one of these groups it
 * cannot. */
static bool many_scales(const struct rt_rows *r, const float *most, int64_t n, double second,
                        void *codes, double *scale)
{
    const struct rt_coding *c = r->format->scale;
    const float least = r->format->second ? 0 : 0x1p-100f; /* below: what f32 has not all bits of */
    float q[GROUPS];
    if (!r->scales || others(most, n, least))
        return false;
    rt_rows_scale(r, most, n, rt_rows_inverse(r->format->element->largest, second), q);
    r->scales(q, n, codes);
    if (c->bits != 8)
        moegen_rt_convert(c->dtype, codes, MOEGEN_RT_F64, scale, (size_t)n);
    for (int64_t i = 0; i < n && c->bits == 8; i++)
        scale[i] = r->scale[((const uint8_t *)codes)[i]];
    return true;
}

/* The scales of n groups, whose magnitudes 1 follows; how many are NaN. */
static int64_t scales_of(const struct rt_rows *r, enum rt_rule rule, const float *most, int64_t n,
                         double second, void *scales, int64_t first, struct factors *to)
{
    char *codes = (char *)scales + first * (r->format->scale->bits / 8);
    uint32_t code[GROUPS];
    double scale[GROUPS] = {0};
    if (r->exact) {
        powers(most, n, r->shift[rule], code, to->power);
        for (int64_t i = 0; i < n; i++)
            codes[i] = (char)code[i];
    } else if (many_scales(r, most, n, second, codes, scale)) {
        inverses(scale, n, second, to->inverse);
    } else {
        for (int64_t i = 0; i < n; i++)
            rt_format_put_scale(
                r->format, codes, i,
                rt_rows_scale_code(r, rule, bits_of(most[i]), second, &to->inverse[i]));
    }
    return others(most, n, 0);
}

int64_t rt_rows_groups(const struct rt_rows *r, enum rt_rule rule, const float *x, int64_t n,
                       int64_t group, double second, void *scales, int64_t first, float *q)
{
    float most[GROUPS];
    struct factors factors;
    int64_t nans = 0;
    for (int64_t at = 0, groups; at < n; at += groups * group, first += groups) {
        groups = (n - at) / group < GROUPS ? (n - at) / group : GROUPS;
        most_of_groups(x + at, groups, group, most);
        for (int64_t g = groups; g % LANES; g++)
            most[g] = 1;
        nans += scales_of(r, rule, most, groups, second, scales, first, &factors);
        const bool vain = zeros(&factors, groups, r->exact);
        if (r->exact)
            scale_groups_exact(x + at, groups, group, factors.power, q + at);
        else
            scale_groups(x + at, groups, group, factors.inverse, q + at);
        for (int64_t g = 0; vain && g < groups; g++)
            if (r->exact ? factors.power[g] == 0 : factors.inverse[g] == 0)
                rt_rows_scale(r, x + at + g * group, group, 0, q + at + g * group);
    }
    return nans;
}
