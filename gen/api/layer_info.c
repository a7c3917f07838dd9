/* SPDX-License-Identifier: Apache-2.0 */
/* layer_info.c - what a host can ask of a layer before there is a state: its tensors. */
#include <string.h>

#include "unit.h"

static const moegen_arg *arg_of(const moegen_kernel *kernel, const char *name)
{
    const moegen_kernel_facts *f = &kernel->unit->facts;
    for (int i = 0; i < f->arg_count; i++)
        if (strcmp(f->args[i].name, name) == 0)
            return &f->args[i];
    return NULL;
}

const moegen_arg *moegen_layer_state_arg(const moegen_layer *layer, size_t i)
{
    if (!layer)
        return NULL;
    const moegen_kernel_facts *f = &moegen_layer_kernel(layer, 0)->unit->facts;
    for (int a = 0; a < f->arg_count; a++) {
        const moegen_arg *to = arg_of(moegen_layer_kernel(layer, 1), f->args[a].name);
        if (f->args[a].role != MOEGEN_IN && to && to->role == MOEGEN_IN && i-- == 0)
            return &f->args[a];
    }
    return NULL;
}

moegen_status moegen_layer_shape(const moegen_layer *layer, int backward, const char *name,
                                 const int64_t *sizes, int *rank, int64_t *shape,
                                 moegen_error **err)
{
    if (!layer || !name || !rank || !shape)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "layer, name, rank and shape must not be NULL");
    const struct unit *u = moegen_layer_kernel(layer, backward)->unit;
    const moegen_arg *arg = arg_of(moegen_layer_kernel(layer, backward), name);
    if (!arg)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "kernel '%s' has no tensor '%s'", u->facts.name,
                         name);
    const struct extent *extent = u->extent[arg - u->arg];
    int64_t size[MAX_DIMS], found[MAX_RANK];
    for (int k = 0; k < u->facts.dim_count; k++)
        size[k] = sizes ? sizes[k] : -1;
    for (int i = 0; i < u->derived_count; i++)
        if (size[u->derived[i].dim] < 0)
            size[u->derived[i].dim] = derived_value(&u->derived[i], size);
    for (int d = 0; d < arg->rank; d++) {
        found[d] = extent_value(&extent[d], size);
        if (found[d] < 0)
            return error_set(err, MOEGEN_BAD_ARGUMENT,
                             "size %s is needed for %s, an extent of '%s', or is too large",
                             u->dim[extent[d].dim], arg->extent[d], name);
    }
    *rank = arg->rank;
    memcpy(shape, found, (size_t)arg->rank * sizeof *shape);
    return MOEGEN_OK;
}
