/* SPDX-License-Identifier: Apache-2.0 */
/* call_check.c - what is bound to a call against what its kernel takes: dtypes, shapes, sizes,
 * overlaps. */
#include <inttypes.h>

#include "call.h"

/* Extent d of an argument; past its rank everything is 1. */
static struct extent extent_at(const struct unit *u, int arg, int d)
{
    return d < u->arg[arg].rank ? u->extent[arg][d] : (struct extent){0, 1, -1};
}

static int64_t length_at(const struct bound *b, int d)
{
    return d < b->rank ? b->shape[d] : 1;
}

/* "bf16 [T+1, 2048]" */
static void expected(struct text *t, const struct unit *u, int arg)
{
    text_fmt(t, "%s [", moegen_dtype_name(u->arg[arg].dtype));
    for (int d = 0; d < u->arg[arg].rank; d++)
        text_fmt(t, "%s%s", d ? ", " : "", u->extent_text[arg][d]);
    text_add(t, "]", 1);
}

static moegen_status mismatch(const struct unit *u, int arg, moegen_dtype dtype,
                              const struct bound *b, const char *why, moegen_error **err)
{
    struct text t = {0};
    text_fmt(&t, "tensor '%s' is %s ", u->arg[arg].name, moegen_dtype_name(dtype));
    shape_text(&t, b->rank, b->shape);
    text_fmt(&t, ", expected ");
    expected(&t, u, arg);
    text_fmt(&t, "%s", why ? why : "");
    moegen_status status = error_set(err, MOEGEN_BAD_ARGUMENT, "%s", t.at ? t.at : "");
    text_free(&t);
    return status;
}

/* May this shape match for some sizes? Constants must be equal, and nothing may be negative. */
static bool shape_possible(const struct unit *u, int arg, const struct bound *b)
{
    int top = b->rank > u->arg[arg].rank ? b->rank : u->arg[arg].rank;
    for (int d = 0; d < top; d++) {
        struct extent x = extent_at(u, arg, d);
        int64_t length = length_at(b, d);
        if (length < 0 || (x.dim < 0 ? x.plus != length : extent_solve(&x, length) < 0))
            return false;
    }
    return true;
}

moegen_status call_may_bind(const struct unit *u, int arg, moegen_dtype dtype,
                            const struct bound *b, moegen_error **err)
{
    if (dtype == u->arg[arg].dtype && shape_possible(u, arg, b))
        return MOEGEN_OK;
    return mismatch(u, arg, dtype, b, NULL, err);
}

void call_solve(const moegen_call *c, int64_t *size, int *from)
{
    const struct unit *u = c->unit;
    for (int k = 0; k < u->facts.dim_count; k++) {
        size[k] = c->given[k];
        from[k] = -1;
    }
    for (int i = 0; i < u->facts.arg_count; i++)
        for (int d = 0; c->bound[i].data && d < u->arg[i].rank; d++) {
            const struct extent *x = &u->extent[i][d];
            if (x->dim < 0 || size[x->dim] >= 0)
                continue;
            size[x->dim] = extent_solve(x, length_at(&c->bound[i], d));
            from[x->dim] = i;
        }
    for (int i = 0; i < u->derived_count; i++)
        if (size[u->derived[i].dim] < 0)
            size[u->derived[i].dim] = derived_value(&u->derived[i], size);
}

/* Does bound tensor i have the extents that the sizes ask for? */
static bool shape_agrees(const moegen_call *c, int i, const int64_t *size)
{
    const struct bound *b = &c->bound[i];
    for (int d = 0; d < c->unit->arg[i].rank; d++)
        if (extent_value(&c->unit->extent[i][d], size) != length_at(b, d))
            return false;
    return true;
}

static uintptr_t bytes_of(const moegen_call *c, int i)
{
    uintptr_t n = moegen_dtype_size(c->unit->arg[i].dtype);
    for (int d = 0; d < c->bound[i].rank; d++)
        n *= (uintptr_t)c->bound[i].shape[d];
    return n;
}

static void check_overlaps(const moegen_call *c, moegen_error **err)
{
    const struct unit *u = c->unit;
    for (int i = 0; i < u->facts.arg_count; i++)
        for (int j = 0; c->bound[i].data && j < u->facts.arg_count; j++) {
            if (!c->bound[j].data || i == j || u->arg[i].role == MOEGEN_IN ||
                (j < i && u->arg[j].role != MOEGEN_IN))
                continue;
            uintptr_t a = (uintptr_t)c->bound[i].data, b = (uintptr_t)c->bound[j].data;
            if (a < b + bytes_of(c, j) && b < a + bytes_of(c, i))
                error_set(err, MOEGEN_BAD_ARGUMENT, "output '%s' overlaps tensor '%s'",
                          u->arg[i].name, u->arg[j].name);
        }
}

static void check_shapes(const moegen_call *c, const int64_t *size, const int *from,
                         moegen_error **err)
{
    const struct unit *u = c->unit;
    for (int i = 0; i < u->facts.arg_count; i++) {
        const struct bound *b = &c->bound[i];
        struct text why = {0};
        if (!b->data || shape_agrees(c, i, size))
            continue;
        for (int k = 0; k < u->facts.dim_count; k++) {
            text_fmt(&why, "%s%s = %" PRId64, k ? ", " : " with ", u->dim[k], size[k]);
            if (from[k] >= 0 && from[k] != i)
                text_fmt(&why, " (from '%s')", u->arg[from[k]].name);
        }
        mismatch(u, i, u->arg[i].dtype, b, why.at, err);
        text_free(&why);
    }
}

moegen_status call_check(moegen_call *c, moegen_error **err)
{
    const struct unit *u = c->unit;
    moegen_error *all = NULL;
    int64_t size[MAX_DIMS];
    int unbound = 0, from[MAX_DIMS];
    call_solve(c, size, from);
    for (int i = 0; i < u->facts.arg_count; i++)
        if (!c->bound[i].data && !u->arg[i].optional) {
            struct text t = {0};
            expected(&t, u, i);
            error_set(&all, MOEGEN_BAD_ARGUMENT, "tensor '%s' is not bound; expected %s",
                      u->arg[i].name, t.at ? t.at : "");
            text_free(&t);
            unbound++;
        }
    for (int k = 0; k < u->facts.dim_count; k++)
        if (size[k] < 0 && !unbound)
            error_set(&all, MOEGEN_BAD_ARGUMENT, "no bound tensor fixes the size %s: set it",
                      u->dim[k]);
    check_shapes(c, size, from, &all);
    check_overlaps(c, &all);
    if (all) {
        if (err)
            *err = all;
        else
            moegen_error_release(all);
        return MOEGEN_BAD_ARGUMENT;
    }
    int n = u->facts.arg_count;
    for (int i = 0; i < n; i++)
        c->cell[i].pointer = c->bound[i].data;
    for (int k = 0; k < u->facts.dim_count; k++)
        c->cell[n + k].size = size[k];
    return MOEGEN_OK;
}
