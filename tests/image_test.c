/* SPDX-License-Identifier: Apache-2.0 */
/* image_test.c - no build can see another (gen/host/image.c): kernels get the text that each gets
 * in a process of its own, in any order, after refused ones, and beside those of other threads. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "host/sandbox.h"

#define EXPERTS "H: 64\nI_TP: 32\nE: 4\ntop_k: 2\nblock_size: 8\n"
static const struct row {
    const char *purpose, *text;
} rows[] = {
    {"jit", "kernel: moe_forward\n" EXPERTS "dtype: f32\n"},
    {"jit", "kernel: moe_forward\n" EXPERTS "dtype: bf16\ntarget: avx512_bf16\n"},
    {"file", "kernel: moe_forward\n" EXPERTS "dtype: f32\nspelling: bytes\ntarget: avx2\n"},
    {"jit", "kernel: moe_forward\n" EXPERTS "dtype: f33\n"},
    {"jit", "kernel: moe_backward\n" EXPERTS "dtype: f32\n"},
    {"file", "kernel: moe_backward\n" EXPERTS "dtype: f16\n"},
    {"jit", "kernel: moe_layer\nmethod: softmax_topk\n" EXPERTS "dtype: f32\n"},
    {"jit", "kernel: grouped_gemm\nop: dW\nN: 48\nK: 40\nE: 2\ntop_k: 1\ndtype: f32\n"},
    {"jit",
     "kernel: router\nop: forward\nH: 64\nE: 16\ntop_k: 4\nmethod: softmax_topk\ndtype: f32\n"},
    {"jit", "kernel: moe_index\nE: 8\ntop_k: 2\nblock_size: 16\nplan: {nonsense: 1}\n"},
    {"jit", "kernel: moe_index\nE: 8\ntop_k: 2\nblock_size: 16\n"},
};
enum { ROWS = sizeof rows / sizeof *rows, ROUNDS = 3, THREADS = 4 };
static uint64_t alone[ROWS];

/* Of all that a build gives, complaints too. */
static uint64_t built(const struct row *r)
{
    static const char *const features[] = {
        "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"};
    struct host_request request = {.file = "<spec>",
                                   .text = r->text,
                                   .len = strlen(r->text),
                                   .feature = features,
                                   .feature_count = sizeof features / sizeof *features,
                                   .purpose = r->purpose};
    struct generated made = {0};
    moegen_error *err = NULL;
    struct text all = {0};
    moegen_status status = host_build(&request, &made, &err);
    text_fmt(&all, "%d\n%s", status, err ? moegen_error_text(err) : "");
    if (!status) {
        text_add(&all, made.c.at, made.c.len);
        text_add(&all, made.meta.at, made.meta.len);
    }
    uint64_t sum = digest_fast(all.at, all.len);
    text_free(&all);
    generated_free(&made);
    moegen_error_release(err);
    return sum;
}

/* In a process that has built nothing before. */
static void build_alone(int i)
{
    int ends[2] = {-1, -1}, status = 0;
    if (pipe(ends))
        exit(2);
    pid_t child = fork();
    if (child == 0) {
        uint64_t sum = built(&rows[i]);
        _exit(write(ends[1], &sum, sizeof sum) != sizeof sum);
    }
    close(ends[1]);
    CHECK(read(ends[0], &alone[i], sizeof alone[i]) == sizeof alone[i], "row %d gives nothing", i);
    CHECK(waitpid(child, &status, 0) == child && status == 0, "row %d: status %d", i, status);
    close(ends[0]);
}

static void *build_all(void *from)
{
    int wrong = 0;
    for (int i = 0, k = *(int *)from; i < ROUNDS * ROWS; i++, k += 7) /* 7: in some order */
        wrong += built(&rows[k % ROWS]) != alone[k % ROWS];
    *(int *)from = wrong;
    return NULL;
}

int main(void)
{
    pthread_t thread[THREADS];
    int from[THREADS] = {0};
    for (int i = 0; i < ROWS; i++)
        build_alone(i);
    build_all(&from[0]);
    CHECK(from[0] == 0, "%d builds differ from those of fresh processes", from[0]);
    for (int t = 0; t < THREADS; t++) {
        from[t] = t * 3;
        CHECK(pthread_create(&thread[t], NULL, build_all, &from[t]) == 0, "no thread");
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(thread[t], NULL);
        CHECK(from[t] == 0, "%d builds of thread %d differ", from[t], t);
    }
    struct sandbox *s;
    CHECK(image_open(&s), "the image is not in use");
    image_close();
    return failures != 0;
}
