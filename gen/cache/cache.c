/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.c - compiled kernels on disk. An entry is one file, DIR/ab/cdef....krn for key abcdef...:
 * header, metadata text, code. It appears complete or not at all, is inert data, and is believed
 * only after every check in entry_load(); a file that fails one is removed and was never there. So
 * processes need no locks, and a crash, a full disk or a flipped bit costs one compile.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "entry.h"
#include "rt_write.h"

enum {
    FORMAT = 1,
    MAX_FILE = 1 << 28,
    TOUCH = 3600, /* seconds: how exactly the time of the last use is kept */
};

/* ---- the file: little-endian numbers ---- */

/* Offsets; the comments give the bytes of each field. */
enum {
    AT_MAGIC = 0,     /*  8 */
    AT_FORMAT = 8,    /*  4 */
    AT_ABI = 12,      /*  4 MOEGEN_RT_ABI */
    AT_KEY = 16,      /* 32 */
    AT_META_LEN = 48, /*  8 bytes of metadata, which follow the header */
    AT_CODE_LEN = 56, /*  8 bytes of code, which follow the metadata */
    AT_ENTRY = 64,    /*  4 for each of MAX_ENTRIES */
    AT_META_SUM = 80, /*  8 digest_fast */
    AT_CODE_SUM = 88, /*  8 */
    AT_SUM = 96,      /*  8 digest_fast of all before */
    HEADER = 104
};
_Static_assert(AT_ENTRY + 4 * MAX_ENTRIES == AT_META_SUM, "header layout");

static const unsigned char magic[8] = {0x89, 'M', 'O', 'E', 'K', 'R', 'N', '\n'};

static void put_number(unsigned char *p, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (unsigned char)(x >> 8 * i);
}

static uint64_t number(const unsigned char *p, int bytes)
{
    uint64_t x = 0;
    while (bytes--)
        x = x << 8 | p[bytes];
    return x;
}

static void header_make(unsigned char h[HEADER], const unsigned char key[32], const struct blob *b,
                        const char *meta, size_t meta_len)
{
    memcpy(h + AT_MAGIC, magic, sizeof magic);
    put_number(h + AT_FORMAT, FORMAT, 4);
    put_number(h + AT_ABI, MOEGEN_RT_ABI, 4);
    memcpy(h + AT_KEY, key, 32);
    put_number(h + AT_META_LEN, meta_len, 8);
    put_number(h + AT_CODE_LEN, b->len, 8);
    for (int i = 0; i < MAX_ENTRIES; i++)
        put_number(h + AT_ENTRY + 4 * i, b->entry[i], 4);
    put_number(h + AT_META_SUM, digest_fast(meta, meta_len), 8);
    put_number(h + AT_CODE_SUM, digest_fast(b->at, b->len), 8);
    put_number(h + AT_SUM, digest_fast(h, AT_SUM), 8);
}

/* NULL, or what is wrong with a header in a file of `size` bytes. */
static const char *header_check(const unsigned char h[HEADER], const unsigned char key[32],
                                uint64_t size)
{
    uint64_t meta = number(h + AT_META_LEN, 8), code = number(h + AT_CODE_LEN, 8);
    if (memcmp(h + AT_MAGIC, magic, sizeof magic) != 0)
        return "it is not a kernel";
    if (number(h + AT_FORMAT, 4) != FORMAT || number(h + AT_ABI, 4) != MOEGEN_RT_ABI)
        return "another version wrote it";
    if (memcmp(h + AT_KEY, key, 32) != 0)
        return "it holds another kernel than its name says";
    if (number(h + AT_SUM, 8) != digest_fast(h, AT_SUM))
        return "its header is damaged";
    if (meta > size || code > size || HEADER + meta + code != size || code == 0)
        return "its size is wrong";
    for (int i = 0; i < MAX_ENTRIES; i++)
        if (number(h + AT_ENTRY + 4 * i, 4) >= code)
            return "an entry lies outside its code";
    return NULL;
}

static bool read_all(int fd, void *bytes, size_t len)
{
    char *p = bytes;
    while (len) {
        ssize_t n = read(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

/* ---- one entry ---- */

static const char unreadable[] = "it cannot be read";
const char entry_no_memory[] = "there is no memory to read it";

void entry_name(const char *hex, char name[NAME])
{
    snprintf(name, NAME, "%.2s/%.62s.krn", hex, hex + 2);
}

const char *entry_load(int fd, const unsigned char key[32], struct blob *b, struct text *meta)
{
    struct stat st;
    unsigned char h[HEADER];
    if (fd < 0 || fstat(fd, &st))
        return unreadable;
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
        return "others may have written it";
    if (st.st_size < HEADER || st.st_size > MAX_FILE)
        return "its size is wrong";
    if (!read_all(fd, h, HEADER))
        return unreadable;
    const char *problem = header_check(h, key, (uint64_t)st.st_size);
    if (problem)
        return problem;
    size_t meta_len = number(h + AT_META_LEN, 8), code_len = number(h + AT_CODE_LEN, 8);
    char *text = malloc(meta_len + 1);
    unsigned char *code = malloc(code_len);
    if (!text || !code)
        problem = entry_no_memory;
    else if (!read_all(fd, text, meta_len) || !read_all(fd, code, code_len))
        problem = unreadable;
    else if (digest_fast(text, meta_len) != number(h + AT_META_SUM, 8) ||
             digest_fast(code, code_len) != number(h + AT_CODE_SUM, 8))
        problem = "its content is damaged";
    if (problem) {
        free(text);
        free(code);
        return problem;
    }
    text[meta_len] = '\0';
    *meta = (struct text){.at = text, .len = meta_len, .room = meta_len + 1};
    *b = (struct blob){.at = code, .len = code_len};
    for (int i = 0; i < MAX_ENTRIES; i++)
        b->entry[i] = (uint32_t)number(h + AT_ENTRY + 4 * i, 4);
    return NULL;
}

int entry_open(const struct cache *c, const char *name)
{
    return openat(c->dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
}

/* Remember that the entry was used. */
static void touch(int fd)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && time(NULL) - st.st_mtime > TOUCH)
        futimens(fd, NULL);
}

bool cache_get(struct cache *c, const unsigned char key[32], struct blob *out, struct text *meta)
{
    char hex[65], name[NAME];
    if (!c)
        return false;
    digest_hex(key, 32, hex);
    entry_name(hex, name);
    int fd = entry_open(c, name);
    const char *problem = entry_load(fd, key, out, meta);
    if (!problem)
        touch(fd);
    else if (problem != unreadable && problem != entry_no_memory)
        unlinkat(c->dir, name, 0);
    if (fd >= 0)
        close(fd);
    return !problem;
}

static bool warn(struct cache *c, const char *what, const char *why)
{
    char line[1024];
    if (!c->log || atomic_flag_test_and_set(&c->warned))
        return false;
    snprintf(line, sizeof line, "%s: %s, so kernels are not kept on disk (%s)", c->path, what, why);
    c->log(c->user, 1, line);
    return false;
}

static bool write_entry(int fd, const unsigned char h[HEADER], const struct blob *b,
                        const char *meta, size_t meta_len)
{
    return fd >= 0 && fchmod(fd, 0600) == 0 && rt_write_all(fd, h, HEADER) &&
           rt_write_all(fd, meta, meta_len) && rt_write_all(fd, b->at, b->len);
}

/* A file without a name gets its name when it is complete. Where the file system has no such thing:
 * a name of its own, then renamed. Being second is as good as being first: both wrote the same. */
static bool publish(int dir, const char *name, const unsigned char h[HEADER], const struct blob *b,
                    const char *meta, size_t meta_len)
{
    static atomic_uint serial;
    char path[64];
    int fd = openat(dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) {
        bool ok = write_entry(fd, h, b, meta, meta_len);
        int error = errno;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        bool linked =
            ok && (linkat(AT_FDCWD, path, dir, name, AT_SYMLINK_FOLLOW) == 0 || errno == EEXIST);
        close(fd);
        errno = error;
        if (linked || !ok)
            return linked;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(path, sizeof path, ".new-%ld-%u-%ld", (long)getpid(), atomic_fetch_add(&serial, 1),
             now.tv_nsec);
    fd = openat(dir, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    bool ok = write_entry(fd, h, b, meta, meta_len);
    ok = close(fd) == 0 && ok && renameat(dir, path, dir, name) == 0;
    int error = errno;
    if (!ok)
        unlinkat(dir, path, 0);
    errno = error;
    return ok;
}

bool cache_put(struct cache *c, const unsigned char key[32], const struct blob *b, const char *meta,
               size_t meta_len)
{
    unsigned char h[HEADER];
    char hex[65], name[NAME];
    if (!c || b->len == 0 || b->len > MAX_FILE / 2 || meta_len > MAX_FILE / 4)
        return false;
    digest_hex(key, 32, hex);
    entry_name(hex, name);
    name[2] = '\0'; /* the directory; the file's own name starts at name + 3 */
    header_make(h, key, b, meta, meta_len);
    if (mkdirat(c->dir, name, 0700) && errno != EEXIST)
        return warn(c, "cannot be written", strerror(errno));
    int dir = openat(c->dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool ok = dir >= 0 && publish(dir, name + 3, h, b, meta, meta_len);
    int error = errno;
    if (dir >= 0)
        close(dir);
    return ok || warn(c, "cannot be written", strerror(error));
}

/* ---- the directory ---- */

/* Where the cache is when nobody says so. Caller frees. NULL: nowhere, or out of memory. */
static char *usual_place(bool *nowhere)
{
    const char *dir = secure_getenv("MOEGEN_CACHE_DIR");
    const char *base = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
    struct text t = {0};
    if (dir)
        text_fmt(&t, "%s", dir);
    else if (base && base[0] == '/')
        text_fmt(&t, "%s/moegen", base);
    else if (home && home[0] == '/')
        text_fmt(&t, "%s/.cache/moegen", home);
    *nowhere = !t.lost && !t.len;
    if (*nowhere)
        text_free(&t);
    return t.at;
}

/* mkdir -p. The errno of the first that could not be made; 0: there was none. */
static int make_directories(char *path)
{
    int why = 0;
    for (char *p = path + 1;; p++) {
        const char here = *p;
        if (here && here != '/')
            continue;
        *p = '\0';
        if (mkdir(path, 0700) && errno != EEXIST && !why)
            why = errno;
        *p = here;
        if (!here)
            return why;
    }
}

/* NULL, or why the directory cannot be used. */
static const char *enter(struct cache *c)
{
    struct stat st;
    const int why = make_directories(c->path);
    c->dir = open(c->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->dir < 0 || fstat(c->dir, &st))
        return strerror(errno == ENOENT && why ? why : errno);
    if (st.st_uid != geteuid())
        return "it belongs to another user";
    if (st.st_mode & 022)
        return "others may write to it; chmod go-w makes it usable";
    char *absolute = realpath(c->path, NULL);
    if (!absolute)
        return strerror(errno);
    free(c->path);
    c->path = absolute;
    return NULL;
}

struct cache *cache_open(const char *dir, cache_log *log, void *user)
{
    if (dir && !*dir)
        return NULL;
    bool nowhere = false;
    char *path = dir ? strdup(dir) : usual_place(&nowhere);
    struct cache *c = path ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        if (log && !nowhere)
            log(user, 1, "out of memory, so kernels are not kept on disk");
        free(path);
        return NULL;
    }
    *c = (struct cache){
        .dir = -1, .path = path, .log = log, .user = user, .warned = ATOMIC_FLAG_INIT};
    const char *problem = enter(c);
    if (!problem)
        return c;
    warn(c, "cannot be used", problem);
    cache_close(c);
    return NULL;
}

void cache_close(struct cache *c)
{
    if (!c)
        return;
    if (c->dir >= 0)
        close(c->dir);
    free(c->path);
    free(c);
}

const char *cache_path(const struct cache *c)
{
    return c ? c->path : "";
}
