/* SPDX-License-Identifier: Apache-2.0 */
/* layer.c - a forward and a backward kernel of one spec, and the state between them: whatever the
 * one writes and the other reads. Knows no family: tensors are matched by name. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "layer.h"

static const char *const ops[PASSES] = {"forward", "backward"};

/* ---- the kernels ---- */

static bool is(const moegen_kernel *kernel, const char *key, const char *value)
{
    const char *found = moegen_kernel_param(kernel, key);
    return found && strcmp(found, value) == 0;
}

/* The kernel of one pass. */
static moegen_status get(moegen_engine *engine, const moegen_spec *spec, int pass,
                         const char *checkpoint, moegen_kernel **kernel, moegen_error **err)
{
    moegen_spec own = *spec;
    moegen_override *set = calloc(spec->override_count + 2, sizeof *set);
    if (!set)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < spec->override_count; i++)
        set[i] = spec->overrides[i];
    own.overrides = set;
    set[own.override_count++] = (moegen_override){"op", ops[pass]};
    if (checkpoint)
        set[own.override_count++] = (moegen_override){"checkpoint", checkpoint};
    moegen_status status = moegen_kernel_get(engine, &own, kernel, err);
    free(set);
    return status;
}

moegen_status moegen_layer_create(moegen_engine *engine, const moegen_spec *spec,
                                  moegen_layer **layer, moegen_error **err)
{
    if (!engine || !layer)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "engine and layer must not be NULL");
    moegen_spec own;
    moegen_status status = spec_take(&own, spec, err);
    if (status)
        return status;
    spec = &own;
    moegen_layer *made = calloc(1, sizeof *made);
    if (!made)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    made->refs = 1;
    status = get(engine, spec, BACKWARD, NULL, &made->kernel[BACKWARD], err);
    if (!status) { /* what backward starts from says what forward has to leave */
        const moegen_kernel *back = made->kernel[BACKWARD];
        const char *leave = !moegen_kernel_param(back, "checkpoint") ? NULL
                            : is(back, "checkpoint", "recompute")    ? "recompute"
                                                                     : "save";
        status = get(engine, spec, FORWARD, leave, &made->kernel[FORWARD], err);
    }
    if (status)
        moegen_layer_release(made);
    else
        *layer = made;
    return status;
}

void moegen_layer_retain(moegen_layer *layer)
{
    if (layer)
        layer->refs++;
}

void moegen_layer_release(moegen_layer *layer)
{
    if (!layer || --layer->refs)
        return;
    for (int i = 0; i < PASSES; i++)
        moegen_kernel_release(layer->kernel[i]);
    free(layer);
}

const moegen_kernel *moegen_layer_kernel(const moegen_layer *layer, int backward)
{
    return layer ? layer->kernel[backward ? BACKWARD : FORWARD] : NULL;
}

/* ---- the state ---- */

static const moegen_arg *arg_of(const moegen_layer *layer, int pass, const char *name)
{
    const moegen_kernel_facts *f = &layer->kernel[pass]->unit->facts;
    for (int i = 0; name && i < f->arg_count; i++)
        if (strcmp(f->args[i].name, name) == 0)
            return &f->args[i];
    return NULL;
}

static struct kept *kept_find(const moegen_layer_state *s, const char *name)
{
    for (int i = 0; name && i < s->count; i++)
        if (strcmp(s->kept[i].now.name, name) == 0)
            return (struct kept *)&s->kept[i];
    return NULL;
}

moegen_status moegen_layer_state_create(moegen_layer *layer, moegen_layer_state **state,
                                        moegen_error **err)
{
    if (!layer || !state)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "layer and state must not be NULL");
    moegen_layer_state *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    moegen_layer_retain(layer);
    s->layer = layer;
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < PASSES && !status; i++)
        status = moegen_call_create(layer->kernel[i], &s->call[i], err);
    for (const moegen_arg *a; (a = moegen_layer_state_arg(layer, (size_t)s->count)); s->count++)
        s->kept[s->count].now = (moegen_tensor){.name = a->name, .dtype = a->dtype};
    if (status)
        moegen_layer_state_release(s);
    else
        *state = s;
    return status;
}

void moegen_layer_state_release(moegen_layer_state *state)
{
    if (!state)
        return;
    for (int i = 0; i < PASSES; i++)
        moegen_call_release(state->call[i]);
    for (int i = 0; i < state->count; i++)
        free(state->kept[i].memory);
    moegen_layer_release(state->layer);
    free(state);
}

moegen_status moegen_layer_state_set_threads(moegen_layer_state *state, int threads,
                                             moegen_error **err)
{
    if (!state)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "state must not be NULL");
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < PASSES && !status; i++)
        status = moegen_call_set_threads(state->call[i], threads, err);
    return status;
}

moegen_status moegen_layer_state_tensor(const moegen_layer_state *state, const char *name,
                                        moegen_tensor *out, moegen_error **err)
{
    if (!state || !out)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "state and out must not be NULL");
    const struct kept *k = kept_find(state, name);
    if (!k)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "the state has no tensor '%s'",
                         name ? name : "(null)");
    if (!state->filled)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "the state holds no forward pass");
    *out = k->now;
    return MOEGEN_OK;
}

/* ---- what both passes do ---- */

/* Binds the caller's tensors: each must be one that the pass takes from the caller, and none of
 * those may be missing. All complaints. */
static moegen_status bind_given(moegen_layer_state *s, int pass, const moegen_tensor *t,
                                size_t count, moegen_error **err)
{
    const moegen_kernel_facts *f = &s->layer->kernel[pass]->unit->facts;
    moegen_status first = MOEGEN_OK, status;
    for (size_t i = 0; i < count; i++) {
        int a = arg_find(s->call[pass]->unit, t[i].name);
        if (kept_find(s, t[i].name) || (a >= 0 && s->lasting[pass][a]))
            status =
                error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' belongs to the state", t[i].name);
        else if (!t[i].data && (t[i].rank > MAX_RANK || !bind_is_empty(t[i].rank, t[i].shape)))
            status = error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' has no data",
                               t[i].name ? t[i].name : "(null)");
        else
            status = moegen_call_bind(s->call[pass], t[i].name, t[i].data, t[i].dtype, t[i].rank,
                                      t[i].shape, err);
        first = first ? first : status;
    }
    for (int a = 0; a < f->arg_count; a++) {
        bool given = f->args[a].optional || s->lasting[pass][a] || kept_find(s, f->args[a].name);
        for (size_t i = 0; i < count && !given; i++)
            given = t[i].name && strcmp(t[i].name, f->args[a].name) == 0;
        if (!given)
            status = error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' is missing", f->args[a].name);
        first = first || given ? first : status;
    }
    return first;
}

/* Forgets the caller's tensors. */
static void unbind_given(moegen_layer_state *s, int pass)
{
    const moegen_kernel_facts *f = &s->layer->kernel[pass]->unit->facts;
    for (int a = 0; a < f->arg_count; a++)
        if (!s->lasting[pass][a] && !kept_find(s, f->args[a].name))
            moegen_call_bind(s->call[pass], f->args[a].name, NULL, f->args[a].dtype, 0, NULL, NULL);
}

/* Complaints say which pass they are about. The status alone says whether it succeeded: where
 * memory is out, complaints may be missing. */
static moegen_status told(moegen_status status, int pass, moegen_error *all, moegen_error **err)
{
    for (size_t i = 0; all && i < all->count; i++)
        if (!all->diag[i].file)
            all->diag[i].file = strdup(ops[pass]);
    if (err && status)
        *err = all;
    else
        moegen_error_release(all);
    return status;
}

/* ---- forward ---- */

/* Memory for the state of a coming pass: new where the old is too small, so that the old stays. */
static moegen_status make_room(moegen_layer_state *s, struct kept *next, moegen_error **err)
{
    for (int i = 0; i < s->count; i++) {
        struct kept *k = &next[i];
        *k = (struct kept){.now = {.name = s->kept[i].now.name, .dtype = s->kept[i].now.dtype}};
        moegen_status status =
            moegen_call_shape(s->call[FORWARD], k->now.name, &k->now.rank, k->now.shape, err);
        if (status)
            return status;
        size_t bytes = moegen_dtype_size(k->now.dtype);
        for (int d = 0; d < k->now.rank; d++)
            if (__builtin_mul_overflow(bytes, (size_t)k->now.shape[d], &bytes))
                return error_set(err, MOEGEN_NO_MEMORY, "tensor '%s' is too large", k->now.name);
        k->now.data = s->kept[i].memory;
        if (bytes > s->kept[i].room || !s->kept[i].memory) {
            k->room = bytes / 64 * 64 + 64;
            k->now.data = k->memory = k->room > bytes ? aligned_alloc(64, k->room) : NULL;
        }
        if (!k->now.data)
            return error_set(err, MOEGEN_NO_MEMORY, "cannot allocate %zu bytes for tensor '%s'",
                             bytes, k->now.name);
        status = moegen_call_bind(s->call[FORWARD], k->now.name, k->now.data, k->now.dtype,
                                  k->now.rank, k->now.shape, err);
        if (status)
            return status;
    }
    return MOEGEN_OK;
}

/* The pass has succeeded: what it left is the state now. */
static void adopt(moegen_layer_state *s, struct kept *next)
{
    for (int i = 0; i < s->count; i++) {
        s->kept[i].now = next[i].now;
        if (!next[i].memory)
            continue;
        free(s->kept[i].memory);
        s->kept[i].memory = next[i].memory;
        s->kept[i].room = next[i].room;
        next[i].memory = NULL;
    }
    s->filled = true;
}

/* Tensors of the state are bound anew by every forward pass: the sizes of the last one must not
 * stand in the way. */
static void unbind_state(moegen_layer_state *s)
{
    for (int i = 0; i < s->count; i++)
        moegen_call_bind(s->call[FORWARD], s->kept[i].now.name, NULL, s->kept[i].now.dtype, 0, NULL,
                         NULL);
}

moegen_status moegen_layer_forward(moegen_layer_state *state, const moegen_tensor *tensors,
                                   size_t count, moegen_error **err)
{
    if (!state || (count && !tensors))
        return error_set(err, MOEGEN_BAD_ARGUMENT, "a state and tensors are needed");
    struct kept next[MAX_ARGS] = {0};
    moegen_error *all = NULL;
    moegen_status status = bind_given(state, FORWARD, tensors, count, &all);
    if (!status)
        status = make_room(state, next, &all);
    if (!status)
        status = moegen_call_run(state->call[FORWARD], &all);
    if (!status)
        adopt(state, next);
    for (int i = 0; i < state->count; i++)
        free(next[i].memory);
    unbind_given(state, FORWARD);
    unbind_state(state);
    return told(status, FORWARD, all, err);
}

/* ---- backward ---- */

/* The run-time sizes of the backward kernel that the state fixes; -1 where it does not. */
static void sizes_of(const moegen_layer_state *s, int64_t *size)
{
    const struct unit *u = s->layer->kernel[BACKWARD]->unit;
    for (int k = 0; k < MAX_DIMS; k++)
        size[k] = -1;
    for (int a = 0; a < u->facts.arg_count; a++) {
        const struct kept *k = kept_find(s, u->arg[a].name);
        for (int d = 0; k && d < u->arg[a].rank; d++)
            if (u->extent[a][d].dim >= 0)
                size[u->extent[a][d].dim] = extent_solve(&u->extent[a][d], k->now.shape[d]);
    }
}

/* The caller's tensors must have the sizes of the forward pass. */
static moegen_status fix_sizes(moegen_layer_state *s, const moegen_tensor *t, size_t count,
                               moegen_error **err)
{
    const struct unit *u = s->layer->kernel[BACKWARD]->unit;
    int64_t size[MAX_DIMS];
    struct text was = {0};
    sizes_of(s, size);
    moegen_status status = MOEGEN_OK;
    for (int k = 0; k < u->facts.dim_count && !status; k++) {
        text_fmt(&was, "%s%s = %" PRId64, k ? ", " : "", u->dim[k], size[k]);
        if (size[k] >= 0)
            status = moegen_call_set_size(s->call[BACKWARD], u->dim[k], size[k], err);
    }
    for (size_t i = 0; i < count; i++) {
        const moegen_arg *a = arg_of(s->layer, BACKWARD, t[i].name);
        for (int d = 0; a && d < a->rank && d < t[i].rank; d++) {
            const struct extent *x = &u->extent[a - u->arg][d];
            int64_t want = extent_value(x, size);
            if (x->dim >= 0 && want >= 0 && want != t[i].shape[d])
                status =
                    error_set(err, MOEGEN_BAD_ARGUMENT,
                              "tensor '%s' has %" PRId64 " for %s: the forward pass in the "
                              "state had %s",
                              a->name, t[i].shape[d], a->extent[d], was.at ? was.at : "others");
        }
    }
    text_free(&was);
    return status;
}

moegen_status moegen_layer_backward(moegen_layer_state *state, const moegen_tensor *tensors,
                                    size_t count, moegen_error **err)
{
    if (!state || (count && !tensors))
        return error_set(err, MOEGEN_BAD_ARGUMENT, "a state and tensors are needed");
    moegen_error *all = NULL;
    moegen_status status = MOEGEN_OK;
    if (!state->filled)
        status = error_set(&all, MOEGEN_BAD_ARGUMENT,
                           "the state holds no forward pass: call moegen_layer_forward first");
    if (!status)
        status = bind_given(state, BACKWARD, tensors, count, &all);
    if (!status)
        status = fix_sizes(state, tensors, count, &all);
    for (int i = 0; i < state->count && !status; i++) {
        const moegen_tensor *t = &state->kept[i].now;
        status = moegen_call_bind(state->call[BACKWARD], t->name, t->data, t->dtype, t->rank,
                                  t->shape, &all);
    }
    if (!status)
        status = moegen_call_run(state->call[BACKWARD], &all);
    unbind_given(state, BACKWARD);
    return told(status, BACKWARD, all, err);
}
