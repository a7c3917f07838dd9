/* SPDX-License-Identifier: Apache-2.0 */
/* layer.h - a layer and its state, as layer.c and layer_experts.c see them. */
#ifndef MOEGEN_LAYER_H
#define MOEGEN_LAYER_H

#include "call.h"

enum { FORWARD, BACKWARD, PASSES };

struct moegen_layer {
    _Atomic int refs;
    moegen_kernel *kernel[PASSES];
};

/* A tensor of the state. */
struct kept {
    moegen_tensor now; /* of the last forward pass; data NULL: none yet */
    void *memory;
    size_t room;
};

struct moegen_layer_state {
    moegen_layer *layer;
    moegen_call *call[PASSES];
    struct kept kept[MAX_ARGS];
    int count;
    bool filled;                    /* a forward pass has succeeded */
    bool lasting[PASSES][MAX_ARGS]; /* lists, bound for all passes */
};

#endif
