/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registry.c - what this process has already made: request bytes -> value. Nodes are immutable once
 * published and live until the registry is destroyed, so readers need neither locks nor reference
 * counts.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

enum { BUCKETS = 1024 }; /* a power of two */

struct node {
    struct node *next;
    uint64_t hash;
    void *value;
    size_t len;
    unsigned char key[];
};

struct registry {
    _Atomic(struct node *) bucket[BUCKETS];
    pthread_mutex_t insert;
};

struct registry *registry_create(void)
{
    struct registry *r = calloc(1, sizeof *r);
    if (r)
        pthread_mutex_init(&r->insert, NULL);
    return r;
}

static struct node *find(const struct registry *r, uint64_t hash, const void *key, size_t len)
{
    struct node *n = atomic_load_explicit(&r->bucket[hash % BUCKETS], memory_order_acquire);
    while (n && (n->hash != hash || n->len != len || memcmp(n->key, key, len) != 0))
        n = n->next;
    return n;
}

void *registry_find(const struct registry *r, const void *key, size_t len)
{
    struct node *n = find(r, digest_fast(key, len), key, len);
    return n ? n->value : NULL;
}

void *registry_add(struct registry *r, const void *key, size_t len, void *value)
{
    uint64_t hash = digest_fast(key, len);
    struct node *made = malloc(sizeof *made + len);
    if (!made)
        return NULL;
    pthread_mutex_lock(&r->insert);
    struct node *n = find(r, hash, key, len);
    if (!n) {
        _Atomic(struct node *) *bucket = &r->bucket[hash % BUCKETS];
        n = made;
        made = NULL;
        *n = (struct node){.next = atomic_load(bucket), .hash = hash, .value = value, .len = len};
        memcpy(n->key, key, len);
        atomic_store_explicit(bucket, n, memory_order_release);
    }
    pthread_mutex_unlock(&r->insert);
    free(made); /* another thread was first */
    return n->value;
}

void registry_destroy(struct registry *r, void (*drop)(void *value))
{
    if (!r)
        return;
    for (size_t i = 0; i < BUCKETS; i++) {
        struct node *n = atomic_load(&r->bucket[i]);
        while (n) {
            struct node *next = n->next;
            if (drop)
                drop(n->value);
            free(n);
            n = next;
        }
    }
    pthread_mutex_destroy(&r->insert);
    free(r);
}
