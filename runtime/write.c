/* SPDX-License-Identifier: Apache-2.0 */
/* write.c - files written in a host's process: where RLIMIT_FSIZE ends one, write(2) raises
 * SIGXFSZ, which kills the host unless it handles it. The library installs no handlers: it blocks
 * the signal in this thread and takes away the one that it caused. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "rt_write.h"

static bool write_rest(int fd, const char *p, size_t len)
{
    while (len) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

bool rt_write_all(int fd, const void *bytes, size_t len)
{
    sigset_t limit, before, pending;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    sigpending(&pending);
    if (pthread_sigmask(SIG_BLOCK, &limit, &before))
        return write_rest(fd, bytes, len);
    bool ok = write_rest(fd, bytes, len);
    int error = errno;
    if (!ok && error == EFBIG && !sigismember(&pending, SIGXFSZ)) {
        const struct timespec now = {0};
        while (sigtimedwait(&limit, NULL, &now) < 0 && errno == EINTR)
            ;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return ok;
}
