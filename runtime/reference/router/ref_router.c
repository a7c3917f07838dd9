/* SPDX-License-Identifier: Apache-2.0 */
/* ref_router.c - the router over a batch in float64, forward and backward (SEMANTICS 5). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "router.h"

enum {
    ROWS = 16,
    SCALED = 32, /* of the loss, so that f16 holds its gradients */
};

struct pass {
    struct rt_router r;
    bool own_choice; /* is final, however near to another */
    const moegen_rt_tensor *x, *weight, *bias, *correction, *logits, *index, *dy, *norm, *scale;
    int64_t T;
    struct rt_router_token t;
    int64_t *chosen; /* [k] */
    uint8_t *unsure; /* [k] */
    double *count;   /* [E] tokens that chose each expert */
    double *rows;    /* [ROWS, H] */
    double *l;       /* [ROWS, E] */
    double *dx;      /* [ROWS, H] */
    double *one;     /* [E] */
    double *scales;  /* [E] what multiplies the weights */
    double *factor;  /* [H] what multiplies normalised hidden states */
    double *size;    /* [ROWS] what hidden states were divided by */
    double *work;
};

static moegen_rt_status read_inputs(struct pass *s, const moegen_rt_problem *p,
                                    moegen_rt_error *err)
{
    const struct rt_router *r = &s->r;
    int64_t x[] = {-1, r->H}, w[] = {r->H, r->E};
    moegen_rt_status status = rt_input(p, "hidden_states", true, 2, x, &s->x, err);
    if (status == MOEGEN_RT_OK)
        status = rt_input(p, "router_weight", true, 2, w, &s->weight, err);
    if (status != MOEGEN_RT_OK)
        return status;
    s->T = s->x->rank ? s->x->shape[0] : 1;
    int64_t all[] = {s->T, r->E}, few[] = {s->T, r->k};
    if (!r->backward && r->bias)
        status = rt_input(p, "router_bias", true, 1, &r->E, &s->bias, err);
    int64_t corrected = r->E - r->always;
    if (status == MOEGEN_RT_OK && !r->backward && r->correction)
        status = rt_input(p, "correction_bias", true, 1, &corrected, &s->correction, err);
    if (status == MOEGEN_RT_OK && r->scales)
        status = rt_input(p, "router_scale", true, 1, &r->scales, &s->scale, err);
    if (status == MOEGEN_RT_OK && r->norm)
        status = rt_input(p, "router_norm_weight", true, 1, &r->H, &s->norm, err);
    for (int64_t e = 0; status == MOEGEN_RT_OK && e < r->E; e++) {
        s->scales[e] = 1;
        if (s->scale)
            rt_elements(s->scale, r->scales == 1 ? 0 : e, 1, &s->scales[e]);
    }
    if (status == MOEGEN_RT_OK && s->norm)
        rt_elements(s->norm, 0, r->H, s->factor);
    if (status == MOEGEN_RT_OK && r->backward)
        status = rt_input(p, "logits", true, 2, all, &s->logits, err);
    if (status == MOEGEN_RT_OK && r->backward)
        status = rt_input(p, "expert_index", true, 2, few, &s->index, err);
    if (status == MOEGEN_RT_OK && r->backward)
        status = rt_input(p, "expert_affinities_grad", true, 2, all, &s->dy, err);
    for (int64_t i = 0; status == MOEGEN_RT_OK && r->backward && i < s->T * r->k; i++) {
        int64_t e = rt_index_at(s->index, i);
        if (e < 0 || e >= r->E)
            return rt_fail(
                err, MOEGEN_RT_BAD_DATA, "expert_index[%lld][%lld] is %lld, not in 0..%lld",
                (long long)(i / r->k), (long long)(i % r->k), (long long)e, (long long)r->E - 1);
        for (int64_t j = i / r->k * r->k; j < i; j++)
            if (rt_index_at(s->index, j) == e)
                return rt_fail(err, MOEGEN_RT_BAD_DATA,
                               "expert_index[%lld] names expert %lld more than once",
                               (long long)(i / r->k), (long long)e);
        s->count[e]++;
    }
    return status;
}

static moegen_rt_status allocate(struct pass *s, moegen_rt_error *err)
{
    int64_t H = s->r.H, E = s->r.E, k = s->r.k, wide = H > E ? H : E;
    struct {
        double **at;
        int64_t count;
    } const need[] = {
        {&s->t.z, E},         {&s->t.group, E},  {&s->t.s, k},         {&s->t.p, E},
        {&s->t.rank, E},      {&s->t.l, k},      {&s->t.q, k},         {&s->t.dq, k},
        {&s->t.dl, k},        {&s->t.dp, E},     {&s->count, E},       {&s->one, E},
        {&s->work, 4 * wide}, {&s->l, ROWS * E}, {&s->rows, ROWS * H}, {&s->dx, ROWS * H},
        {&s->scales, E},      {&s->factor, H},   {&s->size, ROWS},
    };
    bool ok = true;
    for (size_t i = 0; i < sizeof need / sizeof *need; i++)
        ok &= (*need[i].at = calloc((size_t)need[i].count, sizeof(double))) != NULL;
    ok &= (s->chosen = malloc((size_t)k * sizeof *s->chosen)) != NULL;
    ok &= (s->unsure = malloc((size_t)k)) != NULL;
    return ok ? MOEGEN_RT_OK : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
}

static void release(struct pass *s)
{
    double *owned[] = {s->t.z,  s->t.group, s->t.s,    s->t.p,    s->t.rank, s->t.l,  s->t.q,
                       s->t.dq, s->t.dl,    s->t.dp,   s->count,  s->one,    s->work, s->l,
                       s->rows, s->dx,      s->scales, s->factor, s->size};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    free(s->chosen);
    free(s->unsure);
}

struct outputs {
    double *logits, *index, *affinities, *weights, *balance, *z;
};

static moegen_rt_status make_outputs(const struct pass *s, struct outputs *o,
                                     moegen_rt_problem *out, moegen_rt_error *err)
{
    int64_t all[] = {s->T, s->r.E}, few[] = {s->T, s->r.k}, one[] = {1};
    moegen_rt_status status = rt_output(out, "logits", 2, all, 0, &o->logits, err);
    if (status == MOEGEN_RT_OK)
        status = rt_output(out, "expert_index", 2, few, 0, &o->index, err);
    if (status == MOEGEN_RT_OK)
        status = rt_output(out, "expert_affinities", 2, all, 0, &o->affinities, err);
    if (status == MOEGEN_RT_OK)
        status = rt_output(out, "topk_weights", 2, few, 0, &o->weights, err);
    rt_rounded_once(out, "expert_affinities");
    rt_rounded_once(out, "topk_weights");
    if (status == MOEGEN_RT_OK && s->r.balance)
        status = rt_output(out, "load_balance_loss", 1, one, 0, &o->balance, err);
    if (status == MOEGEN_RT_OK && s->r.z)
        status = rt_output(out, "z_loss", 1, one, 0, &o->z, err);
    return status;
}

/* s->rows: what the weights multiply, of some tokens; s->size: by what they were divided. */
static void read_rows(struct pass *s, int64_t first, int64_t rows)
{
    int64_t H = s->r.H;
    rt_elements(s->x, first * H, rows * H, s->rows);
    for (int64_t i = 0; s->norm && i < rows; i++) {
        double *x = s->rows + i * H;
        s->size[i] = sqrt(rt_dot(x, x, H) / (double)H + s->r.norm_eps);
        for (int64_t h = 0; h < H; h++)
            x[h] *= s->factor[h] / s->size[i];
    }
}

/* The gradient of a token's hidden states, from that of what the weights multiply; and what it
 * adds to that of the norm's factors. */
static void norm_back(struct pass *s, const double *x, double size, double *dx, double *dfactor)
{
    int64_t H = s->r.H;
    double mean = 0; /* of hat times its gradient, where hat = x / size */
    for (int64_t h = 0; h < H; h++) {
        dfactor[h] += dx[h] * x[h] / size;
        dx[h] *= s->factor[h];
        mean += dx[h] * x[h] / size / (double)H;
    }
    for (int64_t h = 0; h < H; h++)
        dx[h] = (dx[h] - mean * x[h] / size) / size;
}

static void make_logits(struct pass *s, double *logits)
{
    const struct rt_router *r = &s->r;
    if (s->bias)
        rt_elements(s->bias, 0, r->E, s->one);
    for (int64_t first = 0; first < s->T; first += ROWS) {
        int64_t rows = s->T - first < ROWS ? s->T - first : ROWS;
        double *l = logits + first * r->E;
        read_rows(s, first, rows);
        rt_product(s->rows, rows, r->H, s->weight, 0, r->E, l, s->work);
        for (int64_t i = 0; s->bias && i < rows * r->E; i++)
            l[i] += s->one[i % r->E];
    }
}

/* Chooses and weighs for token i; NaN where f32 rounding decides what is chosen. Does it? */
static bool route(struct pass *s, struct outputs *o, int64_t i)
{
    const struct rt_router *r = &s->r;
    const double *logits = s->t.z;
    rt_router_cap(r, o->logits + i * r->E, &s->t);
    rt_router_rank(r, logits, s->correction ? s->one : NULL, &s->t);
    bool open = rt_router_choose(r, &s->t, s->chosen, s->unsure) && !s->own_choice;
    rt_router_weigh(r, logits, s->chosen, &s->t);
    for (int64_t e = 0; open && e < r->E; e++)
        o->affinities[i * r->E + e] = (double)NAN;
    for (int64_t j = 0; j < r->k; j++) {
        int64_t e = s->chosen[j];
        s->count[e]++;
        bool unsure = s->unsure[j] && !s->own_choice;
        o->index[i * r->k + j] = unsure ? (double)NAN : (double)e;
        o->weights[i * r->k + j] =
            open || unsure ? (double)NAN : r->scale * s->scales[e] * s->t.q[j];
        if (!open)
            o->affinities[i * r->E + e] = r->scale * s->scales[e] * s->t.q[j];
    }
    return open;
}

static moegen_rt_status forward(struct pass *s, moegen_rt_problem *out, moegen_rt_error *err)
{
    struct outputs o = {0};
    moegen_rt_status status = make_outputs(s, &o, out, err);
    if (status != MOEGEN_RT_OK)
        return status;
    make_logits(s, o.logits);
    if (s->correction)
        rt_elements(s->correction, 0, s->r.E - s->r.always, s->one);
    bool open = false;
    for (int64_t i = 0; i < s->T; i++)
        open |= route(s, &o, i);
    double balance = 0, z = 0;
    for (int64_t i = 0; i < s->T; i++) {
        rt_router_cap(&s->r, o.logits + i * s->r.E, &s->t);
        rt_router_losses(&s->r, s->T, s->t.z, s->count, &s->t, &balance, &z);
    }
    if (o.balance)
        *o.balance = open ? (double)NAN : balance;
    if (o.z)
        *o.z = z;
    return MOEGEN_RT_OK;
}

/* The logits' gradient of token i; dscale: of what multiplies the weights, NULL: nothing does. */
static void logits_back(struct pass *s, int64_t i, double *dlogits, double *dscale)
{
    const struct rt_router *r = &s->r;
    rt_elements(s->logits, i * r->E, r->E, s->one);
    memset(dlogits, 0, (size_t)r->E * sizeof *dlogits);
    for (int64_t j = 0; j < r->k; j++) {
        s->chosen[j] = rt_index_at(s->index, i * r->k + j);
        rt_elements(s->dy, i * r->E + s->chosen[j], 1, &s->t.dq[j]);
    }
    rt_router_cap(r, s->one, &s->t);
    rt_router_weigh(r, s->t.z, s->chosen, &s->t);
    for (int64_t j = 0; dscale && j < r->k; j++) {
        int64_t e = s->chosen[j];
        dscale[r->scales == 1 ? 0 : e] += s->t.dq[j] * r->scale * s->t.q[j];
        s->t.dq[j] *= s->scales[e];
    }
    rt_router_weigh_back(r, s->t.z, s->chosen, &s->t, dlogits);
    rt_router_losses_back(r, s->T, s->t.z, s->count, &s->t, dlogits);
    rt_router_cap_back(r, s->one, dlogits);
}

static moegen_rt_status backward(struct pass *s, const moegen_rt_problem *p, moegen_rt_problem *out,
                                 moegen_rt_error *err)
{
    const struct rt_router *r = &s->r;
    int64_t x[] = {s->T, r->H}, w[] = {r->H, r->E};
    double *dx, *dw, *db = NULL, *dnorm = NULL, *dscale = NULL;
    moegen_rt_status status = rt_output(out, "hidden_states_grad", 2, x, 0, &dx, err);
    if (status == MOEGEN_RT_OK)
        status = rt_gradient(p, out, "router_weight_grad", 2, w, &dw, err);
    if (status == MOEGEN_RT_OK && r->bias)
        status = rt_gradient(p, out, "router_bias_grad", 1, &r->E, &db, err);
    if (status == MOEGEN_RT_OK && r->norm)
        status = rt_gradient(p, out, "router_norm_weight_grad", 1, &r->H, &dnorm, err);
    if (status == MOEGEN_RT_OK && r->scales)
        status = rt_gradient(p, out, "router_scale_grad", 1, &r->scales, &dscale, err);
    for (int64_t first = 0; status == MOEGEN_RT_OK && first < s->T; first += ROWS) {
        int64_t rows = s->T - first < ROWS ? s->T - first : ROWS;
        for (int64_t i = 0; i < rows; i++)
            logits_back(s, first + i, s->l + i * r->E, dscale);
        read_rows(s, first, rows);
        rt_product_t(s->l, rows, r->E, s->weight, 0, r->H, dx + first * r->H, s->work);
        rt_outer(s->rows, rows, r->H, NULL, s->l, r->E, NULL, dw, r->E);
        for (int64_t i = 0; db && i < rows * r->E; i++)
            db[i % r->E] += s->l[i];
        for (int64_t i = 0; dnorm && i < rows; i++) {
            rt_elements(s->x, (first + i) * r->H, r->H, s->rows);
            norm_back(s, s->rows, s->size[i], dx + (first + i) * r->H, dnorm);
        }
    }
    return status;
}

/* ---- filling ---- */

/* What the forward pass hands to the backward pass; where rounding could change a choice, the one
 * that float64 makes. */
static moegen_rt_status fill_backward(moegen_rt_problem *p, const struct rt_router *r,
                                      moegen_rt_dtype io, uint64_t seed, moegen_rt_error *err)
{
    moegen_rt_dtype affinity;
    moegen_rt_tensor *logits, *index;
    moegen_rt_problem *out = moegen_rt_problem_create();
    struct pass s = {.r = *r};
    struct outputs o = {0};
    s.r.backward = false;
    moegen_rt_status status = rt_dtype(p, "affinity_dtype", io, &affinity, err);
    if (status == MOEGEN_RT_OK)
        status = out ? allocate(&s, err) : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        status = read_inputs(&s, p, err);
    if (status == MOEGEN_RT_OK)
        status = make_outputs(&s, &o, out, err);
    int64_t all[] = {s.T, r->E}, few[] = {s.T, r->k};
    if (status == MOEGEN_RT_OK)
        status = moegen_rt_problem_add(p, "logits", io == MOEGEN_RT_F64 ? io : MOEGEN_RT_F32, 2,
                                       all, &logits, err);
    if (status == MOEGEN_RT_OK)
        status = moegen_rt_problem_add(p, "expert_index", MOEGEN_RT_I32, 2, few, &index, err);
    if (status == MOEGEN_RT_OK)
        status = rt_add_normal(p, "expert_affinities_grad", affinity, 2, all, seed, SCALED, err);
    if (status == MOEGEN_RT_OK) {
        make_logits(&s, o.logits);
        moegen_rt_encode(logits->dtype, o.logits, (size_t)(s.T * r->E), logits->data);
        if (s.correction)
            rt_elements(s.correction, 0, r->E - r->always, s.one);
        for (int64_t i = 0; i < s.T; i++) {
            route(&s, &o, i);
            for (int64_t j = 0; j < r->k; j++)
                ((int32_t *)index->data)[i * r->k + j] = (int32_t)s.chosen[j];
        }
    }
    release(&s);
    moegen_rt_problem_destroy(out);
    return status;
}

moegen_rt_status rt_fill_router(moegen_rt_problem *p, const moegen_rt_fill *how,
                                moegen_rt_error *err)
{
    struct rt_router r;
    moegen_rt_dtype io, bias;
    moegen_rt_status status = rt_router_read(p, &r, err);
    if (status == MOEGEN_RT_OK)
        status = rt_dtype(p, "dtype", MOEGEN_RT_F32, &io, err);
    if (status == MOEGEN_RT_OK)
        status = rt_dtype(p, "bias_dtype", io, &bias, err);
    if (status != MOEGEN_RT_OK)
        return status;
    double size = rt_router_size(&r);
    int64_t x[] = {moegen_rt_problem_int(p, "T", how->T), r.H}, w[] = {r.H, r.E};
    if (x[0] < 1 || x[0] >= INT32_MAX)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "T: %lld is not in 1..%d", (long long)x[0],
                       INT32_MAX - 1);
    status = rt_add_normal(p, "hidden_states", io, 2, x, how->seed, 1, err);
    if (status == MOEGEN_RT_OK)
        status =
            rt_add_normal(p, "router_weight", io, 2, w, how->seed, size / sqrt((double)r.H), err);
    if (status == MOEGEN_RT_OK && how->routing && strcmp(how->routing, "uniform") != 0)
        status = rt_router_push(p, &r, how, err);
    if (status == MOEGEN_RT_OK && r.bias)
        status = rt_add_normal(p, "router_bias", bias, 1, &r.E, how->seed, 0.5 * size, err);
    int64_t corrected = r.E - r.always;
    if (status == MOEGEN_RT_OK && r.correction)
        status = rt_add_normal(p, "correction_bias", bias, 1, &corrected, how->seed, 0.5, err);
    if (status == MOEGEN_RT_OK && r.norm)
        status = rt_add_normal(p, "router_norm_weight", bias, 1, &r.H, how->seed, 1, err);
    if (status == MOEGEN_RT_OK && r.scales)
        status = rt_add_normal(p, "router_scale", bias, 1, &r.scales, how->seed, 1, err);
    if (status == MOEGEN_RT_OK && r.backward)
        status = fill_backward(p, &r, io, how->seed, err);
    if (status == MOEGEN_RT_OK && r.backward)
        status = rt_fill_gradient(p, "router_weight_grad", 2, w, how->seed, err);
    if (status == MOEGEN_RT_OK && r.backward && r.bias)
        status = rt_fill_gradient(p, "router_bias_grad", 1, &r.E, how->seed, err);
    if (status == MOEGEN_RT_OK && r.backward && r.norm)
        status = rt_fill_gradient(p, "router_norm_weight_grad", 1, &r.H, how->seed, err);
    if (status == MOEGEN_RT_OK && r.backward && r.scales)
        status = rt_fill_gradient(p, "router_scale_grad", 1, &r.scales, how->seed, err);
    return status;
}

moegen_rt_status rt_compute_router(const moegen_rt_problem *p, const moegen_rt_want *want,
                                   moegen_rt_problem *out, moegen_rt_error *err)
{
    struct pass s = {.own_choice = want && want->own_choice}; /* always all tokens */
    moegen_rt_status status = rt_router_read(p, &s.r, err);
    if (status == MOEGEN_RT_OK)
        status = allocate(&s, err);
    if (status == MOEGEN_RT_OK)
        status = read_inputs(&s, p, err);
    if (status == MOEGEN_RT_OK)
        status = s.r.backward ? backward(&s, p, out, err) : forward(&s, out, err);
    release(&s);
    return status;
}
