/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - random damage to good texts, the same in every run. Included once by each fuzzer, which
 * defines try(): a text that must not crash, and whose outcome it requires to be sound.
 *
 * Compiled with -DMOEGEN_LIBFUZZER -fsanitize=fuzzer,address, a fuzzer is a libFuzzer target:
 *     clang -g -std=c11 -D_GNU_SOURCE -DMOEGEN_LIBFUZZER -fsanitize=fuzzer,address,undefined \
 *         -Igen -Iruntime -I/usr/include/lua5.4 tests/fuzz_spec.c build/libmoegen.a \
 *         build/libmoegen_rt.a -llua5.4 -lyaml -lm -o build/fuzz_spec
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

static void try(const char *text, size_t len);

static inline void require(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "fuzz: %s\n", what);
        abort();
    }
}

#ifdef MOEGEN_LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try((const char *)data, size);
    return 0;
}

#else

enum { MAX_SEEDS = 128 };

static struct text seed[MAX_SEEDS];
static size_t seed_count;
static uint64_t state = 0x9E3779B97F4A7C15u;

static inline uint32_t chance(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 32) * below >> 32);
}

static inline void seed_add(const char *text, size_t len)
{
    require(seed_count < MAX_SEEDS, "too many seeds");
    text_add(&seed[seed_count], text, len);
    seed_count += len > 0;
}

static inline void seed_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct text all = {0};
    char part[4096];
    size_t n;
    require(f != NULL, path);
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        text_add(&all, part, n);
    fclose(f);
    seed_add(all.at ? all.at : "", all.len);
    text_free(&all);
}

/* A few random edits of a seed: bytes, deletions, pieces of other seeds, signs of the language. */
static inline void mutate(struct text *t, const char *signs, size_t count)
{
    const struct text *s = &seed[chance((uint32_t)seed_count)];
    t->len = 0;
    text_add(t, s->at, s->len);
    for (uint32_t edits = 1 + chance(8); edits-- > 0 && t->len > 1;) {
        size_t at = chance((uint32_t)t->len), n = 1 + chance(12);
        const struct text *o = &seed[chance((uint32_t)seed_count)];
        n = n < t->len - at ? n : t->len - at;
        switch (chance(5)) {
        case 0:
            t->at[at] = (char)chance(256);
            break;
        case 1:
        case 2:
            t->at[at] = signs[chance((uint32_t)count)];
            break;
        case 3:
            memmove(t->at + at, t->at + at + n, t->len - at - n);
            t->len -= n;
            break;
        default:
            text_add(t, o->at, 1 + chance((uint32_t)o->len));
        }
    }
}

/* Tries all seeds as they are, then `runs` mutations of them; frees the seeds. */
static inline void fuzz(long runs, const char *signs, size_t count)
{
    struct text t = {0};
    for (size_t i = 0; i < seed_count; i++)
        try(seed[i].at, seed[i].len);
    for (long i = 0; i < runs; i++) {
        mutate(&t, signs, count);
        try(t.at, t.len);
    }
    printf("%ld mutations of %zu texts\n", runs, seed_count);
    text_free(&t);
    for (size_t i = 0; i < seed_count; i++)
        text_free(&seed[i]);
}

#endif
