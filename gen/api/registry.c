/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registry.c - what this process has made and remembers: request bytes -> value, the most recently
 * used first. One lock around a hash table and a list; it is held for a look-up or a few pointers,
 * and never while a value is let go.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

enum { FIRST_BUCKETS = 64 /* a power of two */, USUAL_LIMIT = 1024 };

struct node {
    struct node *chain;         /* of its bucket, or of what was taken out */
    struct node *newer, *older; /* of all nodes, by use */
    uint64_t hash;
    void *value; /* one reference */
    size_t len;
    unsigned char key[];
};

struct registry {
    pthread_mutex_t lock;
    struct node **bucket;
    size_t buckets, count, limit;
    struct node *newest, *oldest;
    struct registry_ops ops;
};

struct registry *registry_create(size_t limit, const struct registry_ops *ops)
{
    struct registry *r = calloc(1, sizeof *r);
    struct node **bucket = calloc(FIRST_BUCKETS, sizeof *bucket);
    if (!r || !bucket) {
        free(r);
        free(bucket);
        return NULL;
    }
    *r = (struct registry){.bucket = bucket,
                           .buckets = FIRST_BUCKETS,
                           .limit = limit ? limit : USUAL_LIMIT,
                           .ops = *ops};
    pthread_mutex_init(&r->lock, NULL);
    return r;
}

/* ---- under the lock ---- */

static void list_remove(struct registry *r, struct node *n)
{
    *(n->newer ? &n->newer->older : &r->newest) = n->older;
    *(n->older ? &n->older->newer : &r->oldest) = n->newer;
}

static void list_push(struct registry *r, struct node *n)
{
    n->newer = NULL;
    n->older = r->newest;
    *(r->newest ? &r->newest->newer : &r->oldest) = n;
    r->newest = n;
}

static struct node **slot(const struct registry *r, uint64_t hash)
{
    return &r->bucket[hash & (r->buckets - 1)];
}

static struct node *find(struct registry *r, uint64_t hash, const void *key, size_t len)
{
    struct node *n = *slot(r, hash);
    while (n && (n->hash != hash || n->len != len || memcmp(n->key, key, len) != 0))
        n = n->chain;
    if (n && n != r->newest) {
        list_remove(r, n);
        list_push(r, n);
    }
    if (n)
        r->ops.retain(n->value);
    return n;
}

/* Without memory for a larger table the old one serves, with longer chains. */
static void grow(struct registry *r)
{
    struct node **more = r->count < r->buckets ? NULL : calloc(2 * r->buckets, sizeof *more);
    if (!more)
        return;
    free(r->bucket);
    r->bucket = more;
    r->buckets *= 2;
    for (struct node *n = r->oldest; n; n = n->newer) {
        struct node **at = slot(r, n->hash);
        n->chain = *at;
        *at = n;
    }
}

static void insert(struct registry *r, struct node *n)
{
    grow(r);
    struct node **at = slot(r, n->hash);
    n->chain = *at;
    *at = n;
    list_push(r, n);
    r->count++;
}

/* Takes out what was not used for longest and is in nobody's hands, until `keep` are left: nobody
 * can get a value into his hands meanwhile. Returns them as a chain. */
static struct node *take_idle(struct registry *r, size_t keep)
{
    struct node *taken = NULL, *newer;
    for (struct node *n = r->oldest; n && r->count > keep; n = newer) {
        newer = n->newer;
        if (r->ops.in_use(n->value))
            continue;
        struct node **at = slot(r, n->hash);
        while (*at != n)
            at = &(*at)->chain;
        *at = n->chain;
        list_remove(r, n);
        r->count--;
        n->chain = taken;
        taken = n;
    }
    return taken;
}

/* ---- without it ---- */

static size_t let_go(const struct registry *r, struct node *n)
{
    size_t count = 0;
    for (struct node *next; n; n = next, count++) {
        next = n->chain;
        r->ops.release(n->value);
        free(n);
    }
    return count;
}

void *registry_find(struct registry *r, const void *key, size_t len)
{
    uint64_t hash = digest_fast(key, len);
    pthread_mutex_lock(&r->lock);
    const struct node *n = find(r, hash, key, len);
    void *value = n ? n->value : NULL;
    pthread_mutex_unlock(&r->lock);
    return value;
}

void *registry_add(struct registry *r, const void *key, size_t len, void *value)
{
    uint64_t hash = digest_fast(key, len);
    struct node *taken = NULL, *made = malloc(sizeof *made + len);
    if (!made)
        return NULL;
    *made = (struct node){.hash = hash, .value = value, .len = len};
    memcpy(made->key, key, len);
    pthread_mutex_lock(&r->lock);
    struct node *n = find(r, hash, key, len);
    if (!n) {
        n = made;
        made = NULL;
        r->ops.retain(value); /* the registry's, and the caller's: in use while room is made */
        r->ops.retain(value);
        insert(r, n);
        taken = take_idle(r, r->limit);
    }
    void *kept = n->value;
    pthread_mutex_unlock(&r->lock);
    free(made); /* another thread was first */
    let_go(r, taken);
    return kept;
}

size_t registry_trim(struct registry *r, size_t keep)
{
    pthread_mutex_lock(&r->lock);
    struct node *taken = take_idle(r, keep);
    pthread_mutex_unlock(&r->lock);
    return let_go(r, taken);
}

void registry_destroy(struct registry *r)
{
    if (!r)
        return;
    for (struct node *n = r->newest; n; n = n->older)
        n->chain = n->older;
    let_go(r, r->newest);
    pthread_mutex_destroy(&r->lock);
    free(r->bucket);
    free(r);
}
