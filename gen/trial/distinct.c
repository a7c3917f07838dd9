/* SPDX-License-Identifier: Apache-2.0 */
/* distinct.c - is each tensor in one file only? Of two files the one that is read last would give
 * it, and nobody would see that. */
#include <stdlib.h>
#include <string.h>

#include "trial.h"

/* A name and the file that has it. */
struct entry {
    char *name; /* owned */
    int file;
};
struct names {
    struct entry *at;
    int count, room;
    int file; /* that is being read */
    bool lost;
    int (*wanted)(void *user, const char *name);
    void *user;
};

/* Notes the name; 0, so that nothing but the header is read. */
static int note_name(void *user, const char *name)
{
    struct names *n = user;
    if (n->lost || (n->wanted && !n->wanted(n->user, name)))
        return 0;
    if (n->count == n->room) {
        int room = n->room ? 2 * n->room : 64;
        struct entry *more = realloc(n->at, (size_t)room * sizeof *more);
        n->lost = !more;
        n->at = more ? more : n->at;
        n->room = more ? room : n->room;
    }
    char *own = n->lost ? NULL : strdup(name);
    n->lost = !own;
    if (own)
        n->at[n->count++] = (struct entry){own, n->file};
    return 0;
}

/* By name, then by file. */
static int compare(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int names = strcmp(x->name, y->name);
    return names ? names : (x->file > y->file) - (x->file < y->file);
}

moegen_status files_distinct(const char *const *path, int files,
                             int (*wanted)(void *user, const char *name), void *user,
                             moegen_error **err)
{
    struct names n = {.wanted = wanted, .user = user};
    moegen_rt_error why;
    moegen_status result = MOEGEN_OK;
    moegen_rt_problem *nothing = files > 1 ? moegen_rt_problem_create() : NULL;
    n.lost = files > 1 && !nothing;
    for (; nothing && n.file < files; n.file++)
        (void)moegen_rt_safetensors_read_some(path[n.file], nothing, note_name, &n, &why);
    if (n.count)
        qsort(n.at, (size_t)n.count, sizeof *n.at, compare);
    for (int i = 1; i < n.count && !n.lost && !result; i++)
        if (strcmp(n.at[i - 1].name, n.at[i].name) == 0)
            result = error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' is in two files: %s and %s",
                               n.at[i].name, path[n.at[i - 1].file], path[n.at[i].file]);
    if (n.lost)
        result = error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    for (int i = 0; i < n.count; i++)
        free(n.at[i].name);
    free(n.at);
    moegen_rt_problem_destroy(nothing);
    return result;
}
