/* SPDX-License-Identifier: Apache-2.0 */
/* failing_malloc.c - preloaded into a program, it makes an allocation of it fail: number
 * $FAIL_AT, counted from 1; with a '+' behind the number all later ones too. $FAIL_COUNT names a
 * file that gets the number of allocations. Children of the program are left alone. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static _Atomic long count;
static long first, after; /* 0: none; all from `after` on */
static char report[4096];

static int refused(void)
{
    long n = atomic_fetch_add(&count, 1) + 1;
    if ((first && n == first) || (after && n >= after)) {
        errno = ENOMEM;
        return 1;
    }
    return 0;
}

void *malloc(size_t size)
{
    return refused() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    return refused() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
    return refused() ? NULL : __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return refused() ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **at, size_t alignment, size_t size)
{
    void *made = refused() ? NULL : __libc_memalign(alignment, size);
    if (!made)
        return ENOMEM;
    *at = made;
    return 0;
}

__attribute__((constructor)) static void start(void)
{
    const char *at = getenv("FAIL_AT"), *file = getenv("FAIL_COUNT");
    long n = at ? strtol(at, NULL, 10) : 0;
    snprintf(report, sizeof report, "%s", file ? file : "");
    unsetenv("LD_PRELOAD");
    atomic_store(&count, 0);
    *(at && strchr(at, '+') ? &after : &first) = n;
}

__attribute__((destructor)) static void end(void)
{
    char text[32];
    int fd = *report ? open(report, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    int n = snprintf(text, sizeof text, "%ld\n", atomic_load(&count));
    if (fd >= 0 && write(fd, text, (size_t)n) != n)
        _exit(99);
    if (fd >= 0)
        close(fd);
}
