/* SPDX-License-Identifier: Apache-2.0 */
/* cli_rates.c - what a contender of `moegen bench` computes and reads, and at which rates. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* Rows and experts that have one, from the sizes of the experts. */
static void count_sizes(struct contender *c, const moegen_rt_tensor *sizes)
{
    c->rows = c->experts = 0;
    for (int64_t e = 0; e < moegen_rt_tensor_count(sizes); e++) {
        int64_t m = sizes->dtype == MOEGEN_RT_I64 ? ((const int64_t *)sizes->data)[e]
                                                  : ((const int32_t *)sizes->data)[e];
        c->rows += (double)m;
        c->experts += m > 0;
    }
}

void contender_count(struct contender *c, const moegen_rt_problem *in)
{
    const moegen_rt_tensor *ids = moegen_rt_problem_tensor(in, "token_position_to_id");
    const moegen_rt_tensor *blocks = moegen_rt_problem_tensor(in, "block_to_expert");
    int64_t experts = param_int(c->kernel, "E", 1), size = param_int(c->kernel, "block_size", 0);
    c->rows = (double)c->tokens * (double)param_int(c->kernel, "top_k", 1);
    c->experts = fmin((double)experts, c->rows);
    const moegen_rt_tensor *sizes = moegen_rt_problem_tensor(in, "m_sizes");
    if (sizes)
        count_sizes(c, sizes);
    if (!ids || !blocks || !size)
        return;
    char *hit = calloc((size_t)experts, 1);
    if (!hit) {
        lost();
        return;
    }
    c->rows = c->experts = 0;
    for (int64_t slot = 0; slot < moegen_rt_tensor_count(ids); slot++) {
        int32_t id = ((const int32_t *)ids->data)[slot];
        int32_t e = ((const int32_t *)blocks->data)[slot / size];
        if (id < 0 || id >= c->tokens || e < 0 || e >= experts)
            continue;
        c->rows++;
        c->experts += !hit[e];
        hit[e] = 1;
    }
    free(hit);
}

double contender_gflops(const struct contender *c)
{
    const moegen_kernel_facts *f = kernel_facts(c->kernel);
    double flops =
        (double)f->flops_per_row * c->rows + (double)f->flops_per_token * (double)c->tokens;
    return flops > 0 ? 1e-9 * flops / samples_at(&c->seconds, 0.5) : NAN;
}

double contender_gbps(const struct contender *c)
{
    const moegen_kernel_facts *f = kernel_facts(c->kernel);
    double bytes = (double)f->weight_bytes_per_expert * c->experts + (double)f->weight_bytes;
    return bytes > 0 ? 1e-9 * bytes / samples_at(&c->seconds, 0.5) : NAN;
}

double contender_share(const struct contender *c)
{
    return c->core ? contender_gflops(c) / (probe_gflops(c->core) * c->threads) : NAN;
}

double contender_roof_share(const struct contender *c)
{
    if (!c->all)
        return NAN;
    double gbps = contender_gbps(c);
    return fmax(contender_gflops(c) / probe_gflops(c->all), gbps / probe_gbps(c->all));
}
