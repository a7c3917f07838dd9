/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conditioned.c - how many roundings of f32 an output may show where few numbers are all there is
 * of it, or of a sum on the way to it. As a rule errors count against numbers of the size that the
 * terms of their sums have: of many sums few cancel. A gradient of one number may cancel, though,
 * and where one product is all of a sum, a row has the relative error of what it is multiplied by.
 * The gradient of a logit far beyond a cap is about exp(-2 logit / cap), and has the roundings of
 * that quotient as many times as it is large. There the reference is computed again, with its
 * inputs moved by the roundings that a term has on its way.
 */
#include <math.h>
#include <string.h>

#include "quantised.h"
#include "weights.h"

/* Numbers of an output that are not 0; terms of a sum; ways in which inputs move: a difference that
 * is all of an output may be small in one of them. */
enum { FEW = 8, SHORT = 2, WAYS = 3 };
static const double MOVE = 0x1p-21; /* four units of f32 in the last place */
static const double MOST = 0x1p-10; /* the noise that is granted */

/* Inputs that are numbers however they are stored: rows of tokens, affinities. Matrices are such if
 * their names end in _weight and they are no codes, and not packed. */
static const char *const rows[] = {"hidden_states",
                                   "output_hidden_states_grad",
                                   "expert_affinities_grad",
                                   "expert_affinities_masked",
                                   "X",
                                   "dY",
                                   NULL};

/* Gradients of logits of which a cap is a small part? */
static bool is_steep(const moegen_rt_problem *p)
{
    return strcmp(moegen_rt_problem_text(p, "op", ""), "backward") == 0 &&
           moegen_rt_problem_number(p, "softcap", 1) < 0.25;
}

/* Are there sums of few terms, or terms as badly conditioned? */
static bool is_short(const moegen_rt_problem *p)
{
    if (is_steep(p))
        return true;
    static const char *const extents[] = {"H", "I_TP", "K", "N", NULL};
    for (const char *const *key = extents; *key; key++)
        if (moegen_rt_problem_int(p, *key, SHORT + 1) <= SHORT)
            return true;
    return false;
}

static bool is_small(const moegen_rt_tensor *t)
{
    int64_t all = moegen_rt_tensor_count(t), some = 0;
    for (int64_t i = 0; i < all && some <= FEW; i++)
        some += ((const double *)t->data)[i] != 0;
    return some <= FEW;
}

/* May it cancel, in a problem whose sums are short or not? */
static bool may_cancel(const moegen_rt_tensor *t, bool sums_are_short)
{
    return t->dtype == MOEGEN_RT_F64 && (sums_are_short || is_small(t));
}

static bool any_may_cancel(const moegen_rt_problem *out, bool sums_are_short)
{
    const moegen_rt_tensor *t;
    bool any = false;
    for (size_t i = 0; (t = moegen_rt_problem_at(out, i)) != NULL; i++)
        any = any || may_cancel(t, sums_are_short);
    return any;
}

static bool ends_with(const char *name, const char *end)
{
    size_t len = strlen(name), last = strlen(end);
    return len >= last && strcmp(name + len - last, end) == 0;
}

static bool is_moved(const moegen_rt_problem *p, const moegen_rt_tensor *t)
{
    bool coded = rt_weights_format(p) || rt_matrices_coded(p);
    bool packed = strcmp(moegen_rt_problem_text(p, "weights.layout", ""), "packed") == 0;
    bool number = ends_with(t->name, "_weight") && !coded && !packed;
    for (const char *const *name = rows; *name; name++)
        number = number || strcmp(t->name, *name) == 0;
    number = number || (is_steep(p) && strcmp(t->name, "logits") == 0);
    return number && moegen_rt_dtype_of(t->dtype)->digits > 0;
}

/* Adds the numbers of t, each moved up or down, as `way` says. */
static moegen_rt_status add_moved(moegen_rt_problem *to, const moegen_rt_tensor *t, uint64_t way,
                                  moegen_rt_error *err)
{
    moegen_rt_tensor *moved = NULL;
    moegen_rt_status status =
        moegen_rt_problem_add(to, t->name, MOEGEN_RT_F64, t->rank, t->shape, &moved, err);
    if (status != MOEGEN_RT_OK)
        return status;
    int64_t count = moegen_rt_tensor_count(t);
    double *x = moved->data;
    rt_elements(t, 0, count, x);
    for (int64_t i = 0; i < count; i++)
        x[i] *= rt_hash((uint64_t)count, (uint64_t)i) >> way & 1 ? 1 + MOVE : 1 - MOVE;
    return MOEGEN_RT_OK;
}

/* Parameters and inputs of p, some of them moved. */
static moegen_rt_status move_inputs(const moegen_rt_problem *p, uint64_t way, moegen_rt_problem *to,
                                    moegen_rt_error *err)
{
    const moegen_rt_tensor *t;
    moegen_rt_status status = rt_problem_params(to, p, err);
    for (size_t i = 0; status == MOEGEN_RT_OK && (t = moegen_rt_problem_at(p, i)) != NULL; i++)
        status = is_moved(p, t) ? add_moved(to, t, way, err)
                                : moegen_rt_problem_lend(to, t->name, t->dtype, t->rank, t->shape,
                                                         t->data, err);
    return status;
}

/* Says of what may cancel in `out` how far it is from what inputs give that are moved in a way. */
static moegen_rt_status find_noise(rt_compute *compute, const moegen_rt_problem *p,
                                   const moegen_rt_want *want, bool sums_are_short, uint64_t way,
                                   moegen_rt_problem *out, moegen_rt_error *err)
{
    moegen_rt_problem *in = moegen_rt_problem_create(), *moved = moegen_rt_problem_create();
    moegen_rt_status status = in && moved ? move_inputs(p, way, in, err)
                                          : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        status = compute(in, want, moved, err);
    moegen_rt_tensor *t;
    for (size_t i = 0; status == MOEGEN_RT_OK && (t = moegen_rt_problem_at(out, i)) != NULL; i++) {
        const moegen_rt_tensor *other = moegen_rt_problem_tensor(moved, t->name);
        if (other && may_cancel(t, sums_are_short)) /* none: it was there before */
            t->noise = fmax(t->noise, fmin(MOST, rt_distance(t, other)));
    }
    moegen_rt_problem_destroy(in);
    moegen_rt_problem_destroy(moved);
    return status;
}

moegen_rt_status rt_conditioned(rt_compute *compute, const moegen_rt_problem *p,
                                const moegen_rt_want *want, moegen_rt_problem *out,
                                moegen_rt_error *err)
{
    bool sums_are_short = is_short(p);
    moegen_rt_status status = compute(p, want, out, err);
    if (status != MOEGEN_RT_OK || !any_may_cancel(out, sums_are_short))
        return status;
    for (uint64_t way = 0; way < WAYS && status == MOEGEN_RT_OK; way++)
        status = find_noise(compute, p, want, sums_are_short, way, out, err);
    return status;
}
