/* SPDX-License-Identifier: Apache-2.0 */
/* property_test.c - measured properties of the CPU: measured once, kept, and what plans make of
 * them. Every case runs in a process of its own, as a process remembers what it measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moegen_runtime.h"
#include "api/engine.h"

static char dir[] = "/tmp/moegen-property-XXXXXX";
static int failures;
#define CHECK(x) ((x) ? (void)0 : failed(__LINE__, #x))

static void failed(int line, const char *what)
{
    fprintf(stderr, "property_test.c:%d: not so: %s\n", line, what);
    failures++;
}

static moegen_engine *engine_of(const char *features)
{
    moegen_engine *engine = NULL;
    moegen_engine_options o = {
        .struct_size = sizeof o, .cache_dir = dir, .threads = 1, .features = features};
    CHECK(moegen_engine_create(&o, &engine, NULL) == MOEGEN_OK);
    return engine;
}

static void keep(const char *name, long value)
{
    struct cache *cache = cache_open(dir, NULL, NULL);
    cache_prune(cache, 0, NULL);
    property_save(cache, name, value);
    cache_close(cache);
}

/* ---- keeping ---- */

static bool damage(void *user, const struct cache_entry *e)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%.2s/%.62s.krn", (const char *)user, e->key, e->key + 2);
    FILE *f = fopen(path, "r+b");
    CHECK(f && fseek(f, -2, SEEK_END) == 0 && fputc('x', f) == 'x' && fclose(f) == 0);
    return true;
}

static void test_keeping(void)
{
    long value = 0;
    property_save(NULL, "a.b", 7);
    CHECK(!property_load(NULL, "a.b", &value));
    keep("a.b", 1234);
    struct cache *cache = cache_open(dir, NULL, NULL);
    CHECK(property_load(cache, "a.b", &value) && value == 1234);
    CHECK(!property_load(cache, "a.c", &value));
    property_save(cache, "a.c", -3);
    CHECK(!property_load(cache, "a.c", &value));
    CHECK(cache_each(cache, damage, dir) == 2);
    CHECK(!property_load(cache, "a.b", &value));
    cache_close(cache);
}

/* ---- measuring ---- */

/* An op as fast as FMA on any CPU; what is no op, or of no target here. */
static void test_measuring(void)
{
    keep("avx2.other", 1);
    moegen_engine *engine = engine_of(NULL);
    long kept = 0;
    double rate = property_of(engine, "avx2.fnma");
    if (moegen_rt_cpu_has("avx2") && moegen_rt_cpu_has("fma")) {
        CHECK(rate > 0.2 && rate < 5);
        CHECK(property_load(engine_cache(engine), "avx2.fnma", &kept));
        CHECK(rate == (double)kept / 1000);
    } else {
        CHECK(rate == 0);
    }
    CHECK(property_of(engine, "avx2.fnma") == rate);
    CHECK(property_of(engine, "avx2.load") == 0);
    CHECK(property_of(engine, "avx2.nonsense") == 0);
    CHECK(property_of(engine, "nowhere.fma") == 0);
    CHECK(property_of(engine, "nodot") == 0);
    CHECK(!property_load(engine_cache(engine), "avx2.nonsense", &kept));
    moegen_engine_release(engine);
}

static void test_kept_is_used(void)
{
    keep("avx2.fnma", 123456);
    moegen_engine *engine = engine_of(NULL);
    CHECK(property_of(engine, "avx2.fnma") == 123.456);
    moegen_engine_release(engine);
}

/* ---- plans ---- */

static const char rate[] = "avx512_bf16.dot_bf16";
static const char features[] =
    "avx512f avx512bw avx512dq avx512vl fma f16c avx2 avx512_bf16 avx512_vnni "
    "avx512_vbmi";

/* The plan of a kernel with these keys, of moe_forward unless they name another one, on a CPU with
 * these features: one line per choice. */
static void explain(struct text *out, const char *keys, const char *cpu)
{
    static const char common[] = "kernel: moe_forward\nH: 64\nI_TP: 32\nE: 2\ntop_k: 1\n"
                                 "block_size: 4\nname: x\n";
    struct text text = {0};
    text_fmt(&text, "%s%s", strncmp(keys, "kernel:", 7) == 0 ? "" : common, keys);
    moegen_engine *engine = engine_of(cpu);
    moegen_spec spec = {.struct_size = sizeof spec, .text = text.at, .len = text.len};
    moegen_error *err = NULL;
    struct ask a;
    moegen_status status = ask_open(&a, engine, &spec, "jit", &err);
    if (!status)
        status = ask_explain(&a, engine, out, &err);
    if (status)
        text_fmt(out, "%s", moegen_error_text(err));
    moegen_error_release(err);
    ask_close(&a);
    moegen_engine_release(engine);
    text_free(&text);
}

/* kept: thousandths, 0: nothing is kept. */
static void expect(long kept, const char *keys, const char *cpu, const char *target,
                   const char *reason)
{
    struct text out = {0};
    char line[64];
    long value = 0;
    keep(kept ? rate : "other", kept ? kept : 1);
    explain(&out, keys, cpu);
    snprintf(line, sizeof line, "  target       %-10s ", target);
    if (!out.at || !strstr(out.at, line) || !strstr(out.at, reason)) {
        fprintf(stderr, "with %s of %ld: expected target %s, '%s' in\n%s", keys, kept, target,
                reason, out.at ? out.at : "");
        failures++;
    }
    struct cache *cache = cache_open(dir, NULL, NULL);
    CHECK(kept || !property_load(cache, rate, &value));
    cache_close(cache);
    text_free(&out);
}

static void test_fast_dot(void)
{
    expect(2000, "dtype: bf16\n", features, "avx512_bf16",
           "  product      dot        vdpbf16ps runs at 2.00 of the FMA rate here\n");
    expect(2000, "dtype: bf16\nplan: {product: widen}\n", features, "avx512_bf16",
           "  product      widen      given\n");
}

/* The target rounds outputs, whatever multiplies. */
static void test_slow_dot(void)
{
    expect(500, "dtype: bf16\n", features, "avx512_bf16",
           "  product      widen      vdpbf16ps runs at 0.50 of the FMA rate here\n");
    expect(500, "dtype: bf16\noutput_dtype: f32\n", features, "avx512",
           "  not          avx512_bf16 rounding intermediates to bf16 costs digits of an output in "
           "f32\n");
    expect(500, "dtype: bf16\nplan: {product: dot}\n", features, "avx512_bf16",
           "  product      dot        given\n");
}

/* No measurement where it cannot matter. */
static void test_no_dot(void)
{
    expect(0, "dtype: f32\n", features, "avx512",
           "  not          avx512_bf16 no instruction multiplies pairs of f32\n");
    expect(0, "dtype: f16\n", features, "avx512", "pairs of f16\n");
    expect(0, "dtype: bf16\naffinity: {scale: pre}\n", features, "avx512_bf16",
           "  product      widen      affinity scaling `pre` makes f32 of the bf16 rows\n");
    expect(0, "dtype: bf16\noutput_dtype: f32\n", features, "avx512", "costs digits");
    expect(0, "dtype: bf16\n", "avx2 fma f16c", "avx2",
           "  product      widen      target avx2 has no dot product of bf16\n");
    expect(0, "dtype: bf16\ntarget: avx512_bf16\n", features, "avx512_bf16",
           "  product      dot        the target was asked for\n");
    expect(0, "dtype: f32\ntarget: avx512_bf16\n", features, "avx512",
           "avx512_bf16: no instruction multiplies pairs of f32\n");
    expect(0, "dtype: bf16\ntarget: avx512\n", features, "avx512",
           "  product      widen      target avx512 has no dot product of bf16\n");
    if (!moegen_rt_cpu_has("avx512_bf16"))
        expect(0, "dtype: bf16\n", features, "avx512_bf16",
               "  product      widen      how fast vdpbf16ps is here cannot be measured\n");
}

/* An output in f32 loses nothing where nothing is rounded on the way to it. */
static void test_exact_dot(void)
{
#define GRADIENT                                                                                   \
    "kernel: grouped_gemm\nname: x\nop: dW\nN: 48\nK: 40\nE: 2\ntop_k: 1\ndtype: bf16\n"           \
    "output_dtype: f32\n"
    expect(2000, GRADIENT, features, "avx512_bf16",
           "  product      dot        vdpbf16ps runs at 2.00 of the FMA rate here\n");
    expect(0, GRADIENT "plan: {t_unroll: 1}\n", features, "avx512",
           "  product      widen      steps of 1 tokens are no pairs\n");
}

static void apart(void (*test)(void))
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        test();
        _exit(failures != 0);
    }
    failures += child < 0 || waitpid(child, &status, 0) != child || status != 0;
}

int main(void)
{
    if (!mkdtemp(dir))
        return 2;
    apart(test_keeping);
    apart(test_measuring);
    apart(test_kept_is_used);
    apart(test_fast_dot);
    apart(test_slow_dot);
    apart(test_no_dot);
    apart(test_exact_dot);
    struct cache *cache = cache_open(dir, NULL, NULL);
    cache_prune(cache, 0, NULL);
    cache_close(cache);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command))
        failures++;
    if (!failures)
        printf("ok\n");
    return failures != 0;
}
