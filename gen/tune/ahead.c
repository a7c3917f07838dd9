/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ahead.c - kernels of plans that are to be tried, made on all CPUs before any is timed. Lua states
 * and libtcc work one at a time in a process, so that helpers are processes: each makes its share
 * into a disk cache of the search's own, where the search finds them; when the last one has ended,
 * nothing disturbs what is timed.
 */
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tune.h"

enum { MOST_HELPERS = 64, FEW = 4 };
static const double share_of_making =
    0.4; /* of the time that is left; others are made when tried */

/* Every `step`th from number `first` on, while there is time. */
static void make_share(struct search *s, const struct turn *turn, int count, int first, int step)
{
    double until = tune_now() + share_of_making * (s->until - tune_now());
    for (int i = first; i < count && tune_now() < until; i += step) {
        struct choice c = choice_with(&s->best.choice, turn[i].knob, turn[i].value);
        moegen_kernel *kernel = NULL;
        moegen_spec spec = s->spec;
        spec.override_count = s->own + (size_t)choice_overrides(&s->space, &c, s->set + s->own);
        moegen_kernel_get(s->engine, &spec, &kernel, NULL);
        moegen_kernel_release(kernel);
    }
}

void make_ahead(struct search *s, const struct turn *turn, int count)
{
    pid_t helper[MOST_HELPERS];
    int most = moegen_rt_cpu_count() - 1, helpers = count / FEW, started = 0;
    double start = tune_now();
    if (!*moegen_engine_cache_dir(s->engine))
        return;
    helpers = helpers > most ? most : helpers;
    helpers = helpers > MOST_HELPERS ? MOST_HELPERS : helpers;
    for (; started < helpers; started++) {
        helper[started] = fork();
        if (helper[started] < 0)
            break;
        if (helper[started] == 0) {
            make_share(s, turn, count, started + 1, helpers + 1);
            _exit(0);
        }
    }
    if (started)
        make_share(s, turn, count, 0, helpers + 1);
    for (int i = 0; i < started; i++)
        while (waitpid(helper[i], NULL, 0) < 0 && errno == EINTR)
            ;
    s->making += tune_now() - start;
}

/* ---- the folder of a search's disk cache: its name says whose it is ---- */

static const char stem[] = "moegen-tune-";

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void ahead_close(const char *folder)
{
    if (*folder)
        nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* Removes the folders of searches that were killed. One that is at work where this one does not see
 * it, in another container, finds less made ahead. */
static void sweep(void)
{
    const char *place = file_temporary();
    DIR *all = opendir(place);
    for (struct dirent *x; all && (x = readdir(all));) {
        char path[AHEAD_FOLDER];
        long pid = strncmp(x->d_name, stem, sizeof stem - 1) == 0
                       ? strtol(x->d_name + sizeof stem - 1, NULL, 10)
                       : 0;
        int len = snprintf(path, sizeof path, "%s/%.50s", place, x->d_name);
        if (pid > 0 && len < (int)sizeof path && kill((pid_t)pid, 0) && errno == ESRCH)
            ahead_close(path);
    }
    if (all)
        closedir(all);
}

bool ahead_open(char folder[AHEAD_FOLDER])
{
    sweep();
    snprintf(folder, AHEAD_FOLDER, "%s/%s%ld-XXXXXX", file_temporary(), stem, (long)getpid());
    if (mkdtemp(folder))
        return true;
    *folder = '\0';
    return false;
}
