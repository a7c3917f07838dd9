/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failing.h - for tests of the interface with an allocation that fails, number n = 1, 2, ... up to
 * all that a call makes, alone and with all later ones: malloc and its like, and the loop over a
 * table of attempts. Included once by each, where allocations are ours to fail: not under
 * sanitizers.
 */
#include <errno.h>
#include <stdatomic.h>

#include "api.h"

/* ---- allocations that fail ---- */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static _Atomic long left, made; /* until one fails (0: none will); since arm() */
static _Atomic bool later;      /* and all after it */

static bool refused(void)
{
    atomic_fetch_add(&made, 1);
    if (atomic_load(&left) <= 0 || atomic_fetch_sub(&left, 1) != 1)
        return false;
    if (atomic_load(&later))
        atomic_store(&left, 1);
    errno = ENOMEM;
    return true;
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
    void *block = refused() ? NULL : __libc_memalign(alignment, size);
    if (!block)
        return ENOMEM;
    *at = block;
    return 0;
}

static void arm(long n, bool all)
{
    atomic_store(&made, 0);
    atomic_store(&later, all);
    atomic_store(&left, n);
}

static long disarm(void)
{
    atomic_store(&left, 0);
    return atomic_load(&made);
}

/* ---- every n ---- */

struct attempt {
    const char *what;
    moegen_status want;
    bool needs_memory; /* MOEGEN_NO_MEMORY is an answer too */
    void (*prepare)(void);
    moegen_status (*act)(moegen_error **err);
    bool (*untouched)(void); /* unless it succeeds; may be NULL */
    int tensors;             /* for `which` of 0..tensors-1 */
    const char *text;
    int step;
};

static int which;        /* tensor of the attempt */
static const char *text; /* spec of the attempt */

static bool one(const struct attempt *a, long n, bool all)
{
    moegen_error *err = NULL;
    a->prepare();
    arm(n, all);
    moegen_status got = a->act(&err);
    bool more = disarm() >= n;
    bool allowed = got == a->want || (a->needs_memory && got == MOEGEN_NO_MEMORY && more);
    bool told = (got == MOEGEN_OK) == !err && (!got || *moegen_error_text(err));
    bool kept = got == MOEGEN_OK || !a->untouched || a->untouched();
    if ((!allowed || !told || !kept) && failures++ < 20)
        fprintf(stderr, "%s (%d), allocation %ld%s: status %d, expected %d%s%s: %s\n", a->what,
                which, n, all ? " and later ones" : "", (int)got, (int)a->want,
                told ? "" : ", not told", kept ? "" : ", the kernel ran", moegen_error_text(err));
    moegen_error_release(err);
    return more;
}

static bool untouched(const void *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (((const unsigned char *)bytes)[i] != 0xff)
            return false;
    return true;
}

static void every(const struct attempt *a)
{
    int tensors = a->tensors ? a->tensors : 1;
    text = a->text;
    for (which = 0; which < tensors; which++)
        for (int all = 0; all < 2; all++)
            for (long n = 1; one(a, n, all); n += a->step ? a->step : 1)
                ;
}
