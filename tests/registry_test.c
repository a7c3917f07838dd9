/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registry_test.c - the registry keeps what was used last and what is in use, and nothing else;
 * threads that add the same keys agree on the values, and nobody gets one that was let go.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/engine.h"

#define CHECK(x) ((x) ? (void)0 : fail(__LINE__, #x))

static void fail(int line, const char *what)
{
    fprintf(stderr, "registry_test.c:%d: not so: %s\n", line, what);
    exit(1);
}

struct value {
    _Atomic int refs;
    unsigned of;
};

static _Atomic int alive;

static struct value *value_make(unsigned of)
{
    struct value *v = malloc(sizeof *v);
    CHECK(v);
    *v = (struct value){.refs = 1, .of = of};
    alive++;
    return v;
}

static void retain(void *value)
{
    CHECK(((struct value *)value)->refs++ > 0);
}

static void release(void *value)
{
    if (--((struct value *)value)->refs)
        return;
    alive--;
    free(value);
}

static bool in_use(const void *value)
{
    return ((const struct value *)value)->refs > 1;
}

static const struct registry_ops ops = {retain, release, in_use};
static struct registry *reg;

/* Keys of many lengths, none a part of another. */
static size_t key_of(unsigned i, unsigned char key[40])
{
    memset(key, (int)(i & 3), 40);
    memcpy(key, &i, sizeof i);
    return 8 + i % 32;
}

static struct value *get(unsigned i)
{
    unsigned char key[40];
    size_t len = key_of(i, key);
    struct value *v = registry_find(reg, key, len);
    CHECK(!v || v->of == i);
    return v;
}

/* The value of a key, made if it must be. */
static struct value *get_or_add(unsigned i)
{
    unsigned char key[40];
    size_t len = key_of(i, key);
    struct value *v = get(i), *made = v ? NULL : value_make(i);
    if (made) {
        v = registry_add(reg, key, len, made);
        CHECK(v && v->of == i);
        release(made);
    }
    return v;
}

static bool has(unsigned i)
{
    struct value *v = get(i);
    if (v)
        release(v);
    return v != NULL;
}

static void add(unsigned i)
{
    release(get_or_add(i));
}

/* ---- which ones stay ---- */

static void test_order(void)
{
    reg = registry_create(3, &ops);
    CHECK(reg && !registry_find(reg, "", 0) && registry_trim(reg, 0) == 0);
    for (unsigned i = 0; i < 3; i++)
        add(i);
    CHECK(has(0)); /* used last now: 1 is the oldest */
    add(3);
    CHECK(alive == 3 && !has(1) && has(2) && has(3) && has(0));
    struct value *held = get(2);
    for (unsigned i = 10; i < 20; i++)
        add(i);
    CHECK(alive == 3 && held->refs == 2 && has(19) && has(18) && has(2));
    CHECK(get(2) == held); /* held twice */
    release(held);
    CHECK(registry_trim(reg, 2) == 1 && !has(19));             /* 18 and 2 were asked for since */
    CHECK(registry_trim(reg, 0) == 1 && alive == 1 && has(2)); /* held: stays */
    release(held);
    CHECK(registry_trim(reg, 0) == 1 && alive == 0 && !has(2));
    struct value *many[8]; /* more in use than the limit: all stay while they are */
    for (unsigned i = 0; i < 8; i++)
        many[i] = get_or_add(i);
    for (unsigned i = 0; i < 8; i++)
        CHECK(has(i));
    for (unsigned i = 0; i < 8; i++)
        release(many[i]);
    add(8);
    CHECK(alive == 3 && has(6) && has(7) && has(8));
    registry_destroy(reg);
    CHECK(alive == 0);
}

/* ---- threads ---- */

enum { THREADS = 4, KEYS = 3000, ROUNDS = 20000 };
static struct value *seen[THREADS][KEYS];

static void *insert(void *id)
{
    struct value **mine = id;
    for (unsigned i = 0; i < KEYS; i++) {
        unsigned char key[40];
        size_t len = key_of(i, key);
        mine[i] = get_or_add(i);
        CHECK(!registry_find(reg, key, len - 1));
    }
    return NULL;
}

/* Few places, many keys, a trim now and then. */
static void *churn(void *id)
{
    unsigned x = 1 + (unsigned)((struct value **)id - seen[0]);
    for (int i = 0; i < ROUNDS; i++) {
        x = x * 1664525 + 1013904223;
        unsigned key = x >> 16 & 63;
        struct value *v = get_or_add(key);
        CHECK(v->refs > 0 && v->of == key);
        if (i % 1000 == 0)
            registry_trim(reg, x >> 28);
        CHECK(v->refs > 0 && v->of == key);
        release(v);
    }
    return NULL;
}

static void run(void *(*what)(void *))
{
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, what, seen[i]) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
}

int main(void)
{
    test_order();
    reg = registry_create(SIZE_MAX, &ops);
    run(insert);
    CHECK(alive == KEYS);
    for (unsigned i = 0; i < KEYS; i++)
        for (int t = 0; t < THREADS; t++) {
            CHECK(seen[t][i] == seen[0][i]);
            release(seen[t][i]);
        }
    CHECK(alive == KEYS);
    registry_destroy(reg);
    CHECK(alive == 0);
    reg = registry_create(16, &ops);
    run(churn);
    int left = alive;
    CHECK(left > 0 && left <= 16 + THREADS && registry_trim(reg, 0) == (size_t)left);
    registry_destroy(reg);
    return alive != 0;
}
