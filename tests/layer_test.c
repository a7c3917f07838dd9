/* SPDX-License-Identifier: Apache-2.0 */
/* layer_test.c - forward and backward passes with a state between them: what is refused does not
 * harm the state; dispatches and checkpoints agree. Uses moegen.h only. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moegen.h"

static int failures;
#define CHECK(x) ((x) ? (void)0 : failed(__LINE__, #x))

static void failed(int line, const char *what)
{
    fprintf(stderr, "layer_test.c:%d: not so: %s\n", line, what);
    failures++;
}

static const char toy[] = "kernel: moe_layer\nname: toy\nH: 24\nI_TP: 20\nE: 4\ntop_k: 2\n"
                          "block_size: 4\ndtype: f32\nrouter_bias: true\n"
                          "bias: true\naux_loss: {z: 0.1}\n";
/* Experts are Linear, LayerNorm, activation, Linear. */
static const char normed[] = "kernel: moe_layer\nname: normed\nH: 24\nI_TP: 20\nE: 4\ntop_k: 2\n"
                             "block_size: 4\ndtype: f32\ngated: false\nnorm: layer\nbias: true\n";
/* Experts are frozen codes, any byte is one; and all tokens share one. */
static const char frozen[] =
    "kernel: moe_layer\nname: frozen\nH: 24\nI_TP: 20\nE: 4\ntop_k: 2\nblock_size: 4\ndtype: f32\n"
    "weight_grads: none\nweights: {dtype: int8, layout: transposed}\nshared: {I: 12, gate: "
    "sigmoid}\n";
static const char *const specs[] = {toy, normed, frozen};
enum { MAX_TENSORS = 24, FORWARD = 0, BACKWARD = 1 };

static moegen_engine *engine;

/* ---- the caller's tensors of one pass ---- */

struct tensors {
    moegen_tensor t[MAX_TENSORS];
    bool written[MAX_TENSORS];
    size_t count;
};

static size_t elements(const moegen_tensor *t)
{
    size_t n = 1;
    for (int d = 0; d < t->rank; d++)
        n *= (size_t)t->shape[d];
    return n;
}

/* The same values for the same name, whatever the size. */
static void fill(moegen_tensor *t)
{
    unsigned seed = 7;
    for (const char *c = t->name; *c; c++)
        seed = seed * 31 + (unsigned char)*c;
    for (size_t i = 0; i < elements(t); i++) {
        seed = seed * 1664525u + 1013904223u;
        ((float *)t->data)[i] = ((float)(seed >> 8) / 8388608.0f - 1.0f) * 0.8f;
    }
}

/* What a pass takes from the caller for T tokens: all but the state. */
static struct tensors tensors_of(const moegen_layer *layer, int pass, int64_t T)
{
    moegen_kernel_facts f[2] = {{.struct_size = sizeof *f}, {.struct_size = sizeof *f}};
    struct tensors all = {.count = 0};
    for (int i = 0; i < 2; i++)
        CHECK(!moegen_kernel_info(moegen_layer_kernel(layer, i), &f[i]));
    for (int i = 0; i < f[pass].arg_count; i++) {
        const moegen_arg *a = &f[pass].args[i];
        bool state = false;
        for (int j = 0; j < f[!pass].arg_count; j++) {
            const moegen_arg *b = &f[!pass].args[j];
            state |= strcmp(a->name, b->name) == 0 && a->role != b->role;
        }
        if (state)
            continue;
        moegen_tensor *t = &all.t[all.count];
        *t = (moegen_tensor){.name = a->name, .dtype = a->dtype, .rank = a->rank};
        for (int d = 0; d < a->rank; d++)
            t->shape[d] = strcmp(a->extent[d], "T") == 0 ? T : atoll(a->extent[d]);
        t->data = aligned_alloc(64, (elements(t) * 4 + 63) / 64 * 64);
        if (!t->data)
            abort();
        all.written[all.count++] = a->role != MOEGEN_IN;
        if (a->role == MOEGEN_IN)
            fill(t);
        else
            memset(t->data, 0xff, elements(t) * 4);
    }
    return all;
}

static void drop(struct tensors *all)
{
    for (size_t i = 0; i < all->count; i++)
        free(all->t[i].data);
}

static moegen_tensor *find(struct tensors *all, const char *name)
{
    for (size_t i = 0; i < all->count; i++)
        if (strcmp(all->t[i].name, name) == 0)
            return &all->t[i];
    CHECK(!"such a tensor");
    return all->t;
}

/* Largest difference between outputs of the same name, relative to the largest value. */
static double apart(struct tensors *a, struct tensors *b)
{
    double most = 0;
    for (size_t i = 0; i < a->count; i++) {
        const float *x = a->t[i].data, *y = find(b, a->t[i].name)->data;
        double size = 0, difference = 0;
        for (size_t j = 0; a->written[i] && j < elements(&a->t[i]); j++) {
            size = fmax(size, fabs((double)x[j]));
            difference =
                x[j] - y[j] == 0 ? difference : fmax(difference, fabs((double)(x[j] - y[j])));
            most = x[j] != x[j] || y[j] != y[j] ? INFINITY : most;
        }
        most = fmax(most, size > 0 ? difference / size : difference);
    }
    return most;
}

/* ---- layers ---- */

static moegen_layer *layer_of(const char *text, const char *key, const char *value)
{
    moegen_override set = {key, value};
    moegen_spec spec = {.struct_size = sizeof spec,
                        .text = text,
                        .len = strlen(text),
                        .overrides = &set,
                        .override_count = key != NULL};
    moegen_layer *layer = NULL;
    moegen_error *err = NULL;
    CHECK(moegen_layer_create(engine, &spec, &layer, &err) == MOEGEN_OK);
    if (err)
        fprintf(stderr, "%s", moegen_error_text(err));
    moegen_error_release(err);
    return layer;
}

static moegen_layer_state *state_of(moegen_layer *layer)
{
    moegen_layer_state *state = NULL;
    CHECK(moegen_layer_state_create(layer, &state, NULL) == MOEGEN_OK);
    return state;
}

static bool says(moegen_status got, moegen_status want, moegen_error **err, const char *sentence)
{
    bool right = got == want && *err && strstr(moegen_error_text(*err), sentence);
    if (!right)
        fprintf(stderr, "status %d, expected %d and '%s':\n%s", (int)got, (int)want, sentence,
                moegen_error_text(*err));
    moegen_error_release(*err);
    *err = NULL;
    return right;
}

static void run(moegen_layer_state *state, int pass, struct tensors *all)
{
    moegen_error *err = NULL;
    moegen_status status =
        (pass ? moegen_layer_backward : moegen_layer_forward)(state, all->t, all->count, &err);
    if (status)
        fprintf(stderr, "%s", moegen_error_text(err));
    CHECK(status == MOEGEN_OK);
    moegen_error_release(err);
}

/* ---- tests ---- */

static void test_specs(void)
{
    static const char none[] =
        "{kernel: moe_layer, H: 8, I_TP: 8, E: 2, block_size: 4, dtype: f32, "
        "checkpoint: none}";
    static const char other[] = "{kernel: moe_index, E: 2, block_size: 4}";
    moegen_spec spec = {.struct_size = sizeof spec, .text = none, .len = strlen(none)};
    moegen_layer *layer = NULL;
    moegen_error *err = NULL;
    moegen_status status = moegen_layer_create(engine, &spec, &layer, &err);
    CHECK(says(status, MOEGEN_BAD_SPEC, &err, "checkpoint = none leaves nothing for op"));
    spec.text = other;
    spec.len = strlen(other);
    status = moegen_layer_create(engine, &spec, &layer, &err);
    CHECK(says(status, MOEGEN_BAD_SPEC, &err, "unknown key 'op'"));
    CHECK(moegen_layer_create(engine, NULL, &layer, NULL) == MOEGEN_BAD_ARGUMENT && !layer);
    CHECK(moegen_layer_state_create(NULL, NULL, NULL) == MOEGEN_BAD_ARGUMENT);
    CHECK(moegen_layer_kernel(NULL, 0) == NULL);
    moegen_layer_release(NULL);
    moegen_layer_state_release(NULL);
}

/* Every mistake in a tensor of a forward pass; at last the tensor is as it was. */
static void spoil(moegen_layer_state *state, struct tensors *in)
{
    moegen_error *err = NULL;
    moegen_status status;
    moegen_tensor *x = find(in, "hidden_states");
    x->shape[1] = 23;
    status = moegen_layer_forward(state, in->t, in->count, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err,
               "forward: error: tensor 'hidden_states' is f32 [9, 23], expected f32 [T, 24]"));
    x->shape[1] = 24;
    x->dtype = MOEGEN_BF16;
    status = moegen_layer_forward(state, in->t, in->count, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "is bf16 [9, 24], expected f32"));
    x->dtype = MOEGEN_F32;
    x->name = "hidden";
    status = moegen_layer_forward(state, in->t, in->count, &err);
    CHECK(moegen_error_count(err) == 2); /* one is unknown, one is missing */
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "has no tensor 'hidden'"));
    x->name = "logits";
    status = moegen_layer_forward(state, in->t, in->count, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "tensor 'logits' belongs to the state"));
    x->name = "hidden_states";
    x->shape[0] = 8; /* the output has 9 */
    status = moegen_layer_forward(state, in->t, in->count, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "tensor 'output' is f32 [9, 24], expected"));
    x->shape[0] = 9;
    void *data = x->data;
    x->data = find(in, "output")->data;
    status = moegen_layer_forward(state, in->t, in->count, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "'output' overlaps tensor 'hidden_states'"));
    x->data = NULL;
    status = moegen_layer_forward(state, in->t, in->count, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "tensor 'hidden_states' has no data"));
    x->data = data;
}

/* Every mistake is told, and the state before it stays good. */
static void test_errors(void)
{
    moegen_layer *layer = layer_of(toy, NULL, NULL);
    moegen_layer_state *state = state_of(layer);
    moegen_error *err = NULL;
    moegen_tensor found;
    struct tensors in = tensors_of(layer, FORWARD, 9), grads = tensors_of(layer, BACKWARD, 9);
    struct tensors again = tensors_of(layer, BACKWARD, 9), other = tensors_of(layer, BACKWARD, 5);
    moegen_layer_release(layer); /* the state keeps it */
    moegen_status status = moegen_layer_backward(state, grads.t, grads.count, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "backward: error: the state holds no forward"));
    status = moegen_layer_state_tensor(state, "logits", &found, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "holds no forward pass"));
    status = moegen_layer_forward(state, in.t + 1, in.count - 1, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "tensor 'hidden_states' is missing"));
    status = moegen_layer_backward(state, grads.t, grads.count, NULL);
    CHECK(status == MOEGEN_BAD_ARGUMENT); /* still none */
    run(state, FORWARD, &in);
    run(state, BACKWARD, &grads);
    spoil(state, &in);
    status = moegen_layer_backward(state, other.t, other.count, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err,
               "has 5 for T: the forward pass in the state had T = 9"));
    status = moegen_layer_backward(state, grads.t, grads.count - 1, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "is missing"));

    run(state, BACKWARD, &again); /* and it is still the first pass's */
    CHECK(apart(&grads, &again) == 0);
    CHECK(!moegen_layer_state_tensor(state, "expert_index", &found, NULL));
    CHECK(found.dtype == MOEGEN_I32 && found.rank == 2 && found.shape[0] == 9 &&
          found.shape[1] == 2 && *(int32_t *)found.data >= 0 && *(int32_t *)found.data < 4);
    status = moegen_layer_state_tensor(state, "output", &found, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "the state has no tensor 'output'"));
    struct tensors *const all[] = {&in, &grads, &again, &other};
    for (int i = 0; i < 4; i++)
        drop(all[i]);
    moegen_layer_state_release(state);
}

/* The same bits with one state for all sizes, a fresh one, and any number of threads. */
static void test_reuse(const char *text)
{
    static const int64_t sizes[] = {3, 40, 1, 40, 7};
    moegen_layer *layer = layer_of(text, NULL, NULL);
    moegen_layer_state *used = state_of(layer);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        moegen_layer_state *fresh = state_of(layer);
        struct tensors a = tensors_of(layer, FORWARD, sizes[i]);
        struct tensors b = tensors_of(layer, FORWARD, sizes[i]);
        struct tensors da = tensors_of(layer, BACKWARD, sizes[i]);
        struct tensors db = tensors_of(layer, BACKWARD, sizes[i]);
        CHECK(!moegen_layer_state_set_threads(fresh, 1 + (int)i % 3, NULL));
        run(used, FORWARD, &a);
        run(fresh, FORWARD, &b);
        run(used, BACKWARD, &da);
        run(fresh, BACKWARD, &db);
        CHECK(apart(&a, &b) == 0 && apart(&da, &db) == 0);
        run(used, BACKWARD, &da); /* twice */
        CHECK(apart(&da, &db) == 0);
        struct tensors *const all[] = {&a, &b, &da, &db};
        for (int j = 0; j < 4; j++)
            drop(all[j]);
        moegen_layer_state_release(fresh);
    }
    CHECK(moegen_layer_state_set_threads(used, -1, NULL) == MOEGEN_BAD_ARGUMENT);
    moegen_layer_state_release(used);
    moegen_layer_release(layer);
}

/* Two ways to the same gradients. */
static void test_ways(const char *text, const char *key, const char *value)
{
    moegen_layer *layer[2] = {layer_of(text, NULL, NULL), layer_of(text, key, value)};
    struct tensors out[2], grads[2];
    for (int i = 0; i < 2; i++) {
        moegen_layer_state *state = state_of(layer[i]);
        out[i] = tensors_of(layer[i], FORWARD, 33);
        grads[i] = tensors_of(layer[i], BACKWARD, 33);
        run(state, FORWARD, &out[i]);
        run(state, BACKWARD, &grads[i]);
        moegen_layer_state_release(state);
    }
    CHECK(apart(&out[0], &out[1]) < 2e-6);
    CHECK(apart(&grads[0], &grads[1]) < 2e-6);
    for (int i = 0; i < 2; i++) {
        drop(&out[i]);
        drop(&grads[i]);
        moegen_layer_release(layer[i]);
    }
}

/* Binds the experts' matrices among the tensors of a pass as lists of the state; the others. */
static struct tensors list_experts(moegen_layer_state *state, struct tensors *all)
{
    struct tensors rest = {.count = 0};
    for (size_t i = 0; i < all->count; i++) {
        moegen_tensor *t = &all->t[i];
        const void *list[8] = {0};
        if (all->written[i] || !strstr(t->name, "proj_weight")) {
            rest.written[rest.count] = all->written[i];
            rest.t[rest.count++] = *t;
            continue;
        }
        for (int64_t e = 0; e < t->shape[0]; e++)
            list[e] = (float *)t->data + (size_t)e * elements(t) / (size_t)t->shape[0];
        CHECK(!moegen_layer_state_bind_experts(state, t->name, list, t->shape[0], t->dtype,
                                               t->rank - 1, t->shape + 1, NULL));
    }
    return rest;
}

/* Lists that the state keeps, against tensors that are passed. */
static void test_experts(void)
{
    moegen_layer *layer = layer_of(toy, "weights", "{experts: separate, gate_up: separate}");
    moegen_layer_state *state = state_of(layer);
    moegen_error *err = NULL;
    const int64_t shape[] = {24, 20};
    struct tensors all[2][2], rest[2];
    for (int i = 0; i < 2; i++)
        for (int pass = 0; pass < 2; pass++) {
            all[i][pass] = tensors_of(layer, pass, 33);
            if (i == 1)
                rest[pass] = list_experts(state, &all[i][pass]);
            for (int again = 0; again < 2; again++)
                run(state, pass, i ? &rest[pass] : &all[i][pass]);
        }
    for (int pass = 0; pass < 2; pass++)
        CHECK(apart(&all[0][pass], &all[1][pass]) == 0);
    moegen_status status =
        moegen_layer_forward(state, all[0][FORWARD].t, all[0][FORWARD].count, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "'up_proj_weight' belongs to the state"));
    status = moegen_layer_state_bind_experts(state, "frogs", NULL, 0, MOEGEN_F32, 2, shape, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "no tensor 'frogs'"));
    status = moegen_layer_state_bind_experts(state, "up_proj_weight", (const void *[]){shape}, 1,
                                             MOEGEN_F32, 2, shape, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "but 1 matrices are given"));
    status = moegen_layer_forward(state, rest[FORWARD].t, rest[FORWARD].count, &err);
    CHECK(says(status, MOEGEN_BAD_ARGUMENT, &err, "tensor 'up_proj_weight' is missing"));
    for (int i = 0; i < 4; i++)
        drop(&all[i / 2][i % 2]);
    moegen_layer_state_release(state);
    moegen_layer_release(layer);
}

int main(void)
{
    moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = "", .threads = 2};
    CHECK(moegen_engine_create(&o, &engine, NULL) == MOEGEN_OK);
    test_specs();
    test_errors();
    test_experts();
    for (int i = 0; i < 3; i++) {
        test_reuse(specs[i]);
        test_ways(specs[i], "dispatch", "dense");
        test_ways(specs[i], "checkpoint", "recompute");
    }
    moegen_engine_release(engine);
    printf("%d complaints\n", failures);
    return failures != 0;
}
