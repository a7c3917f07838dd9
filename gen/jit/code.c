/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code.c - executable memory. No page is ever writable and executable, not even one after the other
 * where the system can help it: the bytes go into a sealed file in memory, which is then mapped
 * read+execute. That also works where making written pages executable is forbidden (SELinux,
 * PR_SET_MDWE, systemd's MemoryDenyWriteExecute).
 */
#include <errno.h>
#include <fcntl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jit.h"
#include "rt_write.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

/* Fill fd with the code, map it, close it. MAP_FAILED if any of that is refused. */
static void *map_file(int fd, const struct blob *b, bool seal)
{
    void *map = MAP_FAILED;
    if (fd < 0)
        return MAP_FAILED;
    if (rt_write_all(fd, b->at, b->len)) {
        if (seal) /* a kernel that cannot seal still maps */
            fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        map = mmap(NULL, b->len, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    }
    int error = errno;
    close(fd);
    errno = error;
    return map;
}

static void *map_memory_file(const struct blob *b)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = memfd_create("moegen", flags | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create("moegen", flags);
    return map_file(fd, b, true);
}

/* Written first, executable later. */
static void *map_anonymous(const struct blob *b)
{
    void *map = mmap(NULL, b->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return MAP_FAILED;
    memcpy(map, b->at, b->len);
    if (mprotect(map, b->len, PROT_READ | PROT_EXEC) == 0)
        return map;
    int error = errno;
    munmap(map, b->len);
    errno = error;
    return MAP_FAILED;
}

/* A nameless file in the first directory whose file system allows execution. */
static void *map_disk_file(const struct blob *b)
{
    const char *dirs[] = {getenv("XDG_RUNTIME_DIR"), getenv("TMPDIR"), "/tmp", "/var/tmp",
                          "/dev/shm"};
    void *map = MAP_FAILED;
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs && map == MAP_FAILED; i++)
        if (dirs[i])
            map = map_file(open(dirs[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), b, false);
    return map;
}

moegen_status code_map(const struct blob *b, struct code *out, moegen_error **err)
{
    static void *(*const ways[])(const struct blob *) = {map_memory_file, map_anonymous,
                                                         map_disk_file};
    void *map = MAP_FAILED;
    int error = 0; /* of the first way: the others are for rarer systems */
    for (size_t i = 0; i < sizeof ways / sizeof *ways && map == MAP_FAILED; i++) {
        map = ways[i](b);
        if (map == MAP_FAILED && !error)
            error = errno;
    }
    if (map == MAP_FAILED)
        return error_set(err, error == ENOMEM ? MOEGEN_NO_MEMORY : MOEGEN_UNSUPPORTED,
                         "this system gives no executable memory (%s)", strerror(error));
    *out = (struct code){.map = map, .size = b->len};
    for (int i = 0; i < MAX_ENTRIES; i++)
        out->fn[i] = (char *)map + b->entry[i];
    return MOEGEN_OK;
}

void code_unmap(struct code *c)
{
    if (c->map)
        munmap(c->map, c->size);
    if (c->dl)
        dlclose(c->dl);
    *c = (struct code){0};
}

void code_note(const struct code *c, const char *name)
{
    const char *asked = getenv("MOEGEN_PERF_MAP");
    if (!c->map || !asked || strcmp(asked, "1") != 0)
        return;
    char path[64], line[256];
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        st.st_nlink == 1) {
        int n = snprintf(line, sizeof line, "%lx %zx %.200s\n", (unsigned long)(uintptr_t)c->map,
                         c->size, name);
        rt_write_all(fd, line, (size_t)n);
    }
    if (fd >= 0)
        close(fd);
}
