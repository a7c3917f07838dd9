/* SPDX-License-Identifier: Apache-2.0 */
/* ref_moe_backward_rows.c - the gradients that some tokens of one expert contribute, in float64.
 * With quantised operands, what is between two products is rounded to the dtype, as if it had been
 * stored. The affinity is no operand's: it multiplies dp, which is a sum, and p before it is
 * rounded; with scale `pre` x. Biases' gradients are sums of what is not quantised. */
#include <math.h>
#include <string.h>

#include "ref_moe_backward.h"

static void load_rows(struct rt_backward *s, int64_t e, const int64_t *slots, const int64_t *tokens,
                      int64_t rows)
{
    int64_t H = s->m.H;
    for (int64_t r = 0; r < rows; r++) {
        rt_elements(s->in.affinity, rt_moe_affinity(&s->m, slots[r], tokens[r], e), 1, &s->a[r]);
        rt_elements(s->in.hidden, tokens[r] * H, H, s->x + r * H);
        rt_elements(s->dy.t, tokens[r] * H, H, s->y + r * H);
    }
}

/* Back through the norm behind the experts: rows of y become gradients of what these gave, without
 * the affinities, as the rest of the way back reads them. */
static void through_post_norm(struct rt_backward *s, const int64_t *slots, int64_t rows)
{
    int64_t H = s->m.H, B = s->m.B;
    double *d = s->work, *weight = s->post_norm;
    rt_elements(s->in.post_norm_weight, 0, H, weight);
    for (int64_t r = 0; r < rows; r++) {
        double *y = s->y + r * H, square = 0, along = 0;
        rt_elements(s->down_saved, slots[r] * H, H, d);
        for (int64_t h = 0; h < H; h++) {
            square += weight[h] * d[h] * weight[h] * d[h] / (double)H;
            along += y[h] * weight[h] * d[h];
        }
        double size = sqrt(square + s->m.post_norm_eps);
        s->along[r] = along / size;
        /* Where y is nearly along z, as it always is where one number is normalised, what is left
         * of it is a difference, and has the roundings of what is subtracted. */
        double share =
            s->along[r] / (double)H * rt_moved(s->m.moved, (uint64_t)(slots[r] / B + slots[r] % B));
        for (int64_t h = 0; h < H; h++) {
            double normed = weight[h] * d[h] / size;
            double dz = (y[h] - normed * share) / size;
            if (s->weights_too && s->dpost_norm)
                s->dpost_norm[h] += s->a[r] * dz * d[h];
            y[h] = dz * weight[h];
        }
    }
}

/* Rows [rows, n] as they enter a product along n; computed: they are no inputs. */
static const double *along(const struct rt_backward *s, const double *x, int64_t rows, int64_t n,
                           bool computed)
{
    return rt_quantised(&s->q, x, rows, n, false, computed, s->left);
}

/* Tokens as they enter a product along H: codes have been rounded. */
static const double *tokens_along(const struct rt_backward *s, const double *x, int64_t rows,
                                  bool are_given)
{
    return are_given ? x : along(s, x, rows, s->m.H, false);
}

/* x as the expert saw it: times the affinity with scale `pre`, of which kernels make f32. */
static const double *seen(struct rt_backward *s, int64_t rows)
{
    int64_t H = s->m.H;
    if (!s->m.pre)
        return s->x;
    for (int64_t i = 0; i < rows * H; i++)
        s->wide[i] = s->q.on ? (double)(float)(s->a[i / H] * s->x[i]) : s->a[i / H] * s->x[i];
    return s->wide;
}

static bool is_up(const struct rt_backward *s, int64_t column)
{
    return column >= (s->m.parts - 1) * s->C;
}

static void gate_up_again(struct rt_backward *s, int64_t e, int64_t rows)
{
    const struct rt_moe *m = &s->m;
    int64_t columns = m->parts * s->C, first_bias = 0;
    const moegen_rt_tensor *biases = NULL;
    if (m->bias_gate_up)
        rt_weights_of(&s->in.gate_up_bias, e, &biases, &first_bias);
    memset(s->gu, 0, (size_t)(rows * columns) * sizeof *s->gu);
    rt_product(tokens_along(s, seen(s, rows), rows, s->in.hidden_states.is_given && !m->pre), rows,
               m->H, s->gate_up.t, s->gate_up.first, columns, s->gu, s->work);
    for (int64_t i = 0; i < columns; i++) {
        double b = 0;
        int64_t at = s->at_pairs ? s->at_pairs[i] : i;
        if (biases)
            rt_elements(biases, first_bias + at, 1, &b);
        struct rt_limits to = is_up(s, i) ? m->up : m->gate;
        double offset = is_up(s, i) ? m->up_offset : 0;
        struct rt_limits held = is_up(s, i) ? s->up : s->gate; /* with the offset */
        for (int64_t r = 0; r < rows; r++) {
            double *v = &s->gu[r * columns + i];
            *v = (s->q.on ? *v + b : rt_clamped(*v + b, to)) + offset;
            if (s->q.on)
                rt_blur(&s->q, v, 1, held);
        }
    }
    rt_store(&s->q, s->gu, rows * columns);
    for (int64_t i = 0; s->q.on && i < rows * columns; i++)
        s->gu[i] = rt_clamped(s->gu[i], is_up(s, i % columns) ? s->up : s->gate);
}

static void gate_up_saved(struct rt_backward *s, const int64_t *slots, int64_t rows)
{
    int64_t columns = s->m.parts * s->C, all = s->m.parts * s->m.I;
    for (int64_t i = 0; i < columns; i++) {
        int64_t at = s->at_pairs ? s->at_pairs[i] : i, B = s->m.B;
        for (int64_t r = 0; r < rows; r++)
            rt_elements(s->gate_up_saved, (slots[r] / B * all + at) * B + slots[r] % B, 1,
                        &s->gu[r * columns + i]);
    }
}

/* The same with p = act(normalised u): p, hat, dn and du of a row. */
static void through_norm(struct rt_backward *s, const double *u, const double *dp, double a,
                         double *p, double *hat, double *dn, double *du)
{
    int64_t I = s->m.I;
    double factor = rt_moe_norm(&s->m, u, I, hat), mean = 0, along = 0;
    for (int64_t i = 0; i < I; i++) {
        double n = hat[i] * s->norm[i] + s->norm[I + i];
        p[i] = rt_moe_act(&s->m, n);
        dn[i] = a * dp[i] * rt_moe_act_slope(&s->m, n);
        du[i] = dn[i] * s->norm[i];
        mean += du[i] / (double)I;
        along += du[i] * hat[i] / (double)I;
    }
    for (int64_t i = 0; i < I; i++)
        du[i] = factor * (du[i] - mean - hat[i] * along);
}

/* From g, u and the gradient of p = act(g) u: p, dg and du. */
static void through_activation(struct rt_backward *s, int64_t rows)
{
    const struct rt_moe *m = &s->m;
    const struct rt_quantiser *q = &s->q;
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
            double act = rt_stored(q, rt_moe_act(m, g[i]), 1);
            double slope = rt_stored(q, rt_moe_act_slope(m, g[i]), 1);
            if (m->gated) {
                s->p[at] = rt_stored(q, act * u[i], 0);
                dg[i] = rt_through(dp * rt_stored(q, u[i] * slope, 0), g[i], s->gate);
                du[i] = rt_through(dp * act, u[i], s->up);
            } else {
                s->p[at] = act;
                du[i] = rt_through(dp * slope, u[i], s->up);
            }
        }
    }
    rt_store(q, s->dgu, rows * m->parts * s->C);
}

/* The affinity's gradient where it multiplies the expert's output: that output times dy. */
static double from_output(struct rt_backward *s, int64_t e, int64_t slot, int64_t r)
{
    int64_t H = s->m.H;
    const double *y = s->y + r * H;
    if (s->m.post_norm)
        return s->along[r];
    if (s->m.post_hidden && !s->recompute) {
        rt_elements(s->down_saved, slot * H, H, s->work);
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
static void token_gradients(struct rt_backward *s, int64_t e, const int64_t *slots,
                            const int64_t *tokens, int64_t rows)
{
    const struct rt_moe *m = &s->m;
    memset(s->wide, 0, (size_t)(rows * m->H) * sizeof *s->wide);
    rt_product_t(along(s, s->dgu, rows * m->parts, s->C, true), rows, m->parts * s->C, s->back.t,
                 s->back.first, m->H, s->wide, s->work);
    for (int64_t r = 0; r < rows; r++) {
        double *dx = s->dx + tokens[r] * m->H;
        double *da = s->da + rt_moe_affinity(m, slots[r], tokens[r], e);
        const double *wide = s->wide + r * m->H;
        for (int64_t h = 0; h < m->H; h++)
            dx[h] += m->pre ? s->a[r] * wide[h] : wide[h];
        if (m->pre)
            *da += rt_dot(wide, s->x + r * m->H, m->H);
        else if (m->post_hidden || m->post_intermediate)
            *da += from_output(s, e, slots[r], r);
    }
}

/* Rows [rows, n] as they enter a product over tokens. */
static const double *down(const struct rt_backward *s, const double *x, int64_t rows, int64_t n,
                          bool computed, double *to)
{
    return rt_quantised(&s->q, x, rows, n, true, computed, to);
}

/* Gradients of weights and biases. Changes p. */
static void weight_gradients(struct rt_backward *s, int64_t e, int64_t rows)
{
    const struct rt_moe *m = &s->m;
    int64_t all = m->parts * m->I, columns = m->parts * s->C;
    bool post = m->post_hidden || m->post_intermediate;
    rt_outer(down(s, seen(s, rows), rows, m->H, false, s->left), rows, m->H, NULL,
             down(s, s->dgu, rows, columns, true, s->right), columns, s->at_pairs,
             s->dgate_up + e * m->H * all, all);
    for (int64_t i = 0; post && i < rows * s->C; i++)
        s->p[i] = rt_stored(&s->q, s->a[i / s->C] * s->p[i], 0);
    rt_outer(down(s, s->p, rows, s->C, true, s->left), rows, s->C, s->at,
             down(s, s->y, rows, m->H, false, s->right), m->H, NULL, s->ddown + e * m->I * m->H,
             m->H);
    for (int64_t r = 0; s->dgate_up_b && r < rows; r++)
        for (int64_t i = 0; i < columns; i++)
            s->dgate_up_b[e * all + (s->at_pairs ? s->at_pairs[i] : i)] += s->dgu[r * columns + i];
    for (int64_t i = 0; m->norm && i < rows * s->C; i++) {
        s->dnorm[e * m->I + i % s->C] += s->dn[i] * s->hat[i];
        s->dnorm_b[e * m->I + i % s->C] += s->dn[i];
    }
    for (int64_t r = 0; s->ddown_b && r < rows; r++)
        for (int64_t h = 0; h < m->H; h++)
            s->ddown_b[e * m->H + h] += (post ? s->a[r] : 1) * s->y[r * m->H + h];
}

void rt_backward_rows(struct rt_backward *s, int64_t e, const int64_t *slots, const int64_t *tokens,
                      int64_t rows)
{
    load_rows(s, e, slots, tokens, rows);
    if (s->m.post_norm)
        through_post_norm(s, slots, rows);
    if (s->recompute)
        gate_up_again(s, e, rows);
    else
        gate_up_saved(s, slots, rows);
    memset(s->dp, 0, (size_t)(rows * s->C) * sizeof *s->dp);
    rt_product_t(tokens_along(s, s->y, rows, s->dy.is_given), rows, s->m.H, s->down.t,
                 s->down.first, s->C, s->dp, s->work);
    through_activation(s, rows);
    if (s->tokens_too)
        token_gradients(s, e, slots, tokens, rows);
    if (s->weights_too)
        weight_gradients(s, e, rows);
}
