/* SPDX-License-Identifier: Apache-2.0 */
/* misuse_test.c - what hosts do that a library must live with: limits on files and stacks, structs
 * of other versions, NULL everywhere, tensors without elements. */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api.h"
#include "moegen_runtime.h"

#define BAD MOEGEN_BAD_ARGUMENT
static moegen_engine *engine;

/* ---- the size of files ---- */

static bool write_tensors(const char *dir)
{
    static float data[4096];
    char path[100];
    moegen_rt_error why;
    moegen_rt_tensor t = {
        .name = "x", .dtype = MOEGEN_RT_F32, .rank = 1, .shape = {4096}, .data = data};
    t.bytes = sizeof data;
    snprintf(path, sizeof path, "%s/x.safetensors", dir);
    return moegen_rt_safetensors_write(path, &t, 1, &why) == MOEGEN_RT_OK;
}

/* Files may have `limit` bytes; SIGXFSZ does what it does by default. Exit status 0: all right. */
static void child_of_limits(const char *dir, rlim_t limit, bool pending)
{
    const struct rlimit most = {limit, limit};
    sigset_t mask, now;
    sigemptyset(&mask);
    sigaddset(&mask, SIGXFSZ);
    if (pending) { /* the host's own stays the host's */
        pthread_sigmask(SIG_BLOCK, &mask, NULL);
        raise(SIGXFSZ);
    }
    moegen_engine *e = engine_of(dir, NULL);
    setrlimit(RLIMIT_FSIZE, &most);
    moegen_kernel *kernel = get(e, toy);
    CHECK(kernel);
    CHECK(!write_tensors(dir));
    sigpending(&now);
    CHECK(sigismember(&now, SIGXFSZ) == pending);
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    CHECK(sigismember(&now, SIGXFSZ) == pending);
    moegen_kernel_release(kernel);
    moegen_engine_release(e);
    _exit(failures != 0);
}

static void test_file_limits(void)
{
    static const rlim_t limits[] = {0, 1, 100, 5000};
    for (int i = 0; i < 8; i++) {
        char dir[] = "/tmp/moegen-misuse-XXXXXX", command[100];
        int status = 0;
        CHECK(mkdtemp(dir) != NULL);
        pid_t pid = fork();
        if (pid == 0)
            child_of_limits(dir, limits[i / 2], i % 2);
        waitpid(pid, &status, 0);
        if (status)
            fprintf(stderr, "limit %d, pending %d: status %#x\n", (int)limits[i / 2], i % 2,
                    (unsigned)status);
        CHECK(status == 0);
        snprintf(command, sizeof command, "test -z \"$(find %s -type f)\"; s=$?; rm -r %s; exit $s",
                 dir, dir);
        CHECK(limits[i / 2] == 5000 || system(command) == 0); /* nothing in part is left */
        if (limits[i / 2] == 5000) {
            snprintf(command, sizeof command, "rm -r %s", dir);
            CHECK(system(command) == 0);
        }
    }
}

/* ---- stacks ---- */

static moegen_status got, ran;
static bool told;

static void *make(void *text)
{
    moegen_spec spec = spec_of(text);
    moegen_kernel *kernel = NULL;
    moegen_call *call = NULL;
    moegen_error *err = NULL;
    got = moegen_kernel_get(engine, &spec, &kernel, &err);
    told = strstr(moegen_error_text(err), "KiB of this thread's stack are left") != NULL;
    ran = MOEGEN_INTERNAL;
    if (!got && !moegen_call_create(kernel, &call, NULL))
        ran = moegen_call_run(call, NULL); /* nothing is bound */
    moegen_call_release(call);
    moegen_error_release(err);
    moegen_kernel_release(kernel);
    return NULL;
}

static void in_thread(size_t stack, const char *text)
{
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    CHECK(pthread_attr_setstacksize(&attr, stack) == 0);
    CHECK(pthread_create(&thread, &attr, make, (void *)(uintptr_t)text) == 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
}

static void test_stacks(void)
{
    static const char fresh[] = "kernel: moe_forward\nname: s%zu\nH: 24\nI_TP: 20\nE: 3\n"
                                "top_k: 1\nblock_size: 4\ndtype: f32\n";
    char text[sizeof fresh + 20];
#ifndef __SANITIZE_ADDRESS__ /* which uses more stack itself */
    for (size_t k = 32; k <= 96; k += 16) {
        snprintf(text, sizeof text, fresh, k);
        in_thread(k << 10, text);
        CHECK(got == MOEGEN_NO_MEMORY && told);
    }
    snprintf(text, sizeof text, fresh, (size_t)128);
    in_thread(128 << 10, text);
    CHECK(got == MOEGEN_OK && ran == BAD);
    in_thread(64 << 10, text); /* it is in memory */
    CHECK(got == MOEGEN_OK && ran == BAD);
#endif
    snprintf(text, sizeof text, fresh, (size_t)1024);
    in_thread(1 << 20, text);
    CHECK(got == MOEGEN_OK && ran == BAD);
}

/* ---- sizes of structs ---- */

/* The end of a page: what is read or written beyond it is a fault. */
static char *page_end(void)
{
    long page = sysconf(_SC_PAGESIZE);
    char *at =
        mmap(NULL, (size_t)(2 * page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && mprotect(at + page, (size_t)page, PROT_NONE) == 0);
    return at + page;
}

enum { MOST = 400 };
static char *end; /* see page_end */

/* A struct of `size` bytes at the end of the page, the first of them from `from`. */
static void *of_size(const void *from, size_t known, size_t size, char rest)
{
    size_t head = sizeof size, room = size < head ? head : size;
    char *at = end - (room + 7) / 8 * 8;
    memset(at, rest, (size_t)(end - at));
    memcpy(at, from, known < room ? known : room);
    memcpy(at, &size, head);
    return at;
}

static moegen_status with_options(size_t size, char rest)
{
    const moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = ""};
    moegen_engine *e = NULL;
    moegen_status status = moegen_engine_create(of_size(&o, sizeof o, size, rest), &e, NULL);
    CHECK((status == MOEGEN_OK) == (e != NULL));
    moegen_engine_release(e);
    return status;
}

static moegen_status with_spec(size_t size, char rest)
{
    const moegen_spec s = spec_of(toy);
    moegen_kernel *kernel = NULL;
    moegen_layer *layer = NULL;
    moegen_source *source = NULL;
    const void *at = of_size(&s, sizeof s, size, rest);
    moegen_status status = moegen_kernel_get(engine, at, &kernel, NULL);
    if (status) {
        CHECK(moegen_generate(engine, at, &source, NULL) == status);
        CHECK(moegen_layer_create(engine, at, &layer, NULL) == status);
    }
    moegen_kernel_release(kernel);
    return status;
}

static moegen_kernel *kernel_of_toy;

static moegen_status with_facts(size_t size, char rest)
{
    const moegen_kernel_facts f = {.struct_size = sizeof f};
    char *at = of_size(&f, sizeof f, size, rest);
    moegen_status status = moegen_kernel_info(kernel_of_toy, (moegen_kernel_facts *)(void *)at);
    for (size_t i = sizeof f; i < size && !status; i++)
        CHECK(at[i] == 0);
    return status;
}

static void test_struct_sizes(void)
{
    static const struct {
        const char *what;
        size_t first, size; /* of the first version; of this one */
        moegen_status (*use)(size_t size, char rest);
        bool filled; /* by the library */
    } structs[] = {
        {"moegen_engine_options", offsetof(moegen_engine_options, tuned),
         sizeof(moegen_engine_options), with_options, false},
        {"moegen_spec", sizeof(moegen_spec), sizeof(moegen_spec), with_spec, false},
        {"moegen_kernel_facts", sizeof(moegen_kernel_facts), sizeof(moegen_kernel_facts),
         with_facts, true},
    };
    end = page_end();
    kernel_of_toy = get(engine, toy);
    for (size_t i = 0; i < sizeof structs / sizeof *structs; i++)
        for (size_t n = 0; n < MOST; n++) {
            size_t known = structs[i].size;
            moegen_status zero = structs[i].use(n, 0), set = structs[i].use(n, 0x55);
            bool version = n == known || n == structs[i].first;
            bool right = version     ? !zero && !set
                         : n < known ? zero == BAD && set == BAD
                                     : !zero && (set == BAD) == !structs[i].filled;
            if (!right)
                fprintf(stderr, "%s of %zu bytes: %d, %d\n", structs[i].what, n, zero, set);
            CHECK(right);
        }
    const size_t huge[] = {5000, UINT32_MAX, SIZE_MAX};
    for (size_t i = 0; i < 3; i++) {
        moegen_engine_options o = {.struct_size = huge[i]};
        moegen_engine *e = NULL;
        CHECK(moegen_engine_create(&o, &e, NULL) == BAD && !e);
    }
    moegen_kernel_release(kernel_of_toy);
}

/* ---- NULL ---- */

static void test_null_objects(void)
{
    int rank;
    int64_t shape[8];
    size_t bytes;
    moegen_tensor t;
    moegen_diagnostic d;
    CHECK(!*moegen_engine_cache_dir(NULL));
    CHECK(!*moegen_source_name(NULL) && !*moegen_source_c(NULL));
    CHECK(!*moegen_source_h(NULL) && !*moegen_source_cflags(NULL));
    CHECK(!*moegen_error_text(NULL) && moegen_error_count(NULL) == 0);
    CHECK(moegen_error_diagnostic(NULL, 0, &d) == BAD);
    CHECK(!moegen_kernel_param(NULL, "H") && !moegen_layer_kernel(NULL, 0));
    CHECK(moegen_call_bind(NULL, "x", &t, MOEGEN_F32, 0, NULL, NULL) == BAD);
    CHECK(moegen_call_bind_const(NULL, "x", &t, MOEGEN_F32, 0, NULL, NULL) == BAD);
    CHECK(moegen_call_set_size(NULL, "T", 1, NULL) == BAD);
    CHECK(moegen_call_set_threads(NULL, 1, NULL) == BAD);
    CHECK(moegen_call_shape(NULL, "x", &rank, shape, NULL) == BAD);
    CHECK(moegen_call_workspace_bytes(NULL, &bytes, NULL) == BAD);
    CHECK(moegen_call_set_workspace(NULL, NULL, 0, NULL) == BAD);
    CHECK(moegen_call_run(NULL, NULL) == BAD);
    CHECK(moegen_layer_state_set_threads(NULL, 1, NULL) == BAD);
    CHECK(moegen_layer_forward(NULL, NULL, 0, NULL) == BAD);
    CHECK(moegen_layer_backward(NULL, NULL, 0, NULL) == BAD);
    CHECK(moegen_layer_state_tensor(NULL, "x", &t, NULL) == BAD);
    moegen_engine_retain(NULL);
    moegen_engine_release(NULL);
    moegen_kernel_retain(NULL);
    moegen_kernel_release(NULL);
    moegen_layer_retain(NULL);
    moegen_layer_release(NULL);
    moegen_layer_state_release(NULL);
    moegen_call_release(NULL);
    moegen_source_release(NULL);
    moegen_error_release(NULL);
}

static void test_null_arguments(void)
{
    moegen_kernel *kernel = get(engine, toy);
    moegen_engine *e = NULL;
    moegen_call *call = NULL;
    moegen_layer *layer = NULL;
    moegen_layer_state *state = NULL;
    moegen_source *source = NULL;
    moegen_kernel_facts f = {.struct_size = sizeof f};
    moegen_spec spec = spec_of(toy), empty = {.struct_size = sizeof empty};
    moegen_entry entry;
    moegen_error *err = NULL;
    moegen_kernel *other = NULL;
    CHECK(moegen_engine_create(NULL, NULL, NULL) == BAD && !e);
    CHECK(moegen_kernel_get(NULL, &spec, &kernel, NULL) == BAD);
    CHECK(moegen_kernel_get(engine, NULL, &other, NULL) == BAD && !other);
    CHECK(moegen_kernel_get(engine, &spec, NULL, NULL) == BAD);
    CHECK(moegen_kernel_get(engine, &empty, &other, &err) == MOEGEN_BAD_SPEC && !other);
    CHECK(strstr(moegen_error_text(err), "the spec is empty"));
    moegen_error_release(err);
    empty.len = 1; /* of no text */
    CHECK(moegen_kernel_get(engine, &empty, &other, NULL) == BAD && !other);
    CHECK(moegen_generate(engine, &empty, &source, NULL) == BAD && !source);
    for (int i = 0; i <= 16; i++) { /* more than there is, which nobody reads */
        empty = spec;
        empty.len = i < 16 ? SIZE_MAX - (size_t)i : (size_t)256 * 1024 + 1;
        CHECK(moegen_kernel_get(engine, &empty, &other, NULL) == MOEGEN_BAD_SPEC && !other);
        CHECK(moegen_generate(engine, &empty, &source, NULL) == MOEGEN_BAD_SPEC && !source);
        CHECK(moegen_layer_create(engine, &empty, &layer, NULL) == MOEGEN_BAD_SPEC && !layer);
    }
    CHECK(moegen_generate(NULL, &spec, &source, NULL) == BAD);
    CHECK(moegen_generate(engine, NULL, &source, NULL) == BAD);
    CHECK(moegen_generate(engine, &spec, NULL, NULL) == BAD);
    CHECK(moegen_kernel_info(NULL, &f) == BAD && moegen_kernel_info(kernel, NULL) == BAD);
    CHECK(!moegen_kernel_param(kernel, NULL));
    CHECK(moegen_kernel_entry(NULL, &entry, NULL, NULL) == BAD);
    CHECK(moegen_kernel_entry(kernel, NULL, NULL, NULL) == BAD);
    CHECK(moegen_call_create(NULL, &call, NULL) == BAD);
    CHECK(moegen_call_create(kernel, NULL, NULL) == BAD);
    CHECK(moegen_layer_create(NULL, &spec, &layer, NULL) == BAD);
    CHECK(moegen_layer_create(engine, NULL, &layer, NULL) == BAD);
    CHECK(moegen_layer_create(engine, &spec, NULL, NULL) == BAD);
    CHECK(moegen_layer_state_create(NULL, &state, NULL) == BAD && !state);
    CHECK(!moegen_call_create(kernel, &call, NULL));
    CHECK(moegen_call_bind(call, NULL, &f, MOEGEN_F32, 0, NULL, NULL) == BAD);
    CHECK(moegen_call_bind(call, "output", &f, MOEGEN_F32, 2, NULL, NULL) == BAD);
    CHECK(moegen_call_set_size(call, NULL, 1, NULL) == BAD);
    CHECK(moegen_call_shape(call, NULL, &(int){0}, &(int64_t){0}, NULL) == BAD);
    CHECK(moegen_call_shape(call, "output", NULL, NULL, NULL) == BAD);
    CHECK(moegen_call_workspace_bytes(call, NULL, NULL) == BAD);
    moegen_call_release(call);
    moegen_kernel_release(kernel);
}

int main(void)
{
    engine = engine_of("", NULL);
    test_file_limits();
    test_stacks();
    test_struct_sizes();
    test_null_objects();
    test_null_arguments();
    moegen_engine_release(engine);
    return failures != 0;
}
