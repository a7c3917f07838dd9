/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_calls.c - the interface with an allocation that fails, number n = 1, 2, ... up to all that
 * a call makes, alone and with all later ones. What is wrong is refused by the status that it has
 * otherwise, and no kernel runs; what is right succeeds or is MOEGEN_NO_MEMORY.
 */
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || !defined(__GLIBC__)
int main(void)
{
    return 77; /* allocations are not ours to fail */
}
#else
#include "failing.h"
#include "api/unit.h"

/* ---- a kernel and its tensors ---- */

enum { ARGS = 7, EACH = I * H };
static struct {
    moegen_engine *engine;
    moegen_kernel *kernel, *lists; /* lists: takes a matrix for each expert */
    moegen_call *call;
} at;
static float hidden[(T + 1) * H], affinity[(T + 1) * E], gate_up[E * H * 2 * I], down[E * I * H];
static float output[(T + 1) * H];
static int32_t ids[BLOCKS * B], experts[BLOCKS];
static _Alignas(64) char small_workspace[64];

static const moegen_tensor right[ARGS] = {
    {"hidden_states", hidden, MOEGEN_F32, 2, {T + 1, H}},
    {"expert_affinities_masked", affinity, MOEGEN_F32, 1, {(T + 1) * E}},
    {"gate_up_proj_weight", gate_up, MOEGEN_F32, 4, {E, H, 2, I}},
    {"down_proj_weight", down, MOEGEN_F32, 3, {E, I, H}},
    {"token_position_to_id", ids, MOEGEN_I32, 2, {BLOCKS * B, 1}},
    {"block_to_expert", experts, MOEGEN_I32, 1, {BLOCKS}},
    {"output", output, MOEGEN_F32, 2, {T + 1, H}},
};

static moegen_status bind(const moegen_tensor *t, moegen_error **err)
{
    return moegen_call_bind(at.call, t->name, t->data, t->dtype, t->rank, t->shape, err);
}

/* A call with everything bound as it should be, and poison where the result goes. */
static void fresh_call(void)
{
    moegen_call_release(at.call);
    at.call = NULL;
    CHECK(!moegen_call_create(at.kernel, &at.call, NULL));
    for (int i = 0; i < ARGS; i++)
        CHECK(!bind(&right[i], NULL));
    for (int i = 0; i < BLOCKS; i++)
        experts[i] = i % E;
    memset(output, 0xff, sizeof output);
}

static bool output_untouched(void)
{
    return untouched(output, sizeof output);
}

static moegen_status run(moegen_error **err)
{
    return moegen_call_run(at.call, err);
}

/* ---- what is tried ---- */

static void unbound(void)
{
    moegen_tensor t = right[which];
    t.data = NULL;
    fresh_call();
    CHECK(!bind(&t, NULL));
}

static void all_unbound(void)
{
    fresh_call();
    for (int i = 0; i < ARGS; i++)
        CHECK(!moegen_call_bind(at.call, right[i].name, NULL, MOEGEN_F32, 0, NULL, NULL));
}

static void other_size(void)
{
    const moegen_tensor t = {"hidden_states", hidden, MOEGEN_F32, 2, {T, H}};
    fresh_call();
    CHECK(!bind(&t, NULL));
}

static void contradicted(void)
{
    fresh_call();
    CHECK(!moegen_call_set_size(at.call, "T", 2 * T, NULL));
}

static void overlapping(void)
{
    const moegen_tensor t = {"output", hidden, MOEGEN_F32, 2, {T + 1, H}};
    fresh_call();
    CHECK(!bind(&t, NULL));
}

static void cramped(void)
{
    fresh_call();
    CHECK(!moegen_call_set_workspace(at.call, small_workspace, sizeof small_workspace, NULL));
}

static void out_of_range(void)
{
    fresh_call();
    CHECK(!run(NULL));
    memset(output, 0xff, sizeof output);
    experts[0] = 77;
}

static void three_threads(void)
{
    fresh_call();
    CHECK(!moegen_call_set_threads(at.call, 3, NULL));
}

static moegen_status needed(moegen_error **err)
{
    size_t bytes;
    return moegen_call_workspace_bytes(at.call, &bytes, err);
}

static moegen_status shape_of_output(moegen_error **err)
{
    int rank;
    int64_t shape[8];
    return moegen_call_shape(at.call, "output", &rank, shape, err);
}

static moegen_status wrong_dtype(moegen_error **err)
{
    moegen_tensor t = right[which];
    t.dtype = MOEGEN_F16;
    return bind(&t, err);
}

static moegen_status wrong_shape(moegen_error **err)
{
    moegen_tensor t = right[which];
    t.rank++;
    t.shape[t.rank - 1] = 5;
    return bind(&t, err);
}

static moegen_status unaligned(moegen_error **err)
{
    moegen_tensor t = right[which];
    t.data = (char *)t.data + 1;
    return bind(&t, err);
}

static moegen_status constant(moegen_error **err)
{
    const moegen_tensor *t = &right[ARGS - 1];
    return moegen_call_bind_const(at.call, t->name, t->data, t->dtype, t->rank, t->shape, err);
}

static moegen_status no_such_tensor(moegen_error **err)
{
    moegen_tensor t = right[which];
    t.name = which ? "frogs" : NULL;
    return bind(&t, err);
}

static moegen_status no_such_size(moegen_error **err)
{
    return moegen_call_set_size(at.call, "frogs", 3, err);
}

static moegen_status too_many_threads(moegen_error **err)
{
    return moegen_call_set_threads(at.call, 5000, err);
}

/* The second matrices one by one and as one tensor; the last of them is there, or not. */
static moegen_status experts_of(const void *last, moegen_error **err)
{
    const void *const list[E] = {down, down, last};
    const int64_t each[] = {I, H}, all[] = {E, I, H};
    const char *name = "down_proj_weight";
    moegen_call *call = NULL;
    moegen_status status = moegen_call_create(at.lists, &call, err);
    if (!status)
        status = moegen_call_bind_const(call, name, down, MOEGEN_F32, 3, all, err);
    if (!status)
        status = moegen_call_bind_experts(call, name, list, E, MOEGEN_F32, 2, each, err);
    moegen_call_release(call);
    return status;
}

static moegen_status all_experts(moegen_error **err)
{
    return experts_of(down + EACH, err);
}

static moegen_status all_but_one(moegen_error **err)
{
    return experts_of(NULL, err);
}

/* ---- making ---- */

static void nothing(void) {}

static moegen_status make(moegen_error **err)
{
    moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = "", .threads = 1};
    moegen_engine *engine = NULL;
    moegen_kernel *kernel = NULL;
    moegen_spec spec = spec_of(text);
    moegen_status status = moegen_engine_create(&o, &engine, err);
    if (!status)
        status = moegen_kernel_get(engine, &spec, &kernel, err);
    CHECK((status == MOEGEN_OK) == (kernel != NULL));
    moegen_kernel_release(kernel);
    moegen_engine_release(engine);
    return status;
}

static moegen_status generate(moegen_error **err)
{
    moegen_source *source = NULL;
    moegen_spec spec = spec_of(text);
    moegen_status status = moegen_generate(at.engine, &spec, &source, err);
    CHECK((status == MOEGEN_OK) == (source != NULL));
    CHECK(status || (strstr(moegen_source_c(source), "toy") && *moegen_source_name(source)));
    moegen_source_release(source);
    return status;
}

static moegen_status make_layer(moegen_error **err)
{
    moegen_layer *layer = NULL;
    moegen_spec spec = spec_of(text);
    moegen_status status = moegen_layer_create(at.engine, &spec, &layer, err);
    moegen_layer_release(layer);
    return status;
}

static struct crew *crew;

/* A kernel for a CPU that is not this one, from its metadata. */
static moegen_status lacking(moegen_error **err)
{
    static const char meta[] = "moegen-kernel 1\nname x\nrequires frogs toads\nentry e\n"
                               "workspace w\nthreads 1\n";
    struct unit *unit = NULL;
    moegen_status status = unit_create(meta, sizeof meta - 1, crew, &unit, err);
    if (!status)
        status = unit_check_cpu(unit, err);
    unit_release(unit);
    return status;
}

/* ---- the table ---- */

#define BAD MOEGEN_BAD_ARGUMENT
static const char lists[] =
    "kernel: moe_forward\nname: lists\nH: 24\nI_TP: 20\nE: 3\ntop_k: 1\nblock_size: 4\n"
    "dtype: f32\nweights: {experts: separate}\n";
static const char bad_spec[] = "kernel: moe_forward\nH: 0\nE: -2\ncheckpont: save\n";
static const struct attempt attempts[] = {
    {"good call", MOEGEN_OK, true, fresh_call, run, output_untouched, 0, NULL, 0},
    {"good call of three", MOEGEN_OK, true, three_threads, run, output_untouched, 0, NULL, 0},
    {"unbound tensor", BAD, false, unbound, run, output_untouched, ARGS, NULL, 0},
    {"nothing bound", BAD, false, all_unbound, run, output_untouched, 0, NULL, 0},
    {"workspace of unbound", BAD, false, unbound, needed, NULL, ARGS, NULL, 0},
    {"another size", BAD, false, other_size, run, output_untouched, 0, NULL, 0},
    {"a size set otherwise", BAD, false, contradicted, run, output_untouched, 0, NULL, 0},
    {"overlap", BAD, false, overlapping, run, output_untouched, 0, NULL, 0},
    {"small workspace", BAD, false, cramped, run, output_untouched, 0, NULL, 0},
    {"expert out of range", MOEGEN_BAD_DATA, false, out_of_range, run, output_untouched, 0, NULL,
     0},
    {"dtype", BAD, false, fresh_call, wrong_dtype, NULL, ARGS, NULL, 0},
    {"shape", BAD, false, fresh_call, wrong_shape, NULL, ARGS, NULL, 0},
    {"alignment", BAD, false, fresh_call, unaligned, NULL, ARGS, NULL, 0},
    {"const output", BAD, false, fresh_call, constant, NULL, 0, NULL, 0},
    {"unknown tensor", BAD, false, fresh_call, no_such_tensor, NULL, 2, NULL, 0},
    {"unknown size", BAD, false, fresh_call, no_such_size, NULL, 0, NULL, 0},
    {"threads", BAD, false, fresh_call, too_many_threads, NULL, 0, NULL, 0},
    {"shape of what is unknown", BAD, false, all_unbound, shape_of_output, NULL, 0, NULL, 0},
    {"experts", MOEGEN_OK, true, nothing, all_experts, NULL, 0, NULL, 0},
    {"an expert too few", BAD, true, nothing, all_but_one, NULL, 0, NULL, 0},
    {"lacking CPU", MOEGEN_UNSUPPORTED, true, nothing, lacking, NULL, 0, NULL, 0},
    {"good spec", MOEGEN_OK, true, nothing, make, NULL, 0, toy, 3},
    {"bad spec", MOEGEN_BAD_SPEC, true, nothing, make, NULL, 0, bad_spec, 1},
    {"no YAML", MOEGEN_BAD_SPEC, true, nothing, make, NULL, 0, "{a: [1, 2\n", 1},
    {"good source", MOEGEN_OK, true, nothing, generate, NULL, 0, toy, 5},
    {"bad source", MOEGEN_BAD_SPEC, true, nothing, generate, NULL, 0, bad_spec, 3},
    {"bad layer", MOEGEN_BAD_SPEC, true, nothing, make_layer, NULL, 0, bad_spec, 7},
};

int main(int argc, char **argv)
{
    at.engine = engine_of("", "");
    at.kernel = get(at.engine, toy);
    at.lists = get(at.engine, lists);
    crew = crew_create(1);
    if (!at.kernel || !crew)
        return 1;
    for (int i = 0; i < BLOCKS * B; i++)
        ids[i] = i < T ? i : T;
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++)
        if (argc < 2 || strstr(attempts[i].what, argv[1]))
            every(&attempts[i]);
    moegen_call_release(at.call);
    moegen_kernel_release(at.kernel);
    moegen_kernel_release(at.lists);
    moegen_engine_release(at.engine);
    crew_release(crew);
    return failures != 0;
}
#endif
