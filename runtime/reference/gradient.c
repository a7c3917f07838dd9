/* SPDX-License-Identifier: Apache-2.0 */
/* gradient.c - what the references of the training families share: accumulated outputs, the part
 * of a weight gradient that is computed, limits as a checkpoint stores them. */
#include <math.h>
#include <stdlib.h>

#include "reference.h"

/* ---- part of a weight gradient ---- */

moegen_rt_status rt_part(const moegen_rt_want *want, int64_t T, int64_t n, struct rt_part *part,
                         moegen_rt_error *err)
{
    *part = (struct rt_part){n, n, NULL};
    if (!want)
        return MOEGEN_RT_OK;
    int64_t count =
        want->tokens ? (int64_t)ceil((double)n * (double)want->token_count / (double)T) : n;
    count = want->features && want->features < count ? want->features : count;
    count = count < 2 ? 2 : count;
    if (count >= n)
        return MOEGEN_RT_OK;
    part->at = malloc((size_t)count * sizeof *part->at);
    if (!part->at)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (int64_t i = 0; i < count; i++)
        part->at[i] = i * (n - 1) / (count - 1);
    part->count = count;
    return MOEGEN_RT_OK;
}

void rt_blank_rest(const struct rt_part *part, double *data, int64_t outer, int64_t inner)
{
    for (int64_t o = 0; part->at && o < outer; o++) {
        double *at = data + o * part->n * inner;
        for (int64_t i = 0, next = 0; i < part->n; i++) {
            bool kept = next < part->count && part->at[next] == i;
            next += kept;
            for (int64_t j = 0; !kept && j < inner; j++)
                at[i * inner + j] = (double)NAN;
        }
    }
}

/* ---- accumulated outputs ---- */

int64_t rt_tokens(const moegen_rt_problem *p)
{
    const moegen_rt_tensor *dy = moegen_rt_problem_tensor(p, "output_hidden_states_grad");
    const moegen_rt_tensor *t = dy ? dy : moegen_rt_problem_tensor(p, "hidden_states");
    return t && t->rank > 0 ? t->shape[0] : 0;
}

bool rt_accumulates(const moegen_rt_problem *p)
{
    return moegen_rt_problem_bool(p, "accumulate_grads", 0);
}

moegen_rt_status rt_gradient(const moegen_rt_problem *p, moegen_rt_problem *out, const char *name,
                             int rank, const int64_t *shape, double **data, moegen_rt_error *err)
{
    const moegen_rt_tensor *start = NULL;
    moegen_rt_status status = MOEGEN_RT_OK;
    if (rt_accumulates(p))
        status = rt_input(p, name, true, rank, shape, &start, err);
    if (status == MOEGEN_RT_OK)
        status = rt_output(out, name, rank, shape, 0, data, err);
    if (status == MOEGEN_RT_OK && start)
        rt_elements(start, 0, moegen_rt_tensor_count(start), *data);
    if (status == MOEGEN_RT_OK)
        moegen_rt_problem_tensor(out, name)->terms = rt_tokens(p);
    return status;
}

moegen_rt_status rt_gradient_dtype(const moegen_rt_problem *p, moegen_rt_dtype *dtype,
                                   moegen_rt_error *err)
{
    moegen_rt_status status = rt_dtype(p, "dtype", MOEGEN_RT_F32, dtype, err);
    return status == MOEGEN_RT_OK ? rt_dtype(p, "output_dtype", *dtype, dtype, err) : status;
}

moegen_rt_status rt_fill_gradient(moegen_rt_problem *p, const char *name, int rank,
                                  const int64_t *shape, uint64_t seed, moegen_rt_error *err)
{
    moegen_rt_dtype dtype;
    if (!rt_accumulates(p))
        return MOEGEN_RT_OK;
    moegen_rt_status status = rt_gradient_dtype(p, &dtype, err);
    if (status == MOEGEN_RT_OK)
        status = rt_add_normal(p, name, dtype, rank, shape, seed, 1, err);
    return status;
}

/* ---- limits ---- */

double rt_with_offset(double x, double offset)
{
    return (float)x + (float)offset;
}

static double stored(double x, moegen_rt_dtype dtype)
{
    double room;
    if (!isfinite(x))
        return x;
    moegen_rt_encode(dtype, &x, 1, &room);
    moegen_rt_decode(dtype, &room, 1, &x);
    return x;
}

struct rt_limits rt_stored_limits(struct rt_limits of, double offset, moegen_rt_dtype dtype)
{
    if (dtype == MOEGEN_RT_F64)
        return (struct rt_limits){of.lo + offset, of.hi + offset};
    return (struct rt_limits){stored(rt_with_offset(of.lo, offset), dtype),
                              stored(rt_with_offset(of.hi, offset), dtype)};
}

double rt_clamped(double v, struct rt_limits to)
{
    return v < to.lo ? to.lo : v > to.hi ? to.hi : v;
}

bool rt_inside(double v, struct rt_limits limits)
{
    return (limits.lo < v || isinf(limits.lo)) && (v < limits.hi || isinf(limits.hi));
}

double rt_through(double x, double v, struct rt_limits limits)
{
    if (isinf(limits.lo) && isinf(limits.hi))
        return x;
    return isnan(v) ? v : rt_inside(v, limits) ? x : 0;
}
