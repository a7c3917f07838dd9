/* SPDX-License-Identifier: Apache-2.0 */
/* packed_layer_test.c - both passes of a layer with frozen weights, each packed for its own way:
 * forward has the bits of transposed weights, backward their gradients; neither takes the other's.
 */
#include <math.h>

#include "api.h"

enum { TOKENS = 37, HIDDEN = 40, INNER = 26, EXPERTS = 5, MOST = 16, LIST = 8 };
enum { NUMBERS = EXPERTS * 2 * INNER * HIDDEN };

static float values[NUMBERS];

struct pass {
    moegen_tensor t[LIST];
    size_t count;
};

static moegen_layer *layer_of(moegen_engine *engine, const char *target, const char *layout)
{
    char text[400];
    snprintf(text, sizeof text,
             "{kernel: moe_layer, name: k, H: %d, I_TP: %d, E: %d, top_k: 2, block_size: 8, "
             "dtype: f32, target: %s, spelling: scalar, weight_grads: none, weights: {layout: %s}}",
             HIDDEN, INNER, EXPERTS, target, layout);
    moegen_spec spec = spec_of(text);
    moegen_layer *layer = NULL;
    moegen_error *err = NULL;
    CHECK(!moegen_layer_create(engine, &spec, &layer, &err));
    if (err)
        fprintf(stderr, "%s", moegen_error_text(err));
    moegen_error_release(err);
    return layer;
}

static size_t bytes_of(const moegen_tensor *t)
{
    size_t bytes = moegen_dtype_size(t->dtype);
    for (int d = 0; d < t->rank; d++)
        bytes *= (size_t)t->shape[d];
    return bytes;
}

/* t's numbers are of rows that are contracted forward. */
static void pack(const moegen_kernel *kernel, moegen_tensor *t, int64_t k, int64_t c)
{
    moegen_tensor from = {
        .name = t->name, .data = values, .dtype = t->dtype, .rank = 3, .shape = {EXPERTS, c, k}};
    CHECK(!moegen_pack(kernel, "transposed", &from, t->data, bytes_of(t), 1, NULL));
}

/* The tensors of a pass but the state's, inputs filled. */
static struct pass pass_of(const moegen_layer *layer, int backward, bool packed)
{
    const moegen_kernel *kernel = moegen_layer_kernel(layer, backward);
    moegen_kernel_facts facts = {.struct_size = sizeof facts};
    struct pass p = {.count = 0};
    CHECK(!moegen_kernel_info(kernel, &facts));
    for (int i = 0; i < facts.arg_count; i++) {
        const moegen_arg *a = &facts.args[i], *state;
        bool is_state = false;
        for (size_t s = 0; (state = moegen_layer_state_arg(layer, s)); s++)
            is_state = is_state || strcmp(state->name, a->name) == 0;
        if (is_state)
            continue;
        moegen_tensor *t = &p.t[p.count++];
        int64_t sizes[MOST];
        for (int d = 0; d < MOST; d++)
            sizes[d] = d == 0 ? TOKENS : -1;
        *t = (moegen_tensor){.name = a->name, .dtype = a->dtype};
        CHECK(!moegen_layer_shape(layer, backward, a->name, sizes, &t->rank, t->shape, NULL));
        t->data = calloc(1, bytes_of(t));
        if (packed && strcmp(a->name, "gate_up_proj_weight") == 0)
            pack(kernel, t, HIDDEN, 2 * INNER);
        else if (packed && strcmp(a->name, "down_proj_weight") == 0)
            pack(kernel, t, INNER, HIDDEN);
        else if (a->role == MOEGEN_IN)
            memcpy(t->data, values, bytes_of(t));
    }
    return p;
}

static moegen_tensor *find(struct pass *p, const char *name)
{
    for (size_t i = 0; i < p->count; i++)
        if (strcmp(p->t[i].name, name) == 0)
            return &p->t[i];
    CHECK(!"a tensor of that name");
    return p->t;
}

static void release(struct pass *p)
{
    for (size_t i = 0; i < p->count; i++)
        free(p->t[i].data);
}

/* The largest difference, by the largest number. */
static double distance(const moegen_tensor *a, const moegen_tensor *b)
{
    double most = 0, apart = 0;
    for (size_t i = 0; i < bytes_of(a) / sizeof(float); i++) {
        double x = ((float *)a->data)[i], y = ((float *)b->data)[i];
        most = fmax(most, fabs(x));
        apart = fmax(apart, fabs(x - y));
    }
    return most > 0 ? apart / most : INFINITY;
}

/* The other way's weights in a pass: refused with what makes the right ones. */
static void test_swapped(moegen_layer_state *state, struct pass *forward, struct pass *backward)
{
    moegen_tensor *f = find(forward, "down_proj_weight"), *b = find(backward, "down_proj_weight"),
                  kept = *f;
    *f = *b;
    *b = kept;
    for (int back = 0; back < 2; back++) {
        const struct pass *p = back ? backward : forward;
        moegen_error *err = NULL;
        CHECK((back ? moegen_layer_backward : moegen_layer_forward)(state, p->t, p->count, &err) ==
                  MOEGEN_BAD_ARGUMENT &&
              strstr(moegen_error_text(err), "`moegen pack SPEC --in"));
        moegen_error_release(err);
    }
}

static void test_target(moegen_engine *engine, const char *target)
{
    static const char *const layouts[] = {"transposed", "packed"};
    moegen_layer_state *state[2];
    struct pass forward[2], backward[2];
    for (int i = 0; i < 2; i++) {
        moegen_layer *layer = layer_of(engine, target, layouts[i]);
        CHECK(!moegen_layer_state_create(layer, &state[i], NULL));
        forward[i] = pass_of(layer, 0, i);
        backward[i] = pass_of(layer, 1, i);
        moegen_layer_release(layer);
        CHECK(!moegen_layer_forward(state[i], forward[i].t, forward[i].count, NULL));
        CHECK(!moegen_layer_backward(state[i], backward[i].t, backward[i].count, NULL));
    }
    CHECK(distance(find(&forward[0], "output"), find(&forward[1], "output")) == 0);
    static const char *const grads[] = {"hidden_states_grad", "router_weight_grad"};
    for (int g = 0; g < 2; g++)
        CHECK(distance(find(&backward[0], grads[g]), find(&backward[1], grads[g])) < 1e-5);
    test_swapped(state[1], &forward[1], &backward[1]);
    for (int i = 0; i < 2; i++) {
        moegen_layer_state_release(state[i]);
        release(&forward[i]);
        release(&backward[i]);
    }
}

int main(void)
{
    static const char *const targets[] = {"scalar", "avx2", "avx512", "avx512_bf16"};
    moegen_engine *engine = engine_of("", NULL);
    unsigned seed = 5;
    for (int i = 0; i < NUMBERS; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = ((float)(seed >> 8) / 8388608.0f - 1.0f) / 4;
    }
    for (int t = 0; t < 4; t++)
        test_target(engine, targets[t]);
    moegen_engine_release(engine);
    return failures != 0;
}
