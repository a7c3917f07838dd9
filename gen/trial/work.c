/* SPDX-License-Identifier: Apache-2.0 */
/* work.c - how much a call computes and reads. */
#include <stdlib.h>

#include "trial.h"

/* Rows and experts that have one, from the sizes of the experts. */
static void count_sizes(const moegen_rt_tensor *sizes, double *rows, double *experts)
{
    *rows = *experts = 0;
    for (int64_t e = 0; e < moegen_rt_tensor_count(sizes); e++) {
        int64_t m = sizes->dtype == MOEGEN_RT_I64 ? ((const int64_t *)sizes->data)[e]
                                                  : ((const int32_t *)sizes->data)[e];
        *rows += (double)m;
        *experts += m > 0;
    }
}

bool work_count(const moegen_kernel *kernel, const moegen_rt_problem *in, int64_t tokens,
                double *rows, double *experts)
{
    const moegen_rt_tensor *ids = moegen_rt_problem_tensor(in, "token_position_to_id");
    const moegen_rt_tensor *blocks = moegen_rt_problem_tensor(in, "block_to_expert");
    const moegen_rt_tensor *sizes = moegen_rt_problem_tensor(in, "m_sizes");
    int64_t all = param_int(kernel, "E", 1), size = param_int(kernel, "block_size", 0);
    *rows = (double)tokens * (double)param_int(kernel, "top_k", 1);
    *experts = (double)all < *rows ? (double)all : *rows;
    if (sizes)
        count_sizes(sizes, rows, experts);
    if (!ids || !blocks || !size)
        return true;
    char *hit = calloc((size_t)all, 1);
    if (!hit)
        return false;
    *rows = *experts = 0;
    for (int64_t slot = 0; slot < moegen_rt_tensor_count(ids); slot++) {
        int32_t id = ((const int32_t *)ids->data)[slot];
        int32_t e = ((const int32_t *)blocks->data)[slot / size];
        if (id < 0 || id >= tokens || e < 0 || e >= all)
            continue;
        ++*rows;
        *experts += !hit[e];
        hit[e] = 1;
    }
    free(hit);
    return true;
}
