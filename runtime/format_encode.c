/* SPDX-License-Identifier: Apache-2.0 */
/* format_encode.c - values to codes and scales of a format, in double: what is right, not what is
 * fast. */
#include <math.h>
#include <string.h>

#include "format.h"

double rt_format_amax(const double *x, int64_t n, int64_t stride)
{
    double amax = 0;
    for (int64_t i = 0; i < n; i++) {
        double size = fabs(x[i * stride]);
        if (!isfinite(size))
            return (double)NAN;
        amax = size > amax ? size : amax;
    }
    return amax;
}

/* amax / what, in that coding; not 0 unless amax is so small beside the second scale that all it
 * scales vanishes. */
static uint32_t quotient(const struct rt_coding *c, double amax, double by)
{
    uint32_t code = c->code(amax / by);
    return c->value(code) == 0 ? 1 : code; /* 1: the least positive number of every float */
}

float rt_format_second(const struct rt_format *f, double amax)
{
    const struct rt_coding *f32 = rt_coding_find("f32");
    if (!f->second || amax == 0)
        return 1;
    return (float)f32->value(quotient(f32, amax, f->element->largest * f->scale->largest));
}

uint32_t rt_format_scale_code(const struct rt_format *f, enum rt_rule rule, double amax,
                              double second)
{
    const struct rt_coding *c = f->scale;
    if (!isfinite(amax))
        return c->code((double)NAN);
    if (rt_format_has_rule(f))
        return c->code(ldexp(amax, -ilogb(f->element->largest) + (rule == RT_WIDE)));
    if (f->second)
        return c->code(amax / (f->element->largest * second));
    return amax == 0 ? c->code(1) : quotient(c, amax, f->element->largest);
}

void rt_format_put_scale(const struct rt_format *f, void *scales, int64_t i, uint32_t code)
{
    size_t bytes = (size_t)f->scale->bits / 8;
    memcpy((char *)scales + (size_t)i * bytes, &code, bytes);
}

static void put_code(const struct rt_coding *c, void *codes, int64_t i, uint32_t code)
{
    uint8_t *byte = (uint8_t *)codes + i * c->bits / 8;
    int shift = c->bits == 4 ? 4 * (int)(i & 1) : 0;
    uint32_t mask = (1u << c->bits) - 1;
    *byte = (uint8_t)((*byte & ~(mask << shift)) | code << shift);
}

void rt_format_encode(const struct rt_format *f, const double *x, int64_t n, double scale,
                      double second, void *codes, int64_t first)
{
    double by = scale * second;
    for (int64_t i = 0; i < n; i++) {
        double q = by > 0 ? x[i] / by : isfinite(x[i]) ? 0 * x[i] : 0;
        put_code(f->element, codes, first + i, f->element->code(q));
    }
}
