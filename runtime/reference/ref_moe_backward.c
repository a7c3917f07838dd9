/* SPDX-License-Identifier: Apache-2.0 */
/* ref_moe_backward.c - the gradients of moe_forward in float64 (SEMANTICS 2): inputs, outputs, and
 * the sweeps over the blocks; ref_moe_backward_rows.c does the arithmetic. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ref_moe_backward.h"

/* ---- blocks ---- */

/* A matrix [rows, columns] as it enters a product along its columns, or along `down` rows.
 * is_given: it has scales along these. */
static moegen_rt_status quantise(struct rt_backward *s, int which, struct rt_matrix *m,
                                 int64_t rows, int64_t columns, int64_t down, bool is_given,
                                 moegen_rt_error *err)
{
    struct rt_quantiser how = s->q;
    moegen_rt_tensor from = *m->t, *to = &s->quantised[which];
    from.data = (char *)from.data + (size_t)m->first * moegen_rt_dtype_of(from.dtype)->bytes;
    free(to->data);
    m->t = to;
    m->first = 0;
    how.on = !is_given;
    return rt_quantise_matrix(&how, &from, rows, columns, down, to, err);
}

/* Points to the matrices of expert e; of a part, copies its columns and rows. */
static moegen_rt_status choose_matrices(struct rt_backward *s, int64_t e, moegen_rt_error *err)
{
    int64_t H = s->m.H, I = s->m.I, all = s->m.parts * I, columns = s->m.parts * s->C;
    if (s->m.norm) {
        rt_elements(s->in.norm_weight, e * I, I, s->norm);
        rt_elements(s->in.norm_bias, e * I, I, s->norm + I);
    }
    if (s->tokens_too || s->recompute)
        rt_weights_of(&s->in.gate_up, e, &s->gate_up.t, &s->gate_up.first);
    rt_weights_of(&s->in.down, e, &s->down.t, &s->down.first);
    moegen_rt_status status = MOEGEN_RT_OK;
    s->back = s->gate_up;
    if (s->q.on && s->tokens_too)
        status = quantise(s, 1, &s->back, H * s->m.parts, I, 0, s->in.gate_up.along_C, err);
    if (s->q.on && s->recompute && status == MOEGEN_RT_OK)
        status = quantise(s, 0, &s->gate_up, H, all, H, s->in.gate_up.along_K, err);
    if (s->q.on && status == MOEGEN_RT_OK)
        status = quantise(s, 2, &s->down, I, H, 0, s->in.down.along_C, err);
    if (!s->at || status != MOEGEN_RT_OK)
        return status;
    for (int64_t h = 0; s->recompute && h < H; h++) {
        rt_elements(s->gate_up.t, s->gate_up.first + h * all, all, s->work);
        for (int64_t i = 0; i < columns; i++)
            ((double *)s->gate_up.part.data)[h * columns + i] = s->work[s->at_pairs[i]];
    }
    for (int64_t i = 0; i < s->C; i++)
        rt_elements(s->down.t, s->down.first + s->at[i] * H, H,
                    (double *)s->down.part.data + i * H);
    s->gate_up.t = &s->gate_up.part;
    s->down.t = &s->down.part;
    s->gate_up.first = s->down.first = 0;
    return MOEGEN_RT_OK;
}

/* All tokens of expert e, `most` at a time, in the order of blocks and slots. */
static moegen_rt_status sweep_expert(struct rt_backward *s, int64_t e, const uint8_t *wanted,
                                     moegen_rt_error *err)
{
    int64_t *slots = s->slots + s->m.B, *tokens = s->tokens + s->m.B, rows = 0, seen = 0;
    for (int64_t b = 0; b < s->in.run; b++) {
        int64_t same, count;
        if (s->experts[b] != e)
            continue;
        moegen_rt_status status =
            rt_moe_block(&s->m, &s->in, b, wanted, &same, s->slots, s->tokens, &count, err);
        if (status == MOEGEN_RT_OK && seen == 0 && count > 0)
            status = choose_matrices(s, e, err);
        if (status != MOEGEN_RT_OK)
            return status;
        for (int64_t i = 0; i < count; i++, seen++) {
            slots[rows] = b * s->m.B + s->slots[i];
            tokens[rows++] = s->tokens[i];
            if (rows < s->most)
                continue;
            rt_backward_rows(s, e, slots, tokens, rows);
            rows = 0;
        }
    }
    if (rows > 0)
        rt_backward_rows(s, e, slots, tokens, rows);
    return MOEGEN_RT_OK;
}

static moegen_rt_status sweep(struct rt_backward *s, bool tokens_too, bool weights_too,
                              moegen_rt_error *err)
{
    bool part = !tokens_too;
    s->tokens_too = tokens_too;
    s->weights_too = weights_too;
    s->C = part ? s->part.count : s->m.I;
    s->at = part ? s->part.at : NULL;
    s->at_pairs = part ? s->pairs : NULL;
    moegen_rt_status status = MOEGEN_RT_OK;
    for (int64_t b = 0, count; b < s->in.run && status == MOEGEN_RT_OK; b++)
        status =
            rt_moe_block(&s->m, &s->in, b, NULL, &s->experts[b], s->slots, s->tokens, &count, err);
    for (int64_t e = 0; e < s->m.E && status == MOEGEN_RT_OK; e++)
        status = sweep_expert(s, e, part ? NULL : s->wanted, err);
    return status;
}

/* ---- inputs, outputs, memory ---- */

static moegen_rt_status read_inputs(struct rt_backward *s, const moegen_rt_problem *p,
                                    moegen_rt_error *err)
{
    struct rt_moe *m = &s->m;
    moegen_rt_status status = rt_moe_backward_read(p, m, &s->recompute, err);
    if (status != MOEGEN_RT_OK)
        return status;
    s->gate_up_bias = m->bias_gate_up;
    s->down_bias = m->bias_down;
    /* The biases themselves are needed only where they enter a gradient. */
    m->bias_gate_up = s->gate_up_bias && s->recompute;
    m->bias_down = s->down_bias && (m->post_intermediate || (m->post_hidden && s->recompute));
    status = rt_moe_inputs(p, m, &s->in, err);
    if (status == MOEGEN_RT_OK && s->gate_up_bias && !m->bias_gate_up) /* for its gradient */
        status = rt_weights_lay(p, m, RT_GATE_UP_BIAS, &s->in.gate_up_bias, err);
    if (status != MOEGEN_RT_OK)
        return status;
    int64_t rows = s->in.T + !m->skip_token;
    int64_t gate_up[] = {s->in.N, m->parts, m->I, m->B}, down[] = {s->in.N, m->B, m->H};
    status = rt_tokens_read(p, "output_hidden_states_grad", rows, m->H, &s->dy, err);
    moegen_rt_dtype held = s->q.on ? s->q.stored : MOEGEN_RT_F64;
    if (status == MOEGEN_RT_OK && !s->recompute) {
        status =
            rt_input(p, "gate_up_proj_act_checkpoint_T", true, 4, gate_up, &s->gate_up_saved, err);
        if (status == MOEGEN_RT_OK)
            held = s->gate_up_saved->dtype;
    }
    if (status == MOEGEN_RT_OK && !s->recompute && m->post_hidden)
        status = rt_input(p, "down_proj_act_checkpoint", true, 3, down, &s->down_saved, err);
    s->gate = rt_stored_limits(m->gate, 0, held);
    s->up = rt_stored_limits(m->up, m->up_offset, held);
    return status;
}

static moegen_rt_status make_weight_gradients(struct rt_backward *s, const moegen_rt_problem *p,
                                              moegen_rt_problem *out, moegen_rt_error *err)
{
    const struct rt_moe *m = &s->m;
    int64_t down_b[] = {m->E, m->H}, norm[] = {m->E, m->I};
    moegen_rt_status status = rt_weights_gradient(p, out, &s->in.gate_up, &s->dgate_up, err);
    if (status == MOEGEN_RT_OK)
        status = rt_weights_gradient(p, out, &s->in.down, &s->ddown, err);
    if (status == MOEGEN_RT_OK && s->gate_up_bias)
        status = rt_weights_gradient(p, out, &s->in.gate_up_bias, &s->dgate_up_b, err);
    if (status == MOEGEN_RT_OK && s->down_bias)
        status = rt_gradient(p, out, "down_proj_bias_grad", 2, down_b, &s->ddown_b, err);
    if (status == MOEGEN_RT_OK && m->norm)
        status = rt_gradient(p, out, "norm_weight_grad", 2, norm, &s->dnorm, err);
    if (status == MOEGEN_RT_OK && m->norm)
        status = rt_gradient(p, out, "norm_bias_grad", 2, norm, &s->dnorm_b, err);
    if (status == MOEGEN_RT_OK && m->post_norm)
        status = rt_gradient(p, out, "post_norm_weight_grad", 1, &m->H, &s->dpost_norm, err);
    if (status != MOEGEN_RT_OK)
        return status;
    rt_blank_rest(&s->part, s->dgate_up, m->E * m->H * m->parts, 1);
    rt_blank_rest(&s->part, s->ddown, m->E, m->H);
    if (s->dgate_up_b)
        rt_blank_rest(&s->part, s->dgate_up_b, m->E * m->parts, 1);
    return MOEGEN_RT_OK;
}

static moegen_rt_status make_outputs(struct rt_backward *s, const moegen_rt_problem *p,
                                     moegen_rt_problem *out, moegen_rt_error *err)
{
    const struct rt_moe *m = &s->m;
    int64_t rows = s->in.T + !m->skip_token;
    int64_t dx[] = {rows, m->H}, da[] = {m->slots ? s->in.N * m->B : rows * m->E, 1};
    moegen_rt_status status = rt_output(out, "hidden_states_grad", 2, dx, 0, &s->dx, err);
    if (status == MOEGEN_RT_OK)
        status = rt_output(out, m->slots ? "slot_affinities_grad" : "expert_affinities_masked_grad",
                           m->slots ? 1 : 2, da, 0, &s->da, err);
    if (status != MOEGEN_RT_OK)
        return status;
    for (int64_t t = 0; s->wanted && t < s->in.T; t++) {
        for (int64_t h = 0; !s->wanted[t] && h < m->H; h++)
            s->dx[t * m->H + h] = (double)NAN;
        for (int64_t e = 0; !m->slots && !s->wanted[t] && e < m->E; e++)
            s->da[t * m->E + e] = (double)NAN;
    }
    for (int64_t i = 0; s->wanted && m->slots && i < da[0]; i++) {
        int64_t t = rt_index_at(s->in.ids, i);
        if (t >= 0 && t < s->in.T && !s->wanted[t])
            s->da[i] = (double)NAN;
    }
    return s->m.frozen ? MOEGEN_RT_OK : make_weight_gradients(s, p, out, err);
}

/* [rows][columns] of f64 for the part of a matrix. */
static moegen_rt_tensor part_of(int64_t rows, int64_t columns)
{
    moegen_rt_tensor t = {.dtype = MOEGEN_RT_F64, .rank = 2, .shape = {rows, columns}};
    t.data = malloc((size_t)(rows * columns) * sizeof(double));
    return t;
}

static moegen_rt_status allocate(struct rt_backward *s, moegen_rt_error *err)
{
    const struct rt_moe *m = &s->m;
    int64_t columns = m->parts * m->I, wide = columns > m->H ? columns : m->H, rows = s->most;
    int64_t quantised = s->q.on ? rows * wide : 1;
    struct {
        double **at;
        int64_t count;
    } const need[] = {
        {&s->a, rows},           {&s->x, rows * m->H},     {&s->y, rows * m->H},
        {&s->wide, rows * m->H}, {&s->gu, rows * columns}, {&s->dgu, rows * columns},
        {&s->p, rows * m->I},    {&s->dp, rows * m->I},    {&s->work, 4 * wide},
        {&s->norm, 2 * m->I},    {&s->hat, rows * m->I},   {&s->dn, rows * m->I},
        {&s->left, quantised},   {&s->right, quantised},   {&s->post_norm, m->H},
        {&s->along, rows},
    };
    bool ok = true;
    for (size_t i = 0; i < sizeof need / sizeof *need; i++)
        ok &= (*need[i].at = malloc((size_t)need[i].count * sizeof(double))) != NULL;
    ok &= (s->experts = malloc((size_t)(s->in.run + 1) * sizeof *s->experts)) != NULL;
    ok &= (s->slots = malloc((size_t)(m->B + rows) * sizeof *s->slots)) != NULL;
    ok &= (s->tokens = malloc((size_t)(m->B + rows) * sizeof *s->tokens)) != NULL;
    if (s->part.at) {
        s->gate_up.part = part_of(m->H, m->parts * s->part.count);
        s->down.part = part_of(s->part.count, m->H);
        s->pairs = malloc((size_t)(m->parts * s->part.count) * sizeof *s->pairs);
        ok &= s->gate_up.part.data && s->down.part.data && s->pairs;
        for (int64_t i = 0; s->pairs && i < m->parts * s->part.count; i++)
            s->pairs[i] = i / s->part.count * m->I + s->part.at[i % s->part.count];
    }
    return ok ? MOEGEN_RT_OK : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
}

/* other: numbers between two that they may be rounded to are rounded to the other side. */
static moegen_rt_status compute(const moegen_rt_problem *p, const moegen_rt_want *want, bool other,
                                moegen_rt_problem *out, bool *quantised, moegen_rt_error *err)
{
    struct rt_backward s = {0};
    moegen_rt_status status = rt_quantiser_read(p, &s.q, err);
    *quantised = s.q.on;
    s.q.other = other;
    s.most = s.q.on ? RT_TILE : RT_ROWS;
    if (status == MOEGEN_RT_OK)
        status = read_inputs(&s, p, err);
    if (status == MOEGEN_RT_OK)
        status = rt_wanted(want, s.in.T, &s.wanted, err);
    if (status == MOEGEN_RT_OK)
        status = rt_part(s.m.norm ? NULL : want, s.in.T, s.m.I, &s.part, err); /* or all */
    if (status == MOEGEN_RT_OK)
        status = make_outputs(&s, p, out, err);
    if (status == MOEGEN_RT_OK)
        status = allocate(&s, err);
    if (status == MOEGEN_RT_OK)
        status = sweep(&s, true, !s.wanted && !s.m.frozen, err);
    if (status == MOEGEN_RT_OK && s.wanted && !s.m.frozen)
        status = sweep(&s, false, true, err);
    rt_weights_give(&s.in.gate_up);
    rt_weights_give(&s.in.down);
    rt_weights_give(&s.in.gate_up_bias);
    double *owned[] = {s.a,
                       s.x,
                       s.y,
                       s.wide,
                       s.gu,
                       s.dgu,
                       s.p,
                       s.dp,
                       s.work,
                       s.norm,
                       s.hat,
                       s.dn,
                       s.post_norm,
                       s.along,
                       s.left,
                       s.right,
                       s.gate_up.part.data,
                       s.down.part.data,
                       s.quantised[0].data,
                       s.quantised[1].data,
                       s.quantised[2].data};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    rt_moe_inputs_free(&s.in);
    rt_operand_free(&s.dy);
    free(s.experts);
    free(s.slots);
    free(s.tokens);
    free(s.pairs);
    free(s.part.at);
    free(s.wanted);
    return status;
}

moegen_rt_status rt_compute_moe_backward(const moegen_rt_problem *p, const moegen_rt_want *want,
                                         moegen_rt_problem *out, moegen_rt_error *err)
{
    bool quantised;
    moegen_rt_status status = compute(p, want, false, out, &quantised, err);
    if (status != MOEGEN_RT_OK || !quantised)
        return status;
    moegen_rt_problem *moved = moegen_rt_problem_create();
    status = moved ? compute(p, want, true, moved, &quantised, err)
                   : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        rt_set_noise(out, moved);
    moegen_rt_problem_destroy(moved);
    return status;
}
