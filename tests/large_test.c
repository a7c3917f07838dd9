/* SPDX-License-Identifier: Apache-2.0 */
/* large_test.c - tensors of more than 2^31 elements, mapped sparsely: only what a few tokens and
 * experts need is ever touched. The rows of an output all have to be zeroed: its pages share one
 * piece of memory. Exit status 77 when the system refuses such mappings. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "moegen.h"

enum { B = 4, SLOTS = 3, SKIPPED = 77, WINDOW = 1 << 26 };

/* One kernel, and three tokens of one expert at the far end of everything. */
struct layer {
    const char *name;
    int64_t T, H, I, E;
};

static void die(const char *what, moegen_error *err)
{
    printf("FAIL %s: %s\n", what, err ? moegen_error_text(err) : "");
    exit(1);
}

static void *sparse(int64_t count)
{
    void *at = mmap(NULL, (size_t)count * 4, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        printf("no address space for %lld elements\n", (long long)count);
        exit(SKIPPED);
    }
    return at;
}

/* The same, but each window of the mapping is the same memory, mapped at once; the last one has
 * its own. */
static void *folded(int64_t count)
{
    char *at = sparse(count);
    int64_t bytes = count * 4, last = (bytes - 1) / WINDOW * WINDOW;
    int fd = memfd_create("large_test", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, WINDOW))
        exit(SKIPPED);
    for (int64_t i = 0; i < last; i += WINDOW)
        if (mmap(at + i, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd,
                 0) == MAP_FAILED)
            exit(SKIPPED);
    close(fd);
    return at;
}

/* In (-1, 1), by place. */
static float some(int64_t i)
{
    uint64_t z = (uint64_t)i * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 29) * 0xbf58476d1ce4e5b9u;
    return (float)(int32_t)(z >> 32) * 0x1p-31f;
}

static void fill(float *at, int64_t first, int64_t count)
{
    for (int64_t i = first; i < first + count; i++)
        at[i] = some(i);
}

static void bind(moegen_call *call, const char *name, void *data, moegen_dtype dtype, int rank,
                 const int64_t *shape)
{
    moegen_error *err = NULL;
    if (moegen_call_bind(call, name, data, dtype, rank, shape, &err))
        die(name, err);
}

/* Relative error of one row of the output. */
static double check_row(const struct layer *l, int64_t token, int64_t e, const float *x,
                        const float *affinity, const float *up, const float *down, const float *y)
{
    double *p = calloc((size_t)(l->I + l->H), sizeof *p), *want = p + l->I;
    double difference = 0, size = 0;
    for (int64_t i = 0; i < l->I; i++) {
        double g = 0, u = 0;
        for (int64_t h = 0; h < l->H; h++) {
            const float *w = up + ((e * l->H + h) * 2) * l->I + i;
            g += (double)x[token * l->H + h] * w[0];
            u += (double)x[token * l->H + h] * w[l->I];
        }
        p[i] = g / (1 + exp(-g)) * u;
    }
    for (int64_t i = 0; i < l->I; i++)
        for (int64_t h = 0; h < l->H; h++)
            want[h] += p[i] * down[(e * l->I + i) * l->H + h];
    for (int64_t h = 0; h < l->H; h++) {
        double w = affinity[token * l->E + e] * want[h], d = w - y[token * l->H + h];
        difference += d * d;
        size += w * w;
    }
    free(p);
    return sqrt(difference / size);
}

/* A call with nothing bound, of a kernel of the given text. */
static moegen_call *call_of(moegen_engine *engine, const char *name, const char *text)
{
    moegen_kernel *kernel = NULL;
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    moegen_spec spec = {.struct_size = sizeof spec, .text = text, .len = strlen(text)};
    if (moegen_kernel_get(engine, &spec, &kernel, &err) || moegen_call_create(kernel, &call, &err))
        die(name, err);
    moegen_kernel_release(kernel);
    return call;
}

static void finish(moegen_call *call, const char *name)
{
    moegen_error *err = NULL;
    if (moegen_call_run(call, &err))
        die(name, err);
    moegen_call_release(call);
}

static void run(moegen_engine *engine, const struct layer *l)
{
    int64_t T = l->T, H = l->H, I = l->I, E = l->E, e = E - 1;
    int64_t x_shape[] = {T + 1, H}, a_shape[] = {(T + 1) * E, 1}, up_shape[] = {E, H, 2, I};
    int64_t down_shape[] = {E, I, H}, slots[] = {B}, blocks[] = {1};
    int32_t expert = (int32_t)e, id[B] = {0, (int32_t)(T / 2 + 1), (int32_t)(T - 1), (int32_t)T};
    float *x = sparse((T + 1) * H), *y = folded((T + 1) * H), *affinity = sparse((T + 1) * E);
    float *up = sparse(E * H * 2 * I), *down = sparse(E * I * H);
    for (int i = 0; i < SLOTS; i++) {
        fill(x, id[i] * H, H);
        fill(affinity, id[i] * E + e, 1);
    }
    fill(up, e * H * 2 * I, H * 2 * I);
    fill(down, e * I * H, I * H);
    char text[256];
    snprintf(text, sizeof text,
             "{kernel: moe_forward, dtype: f32, H: %lld, I_TP: %lld, E: %lld, block_size: %d}",
             (long long)H, (long long)I, (long long)E, B);
    moegen_call *call = call_of(engine, l->name, text);
    bind(call, "hidden_states", x, MOEGEN_F32, 2, x_shape);
    bind(call, "expert_affinities_masked", affinity, MOEGEN_F32, 2, a_shape);
    bind(call, "gate_up_proj_weight", up, MOEGEN_F32, 4, up_shape);
    bind(call, "down_proj_weight", down, MOEGEN_F32, 3, down_shape);
    bind(call, "token_position_to_id", id, MOEGEN_I32, 1, slots);
    bind(call, "block_to_expert", &expert, MOEGEN_I32, 1, blocks);
    bind(call, "output", y, MOEGEN_F32, 2, x_shape);
    finish(call, l->name);
    for (int i = 0; i < SLOTS; i++) {
        double error = check_row(l, id[i], e, x, affinity, up, down, y);
        printf("%s: token %d, expert %d: relative error %.1e\n", l->name, id[i], expert, error);
        if (!(error < 2e-6))
            die(l->name, NULL);
    }
    if (y[T * H] != 0 || y[(T - 2) * H] != 0)
        die("a row that no block names is not zero", NULL);
    munmap(x, (size_t)((T + 1) * H) * 4);
    munmap(y, (size_t)((T + 1) * H) * 4);
    munmap(affinity, (size_t)((T + 1) * E) * 4);
    munmap(up, (size_t)(E * H * 2 * I) * 4);
    munmap(down, (size_t)(E * I * H) * 4);
}

/* ---- gradients, and one matrix per expert ---- */

enum { FEW = 16, MANY = 16 * 1024, EXPERTS = 8200, LAST = EXPERTS - 1 };

/* Sum over n of a[i * a_step] * b[i * b_step]. */
static double dot(const float *a, int64_t a_step, const float *b, int64_t b_step, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i * a_step] * b[i * b_step];
    return sum;
}

struct error {
    double difference, size;
};

static void count(struct error *e, double want, double got)
{
    e->difference += (want - got) * (want - got);
    e->size += want * want;
}

static void judge(const char *name, const struct error *e)
{
    double error = sqrt(e->difference / e->size);
    printf("%s: relative error %.1e\n", name, error);
    if (!(error < 2e-6))
        die(name, NULL);
}

/* W has 2^31 elements and more; only the last expert has rows. */
static void grouped(moegen_engine *engine)
{
    static const char *const ops[] = {"forward", "dX", "dW"};
    int64_t all = (int64_t)EXPERTS * MANY * FEW, last = (int64_t)LAST * MANY * FEW;
    int64_t w_shape[] = {EXPERTS, MANY, FEW}, x_shape[] = {SLOTS, FEW}, y_shape[] = {SLOTS, MANY};
    int64_t sizes_shape[] = {EXPERTS};
    static int32_t sizes[EXPERTS];
    static float x[SLOTS * FEW], y[SLOTS * MANY], got_x[SLOTS * FEW], got_y[SLOTS * MANY];
    float *w = sparse(all), *got_w = folded(all);
    struct error of_x = {0}, of_y = {0}, of_w = {0};
    sizes[LAST] = SLOTS;
    fill(w, last, (int64_t)MANY * FEW);
    fill(x, 0, SLOTS * FEW);
    fill(y, 0, SLOTS * MANY);
    for (int op = 0; op < 3; op++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{kernel: grouped_gemm, dtype: f32, op: %s, N: %d, K: %d, E: %d}", ops[op], MANY,
                 FEW, EXPERTS);
        moegen_call *call = call_of(engine, ops[op], text);
        bind(call, "m_sizes", sizes, MOEGEN_I32, 1, sizes_shape);
        if (op != 1)
            bind(call, "X", x, MOEGEN_F32, 2, x_shape);
        if (op != 0)
            bind(call, "dY", y, MOEGEN_F32, 2, y_shape);
        if (op != 2)
            bind(call, "W", w, MOEGEN_F32, 3, w_shape);
        bind(call, op == 0 ? "Y" : ops[op],
             op == 0   ? got_y
             : op == 1 ? got_x
                       : got_w,
             MOEGEN_F32, op == 2 ? 3 : 2,
             op == 0   ? y_shape
             : op == 1 ? x_shape
                       : w_shape);
        finish(call, ops[op]);
    }
    for (int r = 0; r < SLOTS; r++)
        for (int k = 0; k < FEW; k++)
            count(&of_x, dot(y + r * MANY, 1, w + last + k, FEW, MANY), got_x[r * FEW + k]);
    for (int n = 0; n < MANY; n++) {
        for (int r = 0; r < SLOTS; r++)
            count(&of_y, dot(x + r * FEW, 1, w + last + n * FEW, 1, FEW), got_y[r * MANY + n]);
        for (int k = 0; k < FEW; k++)
            count(&of_w, dot(y + n, MANY, x + k, FEW, SLOTS), got_w[last + n * FEW + k]);
    }
    judge("grouped_gemm Y", &of_y);
    judge("grouped_gemm dX", &of_x);
    judge("grouped_gemm dW", &of_w);
    munmap(w, (size_t)all * 4);
    munmap(got_w, (size_t)all * 4);
}

/* One token of the backward pass below: its rows of a p and of du; gives the affinity's gradient.
 */
static double through(const float *x, const float *dy, const float *up, const float *down, float a,
                      float *ap, float *du)
{
    double of_affinity = 0;
    for (int i = 0; i < MANY; i++) {
        double u = dot(x, 1, up + i, MANY, FEW), dp = dot(dy, 1, down + i * FEW, 1, FEW);
        ap[i] = (float)(u > 0 ? u : 0) * a;
        du[i] = (float)(u > 0 ? a * dp : 0);
        of_affinity += u > 0 ? u * dp : 0;
    }
    return of_affinity;
}

/* Both weights have 2^31 elements and more; not gated, with relu:
 * u = x Wu, p = relu(u), dWd = (a p)^T dy, dp = a dy Wd^T, du = dp [u > 0], dWu = x^T du,
 * dX = du Wu^T. */
static void backward(moegen_engine *engine)
{
    enum { T = SLOTS };
    static float x[(T + 1) * FEW], dy[(T + 1) * FEW], dx[(T + 1) * FEW];
    static float p[T * MANY], du[T * MANY];
    static int32_t id[B] = {0, 1, 2, T}, expert = LAST;
    int64_t all = (int64_t)EXPERTS * MANY * FEW, last = (int64_t)LAST * MANY * FEW;
    int64_t tokens[] = {T + 1, FEW}, flat[] = {(T + 1) * EXPERTS, 1}, slots[] = {B}, blocks[] = {1};
    int64_t up_shape[] = {EXPERTS, FEW, 1, MANY}, down_shape[] = {EXPERTS, MANY, FEW};
    float *up = sparse(all), *down = sparse(all), *d_up = folded(all), *d_down = folded(all);
    float *a = sparse((T + 1) * EXPERTS), *da = sparse((T + 1) * EXPERTS);
    struct error of_x = {0}, of_a = {0}, of_up = {0}, of_down = {0};
    char text[256];
    fill(x, 0, T * FEW);
    fill(dy, 7, T * FEW);
    fill(up, last, (int64_t)MANY * FEW);
    fill(down, last, (int64_t)MANY * FEW);
    for (int t = 0; t < T; t++)
        fill(a, t * EXPERTS + LAST, 1);
    snprintf(
        text, sizeof text,
        "{kernel: moe_backward, dtype: f32, H: %d, I_TP: %d, E: %d, block_size: %d, gated: false, "
        "activation: relu, checkpoint: recompute}",
        FEW, MANY, EXPERTS, B);
    moegen_call *call = call_of(engine, "moe_backward", text);
    bind(call, "hidden_states", x, MOEGEN_F32, 2, tokens);
    bind(call, "expert_affinities_masked", a, MOEGEN_F32, 2, flat);
    bind(call, "gate_up_proj_weight", up, MOEGEN_F32, 4, up_shape);
    bind(call, "down_proj_weight", down, MOEGEN_F32, 3, down_shape);
    bind(call, "token_position_to_id", id, MOEGEN_I32, 1, slots);
    bind(call, "block_to_expert", &expert, MOEGEN_I32, 1, blocks);
    bind(call, "output_hidden_states_grad", dy, MOEGEN_F32, 2, tokens);
    bind(call, "hidden_states_grad", dx, MOEGEN_F32, 2, tokens);
    bind(call, "expert_affinities_masked_grad", da, MOEGEN_F32, 2, flat);
    bind(call, "gate_up_proj_weight_grad", d_up, MOEGEN_F32, 4, up_shape);
    bind(call, "down_proj_weight_grad", d_down, MOEGEN_F32, 3, down_shape);
    finish(call, "moe_backward");
    for (int t = 0; t < T; t++)
        count(&of_a,
              through(x + t * FEW, dy + t * FEW, up + last, down + last, a[t * EXPERTS + LAST],
                      p + t * MANY, du + t * MANY),
              da[t * EXPERTS + LAST]);
    for (int h = 0; h < FEW; h++) {
        for (int t = 0; t < T; t++)
            count(&of_x, dot(du + t * MANY, 1, up + last + h * MANY, 1, MANY), dx[t * FEW + h]);
        for (int i = 0; i < MANY; i++) {
            count(&of_up, dot(x + h, FEW, du + i, MANY, T), d_up[last + h * MANY + i]);
            count(&of_down, dot(p + i, MANY, dy + h, FEW, T), d_down[last + i * FEW + h]);
        }
    }
    judge("moe_backward dX", &of_x);
    judge("moe_backward affinities", &of_a);
    judge("moe_backward gate_up", &of_up);
    judge("moe_backward down", &of_down);
    munmap(up, (size_t)all * 4);
    munmap(down, (size_t)all * 4);
    munmap(d_up, (size_t)all * 4);
    munmap(d_down, (size_t)all * 4);
}

int main(void)
{
    static const struct layer layers[] = {
        /* name                T              H     I    E */
        {"weights", 270 * 1000, 16, 16 * 1024, 8200},
        {"tokens", ((int64_t)1 << 25) + 3, 64, 8, 2},
    };
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = ""};
    moegen_engine *engine = NULL;
    moegen_error *err = NULL;
    if (moegen_engine_create(&options, &engine, &err))
        die("engine", err);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        run(engine, &layers[i]);
    grouped(engine);
    backward(engine);
    moegen_engine_release(engine);
    return 0;
}
