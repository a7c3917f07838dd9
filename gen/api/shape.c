/* SPDX-License-Identifier: Apache-2.0 */
/* shape.c - extents of tensors as formulas of at most one run-time size: times * dim + plus. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

static int dim_find(const char *name, size_t len, const char *const *dims, int dim_count)
{
    for (int i = 0; i < dim_count; i++)
        if (strlen(dims[i]) == len && memcmp(dims[i], name, len) == 0)
            return i;
    return -1;
}

static bool number(const char **at, int64_t *out)
{
    if (**at < '0' || **at > '9')
        return false;
    char *end;
    long long value = strtoll(*at, &end, 10);
    *at = end;
    *out = value;
    return value >= 0;
}

bool extent_parse(const char *text, const char *const *dims, int dim_count, struct extent *out)
{
    struct extent x = {1, 0, -1};
    const char *at = text;
    int64_t first;
    if (number(&at, &first)) {
        if (!*at) {
            *out = (struct extent){0, first, -1};
            return true;
        }
        if (*at++ != '*' || first < 1)
            return false;
        x.times = first;
    }
    size_t len = strcspn(at, "+");
    x.dim = dim_find(at, len, dims, dim_count);
    at += len;
    if (x.dim < 0 || (*at && (at++, !number(&at, &x.plus) || *at)))
        return false;
    *out = x;
    return true;
}

int64_t extent_value(const struct extent *x, const int64_t *size)
{
    int64_t value;
    if (x->dim < 0)
        return x->plus;
    if (size[x->dim] < 0 || __builtin_mul_overflow(x->times, size[x->dim], &value) ||
        __builtin_add_overflow(value, x->plus, &value))
        return -1;
    return value;
}

int64_t extent_solve(const struct extent *x, int64_t value)
{
    if (x->dim < 0 || value < x->plus || (value - x->plus) % x->times)
        return -1;
    return (value - x->plus) / x->times;
}

bool derived_parse(const char *text, const char *const *dims, int dim_count, struct derived *out)
{
    struct derived x;
    size_t dim = strcspn(text, " "), from = text[dim] ? strcspn(text + dim + 1, " ") : 0;
    x.dim = dim_find(text, dim, dims, dim_count);
    x.from = from ? dim_find(text + dim + 1, from, dims, dim_count) : -1;
    if (x.dim < 0 || x.from < 0)
        return false;
    const char *at = text + dim + 1 + from;
    int64_t *const numbers[] = {&x.times, &x.less, &x.per, &x.least};
    for (int i = 0; i < 4; i++)
        if (*at++ != ' ' || !number(&at, numbers[i]))
            return false;
    *out = x;
    return !*at && x.per > 0;
}

int64_t derived_value(const struct derived *x, const int64_t *size)
{
    int64_t beyond, value;
    if (size[x->from] < 0 || __builtin_mul_overflow(size[x->from], x->times, &beyond))
        return -1;
    beyond -= x->less;
    value = beyond / x->per + (beyond % x->per > 0); /* rounded up, also below zero */
    if (__builtin_add_overflow(value, x->less, &value))
        return -1;
    return value > x->least ? value : x->least;
}

void shape_text(struct text *t, int rank, const int64_t *shape)
{
    text_add(t, "[", 1);
    for (int i = 0; i < rank; i++)
        text_fmt(t, "%s%" PRId64, i ? ", " : "", shape[i]);
    text_add(t, "]", 1);
}
