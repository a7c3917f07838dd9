/* SPDX-License-Identifier: Apache-2.0 */
/* jit_test.c - libtcc behind the shim: it compiles, complains with a place, survives everything,
 * and no page is ever writable and executable. */
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jit/jit.h"
#include "jit/tcc_shim.h"

#define CHECK(x) ((x) ? (void)0 : fail(__LINE__, #x))

static void fail(int line, const char *what)
{
    fprintf(stderr, "jit_test.c:%d: not so: %s\n", line, what);
    _exit(1);
}

static const char arith[] =
    "static const int table[4] = {1, 10, 100, 1000};\n"
    "static int pick(int i) { switch (i & 3) { case 0: return table[0]; case 1: return "
    "table[1]; case 2: return table[2]; default: return table[3]; } }\n"
    "int twice(int x) { return 2 * x; }\n"
    "double sum(const double *p, long n) { double s = 0.5; for (long i = 0; i < n; i++) "
    "s += p[i] * pick((int)i) + 1.25; return s; }\n";

/* lea (%rdi,%rsi,4),%eax; ret as bytes, and as one padded quad */
static const char bytes[] =
    "__asm__(\".text\\n.p2align 6,0x90\\n.globl b\\n.hidden b\\nb:\\n\"\n"
    "\".byte 0x67,0x8d,0x04,0xb7\\n\" // lea eax,[edi+esi*4]\n"
    "\".byte 0xc3\\n\"\n"
    "\".p2align 6,0x90\\n.globl q\\n.hidden q\\nq:\\n.quad 0x909090c3b7048d67\\n\");\n"
    "int b(int x, int y); int q(int x, int y);\n"
    "int both(int x, int y) { return b(x, y) + q(x, y); }\n";

static int no_rwx(void)
{
    char line[512];
    int bad = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f))
        bad |= strstr(line, " rwx") != NULL ||
               (strstr(line, "wx") && strchr(line, 'w') < strchr(line, '/'));
    if (f)
        fclose(f);
    return !bad;
}

/* Its code is given beside it. */
static const char beside[] =
    "__asm__(\".data\\n.globl moegen_tiles_here\\n.hidden moegen_tiles_here\\n\"\n"
    "\"moegen_tiles_here:\\n.text\\n\");\n"
    "static const unsigned char tiles[16] = \"\";\n"
    "int f(int x, int y) { return ((int (*)(int, int))(tiles + 8))(x, y); }\n";

/* Compile and map, or stop. */
static struct code make_with(const char *text, const struct text *given, const char *const *symbols,
                             int n)
{
    struct blob blob = {0};
    struct code code = {0};
    moegen_error *err = NULL;
    moegen_status status = jit_compile(text, given, symbols, n, &blob, &err);
    if (!status)
        status = code_map(&blob, &code, &err);
    if (status)
        fprintf(stderr, "%s", moegen_error_text(err));
    CHECK(status == MOEGEN_OK);
    blob_free(&blob);
    return code;
}

static struct code make(const char *text, const char *const *symbols, int n)
{
    return make_with(text, NULL, symbols, n);
}

static void run_beside(void)
{
    static char lea[] = "........\x67\x8d\x04\xb7\xc3...";
    struct text code = {.at = lea, .len = 16}, large = {.at = lea, .len = 1 << 20};
    struct code c = make_with(beside, &code, (const char *const[]){"f"}, 1);
    int (*f)(int, int);
    memcpy(&f, &c.fn[0], sizeof f);
    CHECK(f(1, 10) == 41);
    code_unmap(&c);
    struct blob blob = {0};
    moegen_error *err = NULL;
    CHECK(jit_compile(arith, &code, (const char *const[]){"sum"}, 1, &blob, &err) ==
          MOEGEN_INTERNAL);
    CHECK(strstr(moegen_error_text(err), "no room for tiles is called"));
    moegen_error_release(err);
    CHECK(jit_compile(beside, &large, (const char *const[]){"f"}, 1, &blob, NULL) ==
          MOEGEN_INTERNAL);
}

static void run_arith(void)
{
    struct code c = make(arith, (const char *const[]){"twice", "sum"}, 2);
    int (*twice)(int);
    double (*sum)(const double *, long);
    memcpy(&twice, &c.fn[0], sizeof twice);
    memcpy(&sum, &c.fn[1], sizeof sum);
    CHECK(twice(21) == 42);
    CHECK(sum((double[]){1, 2, 3, 4, 5}, 5) == 0.5 + 1 + 20 + 300 + 4000 + 5 + 5 * 1.25);
    code_unmap(&c);
}

static void run_bytes(void)
{
    struct code c = make(bytes, (const char *const[]){"both", "b", "q"}, 3);
    int (*f[3])(int, int);
    memcpy(f, c.fn, sizeof f);
    CHECK(f[0](1, 10) == 82 && f[1](1, 10) == 41 && f[2](2, 10) == 42);
    CHECK((uintptr_t)c.fn[1] % 64 == 0 && (uintptr_t)c.fn[2] % 64 == 0);
    code_unmap(&c);
}

/* The text must be refused with a complaint that contains `want` on `line`. */
static void refuse(const char *text, int line, const char *want)
{
    struct blob blob = {0};
    moegen_error *err = NULL;
    moegen_status status = jit_compile(text, NULL, (const char *const[]){"f"}, 1, &blob, &err);
    CHECK(status == MOEGEN_INTERNAL && err && err->count >= 1 && !blob.at);
    if (err->diag[0].line != line || !strstr(err->diag[0].message, want))
        fprintf(stderr, "line %d wanted %d: %s (%s)\n", err->diag[0].line, line,
                err->diag[0].message, want);
    CHECK(err->diag[0].line == line && strstr(err->diag[0].message, want));
    CHECK(line == 0 || strcmp(err->diag[0].file, "<generated>") != 0 || err->diag[0].source);
    moegen_error_release(err);
}

static void run_errors(void)
{
    refuse("int g;\nint f(void) {\n    return yy;\n}\n", 3, "yy");
    refuse("int f(void) { return 1 }\n", 1, "';' expected");
    refuse("\n\nint f(int x) { return g(x); }\n", 3, "implicit declaration");
    refuse("int g(int);\nint f(int x) { return g(x); }\n", 0, "undefined symbol 'g'");
    refuse("int h(void) { return 1; }\n", 0, "no function is called 'f'");
    refuse("#include <stdio.h>\nint f(void) { return 1; }\n", 1, "'stdio.h' not found");
    refuse("static int x; static int *const p = &x; int f(void) { return *p; }\n", 0, "address");
    refuse("int f(int *p) { char *q = p; return *q; }\n", 1, "incompatible");
    refuse("#line 77 \"moe.lua\"\nint f(void) { return yy; }\n", 77, "yy");
    refuse("#error 100% wrong\nint f;\n", 1, "100% wrong");
    refuse("__asm__(\"vaddps %zmm0,%zmm0,%zmm0\");\nint f(void) { return 1; }", 1,
           "unknown register");
    run_arith();
}

static void *thread(void *start)
{
    pthread_barrier_wait(start);
    for (int i = 0; i < 4; i++) {
        run_arith();
        run_bytes();
        refuse("int f(void) {\n return yy;\n}\n", 2, "yy");
    }
    return NULL;
}

static void run_threads(void)
{
    enum { N = 16 };
    pthread_t t[N];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, N);
    for (int i = 0; i < N; i++)
        CHECK(pthread_create(&t[i], NULL, thread, &start) == 0);
    for (int i = 0; i < N; i++)
        pthread_join(t[i], NULL);
}

static void run_small_stack(void)
{
    pthread_t t;
    pthread_attr_t a;
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, 1);
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, 256 << 10);
    CHECK(pthread_create(&t, &a, thread, &start) == 0);
    pthread_join(t, NULL);
}

static void run_hardened(void)
{
#ifdef PR_SET_MDWE
    enum { SET = PR_SET_MDWE };
#else
    enum { SET = 65 };
#endif
    if (prctl(SET, 1, 0, 0, 0))
        fprintf(stderr, "note: no PR_SET_MDWE here\n");
    run_arith();
}

static void run_locale(void)
{
    static const char *const comma[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "nl_NL.UTF-8"};
    const char *found = NULL;
    for (size_t i = 0; i < sizeof comma / sizeof *comma && !found; i++)
        found = setlocale(LC_ALL, comma[i]);
    if (!found)
        fprintf(stderr, "note: no locale with a decimal comma here\n");
    run_arith();
}

/* Whatever allocation fails, the next compile works. */
static void run_out_of_memory(void)
{
    size_t usual = tcc_shim_limit, failures = 0, step = 64;
    bool done = false;
    for (size_t limit = 0; !done; limit += step) {
        struct blob blob = {0};
        moegen_error *err = NULL;
        tcc_shim_limit = limit;
        moegen_status status =
            jit_compile(arith, NULL, (const char *const[]){"twice"}, 1, &blob, &err);
        tcc_shim_limit = usual;
        CHECK(status == MOEGEN_OK || status == MOEGEN_NO_MEMORY);
        done = status == MOEGEN_OK;
        failures += !done;
        moegen_error_release(err);
        blob_free(&blob);
        if (failures % 16 == 1)
            run_arith();
        step = limit / 512 < 64 ? 64 : limit / 512;
    }
    CHECK(failures > 100);
    run_arith();
}

static atomic_bool stop;

static void *compile_always(void *unused)
{
    while (!atomic_load(&stop))
        run_arith();
    return unused;
}

/* fork while another thread compiles: the child can compile. Not with AddressSanitizer, whose
 * allocator may hold a lock of its own when the process forks, which nobody opens in the child. */
static void run_fork(void)
{
#ifdef __SANITIZE_ADDRESS__
    fprintf(stderr, "note: not tried with AddressSanitizer\n");
    return;
#endif
    pthread_t t;
    CHECK(pthread_create(&t, NULL, compile_always, NULL) == 0);
    for (int i = 0; i < 100; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(60);
            run_arith();
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    atomic_store(&stop, true);
    pthread_join(t, NULL);
}

static void *watch(void *unused)
{
    while (!atomic_load(&stop))
        CHECK(no_rwx());
    return unused;
}

/* No page is writable and executable, not even for a moment. */
static void run_pages(void)
{
    pthread_t t;
    CHECK(pthread_create(&t, NULL, watch, NULL) == 0);
    for (int i = 0; i < 300; i++)
        run_bytes();
    struct code c = make(arith, (const char *const[]){"twice"}, 1);
    CHECK(no_rwx());
    code_unmap(&c);
    atomic_store(&stop, true);
    pthread_join(t, NULL);
}

/* The same text gives the same bytes, whatever was compiled before. */
static void run_same(void)
{
    struct blob a = {0}, b = {0};
    CHECK(jit_compile(arith, NULL, (const char *const[]){"sum"}, 1, &a, NULL) == MOEGEN_OK);
    refuse("int f(void) {\n return yy;\n}\n", 2, "yy");
    run_bytes();
    CHECK(jit_compile(arith, NULL, (const char *const[]){"sum"}, 1, &b, NULL) == MOEGEN_OK);
    CHECK(a.len == b.len && memcmp(a.at, b.at, a.len) == 0 && a.entry[0] == b.entry[0]);
    blob_free(&a);
    blob_free(&b);
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"threads", run_threads},
    {"arith", run_arith},
    {"bytes", run_bytes},
    {"errors", run_errors},
    {"small_stack", run_small_stack},
    {"hardened", run_hardened},
    {"beside", run_beside},
    {"locale", run_locale},
    {"out_of_memory", run_out_of_memory},
    {"fork", run_fork},
    {"pages", run_pages},
    {"same", run_same},
};

/* Every test in its own process, so that each starts cold; or only the one named. */
int main(int argc, char **argv)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (argc > 1) {
            if (strcmp(argv[1], tests[i].name) == 0)
                tests[i].run();
            continue;
        }
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(60);
            tests[i].run();
            fflush(NULL);
            _exit(0);
        }
        int status = 1;
        waitpid(pid, &status, 0);
        printf("%-14s %s\n", tests[i].name, status ? "FAILED" : "ok");
        failed |= status != 0;
    }
    return failed;
}
