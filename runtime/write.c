/* SPDX-License-Identifier: Apache-2.0 */
/* write.c - files written in a host's process: where RLIMIT_FSIZE ends one, write(2) raises
 * SIGXFSZ, which kills the host unless it handles it. The library installs no handlers: it blocks
 * the signal in this thread and takes away the one that it caused. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rt_write.h"

/* offset -1: where the file is */
static bool write_rest(int fd, const char *p, size_t len, int64_t offset)
{
    while (len) {
        ssize_t n = offset < 0 ? write(fd, p, len) : pwrite(fd, p, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        offset += offset < 0 ? 0 : n;
        len -= (size_t)n;
    }
    return true;
}

static bool write_quietly(int fd, const void *bytes, size_t len, int64_t offset)
{
    sigset_t limit, before, pending;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    sigpending(&pending);
    if (pthread_sigmask(SIG_BLOCK, &limit, &before))
        return write_rest(fd, bytes, len, offset);
    bool ok = write_rest(fd, bytes, len, offset);
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

bool rt_write_all(int fd, const void *bytes, size_t len)
{
    return write_quietly(fd, bytes, len, -1);
}

bool rt_write_at(int fd, const void *bytes, size_t len, int64_t offset)
{
    return write_quietly(fd, bytes, len, offset);
}

enum { MOST_LINKS = 40 }; /* as many as the kernel follows */

/* What a link holds, seen from where the link is. */
static char *beside(const char *link, const char *to)
{
    const char *slash = to[0] == '/' ? NULL : strrchr(link, '/');
    size_t directory = slash ? (size_t)(slash - link) + 1 : 0, len = strlen(to);
    char *path = malloc(directory + len + 1);
    if (path) {
        memcpy(path, link, directory);
        memcpy(path + directory, to, len + 1);
    }
    return path;
}

char *rt_follow(const char *path)
{
    char to[PATH_MAX], *at = strdup(path);
    for (int links = 0; at && links < MOST_LINKS; links++) {
        ssize_t len = readlink(at, to, sizeof to - 1);
        if (len < 0) /* it is none, or there is nothing yet */
            return at;
        to[len] = '\0';
        char *next = beside(at, to);
        free(at);
        at = next;
    }
    errno = at ? ELOOP : ENOMEM;
    free(at);
    return NULL;
}
