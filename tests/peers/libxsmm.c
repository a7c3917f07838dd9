/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libxsmm.c - an expert's products by LIBXSMM's batch-reduce kernels: f32, or bf16 with sums in
 * f32, of weights that are packed before anything is timed: blocks of ROWS outputs and DEPTH
 * inputs, of bf16 in pairs along K (VNNI).
 */
#include <stdlib.h>

#include <libxsmm.h>

#include "layer.h"

enum { TOKENS = 64, ROWS = 64, DEPTH = 256 }; /* at most, of a block */

typedef void kernel(const void *weights, const void *tokens, float *out,
                    const unsigned long long *blocks);

/* [N][K] weights of each expert: out[token][N] = sum over K. */
struct product {
    int N, K, rows, depth;
    char *packed;
    kernel *of[TOKENS + 1]; /* so many tokens */
};

static const struct layer *layer;
static struct product gate_up, down;
static void *tokens, *active;  /* [pairs][H]; [an expert's][I] */
static float *hidden, *result; /* [an expert's][2 I]; [an expert's][H] */
static float *sums;            /* [T][H] */

const char *peer_version(void)
{
    static char text[64];
    libxsmm_init();
    snprintf(text, sizeof text, "%s (%s)", LIBXSMM_VERSION, libxsmm_get_target_arch());
    return text;
}

/* The largest divisor of n up to `most` that is a multiple of `of`; 0: none. */
static int block_of(int n, int most, int of)
{
    for (int b = most / of * of; b; b -= of)
        if (n % b == 0)
            return b;
    return 0;
}

static kernel *kernel_for(const struct product *p, int count)
{
    const int bytes = (int)element(layer), stride_a = p->rows * p->depth * bytes,
              stride_b = p->depth * bytes;
    const float one = 1, zero = 0;
    if (layer->is_bf16)
        return (kernel *)(void (*)(void))libxsmm_bsmmdispatch_reducebatch_strd(
            p->rows, count, p->depth, stride_a, stride_b, &p->rows, &p->K, &p->N, &one, &zero, NULL,
            NULL);
    return (kernel *)(void (*)(void))libxsmm_smmdispatch_reducebatch_strd(
        p->rows, count, p->depth, stride_a, stride_b, &p->rows, &p->K, &p->N, &one, &zero, NULL,
        NULL);
}

/* One expert's matrix: [N / rows][K / depth][depth / group][rows][group]. */
static void pack(const struct product *p, const char *from, char *to)
{
    const size_t bytes = element(layer);
    const int group = layer->is_bf16 ? 2 : 1;
    for (int n = 0; n < p->N; n += p->rows)
        for (int k = 0; k < p->K; k += group)
            for (int r = 0; r < p->rows; r++, to += bytes * (size_t)group)
                memcpy(to, from + bytes * ((size_t)(n + r) * (size_t)p->K + (size_t)k),
                       bytes * (size_t)group);
}

static const char *product_open(struct product *p, int N, int K, const void *weights)
{
    const size_t bytes = (size_t)N * (size_t)K * element(layer);
    *p = (struct product){
        .N = N, .K = K, .rows = block_of(N, ROWS, 16), .depth = block_of(K, DEPTH, 16)};
    if (!p->rows || !p->depth)
        return "it wants sizes that are multiples of 16";
    if (!(p->packed = aligned_alloc(64, (size_t)layer->E * bytes)))
        return "out of memory";
#pragma omp parallel for
    for (int64_t e = 0; e < layer->E; e++)
        pack(p, (const char *)weights + (size_t)e * bytes, p->packed + (size_t)e * bytes);
    for (int64_t e = 0; e < layer->E; e++) {
        const int64_t count = layer->first[e + 1] - layer->first[e];
        const int some[] = {count < TOKENS ? 0 : TOKENS, (int)(count % TOKENS)};
        for (int i = 0; i < 2; i++)
            if (some[i] && !p->of[some[i]] && !(p->of[some[i]] = kernel_for(p, some[i])))
                return "it makes no kernel of this size for this CPU";
    }
    return NULL;
}

/* out[count][N] of an expert's tokens [count][K]; each block of weights meets all of them. Of a
 * team's threads. */
static void multiply(const struct product *p, int64_t e, const void *in, float *out, int64_t count)
{
    const size_t bytes = element(layer), matrix = (size_t)p->N * (size_t)p->K * bytes;
    const unsigned long long blocks = (unsigned long long)(p->K / p->depth);
#pragma omp for
    for (int n = 0; n < p->N; n += p->rows)
        for (int64_t t = 0; t < count; t += TOKENS)
            p->of[count - t < TOKENS ? count - t : TOKENS](
                p->packed + (size_t)e * matrix + (size_t)n * (size_t)p->K * bytes,
                (const char *)in + (size_t)(t * p->K) * bytes, out + t * p->N + n, &blocks);
}

static void activate(int64_t count)
{
    const int64_t I = layer->I;
#pragma omp for
    for (int64_t t = 0; t < count; t++) {
        const float *gate = hidden + t * 2 * I, *up = gate + I;
        for (int64_t i = 0; i < I; i++)
            put(layer, active, t * I + i, gate[i] * sigmoid(gate[i]) * up[i]);
    }
}

const char *peer_open(const struct layer *l)
{
    int64_t most = 0;
    layer = l;
    for (int64_t e = 0; e < l->E; e++)
        most = l->first[e + 1] - l->first[e] > most ? l->first[e + 1] - l->first[e] : most;
    tokens = malloc((size_t)(l->pairs * l->H) * element(l));
    active = malloc((size_t)(most * l->I) * element(l));
    hidden = malloc((size_t)(most * 2 * l->I) * sizeof *hidden);
    result = malloc((size_t)(most * l->H) * sizeof *result);
    sums = malloc((size_t)(l->T * l->H) * sizeof *sums);
    if (!tokens || !active || !hidden || !result || !sums)
        return "out of memory";
    const char *wrong = product_open(&gate_up, (int)(2 * l->I), (int)l->H, l->gate_up);
    return wrong ? wrong : product_open(&down, (int)l->H, (int)l->I, l->down);
}

const char *peer_run(int backward)
{
    const struct layer *l = layer;
    if (backward)
        return "it has no backward pass here";
    gather(l, l->x, tokens);
    memset(sums, 0, (size_t)(l->T * l->H) * sizeof *sums);
    for (int64_t e = 0; e < l->E; e++) {
        const int64_t first = l->first[e], count = l->first[e + 1] - first;
        if (!count)
            continue;
#pragma omp parallel
        {
            multiply(&gate_up, e, (const char *)tokens + (size_t)(first * l->H) * element(l),
                     hidden, count);
            activate(count);
            multiply(&down, e, active, result, count);
        }
        add_rows(l, first, first + count, result, l->weight, sums);
    }
    round_rows(l, sums, l->output);
    return NULL;
}
