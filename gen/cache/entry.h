/* SPDX-License-Identifier: Apache-2.0 */
/* entry.h - what cache.c and cache_list.c share. */
#ifndef MOEGEN_CACHE_ENTRY_H
#define MOEGEN_CACHE_ENTRY_H

#include <stdatomic.h>

#include "cache.h"

struct cache {
    int dir;
    char *path; /* absolute */
    cache_log *log;
    void *user;
    atomic_flag warned;
};

/* "ab/cdef....krn" of a key in hex. */
enum { NAME = 70 };
void entry_name(const char *hex, char name[NAME]);
int entry_open(const struct cache *c, const char *name); /* for reading; -1 and errno */
/* Read and verify. NULL: *b and *meta are filled. Otherwise what is wrong, and nothing is. */
extern const char entry_no_memory[]; /* one of its answers: nothing is known of the entry */
const char *entry_load(int fd, const unsigned char key[32], struct blob *b, struct text *meta);

#endif
