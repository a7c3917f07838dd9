/* SPDX-License-Identifier: Apache-2.0 */
/* layer_given.c - a layer without a router of its own (SEMANTICS 5.1): the caller gives pairs of a
 * token and an expert, each with a weight.
 * A pair whose index is no expert counts for nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layer.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        moegen_rt_status try_status = (call);                                                      \
        if (try_status != MOEGEN_RT_OK)                                                            \
            return try_status;                                                                     \
    } while (0)

static moegen_rt_status find(const struct rt_layer *l, const moegen_rt_problem *p,
                             const moegen_rt_tensor **index, const moegen_rt_tensor **weights,
                             moegen_rt_error *err)
{
    int64_t shape[] = {-1, l->m.k};
    TRY(rt_input(p, "top_k_index", true, 2, shape, index, err));
    shape[0] = moegen_rt_tensor_count(*index) / l->m.k;
    return rt_input(p, "top_k_weights", true, 2, shape, weights, err);
}

/* Where each pair goes, -1: nowhere; experts from a fresh block each. expert [blocks]: whose each
 * is, as far as any is used; returns how many are. */
static int64_t place(const struct rt_layer *l, const moegen_rt_tensor *index, int64_t *slot,
                     int32_t *expert)
{
    int64_t pairs = moegen_rt_tensor_count(index), block = 0;
    for (int64_t i = 0; i < pairs; i++)
        slot[i] = -1;
    for (int64_t e = 0; e < l->m.E; e++) {
        int64_t count = 0;
        for (int64_t i = 0; i < pairs; i++)
            if (rt_index_at(index, i) == e)
                slot[i] = block * l->m.B + count++;
        for (; count > 0; count -= l->m.B)
            expert[block++] = (int32_t)e;
    }
    return block;
}

moegen_rt_status rt_given_blocks(const struct rt_layer *l, const moegen_rt_problem *p,
                                 moegen_rt_problem *to, moegen_rt_error *err)
{
    const moegen_rt_tensor *index, *weights;
    moegen_rt_tensor *ids, *experts, *conditions, *affinities;
    TRY(find(l, p, &index, &weights, err));
    int64_t pairs = moegen_rt_tensor_count(index), k = l->m.k;
    int64_t N = rt_block_count(pairs / k, k, l->m.E, l->m.B), slots = N * l->m.B, entries = N + 1;
    TRY(moegen_rt_problem_add(to, "token_position_to_id", MOEGEN_RT_I32, 1, &slots, &ids, err));
    TRY(moegen_rt_problem_add(to, "block_to_expert", MOEGEN_RT_I32, 1, &N, &experts, err));
    TRY(moegen_rt_problem_add(to, "conditions", MOEGEN_RT_I32, 1, &entries, &conditions, err));
    TRY(moegen_rt_problem_add(to, "slot_affinities", MOEGEN_RT_F64, 1, &slots, &affinities, err));
    int64_t *slot = malloc((size_t)(pairs + 1) * sizeof *slot);
    if (!slot)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    memset(ids->data, 0xff, ids->bytes);
    memset(experts->data, 0, experts->bytes);
    memset(affinities->data, 0xff, affinities->bytes);
    int64_t used = place(l, index, slot, experts->data);
    for (int64_t b = 0; b < entries; b++)
        ((int32_t *)conditions->data)[b] = b < used;
    for (int64_t i = 0; i < pairs; i++) {
        if (slot[i] < 0)
            continue;
        ((int32_t *)ids->data)[slot[i]] = (int32_t)(i / k);
        rt_elements(weights, i, 1, (double *)affinities->data + slot[i]);
    }
    free(slot);
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_given_gradient(const struct rt_layer *l, const moegen_rt_problem *p,
                                   const moegen_rt_tensor *of_slots, moegen_rt_problem *out,
                                   moegen_rt_error *err)
{
    const moegen_rt_tensor *index, *weights;
    double *to;
    TRY(find(l, p, &index, &weights, err));
    int64_t pairs = moegen_rt_tensor_count(index), shape[] = {pairs / l->m.k, l->m.k};
    TRY(rt_output(out, "top_k_weights_grad", 2, shape, 0, &to, err));
    int64_t *slot = malloc((size_t)(pairs + 1) * sizeof *slot);
    int32_t *expert = malloc((size_t)moegen_rt_tensor_count(of_slots) * sizeof *expert);
    moegen_rt_status status =
        slot && expert ? MOEGEN_RT_OK : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        place(l, index, slot, expert);
    for (int64_t i = 0; status == MOEGEN_RT_OK && i < pairs; i++)
        if (slot[i] >= 0)
            to[i] = ((const double *)of_slots->data)[slot[i]];
    free(slot);
    free(expert);
    return status;
}

/* ---- filling ---- */

/* What stands where a token has fewer experts: the number next to the last one, as Hugging Face's
 * models have it, and others. */
static int64_t no_expert(uint64_t chance, int64_t E, bool wide)
{
    const int64_t others[] = {E, E, -1, INT32_MIN, INT32_MAX, E + ((int64_t)1 << 32)};
    return others[chance % (wide ? 6 : 5)];
}

moegen_rt_status rt_given_fill(const struct rt_layer *l, moegen_rt_problem *p,
                               const moegen_rt_fill *how, moegen_rt_error *err)
{
    const struct rt_moe *m = &l->m;
    moegen_rt_dtype io, affinity;
    moegen_rt_tensor *index, *weights;
    int64_t shape[] = {moegen_rt_problem_int(p, "T", how->T), m->k}, pairs = shape[0] * m->k;
    bool wide = strcmp(moegen_rt_problem_text(p, "index_dtype", "i32"), "i64") == 0;
    TRY(rt_dtype(p, "dtype", MOEGEN_RT_F32, &io, err));
    TRY(rt_dtype(p, "affinity_dtype", io, &affinity, err));
    TRY(moegen_rt_problem_add(p, "top_k_index", wide ? MOEGEN_RT_I64 : MOEGEN_RT_I32, 2, shape,
                              &index, err));
    TRY(moegen_rt_problem_add(p, "top_k_weights", affinity, 2, shape, &weights, err));
    moegen_rt_normal(affinity, weights->data, (size_t)pairs, rt_seed(how->seed, weights->name),
                     1 / sqrt((double)m->k));
    int32_t *chosen = malloc((size_t)pairs * sizeof *chosen);
    moegen_rt_status status =
        chosen ? rt_route(how->routing, how->seed, shape[0], m->E, m->k, chosen, err)
               : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (int64_t i = 0; status == MOEGEN_RT_OK && i < pairs; i++) {
        uint64_t chance = rt_hash(rt_seed(how->seed, index->name), (uint64_t)i);
        int64_t e = chosen[i / m->k * m->k + (i + (int64_t)(how->seed % 97)) % m->k];
        if (chance % 8 == 0)
            e = no_expert(chance >> 8, m->E, wide);
        if (wide)
            ((int64_t *)index->data)[i] = e;
        else
            ((int32_t *)index->data)[i] = (int32_t)e;
    }
    free(chosen);
    return status;
}
