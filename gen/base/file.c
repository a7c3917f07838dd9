/* SPDX-License-Identifier: Apache-2.0 */
/* file.c - files that are read or written as a whole. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base.h"
#include "rt_write.h"

int file_read(const char *path, size_t most, struct text *out)
{
    char part[4096];
    ssize_t n = 0;
    struct stat is;
    int why = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno;
    if (fstat(fd, &is) || !S_ISREG(is.st_mode))
        why = EINVAL;
    text_add(out, "", 0);
    while (!why && out->len <= most && (n = read(fd, part, sizeof part)) != 0) {
        if (n > 0)
            text_add(out, part, (size_t)n);
        else if (errno != EINTR)
            why = errno;
        if (out->lost)
            why = ENOMEM;
    }
    close(fd);
    return why;
}

int file_write(const char *path, const char *bytes, size_t len)
{
    struct text temporary = {0};
    text_fmt(&temporary, "%s.%ld.tmp", path, (long)getpid());
    if (temporary.lost)
        return ENOMEM;
    int fd = open(temporary.at, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool made = fd >= 0, written = made && rt_write_all(fd, bytes, len);
    int why = errno;
    if (made && close(fd) && written) {
        written = false;
        why = errno;
    }
    if (written && rename(temporary.at, path)) {
        written = false;
        why = errno;
    }
    if (made && !written)
        unlink(temporary.at);
    text_free(&temporary);
    return written ? 0 : why;
}
