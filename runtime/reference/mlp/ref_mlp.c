/* SPDX-License-Identifier: Apache-2.0 */
/* ref_mlp.c - one dense gated MLP and its gradients in float64 (SEMANTICS 3). With quantised
 * operands, what is between two products is rounded to the dtype, as if it had been stored. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mlp.h"

enum { ROWS = 16, TILE = 512 }; /* at work; with blocks of tokens: whole tiles of these */
struct pass {
    struct rt_mlp m;
    bool backward;
    struct rt_operand operand[RT_OPERANDS];
    const moegen_rt_tensor *gate_up, *down, *given[RT_GIVEN];
    struct rt_limits gate, up; /* as gate_pre and up hold them */
    int64_t S;
    double *y, *kept[RT_GIVEN]; /* forward */
    double *dx, *ddown;         /* backward */
    struct rt_mlp_gradient dgate_up;
    struct rt_quantiser q;
    struct rt_online online[2]; /* forward, of X and hidden beside codes; both stay without K */
    moegen_rt_tensor matrix[3]; /* quantised: gate_up along H, along I, and down */
    uint8_t *wanted;
    struct rt_part part; /* of I, for the weight gradients */
    int64_t *pairs;      /* the part in [parts, I]; NULL: all */
    bool rows_too, weights_too;
    int64_t C;                              /* columns of I at work */
    const int64_t *at, *at_pairs;           /* where they are */
    const moegen_rt_tensor *first, *second; /* gate_up [parts * C, H] and down [H, C] at work */
    const moegen_rt_tensor *back;           /* gate_up on the way back */
    int64_t most;                           /* rows at a time */
    moegen_rt_tensor first_part, second_part;
    /* `most` rows */
    double *in, *out, *wide; /* [rows, H] */
    double *v[RT_GIVEN];     /* [rows, C] */
    double *gu, *dgu;        /* [rows, parts * C] */
    double *acc;             /* [rows, C] */
    double *left, *right;    /* operands, quantised */
    double *work, *room;     /* room: of all of these */
};

/* ---- one chunk of rows ---- */

/* Rows of operand `which` as they enter a product along H. */
static const double *tokens(const struct pass *s, int which, const double *x, int64_t rows)
{
    return s->operand[which].is_given ? x
                                      : rt_quantised(&s->q, x, rows, s->m.H, false, false, s->left);
}

/* x [rows, n], which was computed, as it enters a product along n. */
static const double *along(const struct pass *s, const double *x, int64_t rows, int64_t n)
{
    if (s->online[1].K) {
        memcpy(s->left, x, (size_t)(rows * n) * sizeof *x);
        for (int64_t r = 0; r < rows; r++)
            rt_online_row(&s->online[1], s->left + r * n, true);
        return s->left;
    }
    return rt_quantised(&s->q, x, rows, n, false, true, s->left);
}

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
        rt_product_t(tokens(s, RT_X, s->in, rows), rows, m->H, s->first, 0, columns, s->gu,
                     s->work);
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
        rt_blur(&s->q, s->v[RT_UP], s->backward ? n : 0, s->up);
        rt_store(&s->q, s->v[RT_UP], n);
    }
    clamp(s->v[RT_UP], n, s->up); /* with the offset in its limits */
    if (m->gated) {
        if (!take(s, RT_GATE_PRE, list, rows)) {
            rt_blur(&s->q, s->v[RT_GATE_PRE], s->backward ? n : 0, s->gate);
            rt_store(&s->q, s->v[RT_GATE_PRE], n);
        }
        clamp(s->v[RT_GATE_PRE], n, s->gate);
        for (int64_t i = 0; i < n; i++)
            s->v[RT_GATE_ACT][i] = rt_act(m->act, m->moved, s->v[RT_GATE_PRE][i]);
        rt_store(&s->q, s->v[RT_GATE_ACT], n);
        take(s, RT_GATE_ACT, list, rows);
    }
    for (int64_t i = 0; i < n; i++)
        s->v[RT_HIDDEN][i] = m->gated ? s->v[RT_GATE_ACT][i] * s->v[RT_UP][i]
                                      : rt_act(m->act, m->moved, s->v[RT_UP][i]);
    rt_store(&s->q, s->v[RT_HIDDEN], n);
    take(s, RT_HIDDEN, list, rows);
}

static void forward(struct pass *s, const int64_t *list, int64_t rows)
{
    const struct rt_mlp *m = &s->m;
    memset(s->out, 0, (size_t)(rows * m->H) * sizeof *s->out);
    rt_product_t(along(s, s->v[RT_HIDDEN], rows, m->I), rows, m->I, s->down, 0, m->H, s->out,
                 s->work);
    for (int64_t r = 0; r < rows; r++) {
        memcpy(s->y + list[r] * m->H, s->out + r * m->H, (size_t)m->H * sizeof *s->y);
        for (int i = 0; i < RT_GIVEN; i++)
            if (s->kept[i])
                memcpy(s->kept[i] + list[r] * m->I, s->v[i] + r * m->I,
                       (size_t)m->I * sizeof *s->y);
    }
}

/* dgu of acc, the gradient of hidden. */
static void through(struct pass *s, int64_t rows)
{
    const struct rt_mlp *m = &s->m;
    int64_t columns = m->parts * s->C;
    for (int64_t i = 0; i < rows * s->C; i++) {
        double *du = s->dgu + i / s->C * columns + columns - s->C + i % s->C;
        double up = s->v[RT_UP][i], acc = s->acc[i], gate = m->gated ? s->v[RT_GATE_PRE][i] : up;
        double slope = rt_stored(&s->q, rt_act_slope(m->act, m->moved, gate), 1);
        if (m->gated) {
            du[-s->C] = rt_through(acc * rt_stored(&s->q, up * slope, 0), gate, s->gate);
            *du = rt_through(acc * s->v[RT_GATE_ACT][i], up, s->up);
        } else {
            *du = rt_through(acc * slope, up, s->up);
        }
    }
    rt_store(&s->q, s->dgu, rows * columns);
}

/* Phases 1 to 4. */
static void backward(struct pass *s, const int64_t *list, int64_t rows)
{
    const struct rt_mlp *m = &s->m;
    int64_t columns = m->parts * s->C;
    memset(s->acc, 0, (size_t)(rows * s->C) * sizeof *s->acc);
    rt_product(tokens(s, RT_DY, s->out, rows), rows, m->H, s->second, 0, s->C, s->acc, s->work);
    through(s, rows);
    if (s->rows_too) {
        memset(s->wide, 0, (size_t)(rows * m->H) * sizeof *s->wide);
        rt_product(along(s, s->dgu, rows * m->parts, s->C), rows, columns, s->back, 0, m->H,
                   s->wide, s->work);
        for (int64_t r = 0; r < rows; r++)
            memcpy(s->dx + list[r] * m->H, s->wide + r * m->H, (size_t)m->H * sizeof *s->dx);
    }
    if (s->weights_too) {
        rt_outer(rt_quantised(&s->q, s->dgu, rows, columns, true, true, s->left), rows, columns,
                 s->at_pairs, rt_quantised(&s->q, s->in, rows, m->H, true, false, s->right), m->H,
                 NULL, s->dgate_up.rows, m->H);
        rt_outer(
            rt_quantised(&s->q, s->out, rows, m->H, true, false, s->left), rows, m->H, NULL,
            rt_quantised(&s->q, s->v[RT_HIDDEN], rows, s->C, true, !s->given[RT_HIDDEN], s->right),
            s->C, s->at, s->ddown, m->I);
    }
}

/* Points to the matrices; of a part, copies its rows and columns. */
static void choose_matrices(struct pass *s)
{
    const struct rt_mlp *m = &s->m;
    s->first = s->at ? &s->first_part : s->gate_up;
    s->second = s->at ? &s->second_part : s->down;
    s->back = s->q.on ? &s->matrix[1] : s->gate_up; /* the part has no rows */
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
    int64_t list[TILE], rows = 0, H = s->m.H;
    s->rows_too = rows_too;
    s->weights_too = weights_too;
    s->C = part ? s->part.count : s->m.I;
    s->at = part ? s->part.at : NULL;
    s->at_pairs = part ? s->pairs : NULL;
    choose_matrices(s);
    for (int64_t r = 0; r < s->S; r++) {
        if (part || !s->wanted || s->wanted[r]) {
            rt_elements(s->operand[RT_X].t, r * H, H, s->in + rows * H);
            rt_online_row(&s->online[0], s->in + rows * H, false);
            if (s->backward)
                rt_elements(s->operand[RT_DY].t, r * H, H, s->out + rows * H);
            list[rows++] = r;
        }
        if (rows == 0 || (rows < s->most && r < s->S - 1))
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
    moegen_rt_status status =
        rt_mlp_operands_read(p, &s->q, m, s->backward, s->operand, &s->S, err);
    if (status != MOEGEN_RT_OK)
        return status;
    int64_t kept[] = {s->S, m->I};
    s->gate_up = s->operand[RT_WGU].t;
    s->down = s->operand[RT_WD].t;
    for (int i = 0; i < RT_GIVEN && s->backward && status == MOEGEN_RT_OK; i++)
        if (rt_mlp_has(m, i))
            status = rt_input(p, rt_mlp_name[i], false, 2, kept, &s->given[i], err);
    const moegen_rt_tensor *gate = s->given[RT_GATE_PRE], *up_given = s->given[RT_UP];
    moegen_rt_dtype again = s->q.on ? s->q.stored : MOEGEN_RT_F64;
    s->gate = rt_stored_limits(m->gate, 0, gate ? gate->dtype : again);
    s->up = rt_stored_limits(m->up, m->offset, up_given ? up_given->dtype : again);
    return status;
}

static moegen_rt_status make_outputs(struct pass *s, const moegen_rt_problem *p,
                                     moegen_rt_problem *out, moegen_rt_error *err)
{
    const struct rt_mlp *m = &s->m;
    int64_t x[] = {s->S, m->H}, kept[] = {s->S, m->I}, down[] = {m->H, m->I};
    double rest = s->wanted ? (double)NAN : 0; /* rows that are not wanted stay so */
    moegen_rt_status status = MOEGEN_RT_OK;
    if (!s->backward) {
        status = rt_output(out, "output", 2, x, rest, &s->y, err);
        for (int i = 0; i < RT_GIVEN && m->keep && status == MOEGEN_RT_OK; i++)
            if (rt_mlp_has(m, i)) {
                status = rt_output(out, rt_mlp_name[i], 2, kept, rest, &s->kept[i], err);
                if (!s->q.on)
                    rt_rounded_once(out, rt_mlp_name[i]);
            }
        return status;
    }
    status = rt_output(out, "hidden_states_grad", 2, x, rest, &s->dx, err);
    if (status != MOEGEN_RT_OK || m->frozen)
        return status;
    status = rt_mlp_gradient(p, out, m, &s->dgate_up, err);
    if (status == MOEGEN_RT_OK)
        status = rt_gradient(p, out, "down_proj_weight_grad", 2, down, &s->ddown, err);
    if (status == MOEGEN_RT_OK) {
        rt_blank_rest(&s->part, s->dgate_up.rows, m->parts, m->H);
        rt_blank_rest(&s->part, s->ddown, m->H, 1);
    }
    return status;
}

/* Weights, quantised: they take the places of the inputs. */
static moegen_rt_status quantise_weights(struct pass *s, moegen_rt_error *err)
{
    if (!s->q.on)
        return MOEGEN_RT_OK;
    s->gate_up = &s->matrix[0];
    s->down = &s->matrix[2];
    return rt_mlp_quantise(&s->q, &s->m, s->backward, s->operand, s->matrix, err);
}

static moegen_rt_status allocate(struct pass *s, moegen_rt_error *err)
{
    const struct rt_mlp *m = &s->m;
    int64_t columns = m->parts * m->I, wide = columns > m->H ? columns : m->H, C = s->part.count;
    int64_t rows = s->most, quantised = s->q.on || s->online[1].K ? rows * wide : 1;
    struct {
        double **at;
        int64_t count;
    } const need[] = {
        {&s->in, rows * m->H},   {&s->out, rows * m->H},   {&s->wide, rows * m->H},
        {&s->v[0], rows * m->I}, {&s->v[1], rows * m->I},  {&s->v[2], rows * m->I},
        {&s->v[3], rows * m->I}, {&s->gu, rows * columns}, {&s->dgu, rows * columns},
        {&s->acc, rows * m->I},  {&s->left, quantised},    {&s->right, quantised},
        {&s->work, 4 * wide},
    };
    int64_t all = 0, at = 0;
    for (size_t i = 0; i < sizeof need / sizeof *need; i++)
        all += need[i].count;
    bool ok = (s->room = malloc((size_t)all * sizeof *s->room)) != NULL;
    for (size_t i = 0; ok && i < sizeof need / sizeof *need; at += need[i++].count)
        *need[i].at = s->room + at;
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

static void release(struct pass *s)
{
    free(s->room);
    free(s->first_part.data);
    free(s->second_part.data);
    for (int i = 0; i < 3; i++)
        free(s->matrix[i].data);
    for (int i = 0; i < RT_OPERANDS; i++)
        rt_operand_free(&s->operand[i]);
    rt_mlp_gradient_free(&s->dgate_up);
    rt_online_free(&s->online[0]);
    rt_online_free(&s->online[1]);
    free(s->pairs);
    free(s->part.at);
    free(s->wanted);
}

/* other: numbers between two that they may be rounded to are rounded to the other side. */
static moegen_rt_status compute_once(const moegen_rt_problem *p, const moegen_rt_want *want,
                                     bool is_backward, bool other, moegen_rt_problem *out,
                                     bool *quantised, moegen_rt_error *err)
{
    struct pass s = {.backward = is_backward};
    moegen_rt_status status = rt_mlp_read(p, &s.m, err);
    if (status == MOEGEN_RT_OK)
        status = rt_quantiser_read(p, &s.q, err);
    if (status == MOEGEN_RT_OK && !is_backward)
        status = rt_mlp_online(p, &s.m, s.online, err);
    *quantised = s.q.on || s.online[1].K;
    s.q.other = s.online[1].other = other;
    s.most = s.q.on ? TILE : ROWS;
    if (status == MOEGEN_RT_OK)
        status = read_inputs(&s, p, err);
    if (status == MOEGEN_RT_OK)
        status = rt_wanted(want, s.S, &s.wanted, err);
    if (status == MOEGEN_RT_OK)
        status = rt_part(want, s.S, s.m.I, &s.part, err);
    if (status == MOEGEN_RT_OK)
        status = make_outputs(&s, p, out, err);
    if (status == MOEGEN_RT_OK)
        status = quantise_weights(&s, err);
    if (status == MOEGEN_RT_OK)
        status = allocate(&s, err);
    if (status == MOEGEN_RT_OK)
        sweep(&s, true, !s.wanted && !s.m.frozen);
    if (status == MOEGEN_RT_OK && s.wanted && is_backward && !s.m.frozen)
        sweep(&s, false, true);
    rt_mlp_gradient_give(&s.m, &s.dgate_up);
    release(&s);
    return status;
}

static moegen_rt_status compute(const moegen_rt_problem *p, const moegen_rt_want *want,
                                bool is_backward, moegen_rt_problem *out, moegen_rt_error *err)
{
    bool quantised;
    moegen_rt_status status = compute_once(p, want, is_backward, false, out, &quantised, err);
    if (status != MOEGEN_RT_OK || !quantised)
        return status;
    moegen_rt_problem *moved = moegen_rt_problem_create();
    status = moved ? compute_once(p, want, is_backward, true, moved, &quantised, err)
                   : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        rt_set_noise(out, moved);
    moegen_rt_problem_destroy(moved);
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
