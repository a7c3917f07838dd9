/* SPDX-License-Identifier: Apache-2.0 */
/* api_test.c - the public interface: where kernels come from, what is told of them, errors, C text.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api.h"

static const char *origin(const moegen_kernel *kernel)
{
    moegen_kernel_facts f = {.struct_size = sizeof f};
    return moegen_kernel_info(kernel, &f) ? "?" : f.origin;
}

/* ---- where kernels come from ---- */

static void test_origins(void)
{
    char dir[] = "/tmp/moegen-api-XXXXXX", command[64];
    CHECK(mkdtemp(dir) != NULL);
    for (int i = 0; i < 2; i++) {
        moegen_engine *engine = engine_of(dir, NULL);
        CHECK(strcmp(moegen_engine_cache_dir(engine), dir) == 0);
        moegen_kernel *first = get(engine, toy), *again = get(engine, toy);
        CHECK(strcmp(origin(first), i ? "disk" : "jit") == 0);
        CHECK(strcmp(origin(again), "memory") == 0);
        moegen_kernel_release(first);
        moegen_kernel_retain(again);
        moegen_engine_release(engine); /* kernels outlive it */
        moegen_kernel_release(again);
        CHECK(strcmp(moegen_kernel_param(again, "activation"), "silu") == 0);
        CHECK(moegen_kernel_param(again, "no such key") == NULL);
        moegen_kernel_release(again);
    }
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(system(command) == 0);
    moegen_engine *engine = engine_of("", NULL);
    CHECK(*moegen_engine_cache_dir(engine) == '\0');
    moegen_engine_retain(engine);
    moegen_engine_release(engine);
    moegen_engine_release(engine);
}

static void test_info(void)
{
    moegen_engine *engine = engine_of("", "");
    moegen_kernel *kernel = get(engine, toy);
    moegen_kernel_facts f = {.struct_size = sizeof f};
    CHECK(moegen_kernel_info(kernel, &f) == MOEGEN_OK);
    CHECK(strcmp(f.name, "toy") == 0 && strcmp(f.family, "moe_forward") == 0);
    CHECK(strcmp(f.spelling, "scalar") == 0); /* no features were offered */
    CHECK(f.arg_count >= 7 && f.dim_count == 2 && f.code_bytes > 0 && f.jit_seconds > 0);
    CHECK(f.flops_per_row == 6 * H * I);
    CHECK(strcmp(f.args[0].name, "hidden_states") == 0 && f.args[0].rank == 2);
    CHECK(strcmp(f.args[0].extent[0], "T+1") == 0 && strcmp(f.args[0].extent[1], "24") == 0);
    moegen_kernel_facts small = {.struct_size = 2 * sizeof(void *)};
    CHECK(moegen_kernel_info(kernel, &small) == MOEGEN_BAD_ARGUMENT && !small.name);
    CHECK(moegen_kernel_info(NULL, &f) == MOEGEN_BAD_ARGUMENT);
    moegen_kernel_release(kernel);
    moegen_engine_release(engine);
    CHECK(moegen_version() == 100 && strcmp(moegen_status_name(MOEGEN_BAD_SPEC), "bad spec") == 0);
    CHECK(strcmp(moegen_dtype_name(MOEGEN_BF16), "bf16") == 0 &&
          moegen_dtype_size(MOEGEN_I64) == 8);
    CHECK(strcmp(moegen_dtype_name((moegen_dtype)77), "?") == 0);
}

/* ---- errors ---- */

static void test_errors(void)
{
    moegen_engine *engine = engine_of("", NULL);
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    moegen_diagnostic d;
    moegen_spec spec = spec_of("kernel: moe_forward\nH: 0\nE: -2\ncheckpont: save\n");
    spec.label = "a.yaml";
    CHECK(moegen_kernel_get(engine, &spec, &kernel, &err) == MOEGEN_BAD_SPEC && !kernel);
    CHECK(moegen_error_count(err) >= 3);
    CHECK(moegen_error_diagnostic(err, 0, &d) == MOEGEN_OK && strcmp(d.file, "a.yaml") == 0);
    CHECK(d.line >= 1 && d.col >= 1 && d.len >= 1 && *d.message);
    CHECK(moegen_error_diagnostic(err, 99, &d) == MOEGEN_BAD_ARGUMENT);
    CHECK(strstr(moegen_error_text(err), "a.yaml:2:4: error: H: 0 is not in"));
    CHECK(strstr(moegen_error_text(err), "did you mean 'checkpoint'?"));
    moegen_error_release(err);
    CHECK(moegen_kernel_get(engine, &spec, &kernel, NULL) == MOEGEN_BAD_SPEC);
    err = NULL;
    spec.struct_size = 0;
    CHECK(moegen_kernel_get(engine, &spec, &kernel, &err) == MOEGEN_BAD_ARGUMENT && err);
    moegen_error_release(err);
    moegen_error_release(NULL);
    CHECK(moegen_error_count(NULL) == 0);
    moegen_kernel_release(NULL);
    moegen_call_release(NULL);
    moegen_source_release(NULL);
    moegen_engine_release(engine);
    moegen_engine_release(NULL);
}

/* ---- C text ---- */

static void test_generate(void)
{
    moegen_engine *engine = engine_of("", NULL);
    moegen_source *source = NULL, *again = NULL;
    moegen_override set[] = {{"target", "scalar"}, {"name", "renamed"}};
    moegen_spec spec = spec_of(toy);
    spec.overrides = set;
    spec.override_count = 2;
    CHECK(moegen_generate(engine, &spec, &source, NULL) == MOEGEN_OK);
    CHECK(moegen_generate(engine, &spec, &again, NULL) == MOEGEN_OK);
    CHECK(strcmp(moegen_source_name(source), "renamed") == 0);
    CHECK(strstr(moegen_source_h(source), "struct renamed_args"));
    CHECK(strcmp(moegen_source_c(source), moegen_source_c(again)) == 0);
    moegen_source_release(source);
    moegen_source_release(again);
    moegen_engine_release(engine);
}

int main(void)
{
    test_origins();
    test_info();
    test_errors();
    test_generate();
    return failures != 0;
}
