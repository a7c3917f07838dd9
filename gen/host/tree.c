/* SPDX-License-Identifier: Apache-2.0 */
/* tree.c - a source tree in place of the embedded copies (development): what lies where in it, and
 * the digest of all of it. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sandbox.h"

enum { MAX_FILE = 4 << 20 };

const char *tree_root(void)
{
    const char *root = secure_getenv("MOEGEN_TEMPLATE_DIR");
    return root && *root ? root : NULL;
}

bool tree_is_one(const char *root)
{
    struct text path = {0};
    text_fmt(&path, "%s/gen/lua/prelude.lua", root);
    bool found = path.lost || access(path.at, F_OK) == 0;
    text_free(&path);
    return found;
}

bool tree_read(const char *path, struct text *out)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    char part[16384];
    size_t n;
    while ((n = fread(part, 1, sizeof part, f)) > 0 && out->len < MAX_FILE)
        text_add(out, part, n);
    bool good = !ferror(f) && feof(f) && !out->lost;
    fclose(f);
    return good;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void tree_free_names(char **name, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(name[i]);
    free(name);
}

bool tree_list(const char *root, const char *folder, const char *suffix, char ***names,
               size_t *count)
{
    char path[PATH_ROOM];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    *names = NULL;
    *count = 0;
    DIR *d = opendir(path);
    if (!d)
        return errno == ENOENT || errno == ENOTDIR;
    bool good = true;
    size_t tail = strlen(suffix);
    for (struct dirent *e; good && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (e->d_name[0] == '.' || n <= tail || strcmp(e->d_name + n - tail, suffix) != 0)
            continue;
        char **more = realloc(*names, (*count + 1) * sizeof *more);
        char *stem = more ? strndup(e->d_name, n - tail) : NULL;
        if (more)
            *names = more;
        if (stem)
            (*names)[(*count)++] = stem;
        good = stem != NULL;
    }
    closedir(d);
    if (*count)
        qsort(*names, *count, sizeof **names, by_name);
    return good;
}

const struct source_place tree_modules = {"gen/lua", ".lua"}, tree_isas = {"gen/lua/isa", ".lua"},
                          tree_templates = {"templates", ".c.in"},
                          tree_beside = {"templates", ".lua"};
enum { ROOMS_DEEP = 2 }; /* gen/lua/arch/x86 */

/* Adds the files of a place to the digest and to their number. */
static bool digest_place(struct sha256 *sum, const char *root, struct source_place p, size_t *files)
{
    char **name, path[PATH_ROOM];
    size_t count;
    bool good = tree_list(root, p.folder, p.suffix, &name, &count);
    for (size_t k = 0; k < count; k++) {
        struct text content = {0};
        snprintf(path, sizeof path, "%s/%s/%s%s", root, p.folder, name[k], p.suffix);
        good = tree_read(path, &content) && good;
        const char *relative = path + strlen(root);
        sha256_add(sum, relative, strlen(relative) + 1);
        sha256_add(sum, &content.len, sizeof content.len);
        if (content.len)
            sha256_add(sum, content.at, content.len);
        text_free(&content);
    }
    tree_free_names(name, count);
    *files += count;
    return good;
}

/* A folder and its rooms, so many levels deep. */
static bool digest_folder(struct sha256 *sum, const char *root, const char *folder, int levels,
                          size_t *files)
{
    char **name = NULL, room[PATH_ROOM];
    size_t count = 0;
    bool good = digest_place(sum, root, (struct source_place){folder, tree_modules.suffix}, files);
    good = digest_place(sum, root, (struct source_place){folder, tree_templates.suffix}, files) &&
           good;
    if (levels > 0)
        good = tree_list(root, folder, "", &name, &count) && good;
    for (size_t i = 0; i < count; i++) {
        int n = snprintf(room, sizeof room, "%s/%s", folder, name[i]);
        good = n < PATH_ROOM && digest_folder(sum, root, room, levels - 1, files) && good;
    }
    tree_free_names(name, count);
    return good;
}

bool tree_digest(const char *root, char hex[65])
{
    if (!root) {
        memcpy(hex, embedded_digest, 65);
        return true;
    }
    struct sha256 sum;
    sha256_start(&sum);
    size_t files = 0;
    bool good = digest_folder(&sum, root, tree_modules.folder, ROOMS_DEEP, &files);
    good = digest_folder(&sum, root, tree_templates.folder, ROOMS_DEEP, &files) && good;
    unsigned char out[32];
    sha256_end(&sum, out);
    digest_hex(out, sizeof out, hex);
    hex[64] = '\0';
    return good && files > 0;
}
