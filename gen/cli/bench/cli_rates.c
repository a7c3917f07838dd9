/* SPDX-License-Identifier: Apache-2.0 */
/* cli_rates.c - what a contender of `moegen bench` computes and reads, and at which rates. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

void contender_count(struct contender *c, const moegen_rt_problem *in)
{
    if (!work_count(c->kernel, in, c->tokens, &c->rows, &c->experts))
        lost();
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
