/* SPDX-License-Identifier: Apache-2.0 */
/* memory_layers.c - what memory_calls.c does with calls, with the passes of a layer. */
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || !defined(__GLIBC__)
int main(void)
{
    return 77; /* allocations are not ours to fail */
}
#else
#include "api/call.h"
#include "failing.h"

enum { TOKENS = 3, ROOM = 1 << 20 };
static const char toy_layer[] = "kernel: moe_layer\nname: toys\nH: 24\nI_TP: 20\nE: 4\ntop_k: 2\n"
                                "block_size: 4\ndtype: f32\n";
static struct {
    moegen_layer *layer;
    moegen_layer_state *state;
    moegen_tensor given[2][MAX_ARGS]; /* of forward and backward */
    size_t count[2];
    void *memory; /* where all of them are */
} at;

static void fresh_layer(void)
{
    static unsigned seed = 1;
    moegen_layer_state_release(at.state);
    at.state = NULL;
    CHECK(!moegen_layer_state_create(at.layer, &at.state, NULL));
    free(at.memory);
    char *place = at.memory = aligned_alloc(64, ROOM);
    for (int pass = 0; pass < 2; pass++) {
        moegen_kernel_facts f = {.struct_size = sizeof f};
        CHECK(!moegen_kernel_info(moegen_layer_kernel(at.layer, pass), &f));
        at.count[pass] = 0;
        for (int i = 0; i < f.arg_count; i++) {
            const moegen_arg *a = &f.args[i];
            moegen_tensor *t = &at.given[pass][at.count[pass]];
            moegen_error *err = NULL;
            size_t n = 1;
            *t = (moegen_tensor){.name = a->name, .dtype = a->dtype, .rank = a->rank};
            moegen_status kept = moegen_layer_state_tensor(at.state, a->name, t, &err);
            CHECK(kept == MOEGEN_BAD_ARGUMENT);
            bool state = strstr(moegen_error_text(err), "no forward pass") != NULL;
            moegen_error_release(err);
            if (state) /* it is of the state */
                continue;
            for (int d = 0; d < a->rank; d++) {
                t->shape[d] = strcmp(a->extent[d], "T") == 0 ? TOKENS : atoll(a->extent[d]);
                n *= (size_t)t->shape[d];
            }
            t->data = place;
            for (size_t k = 0; k < n && a->role == MOEGEN_IN && a->dtype == MOEGEN_F32; k++)
                ((float *)t->data)[k] =
                    (float)((seed = seed * 1664525u + 1013904223u) >> 9) * 1e-7f;
            if (a->role != MOEGEN_IN)
                memset(place, 0xff, n * moegen_dtype_size(a->dtype));
            place += (n * moegen_dtype_size(a->dtype) + 127) / 64 * 64;
            at.count[pass]++;
        }
    }
    CHECK(place < (char *)at.memory + ROOM);
}

static void filled_layer(void)
{
    moegen_error *err = NULL;
    fresh_layer();
    moegen_status status = moegen_layer_forward(at.state, at.given[0], at.count[0], &err);
    if (status)
        fprintf(stderr, "%s", moegen_error_text(err));
    CHECK(!status);
    for (size_t i = 0; i < at.count[0]; i++) /* poison again */
        if (strcmp(at.given[0][i].name, "output") == 0)
            memset(at.given[0][i].data, 0xff, (size_t)(TOKENS * 24 * 4));
}

static moegen_status forward(moegen_error **err)
{
    return moegen_layer_forward(at.state, at.given[0], at.count[0], err);
}

static moegen_status backward(moegen_error **err)
{
    return moegen_layer_backward(at.state, at.given[1], at.count[1], err);
}

static moegen_status backward_missing(moegen_error **err)
{
    return moegen_layer_backward(at.state, at.given[1], at.count[1] - 1, err);
}

static moegen_status forward_missing(moegen_error **err)
{
    return moegen_layer_forward(at.state, at.given[0] + 1, at.count[0] - 1, err);
}

static void no_data(void)
{
    fresh_layer();
    at.given[0][0].data = NULL;
}

static void no_such_name(void)
{
    fresh_layer();
    at.given[0][0].name = "frogs";
}

static void state_given(void)
{
    fresh_layer();
    at.given[0][at.count[0]] =
        (moegen_tensor){"logits", at.given[0][0].data, MOEGEN_F32, 2, {TOKENS, 4}};
    at.count[0]++;
}

static void output_over_input(void)
{
    fresh_layer();
    for (size_t i = 0; i < at.count[0]; i++)
        if (strcmp(at.given[0][i].name, "output") == 0)
            at.given[0][i].data = at.given[0][0].data;
}

static void other_tokens(void)
{
    filled_layer();
    for (size_t i = 0; i < at.count[1]; i++)
        if (at.given[1][i].rank && at.given[1][i].shape[0] == TOKENS)
            at.given[1][i].shape[0] = TOKENS - 1;
}

/* No output of either pass was written. */
static bool layer_untouched(void)
{
    for (int pass = 0; pass < 2; pass++) {
        moegen_kernel_facts f = {.struct_size = sizeof f};
        CHECK(!moegen_kernel_info(moegen_layer_kernel(at.layer, pass), &f));
        for (size_t i = 0; i < at.count[pass]; i++)
            for (int a = 0; a < f.arg_count; a++)
                if (strcmp(f.args[a].name, at.given[pass][i].name) == 0 &&
                    f.args[a].role == MOEGEN_OUT && at.given[pass][i].data != at.given[0][0].data &&
                    (pass || strcmp(f.args[a].name, "output") == 0) &&
                    !untouched(at.given[pass][i].data, 16))
                    return false;
    }
    return true;
}

#define BAD MOEGEN_BAD_ARGUMENT
static const struct attempt attempts[] = {
    {"good forward", MOEGEN_OK, true, fresh_layer, forward, layer_untouched, 0, NULL, 0},
    {"good backward", MOEGEN_OK, true, filled_layer, backward, layer_untouched, 0, NULL, 0},
    {"no forward pass", BAD, false, fresh_layer, backward, layer_untouched, 0, NULL, 0},
    {"missing in forward", BAD, false, fresh_layer, forward_missing, layer_untouched, 0, NULL, 0},
    {"missing in backward", BAD, false, filled_layer, backward_missing, layer_untouched, 0, NULL,
     0},
    {"no data", BAD, false, no_data, forward, layer_untouched, 0, NULL, 0},
    {"unknown in forward", BAD, false, no_such_name, forward, layer_untouched, 0, NULL, 0},
    {"tensor of the state", BAD, false, state_given, forward, layer_untouched, 0, NULL, 0},
    {"overlap in forward", BAD, true, output_over_input, forward, layer_untouched, 0, NULL, 0},
    {"other tokens", BAD, false, other_tokens, backward, layer_untouched, 0, NULL, 0},
};

int main(void)
{
    moegen_spec spec = spec_of(toy_layer);
    moegen_engine *engine = engine_of("", "");
    CHECK(!moegen_layer_create(engine, &spec, &at.layer, NULL));
    if (!at.layer)
        return 1;
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++)
        every(&attempts[i]);
    moegen_layer_state_release(at.state);
    moegen_layer_release(at.layer);
    moegen_engine_release(engine);
    free(at.memory);
    return failures != 0;
}
#endif
