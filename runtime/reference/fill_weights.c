/* SPDX-License-Identifier: Apache-2.0 */
/* fill_weights.c - random matrices of the experts, in any layout and format. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quantised.h"
#include "weights.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        moegen_rt_status try_status = (call);                                                      \
        if (try_status != MOEGEN_RT_OK)                                                            \
            return try_status;                                                                     \
    } while (0)

/* ---- numbers ---- */

/* The kind's tensor in `plain` decides the values, so that they are the same in all layouts. */
static moegen_rt_status fill_numbers(moegen_rt_problem *p, const struct rt_weights *w,
                                     const char *after, moegen_rt_dtype dtype, uint64_t seed,
                                     double scale, moegen_rt_error *err)
{
    char name[64];
    size_t n = (size_t)(w->K * w->C);
    snprintf(name, sizeof name, "%s%s", w->whole, after);
    seed = rt_seed(seed, name);
    char *values = malloc(n * moegen_rt_dtype_of(dtype)->bytes); /* of an expert */
    if (!values)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    moegen_rt_status status = MOEGEN_RT_OK;
    for (int i = 0; i < w->count && status == MOEGEN_RT_OK; i++) {
        const struct rt_stored *s = &w->of[i];
        moegen_rt_tensor *t;
        snprintf(name, sizeof name, "%s%s", s->name, after);
        status = moegen_rt_problem_add(p, name, dtype, s->code.rank, s->code.shape, &t, err);
        if (status != MOEGEN_RT_OK)
            break;
        if (w->canonical) {
            moegen_rt_normal(dtype, t->data, n * (size_t)w->E, seed, scale);
            break;
        }
        memset(t->data, 0, t->bytes); /* what is no element */
        for (int64_t e = 0; e < w->E; e++) {
            rt_normal_from((size_t)e * n, dtype, values, n, seed, scale);
            rt_weights_copy(w, s, e, dtype, t->data, values, true);
            if (s->packed.run)
                rt_packed_header(&s->packed,
                                 (char *)t->data +
                                     (size_t)(e * s->code.each) * moegen_rt_dtype_of(dtype)->bytes);
        }
    }
    free(values);
    return status;
}

/* ---- codes ---- */

enum { FILLER = 0x11 }; /* in bytes that hold no element: a number in all formats */

/* The codes of finite values, and the root of the mean of their squares. */
struct codes {
    int count;
    uint8_t code[256];
    double size;
};

static struct codes finite_codes(const struct rt_coding *c)
{
    struct codes all = {0};
    for (uint32_t code = 0; code < 1u << c->bits; code++) {
        double v = c->value(code);
        if (!isfinite(v))
            continue;
        all.code[all.count++] = (uint8_t)code;
        all.size += v * v;
    }
    all.size = sqrt(all.size / all.count);
    return all;
}

static void put_code(const struct rt_format *f, uint8_t *to, int64_t at, uint8_t code)
{
    int shift = 4 * (int)(at & 1);
    if (f->element->bits == 4)
        to[at / 2] = (uint8_t)((to[at / 2] & ~(15 << shift)) | code << shift);
    else
        to[at] = code;
}

/* A number of the kind's element, whatever the layout. */
static uint64_t number_of(const struct rt_weights *w, const struct rt_stored *s, int64_t e,
                          int64_t k, int64_t c)
{
    return (uint64_t)((e * w->K + k) * w->C + s->first + c);
}

static moegen_rt_status fill_codes(moegen_rt_problem *p, const struct rt_weights *w,
                                   const struct rt_stored *s, const struct codes *all,
                                   uint64_t seed, moegen_rt_error *err)
{
    static const moegen_rt_dtype of_bytes[] = {
        [1] = MOEGEN_RT_U8, [2] = MOEGEN_RT_U16, [4] = MOEGEN_RT_U32};
    const struct rt_format *f = w->format;
    moegen_rt_tensor *t;
    moegen_rt_dtype dtype = s->lanes == 1 ? f->codes : of_bytes[s->lanes * f->element->bits / 8];
    TRY(moegen_rt_problem_add(p, s->name, dtype, s->code.rank, s->code.shape, &t, err));
    memset(t->data, FILLER, t->bytes);
    for (int64_t e = 0; e < w->E; e++)
        for (int64_t k = 0; k < w->K; k++)
            for (int64_t c = 0; c < s->C; c++) {
                uint64_t any = rt_hash(seed, number_of(w, s, e, k, c)) >> 32;
                put_code(f, t->data, e * s->code.each + s->code.row[k] + s->code.column[c],
                         all->code[any * (uint64_t)all->count >> 32]);
            }
    return MOEGEN_RT_OK;
}

/* Scales around `size`, each drawn by the first element that it is of. */
static moegen_rt_status fill_scales(moegen_rt_problem *p, const struct rt_weights *w,
                                    const struct rt_stored *s, const char *name,
                                    const struct rt_place *at, const struct rt_coding *coding,
                                    uint64_t seed, double size, moegen_rt_error *err)
{
    moegen_rt_tensor *t;
    TRY(moegen_rt_problem_add(p, name, coding->dtype, at->rank, at->shape, &t, err));
    memset(t->data, FILLER, t->bytes);
    for (int64_t e = at->each ? w->E - 1 : 0; e >= 0; e--)
        for (int64_t k = w->K - 1; k >= 0; k--)
            for (int64_t c = s->C - 1; c >= 0 && (k == 0 || at->row[k] != at->row[k - 1]); c--) {
                if (c > 0 && at->column[c] == at->column[c - 1])
                    continue;
                double any = (double)(rt_hash(seed, number_of(w, s, e, k, c)) >> 40) * 0x1p-24;
                double x = size * (rt_format_has_rule(w->format) ? exp2(3 * any - 1) : 0.5 + any);
                uint32_t code = coding->code(x);
                memcpy((char *)t->data +
                           (e * at->each + at->row[k] + at->column[c]) * (coding->bits / 8),
                       &code, (size_t)coding->bits / 8);
            }
    return MOEGEN_RT_OK;
}

static moegen_rt_status fill_format(moegen_rt_problem *p, const struct rt_weights *w, uint64_t seed,
                                    double scale, moegen_rt_error *err)
{
    const struct rt_format *f = w->format;
    struct codes all = finite_codes(f->element);
    double size = scale / all.size;
    seed = rt_seed(seed, w->whole);
    for (int i = 0; i < w->count; i++) {
        const struct rt_stored *s = &w->of[i];
        TRY(fill_codes(p, w, s, &all, seed, err));
        TRY(fill_scales(p, w, s, s->scale_name, &s->scale, f->scale, rt_seed(seed, "scale"),
                        f->second ? 1 : size, err));
        if (f->second)
            TRY(fill_scales(p, w, s, s->second_name, &s->second, rt_coding_find("f32"),
                            rt_seed(seed, "second"), size, err));
    }
    return MOEGEN_RT_OK;
}

/* ---- both ---- */

moegen_rt_status rt_weights_fill(moegen_rt_problem *p, const struct rt_weights *w,
                                 moegen_rt_dtype dtype, uint64_t seed, double scale,
                                 moegen_rt_error *err)
{
    if (w->format)
        return fill_format(p, w, seed, scale, err);
    if (!w->of[0].given)
        return fill_numbers(p, w, "", dtype, seed, scale, err);
    for (int i = 0; i < w->count; i++)
        TRY(rt_codes_fill(p, w->of[i].given, seed, scale, err));
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_weights_fill_gradient(moegen_rt_problem *p, const struct rt_weights *w,
                                          uint64_t seed, moegen_rt_error *err)
{
    moegen_rt_dtype dtype;
    if (!rt_accumulates(p))
        return MOEGEN_RT_OK;
    TRY(rt_gradient_dtype(p, &dtype, err));
    return fill_numbers(p, w, "_grad", dtype, seed, 1, err);
}
