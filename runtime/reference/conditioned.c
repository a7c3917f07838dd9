/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conditioned.c - how many roundings an output may show where few numbers are all there is of it,
 * or of a sum on the way to it. As a rule errors count against numbers of the size that the terms
 * of their sums have: of many sums few cancel. A gradient of one number may cancel, though, and
 * where one product is all of a sum, a row has the relative error of what it is multiplied by. The
 * gradient of a logit far beyond a cap is about exp(-2 logit / cap), and has the roundings of that
 * quotient as many times as it is large. There the reference is computed again, with its inputs
 * moved by the roundings that a term has on its way: those of f32, and of the type of 16 bits that
 * a product's result is rounded to before it is multiplied again.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "quantised.h"
#include "weights.h"

/* Terms of a sum; ways in which inputs move: a difference that is all of an output may be small in
 * one of them. */
enum { SHORT = 8, WAYS = 3 };

/* A matrix of more is left as it is: the rows that it multiplies are moved. */
static const int64_t LARGE = 1 << 20;

/* How kernels round what they multiply again. */
struct rounding {
    int64_t
        few; /* numbers of an output that are not 0 and that may cancel, or lose much by chance */
    double move; /* of an input, as a share of it */
    double most; /* the noise that is granted */
    int coarse;  /* to 16 bits: the noise is of outputs that have no more */
};
/* By four units in the last place. */
static const struct rounding to_f32 = {8, 0x1p-21, 0x1p-10, 0};

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

/* Does a clamp leave less of a sum than its terms are large? Where it lets one through, that has
 * the roundings of the terms, and what it is compared with has the size of the limits. */
static bool is_narrow(const moegen_rt_problem *p)
{
    static const char *const limits[][2] = {{"clamp.gate.lo", "clamp.gate.hi"},
                                            {"clamp.up.lo", "clamp.up.hi"}};
    double least = moegen_rt_problem_number(p, "clamp.activated", INFINITY);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        least = fmin(least, moegen_rt_problem_number(p, limits[i][1], INFINITY) -
                                moegen_rt_problem_number(p, limits[i][0], -INFINITY));
    return least < 1;
}

/* Are there sums of few terms, or terms as badly conditioned? */
static bool is_short(const moegen_rt_problem *p)
{
    if (is_steep(p) || is_narrow(p))
        return true;
    static const char *const extents[] = {"H", "I_TP", "K", "N", NULL};
    for (const char *const *key = extents; *key; key++)
        if (moegen_rt_problem_int(p, *key, SHORT + 1) <= SHORT)
            return true;
    return false;
}

/* To the type of the problem, of 16 bits: by a quarter of a unit, which is what it costs a number
 * as a rule. False: it has another type. */
static bool rounds_to_16(const moegen_rt_problem *p, struct rounding *r)
{
    moegen_rt_dtype dtype;
    bool known = moegen_rt_dtype_find(moegen_rt_problem_text(p, "dtype", ""), &dtype);
    int digits = known ? moegen_rt_dtype_of(dtype)->digits : 0;
    *r = (struct rounding){64, ldexp(1, -digits - 2), 0x1p-6, 1};
    return digits > 0 && digits < moegen_rt_dtype_of(MOEGEN_RT_F32)->digits;
}

static bool is_small(const moegen_rt_tensor *t, int64_t few)
{
    int64_t all = moegen_rt_tensor_count(t), some = 0;
    for (int64_t i = 0; i < all && some <= few; i++)
        some += ((const double *)t->data)[i] != 0;
    return some <= few;
}

/* May it cancel? */
static bool may_cancel(const moegen_rt_problem *p, const moegen_rt_tensor *t,
                       const struct rounding *r)
{
    bool one_by_one = t->terms > 0 && t->terms <= SHORT; /* a gradient of few tokens */
    return t->dtype == MOEGEN_RT_F64 && (is_short(p) || one_by_one || is_small(t, r->few));
}

static bool any_may_cancel(const moegen_rt_problem *p, const moegen_rt_problem *out,
                           const struct rounding *r)
{
    const moegen_rt_tensor *t;
    bool any = false;
    for (size_t i = 0; (t = moegen_rt_problem_at(out, i)) != NULL; i++)
        any = any || may_cancel(p, t, r);
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
    bool large = moegen_rt_tensor_count(t) > LARGE && ends_with(t->name, "_weight");
    return number && !large && moegen_rt_dtype_of(t->dtype)->digits > 0;
}

/* Is number `at` moved up? Of eight neighbours each two part in one of the ways: their difference,
 * which may be all there is of an output, is moved. */
static bool is_moved_up(uint64_t seed, int way, uint64_t at)
{
    return ((rt_hash(seed, at >> WAYS) ^ at) >> way & 1) != 0;
}

double rt_moved(int64_t way, uint64_t at)
{
    if (way == 0)
        return 1;
    return is_moved_up(0, (int)way - 1, at) ? 1 + to_f32.move : 1 - to_f32.move;
}

/* Adds the numbers of t, each moved up or down, as `way` says. */
static moegen_rt_status add_moved(moegen_rt_problem *to, const moegen_rt_tensor *t, double move,
                                  int way, moegen_rt_error *err)
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
        x[i] *= is_moved_up((uint64_t)count, way, (uint64_t)i) ? 1 + move : 1 - move;
    return MOEGEN_RT_OK;
}

/* Parameters and inputs of p, some of them moved. What lies between inputs and outputs is of f32.
 */
static moegen_rt_status move_inputs(const moegen_rt_problem *p, const struct rounding *r, int way,
                                    moegen_rt_problem *to, moegen_rt_error *err)
{
    const moegen_rt_tensor *t;
    const double move = r->move;
    char moved[8];
    snprintf(moved, sizeof moved, "%d", r->coarse ? 0 : way + 1);
    moegen_rt_status status = rt_problem_params(to, p, err);
    if (status == MOEGEN_RT_OK && moegen_rt_problem_set(to, "moved", moved) != MOEGEN_RT_OK)
        status = rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (size_t i = 0; status == MOEGEN_RT_OK && (t = moegen_rt_problem_at(p, i)) != NULL; i++)
        status = is_moved(p, t) ? add_moved(to, t, move, way, err)
                                : moegen_rt_problem_lend(to, t->name, t->dtype, t->rank, t->shape,
                                                         t->data, err);
    return status;
}

/* The noise that is granted. Where a norm follows experts of few numbers, the way back through it
 * may leave nothing but the norm's eps, of order 1e-6: as much as roundings of f32 make of it
 * there. */
static double most_noise(const moegen_rt_problem *p, const struct rounding *r)
{
    bool normed = moegen_rt_problem_text(p, "post_norm.eps", NULL) != NULL;
    return normed && !r->coarse ? INFINITY : r->most;
}

/* Says of what may cancel in `out` how far it is from what inputs give that are moved in a way. */
static moegen_rt_status find_noise(rt_compute *compute, const moegen_rt_problem *p,
                                   const moegen_rt_want *want, const struct rounding *r, int way,
                                   moegen_rt_problem *out, moegen_rt_error *err)
{
    moegen_rt_problem *in = moegen_rt_problem_create(), *moved = moegen_rt_problem_create();
    moegen_rt_status status = in && moved ? move_inputs(p, r, way, in, err)
                                          : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        status = compute(in, want, moved, err);
    moegen_rt_tensor *t;
    for (size_t i = 0; status == MOEGEN_RT_OK && (t = moegen_rt_problem_at(out, i)) != NULL; i++) {
        const moegen_rt_tensor *other = moegen_rt_problem_tensor(moved, t->name);
        double *noise = r->coarse ? &t->coarse : &t->noise;
        if (other && may_cancel(p, t, r)) /* none: it was there before */
            *noise = fmax(*noise, fmin(most_noise(p, r), rt_distance(t, other)));
    }
    moegen_rt_problem_destroy(in);
    moegen_rt_problem_destroy(moved);
    return status;
}

static moegen_rt_status find_noises(rt_compute *compute, const moegen_rt_problem *p,
                                    const moegen_rt_want *want, const struct rounding *r,
                                    moegen_rt_problem *out, moegen_rt_error *err)
{
    moegen_rt_status status = MOEGEN_RT_OK;
    int ways = any_may_cancel(p, out, r) ? WAYS : 0;
    for (int way = 0; way < ways && status == MOEGEN_RT_OK; way++)
        status = find_noise(compute, p, want, r, way, out, err);
    return status;
}

moegen_rt_status rt_conditioned(rt_compute *compute, const moegen_rt_problem *p,
                                const moegen_rt_want *want, moegen_rt_problem *out,
                                moegen_rt_error *err)
{
    struct rounding to_16;
    moegen_rt_status status = compute(p, want, out, err);
    if (status == MOEGEN_RT_OK)
        status = find_noises(compute, p, want, &to_f32, out, err);
    if (status == MOEGEN_RT_OK && rounds_to_16(p, &to_16))
        status = find_noises(compute, p, want, &to_16, out, err);
    return status;
}
