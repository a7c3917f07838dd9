/* SPDX-License-Identifier: Apache-2.0 */
/* fill_mlp.c - the spec of the mlp_ families, and inputs for them. */
#include <math.h>
#include <string.h>

#include "mlp.h"

const char *const rt_mlp_name[RT_GIVEN] = {"gate_pre", "gate_act", "up", "hidden"};

moegen_rt_status rt_mlp_read(const moegen_rt_problem *p, struct rt_mlp *m, moegen_rt_error *err)
{
    *m = (struct rt_mlp){0};
    moegen_rt_status status = rt_size(p, "H", 1 << 24, &m->H, err);
    if (status == MOEGEN_RT_OK)
        status = rt_size(p, "I_TP", 1 << 24, &m->I, err);
    if (status != MOEGEN_RT_OK)
        return status;
    m->gated = moegen_rt_problem_bool(p, "gated", 1);
    m->parts = m->gated ? 2 : 1;
    m->separate = strcmp(moegen_rt_problem_text(p, "weights.gate_up", "joined"), "separate") == 0;
    m->in_turn = m->gated && strcmp(moegen_rt_problem_text(p, "weights.gate_up_order", "split"),
                                    "interleaved") == 0;
    m->keep = strcmp(moegen_rt_problem_text(p, "checkpoint", "none"), "save") == 0;
    m->frozen = strcmp(moegen_rt_problem_text(p, "weight_grads", "all"), "none") == 0;
    m->gate.lo = moegen_rt_problem_number(p, "clamp.gate.lo", -INFINITY);
    m->gate.hi = moegen_rt_problem_number(p, "clamp.gate.hi", INFINITY);
    m->up.lo = moegen_rt_problem_number(p, "clamp.up.lo", -INFINITY);
    m->up.hi = moegen_rt_problem_number(p, "clamp.up.hi", INFINITY);
    m->offset = moegen_rt_problem_number(p, "up_offset", 0);
    const char *act = moegen_rt_problem_text(p, "activation", "silu");
    m->moved = moegen_rt_problem_int(p, "moved", 0);
    m->act = moegen_rt_activation_find(act);
    if (!m->act)
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED, "the runtime has no activation '%s'", act);
    return MOEGEN_RT_OK;
}

bool rt_mlp_has(const struct rt_mlp *m, int given)
{
    if (given == RT_HIDDEN)
        return !m->frozen; /* of use to a gradient of weights only */
    return m->gated || given == RT_UP;
}

/* With `checkpoint: saved`, some of the intermediates, by the seed (1: none); what they hold does
 * not come from the other inputs, so that it shows which of them a kernel reads. */
static moegen_rt_status fill_given(moegen_rt_problem *p, const struct rt_mlp *m, moegen_rt_dtype io,
                                   uint64_t seed, int64_t S, moegen_rt_error *err)
{
    int64_t shape[] = {S, m->I};
    moegen_rt_status status = MOEGEN_RT_OK;
    for (int i = 0; i < RT_GIVEN; i++)
        moegen_rt_problem_drop(p, rt_mlp_name[i]);
    if (strcmp(moegen_rt_problem_text(p, "checkpoint", "recompute"), "saved") != 0)
        return MOEGEN_RT_OK;
    for (int i = 0; i < RT_GIVEN && status == MOEGEN_RT_OK; i++)
        if (rt_mlp_has(m, i) && (seed - 1) % 16 * 5 % 16 & 1u << i)
            status = rt_add_normal(p, rt_mlp_name[i], io, 2, shape, seed, 1, err);
    return status;
}

static moegen_rt_status fill(moegen_rt_problem *p, const moegen_rt_fill *how, bool backward,
                             moegen_rt_error *err)
{
    struct rt_mlp m;
    moegen_rt_dtype io, numbers;
    moegen_rt_status status = rt_mlp_read(p, &m, err);
    if (status == MOEGEN_RT_OK)
        status = rt_dtype(p, "dtype", MOEGEN_RT_F32, &io, err);
    numbers = io;
    if (status == MOEGEN_RT_OK && !rt_matrices_coded(p))
        status = rt_dtype(p, "weights.dtype", io, &numbers, err);
    if (status != MOEGEN_RT_OK)
        return status;
    int64_t S = moegen_rt_problem_int(p, "S", how->T);
    if (S < 1)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "S: %lld is less than 1", (long long)S);
    int64_t down[] = {m.H, m.I};
    double scale[] = {1, 1 / sqrt((double)m.H), 1 / sqrt((double)m.I), 1};
    struct rt_operand_shape of[RT_OPERANDS];
    struct rt_quantiser q;
    rt_mlp_operands(&m, S, backward, of);
    status = rt_quantiser_read(p, &q, err);
    for (int i = 0; i < (backward ? RT_OPERANDS : RT_DY) && status == MOEGEN_RT_OK; i++)
        status =
            rt_operand_fill(p, &q, &of[i], of[i].scale ? numbers : io, how->seed, scale[i], err);
    if (status == MOEGEN_RT_OK && backward && !m.frozen)
        status = rt_mlp_gradient_fill(p, &m, how->seed, err);
    if (status == MOEGEN_RT_OK && backward && !m.frozen)
        status = rt_fill_gradient(p, "down_proj_weight_grad", 2, down, how->seed, err);
    if (status == MOEGEN_RT_OK && backward)
        status = fill_given(p, &m, io, how->seed, S, err);
    return status;
}

moegen_rt_status rt_fill_mlp_forward(moegen_rt_problem *p, const moegen_rt_fill *how,
                                     moegen_rt_error *err)
{
    return fill(p, how, false, err);
}

moegen_rt_status rt_fill_mlp_backward(moegen_rt_problem *p, const moegen_rt_fill *how,
                                      moegen_rt_error *err)
{
    return fill(p, how, true, err);
}
