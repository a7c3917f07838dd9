/* SPDX-License-Identifier: Apache-2.0 */
/* ref_grouped_gemm.c - one matrix per expert over rows sorted by expert, in float64 (SEMANTICS 4):
 * forward Y, and the gradients dX and dW. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "weights.h"

enum { ROWS = 16 };
enum op { FORWARD, DX, DW };

struct grouped {
    int64_t N, K, E, k;
    enum op op;
    char permute; /* 'n'one, 'x' or 'y' */
    bool multiply, reduce;
};

static moegen_rt_status read_spec(const moegen_rt_problem *p, struct grouped *g,
                                  moegen_rt_error *err)
{
    *g = (struct grouped){0};
    moegen_rt_status status = rt_size(p, "N", 1 << 24, &g->N, err);
    if (status == MOEGEN_RT_OK)
        status = rt_size(p, "K", 1 << 24, &g->K, err);
    if (status == MOEGEN_RT_OK)
        status = rt_size(p, "E", 1 << 20, &g->E, err);
    if (status != MOEGEN_RT_OK)
        return status;
    g->k = moegen_rt_problem_int(p, "top_k", 1);
    if (g->k < 1 || g->k > g->E)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "top_k: %lld is not in 1..%lld (E)",
                       (long long)g->k, (long long)g->E);
    static const char *const ops[] = {"forward", "dX", "dW"};
    const char *op = moegen_rt_problem_text(p, "op", "forward");
    while (g->op < 3 && strcmp(ops[g->op], op) != 0)
        g->op++;
    if (g->op == 3)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "op: '%s' is not one of forward, dX, dW", op);
    const char *permute = moegen_rt_problem_text(p, "permute", "none");
    if (strcmp(permute, "none") != 0 && strcmp(permute, "x") != 0 && strcmp(permute, "y") != 0)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "permute: '%s' is not one of none, x, y",
                       permute);
    g->permute = permute[0];
    g->multiply = strcmp(moegen_rt_problem_text(p, "fuse_mul", "none"), "post") == 0;
    if (g->multiply && (g->op != FORWARD || g->permute != 'y'))
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT,
                       "fuse_mul: post needs op: forward and permute: y");
    g->reduce = g->op == DX && g->permute == 'x' && moegen_rt_problem_bool(p, "reduce_topk", 1);
    return MOEGEN_RT_OK;
}

/* Rows of X and dX: a row per token where they are gathered (dX: once its rows are added). */
static int64_t x_rows(const struct grouped *g, int64_t T)
{
    return g->permute == 'x' && (g->op != DX || g->reduce) ? T : T * g->k;
}

/* ---- filling ---- */

static void set_index(moegen_rt_tensor *t, int64_t i, int64_t value)
{
    if (t->dtype == MOEGEN_RT_I64)
        ((int64_t *)t->data)[i] = value;
    else
        ((int32_t *)t->data)[i] = (int32_t)value;
}

/* m_sizes, and the flat indices t * k + j in the order of their experts. */
static moegen_rt_status fill_order(moegen_rt_problem *p, const struct grouped *g, int64_t T,
                                   const int32_t *chosen, moegen_rt_error *err)
{
    int64_t R = T * g->k, next = 0;
    bool wide = strcmp(moegen_rt_problem_text(p, "index_dtype", "i32"), "i64") == 0;
    moegen_rt_dtype index = wide ? MOEGEN_RT_I64 : MOEGEN_RT_I32;
    moegen_rt_tensor *sizes, *gather;
    moegen_rt_status status = moegen_rt_problem_add(p, "m_sizes", index, 1, &g->E, &sizes, err);
    if (status == MOEGEN_RT_OK)
        status = moegen_rt_problem_add(p, "gather_indices", index, 1, &R, &gather, err);
    if (status != MOEGEN_RT_OK)
        return status;
    for (int64_t e = 0; e < g->E; e++) {
        int64_t first = next;
        for (int64_t i = 0; i < R; i++)
            if (chosen[i] == e)
                set_index(gather, next++, i);
        set_index(sizes, e, next - first);
    }
    return MOEGEN_RT_OK;
}

static struct rt_matrices matrices_of(const struct grouped *g)
{
    return (struct rt_matrices){
        .names = {"W", "W_scale", "W_scale_2"}, .E = g->E, .K = g->K, .C = g->N, .parts = 1};
}

/* l->run is 0 if W lies as its shape says. */
static moegen_rt_status lay_w(const moegen_rt_problem *p, const struct grouped *g,
                              struct rt_packed *l, moegen_rt_error *err)
{
    return rt_packed_of(p, moegen_rt_problem_text(p, "dtype", "f32"), g->K, g->N, 1, false, l, err);
}

static moegen_rt_status fill_w(moegen_rt_problem *p, const struct grouped *g, moegen_rt_dtype io,
                               uint64_t seed, double scale, moegen_rt_error *err)
{
    const int64_t shape[] = {g->E, g->N, g->K};
    const struct rt_matrices matrices = matrices_of(g);
    struct rt_packed l;
    if (rt_matrices_coded(p))
        return rt_matrices_fill(p, &matrices, io, seed, scale, err);
    moegen_rt_dtype dtype;
    moegen_rt_status status = rt_dtype(p, "weights.dtype", io, &dtype, err);
    if (status == MOEGEN_RT_OK)
        status = lay_w(p, g, &l, err);
    if (status != MOEGEN_RT_OK)
        return status;
    return l.run ? rt_add_packed(p, "W", dtype, &l, g->E, seed, scale, err)
                 : rt_add_normal(p, "W", dtype, 3, shape, seed, scale, err);
}

static moegen_rt_status fill_matrices(moegen_rt_problem *p, const struct grouped *g, int64_t T,
                                      uint64_t seed, moegen_rt_error *err)
{
    moegen_rt_dtype io, affinity;
    moegen_rt_status status = rt_dtype(p, "dtype", MOEGEN_RT_F32, &io, err);
    if (status == MOEGEN_RT_OK)
        status = rt_dtype(p, "affinity_dtype", io, &affinity, err);
    int64_t R = T * g->k, x[] = {x_rows(g, T), g->K}, w[] = {g->E, g->N, g->K}, dy[] = {R, g->N};
    double shrink = 1 / sqrt((double)(g->op == DX ? g->N : g->K));
    if (status == MOEGEN_RT_OK && g->op != DX)
        status = rt_add_normal(p, "X", io, 2, x, seed, 1, err);
    if (status == MOEGEN_RT_OK && g->op != FORWARD)
        status = rt_add_normal(p, "dY", io, 2, dy, seed, 1, err);
    if (status == MOEGEN_RT_OK && g->op != DW)
        status = fill_w(p, g, io, seed, shrink, err);
    if (status == MOEGEN_RT_OK && g->multiply)
        status = rt_add_normal(p, "topk_weights", affinity, 1, &R, seed, 1, err);
    if (status == MOEGEN_RT_OK && g->op == DW)
        status = rt_fill_gradient(p, "dW", 3, w, seed, err);
    return status;
}

moegen_rt_status rt_fill_grouped_gemm(moegen_rt_problem *p, const moegen_rt_fill *how,
                                      moegen_rt_error *err)
{
    struct grouped g;
    moegen_rt_status status = read_spec(p, &g, err);
    if (status != MOEGEN_RT_OK)
        return status;
    int64_t T = moegen_rt_problem_int(p, "T", how->T), M = moegen_rt_problem_int(p, "M", T * g.k);
    if (M % g.k != 0)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "M: %lld rows are no multiple of top_k, %lld",
                       (long long)M, (long long)g.k);
    T = M / g.k;
    if (T < 1 || M >= INT32_MAX)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "%lld rows are not in 1..%d", (long long)M,
                       INT32_MAX - 1);
    int32_t *chosen = malloc((size_t)M * sizeof *chosen);
    if (!chosen)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    status = rt_route(how->routing, how->seed, T, g.E, g.k, chosen, err);
    if (status == MOEGEN_RT_OK)
        status = fill_order(p, &g, T, chosen, err);
    if (status == MOEGEN_RT_OK)
        status = fill_matrices(p, &g, T, how->seed, err);
    free(chosen);
    return status;
}

/* ---- computing ---- */

struct pass {
    struct grouped g;
    const moegen_rt_tensor *X, *W, *dY, *sizes, *gather, *weights;
    moegen_rt_tensor unpacked;
    struct rt_online online; /* forward, of rows of X */
    int64_t R, T;
    double *to; /* Y [R, N], dX [R or T, K] or dW [E, N, K] */
    uint8_t *wanted;
    struct rt_part part; /* of N, for dW */
    double *in;          /* [ROWS, N or K] */
    double *out;         /* [ROWS, N or K] */
    double *work;
};

static int64_t flat(const struct pass *s, int64_t r)
{
    return s->gather ? rt_index_at(s->gather, r) : r;
}

/* The row of a permuted matrix that sorted row r stands for. */
static int64_t row_of_x(const struct pass *s, int64_t r)
{
    if (s->g.permute != 'x')
        return r;
    return s->g.op == DX && !s->g.reduce ? flat(s, r) : flat(s, r) / s->g.k;
}

static int64_t row_of_y(const struct pass *s, int64_t r)
{
    return s->g.permute == 'y' ? flat(s, r) : r;
}

/* forward, dX: `rows` sorted rows (their numbers in `list`) of expert e. */
static void map_rows(struct pass *s, int64_t e, const int64_t *list, int64_t rows)
{
    const struct grouped *g = &s->g;
    bool forward = g->op == FORWARD;
    int64_t from = forward ? g->K : g->N, to = forward ? g->N : g->K;
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = forward ? row_of_x(s, list[i]) : row_of_y(s, list[i]);
        rt_elements(forward ? s->X : s->dY, row * from, from, s->in + i * from);
        rt_online_row(&s->online, s->in + i * from, false);
    }
    memset(s->out, 0, (size_t)(rows * to) * sizeof *s->out);
    (forward ? rt_product_t : rt_product)(s->in, rows, from, s->W, e * g->N * g->K, to, s->out,
                                          s->work);
    for (int64_t i = 0; i < rows; i++) {
        double factor = 1;
        if (g->multiply)
            rt_elements(s->weights, flat(s, list[i]), 1, &factor);
        double *at = s->to + (forward ? row_of_y(s, list[i]) : row_of_x(s, list[i])) * to;
        for (int64_t j = 0; j < to; j++)
            at[j] += factor * s->out[i * to + j];
    }
}

/* dW: the same rows' contribution. */
static void add_weight_gradient(struct pass *s, int64_t e, const int64_t *list, int64_t rows)
{
    const struct grouped *g = &s->g;
    int64_t C = s->part.count;
    for (int64_t i = 0; i < rows; i++) {
        rt_elements(s->X, row_of_x(s, list[i]) * g->K, g->K, s->in + i * g->K);
        rt_elements(s->dY, row_of_y(s, list[i]) * g->N, g->N, s->work);
        for (int64_t n = 0; n < C; n++)
            s->out[i * C + n] = s->work[s->part.at ? s->part.at[n] : n];
    }
    rt_outer(s->out, rows, C, s->part.at, s->in, g->K, NULL, s->to + e * g->N * g->K, g->K);
}

static void compute(struct pass *s)
{
    int64_t r = 0;
    for (int64_t e = 0; e < s->g.E; e++) {
        int64_t list[ROWS], rows = 0, end = r + rt_index_at(s->sizes, e);
        while (r < end) {
            if (s->g.op == DW || !s->wanted || s->wanted[flat(s, r) / s->g.k])
                list[rows++] = r;
            r++;
            if (rows < ROWS && r < end)
                continue;
            if (s->g.op == DW)
                add_weight_gradient(s, e, list, rows);
            else if (rows)
                map_rows(s, e, list, rows);
            rows = 0;
        }
    }
}

static moegen_rt_status check_indices(const struct pass *s, moegen_rt_error *err)
{
    int64_t sum = 0;
    for (int64_t e = 0; e < s->g.E; e++) {
        int64_t m = rt_index_at(s->sizes, e);
        if (m < 0 || m > s->R)
            return rt_fail(err, MOEGEN_RT_BAD_DATA, "m_sizes[%lld] is %lld, not in 0..%lld",
                           (long long)e, (long long)m, (long long)s->R);
        sum += m;
    }
    if (sum != s->R)
        return rt_fail(err, MOEGEN_RT_BAD_DATA, "the sum of m_sizes is %lld; there are %lld rows",
                       (long long)sum, (long long)s->R);
    for (int64_t r = 0; s->gather && r < s->R; r++) {
        int64_t at = rt_index_at(s->gather, r);
        if (at < 0 || at >= s->R)
            return rt_fail(err, MOEGEN_RT_BAD_DATA, "gather_indices[%lld] is %lld, not in 0..%lld",
                           (long long)r, (long long)at, (long long)s->R - 1);
    }
    return MOEGEN_RT_OK;
}

static moegen_rt_status read_w(struct pass *s, const moegen_rt_problem *p, moegen_rt_error *err)
{
    const struct grouped *g = &s->g;
    const struct rt_matrices matrices = matrices_of(g);
    struct rt_packed l;
    if (rt_matrices_coded(p)) {
        s->W = &s->unpacked;
        moegen_rt_status status = rt_matrices_read(p, &matrices, &s->unpacked, err);
        return status == MOEGEN_RT_OK ? rt_matrices_online(p, &matrices, &s->online, err) : status;
    }
    moegen_rt_status status = lay_w(p, g, &l, err);
    const int64_t shape[] = {g->E, g->N, g->K}, packed[] = {g->E, l.each};
    if (status == MOEGEN_RT_OK)
        status = rt_input(p, "W", true, l.run ? 2 : 3, l.run ? packed : shape, &s->W, err);
    if (status != MOEGEN_RT_OK || !l.run)
        return status;
    s->unpacked = (moegen_rt_tensor){.name = s->W->name,
                                     .dtype = s->W->dtype,
                                     .rank = 3,
                                     .shape = {g->E, g->N, g->K},
                                     .data = rt_unpacked(&l, s->W, g->E)};
    s->W = &s->unpacked;
    return s->W->data ? MOEGEN_RT_OK : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
}

static moegen_rt_status read_inputs(struct pass *s, const moegen_rt_problem *p,
                                    moegen_rt_error *err)
{
    const struct grouped *g = &s->g;
    int64_t any[] = {-1}, x_any[] = {-1, g->K}, y_any[] = {-1, g->N};
    moegen_rt_status status = rt_input(p, "m_sizes", true, 1, &g->E, &s->sizes, err);
    if (status == MOEGEN_RT_OK)
        status = rt_input(p, "gather_indices", g->permute != 'n', 1, any, &s->gather, err);
    if (status == MOEGEN_RT_OK)
        status = g->op == FORWARD ? rt_input(p, "X", true, 2, x_any, &s->X, err)
                                  : rt_input(p, "dY", true, 2, y_any, &s->dY, err);
    if (status != MOEGEN_RT_OK)
        return status;
    const moegen_rt_tensor *rows = g->op == FORWARD ? s->X : s->dY;
    s->R = s->gather ? moegen_rt_tensor_count(s->gather) : rows->rank ? rows->shape[0] : 1;
    s->T = (s->R + g->k - 1) / g->k;
    if (g->permute == 'x' && s->R % g->k != 0)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT,
                       "tensor 'gather_indices' has %lld elements, no multiple of top_k, %lld",
                       (long long)s->R, (long long)g->k);
    int64_t x[] = {g->permute == 'x' ? s->T : s->R, g->K}, dy[] = {s->R, g->N};
    if (g->op != DX)
        status = rt_input(p, "X", true, 2, x, &s->X, err);
    if (status == MOEGEN_RT_OK && g->op != FORWARD)
        status = rt_input(p, "dY", true, 2, dy, &s->dY, err);
    if (status == MOEGEN_RT_OK && g->op != DW)
        status = read_w(s, p, err);
    if (status == MOEGEN_RT_OK && g->multiply)
        status = rt_input(p, "topk_weights", true, 1, &s->R, &s->weights, err);
    return status == MOEGEN_RT_OK ? check_indices(s, err) : status;
}

/* Rows of tokens that are not wanted are NaN. */
static moegen_rt_status make_output(struct pass *s, const moegen_rt_problem *p,
                                    moegen_rt_problem *out, moegen_rt_error *err)
{
    const struct grouped *g = &s->g;
    int64_t w[] = {g->E, g->N, g->K}, y[] = {s->R, g->N};
    int64_t x[] = {g->reduce ? s->T : s->R, g->K};
    moegen_rt_status status = MOEGEN_RT_OK;
    if (g->op == DW) {
        status = rt_gradient(p, out, "dW", 3, w, &s->to, err);
        if (status == MOEGEN_RT_OK)
            rt_blank_rest(&s->part, s->to, g->E, g->K);
        return status;
    }
    bool forward = g->op == FORWARD;
    status = rt_output(out, forward ? "Y" : "dX", 2, forward ? y : x, 0, &s->to, err);
    for (int64_t r = 0; status == MOEGEN_RT_OK && s->wanted && r < s->R; r++) {
        int64_t row = forward ? row_of_y(s, r) : row_of_x(s, r), n = forward ? g->N : g->K;
        for (int64_t j = 0; !s->wanted[flat(s, r) / g->k] && j < n; j++)
            s->to[row * n + j] = (double)NAN;
    }
    return status;
}

moegen_rt_status rt_compute_grouped_gemm(const moegen_rt_problem *p, const moegen_rt_want *want,
                                         moegen_rt_problem *out, moegen_rt_error *err)
{
    struct pass s = {0};
    moegen_rt_status status = read_spec(p, &s.g, err);
    if (status == MOEGEN_RT_OK)
        status = read_inputs(&s, p, err);
    if (status == MOEGEN_RT_OK)
        status = rt_wanted(want, s.T, &s.wanted, err);
    if (status == MOEGEN_RT_OK)
        status = rt_part(want, s.T, s.g.N, &s.part, err);
    if (status == MOEGEN_RT_OK)
        status = make_output(&s, p, out, err);
    int64_t wide = s.g.N > s.g.K ? s.g.N : s.g.K;
    if (status == MOEGEN_RT_OK) {
        s.in = malloc((size_t)(ROWS * wide) * sizeof *s.in);
        s.out = malloc((size_t)(ROWS * wide) * sizeof *s.out);
        s.work = malloc((size_t)(4 * wide) * sizeof *s.work);
        rt_rounded_once(out, s.g.op == DW ? "dW" : s.g.op == DX ? "dX" : "Y");
        if (s.in && s.out && s.work)
            compute(&s);
        else
            status = rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    }
    rt_online_free(&s.online);
    free(s.unpacked.data);
    free(s.in);
    free(s.out);
    free(s.work);
    free(s.part.at);
    free(s.wanted);
    return status;
}
