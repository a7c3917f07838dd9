/* SPDX-License-Identifier: Apache-2.0 */
/* format_groups.c - scales and quotients of many f32 in groups that share a scale, with few calls:
 * what format_rows.c does for one group at a time. */
#include <math.h>

#include "format.h"
#include "rt_wide.h"

enum { GROUPS = 128 }; /* at a time */

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
WIDE static void powers(const float *restrict most, int shift, uint32_t *restrict code,
                        float *restrict inverse)
{
    for (int i = 0; i < GROUPS; i++) {
        int field = (int)(bits_of(most[i]) >> 23), less = field > shift ? field - shift : 0;
        uint32_t is_number = 0u - (uint32_t)(field != 255);
        code[i] = field == 255 ? 255 : (uint32_t)less;
        inverse[i] = float_of((uint32_t)(254 - less) << 23 & is_number);
    }
}

WIDE static void inverses(const double *restrict scale, double second, double *restrict inverse)
{
    for (int i = 0; i < GROUPS; i++) {
        double by = scale[i] * second, quotient = 1 / by;
        inverse[i] = by > 0 ? quotient : 0;
    }
}

/* Codes of scales that r->scales makes of quotients; false: of one of these groups it cannot. */
static bool many_codes(const struct rt_rows *r, const float *most, int64_t n, double second,
                       uint32_t *code)
{
    const float least = r->format->second ? 0 : 0x1p-100f; /* below: what f32 has not all bits of */
    float q[GROUPS];
    uint8_t codes[2 * GROUPS];
    bool ok = r->scales != NULL;
    for (int64_t i = 0; i < n; i++)
        ok = ok && most[i] >= least && most[i] <= 0x1.fffffep127f;
    if (!ok)
        return false;
    rt_rows_scale(r, most, n, rt_rows_inverse(r->format->element->largest, second), q);
    r->scales(q, n, codes);
    for (int64_t i = 0; i < n; i++) {
        uint16_t wide;
        memcpy(&wide, codes + 2 * i, sizeof wide);
        code[i] = r->format->scale->bits == 8 ? codes[i] : wide;
    }
    return true;
}

/* What the values of groups are multiplied by: as `exact` says, one or the other. */
struct factors {
    float power[GROUPS];
    double inverse[GROUPS];
};

/* The scales of n groups; how many are NaN. */
static int64_t scales_of(const struct rt_rows *r, enum rt_rule rule, const float *most, int64_t n,
                         double second, void *scales, int64_t first, struct factors *to)
{
    const struct rt_coding *c = r->format->scale;
    uint32_t code[GROUPS];
    double scale[GROUPS] = {0};
    int64_t nans = 0;
    if (r->exact) {
        powers(most, r->shift[rule], code, to->power);
    } else if (many_codes(r, most, n, second, code)) {
        for (int64_t i = 0; i < n; i++)
            scale[i] = c->bits == 8 ? r->scale[code[i]] : c->value(code[i]);
        inverses(scale, second, to->inverse);
    } else {
        for (int64_t i = 0; i < n; i++)
            code[i] = rt_rows_scale_code(r, rule, bits_of(most[i]), second, &to->inverse[i]);
    }
    for (int64_t i = 0; i < n; i++)
        nans += bits_of(most[i]) >= 0x7f800000;
    for (int64_t i = 0; i < n && c->bits == 8; i++)
        ((uint8_t *)scales)[first + i] = (uint8_t)code[i];
    for (int64_t i = 0; i < n && c->bits != 8; i++)
        rt_format_put_scale(r->format, scales, first + i, code[i]);
    return nans;
}

int64_t rt_rows_groups(const struct rt_rows *r, enum rt_rule rule, const float *x, int64_t n,
                       int64_t group, double second, void *scales, int64_t first, float *q)
{
    float most[GROUPS] = {0};
    struct factors factors;
    int64_t nans = 0;
    for (int64_t at = 0, groups; at < n; at += groups * group, first += groups) {
        groups = (n - at) / group < GROUPS ? (n - at) / group : GROUPS;
        most_of_groups(x + at, groups, group, most);
        nans += scales_of(r, rule, most, groups, second, scales, first, &factors);
        if (r->exact)
            scale_groups_exact(x + at, groups, group, factors.power, q + at);
        else
            scale_groups(x + at, groups, group, factors.inverse, q + at);
        for (int64_t g = 0; g < groups; g++)
            if (r->exact ? factors.power[g] == 0 : factors.inverse[g] == 0)
                rt_rows_scale(r, x + at + g * group, group, 0, q + at + g * group);
    }
    return nans;
}
