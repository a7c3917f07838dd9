/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ahead.c - kernels of plans that are to be tried, made on all CPUs before any is timed. Lua states
 * and libtcc work one at a time in a process, so that helpers are processes: each makes its share
 * into a disk cache of the search's own, where the search finds them; when the last one has ended,
 * nothing disturbs what is timed.
 */
#include <errno.h>
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
        for (int of = 0; of < s->courses; of++) {
            moegen_kernel *kernel = NULL;
            candidate_kernel(s, &c, of, &kernel, NULL);
            moegen_kernel_release(kernel);
        }
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
