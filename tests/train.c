/* SPDX-License-Identifier: Apache-2.0 */
/* train.c - a small character model learns a text: four characters in, the next one out, through a
 * mixture-of-experts layer. The same run twice, side by side: with generated kernels, and with the
 * float64 reference in their place. Everything around the layer is plain C in double.
 *
 *     train [TEXT [STEPS [DTYPE]]]
 *
 * The test: the loss falls to less than FALL of what it was, and at every step the two runs' losses
 * differ by less than APART of it (APART_16 with 16-bit floats: then parameters are rounded). */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moegen.h"
#include "moegen_runtime.h"

static const double FALL = 0.5, APART = 1e-5, APART_16 = 0.2, RATE = 4e-3;

enum {
    CONTEXT = 4,         /* characters that the model sees */
    WIDTH = 8,           /* numbers of a character */
    H = CONTEXT * WIDTH, /* hidden size */
    I = 24,
    E = 8,
    K = 2,
    T = 64, /* places in the text per step */
    MAX_TEXT = 1 << 20
};

static const char spec_text[] = "{kernel: moe_layer, name: train, H: 32, I_TP: 24, E: 8, top_k: 2, "
                                "block_size: 16, dtype: f32, method: softmax_topk_renorm, "
                                "checkpoint: save, aux_loss: {load_balance: 0.01, z: 0.001}}";

/* ---- text ---- */

static struct {
    unsigned char at[MAX_TEXT]; /* each character as its number, 0 .. kinds-1 */
    int length, kinds;
} text;

static bool read_text(const char *path)
{
    int number[256];
    FILE *f = fopen(path, "rb");
    text.length = f ? (int)fread(text.at, 1, MAX_TEXT, f) : 0;
    if (f)
        fclose(f);
    memset(number, 0xff, sizeof number);
    for (int i = 0; i < text.length; i++) {
        int *n = &number[text.at[i]];
        *n = *n < 0 ? text.kinds++ : *n;
        text.at[i] = (unsigned char)*n;
    }
    return text.length > 100 && text.kinds > 1;
}

/* ---- parameters ---- */

enum { EMBEDDING, ROUTER, GATE_UP, DOWN, HEAD, PARAMETERS };

/* A run: parameters with gradients and Adam's averages, and a way to compute the layer. */
struct run {
    double *value[PARAMETERS], *grad[PARAMETERS], *mean[PARAMETERS], *square[PARAMETERS];
    int count[PARAMETERS];
    double x[T * H], y[T * H], dy[T * H], dx[T * H]; /* of the layer */
    double aux;                                      /* its auxiliary losses */
    void (*forward)(struct run *r);                  /* y and aux from x */
    void (*backward)(struct run *r);                 /* dx and gradients from dy */
    moegen_layer_state *state;
    moegen_rt_problem *problem, *left; /* inputs, and what the forward pass left */
};

static unsigned chance(void)
{
    static unsigned seed = 1;
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static void parameters(struct run *r)
{
    const int count[] = {text.kinds * WIDTH, H * E, E * H * 2 * I, E * I * H, H * text.kinds};
    const double size[] = {1, 1 / sqrt(H), 1 / sqrt(H), 1 / sqrt(I), 1 / sqrt(H)};
    for (int p = 0; p < PARAMETERS; p++) {
        r->count[p] = count[p];
        double **const all[] = {&r->value[p], &r->grad[p], &r->mean[p], &r->square[p]};
        for (int i = 0; i < 4; i++)
            if (!(*all[i] = calloc((size_t)count[p], sizeof(double))))
                abort();
        moegen_rt_normal(MOEGEN_RT_F64, r->value[p], (size_t)count[p], (uint64_t)p + 1, size[p]);
    }
}

static void release(struct run *r)
{
    for (int p = 0; p < PARAMETERS; p++) {
        free(r->value[p]);
        free(r->grad[p]);
        free(r->mean[p]);
        free(r->square[p]);
    }
    moegen_layer_state_release(r->state);
    moegen_rt_problem_destroy(r->problem);
    moegen_rt_problem_destroy(r->left);
}

static void adam(struct run *r, int step)
{
    const double a = 0.9, b = 0.99, c = 1 - pow(a, step), d = 1 - pow(b, step);
    for (int p = 0; p < PARAMETERS; p++)
        for (int i = 0; i < r->count[p]; i++) {
            double g = r->grad[p][i], *m = &r->mean[p][i], *v = &r->square[p][i];
            *m = a * *m + (1 - a) * g;
            *v = b * *v + (1 - b) * g * g;
            r->value[p][i] -= RATE * (*m / c) / (sqrt(*v / d) + 1e-6);
        }
}

/* ---- the layer, generated ---- */

static moegen_dtype dtype = MOEGEN_F32;

static void die(const char *what)
{
    fprintf(stderr, "train: %s\n", what);
    exit(1);
}

/* A tensor of the spec's dtype (or f32), from doubles or for a result. */
static moegen_tensor tensor(const char *name, moegen_dtype of, const double *from, int rank,
                            const int64_t *shape)
{
    moegen_tensor t = {.name = name, .dtype = of, .rank = rank};
    size_t n = 1;
    for (int d = 0; d < rank; d++)
        n *= (size_t)(t.shape[d] = shape[d]);
    t.data = moegen_rt_alloc(n * moegen_dtype_size(of));
    if (!t.data)
        die("out of memory");
    if (from)
        moegen_rt_encode((moegen_rt_dtype)of, from, n, t.data);
    return t;
}

/* Decodes a result into `to`, if there is one, and frees it. */
static void done(moegen_tensor *t, double *to)
{
    size_t n = 1;
    for (int d = 0; d < t->rank; d++)
        n *= (size_t)t->shape[d];
    if (to)
        moegen_rt_decode((moegen_rt_dtype)t->dtype, t->data, n, to);
    moegen_rt_free(t->data);
}

static const int64_t rows[] = {T, H}, router[] = {H, E}, gate_up[] = {E, H, 2, I},
                     down[] = {E, I, H}, one[] = {1};

static void check(moegen_status status, moegen_error *err)
{
    if (status)
        die(moegen_error_text(err));
}

static void generated_forward(struct run *r)
{
    moegen_error *err = NULL;
    double loss[2];
    moegen_tensor t[] = {tensor("hidden_states", dtype, r->x, 2, rows),
                         tensor("router_weight", dtype, r->value[ROUTER], 2, router),
                         tensor("gate_up_proj_weight", dtype, r->value[GATE_UP], 4, gate_up),
                         tensor("down_proj_weight", dtype, r->value[DOWN], 3, down),
                         tensor("output", dtype, NULL, 2, rows),
                         tensor("load_balance_loss", MOEGEN_F32, NULL, 1, one),
                         tensor("z_loss", MOEGEN_F32, NULL, 1, one)};
    check(moegen_layer_forward(r->state, t, sizeof t / sizeof *t, &err), err);
    double *const to[] = {NULL, NULL, NULL, NULL, r->y, &loss[0], &loss[1]};
    for (int i = 0; i < 7; i++)
        done(&t[i], to[i]);
    r->aux = loss[0] + loss[1];
}

static void generated_backward(struct run *r)
{
    moegen_error *err = NULL;
    moegen_tensor t[] = {tensor("hidden_states", dtype, r->x, 2, rows),
                         tensor("router_weight", dtype, r->value[ROUTER], 2, router),
                         tensor("gate_up_proj_weight", dtype, r->value[GATE_UP], 4, gate_up),
                         tensor("down_proj_weight", dtype, r->value[DOWN], 3, down),
                         tensor("output_hidden_states_grad", dtype, r->dy, 2, rows),
                         tensor("hidden_states_grad", dtype, NULL, 2, rows),
                         tensor("router_weight_grad", dtype, NULL, 2, router),
                         tensor("gate_up_proj_weight_grad", dtype, NULL, 4, gate_up),
                         tensor("down_proj_weight_grad", dtype, NULL, 3, down)};
    check(moegen_layer_backward(r->state, t, sizeof t / sizeof *t, &err), err);
    double *const to[] = {
        NULL, NULL, NULL, NULL, NULL, r->dx, r->grad[ROUTER], r->grad[GATE_UP], r->grad[DOWN]};
    for (int i = 0; i < 9; i++)
        done(&t[i], to[i]);
}

static moegen_layer_state *generated(const char *dtype_name)
{
    moegen_engine *engine = NULL;
    moegen_layer *layer = NULL;
    moegen_layer_state *state = NULL;
    moegen_error *err = NULL;
    moegen_override set = {"dtype", dtype_name};
    moegen_spec spec = {.struct_size = sizeof spec,
                        .text = spec_text,
                        .len = sizeof spec_text - 1,
                        .overrides = &set,
                        .override_count = 1};
    check(moegen_engine_create(NULL, &engine, &err), err);
    check(moegen_layer_create(engine, &spec, &layer, &err), err);
    check(moegen_layer_state_create(layer, &state, &err), err);
    moegen_layer_release(layer);
    moegen_engine_release(engine);
    return state;
}

/* ---- the layer, in float64 ---- */

static void lend(moegen_rt_problem *p, const char *name, int rank, const int64_t *shape, double *at)
{
    if (moegen_rt_problem_lend(p, name, MOEGEN_RT_F64, rank, shape, at, NULL))
        die("out of memory");
}

static moegen_rt_problem *compute(const moegen_rt_problem *p)
{
    moegen_rt_problem *out = moegen_rt_problem_create();
    moegen_rt_error err = {"out of memory"};
    const moegen_rt_want want = {.padding_is_zero = 1, .own_choice = 1};
    if (!out || moegen_rt_reference_find("moe_layer")->compute(p, &want, out, &err))
        die(err.text);
    return out;
}

static const double *result(const moegen_rt_problem *out, const char *name)
{
    return moegen_rt_problem_tensor(out, name)->data;
}

static void reference_forward(struct run *r)
{
    moegen_rt_problem *p = r->problem;
    moegen_rt_problem_set(p, "op", "forward");
    lend(p, "hidden_states", 2, rows, r->x);
    lend(p, "router_weight", 2, router, r->value[ROUTER]);
    lend(p, "gate_up_proj_weight", 4, gate_up, r->value[GATE_UP]);
    lend(p, "down_proj_weight", 3, down, r->value[DOWN]);
    moegen_rt_problem *left = compute(p);
    moegen_rt_problem_destroy(r->left); /* lent to p until now */
    r->left = left;
    memcpy(r->y, result(r->left, "output"), sizeof r->y);
    r->aux = *result(r->left, "load_balance_loss") + *result(r->left, "z_loss");
}

static void reference_backward(struct run *r)
{
    static const struct {
        const char *name;
        int to;
    } grads[] = {{"router_weight_grad", ROUTER},
                 {"gate_up_proj_weight_grad", GATE_UP},
                 {"down_proj_weight_grad", DOWN}};
    moegen_rt_problem_set(r->problem, "op", "backward");
    lend(r->problem, "output_hidden_states_grad", 2, rows, r->dy);
    for (size_t i = 0; moegen_rt_problem_at(r->left, i); i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_at(r->left, i);
        lend(r->problem, t->name, t->rank, t->shape, t->data);
    }
    moegen_rt_problem *out = compute(r->problem);
    memcpy(r->dx, result(out, "hidden_states_grad"), sizeof r->dx);
    for (int i = 0; i < 3; i++)
        memcpy(r->grad[grads[i].to], result(out, grads[i].name),
               (size_t)r->count[grads[i].to] * sizeof(double));
    moegen_rt_problem_destroy(out);
}

static moegen_rt_problem *reference(void)
{
    static const char *const params[][2] = {{"H", "32"},
                                            {"I_TP", "24"},
                                            {"E", "8"},
                                            {"top_k", "2"},
                                            {"block_size", "16"},
                                            {"dtype", "f64"},
                                            {"method", "softmax_topk_renorm"},
                                            {"checkpoint", "save"},
                                            {"aux_loss.load_balance", "0.01"},
                                            {"aux_loss.z", "0.001"}};
    moegen_rt_problem *p = moegen_rt_problem_create();
    for (size_t i = 0; i < sizeof params / sizeof *params; i++)
        if (!p || moegen_rt_problem_set(p, params[i][0], params[i][1]))
            die("out of memory");
    return p;
}

/* ---- around the layer ---- */

/* Loss and its gradient by the scores of one token: z[kinds] becomes its own gradient. */
static double cross_entropy(double *z, int target)
{
    double most = z[0], sum = 0;
    for (int c = 1; c < text.kinds; c++)
        most = fmax(most, z[c]);
    for (int c = 0; c < text.kinds; c++)
        sum += exp(z[c] - most);
    double loss = most + log(sum) - z[target];
    for (int c = 0; c < text.kinds; c++)
        z[c] = (exp(z[c] - most) / sum - (c == target)) / T;
    return loss / T;
}

/* One step on the characters before and at places[T]; returns the loss. */
static double learn(struct run *r, const int *places, int step)
{
    double *head = r->value[HEAD], *dhead = r->grad[HEAD], loss = 0, z[256];
    memset(dhead, 0, (size_t)r->count[HEAD] * sizeof *dhead);
    memset(r->grad[EMBEDDING], 0, (size_t)r->count[EMBEDDING] * sizeof(double));
    for (int i = 0; i < T * H; i++) {
        int c = text.at[places[i / H] - CONTEXT + i % H / WIDTH];
        r->x[i] = r->value[EMBEDDING][c * WIDTH + i % WIDTH];
    }
    r->forward(r);
    for (int t = 0; t < T; t++) {
        double h[H], *dh = r->dy + t * H;
        memset(z, 0, sizeof z);
        for (int i = 0; i < H; i++) {
            h[i] = r->x[t * H + i] + r->y[t * H + i];
            for (int c = 0; c < text.kinds; c++)
                z[c] += h[i] * head[i * text.kinds + c];
        }
        loss += cross_entropy(z, text.at[places[t]]);
        for (int i = 0; i < H; i++) {
            dh[i] = 0;
            for (int c = 0; c < text.kinds; c++) {
                dh[i] += z[c] * head[i * text.kinds + c];
                dhead[i * text.kinds + c] += z[c] * h[i];
            }
        }
    }
    r->backward(r);
    for (int i = 0; i < T * H; i++) {
        int c = text.at[places[i / H] - CONTEXT + i % H / WIDTH];
        r->grad[EMBEDDING][c * WIDTH + i % WIDTH] += r->dx[i] + r->dy[i];
    }
    adam(r, step);
    return loss + r->aux;
}

int main(int argc, char **argv)
{
    static struct run run[2];
    int steps = argc > 2 ? atoi(argv[2]) : 300, shown = steps > 20 ? steps / 20 : 1;
    const char *name = argc > 3 ? argv[3] : "f32";
    double first = 0, last = 0, worst = 0;
    moegen_rt_dtype found;
    if (argc < 2 || steps < 1 || !read_text(argv[1]) || !moegen_rt_dtype_find(name, &found)) {
        fprintf(stderr, "usage: train TEXT [STEPS [f32|bf16|f16]]\n");
        return 2;
    }
    dtype = (moegen_dtype)found;
    for (int i = 0; i < 2; i++)
        parameters(&run[i]);
    run[0].forward = generated_forward;
    run[0].backward = generated_backward;
    run[0].state = generated(name);
    run[1].forward = reference_forward;
    run[1].backward = reference_backward;
    run[1].problem = reference();
    printf("%s: %d characters, %d kinds\n step   generated %-4s  float64   difference\n", argv[1],
           text.length, text.kinds, name);
    for (int step = 1; step <= steps; step++) {
        int places[T];
        double loss[2];
        for (int t = 0; t < T; t++)
            places[t] = CONTEXT + (int)(chance() % (unsigned)(text.length - CONTEXT));
        for (int i = 0; i < 2; i++)
            loss[i] = learn(&run[i], places, step);
        double apart = fabs(loss[0] - loss[1]) / loss[1];
        worst = apart <= worst ? worst : apart;
        first = step == 1 ? loss[0] : first;
        last = step == 1 ? loss[0] : 0.9 * last + 0.1 * loss[0];
        if (step % shown == 0 || step == 1)
            printf("%5d   %.6f        %.6f  %.1e\n", step, loss[0], loss[1], apart);
    }
    for (int i = 0; i < 2; i++)
        release(&run[i]);
    double most = moegen_rt_dtype_of(found)->digits == 24 ? APART : APART_16;
    bool good = last < FALL * first && worst < most;
    printf("loss %.3f, then %.3f (%s %.3f); at most %.1e apart (limit %.0e): %s\n", first, last,
           last < FALL * first ? "below" : "not below", FALL * first, worst, most,
           good ? "ok" : "FAIL");
    return !good;
}
