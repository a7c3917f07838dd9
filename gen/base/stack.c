/* SPDX-License-Identifier: Apache-2.0 */
/* stack.c - is there enough stack? Hosts have threads with little, and an overflow is no error that
 * could be returned. */
#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base.h"

/* The main thread's stack grows: with a limit like this it is not looked at, since asking for its
 * bounds means reading /proc/self/maps. */
static const size_t ample = 4u << 20;

static bool is_ample_main(void)
{
    struct rlimit limit;
    return syscall(SYS_gettid) == getpid() && getrlimit(RLIMIT_STACK, &limit) == 0 &&
           limit.rlim_cur >= ample;
}

/* Bytes of stack that the caller's caller may still use. errno or 0. */
static int stack_left(size_t *left)
{
    pthread_attr_t attr;
    void *lowest;
    size_t size, guard;
    char here;
    *left = SIZE_MAX;
    if (is_ample_main())
        return 0;
    int error = pthread_getattr_np(pthread_self(), &attr);
    if (error)
        return error;
    pthread_attr_getstack(&attr, &lowest, &size);
    pthread_attr_getguardsize(&attr, &guard);
    pthread_attr_destroy(&attr);
    size_t above = (size_t)((uintptr_t)&here - (uintptr_t)lowest);
    if (above < size) /* otherwise on a stack of the host's own making */
        *left = above > guard ? above - guard : 0;
    return 0;
}

moegen_status stack_check(moegen_error **err)
{
    size_t left;
    int error = stack_left(&left);
    if (error)
        return error_set(err, MOEGEN_NO_MEMORY, "cannot find out how large the stack is");
    if (left < STACK_NEEDED)
        return error_set(err, MOEGEN_NO_MEMORY,
                         "%zu KiB of this thread's stack are left, and making a kernel needs %d: "
                         "call from a thread with a larger stack",
                         left >> 10, STACK_NEEDED >> 10);
    return MOEGEN_OK;
}
