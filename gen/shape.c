/* SPDX-License-Identifier: Apache-2.0 */
/* shape.c - extents of tensors as formulas of at most one run-time size: times * dim + plus. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

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

void shape_text(struct text *t, int rank, const int64_t *shape)
{
    text_add(t, "[", 1);
    for (int i = 0; i < rank; i++)
        text_fmt(t, "%s%" PRId64, i ? ", " : "", shape[i]);
    text_add(t, "]", 1);
}
