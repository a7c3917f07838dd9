/* SPDX-License-Identifier: Apache-2.0 */
/* folder.c - folders for a while: their names say which process they are of, so that those of
 * processes that were killed can be removed by the next one. */
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base.h"

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void folder_close(const char *folder)
{
    if (*folder)
        nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* One that is at work where this one does not see it, in another container, finds its folder gone.
 */
static void sweep(const char *stem)
{
    const char *place = file_temporary();
    size_t len = strlen(stem);
    DIR *all = opendir(place);
    for (struct dirent *x; all && (x = readdir(all));) {
        char path[FOLDER_NAME];
        long pid = strncmp(x->d_name, stem, len) == 0 ? strtol(x->d_name + len, NULL, 10) : 0;
        int n = snprintf(path, sizeof path, "%s/%.50s", place, x->d_name);
        if (pid > 0 && n < (int)sizeof path && kill((pid_t)pid, 0) && errno == ESRCH)
            folder_close(path);
    }
    if (all)
        closedir(all);
}

bool folder_open(const char *what, char folder[FOLDER_NAME])
{
    char stem[32];
    snprintf(stem, sizeof stem, "moegen-%.16s-", what);
    sweep(stem);
    snprintf(folder, FOLDER_NAME, "%s/%s%ld-XXXXXX", file_temporary(), stem, (long)getpid());
    if (mkdtemp(folder))
        return true;
    *folder = '\0';
    return false;
}
