/* SPDX-License-Identifier: Apache-2.0 */
/* gradients.c - the gradients of gate and up: one tensor as the mathematics has it, one whose rows
 * alternate, or one of each (SEMANTICS 1.3). */
#include <stdlib.h>
#include <string.h>

#include "mlp.h"

#define JOINED "gate_up_weight_grad"

static int tensors(const struct rt_mlp *m)
{
    return m->separate ? (int)m->parts : 1;
}

static const char *name_of(const struct rt_mlp *m, int i)
{
    static const char *const apart[] = {"gate_proj_weight_grad", "up_proj_weight_grad"};
    return m->separate ? apart[2 - m->parts + i] : JOINED;
}

/* The tensor that has row r of [parts * I, H], and its row of it. */
static int place(const struct rt_mlp *m, int64_t r, int64_t *row)
{
    int64_t part = r / m->I, i = r % m->I;
    *row = m->separate ? i : m->in_turn ? i * m->parts + part : r;
    return m->separate ? (int)part : 0;
}

static void copy(const struct rt_mlp *m, struct rt_mlp_gradient *g, bool into_tensors)
{
    for (int64_t r = 0, row; r < m->parts * m->I; r++) {
        double *there = g->tensor[place(m, r, &row)] + row * m->H, *here = g->rows + r * m->H;
        memcpy(into_tensors ? there : here, into_tensors ? here : there,
               (size_t)m->H * sizeof *here);
    }
}

moegen_rt_status rt_mlp_gradient(const moegen_rt_problem *p, moegen_rt_problem *out,
                                 const struct rt_mlp *m, struct rt_mlp_gradient *g,
                                 moegen_rt_error *err)
{
    const int64_t rows = m->parts * m->I, shape[] = {rows / tensors(m), m->H};
    moegen_rt_status status = MOEGEN_RT_OK;
    for (int i = 0; i < tensors(m) && status == MOEGEN_RT_OK; i++)
        status = rt_gradient(p, out, name_of(m, i), 2, shape, &g->tensor[i], err);
    g->rows = g->tensor[0];
    if (status != MOEGEN_RT_OK || !(m->in_turn || tensors(m) > 1))
        return status;
    g->rows = malloc((size_t)(rows * m->H) * sizeof *g->rows);
    g->owned = true;
    if (!g->rows)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    copy(m, g, false);
    return MOEGEN_RT_OK;
}

void rt_mlp_gradient_give(const struct rt_mlp *m, struct rt_mlp_gradient *g)
{
    if (g->owned && g->rows)
        copy(m, g, true);
}

void rt_mlp_gradient_free(struct rt_mlp_gradient *g)
{
    if (g->owned)
        free(g->rows);
}

/* The same numbers, wherever they are. */
moegen_rt_status rt_mlp_gradient_fill(moegen_rt_problem *p, const struct rt_mlp *m, uint64_t seed,
                                      moegen_rt_error *err)
{
    const int64_t rows = m->parts * m->I, shape[] = {rows / tensors(m), m->H};
    moegen_rt_tensor *t[2];
    moegen_rt_dtype dtype;
    if (!rt_accumulates(p))
        return MOEGEN_RT_OK;
    moegen_rt_status status = rt_gradient_dtype(p, &dtype, err);
    for (int i = 0; i < tensors(m) && status == MOEGEN_RT_OK; i++)
        status = moegen_rt_problem_add(p, name_of(m, i), dtype, 2, shape, &t[i], err);
    if (status != MOEGEN_RT_OK)
        return status;
    const size_t bytes = (size_t)m->H * moegen_rt_dtype_of(dtype)->bytes;
    char *values = malloc((size_t)rows * bytes);
    if (!values)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    moegen_rt_normal(dtype, values, (size_t)(rows * m->H), rt_seed(seed, JOINED), 1);
    for (int64_t r = 0, row; r < rows; r++) {
        int of = place(m, r, &row);
        memcpy((char *)t[of]->data + (size_t)row * bytes, values + (size_t)r * bytes, bytes);
    }
    free(values);
    return MOEGEN_RT_OK;
}
