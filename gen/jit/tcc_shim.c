/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcc_shim.c - the libc that libtcc sees. gen/jit/libtcc.cmake renames its imports to moegen_tcc_*;
 * they end here.
 *
 * libtcc was written as a program: it exits when memory is out, opens files, prints, makes pages
 * writable and executable, follows the locale, and keeps its state in global variables. Here it
 * gets memory from an arena with a limit, no files, no output, and an escape to tcc_shim_begin's
 * caller instead of exit. After each compile the arena is dropped and its variables are put back to
 * what they were at program start, so no compile, failed or not, can influence a later one and
 * nothing needs to be freed one by one.
 *
 * All of this is used by one thread at a time: jit.c holds its lock.
 */
#include <errno.h>
#include <locale.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "tcc_shim.h"

#define HOOK       __attribute__((visibility("hidden")))
#define NAME(name) moegen_tcc_##name

/* ---- state ---- */

enum { CHUNK = 4 << 20, ALIGN = 16 }; /* a compile takes 1 to 2 MiB */

struct chunk {
    struct chunk *next;
    size_t room, used; /* bytes after the header */
    char pad[8];       /* keeps the bytes after the header aligned */
};
_Static_assert(sizeof(struct chunk) % ALIGN == 0, "arena alignment");

size_t tcc_shim_limit = (size_t)1 << 30;
sigjmp_buf tcc_shim_escape;
const char *tcc_shim_reason;

static struct chunk *chunks; /* newest first; the oldest stays between compiles */
static size_t taken;         /* bytes handed out in this compile */
static locale_t c_locale;
static char *first_data; /* libtcc's initialised variables as they were at program start */

/* Labels around libtcc's variables, from libtcc.cmake. */
extern HOOK char NAME(data_start)[], NAME(data_stop)[];
extern HOOK char NAME(bss_start)[], NAME(bss_stop)[];

bool tcc_shim_setup(void)
{
    size_t size = (size_t)(NAME(data_stop) - NAME(data_start));
    first_data = first_data ? first_data : malloc(size ? size : 1);
    c_locale = c_locale ? c_locale : newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!first_data || !c_locale)
        return false;
    memcpy(first_data, NAME(data_start), size);
    return true;
}

void tcc_shim_reset(void)
{
    memcpy(NAME(data_start), first_data, (size_t)(NAME(data_stop) - NAME(data_start)));
    memset(NAME(bss_start), 0, (size_t)(NAME(bss_stop) - NAME(bss_start)));
    while (chunks && chunks->next) {
        struct chunk *next = chunks->next;
        free(chunks);
        chunks = next;
    }
    if (chunks)
        chunks->used = 0;
    taken = 0;
    tcc_shim_reason = NULL;
}

static _Noreturn void escape(const char *reason)
{
    tcc_shim_reason = reason;
    siglongjmp(tcc_shim_escape, 1);
}

/* ---- memory: each block is preceded by its size ---- */

union block {
    size_t size;
    char pad[ALIGN];
};

static bool last(const union block *b)
{
    return (char *)(b + 1) + b->size == (char *)(chunks + 1) + chunks->used;
}

static void *take(size_t size)
{
    if (size > tcc_shim_limit || taken + size > tcc_shim_limit)
        escape("out of memory");
    size_t need = sizeof(union block) + ((size + ALIGN - 1) & ~(size_t)(ALIGN - 1));
    if (!chunks || chunks->room - chunks->used < need) {
        size_t room = need > CHUNK ? need : CHUNK;
        struct chunk *c = malloc(sizeof *c + room);
        if (!c)
            escape("out of memory");
        *c = (struct chunk){.next = chunks, .room = room};
        chunks = c;
    }
    union block *b = (union block *)((char *)(chunks + 1) + chunks->used);
    b->size = need - sizeof *b;
    chunks->used += need;
    taken += need;
    return b + 1;
}

HOOK void *NAME(malloc)(size_t size)
{
    return take(size);
}

HOOK void *NAME(calloc)(size_t n, size_t size)
{
    if (size && n > tcc_shim_limit / size)
        escape("out of memory");
    return memset(take(n * size), 0, n * size);
}

HOOK void NAME(free)(void *p)
{
    union block *b = p;
    if (b && last(--b)) {
        chunks->used -= sizeof *b + b->size;
        taken -= sizeof *b + b->size;
    }
}

HOOK void *NAME(realloc)(void *p, size_t size)
{
    if (!p)
        return take(size);
    size_t old = ((union block *)p - 1)->size;
    if (size <= old)
        return p;
    NAME(free)(p); /* the newest block then grows in place: nothing is lost */
    void *q = take(size);
    return q == p ? q : memmove(q, p, old);
}

/* ---- the end of the program ---- */

HOOK _Noreturn void NAME(exit)(int code)
{
    (void)code;
    escape(NULL);
}

HOOK _Noreturn void NAME(abort)(void)
{
    escape("libtcc aborted");
}

HOOK _Noreturn void NAME(__assert_fail)(const char *what, const char *file, unsigned line,
                                        const char *function)
{
    (void)what, (void)file, (void)line, (void)function;
    escape("an assertion in libtcc failed");
}

/* ---- the same numbers in every locale ---- */

HOOK double NAME(strtod)(const char *s, char **end)
{
    return strtod_l(s, end, c_locale);
}

HOOK float NAME(strtof)(const char *s, char **end)
{
    return strtof_l(s, end, c_locale);
}

HOOK long double NAME(strtold)(const char *s, char **end)
{
    return strtold_l(s, end, c_locale);
}

/* ---- the world outside: not there ---- */

HOOK void *NAME(stdout), *NAME(stderr); /* only passed to the functions below */
static char *empty_environ[1];
HOOK char **NAME(environ) = empty_environ;

HOOK struct tm *NAME(localtime)(const void *t)
{
    static struct tm epoch = {.tm_mday = 1, .tm_year = 70};
    (void)t;
    return &epoch;
}

/* Callers pass their usual arguments, which the calling convention lets a callee ignore. */
#define NOTHING(name, result)                                                                      \
    HOOK long NAME(name)(void)                                                                     \
    {                                                                                              \
        return result;                                                                             \
    }
#define REFUSED(name)                                                                              \
    HOOK long NAME(name)(void)                                                                     \
    {                                                                                              \
        errno = EACCES;                                                                            \
        return -1;                                                                                 \
    }
REFUSED(open)
REFUSED(close)
REFUSED(read)
REFUSED(lseek)
REFUSED(unlink)
NOTHING(fdopen, 0)
NOTHING(getcwd, 0)
NOTHING(getenv, 0)
NOTHING(dlopen, 0)
NOTHING(dlsym, 0)
NOTHING(dlclose, 0)
NOTHING(mprotect, 0) /* jit.c publishes the code itself */
NOTHING(sem_init, 0) /* jit.c holds a lock */
NOTHING(sem_wait, 0)
NOTHING(sem_post, 0)
NOTHING(sigaction, 0)
NOTHING(sigemptyset, 0)
NOTHING(time, 0)
NOTHING(fclose, 0)
NOTHING(fflush, 0)
NOTHING(fputc, 0)
NOTHING(fputs, 0)
NOTHING(fwrite, 0)
NOTHING(putchar, 0)
NOTHING(puts, 0)
NOTHING(printf, 0)
NOTHING(fprintf, 0)
NOTHING(vfprintf, 0)
NOTHING(__printf_chk, 0)
NOTHING(__fprintf_chk, 0)
NOTHING(__vfprintf_chk, 0)
