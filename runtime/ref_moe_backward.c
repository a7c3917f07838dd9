/* SPDX-License-Identifier: Apache-2.0 */
/* ref_moe_backward.c - the gradients of moe_forward in float64 (SEMANTICS 2). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime_private.h"

enum { ROWS = 16 }; /* tokens at a time: their sums stay in cache while weights stream by */

/* One matrix of the expert at work: all of it, or the features of the part. */
struct matrix {
    const moegen_rt_tensor *t;
    int64_t first;         /* element */
    moegen_rt_tensor part; /* f64, in memory of this pass */
};

struct pass {
    struct rt_moe m;
    struct rt_moe_inputs in;
    bool recompute;
    bool gate_up_bias, down_bias; /* have gradients */
    const moegen_rt_tensor *gate_up_saved, *down_saved, *dy;
    struct rt_limits gate, up; /* as g and u hold them */
    /* outputs */
    double *dx;              /* [T(+1), H] */
    double *da;              /* [T(+1), E] */
    double *dgate_up;        /* [E, H, parts, I] */
    double *ddown;           /* [E, I, H] */
    double *dgate_up_b;      /* [E, parts, I], or NULL */
    double *ddown_b;         /* [E, H], or NULL */
    double *dnorm, *dnorm_b; /* [E, I], or NULL */
    /* one sweep over the blocks */
    uint8_t *wanted;              /* by token; NULL: all */
    struct rt_part part;          /* of I, for the weight gradients */
    int64_t *pairs;               /* the part in [parts, I]; NULL: all */
    bool tokens_too, weights_too; /* what this sweep computes */
    int64_t C;                    /* columns of I at work */
    const int64_t *at, *at_pairs; /* where they are in I and in [parts, I]; NULL: all */
    struct matrix gate_up, down;
    int64_t *slots, *tokens;
    /* ROWS tokens of one expert */
    double *a;    /* affinity */
    double *x;    /* [ROWS, H] */
    double *y;    /* [ROWS, H] output gradient */
    double *wide; /* [ROWS, H] */
    double *gu;   /* [ROWS, parts * C] */
    double *dgu;  /* [ROWS, parts * C] */
    double *p;    /* [ROWS, C] */
    double *dp;   /* [ROWS, C], before the affinity */
    double *norm; /* [2, I] weight and bias of the normalisation */
    double *hat;  /* [ROWS, I] normalised, without these; */
    double *dn;   /* [ROWS, I] gradients of what comes of them */
    double *work; /* for the products, and one row */
};

/* ---- one chunk of tokens ---- */

static void load_rows(struct pass *s, int64_t e, const int64_t *tokens, int64_t rows)
{
    int64_t H = s->m.H;
    for (int64_t r = 0; r < rows; r++) {
        rt_elements(s->in.affinity, tokens[r] * s->m.E + e, 1, &s->a[r]);
        rt_elements(s->in.hidden, tokens[r] * H, H, s->x + r * H);
        rt_elements(s->dy, tokens[r] * H, H, s->y + r * H);
    }
}

/* x as the expert saw it: times the affinity with scale `pre`. */
static const double *seen(struct pass *s, int64_t rows)
{
    int64_t H = s->m.H;
    if (!s->m.pre)
        return s->x;
    for (int64_t i = 0; i < rows * H; i++)
        s->wide[i] = s->a[i / H] * s->x[i];
    return s->wide;
}

static bool is_up(const struct pass *s, int64_t column)
{
    return column >= (s->m.parts - 1) * s->C;
}

static void gate_up_again(struct pass *s, int64_t e, int64_t rows)
{
    const struct rt_moe *m = &s->m;
    int64_t columns = m->parts * s->C;
    memset(s->gu, 0, (size_t)(rows * columns) * sizeof *s->gu);
    rt_product(seen(s, rows), rows, m->H, s->gate_up.t, s->gate_up.first, columns, s->gu, s->work);
    for (int64_t i = 0; i < columns; i++) {
        double b = 0;
        int64_t at = s->at_pairs ? s->at_pairs[i] : i;
        if (s->in.gate_up_bias)
            rt_elements(s->in.gate_up_bias, e * m->parts * m->I + at, 1, &b);
        struct rt_limits to = is_up(s, i) ? m->up : m->gate;
        double offset = is_up(s, i) ? m->up_offset : 0;
        for (int64_t r = 0; r < rows; r++) {
            double *v = &s->gu[r * columns + i];
            *v = fmax(to.lo, fmin(to.hi, *v + b)) + offset;
        }
    }
}

static void gate_up_saved(struct pass *s, int64_t b, const int64_t *slots, int64_t rows)
{
    int64_t columns = s->m.parts * s->C, all = s->m.parts * s->m.I;
    for (int64_t i = 0; i < columns; i++) {
        int64_t at = b * all + (s->at_pairs ? s->at_pairs[i] : i);
        for (int64_t r = 0; r < rows; r++)
            rt_elements(s->gate_up_saved, at * s->m.B + slots[r], 1, &s->gu[r * columns + i]);
    }
}

/* The same with p = act(normalised u): p, hat, dn and du of a row. */
static void through_norm(struct pass *s, const double *u, const double *dp, double a, double *p,
                         double *hat, double *dn, double *du)
{
    int64_t I = s->m.I;
    double factor = rt_moe_norm(&s->m, u, I, hat), mean = 0, along = 0;
    for (int64_t i = 0; i < I; i++) {
        double n = hat[i] * s->norm[i] + s->norm[I + i];
        p[i] = s->m.act->value(n);
        dn[i] = a * dp[i] * s->m.act->slope(n);
        du[i] = dn[i] * s->norm[i];
        mean += du[i] / (double)I;
        along += du[i] * hat[i] / (double)I;
    }
    for (int64_t i = 0; i < I; i++)
        du[i] = factor * (du[i] - mean - hat[i] * along);
}

/* From g, u and the gradient of p = act(g) u: p, dg and du. */
static void through_activation(struct pass *s, int64_t rows)
{
    const struct rt_moe *m = &s->m;
    bool post = m->post_hidden || m->post_intermediate;
    for (int64_t r = 0; r < rows; r++) {
        const double *g = s->gu + r * m->parts * s->C, *u = g + (m->parts - 1) * s->C;
        double *dg = s->dgu + r * m->parts * s->C, *du = dg + (m->parts - 1) * s->C;
        if (m->norm)
            through_norm(s, u, s->dp + r * s->C, post ? s->a[r] : 1, s->p + r * s->C,
                         s->hat + r * s->C, s->dn + r * s->C, du);
        for (int64_t i = 0; !m->norm && i < s->C; i++) {
            int64_t at = r * s->C + i;
            double dp = post ? s->a[r] * s->dp[at] : s->dp[at];
            double open = rt_inside(u[i], s->up), act = m->act->value(g[i]);
            if (m->gated) {
                s->p[at] = act * u[i];
                dg[i] = dp * u[i] * m->act->slope(g[i]) * rt_inside(g[i], s->gate);
                du[i] = dp * act * open;
            } else {
                s->p[at] = act;
                du[i] = dp * m->act->slope(u[i]) * open;
            }
        }
    }
}

/* The affinity's gradient where it multiplies the expert's output: that output times dy. */
static double from_output(struct pass *s, int64_t e, int64_t b, int64_t slot, int64_t r)
{
    int64_t H = s->m.H;
    const double *y = s->y + r * H;
    if (s->m.post_hidden && !s->recompute) {
        rt_elements(s->down_saved, (b * s->m.B + slot) * H, H, s->work);
        return rt_dot(y, s->work, H);
    }
    double sum = rt_dot(s->dp + r * s->C, s->p + r * s->C, s->C);
    if (s->in.down_bias) {
        rt_elements(s->in.down_bias, e * H, H, s->work);
        sum += rt_dot(y, s->work, H);
    }
    return sum;
}

/* Gradients of hidden states and affinities. */
static void token_gradients(struct pass *s, int64_t e, int64_t b, const int64_t *slots,
                            const int64_t *tokens, int64_t rows)
{
    const struct rt_moe *m = &s->m;
    memset(s->wide, 0, (size_t)(rows * m->H) * sizeof *s->wide);
    rt_product_t(s->dgu, rows, m->parts * s->C, s->gate_up.t, s->gate_up.first, m->H, s->wide,
                 s->work);
    for (int64_t r = 0; r < rows; r++) {
        double *dx = s->dx + tokens[r] * m->H, *da = s->da + tokens[r] * m->E + e;
        const double *wide = s->wide + r * m->H;
        for (int64_t h = 0; h < m->H; h++)
            dx[h] += m->pre ? s->a[r] * wide[h] : wide[h];
        if (m->pre)
            *da += rt_dot(wide, s->x + r * m->H, m->H);
        else if (m->post_hidden || m->post_intermediate)
            *da += from_output(s, e, b, slots[r], r);
    }
}

/* Gradients of weights and biases. Changes p and y. */
static void weight_gradients(struct pass *s, int64_t e, int64_t rows)
{
    const struct rt_moe *m = &s->m;
    int64_t all = m->parts * m->I, columns = m->parts * s->C;
    rt_outer(seen(s, rows), rows, m->H, NULL, s->dgu, columns, s->at_pairs,
             s->dgate_up + e * m->H * all, all);
    if (m->post_hidden || m->post_intermediate)
        for (int64_t i = 0; i < rows * m->H; i++)
            s->y[i] *= s->a[i / m->H];
    rt_outer(s->p, rows, s->C, s->at, s->y, m->H, NULL, s->ddown + e * m->I * m->H, m->H);
    for (int64_t r = 0; s->dgate_up_b && r < rows; r++)
        for (int64_t i = 0; i < columns; i++)
            s->dgate_up_b[e * all + (s->at_pairs ? s->at_pairs[i] : i)] += s->dgu[r * columns + i];
    for (int64_t i = 0; m->norm && i < rows * s->C; i++) {
        s->dnorm[e * m->I + i % s->C] += s->dn[i] * s->hat[i];
        s->dnorm_b[e * m->I + i % s->C] += s->dn[i];
    }
    for (int64_t r = 0; s->ddown_b && r < rows; r++)
        for (int64_t h = 0; h < m->H; h++)
            s->ddown_b[e * m->H + h] += s->y[r * m->H + h];
}

/* ---- blocks ---- */

/* Points to the matrices of expert e; of a part, copies its columns and rows. */
static void choose_matrices(struct pass *s, int64_t e)
{
    int64_t H = s->m.H, I = s->m.I, all = s->m.parts * I, columns = s->m.parts * s->C;
    if (s->m.norm) {
        rt_elements(s->in.norm_weight, e * I, I, s->norm);
        rt_elements(s->in.norm_bias, e * I, I, s->norm + I);
    }
    s->gate_up.t = s->in.gate_up;
    s->gate_up.first = e * H * all;
    s->down.t = s->in.down;
    s->down.first = e * I * H;
    if (!s->at)
        return;
    for (int64_t h = 0; s->recompute && h < H; h++) {
        rt_elements(s->in.gate_up, (e * H + h) * all, all, s->work);
        for (int64_t i = 0; i < columns; i++)
            ((double *)s->gate_up.part.data)[h * columns + i] = s->work[s->at_pairs[i]];
    }
    for (int64_t i = 0; i < s->C; i++)
        rt_elements(s->in.down, (e * I + s->at[i]) * H, H, (double *)s->down.part.data + i * H);
    s->gate_up.t = &s->gate_up.part;
    s->down.t = &s->down.part;
    s->gate_up.first = s->down.first = 0;
}

static void chunk(struct pass *s, int64_t e, int64_t b, const int64_t *slots, const int64_t *tokens,
                  int64_t rows)
{
    load_rows(s, e, tokens, rows);
    if (s->recompute)
        gate_up_again(s, e, rows);
    else
        gate_up_saved(s, b, slots, rows);
    memset(s->dp, 0, (size_t)(rows * s->C) * sizeof *s->dp);
    rt_product_t(s->y, rows, s->m.H, s->down.t, s->down.first, s->C, s->dp, s->work);
    through_activation(s, rows);
    if (s->tokens_too)
        token_gradients(s, e, b, slots, tokens, rows);
    if (s->weights_too)
        weight_gradients(s, e, rows);
}

static moegen_rt_status sweep(struct pass *s, bool tokens_too, bool weights_too,
                              moegen_rt_error *err)
{
    bool part = !tokens_too;
    s->tokens_too = tokens_too;
    s->weights_too = weights_too;
    s->C = part ? s->part.count : s->m.I;
    s->at = part ? s->part.at : NULL;
    s->at_pairs = part ? s->pairs : NULL;
    for (int64_t b = 0; b < s->in.run; b++) {
        int64_t e, count;
        moegen_rt_status status = rt_moe_block(&s->m, &s->in, b, part ? NULL : s->wanted, &e,
                                               s->slots, s->tokens, &count, err);
        if (status != MOEGEN_RT_OK)
            return status;
        if (count > 0)
            choose_matrices(s, e);
        for (int64_t first = 0; first < count; first += ROWS)
            chunk(s, e, b, s->slots + first, s->tokens + first,
                  count - first < ROWS ? count - first : ROWS);
    }
    return MOEGEN_RT_OK;
}

/* ---- inputs, outputs, memory ---- */

static moegen_rt_status read_inputs(struct pass *s, const moegen_rt_problem *p,
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
    if (status != MOEGEN_RT_OK)
        return status;
    int64_t rows = s->in.T + !m->skip_token, dy[] = {rows, m->H};
    int64_t gate_up[] = {s->in.N, m->parts, m->I, m->B}, down[] = {s->in.N, m->B, m->H};
    status = rt_input(p, "output_hidden_states_grad", true, 2, dy, &s->dy, err);
    moegen_rt_dtype held = MOEGEN_RT_F64;
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

static moegen_rt_status make_outputs(struct pass *s, const moegen_rt_problem *p,
                                     moegen_rt_problem *out, moegen_rt_error *err)
{
    const struct rt_moe *m = &s->m;
    int64_t rows = s->in.T + !m->skip_token;
    int64_t dx[] = {rows, m->H}, da[] = {rows * m->E, 1};
    int64_t gate_up[] = {m->E, m->H, m->parts, m->I}, down[] = {m->E, m->I, m->H};
    int64_t gate_up_b[] = {m->E, m->parts, m->I}, down_b[] = {m->E, m->H};
    moegen_rt_status status = rt_output(out, "hidden_states_grad", 2, dx, 0, &s->dx, err);
    if (status == MOEGEN_RT_OK)
        status = rt_output(out, "expert_affinities_masked_grad", 2, da, 0, &s->da, err);
    if (status == MOEGEN_RT_OK)
        status = rt_gradient(p, out, "gate_up_proj_weight_grad", 4, gate_up, &s->dgate_up, err);
    if (status == MOEGEN_RT_OK)
        status = rt_gradient(p, out, "down_proj_weight_grad", 3, down, &s->ddown, err);
    if (status == MOEGEN_RT_OK && s->gate_up_bias)
        status =
            rt_gradient(p, out, "gate_and_up_proj_bias_grad", 3, gate_up_b, &s->dgate_up_b, err);
    if (status == MOEGEN_RT_OK && s->down_bias)
        status = rt_gradient(p, out, "down_proj_bias_grad", 2, down_b, &s->ddown_b, err);
    int64_t norm[] = {m->E, m->I};
    if (status == MOEGEN_RT_OK && m->norm)
        status = rt_gradient(p, out, "norm_weight_grad", 2, norm, &s->dnorm, err);
    if (status == MOEGEN_RT_OK && m->norm)
        status = rt_gradient(p, out, "norm_bias_grad", 2, norm, &s->dnorm_b, err);
    if (status != MOEGEN_RT_OK)
        return status;
    for (int64_t t = 0; s->wanted && t < s->in.T; t++) {
        for (int64_t h = 0; !s->wanted[t] && h < m->H; h++)
            s->dx[t * m->H + h] = (double)NAN;
        for (int64_t e = 0; !s->wanted[t] && e < m->E; e++)
            s->da[t * m->E + e] = (double)NAN;
    }
    rt_blank_rest(&s->part, s->dgate_up, m->E * m->H * m->parts, 1);
    rt_blank_rest(&s->part, s->ddown, m->E, m->H);
    if (s->dgate_up_b)
        rt_blank_rest(&s->part, s->dgate_up_b, m->E * m->parts, 1);
    return MOEGEN_RT_OK;
}

/* [rows][columns] of f64 for the part of a matrix. */
static moegen_rt_tensor part_of(int64_t rows, int64_t columns)
{
    moegen_rt_tensor t = {.dtype = MOEGEN_RT_F64, .rank = 2, .shape = {rows, columns}};
    t.data = malloc((size_t)(rows * columns) * sizeof(double));
    return t;
}

static moegen_rt_status allocate(struct pass *s, moegen_rt_error *err)
{
    const struct rt_moe *m = &s->m;
    int64_t columns = m->parts * m->I, wide = columns > m->H ? columns : m->H;
    struct {
        double **at;
        int64_t count;
    } const need[] = {
        {&s->a, ROWS},           {&s->x, ROWS * m->H},     {&s->y, ROWS * m->H},
        {&s->wide, ROWS * m->H}, {&s->gu, ROWS * columns}, {&s->dgu, ROWS * columns},
        {&s->p, ROWS * m->I},    {&s->dp, ROWS * m->I},    {&s->work, 4 * wide},
        {&s->norm, 2 * m->I},    {&s->hat, ROWS * m->I},   {&s->dn, ROWS * m->I},
    };
    bool ok = true;
    for (size_t i = 0; i < sizeof need / sizeof *need; i++)
        ok &= (*need[i].at = malloc((size_t)need[i].count * sizeof(double))) != NULL;
    ok &= (s->slots = malloc((size_t)m->B * sizeof *s->slots)) != NULL;
    ok &= (s->tokens = malloc((size_t)m->B * sizeof *s->tokens)) != NULL;
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

moegen_rt_status rt_compute_moe_backward(const moegen_rt_problem *p, const moegen_rt_want *want,
                                         moegen_rt_problem *out, moegen_rt_error *err)
{
    struct pass s = {0};
    moegen_rt_status status = read_inputs(&s, p, err);
    if (status == MOEGEN_RT_OK)
        status = rt_wanted(want, s.in.T, &s.wanted, err);
    if (status == MOEGEN_RT_OK)
        status = rt_part(s.m.norm ? NULL : want, s.in.T, s.m.I, &s.part, err); /* or all */
    if (status == MOEGEN_RT_OK)
        status = make_outputs(&s, p, out, err);
    if (status == MOEGEN_RT_OK)
        status = allocate(&s, err);
    if (status == MOEGEN_RT_OK)
        status = sweep(&s, true, !s.wanted, err);
    if (status == MOEGEN_RT_OK && s.wanted)
        status = sweep(&s, false, true, err);
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
                       s.gate_up.part.data,
                       s.down.part.data};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    free(s.slots);
    free(s.tokens);
    free(s.pairs);
    free(s.part.at);
    free(s.wanted);
    return status;
}
