/* SPDX-License-Identifier: Apache-2.0 */
/* layer_open.c - what a layer gives of tokens whose experts rounding could exchange for others. */
#include <math.h>
#include <stdlib.h>

#include "layer.h"

/* Blocks and what lies in them: one token's choice moves the others. */
static const char *const blocks[] = {"token_position_to_id",  "block_to_expert",  "conditions",
                                     "gate_up_activations_T", "down_activations", NULL};

static void forget(moegen_rt_tensor *t, int64_t first, int64_t count)
{
    for (int64_t i = first; i < first + count; i++)
        ((double *)t->data)[i] = (double)NAN;
}

/* close[T]: tokens whose choice is open. */
static void leave_open(const struct rt_layer *l, const uint8_t *close, int64_t T,
                       moegen_rt_problem *out)
{
    moegen_rt_tensor *output = moegen_rt_problem_tensor(out, "output"), *t;
    int64_t H = output->shape[1];
    bool any = false;
    for (int64_t i = 0; i < T; i++) {
        if (close[i])
            forget(output, i * H, H);
        any |= close[i] != 0;
    }
    for (const char *const *name = blocks; any && !l->dense && *name; name++)
        if ((t = moegen_rt_problem_tensor(out, *name)) != NULL)
            forget(t, 0, moegen_rt_tensor_count(t));
}

moegen_rt_status rt_layer_open(const struct rt_layer *l, const moegen_rt_problem *q,
                               const moegen_rt_tensor *logits, moegen_rt_problem *out,
                               moegen_rt_error *err)
{
    int64_t T = logits->shape[0];
    int32_t *chosen = malloc((size_t)(T * l->r.k) * sizeof *chosen);
    uint8_t *close = malloc((size_t)T);
    moegen_rt_status status = chosen && close
                                  ? rt_layer_choose(l, q, logits->data, T, chosen, close, err)
                                  : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        leave_open(l, close, T, out);
    free(chosen);
    free(close);
    return status;
}
