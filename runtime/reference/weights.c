/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c - the experts' matrices as the mathematics has them, read from the tensors that hold
 * them, and their gradients written into such tensors. */
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

enum { NEAR = 16 }; /* columns at a time: where they are far apart in a tensor */

/* ---- elements from one place to the other ---- */

/* Copies the elements of expert e between a tensor and the columns of [K][C] that it holds. */
#define COPY(type)                                                                                 \
    static void copy_##type(const struct rt_weights *w, const struct rt_stored *s, int64_t e,      \
                            void *tensor, void *matrix, bool into_tensor)                          \
    {                                                                                              \
        type *there = (type *)tensor + e * s->code.each, *here = (type *)matrix + s->first;        \
        for (int64_t first = 0; first < s->C; first += NEAR) {                                     \
            int64_t end = first + NEAR < s->C ? first + NEAR : s->C;                               \
            for (int64_t k = 0; k < w->K; k++)                                                     \
                for (int64_t c = first; c < end; c++) {                                            \
                    type *x = there + s->code.row[k] + s->code.column[c];                          \
                    type *y = here + k * w->C + c;                                                 \
                    *(into_tensor ? x : y) = *(into_tensor ? y : x);                               \
                }                                                                                  \
        }                                                                                          \
    }
COPY(uint8_t)
COPY(uint16_t)
COPY(uint32_t)
COPY(uint64_t)

void rt_weights_copy(const struct rt_weights *w, const struct rt_stored *s, int64_t e,
                     moegen_rt_dtype dtype, void *tensor, void *matrix, bool into_tensor)
{
    switch (moegen_rt_dtype_of(dtype)->bytes) {
    case 1:
        copy_uint8_t(w, s, e, tensor, matrix, into_tensor);
        break;
    case 2:
        copy_uint16_t(w, s, e, tensor, matrix, into_tensor);
        break;
    case 4:
        copy_uint32_t(w, s, e, tensor, matrix, into_tensor);
        break;
    default:
        copy_uint64_t(w, s, e, tensor, matrix, into_tensor);
        break;
    }
}

bool rt_weights_canonical(const struct rt_weights *w)
{
    const struct rt_place *p = &w->of[0].code;
    bool same = w->count == 1 && !w->format && p->each == w->K * w->C;
    for (int64_t k = 0; k < w->K && same; k++)
        same = p->row[k] == k * w->C;
    for (int64_t c = 0; c < w->C && same; c++)
        same = p->column[c] == c;
    return same;
}

/* ---- reading ---- */

static const char *dtype_name(moegen_rt_dtype dtype)
{
    return moegen_rt_dtype_of(dtype)->name;
}

/* Codes are taken in any dtype that is as wide, scales in any float. */
static moegen_rt_status find_format(const moegen_rt_problem *p, const struct rt_format *f,
                                    struct rt_stored *s, moegen_rt_error *err)
{
    size_t bytes = (size_t)(s->lanes * f->element->bits / 8);
    if (moegen_rt_dtype_of(s->codes->dtype)->bytes != bytes)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT,
                       "tensor '%s' is of %s, which is not of %zu bits, as codes of %s are",
                       s->name, dtype_name(s->codes->dtype), 8 * bytes, f->name);
    TRY(rt_input(p, s->scale_name, true, s->scale.rank, s->scale.shape, &s->scales, err));
    bool same = f->scale->dtype == s->scales->dtype,
         number = moegen_rt_dtype_of(f->scale->dtype)->digits != 0;
    if (!same && !(number && moegen_rt_dtype_of(s->scales->dtype)->digits != 0))
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "tensor '%s' is of %s, expected %s",
                       s->scale_name, dtype_name(s->scales->dtype), dtype_name(f->scale->dtype));
    if (!f->second)
        return MOEGEN_RT_OK;
    return rt_input(p, s->second_name, true, s->second.rank, s->second.shape, &s->seconds, err);
}

static moegen_rt_status find_tensor(const moegen_rt_problem *p, struct rt_weights *w,
                                    struct rt_stored *s, moegen_rt_error *err)
{
    if (s->given)
        return rt_codes_find(p, s->given, err);
    TRY(rt_input(p, s->name, true, s->code.rank, s->code.shape, &s->codes, err));
    if (w->format)
        return find_format(p, w->format, s, err);
    moegen_rt_dtype dtype = s->codes->dtype, first = w->of[0].codes->dtype;
    if (dtype != first)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "tensor '%s' is of %s, but '%s' of %s", s->name,
                       dtype_name(dtype), w->of[0].name, dtype_name(first));
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_weights_find(const moegen_rt_problem *p, struct rt_weights *w,
                                 moegen_rt_error *err)
{
    int64_t scales = 0, numbers = 0;
    for (int i = 0; i < w->count; i++) {
        TRY(find_tensor(p, w, &w->of[i], err));
        scales = w->of[i].scale.count > scales ? w->of[i].scale.count : scales;
        numbers = w->of[i].given ? w->of[i].code.each : 0;
    }
    if (w->canonical)
        return MOEGEN_RT_OK;
    const struct rt_coding *element = w->format ? w->format->element : NULL;
    for (uint32_t code = 0; element && code < 1u << element->bits; code++)
        w->value[code] = element->value(code);
    w->matrix =
        (moegen_rt_tensor){.dtype = element || numbers ? MOEGEN_RT_F64 : w->of[0].codes->dtype,
                           .rank = 2,
                           .shape = {w->K, w->C}};
    w->matrix.data = malloc((size_t)(w->K * w->C) * moegen_rt_dtype_of(w->matrix.dtype)->bytes);
    w->scales = malloc((size_t)(scales + 1) * sizeof *w->scales);
    w->numbers = malloc((size_t)(numbers + 1) * sizeof *w->numbers);
    return w->matrix.data && w->scales && w->numbers
               ? MOEGEN_RT_OK
               : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
}

/* The scales of an expert, into w->scales. */
static void decode_scales(struct rt_weights *w, const struct rt_stored *s, int64_t e)
{
    const moegen_rt_tensor *t = s->scales;
    int64_t first = e * s->scale.each, n = s->scale.count;
    if (moegen_rt_dtype_of(t->dtype)->digits)
        rt_elements(t, first, n, w->scales);
    for (int64_t i = 0; i < n && !moegen_rt_dtype_of(t->dtype)->digits; i++)
        w->scales[i] = w->format->scale->value(((const uint8_t *)t->data)[first + i]);
}

/* The columns of an expert's matrix that are in this tensor. */
static void decode(struct rt_weights *w, const struct rt_stored *s, int64_t e)
{
    const uint8_t *codes = s->codes->data;
    bool pairs = w->format->element->bits == 4;
    decode_scales(w, s, e);
    for (int64_t first = 0; first < s->C; first += NEAR) {
        int64_t end = first + NEAR < s->C ? first + NEAR : s->C;
        for (int64_t k = 0; k < w->K; k++)
            for (int64_t c = first; c < end; c++) {
                int64_t at = e * s->code.each + s->code.row[k] + s->code.column[c];
                int code = pairs ? codes[at / 2] >> 4 * (at & 1) & 15 : codes[at];
                ((double *)w->matrix.data)[k * w->C + s->first + c] =
                    w->value[code] * w->scales[s->scale.row[k] + s->scale.column[c]];
            }
    }
    for (int64_t c = 0; s->seconds && c < s->C; c++) {
        double second;
        rt_elements(s->seconds, e * s->second.each + s->second.column[c], 1, &second);
        for (int64_t k = 0; k < w->K; k++)
            ((double *)w->matrix.data)[k * w->C + s->first + c] *= second;
    }
}

void rt_weights_of(struct rt_weights *w, int64_t expert, const moegen_rt_tensor **t, int64_t *first)
{
    *t = w->canonical ? w->of[0].codes : &w->matrix;
    *first = w->canonical ? expert * w->K * w->C : 0;
    if (w->canonical || w->expert == expert)
        return;
    for (int i = 0; i < w->count; i++) {
        if (w->format)
            decode(w, &w->of[i], expert);
        else if (w->of[i].given) {
            rt_codes_decode(w->of[i].given, expert, w->numbers);
            rt_weights_copy(w, &w->of[i], 0, MOEGEN_RT_F64, w->numbers, w->matrix.data, false);
        } else
            rt_weights_copy(w, &w->of[i], expert, w->matrix.dtype, w->of[i].codes->data,
                            w->matrix.data, false);
    }
    w->expert = expert;
}

void rt_weights_free(struct rt_weights *w)
{
    for (int i = 0; i < 2; i++) {
        free(w->of[i].code.row);
        free(w->of[i].scale.row);
        free(w->of[i].second.row);
        if (w->of[i].given)
            rt_codes_free(w->of[i].given);
        free(w->of[i].given);
    }
    free(w->numbers);
    free(w->matrix.data);
    free(w->scales);
    free(w->gradient);
    *w = (struct rt_weights){0};
}

/* ---- gradients ---- */

/* The gradients of all experts, into the outputs or from them. */
static void copy_gradients(struct rt_weights *w, bool into_outputs)
{
    for (int i = 0; i < w->count; i++)
        for (int64_t e = 0; e < w->E; e++)
            rt_weights_copy(w, &w->of[i], e, MOEGEN_RT_F64, w->sum[i],
                            w->gradient + e * w->K * w->C, into_outputs);
}

static void gradient_name(const struct rt_stored *s, char name[64])
{
    snprintf(name, 64, "%s_grad", s->name);
}

moegen_rt_status rt_weights_gradient(const moegen_rt_problem *p, moegen_rt_problem *out,
                                     struct rt_weights *w, double **data, moegen_rt_error *err)
{
    char name[64];
    bool transposed =
        w->K > 1 && strcmp(moegen_rt_problem_text(p, "weights.layout", "plain"), "transposed") == 0;
    for (int i = 0; i < w->count; i++) {
        const struct rt_place *to = &w->of[i].code;
        gradient_name(&w->of[i], name);
        TRY(rt_gradient(p, out, name, to->rank, to->shape, &w->sum[i], err));
        moegen_rt_problem_tensor(out, name)->across = transposed;
    }
    *data = w->sum[0];
    if (w->canonical)
        return MOEGEN_RT_OK;
    *data = w->gradient = malloc((size_t)(w->E * w->K * w->C) * sizeof **data);
    if (!*data)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    copy_gradients(w, false);
    return MOEGEN_RT_OK;
}

void rt_weights_give(struct rt_weights *w)
{
    if (w->gradient)
        copy_gradients(w, true);
}

moegen_rt_status rt_packed_of(const moegen_rt_problem *p, const char *dtype, int64_t K, int64_t C,
                              int64_t parts, bool interleaved, struct rt_packed *to,
                              moegen_rt_error *err)
{
    bool packed = strcmp(moegen_rt_problem_text(p, "weights.layout", "plain"), "packed") == 0,
         back = moegen_rt_problem_bool(p, "weights.back", 0);
    int64_t run = packed ? moegen_rt_problem_int(p, "weights.run", 0) : 0,
            order = (interleaved ? RT_PACKED_IN_TURN : 0) | (back ? RT_PACKED_BACK : 0);
    rt_packed_lay(to, dtype, back ? C : K, back ? K : C, run, parts, order);
    return !packed || run > 0
               ? MOEGEN_RT_OK
               : rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "weights.run: packed weights have runs");
}
