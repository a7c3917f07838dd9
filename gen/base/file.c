/* SPDX-License-Identifier: Apache-2.0 */
/* file.c - files that are read or written as a whole. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
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
    if (fstat(fd, &is))
        why = errno;
    else if (!S_ISREG(is.st_mode))
        why = S_ISDIR(is.st_mode) ? EISDIR : EINVAL;
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

const char *file_why(int why)
{
    return why == EINVAL ? "not a regular file" : strerror(why);
}

/* The process whose temporary file for `name` this is, see file_write; 0: it is none. */
static long writer_of(const char *entry, const char *name)
{
    size_t len = strlen(name);
    char *end;
    if (strncmp(entry, name, len) != 0 || entry[len] != '.' || entry[len + 1] < '1' ||
        entry[len + 1] > '9')
        return 0;
    long pid = strtol(entry + len + 1, &end, 10);
    return strcmp(end, ".tmp") == 0 && pid == (long)(pid_t)pid ? pid : 0;
}

/* A writer has a lock on its file: processes of other containers look dead from here. */
static bool is_in_use(int directory, const char *name)
{
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    bool locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB);
    if (fd >= 0)
        close(fd);
    return locked;
}

/* "a/b/" of "a/b/c", "." of "c"; lost: out of memory. */
static struct text directory_of(const char *path)
{
    struct text t = {0};
    const char *slash = strrchr(path, '/');
    text_fmt(&t, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    return t;
}

/* Removes what writers of this file left that were killed before they could rename it. */
static void remove_leftovers(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct text directory = directory_of(path);
    DIR *all = directory.lost ? NULL : opendir(directory.at);
    for (struct dirent *x; all && (x = readdir(all));) {
        long pid = writer_of(x->d_name, name);
        if (pid && kill((pid_t)pid, 0) && errno == ESRCH && !is_in_use(dirfd(all), x->d_name))
            unlinkat(dirfd(all), x->d_name, 0);
    }
    if (all)
        closedir(all);
    text_free(&directory);
}

static bool is_special(const char *path)
{
    struct stat is;
    return stat(path, &is) == 0 && !S_ISREG(is.st_mode);
}

/* To a device or a pipe, which nothing may take the place of. */
static int write_there(const char *path, const char *bytes, size_t len)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int why = rt_write_all(fd, bytes, len) ? 0 : errno;
    return close(fd) && !why ? errno : why;
}

static int write_beside(const char *path, const char *bytes, size_t len)
{
    struct text temporary = {0};
    remove_leftovers(path);
    text_fmt(&temporary, "%s.%ld.tmp", path, (long)getpid());
    if (temporary.lost)
        return ENOMEM;
    int fd = open(temporary.at, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool made = fd >= 0;
    if (made)
        (void)flock(fd, LOCK_EX | LOCK_NB); /* see is_in_use; some file systems have no locks */
    bool written = made && rt_write_all(fd, bytes, len);
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

int file_write(const char *path, const char *bytes, size_t len)
{
    if (is_special(path))
        return write_there(path, bytes, len);
    char *followed = rt_follow(path); /* a link stays one */
    int why = followed ? write_beside(followed, bytes, len) : errno;
    free(followed);
    return why;
}

int file_ready(const char *path)
{
    struct stat is;
    if (stat(path, &is) == 0 && S_ISDIR(is.st_mode))
        return EISDIR;
    if (is_special(path))
        return access(path, W_OK) ? errno : 0;
    char *followed = rt_follow(path);
    if (!followed)
        return errno;
    struct text directory = directory_of(followed);
    free(followed);
    int why = directory.lost ? ENOMEM : access(directory.at, W_OK | X_OK) ? errno : 0;
    text_free(&directory);
    return why;
}

const char *file_temporary(void)
{
    const char *root = getenv("TMPDIR");
    return root && root[0] == '/' && strlen(root) <= 400 ? root : "/tmp";
}
