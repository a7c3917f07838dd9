/* SPDX-License-Identifier: Apache-2.0 */
/* empty_test.c - no tokens: tensors without elements are bound with NULL, as array libraries give
 * them, and are told from tensors that are not bound; in calls and in both passes of a layer.
 * Gradients of weights are zero then. */
#include "api.h"

#define BAD MOEGEN_BAD_ARGUMENT
#define LAYER                                                                                      \
    "kernel: moe_layer\nH: 24\nI_TP: 20\nE: 4\ntop_k: 2\nblock_size: 4\ndtype: f32\nop: forward\n"
static const char *const layers[] = {LAYER "name: own\n", LAYER "name: given\nrouter: given\n",
                                     LAYER
                                     "name: i64\nrouter: given\nindex_dtype: i64\nbias: true\n",
                                     LAYER "name: shared\nshared: {I: 8, gate: sigmoid}\n"};
#define MLP "H: 24\nI_TP: 20\ndtype: f32\n"
static const char *const mlps[] = {"kernel: mlp_forward\n" MLP, "kernel: mlp_backward\n" MLP,
                                   "kernel: mlp_backward\nquantize: mxfp8_e4m3\n" MLP};
enum { MOST = 32, ROOM = 1 << 16 };

/* A tensor for no tokens: NULL where an extent is 0, memory elsewhere. */
static moegen_tensor tensor_of(const moegen_arg *a)
{
    static char memory[MOST][ROOM];
    static int used;
    moegen_tensor t = {.name = a->name, .dtype = a->dtype, .rank = a->rank};
    bool empty = false;
    for (int d = 0; d < a->rank; d++) {
        t.shape[d] = strchr("ST", a->extent[d][0]) ? 0 : atoll(a->extent[d]);
        empty |= t.shape[d] == 0;
    }
    t.data = empty ? NULL : memory[used++ % MOST] + 64;
    t.data = empty ? NULL : (char *)t.data + (64 - (size_t)t.data % 64);
    return t;
}

static moegen_status bind(moegen_call *call, const moegen_tensor *t)
{
    return moegen_call_bind(call, t->name, t->data, t->dtype, t->rank, t->shape, NULL);
}

/* Of a call: gradients of weights, which may hold anything before. */
static void test_gradients(moegen_call *call, const moegen_kernel_facts *f)
{
    static float gradient[MOST][ROOM / sizeof(float)];
    memset(gradient, 0x7f, sizeof gradient);
    for (int i = 0; i < f->arg_count; i++) {
        moegen_tensor t = tensor_of(&f->args[i]);
        if (t.data && f->args[i].role == MOEGEN_OUT) {
            t.data = gradient[i];
            CHECK(!bind(call, &t));
        }
    }
    CHECK(!moegen_call_run(call, NULL));
    for (int i = 0; i < f->arg_count; i++) {
        moegen_tensor t = tensor_of(&f->args[i]);
        for (int64_t j = 0; t.data && f->args[i].role == MOEGEN_OUT && j < t.shape[0] * t.shape[1];
             j++)
            CHECK(gradient[i][j] == 0);
    }
}

static void test_call(moegen_engine *engine, const char *text)
{
    moegen_kernel *kernel = get(engine, text);
    moegen_kernel_facts f = {.struct_size = sizeof f};
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    int empty = 0;
    CHECK(!moegen_kernel_info(kernel, &f) && f.arg_count <= MOST);
    CHECK(!moegen_call_create(kernel, &call, NULL));
    for (int i = 0; i < f.arg_count; i++) {
        moegen_tensor t = tensor_of(&f.args[i]);
        empty += !t.data;
        CHECK(!bind(call, &t));
    }
    CHECK(empty >= 2);
    CHECK(!moegen_call_run(call, &err) && !err);
    test_gradients(call, &f);
    for (int i = 0; i < f.arg_count; i++) { /* each of them is unbound, and bound again */
        moegen_tensor t = tensor_of(&f.args[i]), other = t;
        if (t.data || f.args[i].optional)
            continue;
        for (int d = 0; d < other.rank; d++)
            other.shape[d] = other.shape[d] ? other.shape[d] : 7;
        for (int way = 0; way < 2; way++) {
            CHECK(!(way ? bind(call, &other)
                        : moegen_call_bind(call, t.name, NULL, t.dtype, 0, NULL, NULL)));
            CHECK(moegen_call_run(call, &err) == BAD);
            CHECK(strstr(moegen_error_text(err), "is not bound"));
            moegen_error_release(err);
            err = NULL;
            CHECK(!bind(call, &t) && !moegen_call_run(call, NULL));
        }
        t.dtype = MOEGEN_U8; /* empty, and wrong all the same */
        CHECK(bind(call, &t) == BAD);
    }
    moegen_call_release(call);
    moegen_kernel_release(kernel);
}

static void test_layer(moegen_engine *engine, const char *text)
{
    moegen_spec spec = spec_of(text);
    moegen_layer *layer = NULL;
    moegen_layer_state *state = NULL;
    moegen_error *err = NULL;
    CHECK(!moegen_layer_create(engine, &spec, &layer, NULL));
    CHECK(!moegen_layer_state_create(layer, &state, NULL));
    for (int pass = 0; pass < 2; pass++) {
        moegen_kernel_facts f = {.struct_size = sizeof f};
        moegen_tensor all[MOST];
        size_t count = 0;
        moegen_kernel_info(moegen_layer_kernel(layer, pass), &f);
        for (int i = 0; i < f.arg_count; i++) {
            moegen_tensor t;
            moegen_status kept = moegen_layer_state_tensor(state, f.args[i].name, &t, &err);
            if (kept && !strstr(moegen_error_text(err), "no forward pass"))
                all[count++] = tensor_of(&f.args[i]);
            moegen_error_release(err);
            err = NULL;
        }
        moegen_status status = pass ? moegen_layer_backward(state, all, count, &err)
                                    : moegen_layer_forward(state, all, count, &err);
        if (status)
            fprintf(stderr, "%s", moegen_error_text(err));
        CHECK(!status && !err);
        moegen_error_release(err);
        err = NULL;
        for (size_t i = 0; i < count; i++) { /* NULL for what has elements */
            moegen_tensor kept = all[i];
            if (!kept.data)
                continue;
            all[i].data = NULL;
            status = pass ? moegen_layer_backward(state, all, count, &err)
                          : moegen_layer_forward(state, all, count, &err);
            CHECK(status == BAD && strstr(moegen_error_text(err), "has no data"));
            moegen_error_release(err);
            err = NULL;
            all[i] = kept;
        }
    }
    moegen_layer_state_release(state);
    moegen_layer_release(layer);
}

int main(void)
{
    moegen_engine *engine = engine_of("", NULL);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        test_call(engine, layers[i]);
        test_layer(engine, layers[i]);
    }
    for (size_t i = 0; i < sizeof mlps / sizeof *mlps; i++)
        test_call(engine, mlps[i]);
    moegen_engine_release(engine);
    return failures != 0;
}
