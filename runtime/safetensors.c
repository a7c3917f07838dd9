/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c - reads and writes tensor files: u64 length of the header, header, data. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rt_write.h"
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

/* Which tensors of a file are read; NULL: all. */
struct choice {
    int (*wanted)(void *user, const char *name);
    void *user;
};

static moegen_rt_status read_tensors(const char *path, moegen_rt_problem *problem,
                                     moegen_rt_problem *metadata, const struct choice *choice,
                                     moegen_rt_error *err)
{
    char *text = NULL;
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
    for (size_t i = 0; i < count; i++) {
        const struct rt_entry *e = &entries[i];
        moegen_rt_tensor *t;
        if (choice && !choice->wanted(choice->user, e->name))
            continue;
        status = moegen_rt_problem_add(fresh, e->name, e->dtype, e->rank, e->shape, &t, err);
        if (status != MOEGEN_RT_OK)
            goto out;
        int result = read_at(fd, t->data, t->bytes, 8 + len + e->begin);
        if (result != 1) {
            status = read_failed(path, result, err);
            goto out;
        }
    }
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
    return read_tensors(path, problem, NULL, &(struct choice){wanted, user}, err);
}

/* ---- writing ---- */

static moegen_rt_status check_name(const char *path, const moegen_rt_tensor *tensors, size_t i,
                                   moegen_rt_error *err)
{
    const char *name = tensors[i].name;
    size_t len = strlen(name);
    if (len < 1 || len > 256 || strcmp(name, "__metadata__") == 0)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "%s: no tensor can be named '%.300s'", path,
                       name);
    for (const char *c = name; *c; c += rt_utf8(c))
        if (rt_utf8(c) == 0 || (unsigned char)*c < 0x20)
            return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT,
                           "%s: the name of tensor %zu is not UTF-8 or has a control character",
                           path, i);
    for (size_t j = 0; j < i; j++)
        if (strcmp(tensors[j].name, name) == 0)
            return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "%s: tensor '%s' twice", path, name);
    return MOEGEN_RT_OK;
}

static void print_string(FILE *f, const char *text)
{
    fputc('"', f);
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20)
            fprintf(f, "\\u%04x", *c);
        else
            fprintf(f, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    fputc('"', f);
}

static void print_metadata(FILE *f, const moegen_rt_problem *metadata)
{
    const char *key, *value;
    fputs("\"__metadata__\":{", f);
    for (size_t i = 0; rt_problem_param(metadata, i, &key, &value); i++) {
        fputs(i ? "," : "", f);
        print_string(f, key);
        fputc(':', f);
        print_string(f, value);
    }
    fputc('}', f);
}

static void print_entry(FILE *f, const moegen_rt_tensor *t, uint64_t begin)
{
    print_string(f, t->name);
    fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", moegen_rt_dtype_of(t->dtype)->safetensors);
    for (int d = 0; d < t->rank; d++)
        fprintf(f, "%s%lld", d ? "," : "", (long long)t->shape[d]);
    fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
            (unsigned long long)(begin + t->bytes));
}

/* The order in which data is written: wide elements first, so that every tensor is aligned to its
 * element in a mapped file. Calls f on each with its offset. */
static void begins(const moegen_rt_tensor *tensors, size_t count, uint64_t *begin, size_t *order)
{
    uint64_t at = 0;
    size_t n = 0;
    for (size_t width = 8; width > 0; width /= 2) {
        for (size_t i = 0; i < count; i++) {
            if (moegen_rt_dtype_of(tensors[i].dtype)->bytes != width)
                continue;
            begin[i] = at;
            at += tensors[i].bytes;
            order[n++] = i;
        }
    }
}

/* The file's first bytes: length, header, padding to 8. NULL when there is no memory. */
static char *make_header(const moegen_rt_tensor *tensors, size_t count,
                         const moegen_rt_problem *metadata, const uint64_t *begin, size_t *bytes)
{
    char *at = NULL;
    uint64_t len = 0;
    FILE *f = open_memstream(&at, bytes);
    if (!f)
        return NULL;
    fwrite(&len, sizeof len, 1, f);
    fputc('{', f);
    if (metadata)
        print_metadata(f, metadata);
    for (size_t i = 0; i < count; i++) {
        if (i || metadata)
            fputc(',', f);
        print_entry(f, &tensors[i], begin[i]);
    }
    fputc('}', f);
    while (!ferror(f) && ftell(f) % 8)
        fputc(' ', f);
    bool whole = !ferror(f);
    if (fclose(f) != 0 || !whole || !at) { /* at: glibc may drop it without a word */
        free(at);
        return NULL;
    }
    len = *bytes - sizeof len;
    memcpy(at, &len, sizeof len);
    return at;
}

/* Opens what is written to: a new file beside `path`, its name in *temp (owned by the caller); or
 * `path` itself, *temp NULL, when that is a device or pipe. */
static int open_beside(const char *path, char **temp)
{
    static _Atomic unsigned serial;
    struct stat st;
    *temp = NULL;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return open(path, O_WRONLY | O_CLOEXEC);
    size_t room = strlen(path) + 40;
    *temp = malloc(room);
    if (!*temp)
        return -1;
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(*temp, room, "%s.%ld-%u.tmp", path, (long)getpid(), atomic_fetch_add(&serial, 1));
        int fd = open(*temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

static bool write_parts(int fd, const char *header, size_t header_bytes,
                        const moegen_rt_tensor *tensors, size_t count, const size_t *order)
{
    if (!rt_write_all(fd, header, header_bytes))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!rt_write_all(fd, tensors[order[i]].data, tensors[order[i]].bytes))
            return false;
    return true;
}

moegen_rt_status moegen_rt_safetensors_write(const char *path, const moegen_rt_tensor *tensors,
                                             size_t count, moegen_rt_error *err)
{
    return moegen_rt_safetensors_write_with(path, tensors, count, NULL, err);
}

moegen_rt_status moegen_rt_safetensors_write_with(const char *path, const moegen_rt_tensor *tensors,
                                                  size_t count, const moegen_rt_problem *metadata,
                                                  moegen_rt_error *err)
{
    for (size_t i = 0; i < count; i++) {
        moegen_rt_status status = check_name(path, tensors, i, err);
        if (status != MOEGEN_RT_OK)
            return status;
    }
    moegen_rt_status status = MOEGEN_RT_NO_MEMORY;
    char *header = NULL, *temp = NULL;
    size_t header_bytes = 0;
    int fd = -1;
    bool made = false; /* a temporary file exists */
    uint64_t *begin = malloc((count + 1) * sizeof *begin);
    size_t *order = malloc((count + 1) * sizeof *order);
    if (begin && order) {
        begins(tensors, count, begin, order);
        header = make_header(tensors, count, metadata, begin, &header_bytes);
    }
    if (!header) {
        rt_fail(err, status, "%s: out of memory", path);
        goto out;
    }
    status = MOEGEN_RT_IO;
    fd = open_beside(path, &temp);
    made = fd >= 0 && temp;
    bool ok = fd >= 0 && write_parts(fd, header, header_bytes, tensors, count, order);
    if (fd >= 0 && close(fd) != 0)
        ok = false;
    if (ok && temp)
        ok = rename(temp, path) == 0;
    if (!ok) {
        rt_fail(err, status, "%s: cannot write: %s", path, strerror(errno));
        goto out;
    }
    made = false;
    status = MOEGEN_RT_OK;
out:
    if (made)
        unlink(temp);
    free(temp);
    free(header);
    free(order);
    free(begin);
    return status;
}
