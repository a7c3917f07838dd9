/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill.c - random inputs and routings, and what fillers and references check their problem with.
 *
 * A new kind of routing: one function and one row in `routings`.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"

/* ---- random numbers: a hash of (seed, counter), so that element i needs no other ---- */

uint64_t rt_hash(uint64_t seed, uint64_t counter)
{
    uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t rt_seed(uint64_t seed, const char *name)
{
    uint64_t h = rt_hash(seed, 0);
    for (; *name; name++)
        h = rt_hash(h, (unsigned char)*name);
    return h;
}

/* In (0, 1). */
static double uniform(uint64_t seed, uint64_t counter)
{
    return ((double)(rt_hash(seed, counter) >> 12) + 0.5) * 0x1p-52;
}

enum { BITS = 12, CELLS = 1 << BITS };
static float quantile[CELLS + 1]; /* of the normal distribution, between them linear */
static pthread_once_t quantile_once = PTHREAD_ONCE_INIT;

static void make_quantiles(void)
{
    double x = -3.7; /* Newton's method on the distribution function, from the entry before */
    for (int i = 0; i <= CELLS; i++) {
        double p = (i + 0.5) / (CELLS + 1);
        double by = 1;
        for (int step = 0; step < 8 && fabs(by) > 1e-9; step++) /* each doubles the digits */
            x -= by = (0.5 * erfc(-x * M_SQRT1_2) - p) / (0.3989422804014327 * exp(-0.5 * x * x));
        quantile[i] = (float)x;
    }
}

static inline float normal(uint32_t random)
{
    uint32_t cell = random >> (32 - BITS);
    float part = (float)(int32_t)(random & ((1u << (32 - BITS)) - 1)) * (1.0f / (1 << (32 - BITS)));
    return quantile[cell] + part * (quantile[cell + 1] - quantile[cell]);
}

void rt_normal_from(size_t first, moegen_rt_dtype dtype, void *data, size_t n, uint64_t seed,
                    double scale)
{
    enum { CHUNK = 1024 };
    float chunk[CHUNK], factor = (float)scale;
    size_t width = moegen_rt_dtype_of(dtype)->bytes, end = first + n;
    pthread_once(&quantile_once, make_quantiles);
    for (size_t i = first & ~(size_t)1; i < end; i += CHUNK) {
        size_t m = end - i < CHUNK ? end - i : CHUNK, skip = i < first; /* half a pair */
        for (size_t j = 0; j < m; j += 2) { /* one more than m when m is odd */
            uint64_t random = rt_hash(seed, (i + j) / 2);
            chunk[j] = normal((uint32_t)random) * factor;
            chunk[j + 1] = normal((uint32_t)(random >> 32)) * factor;
        }
        moegen_rt_convert(MOEGEN_RT_F32, chunk + skip, dtype,
                          (char *)data + (i + skip - first) * width, m - skip);
    }
}

float rt_normal_at(size_t i, uint64_t seed, double scale)
{
    pthread_once(&quantile_once, make_quantiles);
    uint64_t random = rt_hash(seed, i / 2);
    return normal((uint32_t)(i % 2 ? random >> 32 : random)) * (float)scale;
}

void moegen_rt_normal(moegen_rt_dtype dtype, void *data, size_t n, uint64_t seed, double scale)
{
    rt_normal_from(0, dtype, data, n, seed, scale);
}

moegen_rt_status rt_add_normal(moegen_rt_problem *p, const char *name, moegen_rt_dtype dtype,
                               int rank, const int64_t *shape, uint64_t seed, double scale,
                               moegen_rt_error *err)
{
    moegen_rt_tensor *t;
    moegen_rt_status status = moegen_rt_problem_add(p, name, dtype, rank, shape, &t, err);
    if (status == MOEGEN_RT_OK)
        moegen_rt_normal(dtype, t->data, (size_t)moegen_rt_tensor_count(t), rt_seed(seed, name),
                         scale);
    return status;
}

/* ---- routing: every kind gives each (token, expert) an advantage; the k best are chosen ---- */

enum { SURE = 1000 }; /* more than chance can make up */

struct place {
    int64_t t, T, e, E, k;
};

static double no_advantage(struct place a)
{
    (void)a;
    return 0;
}

static double early(struct place a)
{
    return -log(1 + (double)a.e);
}

static double same_experts(struct place a)
{
    return (a.e - a.E / 2 + a.E) % a.E < a.k ? SURE : 0;
}

static double not_first(struct place a)
{
    return a.e == 0 ? -SURE : 0;
}

static double not_middle(struct place a)
{
    return a.e == a.E / 2 ? -SURE : 0;
}

static double not_last(struct place a)
{
    return a.e == a.E - 1 ? -SURE : 0;
}

static double first_once(struct place a)
{
    return a.e != 0 ? 0 : a.t == a.T / 2 ? SURE : -SURE;
}

static double in_turn(struct place a)
{
    int64_t first = a.t % a.E * (a.k % a.E) % a.E;
    return (a.e - first + a.E) % a.E < a.k ? SURE : 0;
}

static const struct routing {
    const char *name;
    double (*advantage)(struct place);
} routings[] = {
    {"uniform", no_advantage},    {"skewed", early},
    {"one", same_experts},        {"empty_first", not_first},
    {"empty_middle", not_middle}, {"empty_last", not_last},
    {"one_token", first_once},    {"balanced", in_turn},
};
enum { ROUTINGS = sizeof routings / sizeof *routings };

const char *moegen_rt_routing(int i)
{
    return i >= 0 && i < ROUTINGS ? routings[i].name : NULL;
}

/* Chance in the form that makes the k best a draw in proportion to exp(advantage). */
static void scores(const struct routing *kind, uint64_t seed, struct place at, double *score)
{
    for (at.e = 0; at.e < at.E; at.e++)
        score[at.e] =
            kind->advantage(at) - log(-log(uniform(seed, (uint64_t)(at.t * at.E + at.e))));
}

moegen_rt_status rt_route(const char *name, uint64_t seed, int64_t T, int64_t E, int64_t k,
                          int32_t *chosen, moegen_rt_error *err)
{
    const struct routing *kind = routings;
    while (kind < routings + ROUTINGS && strcmp(kind->name, name ? name : "uniform") != 0)
        kind++;
    if (kind == routings + ROUTINGS)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT,
                       "routing '%s' is not one of uniform, skewed, one, empty_first, "
                       "empty_middle, empty_last, one_token, balanced",
                       name);
    double *score = malloc((size_t)E * sizeof *score);
    if (!score)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    seed = rt_seed(seed, "routing");
    for (int64_t t = 0; t < T; t++) {
        scores(kind, seed, (struct place){t, T, 0, E, k}, score);
        for (int64_t j = 0; j < k; j++) { /* takes the best k times */
            int64_t best = 0;
            for (int64_t e = 1; e < E; e++)
                best = score[e] > score[best] ? e : best;
            score[best] = -INFINITY;
        }
        for (int64_t e = 0, j = 0; e < E; e++)
            if (score[e] == -INFINITY)
                chosen[t * k + j++] = (int32_t)e;
    }
    free(score);
    return MOEGEN_RT_OK;
}

/* ---- parameters and inputs ---- */

moegen_rt_status rt_size(const moegen_rt_problem *p, const char *key, int64_t limit, int64_t *value,
                         moegen_rt_error *err)
{
    const char *text = moegen_rt_problem_text(p, key, NULL);
    if (!text)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "parameter '%s' is missing", key);
    *value = moegen_rt_problem_int(p, key, 0);
    if (*value < 1 || *value > limit)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "%s: %s is not in 1..%lld", key, text,
                       (long long)limit);
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_dtype(const moegen_rt_problem *p, const char *key, moegen_rt_dtype otherwise,
                          moegen_rt_dtype *value, moegen_rt_error *err)
{
    const char *text = moegen_rt_problem_text(p, key, NULL);
    *value = otherwise;
    if (text && !moegen_rt_dtype_find(text, value))
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED, "%s: the runtime has no dtype '%s'", key, text);
    return MOEGEN_RT_OK;
}

static int stripped(int rank, const int64_t *shape)
{
    while (rank > 0 && shape[rank - 1] == 1)
        rank--;
    return rank;
}

moegen_rt_status rt_input(const moegen_rt_problem *p, const char *name, bool required, int rank,
                          const int64_t *shape, const moegen_rt_tensor **tensor,
                          moegen_rt_error *err)
{
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, name);
    *tensor = t;
    if (!t)
        return required ? rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "tensor '%s' is missing", name)
                        : MOEGEN_RT_OK;
    bool same = true;
    for (int i = 0; i < rank || i < t->rank; i++) {
        int64_t want = i < rank ? shape[i] : 1, got = i < t->rank ? t->shape[i] : 1;
        same &= want == got || want == -1;
    }
    if (same)
        return MOEGEN_RT_OK;
    int64_t expected[8];
    for (int i = 0; i < rank; i++)
        expected[i] = shape[i] == -1 && i < t->rank ? t->shape[i] : shape[i];
    struct rt_shape_text have, need;
    return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "tensor '%s' has shape %s, expected %s", name,
                   rt_shape(&have, t->rank, t->shape),
                   rt_shape(&need, stripped(rank, expected), expected));
}

int64_t rt_index_at(const moegen_rt_tensor *t, int64_t i)
{
    if (t->dtype == MOEGEN_RT_I64)
        return ((const int64_t *)t->data)[i];
    if (t->dtype == MOEGEN_RT_I32)
        return ((const int32_t *)t->data)[i];
    double value;
    rt_elements(t, i, 1, &value);
    return (int64_t)value;
}

void rt_elements(const moegen_rt_tensor *t, int64_t first, int64_t n, double *to)
{
    size_t width = moegen_rt_dtype_of(t->dtype)->bytes;
    moegen_rt_decode(t->dtype, (const char *)t->data + (size_t)first * width, (size_t)n, to);
}

moegen_rt_status rt_wanted(const moegen_rt_want *want, int64_t T, uint8_t **to,
                           moegen_rt_error *err)
{
    *to = NULL;
    if (!want || !want->tokens)
        return MOEGEN_RT_OK;
    *to = calloc((size_t)T + 1, 1);
    if (!*to)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (int64_t i = 0; i < want->token_count; i++) {
        if (want->tokens[i] < 0 || want->tokens[i] >= T) {
            free(*to);
            *to = NULL;
            return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "token %lld is not in 0..%lld",
                           (long long)want->tokens[i], (long long)T - 1);
        }
        (*to)[want->tokens[i]] = 1;
    }
    return MOEGEN_RT_OK;
}

void rt_rounded_once(moegen_rt_problem *out, const char *name)
{
    moegen_rt_tensor *t = moegen_rt_problem_tensor(out, name);
    if (t)
        t->once = 1;
}

moegen_rt_status rt_output(moegen_rt_problem *out, const char *name, int rank, const int64_t *shape,
                           double value, double **data, moegen_rt_error *err)
{
    moegen_rt_tensor *t;
    moegen_rt_status status = moegen_rt_problem_add(out, name, MOEGEN_RT_F64, rank, shape, &t, err);
    if (status != MOEGEN_RT_OK)
        return status;
    *data = t->data;
    for (int64_t i = 0, n = moegen_rt_tensor_count(t); i < n; i++)
        (*data)[i] = value;
    return MOEGEN_RT_OK;
}
