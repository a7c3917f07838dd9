/* SPDX-License-Identifier: Apache-2.0 */
/* cli_files.c - files read and written whole, and those that must not be written. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

/* A complaint about a file, of errno `why`. */
static int file_fails(const char *what, const char *path, int why)
{
    bad("cannot %s %s: %s", what, path, strerror(why));
    return why == ENOMEM ? EXIT_NOT_HERE : EXIT_BAD_INPUT;
}

/* read(2), again after a signal. */
static ssize_t read_some(int fd, char *block, size_t size)
{
    ssize_t n;
    do
        n = read(fd, block, size);
    while (n < 0 && errno == EINTR);
    return n;
}

int read_file(const char *path, size_t most, struct text *out)
{
    char block[65536];
    ssize_t n = 0;
    bool standard = strcmp(path, "-") == 0;
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return file_fails("read", path, errno);
    text_add(out, "", 0);
    while (out->len <= most && (n = read_some(fd, block, sizeof block)) > 0)
        text_add(out, block, (size_t)n);
    int why = n < 0 ? errno : out->lost ? ENOMEM : 0;
    if (!standard)
        close(fd);
    if (why)
        return file_fails("read", path, why);
    return out->len > most ? bad("%s: more than %zu bytes, the limit", path, most) : EXIT_OK;
}

static bool same_bytes(const char *path, const char *bytes, size_t len)
{
    char block[65536];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = 0;
    bool same = fd >= 0;
    while (same && (n = read_some(fd, block, sizeof block)) > 0) {
        same = (size_t)n <= len && memcmp(block, bytes, (size_t)n) == 0;
        bytes += same ? n : 0;
        len -= same ? (size_t)n : 0;
    }
    if (fd >= 0)
        close(fd);
    return same && n == 0 && len == 0;
}

int write_file(const char *path, const char *bytes, size_t len, bool *changed)
{
    bool same = same_bytes(path, bytes, len);
    if (changed)
        *changed = !same;
    if (same)
        return EXIT_OK;
    int why = file_write(path, bytes, len);
    return why ? file_fails("write", path, why) : EXIT_OK;
}

int write_text(const char *path, const struct text *t)
{
    return t->lost ? fail(MOEGEN_NO_MEMORY, NULL)
                   : write_file(path, t->at ? t->at : "", t->len, NULL);
}

/* ---- what results may not replace ---- */

static bool same_file(const struct stat *x, const struct stat *y)
{
    return x->st_dev == y->st_dev && x->st_ino == y->st_ino;
}

/* Is it the file at `path`, or one of such files in that directory? */
static bool is_read_from(const char *path, const char *files, const struct stat *file)
{
    struct stat is;
    DIR *all = stat(path, &is) == 0 && S_ISDIR(is.st_mode) ? opendir(path) : NULL;
    bool found = stat(path, &is) == 0 && same_file(&is, file);
    for (struct dirent *x; all && !found && (x = readdir(all));)
        found = fnmatch(files, x->d_name, 0) == 0 && fstatat(dirfd(all), x->d_name, &is, 0) == 0 &&
                same_file(&is, file);
    if (all)
        closedir(all);
    return found;
}

bool is_input(const struct options *o, const char *path)
{
    struct stat file;
    bool found = false;
    if (stat(path, &file) || !S_ISREG(file.st_mode))
        return false;
    if (o->baseline)
        found = is_read_from(o->baseline, "", &file);
    for (int i = 0; i < o->in.count && !found; i++)
        found = is_read_from(o->in.at[i], "*.safetensors", &file);
    for (int i = 0; i < o->operands.count && !found; i++) {
        const char *word = o->operands.at[i], *colon = strrchr(word, ':');
        char *spec = colon ? strndup(word, (size_t)(colon - word)) : NULL;
        struct stat is;
        found = is_read_from(word, "*.json", &file) ||
                (spec && stat(spec, &is) == 0 && same_file(&is, &file));
        free(spec);
    }
    return found;
}

/* Nothing is printed in its place, it is no input, and where it comes late there is a place for it.
 */
static int result_ready(const struct options *o, const char *option, const char *path, bool late)
{
    if (strcmp(path, "-") == 0)
        return bad("%s: a file, please, not -", option);
    if (is_input(o, path))
        return bad("%s: %s is a file that is read", option, path);
    int why = late ? file_ready(path) : 0;
    return why ? file_fails("write", path, why) : EXIT_OK;
}

int results_ready(const struct options *o)
{
    const bool late = o->command->bit & RESULTS; /* it takes a while to have them */
    const bool prints = o->out && strcmp(o->out, "-") == 0 && (o->command->bit & (GEN | REPORT));
    const char *json = late && o->json && strcmp(o->json, "-") != 0 ? o->json : NULL;
    const struct {
        const char *option, *path;
        bool late;
    } file[] = {{"--plot", o->plot, late},
                {"--json", json, late},
                {"--out", prints ? NULL : o->out, false},
                {"--depfile", o->depfile, false},
                {"--cflags", o->cflags, false}};
    enum { FILES = sizeof file / sizeof *file };
    int result = EXIT_OK;
    for (int i = 0; i < FILES && !result; i++) {
        if (file[i].path)
            result = result_ready(o, file[i].option, file[i].path, file[i].late);
        for (int k = 0; k < i && file[i].path && !result; k++)
            if (file[k].path && strcmp(file[k].path, file[i].path) == 0)
                result = bad("%s and %s: both %s", file[k].option, file[i].option, file[i].path);
    }
    return result;
}
