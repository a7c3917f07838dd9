/* SPDX-License-Identifier: Apache-2.0 */
/* kept.c - a reference without what is not compared: see kept.h.
 *
 * Errors count in roundings of the largest magnitude of a row, to which elements that are not
 * compared contribute as they came. Of these the last column has the largest, and NaN is expected
 * of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kept.h"
#include "reference.h"

/* ---- keeping ---- */

static bool is_compared(const double *want, struct rt_row row)
{
    for (int64_t i = 0; i < row.count; i++)
        if (!isnan(want[i * row.stride]))
            return true;
    return false;
}

/* The first elements of rows that are compared into `first` (NULL: they are only counted). */
static int64_t find_rows(const moegen_rt_tensor *want, struct rt_row row, int64_t *first)
{
    const double *data = want->data;
    int64_t all = moegen_rt_tensor_count(want), span = row.count * row.stride, found = 0;
    for (int64_t at = 0; at < all; at += span)
        for (int64_t i = 0; i < row.stride; i++)
            if (is_compared(data + at + i, row)) {
                if (first)
                    first[found] = at + i;
                found++;
            }
    return found;
}

/* The elements of the first row that are compared. */
static bool find_columns(struct rt_kept *k, const double *want)
{
    k->column = malloc((size_t)k->count * sizeof *k->column);
    for (int64_t i = 0; k->column && i < k->count; i++)
        if (!isnan(want[k->first[0] + i * k->stride]))
            k->column[k->columns++] = i;
    return k->column != NULL;
}

/* Are they those of each row? */
static bool rows_are_alike(const struct rt_kept *k, const double *want)
{
    for (int64_t r = 0; r < k->rows; r++)
        for (int64_t i = 0, next = 0; i < k->count; i++) {
            bool kept = next < k->columns && k->column[next] == i;
            if (kept == isnan(want[k->first[r] + i * k->stride]))
                return false;
            next += kept;
        }
    return true;
}

static bool copy_want(struct rt_kept *k, const moegen_rt_tensor *want)
{
    const double *from = want->data;
    int64_t width = k->columns + (k->columns < k->count);
    k->want = *want;
    k->want.name = NULL;
    k->want.across = 0;
    k->want.rank = 2;
    k->want.shape[0] = k->rows;
    k->want.shape[1] = width;
    k->want.bytes = (size_t)(k->rows * width) * sizeof(double);
    double *to = k->want.data = moegen_rt_alloc(k->want.bytes);
    for (int64_t r = 0; to && r < k->rows; r++) {
        for (int64_t c = 0; c < k->columns; c++)
            *to++ = from[k->first[r] + k->column[c] * k->stride];
        if (k->columns < width)
            *to++ = (double)NAN;
    }
    return k->want.data != NULL;
}

moegen_rt_status rt_keep(const moegen_rt_tensor *want, struct rt_kept *out, int *worthwhile)
{
    struct rt_row row = rt_row_of(want);
    int64_t all = moegen_rt_tensor_count(want), rows = all ? find_rows(want, row, NULL) : 0;
    *out = (struct rt_kept){.rows = rows, .count = row.count, .stride = row.stride, .whole = all};
    *worthwhile = 0;
    bool ok = true;
    if (rows) {
        out->first = malloc((size_t)rows * sizeof *out->first);
        ok = out->first != NULL;
        if (ok)
            find_rows(want, row, out->first);
        ok = ok && find_columns(out, want->data);
        *worthwhile = ok && rows * out->columns < all / 2 && rows_are_alike(out, want->data);
    }
    if (*worthwhile)
        ok = copy_want(out, want);
    if (!ok || !*worthwhile)
        rt_kept_free(out);
    return ok ? MOEGEN_RT_OK : MOEGEN_RT_NO_MEMORY;
}

void rt_kept_free(struct rt_kept *k)
{
    free(k->first);
    free(k->column);
    moegen_rt_free(k->want.data);
    moegen_rt_free(k->got);
    *k = (struct rt_kept){0};
}

/* ---- comparing ---- */

/* Of the elements of a row that are not kept the one that is largest; those that are not finite do
 * not count. */
static int64_t largest_left(const struct rt_kept *k, const moegen_rt_tensor *got, int64_t first)
{
    enum { CHUNK = 512 };
    double chunk[CHUNK], size = -1;
    int64_t most = k->stride > 1 ? 1 : CHUNK, found = -1, next = 0;
    for (int64_t i = 0; i < k->count; i += most) {
        int64_t n = k->count - i < most ? k->count - i : most;
        rt_elements(got, first + i * k->stride, n, chunk);
        for (int64_t j = 0; j < n; j++) {
            bool kept = next < k->columns && k->column[next] == i + j;
            next += kept;
            if (!kept && (found < 0 || (isfinite(chunk[j]) && fabs(chunk[j]) > size))) {
                found = i + j;
                size = isfinite(chunk[j]) ? fabs(chunk[j]) : -1;
            }
        }
    }
    return found;
}

static void gather(const struct rt_kept *k, const moegen_rt_tensor *got, size_t size, char *to)
{
    const char *from = got->data;
    for (int64_t r = 0; r < k->rows; r++) {
        for (int64_t c = 0; c < k->columns; c++, to += size)
            memcpy(to, from + (size_t)(k->first[r] + k->column[c] * k->stride) * size, size);
        if (k->columns == k->count)
            continue;
        int64_t left = largest_left(k, got, k->first[r]);
        memcpy(to, from + (size_t)(k->first[r] + left * k->stride) * size, size);
        to += size;
    }
}

moegen_rt_status rt_kept_compare(struct rt_kept *k, const moegen_rt_tensor *got,
                                 moegen_rt_comparison *c, moegen_rt_error *err)
{
    size_t size = moegen_rt_dtype_of(got->dtype)->bytes;
    size_t bytes = (size_t)(k->rows * k->want.shape[1]) * size;
    if (moegen_rt_tensor_count(got) < k->whole)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "tensor '%s' has %lld elements, expected %lld",
                       got->name, (long long)moegen_rt_tensor_count(got), (long long)k->whole);
    if (k->room < bytes) {
        moegen_rt_free(k->got);
        k->got = moegen_rt_alloc(bytes);
        k->room = k->got ? bytes : 0;
    }
    if (!k->got)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    gather(k, got, size, k->got);
    moegen_rt_tensor some = *got;
    some.rank = 2;
    some.shape[0] = k->rows;
    some.shape[1] = k->want.shape[1];
    some.data = k->got;
    some.bytes = bytes;
    return moegen_rt_compare(&some, &k->want, c, err);
}
