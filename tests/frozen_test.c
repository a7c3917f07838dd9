/* SPDX-License-Identifier: Apache-2.0 */
/* frozen_test.c - the way back through weights that are stored as codes: gradients of tokens and
 * affinities have the same bits as those of the f32 numbers that the codes are, decoded here on
 * their own; and a code or a scale that is no number reaches what it must and nothing else. */
#include "settings.h"
#include "stored.h"

enum { RESULTS = 2 };
static const char *const results[RESULTS] = {"hidden_states_grad", "expert_affinities_masked_grad"};
static int compared, infected;

static moegen_kernel *kernel_of(moegen_engine *engine, const struct how *w, const char *more)
{
    char head[256], sets[512];
    int n = snprintf(sets, sizeof sets, "%s ", more);
    say(w, sets + n, sizeof sets - (size_t)n);
    snprintf(head, sizeof head,
             "kernel: moe_backward\nH: %lld\nI_TP: %lld\nE: %lld\ntop_k: 2\nblock_size: 4\n"
             "plan: {kc: 128, along: 0}\n",
             (long long)w->H, (long long)w->I, (long long)w->E);
    return kernel_with(engine, head, sets);
}

/* Runs a kernel on the tensors of a problem that it has a name for; the results are for the caller
 * to free. */
static void run(const moegen_kernel *kernel, const moegen_rt_problem *p, float *out[RESULTS],
                int64_t count[RESULTS])
{
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    CHECK(!moegen_call_create(kernel, &call, NULL), "no call");
    for (size_t i = 0; moegen_rt_problem_at(p, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(p, i);
        moegen_call_bind_const(call, t->name, t->data, (moegen_dtype)t->dtype, t->rank, t->shape,
                               NULL); /* or the kernel has no such tensor */
    }
    const char *const from[RESULTS] = {"hidden_states", "expert_affinities_masked"};
    for (int i = 0; i < RESULTS; i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, from[i]);
        count[i] = moegen_rt_tensor_count(t);
        out[i] = malloc((size_t)count[i] * sizeof(float));
        memset(out[i], 0xff, (size_t)count[i] * sizeof(float));
        moegen_status status =
            moegen_call_bind(call, results[i], out[i], MOEGEN_F32, t->rank, t->shape, &err);
        CHECK(!status, "%s", moegen_error_text(err));
    }
    CHECK(!moegen_call_run(call, &err), "%s", err ? moegen_error_text(err) : "cannot run");
    moegen_error_release(err);
    moegen_call_release(call);
}

/* The same problem with f32 matrices `x`, plain but for the order of gate and up. */
static moegen_rt_problem *numbers_of(const struct how *w, const struct how *x,
                                     const moegen_rt_problem *p, const char *more)
{
    moegen_rt_problem *all = plain_problem(w, p, more), *q = moegen_rt_problem_create();
    int64_t C = (w->gated ? 2 : 1) * w->I;
    struct piece piece[3];
    for (size_t i = 0; moegen_rt_problem_at(p, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(p, i);
        if (!strstr(t->name, "_proj_weight") && !strstr(t->name, "_proj_scale"))
            moegen_rt_problem_lend(q, t->name, t->dtype, t->rank, t->shape, t->data, NULL);
    }
    for (int i = 0, n = pieces(x, piece); i < n; i++) {
        const struct piece *one = &piece[i];
        const double *from =
            moegen_rt_problem_tensor(all, one->down ? "down_proj_weight" : "gate_up_proj_weight")
                ->data;
        int64_t columns = one->down ? w->H : C, wide = one->parts * one->width;
        int64_t parts[] = {w->E, one->K, one->parts, one->width}, rows[] = {w->E, one->K, wide};
        bool has_parts = one->joined && !(x->interleaved && one->parts == 2);
        moegen_rt_tensor *t = NULL;
        moegen_rt_problem_add(q, one->weight, MOEGEN_RT_F32, has_parts ? 4 : 3,
                              has_parts ? parts : rows, &t, NULL);
        EACH_CODE(x, one, t, e, n, s)
        ((float *)t->data)[e * all_ + n] =
            (float)from[(e * one->K + s.k) * columns + one->first + s.c];
    }
    moegen_rt_problem_destroy(all);
    return q;
}

/* Second scales as powers of two: then values are exact. */
static void round_seconds(const moegen_rt_problem *p)
{
    for (size_t i = 0; moegen_rt_problem_at(p, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(p, i);
        for (int64_t k = 0; strstr(t->name, "_scale_2") && k < moegen_rt_tensor_count(t); k++)
            ((float *)t->data)[k] = exp2f(rintf(log2f(((float *)t->data)[k])));
    }
}

/* One tensor of codes and one of scales have an element that is no number, if there is one. */
static bool infect(const struct how *w, const moegen_rt_problem *p, int way)
{
    struct piece piece[3];
    int n = pieces(w, piece), code = -1;
    const struct piece *x = &piece[way % n];
    const moegen_rt_tensor *t =
        moegen_rt_problem_tensor(p, w->format->scale ? x->scale : x->weight);
    for (int c = 0; c < 256 && code < 0; c++)
        if (isnan(w->format->scale ? w->format->scale(c) : w->format->value(c)))
            code = c;
    if (code < 0)
        return false;
    ((uint8_t *)t->data)[moegen_rt_tensor_count(t) / 2 + 1] = (uint8_t)code;
    return true;
}

/* Of both kernels, and of the reference: equal bits, or no number in all three. */
static void compare(const struct how *w, const moegen_kernel *coded, const moegen_kernel *plain,
                    const struct how *x, const moegen_rt_problem *p, const char *more)
{
    char text[256];
    say(w, text, sizeof text);
    moegen_rt_problem *q = numbers_of(w, x, p, more), *exact = outputs(p, "moe_backward");
    float *got[RESULTS], *want[RESULTS];
    int64_t n[RESULTS], m[RESULTS];
    run(coded, p, got, n);
    run(plain, q, want, m);
    for (int i = 0; i < RESULTS; i++) {
        int64_t bad = 0, lost = 0, size = 0;
        const double *e = data(exact, results[i], &m[i]);
        for (int64_t k = 0; k < n[i]; k++) {
            bool is_number = !isnan(e[k]) || k / (n[i] / 10) == 9; /* of padding nobody cares */
            bad += memcmp(&got[i][k], &want[i][k], sizeof(float)) != 0 && is_number;
            lost += k / (n[i] / 10) < 9 && isnan(got[i][k]) != isnan(e[k]);
            size += k / (n[i] / 10) < 9 && isnan(e[k]);
        }
        CHECK(bad == 0, "%s, %s: %s has %lld other bits", text, more, results[i], (long long)bad);
        CHECK(lost == 0, "%s, %s: %s: %lld are numbers or not", text, more, results[i],
              (long long)lost);
        compared++;
        infected += size > 0 && size < n[i];
        free(got[i]);
        free(want[i]);
    }
    moegen_rt_problem_destroy(q);
    moegen_rt_problem_destroy(exact);
}

static void one_case(moegen_engine *engine, const struct how *w, int way, const char *target)
{
    static const char *const affinities[] = {"affinity.scale post", "affinity.on intermediate",
                                             "affinity.scale pre", "affinity.scale none"};
    struct how x = {.H = w->H,
                    .I = w->I,
                    .E = w->E,
                    .gated = w->gated,
                    .interleaved = w->interleaved,
                    .separate = w->separate};
    char more[200], here[256], as_codes[300];
    snprintf(more, sizeof more, "dtype f32 weight_grads none checkpoint %s %s",
             way & 1 ? "recompute" : "saved", affinities[way / 2 % 4]);
    snprintf(here, sizeof here, "%s target %s spelling %s", more, target,
             strcmp(target, "auto") ? "scalar" : "auto");
    /* codes are turned for any number of tokens; if numbers are, too, sums have the same order */
    snprintf(as_codes, sizeof as_codes, "%s plan.across 0", here);
    moegen_kernel *coded = kernel_of(engine, w, here), *plain = kernel_of(engine, &x, as_codes);
    if (coded && plain) {
        moegen_rt_problem *p = stored_problem(w, "moe_backward", more);
        round_seconds(p);
        compare(w, coded, plain, &x, p, more);
        if (infect(w, p, way))
            compare(w, coded, plain, &x, p, more);
        moegen_rt_problem_destroy(p);
    }
    moegen_kernel_release(coded);
    moegen_kernel_release(plain);
}

int main(void)
{
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = ""};
    moegen_engine *engine = NULL;
    if (moegen_engine_create(&options, &engine, NULL))
        return 2;
    for (int f = 0, way = 0; f < FORMATS; f++)
        for (int i = 0; i < 4 * 4 * NKI; i++) {
            struct how w = {.H = 150,
                            .I = 70,
                            .E = 2,
                            .gated = true,
                            .format = &formats[f],
                            .interleaved = (i & 3) == 1,
                            .separate = (i & 3) == 2,
                            .shared = (i & 3) == 3,
                            .share = (enum share)(i >> 2 & 3),
                            .layout = (enum layout)(i >> 4)};
            if (!is_sound(&w) || (w.layout == PLAIN && w.share == BLOCK))
                continue;
            one_case(engine, &w, way, "auto");
            one_case(engine, &w, way + 3, way % 3 ? "auto" : way % 2 ? "avx2" : "scalar");
            way++;
        }
    moegen_engine_release(engine);
    printf("%d outputs compared, %d with what is no number, %d complaints\n", compared, infected,
           failures);
    return failures != 0 || compared == 0 || infected == 0;
}
