/* SPDX-License-Identifier: Apache-2.0 */
/* layer.h - what peers in C and C++ share: the layer as native.py hands it over, and what lies
 * between two products. */
#ifndef PEERS_LAYER_H
#define PEERS_LAYER_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Pairs of a token and an expert are in the order of their experts; rows of all arrays follow each
 * other. */
struct layer {
    int64_t T, H, I, E, pairs, is_bf16, threads; /* is_bf16: else elements are f32 */
    const void *x, *dy;                          /* [T][H] */
    const void *gate_up, *down;                  /* [E][2 I][H], gate first; [E][H][I] */
    const int64_t *token, *first; /* of each pair; pairs of expert e are first[e] .. first[e + 1] */
    const float *weight;          /* of each pair */
    void *output, *x_grad;        /* [T][H] */
    void *gate_up_grad, *down_grad; /* as the weights */
    float *weight_grad;             /* of each pair */
};

/* What a library gives. The layer stays where it is. An answer: NULL, or what is wrong. */
const char *peer_version(void);
const char *peer_open(const struct layer *layer);
const char *peer_run(int backward);

#ifdef __cplusplus
}
#endif

static inline size_t element(const struct layer *l)
{
    return l->is_bf16 ? 2 : 4;
}

static inline float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint16_t to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static inline float number(const struct layer *l, const void *from, int64_t i)
{
    return l->is_bf16 ? from_bf16(((const uint16_t *)from)[i]) : ((const float *)from)[i];
}

static inline void put(const struct layer *l, void *to, int64_t i, float f)
{
    if (l->is_bf16)
        ((uint16_t *)to)[i] = to_bf16(f);
    else
        ((float *)to)[i] = f;
}

/* Rows of tokens in the order of their experts. */
static inline void gather(const struct layer *l, const void *from, void *to)
{
    const size_t row = (size_t)l->H * element(l);
#pragma omp parallel for
    for (int64_t i = 0; i < l->pairs; i++)
        memcpy((char *)to + (size_t)i * row, (const char *)from + (size_t)l->token[i] * row, row);
}

static inline float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* sums [T][H] += scale[i] * rows of the pairs first .. end, f32; scale NULL: 1. A token comes once
 * to an expert. */
static inline void add_rows(const struct layer *l, int64_t first, int64_t end, const float *rows,
                            const float *scale, float *sums)
{
#pragma omp parallel for
    for (int64_t i = first; i < end; i++) {
        const float by = scale ? scale[i] : 1, *row = rows + (i - first) * l->H;
        float *sum = sums + l->token[i] * l->H;
        for (int64_t n = 0; n < l->H; n++)
            sum[n] += by * row[n];
    }
}

static inline void round_rows(const struct layer *l, const float *sums, void *to)
{
#pragma omp parallel for
    for (int64_t t = 0; t < l->T; t++)
        for (int64_t n = 0; n < l->H; n++)
            put(l, to, t * l->H + n, sums[t * l->H + n]);
}

#endif
