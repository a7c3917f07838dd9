/* SPDX-License-Identifier: Apache-2.0 */
/* ref_moe_index.c - from the experts of each token to blocks of tokens (SEMANTICS 1.1). */
#include <stdlib.h>
#include <string.h>

#include "reference.h"

int64_t rt_block_count(int64_t T, int64_t k, int64_t E, int64_t B)
{
    int64_t beyond = T * k - (E - 1); /* ceil(beyond / B), also below zero */
    int64_t blocks = beyond > 0 ? (beyond + B - 1) / B : -(-beyond / B);
    blocks += E - 1;
    return blocks > 1 ? blocks : 1;
}

/* Is chosen[at] in the k entries of its token before it? */
static bool repeated(const int32_t *chosen, int64_t at, int64_t k)
{
    for (int64_t i = at - at % k; i < at; i++)
        if (chosen[i] == chosen[at])
            return true;
    return false;
}

struct expert {
    int64_t count; /* tokens */
    int64_t first; /* block */
    int64_t end;   /* one past its last block */
    int64_t next;  /* tokens placed so far */
};

static moegen_rt_status count_tokens(const int32_t *chosen, int64_t pairs, int64_t k, int64_t E,
                                     struct expert *expert, moegen_rt_error *err)
{
    for (int64_t i = 0; i < pairs; i++) {
        if (chosen[i] < 0 || chosen[i] >= E)
            return rt_fail(err, MOEGEN_RT_BAD_DATA,
                           "expert_index[%lld][%lld] is %d, not in 0..%lld", (long long)(i / k),
                           (long long)(i % k), chosen[i], (long long)E - 1);
        if (!repeated(chosen, i, k))
            expert[chosen[i]].count++;
    }
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_index_build(const int32_t *chosen, int64_t T, int64_t k, int64_t E, int64_t B,
                                int64_t N, int32_t padding, bool dropping, int32_t *ids,
                                int32_t *experts, int32_t *conditions, moegen_rt_error *err)
{
    struct expert *expert = calloc((size_t)E, sizeof *expert);
    if (!expert)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    moegen_rt_status status = count_tokens(chosen, T * k, k, E, expert, err);
    if (status != MOEGEN_RT_OK)
        goto out;
    int64_t used = 0;
    for (int64_t e = 0; e < E; e++) {
        expert[e].first = used;
        used += dropping ? 1 : (expert[e].count + B - 1) / B;
        expert[e].end = used;
    }
    if (used > N) {
        status = rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "%lld blocks are needed, there are %lld",
                         (long long)used, (long long)N);
        goto out;
    }
    for (int64_t i = 0; i < N * B; i++)
        ids[i] = padding;
    memset(conditions, 0, (size_t)(N + 1) * sizeof *conditions);
    for (int64_t i = 0; i < T * k; i++) {
        struct expert *e = &expert[chosen[i]];
        if (repeated(chosen, i, k) || (dropping && e->next == B)) /* or beyond capacity? */
            continue;
        int64_t slot = e->first * B + e->next++;
        ids[slot] = (int32_t)(i / k);
        conditions[slot / B] = 1;
    }
    for (int64_t n = 0, e = 0; n < N; n++) {
        while (e < E - 1 && expert[e].end <= n)
            e++;
        experts[n] = (int32_t)e;
    }
out:
    free(expert);
    return status;
}

/* ---- the family ---- */

struct sizes {
    int64_t E, k, B;
    bool skip_token, dropping;
};

static moegen_rt_status read_sizes(const moegen_rt_problem *p, struct sizes *s,
                                   moegen_rt_error *err)
{
    moegen_rt_status status = rt_size(p, "E", 1 << 20, &s->E, err);
    if (status == MOEGEN_RT_OK)
        status = rt_size(p, "block_size", 1 << 24, &s->B, err);
    s->k = moegen_rt_problem_int(p, "top_k", 1);
    if (status == MOEGEN_RT_OK && (s->k < 1 || s->k > s->E))
        status = rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "top_k: %lld is not in 1..%lld (E)",
                         (long long)s->k, (long long)s->E);
    s->skip_token = moegen_rt_problem_bool(p, "skip_token", 0);
    s->dropping = moegen_rt_problem_bool(p, "dropping", 0);
    return status;
}

moegen_rt_status rt_fill_moe_index(moegen_rt_problem *p, const moegen_rt_fill *how,
                                   moegen_rt_error *err)
{
    struct sizes s;
    moegen_rt_tensor *t;
    moegen_rt_status status = read_sizes(p, &s, err);
    if (status != MOEGEN_RT_OK)
        return status;
    int64_t shape[] = {moegen_rt_problem_int(p, "T", how->T), s.k};
    if (shape[0] < 1 || shape[0] >= INT32_MAX)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "T: %lld is not in 1..%d", (long long)shape[0],
                       INT32_MAX - 1);
    status = moegen_rt_problem_add(p, "expert_index", MOEGEN_RT_I32, 2, shape, &t, err);
    if (status != MOEGEN_RT_OK)
        return status;
    int32_t *chosen = t->data;
    status = rt_route(how->routing, how->seed, shape[0], s.E, s.k, chosen, err);
    if (status != MOEGEN_RT_OK)
        return status;
    for (int64_t i = 0; i < shape[0]; i++, chosen += s.k) { /* a router gives them in any order */
        for (int64_t j = s.k - 1; j > 0; j--) {
            int64_t other =
                (int64_t)(rt_hash(how->seed, (uint64_t)(i * s.k + j)) % (uint64_t)(j + 1));
            int32_t was = chosen[j];
            chosen[j] = chosen[other];
            chosen[other] = was;
        }
    }
    return MOEGEN_RT_OK;
}

static moegen_rt_status add_output(moegen_rt_problem *out, const char *name, int64_t n,
                                   const int32_t *from, moegen_rt_error *err)
{
    double *to;
    moegen_rt_status status = rt_output(out, name, 1, &n, 0, &to, err);
    for (int64_t i = 0; status == MOEGEN_RT_OK && i < n; i++)
        to[i] = from[i];
    return status;
}

moegen_rt_status rt_compute_moe_index(const moegen_rt_problem *p, const moegen_rt_want *want,
                                      moegen_rt_problem *out, moegen_rt_error *err)
{
    (void)want; /* always everything */
    struct sizes s;
    const moegen_rt_tensor *t;
    moegen_rt_status status = read_sizes(p, &s, err);
    if (status != MOEGEN_RT_OK)
        return status;
    int64_t shape[] = {-1, s.k};
    status = rt_input(p, "expert_index", true, 2, shape, &t, err);
    if (status != MOEGEN_RT_OK)
        return status;
    int64_t pairs = moegen_rt_tensor_count(t), T = pairs / s.k;
    int64_t N = s.dropping ? s.E : rt_block_count(T, s.k, s.E, s.B);
    N = moegen_rt_problem_int(p, "N_blocks", N);
    if (N < 1 || N >= INT32_MAX)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "%lld blocks are not in 1..%d", (long long)N,
                       INT32_MAX - 1);
    int32_t *all = malloc((size_t)(pairs + N * s.B + 2 * N + 1) * sizeof *all);
    if (!all)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory for %lld blocks", (long long)N);
    int32_t *chosen = all, *ids = chosen + pairs, *experts = ids + N * s.B,
            *conditions = experts + N;
    for (int64_t i = 0; i < pairs; i++)
        chosen[i] = (int32_t)rt_index_at(t, i);
    status = rt_index_build(chosen, T, s.k, s.E, s.B, N, s.skip_token ? -1 : (int32_t)T, s.dropping,
                            ids, experts, conditions, err);
    if (status == MOEGEN_RT_OK)
        status = add_output(out, "token_position_to_id", N * s.B, ids, err);
    if (status == MOEGEN_RT_OK)
        status = add_output(out, "block_to_expert", N, experts, err);
    if (status == MOEGEN_RT_OK)
        status = add_output(out, "conditions", N + 1, conditions, err);
    free(all);
    return status;
}
