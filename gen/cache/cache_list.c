/* SPDX-License-Identifier: Apache-2.0 */
/* cache_list.c - the disk cache as a whole: list, verify, remove. Other processes may add and
 * remove meanwhile. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "entry.h"

enum { FORGOTTEN = 3600 }; /* seconds: a temporary file this old has lost its writer */

struct found {
    char key[65];
    uint64_t bytes;
    int64_t used;
};
struct list {
    struct found *at;
    size_t n, room;
};

static bool is_hex(const char *s, size_t n)
{
    return strspn(s, "0123456789abcdef") >= n;
}

/* Note one file of directory `prefix`; remove it if its writer died. */
static bool look(struct list *l, int dir, const char *prefix, const char *file)
{
    struct stat st;
    if (fstatat(dir, file, &st, AT_SYMLINK_NOFOLLOW))
        return true; /* gone meanwhile */
    if (strncmp(file, ".new-", 5) == 0 && time(NULL) - st.st_mtime > FORGOTTEN)
        unlinkat(dir, file, 0);
    if (strlen(file) != 66 || !is_hex(file, 62) || strcmp(file + 62, ".krn") != 0)
        return true;
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        struct found *at = realloc(l->at, room * sizeof *at);
        if (!at)
            return false;
        *l = (struct list){.at = at, .n = l->n, .room = room};
    }
    struct found *f = &l->at[l->n++];
    *f = (struct found){.bytes = (uint64_t)st.st_size, .used = st.st_mtime};
    memcpy(f->key, prefix, 2);
    memcpy(f->key + 2, file, 62);
    return true;
}

/* Every entry; false: out of memory. */
static bool collect(const struct cache *c, struct list *l)
{
    bool whole = true;
    for (unsigned i = 0; c && whole && i < 256; i++) {
        char prefix[4];
        snprintf(prefix, sizeof prefix, "%02x", i);
        int fd = openat(c->dir, prefix, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
        if (!dir && fd >= 0) {
            whole = errno != ENOMEM;
            close(fd);
        }
        if (!dir)
            continue;
        struct dirent *d;
        while (whole && (d = readdir(dir)))
            whole = look(l, fd, prefix, d->d_name);
        closedir(dir);
    }
    return whole;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct found *)a)->key, ((const struct found *)b)->key);
}

static int by_use(const void *a, const void *b) /* latest first */
{
    int64_t x = ((const struct found *)a)->used, y = ((const struct found *)b)->used;
    return x != y ? (x < y) - (x > y) : by_key(a, b);
}

static void key_bytes(const char *hex, unsigned char key[32])
{
    for (int i = 0; i < 32; i++) {
        unsigned byte = 0;
        sscanf(hex + 2 * i, "%2x", &byte);
        key[i] = (unsigned char)byte;
    }
}

size_t cache_each(struct cache *c, bool (*visit)(void *user, const struct cache_entry *e),
                  void *user)
{
    struct list l = {0};
    size_t visited = 0;
    bool whole = collect(c, &l), more = whole;
    if (l.n)
        qsort(l.at, l.n, sizeof *l.at, by_key);
    for (size_t i = 0; i < l.n && more; i++) {
        struct found *f = &l.at[i];
        struct blob b = {0};
        struct text meta = {0};
        unsigned char key[32];
        char name[NAME];
        key_bytes(f->key, key);
        entry_name(f->key, name);
        int fd = entry_open(c, name);
        if (fd < 0 && errno == ENOENT)
            continue;
        struct cache_entry e = {.bytes = f->bytes, .used = f->used};
        memcpy(e.key, f->key, sizeof e.key);
        e.problem = entry_load(fd, key, &b, &meta);
        e.meta = meta.at ? meta.at : "";
        whole = e.problem != entry_no_memory;
        more = whole && visit(user, &e);
        visited++;
        text_free(&meta);
        blob_free(&b);
        if (fd >= 0)
            close(fd);
    }
    free(l.at);
    return whole ? visited : SIZE_MAX;
}

bool cache_drop(struct cache *c, const char *key)
{
    char name[NAME];
    if (!c || strlen(key) != 64 || !is_hex(key, 64))
        return false;
    entry_name(key, name);
    return unlinkat(c->dir, name, 0) == 0;
}

size_t cache_prune(struct cache *c, uint64_t max_bytes, uint64_t *bytes)
{
    struct list l = {0};
    bool whole = collect(c, &l);
    uint64_t kept = 0, freed = 0;
    size_t dropped = 0;
    if (!whole)
        l.n = 0;
    if (l.n)
        qsort(l.at, l.n, sizeof *l.at, by_use);
    for (size_t i = 0; i < l.n; i++) {
        struct found *f = &l.at[i];
        kept += f->bytes;
        if (kept > max_bytes && cache_drop(c, f->key)) { /* and so for all older ones */
            freed += f->bytes;
            dropped++;
        }
    }
    free(l.at);
    if (bytes)
        *bytes = freed;
    return whole ? dropped : SIZE_MAX;
}
