/* SPDX-License-Identifier: Apache-2.0 */
/* api.h - what the tests of the public interface share; included once by each. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moegen.h"

static int failures;
#define CHECK(x) ((x) ? (void)0 : failed(__FILE__, __LINE__, #x))

static void failed(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
    failures++;
}

static const char toy[] = "kernel: moe_forward\nname: toy\nH: 24\nI_TP: 20\nE: 3\ntop_k: 1\n"
                          "block_size: 4\ndtype: f32\n";
enum { T = 9, H = 24, I = 20, E = 3, B = 4, BLOCKS = 5 };

static inline moegen_spec spec_of(const char *text)
{
    return (moegen_spec){.struct_size = sizeof(moegen_spec), .text = text, .len = strlen(text)};
}

static inline moegen_engine *engine_of(const char *cache_dir, const char *features)
{
    moegen_engine *engine = NULL;
    moegen_engine_options o = {
        .struct_size = sizeof o, .cache_dir = cache_dir, .features = features};
    o.threads = getenv("MOEGEN_THREADS") ? 0 : 2; /* 0: as many as that says */
    CHECK(moegen_engine_create(&o, &engine, NULL) == MOEGEN_OK);
    return engine;
}

/* Which target's program it is: not that of the spec where this has nothing for the kernel. */
static inline const char *target_of(const moegen_kernel *kernel)
{
    moegen_kernel_facts facts = {.struct_size = sizeof facts};
    CHECK(!moegen_kernel_info(kernel, &facts));
    return facts.target;
}

static inline moegen_kernel *get(moegen_engine *engine, const char *text)
{
    moegen_spec spec = spec_of(text);
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    moegen_status status = moegen_kernel_get(engine, &spec, &kernel, &err);
    if (status)
        fprintf(stderr, "%s", moegen_error_text(err));
    CHECK(status == MOEGEN_OK && kernel);
    moegen_error_release(err);
    return kernel;
}
