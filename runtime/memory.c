/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - the one door to memory for tensors and workspaces. */
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime_private.h"

enum { LINE = 64, HUGE_PAGE = 2 << 20, LARGE = 4 << 20 };

void *moegen_rt_alloc(size_t bytes)
{
    void *at;
    if (posix_memalign(&at, bytes >= LARGE ? HUGE_PAGE : LINE, bytes ? bytes : 1))
        return NULL;
#ifdef MADV_HUGEPAGE
    if (bytes >= LARGE) /* only a hint: failure is fine */
        (void)madvise(at, bytes & ~(size_t)(HUGE_PAGE - 1), MADV_HUGEPAGE);
#endif
    return at;
}

void moegen_rt_free(void *at)
{
    free(at);
}
