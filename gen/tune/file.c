/* SPDX-License-Identifier: Apache-2.0 */
/* file.c - tuned plans as text, and files of them that gain one. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spec/spec.h"
#include "tune.h"

enum { DIGITS = 12 }; /* of the generator's digest */

bool tuning_entry(moegen_tuning *t, double ratio, double low, double high, int pairs)
{
    char digest[65] = "unknown";
    host_digest(digest);
    text_free(&t->entry);
    text_fmt(&t->entry,
             "- spec: %s\n  tokens: [%" PRId64 ", %" PRId64 "]\n  threads: %d\n  target: %s\n"
             "  plan: %s\n"
             "  measured: {ratio: %.3f, low: %.3f, high: %.3f, pairs: %d, moegen: %.*s}\n",
             t->spec.at, t->least, t->most, t->threads, t->target.at, t->yaml.at, ratio, low, high,
             pairs, DIGITS, digest);
    return !t->entry.lost && !t->spec.lost && !t->target.lost && !t->yaml.lost;
}

/* ---- where entries are ---- */

/* Where line n of a text begins, from 1; its end if it has fewer. */
static size_t line_at(const struct text *t, int n)
{
    size_t at = 0;
    while (--n > 0 && at < t->len) {
        at += strcspn(t->at + at, "\n");
        at += at < t->len;
    }
    return at;
}

static size_t line_after(const struct text *t, size_t at)
{
    at += strcspn(t->at + at, "\n");
    return at + (at < t->len);
}

static size_t indent_at(const struct text *t, size_t at)
{
    return strspn(t->at + at, " ");
}

/* The end of the entry that begins at `at`: the next line that is not inside of it. */
static size_t entry_end(const struct text *t, size_t at)
{
    size_t indent = indent_at(t, at);
    for (at = line_after(t, at); at < t->len; at = line_after(t, at)) {
        size_t own = indent_at(t, at);
        if (own <= indent && t->at[at + own] != '\n')
            break;
    }
    return at;
}

/* The part of a file that the new entry takes the place of; of no bytes where it is put between
 * others. */
struct place {
    size_t from, to, indent;
    bool pinned;
};

static bool is_block(const struct text *t, size_t at)
{
    return strncmp(t->at + at + indent_at(t, at), "- ", 2) == 0;
}

/* Of a file without entries: behind the line of its key, whose value goes. */
static bool place_in_empty(struct text *t, struct place *p)
{
    const char *key = strncmp(t->at, "plans:", 6) == 0 ? t->at : strstr(t->at, "\nplans:");
    if (!key)
        return false;
    size_t at = (size_t)(key - t->at) + (*key == '\n') + 6, end = line_after(t, at);
    p->from = at;
    p->to = end;
    p->indent = 2;
    return true;
}

static moegen_status find_place(struct text *t, const char *path, const struct listing *entries,
                                const moegen_tuning *tuning, struct place *p, moegen_error **err)
{
    struct text mine = {0};
    bool ok = true;
    *p = (struct place){0};
    text_fmt(&mine, "%s [%" PRId64 ", %" PRId64 "] %d %s", tuning->spec.at, tuning->least,
             tuning->most, tuning->threads, tuning->target.at);
    if (mine.lost)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < entries->count && ok; i++) {
        static const char pinned[] = "pinned ";
        const char *text = entries->item[i].text;
        size_t at = line_at(t, atoi(entries->item[i].name));
        bool is_pinned = strncmp(text, pinned, sizeof pinned - 1) == 0;
        ok = is_block(t, at);
        if (i == 0)
            *p = (struct place){at, at, indent_at(t, at), false};
        if (strcmp(text + (is_pinned ? sizeof pinned - 1 : 0), mine.at) == 0) {
            *p = (struct place){at, entry_end(t, at), indent_at(t, at), is_pinned};
            break;
        }
    }
    text_free(&mine);
    if (!ok || (!entries->count && !place_in_empty(t, p)))
        return error_set(
            err, MOEGEN_BAD_SPEC,
            "%s: plans are not written as lines that begin with \"- \": nothing can be "
            "put between them",
            path);
    return MOEGEN_OK;
}

/* ---- writing ---- */

static moegen_status io_error(moegen_error **err, const char *what, const char *path, int why)
{
    return error_set(err, why == ENOMEM ? MOEGEN_NO_MEMORY : MOEGEN_IO, "cannot %s %s: %s", what,
                     path, strerror(why));
}

/* What the file's entries are; also refuses what is no such file, with its place. */
static moegen_status read_entries(moegen_engine *engine, const char *path, const struct text *t,
                                  struct listing *out, moegen_error **err)
{
    static const char none[] = "kernel: router\n";
    moegen_spec spec = {.struct_size = sizeof spec, .text = none, .len = sizeof none - 1};
    struct host_tuned file = {path, t->at, t->len};
    struct ask a;
    moegen_status status = ask_open(&a, engine, &spec, "jit", err);
    if (!status)
        status = ask_entries(&a, &file, out, err);
    ask_close(&a);
    return status;
}

static moegen_status add_entry(const moegen_tuning *t, moegen_engine *engine, const char *path,
                               struct text *old, struct text *all, bool *pinned, moegen_error **err)
{
    struct listing entries = {0};
    struct place p;
    moegen_status status = read_entries(engine, path, old, &entries, err);
    if (!status)
        status = find_place(old, path, &entries, t, &p, err);
    listing_free(&entries);
    *pinned = !status && p.pinned;
    if (status || p.pinned)
        return status;
    text_add(all, old->at, p.from);
    if (p.from && old->at[p.from - 1] != '\n')
        text_fmt(all, "\n");
    for (const char *line = t->entry.at; *line; line += strcspn(line, "\n") + 1)
        text_fmt(all, "%*s%.*s\n", (int)p.indent, "", (int)strcspn(line, "\n"), line);
    text_add(all, old->at + p.to, old->len - p.to);
    if (all->lost)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    status = read_entries(engine, path, all, &entries, err);
    listing_free(&entries);
    return status;
}

/* Makes the directories of a path that are not there; an errno. */
static int make_directories(char *path)
{
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        int failed = mkdir(path, 0777) && errno != EEXIST ? errno : 0;
        *at = '/';
        if (failed)
            return failed;
    }
    return 0;
}

/* The directory, locked: until it is closed nobody else adds a plan there. -1 and an errno. */
static int lock(const char *path, int *why)
{
    const char *slash = strrchr(path, '/');
    struct text directory = {0};
    text_fmt(&directory, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    int fd = directory.lost ? -1 : open(directory.at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *why = directory.lost ? ENOMEM : errno;
    while (fd >= 0 && flock(fd, LOCK_EX) && errno == EINTR)
        ;
    text_free(&directory);
    return fd;
}

static moegen_status write_locked(const moegen_tuning *t, moegen_engine *engine, const char *path,
                                  bool *pinned, moegen_error **err)
{
    struct text old = {0}, all = {0};
    moegen_status status = MOEGEN_OK;
    int why = file_read(path, SPEC_MOST, &old);
    if (why == ENOENT || (!why && !old.len)) {
        text_free(&old);
        text_fmt(&old, "cpu: %s\nplans:\n", moegen_rt_cpu_kind());
        why = old.lost ? ENOMEM : 0;
        text_fmt(&all, "%s", old.at ? old.at : "");
        for (const char *line = t->entry.at; *line; line += strcspn(line, "\n") + 1)
            text_fmt(&all, "  %.*s\n", (int)strcspn(line, "\n"), line);
    } else if (!why && old.len > SPEC_MOST) {
        status =
            error_set(err, MOEGEN_BAD_SPEC, "%s: more than %d bytes, the limit", path, SPEC_MOST);
    } else if (!why) {
        status = add_entry(t, engine, path, &old, &all, pinned, err);
    }
    if (why)
        status = io_error(err, "read", path, why);
    if (!status && !*pinned)
        status = all.lost || all.len > SPEC_MOST
                     ? error_set(err, MOEGEN_NO_MEMORY, "%s: too large, or out of memory", path)
                     : MOEGEN_OK;
    if (!status && !*pinned && (why = file_write(path, all.at, all.len)))
        status = io_error(err, "write", path, why);
    text_free(&old);
    text_free(&all);
    return status;
}

/* Where entries go, owned: `path`, or of this CPU, whose directory is made. */
static moegen_status find_file(const char *path, char **out, moegen_error **err)
{
    int why;
    *out = *path ? strdup(path) : tuned_path();
    if (!*out || !**out)
        return error_set(err, MOEGEN_IO, "there is no place for tuned plans: $HOME is not set");
    if (!*path && (why = make_directories(*out)))
        return io_error(err, "make a directory for", *out, why);
    return MOEGEN_OK;
}

moegen_status tuning_ready(moegen_engine *engine, const char *path, moegen_error **err)
{
    char *file = NULL;
    struct text old = {0};
    struct listing entries = {0};
    moegen_status status = find_file(path, &file, err);
    int why = status ? 0 : file_ready(file);
    if (why) {
        status = io_error(err, "write", file, why);
    } else if (!status) {
        why = file_read(file, SPEC_MOST, &old);
        status = why && why != ENOENT ? io_error(err, "read", file, why)
                 : old.len            ? read_entries(engine, file, &old, &entries, err)
                                      : MOEGEN_OK;
    }
    listing_free(&entries);
    text_free(&old);
    free(file);
    return status;
}

moegen_status tuning_write(const moegen_tuning *t, moegen_engine *engine, const char *path,
                           bool *pinned, moegen_error **err)
{
    char *file = NULL;
    int why;
    *pinned = false;
    moegen_status status = find_file(path, &file, err);
    int fd = status ? -1 : lock(file, &why);
    if (!status)
        status =
            fd < 0 ? io_error(err, "write", file, why) : write_locked(t, engine, file, pinned, err);
    if (fd >= 0)
        close(fd);
    free(file);
    return status;
}
