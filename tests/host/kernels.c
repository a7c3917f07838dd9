/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c - calls a kernel that was generated ahead of time, with the host's own memory and
 * threads. */
#include <stdlib.h>

#include "toy_forward.h"

/* out [T+1, 48] from tensors of the shapes in the header; the kernel's status, or -1: no memory. */
int ahead_of_time(int64_t tokens, int64_t blocks, const float *hidden, const float *affinity,
                  const float *gate_up, const float *down, const int32_t *ids,
                  const int32_t *experts, float *out);

int ahead_of_time(int64_t tokens, int64_t blocks, const float *hidden, const float *affinity,
                  const float *gate_up, const float *down, const int32_t *ids,
                  const int32_t *experts, float *out)
{
    struct toy_forward_args args = {
        .hidden_states = hidden,
        .expert_affinities_masked = affinity,
        .gate_up_proj_weight = gate_up,
        .down_proj_weight = down,
        .token_position_to_id = ids,
        .block_to_expert = experts,
        .output = out,
        .T = tokens,
        .N = blocks,
    };
    args.workspace_bytes = (toy_forward_workspace(&args, 1) + 63) / 64 * 64;
    args.workspace = aligned_alloc(64, (size_t)args.workspace_bytes + 64);
    int status = args.workspace ? toy_forward(&args, NULL) : -1;
    free(args.workspace);
    return status;
}
