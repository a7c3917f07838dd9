/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_write.c - writes tensor files, at once or part by part: see rt_file.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rt_file.h"
#include "rt_write.h"
#include "runtime_private.h"

static moegen_rt_status check_name(const char *path, const moegen_rt_tensor *tensors, size_t i,
                                   moegen_rt_error *err)
{
    const char *name = tensors[i].name;
    size_t len = strlen(name);
    if (len < 1 || len > 256 || strcmp(name, "__metadata__") == 0)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "%s: no tensor can be named '%.300s'", path,
                       name);
    for (const char *c = name; *c; c += rt_utf8(c))
        if (rt_utf8(c) == 0 || rt_control(c))
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

/* Room for what next_name adds to a path. */
enum { MORE = 40, ATTEMPTS = 100 };

/* A name beside `path` that nobody else is likely to use. */
static void next_name(const char *path, char *temp)
{
    static _Atomic unsigned serial;
    snprintf(temp, strlen(path) + MORE, "%s.%ld-%u.tmp", path, (long)getpid(),
             atomic_fetch_add(&serial, 1));
}

/* Where the kernel shows an open file, for link_named. */
static void shown(int fd, char at[32])
{
    snprintf(at, 32, "/proc/self/fd/%d", fd);
}

/* A file without a name in the directory of `path`: of a process that is killed nothing is left.
 * Negative: there is no such thing here. */
static int open_unnamed(const char *path)
{
#ifdef O_TMPFILE
    const char *slash = strrchr(path, '/');
    char *directory = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int fd = directory ? open(directory, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666) : -1;
    free(directory);
    char at[32];
    shown(fd, at);
    if (fd >= 0 && access(at, F_OK) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
#else
    (void)path;
#endif
    return -1;
}

/* Opens what is written to: a new file beside *path, which is where the links of `asked` lead to,
 * called *temp, or not yet if it is *unnamed; or `asked` itself when that is a device or pipe. The
 * names are NULL before, and the caller's afterwards. */
static int open_beside(const char *asked, char **path, char **temp, bool *unnamed)
{
    struct stat st;
    if (stat(asked, &st) == 0 && !S_ISREG(st.st_mode))
        return open(asked, O_WRONLY | O_CLOEXEC);
    *path = rt_follow(asked);
    *temp = *path ? malloc(strlen(*path) + MORE) : NULL;
    if (!*temp)
        return -1;
    int fd = open_unnamed(*path);
    *unnamed = fd >= 0;
    for (int attempt = 0; fd < 0 && attempt < ATTEMPTS; attempt++) {
        next_name(*path, *temp);
        fd = open(*temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    return fd;
}

/* Asks for all of its room at once, which takes the system less than bit by bit. Whether there is
 * any, or such a thing to ask for, writing will tell. */
static void reserve(int fd, size_t bytes)
{
#ifdef FALLOC_FL_KEEP_SIZE
    (void)fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
#else
    (void)fd, (void)bytes;
#endif
}

/* ---- a file at work ---- */

struct rt_file {
    char *asked;       /* for messages */
    char *path, *temp; /* behind its links; both NULL: it is a device or pipe */
    bool unnamed;      /* temp is room for its name */
    int fd;
    size_t header_bytes; /* before the data */
    size_t data_bytes;
    char *data;      /* of devices and pipes: written at the end. Else NULL */
    uint64_t *begin; /* of each tensor in the data */
    size_t *order;
    _Atomic int error; /* errno of the first failure, or 0 */
};

static void note(struct rt_file *f, bool ok)
{
    int none = 0;
    if (!ok)
        atomic_compare_exchange_strong(&f->error, &none, errno ? errno : EIO);
}

static void release(struct rt_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    if (f->fd >= 0 && f->temp && !f->unnamed)
        unlink(f->temp);
    moegen_rt_free(f->data);
    free(f->asked);
    free(f->path);
    free(f->temp);
    free(f->begin);
    free(f->order);
    free(f);
}

/* Sizes, the header and the temporary file; 0, or errno. */
static int begin_file(struct rt_file *f, const moegen_rt_tensor *tensors, size_t count,
                      const moegen_rt_problem *metadata)
{
    char *header = NULL;
    f->begin = malloc((count + 1) * sizeof *f->begin);
    f->order = malloc((count + 1) * sizeof *f->order);
    if (f->begin && f->order && f->asked) {
        begins(tensors, count, f->begin, f->order);
        header = make_header(tensors, count, metadata, f->begin, &f->header_bytes);
    }
    if (!header)
        return ENOMEM;
    for (size_t i = 0; i < count; i++)
        f->data_bytes += tensors[i].bytes;
    f->fd = open_beside(f->asked, &f->path, &f->temp, &f->unnamed);
    int error = f->fd < 0 || !rt_write_all(f->fd, header, f->header_bytes) ? errno : 0;
    free(header);
    if (!error && f->temp)
        reserve(f->fd, f->header_bytes + f->data_bytes);
    if (error || f->temp)
        return error;
    f->data = moegen_rt_alloc(f->data_bytes);
    return f->data ? 0 : ENOMEM;
}

moegen_rt_status rt_file_open(const char *path, const moegen_rt_tensor *tensors, size_t count,
                              const moegen_rt_problem *metadata, struct rt_file **out,
                              moegen_rt_error *err)
{
    for (size_t i = 0; i < count; i++) {
        moegen_rt_status status = check_name(path, tensors, i, err);
        if (status != MOEGEN_RT_OK)
            return status;
    }
    struct rt_file *f = calloc(1, sizeof *f);
    int error = ENOMEM;
    if (f) {
        f->fd = -1;
        f->asked = strdup(path);
        error = begin_file(f, tensors, count, metadata);
    }
    if (error && f)
        release(f);
    if (error == ENOMEM)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "%s: out of memory", path);
    if (error)
        return rt_fail(err, MOEGEN_RT_IO, "%s: cannot write: %s", path, strerror(error));
    *out = f;
    return MOEGEN_RT_OK;
}

void rt_file_put(struct rt_file *f, size_t tensor, size_t at, const void *bytes, size_t len)
{
    uint64_t first = f->begin[tensor] + at;
    if (f->data && len)
        memcpy(f->data + first, bytes, len);
    else if (!f->data && !atomic_load(&f->error))
        note(f, rt_write_at(f->fd, bytes, len, (int64_t)(f->header_bytes + first)));
}

/* Gives it the name that it will be renamed from. */
static bool link_named(struct rt_file *f)
{
    char at[32];
    shown(f->fd, at);
    for (int attempt = 0; f->unnamed && attempt < ATTEMPTS; attempt++) {
        next_name(f->path, f->temp);
        f->unnamed = linkat(AT_FDCWD, at, AT_FDCWD, f->temp, AT_SYMLINK_FOLLOW) != 0;
        if (f->unnamed && errno != EEXIST)
            break;
    }
    return !f->unnamed;
}

moegen_rt_status rt_file_close(struct rt_file *f, moegen_rt_error *err)
{
    if (f->data)
        note(f, rt_write_all(f->fd, f->data, f->data_bytes));
    if (!f->error)
        note(f, link_named(f));
    if (!f->error) {
        int fd = f->fd;
        f->fd = -1;
        note(f, close(fd) == 0 && (!f->temp || rename(f->temp, f->path) == 0));
        if (f->error && f->temp)
            unlink(f->temp);
    }
    int error = f->error;
    moegen_rt_status status =
        error ? rt_fail(err, MOEGEN_RT_IO, "%s: cannot write: %s", f->asked, strerror(error))
              : MOEGEN_RT_OK;
    release(f);
    return status;
}

void rt_file_drop(struct rt_file *f)
{
    if (f)
        release(f);
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
    struct rt_file *f = NULL;
    moegen_rt_status status = rt_file_open(path, tensors, count, metadata, &f, err);
    if (status != MOEGEN_RT_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        rt_file_put(f, f->order[i], 0, tensors[f->order[i]].data, tensors[f->order[i]].bytes);
    return rt_file_close(f, err);
}
