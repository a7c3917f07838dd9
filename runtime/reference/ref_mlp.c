/* SPDX-License-Identifier: Apache-2.0 */
/* ref_mlp.c - one dense gated MLP and its gradients in float64, without quantisation
 * (SEMANTICS 3). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"

enum { ROWS = 16 };
struct pass {
    struct rt_mlp m;
    bool backward;
    const moegen_rt_tensor *x, *gate_up, *down, *dy, *given[RT_GIVEN];
    struct rt_limits gate, up; /* as gate_pre and up hold them */
    int64_t S;
    double *y, *kept[RT_GIVEN];    /* forward */
    double *dx, *dgate_up, *ddown; /* backward */
    uint8_t *wanted;
    struct rt_part part; /* of I, for the weight gradients */
    int64_t *pairs;      /* the part in [parts, I]; NULL: all */
    bool rows_too, weights_too;
    int64_t C;                              /* columns of I at work */
    const int64_t *at, *at_pairs;           /* where they are */
    const moegen_rt_tensor *first, *second; /* gate_up [parts * C, H] and down [H, C] at work */
    moegen_rt_tensor first_part, second_part;
    /* ROWS rows */
    double *in, *out, *wide; /* [ROWS, H] */
    double *v[RT_GIVEN];     /* [ROWS, C] */
    double *gu, *dgu;        /* [ROWS, parts * C] */
    double *acc;             /* [ROWS, C] */
    double *work;
};

/* ---- one chunk of rows ---- */

/* Intermediate `which` of the rows in `list`, if it was given. */
static bool take(struct pass *s, enum rt_given which, const int64_t *list, int64_t rows)
{
    for (int64_t r = 0; s->given[which] && r < rows; r++) {
        rt_elements(s->given[which], list[r] * s->m.I, s->m.I, s->work);
        for (int64_t i = 0; i < s->C; i++)
            s->v[which][r * s->C + i] = s->work[s->at ? s->at[i] : i];
    }
    return s->given[which] != NULL;
}

/* A value that is computed again may be on the other side of a limit in f32 if it is as close as
 * this, and a gradient passes on one side only: what depends on it is not compared. */
static void blur(const struct pass *s, double *v, int64_t n, struct rt_limits at)
{
    for (int64_t i = 0; s->backward && i < n; i++)
        if (fabs(v[i] - at.lo) < 4e-6 * (1 + fabs(v[i])) ||
            fabs(v[i] - at.hi) < 4e-6 * (1 + fabs(v[i])))
            v[i] = (double)NAN;
}

static void clamp(double *v, int64_t n, struct rt_limits to)
{
    for (int64_t i = 0; i < n; i++)
        v[i] = v[i] < to.lo ? to.lo : v[i] > to.hi ? to.hi : v[i]; /* NaN stays */
}

/* The forward pass up to hidden: phase 0. */
static void intermediates(struct pass *s, const int64_t *list, int64_t rows)
{
    const struct rt_mlp *m = &s->m;
    int64_t n = rows * s->C, columns = m->parts * s->C;
    if (!s->given[RT_UP] || (m->gated && !s->given[RT_GATE_PRE])) {
        memset(s->gu, 0, (size_t)(rows * columns) * sizeof *s->gu);
        rt_product_t(s->in, rows, m->H, s->first, 0, columns, s->gu, s->work);
        for (int64_t r = 0; r < rows; r++) {
            if (m->gated)
                memcpy(s->v[RT_GATE_PRE] + r * s->C, s->gu + r * columns,
                       (size_t)s->C * sizeof *s->gu);
            memcpy(s->v[RT_UP] + r * s->C, s->gu + (r + 1) * columns - s->C,
                   (size_t)s->C * sizeof *s->gu);
        }
    }
    if (!take(s, RT_UP, list, rows)) {
        for (int64_t i = 0; i < n; i++)
            s->v[RT_UP][i] += m->offset;
        blur(s, s->v[RT_UP], n, s->up);
    }
    clamp(s->v[RT_UP], n, s->up); /* with the offset in its limits */
    if (m->gated) {
        if (!take(s, RT_GATE_PRE, list, rows))
            blur(s, s->v[RT_GATE_PRE], n, s->gate);
        clamp(s->v[RT_GATE_PRE], n, s->gate);
        for (int64_t i = 0; i < n; i++)
            s->v[RT_GATE_ACT][i] = m->act->value(s->v[RT_GATE_PRE][i]);
        take(s, RT_GATE_ACT, list, rows);
    }
    for (int64_t i = 0; i < n; i++)
        s->v[RT_HIDDEN][i] =
            m->gated ? s->v[RT_GATE_ACT][i] * s->v[RT_UP][i] : m->act->value(s->v[RT_UP][i]);
    take(s, RT_HIDDEN, list, rows);
}

static void forward(struct pass *s, const int64_t *list, int64_t rows)
{
    const struct rt_mlp *m = &s->m;
    memset(s->out, 0, (size_t)(rows * m->H) * sizeof *s->out);
    rt_product_t(s->v[RT_HIDDEN], rows, m->I, s->down, 0, m->H, s->out, s->work);
    for (int64_t r = 0; r < rows; r++) {
        memcpy(s->y + list[r] * m->H, s->out + r * m->H, (size_t)m->H * sizeof *s->y);
        for (int i = 0; i < RT_GIVEN; i++)
            if (s->kept[i])
                memcpy(s->kept[i] + list[r] * m->I, s->v[i] + r * m->I,
                       (size_t)m->I * sizeof *s->y);
    }
}

/* Phases 1 to 4. */
static void backward(struct pass *s, const int64_t *list, int64_t rows)
{
    const struct rt_mlp *m = &s->m;
    int64_t columns = m->parts * s->C;
    memset(s->acc, 0, (size_t)(rows * s->C) * sizeof *s->acc);
    rt_product(s->out, rows, m->H, s->second, 0, s->C, s->acc, s->work);
    for (int64_t i = 0; i < rows * s->C; i++) {
        double *du = s->dgu + i / s->C * columns + columns - s->C + i % s->C;
        double up = s->v[RT_UP][i], acc = s->acc[i];
        double through = rt_inside(up, s->up) + 0 * up; /* NaN stays */
        if (m->gated) {
            double gate = s->v[RT_GATE_PRE][i];
            du[-s->C] = acc * up * m->act->slope(gate) * (rt_inside(gate, s->gate) + 0 * gate);
            *du = acc * s->v[RT_GATE_ACT][i] * through;
        } else {
            *du = acc * m->act->slope(up) * through;
        }
    }
    if (s->rows_too) {
        memset(s->wide, 0, (size_t)(rows * m->H) * sizeof *s->wide);
        rt_product(s->dgu, rows, columns, s->first, 0, m->H, s->wide, s->work);
        for (int64_t r = 0; r < rows; r++)
            memcpy(s->dx + list[r] * m->H, s->wide + r * m->H, (size_t)m->H * sizeof *s->dx);
    }
    if (s->weights_too) {
        rt_outer(s->dgu, rows, columns, s->at_pairs, s->in, m->H, NULL, s->dgate_up, m->H);
        rt_outer(s->out, rows, m->H, NULL, s->v[RT_HIDDEN], s->C, s->at, s->ddown, m->I);
    }
}

/* Points to the matrices; of a part, copies its rows and columns. */
static void choose_matrices(struct pass *s)
{
    const struct rt_mlp *m = &s->m;
    s->first = s->at ? &s->first_part : s->gate_up;
    s->second = s->at ? &s->second_part : s->down;
    for (int64_t i = 0; s->at && i < m->parts * s->C; i++)
        rt_elements(s->gate_up, s->at_pairs[i] * m->H, m->H,
                    (double *)s->first_part.data + i * m->H);
    for (int64_t h = 0; s->at && h < m->H; h++)
        for (int64_t i = 0; i < s->C; i++)
            rt_elements(s->down, h * m->I + s->at[i], 1,
                        (double *)s->second_part.data + h * s->C + i);
}

static void sweep(struct pass *s, bool rows_too, bool weights_too)
{
    bool part = !rows_too;
    int64_t list[ROWS], rows = 0, H = s->m.H;
    s->rows_too = rows_too;
    s->weights_too = weights_too;
    s->C = part ? s->part.count : s->m.I;
    s->at = part ? s->part.at : NULL;
    s->at_pairs = part ? s->pairs : NULL;
    choose_matrices(s);
    for (int64_t r = 0; r < s->S; r++) {
        if (part || !s->wanted || s->wanted[r]) {
            rt_elements(s->x, r * H, H, s->in + rows * H);
            if (s->backward)
                rt_elements(s->dy, r * H, H, s->out + rows * H);
            list[rows++] = r;
        }
        if (rows == 0 || (rows < ROWS && r < s->S - 1))
            continue;
        intermediates(s, list, rows);
        (s->backward ? backward : forward)(s, list, rows);
        rows = 0;
    }
}

/* ---- inputs, outputs, memory ---- */

static moegen_rt_status read_inputs(struct pass *s, const moegen_rt_problem *p,
                                    moegen_rt_error *err)
{
    const struct rt_mlp *m = &s->m;
    int64_t any[] = {-1, m->H}, gate_up[] = {m->parts * m->I, m->H}, down[] = {m->H, m->I};
    moegen_rt_status status = rt_input(p, "hidden_states", true, 2, any, &s->x, err);
    if (status == MOEGEN_RT_OK)
        status = rt_input(p, "gate_up_weights", true, 2, gate_up, &s->gate_up, err);
    if (status == MOEGEN_RT_OK)
        status = rt_input(p, "down_proj_weight", true, 2, down, &s->down, err);
    if (status != MOEGEN_RT_OK)
        return status;
    s->S = s->x->rank ? s->x->shape[0] : 1;
    int64_t x[] = {s->S, m->H}, kept[] = {s->S, m->I};
    if (s->backward)
        status = rt_input(p, "output_hidden_states_grad", true, 2, x, &s->dy, err);
    for (int i = 0; i < RT_GIVEN && s->backward && status == MOEGEN_RT_OK; i++)
        if (rt_mlp_has(m, i))
            status = rt_input(p, rt_mlp_name[i], false, 2, kept, &s->given[i], err);
    const moegen_rt_tensor *gate = s->given[RT_GATE_PRE], *up_given = s->given[RT_UP];
    s->gate = rt_stored_limits(m->gate, 0, gate ? gate->dtype : MOEGEN_RT_F64);
    s->up = rt_stored_limits(m->up, m->offset, up_given ? up_given->dtype : MOEGEN_RT_F64);
    return status;
}

static moegen_rt_status make_outputs(struct pass *s, const moegen_rt_problem *p,
                                     moegen_rt_problem *out, moegen_rt_error *err)
{
    const struct rt_mlp *m = &s->m;
    int64_t x[] = {s->S, m->H}, kept[] = {s->S, m->I};
    int64_t gate_up[] = {m->parts * m->I, m->H}, down[] = {m->H, m->I};
    double rest = s->wanted ? (double)NAN : 0; /* rows that are not wanted stay so */
    moegen_rt_status status = MOEGEN_RT_OK;
    if (!s->backward) {
        status = rt_output(out, "output", 2, x, rest, &s->y, err);
        for (int i = 0; i < RT_GIVEN && m->keep && status == MOEGEN_RT_OK; i++)
            if (rt_mlp_has(m, i)) {
                status = rt_output(out, rt_mlp_name[i], 2, kept, rest, &s->kept[i], err);
                rt_rounded_once(out, rt_mlp_name[i]);
            }
        return status;
    }
    status = rt_output(out, "hidden_states_grad", 2, x, rest, &s->dx, err);
    if (status == MOEGEN_RT_OK)
        status = rt_gradient(p, out, "gate_up_weight_grad", 2, gate_up, &s->dgate_up, err);
    if (status == MOEGEN_RT_OK)
        status = rt_gradient(p, out, "down_proj_weight_grad", 2, down, &s->ddown, err);
    if (status == MOEGEN_RT_OK) {
        rt_blank_rest(&s->part, s->dgate_up, m->parts, m->H);
        rt_blank_rest(&s->part, s->ddown, m->H, 1);
    }
    return status;
}

static moegen_rt_status allocate(struct pass *s, moegen_rt_error *err)
{
    const struct rt_mlp *m = &s->m;
    int64_t columns = m->parts * m->I, wide = columns > m->H ? columns : m->H, C = s->part.count;
    struct {
        double **at;
        int64_t count;
    } const need[] = {
        {&s->in, ROWS * m->H},   {&s->out, ROWS * m->H},   {&s->wide, ROWS * m->H},
        {&s->v[0], ROWS * m->I}, {&s->v[1], ROWS * m->I},  {&s->v[2], ROWS * m->I},
        {&s->v[3], ROWS * m->I}, {&s->gu, ROWS * columns}, {&s->dgu, ROWS * columns},
        {&s->acc, ROWS * m->I},  {&s->work, 4 * wide},
    };
    bool ok = true;
    for (size_t i = 0; i < sizeof need / sizeof *need; i++)
        ok &= (*need[i].at = malloc((size_t)need[i].count * sizeof(double))) != NULL;
    if (s->part.at) {
        s->first_part = s->second_part = (moegen_rt_tensor){.dtype = MOEGEN_RT_F64};
        s->first_part.data = malloc((size_t)(m->parts * C * m->H) * sizeof(double));
        s->second_part.data = malloc((size_t)(m->H * C) * sizeof(double));
        s->pairs = malloc((size_t)(m->parts * C) * sizeof *s->pairs);
        ok &= s->first_part.data && s->second_part.data && s->pairs;
        for (int64_t i = 0; s->pairs && i < m->parts * C; i++)
            s->pairs[i] = i / C * m->I + s->part.at[i % C];
    }
    return ok ? MOEGEN_RT_OK : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
}

static moegen_rt_status compute(const moegen_rt_problem *p, const moegen_rt_want *want,
                                bool is_backward, moegen_rt_problem *out, moegen_rt_error *err)
{
    struct pass s = {.backward = is_backward};
    moegen_rt_status status = rt_mlp_read(p, &s.m, err);
    if (status == MOEGEN_RT_OK)
        status = read_inputs(&s, p, err);
    if (status == MOEGEN_RT_OK)
        status = rt_wanted(want, s.S, &s.wanted, err);
    if (status == MOEGEN_RT_OK)
        status = rt_part(want, s.S, s.m.I, &s.part, err);
    if (status == MOEGEN_RT_OK)
        status = make_outputs(&s, p, out, err);
    if (status == MOEGEN_RT_OK)
        status = allocate(&s, err);
    if (status == MOEGEN_RT_OK)
        sweep(&s, true, !s.wanted);
    if (status == MOEGEN_RT_OK && s.wanted && is_backward)
        sweep(&s, false, true);
    double *owned[] = {
        s.in,   s.out,  s.wide, s.gu,  s.dgu, s.acc, s.work, s.first_part.data, s.second_part.data,
        s.v[0], s.v[1], s.v[2], s.v[3]};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    free(s.pairs);
    free(s.part.at);
    free(s.wanted);
    return status;
}

moegen_rt_status rt_compute_mlp_forward(const moegen_rt_problem *p, const moegen_rt_want *want,
                                        moegen_rt_problem *out, moegen_rt_error *err)
{
    return compute(p, want, false, out, err);
}

moegen_rt_status rt_compute_mlp_backward(const moegen_rt_problem *p, const moegen_rt_want *want,
                                         moegen_rt_problem *out, moegen_rt_error *err)
{
    return compute(p, want, true, out, err);
}
