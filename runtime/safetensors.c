/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c - reads tensor files: u64 length of the header, header, data. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rt_file.h"
#include "runtime_private.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensor files are little-endian");

enum { MAX_HEADER = 16 << 20, MAX_STEP = 1 << 30 };

/* ---- reading ---- */

/* 1 read, 0 the file ends before, -1 error in errno. */
static int read_at(int fd, void *to, size_t bytes, uint64_t offset)
{
    for (size_t done = 0; done < bytes;) {
        size_t step = bytes - done < MAX_STEP ? bytes - done : MAX_STEP;
        ssize_t got = pread(fd, (char *)to + done, step, (off_t)(offset + done));
        if (got == 0)
            return 0;
        if (got < 0 && errno != EINTR)
            return -1;
        if (got > 0)
            done += (size_t)got;
    }
    return 1;
}

static moegen_rt_status read_failed(const char *path, int result, moegen_rt_error *err)
{
    if (result == 0)
        return rt_fail(err, MOEGEN_RT_IO, "%s: the file became shorter while it was read", path);
    return rt_fail(err, MOEGEN_RT_IO, "%s: cannot read: %s", path, strerror(errno));
}

/* The header's text, NUL-terminated, owned by the caller; *total is the length of the file. */
static moegen_rt_status read_header(int fd, const char *path, char **text, uint64_t *len,
                                    uint64_t *total, moegen_rt_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return read_failed(path, -1, err);
    if (!S_ISREG(st.st_mode))
        return rt_fail(err, MOEGEN_RT_IO, "%s: is not a regular file", path);
    *total = (uint64_t)st.st_size;
    if (*total < 8)
        return rt_fail(err, MOEGEN_RT_BAD_DATA, "%s: is not a tensor file: only %llu bytes", path,
                       (unsigned long long)*total);
    int result = read_at(fd, len, sizeof *len, 0);
    if (result != 1)
        return read_failed(path, result, err);
    if (*len > MAX_HEADER || *len > *total - 8)
        return rt_fail(err, MOEGEN_RT_BAD_DATA,
                       "%s: is not a tensor file: a header of %llu bytes in a file of %llu", path,
                       (unsigned long long)*len, (unsigned long long)*total);
    *text = malloc((size_t)*len + 1);
    if (!*text)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "%s: out of memory", path);
    (*text)[*len] = '\0';
    result = read_at(fd, *text, (size_t)*len, 8);
    return result == 1 ? MOEGEN_RT_OK : read_failed(path, result, err);
}

/* Which tensors of a file are read, and how; NULL: all, into memory of their own. */
struct choice {
    int (*wanted)(void *user, const char *name); /* NULL: all */
    void *user;
    bool mapped;
};

/* Is it of a dtype that it can be read in? Whoever reads all of a file may write it again. */
static moegen_rt_status check_dtype(const char *path, const struct rt_entry *e, bool all,
                                    moegen_rt_error *err)
{
    if (!*e->other || (!all && e->dtype != MOEGEN_RT_DTYPES))
        return MOEGEN_RT_OK;
    return rt_fail(err, MOEGEN_RT_BAD_DATA,
                   "%s: tensor '%s': dtype '%s' is not one of" RT_DTYPE_FILE_NAMES, path, e->name,
                   e->other);
}

/* The data of a tensor, as `choice` says. Addresses of a map may be odd: then it is read as well.
 */
static moegen_rt_status take_tensor(int fd, const char *path, const struct rt_entry *e,
                                    uint64_t offset, char *map, moegen_rt_problem *to,
                                    moegen_rt_error *err)
{
    moegen_rt_tensor *t;
    if (map && offset % moegen_rt_dtype_of(e->dtype)->bytes == 0)
        return moegen_rt_problem_lend(to, e->name, e->dtype, e->rank, e->shape, map + offset, err);
    moegen_rt_status status =
        moegen_rt_problem_add(to, e->name, e->dtype, e->rank, e->shape, &t, err);
    if (status != MOEGEN_RT_OK)
        return status;
    int result = read_at(fd, t->data, t->bytes, offset);
    return result == 1 ? MOEGEN_RT_OK : read_failed(path, result, err);
}

static moegen_rt_status read_tensors(const char *path, moegen_rt_problem *problem,
                                     moegen_rt_problem *metadata, const struct choice *choice,
                                     moegen_rt_error *err)
{
    char *text = NULL, *map = NULL;
    struct rt_entry *entries = NULL;
    size_t count = 0;
    uint64_t len = 0, total = 0;
    moegen_rt_status status;
    moegen_rt_problem *fresh = NULL; /* so that a failure leaves `problem` alone */
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return rt_fail(err, MOEGEN_RT_IO, "%s: cannot open: %s", path, strerror(errno));
    status = read_header(fd, path, &text, &len, &total, err);
    if (status != MOEGEN_RT_OK)
        goto out;
    status =
        rt_header_parse(path, text, (size_t)len, total - 8 - len, &entries, &count, metadata, err);
    if (status != MOEGEN_RT_OK)
        goto out;
    fresh = moegen_rt_problem_create();
    if (!fresh) {
        status = rt_fail(err, MOEGEN_RT_NO_MEMORY, "%s: out of memory", path);
        goto out;
    }
    if (choice && choice->mapped) /* else all is read */
        map = rt_problem_map(fresh, fd, (size_t)total);
    for (size_t i = 0; i < count && status == MOEGEN_RT_OK; i++) {
        const bool all = !choice || !choice->wanted;
        if (!all && !choice->wanted(choice->user, entries[i].name))
            continue;
        status = check_dtype(path, &entries[i], all, err);
        if (status == MOEGEN_RT_OK)
            status =
                take_tensor(fd, path, &entries[i], 8 + len + entries[i].begin, map, fresh, err);
    }
    if (status != MOEGEN_RT_OK)
        goto out;
    status = rt_problem_move(problem, fresh, err);
out:
    moegen_rt_problem_destroy(fresh);
    rt_entries_free(entries, count);
    free(text);
    close(fd);
    return status;
}

moegen_rt_status moegen_rt_safetensors_read(const char *path, moegen_rt_problem *problem,
                                            moegen_rt_error *err)
{
    return read_tensors(path, problem, NULL, NULL, err);
}

moegen_rt_status moegen_rt_safetensors_read_with(const char *path, moegen_rt_problem *problem,
                                                 moegen_rt_problem *metadata, moegen_rt_error *err)
{
    return read_tensors(path, problem, metadata, NULL, err);
}

moegen_rt_status moegen_rt_safetensors_read_some(const char *path, moegen_rt_problem *problem,
                                                 int (*wanted)(void *user, const char *name),
                                                 void *user, moegen_rt_error *err)
{
    return read_tensors(path, problem, NULL, &(struct choice){wanted, user, false}, err);
}

moegen_rt_status rt_file_map(const char *path, moegen_rt_problem *problem,
                             moegen_rt_problem *metadata, moegen_rt_error *err)
{
    return read_tensors(path, problem, metadata, &(struct choice){.mapped = true}, err);
}
