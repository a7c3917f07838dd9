/* SPDX-License-Identifier: Apache-2.0 */
/* ref_moe_forward.c - the forward pass over blocks in float64 (SEMANTICS 1), step by step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "moe.h"
#include "quantised.h"

enum { ROWS = 16 }; /* tokens at a time: their sums stay in cache while weights stream by */

struct pass {
    struct rt_moe m;
    struct rt_moe_inputs in;
    struct rt_online quantise_x, quantise_p;
    double *output;  /* [T(+1), H] */
    double *gate_up; /* [N, parts, I, B], or NULL */
    double *down;    /* [N, B, H], or NULL */
    uint8_t *wanted; /* by token; NULL: all */
    int64_t *slots, *tokens;
    double a[ROWS]; /* affinities */
    double *x;      /* [ROWS, H] */
    double *gu;     /* [ROWS, parts * I] */
    double *p;      /* [ROWS, I] */
    double *d;      /* [ROWS, H] */
    double *bias;   /* of one output row */
    double *norm;   /* [3, I] weight, bias, one row; NULL: no normalisation */
    double *work;   /* for rt_product */
};

moegen_rt_status rt_fill_moe_forward(moegen_rt_problem *p, const moegen_rt_fill *how,
                                     moegen_rt_error *err)
{
    return rt_moe_fill(p, how, err);
}

static double *doubles(int64_t n)
{
    return malloc((size_t)n * sizeof(double));
}

/* Of rows in these slots of block b. */
static void find_affinities(struct pass *s, int64_t b, int64_t e, const int64_t *slots,
                            const int64_t *tokens, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        rt_elements(s->in.affinity, rt_moe_affinity(&s->m, b * s->m.B + slots[r], tokens[r], e), 1,
                    &s->a[r]);
}

/* n elements of a bias, or zeros. */
static const double *bias(const struct pass *s, const moegen_rt_tensor *t, int64_t first, int64_t n)
{
    if (t)
        rt_elements(t, first, n, s->bias);
    else
        memset(s->bias, 0, (size_t)n * sizeof *s->bias);
    return s->bias;
}

/* Steps 2 to 5: g and u of `rows` tokens into s->gu. */
static void first_product(struct pass *s, int64_t e, const int64_t *tokens, int64_t rows)
{
    const struct rt_moe *m = &s->m;
    int64_t columns = m->parts * m->I, first, first_bias = 0;
    const moegen_rt_tensor *weights, *biases = NULL;
    rt_weights_of(&s->in.gate_up, e, &weights, &first);
    if (m->bias_gate_up)
        rt_weights_of(&s->in.gate_up_bias, e, &biases, &first_bias);
    for (int64_t r = 0; r < rows; r++) {
        rt_elements(s->in.hidden, tokens[r] * m->H, m->H, s->x + r * m->H);
        double a = m->pre ? s->a[r] : 1;
        for (int64_t h = 0; h < m->H; h++)
            s->x[r * m->H + h] *= a;
        rt_online_row(&s->quantise_x, s->x + r * m->H, m->pre);
    }
    memset(s->gu, 0, (size_t)(rows * columns) * sizeof *s->gu);
    rt_product(s->x, rows, m->H, weights, first, columns, s->gu, s->work);
    const double *b = bias(s, biases, first_bias, columns);
    for (int64_t r = 0; r < rows; r++) {
        double *v = s->gu + r * columns;
        for (int64_t i = 0; i < columns; i++) {
            bool up = !m->gated || i >= m->I;
            v[i] = rt_clamped(v[i] + b[i], up ? m->up : m->gate);
            v[i] += up ? m->up_offset : 0;
        }
    }
}

/* Before the activation: a row of g, normalised. */
static const double *normalised(struct pass *s, const double *g)
{
    int64_t I = s->m.I;
    if (!s->m.norm)
        return g;
    double *to = s->norm + 2 * I;
    rt_moe_norm(&s->m, g, I, to);
    for (int64_t i = 0; i < I; i++)
        to[i] = to[i] * s->norm[i] + s->norm[I + i];
    return to;
}

/* Steps 6 and 7: d of `rows` tokens into s->d. */
static void second_product(struct pass *s, int64_t e, int64_t rows)
{
    const struct rt_moe *m = &s->m;
    const moegen_rt_tensor *weights;
    int64_t first;
    rt_weights_of(&s->in.down, e, &weights, &first);
    if (m->norm) {
        rt_elements(s->in.norm_weight, e * m->I, m->I, s->norm);
        rt_elements(s->in.norm_bias, e * m->I, m->I, s->norm + m->I);
    }
    for (int64_t r = 0; r < rows; r++) {
        const double *u = s->gu + r * m->parts * m->I + m->I;
        const double *g = normalised(s, s->gu + r * m->parts * m->I);
        double a = m->post_intermediate ? s->a[r] : 1;
        for (int64_t i = 0; i < m->I; i++)
            s->p[r * m->I + i] = a * (m->gated ? rt_moe_act(m, g[i]) * u[i] : rt_moe_act(m, g[i]));
        rt_online_row(&s->quantise_p, s->p + r * m->I, true);
    }
    memset(s->d, 0, (size_t)(rows * m->H) * sizeof *s->d);
    rt_product(s->p, rows, m->I, weights, first, m->H, s->d, s->work);
    const double *b = bias(s, s->in.down_bias, e * m->H, m->H);
    for (int64_t r = 0; r < rows; r++) {
        double a = m->post_intermediate ? s->a[r] : 1;
        for (int64_t h = 0; h < m->H; h++)
            s->d[r * m->H + h] += a * b[h];
    }
}

static void save_checkpoints(struct pass *s, int64_t b, const int64_t *slots, int64_t rows)
{
    const struct rt_moe *m = &s->m;
    int64_t columns = m->parts * m->I;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; s->gate_up && i < columns; i++)
            s->gate_up[(b * columns + i) * m->B + slots[r]] = s->gu[r * columns + i];
        if (s->down)
            memcpy(s->down + (b * m->B + slots[r]) * m->H, s->d + r * m->H,
                   (size_t)m->H * sizeof *s->d);
    }
}

/* Between steps 8 and 9: what an expert gave becomes z / sqrt(mean(z * z) + eps), z = weight * d.
 */
static void normalise_behind(struct pass *s, int64_t rows)
{
    int64_t H = s->m.H;
    rt_elements(s->in.post_norm_weight, 0, H, s->bias);
    for (int64_t r = 0; r < rows; r++) {
        double *z = s->d + r * H, square = 0;
        for (int64_t h = 0; h < H; h++) {
            z[h] *= s->bias[h];
            square += z[h] * z[h] / (double)H;
        }
        for (int64_t h = 0; h < H; h++)
            z[h] /= sqrt(square + s->m.post_norm_eps);
    }
}

/* Steps 9 and 10. */
static void add_output(struct pass *s, const int64_t *tokens, int64_t rows)
{
    const struct rt_moe *m = &s->m;
    for (int64_t r = 0; r < rows; r++) {
        double a = m->post_hidden ? s->a[r] : 1;
        double *to = s->output + tokens[r] * m->H;
        for (int64_t h = 0; h < m->H; h++) {
            double y = a * s->d[r * m->H + h];
            to[h] = m->accumulate ? to[h] + y : y;
        }
    }
}

static moegen_rt_status block(struct pass *s, int64_t b, moegen_rt_error *err)
{
    int64_t e, count;
    moegen_rt_status status =
        rt_moe_block(&s->m, &s->in, b, s->wanted, &e, s->slots, s->tokens, &count, err);
    if (status != MOEGEN_RT_OK)
        return status;
    for (int64_t first = 0; first < count; first += ROWS) {
        int64_t rows = count - first < ROWS ? count - first : ROWS;
        const int64_t *tokens = s->tokens + first;
        find_affinities(s, b, e, s->slots + first, tokens, rows);
        first_product(s, e, tokens, rows);
        second_product(s, e, rows);
        save_checkpoints(s, b, s->slots + first, rows);
        if (s->m.post_norm)
            normalise_behind(s, rows);
        add_output(s, tokens, rows);
    }
    return MOEGEN_RT_OK;
}

static moegen_rt_status make_outputs(struct pass *s, const moegen_rt_want *want,
                                     moegen_rt_problem *out, moegen_rt_error *err)
{
    const struct rt_moe *m = &s->m;
    int64_t rows = s->in.T + !m->skip_token;
    double padding = want && want->padding_is_zero && !s->wanted ? 0 : (double)NAN;
    int64_t output[] = {rows, m->H}, gate_up[] = {s->in.N, m->parts, m->I, m->B},
            down[] = {s->in.N, m->B, m->H};
    moegen_rt_status status = rt_output(out, "output", 2, output, 0, &s->output, err);
    if (status != MOEGEN_RT_OK)
        return status;
    for (int64_t t = 0; t < s->in.T && s->wanted; t++)
        if (!s->wanted[t])
            for (int64_t h = 0; h < m->H; h++)
                s->output[t * m->H + h] = (double)NAN;
    if (m->save)
        status = rt_output(out, "gate_up_activations_T", 4, gate_up, padding, &s->gate_up, err);
    rt_rounded_once(out, "gate_up_activations_T");
    if (m->save && status == MOEGEN_RT_OK && !m->post_intermediate)
        status = rt_output(out, "down_activations", 3, down, padding, &s->down, err);
    return status;
}

static moegen_rt_status allocate(struct pass *s, moegen_rt_error *err)
{
    int64_t H = s->m.H, I = s->m.I, columns = s->m.parts * I, wide = columns > H ? columns : H;
    s->slots = malloc((size_t)s->m.B * sizeof *s->slots);
    s->tokens = malloc((size_t)s->m.B * sizeof *s->tokens);
    s->x = doubles(ROWS * H);
    s->gu = doubles(ROWS * columns);
    s->p = doubles(ROWS * I);
    s->d = doubles(ROWS * H);
    s->bias = doubles(wide);
    s->work = doubles(4 * wide);
    s->norm = doubles(3 * I);
    bool ok =
        s->slots && s->tokens && s->x && s->gu && s->p && s->d && s->bias && s->work && s->norm;
    return ok ? MOEGEN_RT_OK : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
}

/* other: operands between two numbers that they may be rounded to are rounded to the other side. */
static moegen_rt_status compute_once(const moegen_rt_problem *p, const moegen_rt_want *want,
                                     bool other, moegen_rt_problem *out, bool *quantised,
                                     moegen_rt_error *err)
{
    struct pass s = {0};
    moegen_rt_status status = rt_moe_read(p, &s.m, err);
    if (status == MOEGEN_RT_OK)
        status = rt_moe_inputs(p, &s.m, &s.in, err);
    if (status == MOEGEN_RT_OK)
        status = rt_online_read(p, &s.in.gate_up, &s.quantise_x, err);
    if (status == MOEGEN_RT_OK)
        status = rt_online_read(p, &s.in.down, &s.quantise_p, err);
    *quantised = s.quantise_x.K != 0;
    s.quantise_x.other = s.quantise_p.other = other;
    if (status == MOEGEN_RT_OK)
        status = rt_wanted(want, s.in.T, &s.wanted, err);
    if (status == MOEGEN_RT_OK)
        status = make_outputs(&s, want, out, err);
    if (status == MOEGEN_RT_OK)
        status = allocate(&s, err);
    for (int64_t b = 0; status == MOEGEN_RT_OK && b < s.in.run; b++) /* step 1 */
        status = block(&s, b, err);
    double *owned[] = {s.x, s.gu, s.p, s.d, s.bias, s.work, s.norm};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    rt_online_free(&s.quantise_x);
    rt_online_free(&s.quantise_p);
    rt_moe_inputs_free(&s.in);
    free(s.slots);
    free(s.tokens);
    free(s.wanted);
    return status;
}

moegen_rt_status rt_compute_moe_forward(const moegen_rt_problem *p, const moegen_rt_want *want,
                                        moegen_rt_problem *out, moegen_rt_error *err)
{
    bool quantised;
    moegen_rt_status status = compute_once(p, want, false, out, &quantised, err);
    if (status != MOEGEN_RT_OK || !quantised)
        return status;
    moegen_rt_problem *moved = moegen_rt_problem_create();
    status = moved ? compute_once(p, want, true, moved, &quantised, err)
                   : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        rt_set_noise(out, moved);
    moegen_rt_problem_destroy(moved);
    return status;
}
