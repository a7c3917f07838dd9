/* SPDX-License-Identifier: Apache-2.0 */
/* registry_test.c - threads that add the same keys at the same time agree on the values. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

#define CHECK(x) ((x) ? (void)0 : fail(__LINE__, #x))

static void fail(int line, const char *what)
{
    fprintf(stderr, "registry_test.c:%d: not so: %s\n", line, what);
    exit(1);
}

enum { THREADS = 4, KEYS = 3000 };
static struct registry *reg;
static int values[THREADS][KEYS], dropped;

static void drop(void *value)
{
    (void)value;
    dropped++;
}

static void *insert(void *id)
{
    int(*mine)[KEYS] = id;
    for (unsigned i = 0; i < KEYS; i++) {
        unsigned char key[40];
        memset(key, (int)(i & 3), sizeof key);
        memcpy(key, &i, sizeof i);
        size_t len = 8 + i % 32;
        void *there = registry_find(reg, key, len);
        void *kept = registry_add(reg, key, len, &(*mine)[i]);
        CHECK(kept && (!there || there == kept) && registry_find(reg, key, len) == kept);
        CHECK(!registry_find(reg, key, len - 1));
    }
    return NULL;
}

int main(void)
{
    pthread_t t[THREADS];
    reg = registry_create();
    CHECK(reg && !registry_find(reg, "", 0));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, insert, &values[i]) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    registry_destroy(reg, drop);
    CHECK(dropped == KEYS);
    return 0;
}
