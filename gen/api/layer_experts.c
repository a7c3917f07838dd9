/* SPDX-License-Identifier: Apache-2.0 */
/* layer_experts.c - lists of experts' matrices of a layer: bound once, for all passes. */
#include "layer.h"

/* Binds the list in the passes that have the tensor; -1: in none. */
static int bind_passes(moegen_layer_state *s, const char *name, const void *const *matrices,
                       int64_t count, moegen_dtype dtype, int rank, const int64_t *shape,
                       moegen_status *status, moegen_error **err)
{
    int last = -1;
    *status = MOEGEN_OK;
    for (int pass = 0; pass < PASSES && !*status; pass++) {
        int arg = arg_find(s->call[pass]->unit, name);
        if (arg < 0)
            continue;
        last = pass;
        *status =
            moegen_call_bind_experts(s->call[pass], name, matrices, count, dtype, rank, shape, err);
        if (!*status)
            s->lasting[pass][arg] = matrices != NULL;
    }
    return last;
}

moegen_status moegen_layer_state_bind_experts(moegen_layer_state *state, const char *name,
                                              const void *const *matrices, int64_t count,
                                              moegen_dtype dtype, int rank, const int64_t *shape,
                                              moegen_error **err)
{
    moegen_status status, ignored;
    if (!state)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "state must not be NULL");
    if (bind_passes(state, name, matrices, count, dtype, rank, shape, &status, err) < 0)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "the layer has no tensor '%s'",
                         name ? name : "(null)");
    if (status) /* in no pass, rather than in one */
        bind_passes(state, name, NULL, 0, dtype, 0, NULL, &ignored, NULL);
    return status;
}
