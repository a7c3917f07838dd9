/* SPDX-License-Identifier: Apache-2.0 */
/* history.c - the SVG of `moegen tune --plot`: of each search a panel with a dot for every plan
 * that was measured (no panel, if none was), and the best until then as a line. */
#include <math.h>

#include "tuner.h"

enum { LEFT = 72, RIGHT = 720, HEIGHT = 220, ROOM_ABOVE = 44, ROOM_BELOW = 72 };

static void put_panel(struct page *p, const struct tuned_kernel *x)
{
    const moegen_tuning *t = x->tuning;
    struct text title = {0};
    double least = 1, most = 1, until = 1;
    for (int i = 0; i < t->moments; i++) {
        least = fmin(least, t->history[i].ratio);
        most = fmax(most, fmax(t->history[i].ratio, t->history[i].best));
        until = fmax(until, t->history[i].at);
    }
    text_fmt(&title, "%s, T = %s, %d thread%s: %s", x->name, x->tokens.at ? x->tokens.at : "",
             t->threads, t->threads == 1 ? "" : "s", x->what);
    put_title(p, title.at ? title.at : "");
    text_free(&title);
    double top = p->bottom + ROOM_ABOVE, bottom = top + HEIGHT;
    struct axis_scale time = axis_linear(0, until, LEFT, RIGHT);
    struct axis_scale speed = axis_linear(floor(10 * least) / 10, most, bottom, top);
    put_axis_x(p, &time, top, bottom, "time of the search, s");
    put_axis_y(p, &speed, LEFT, RIGHT, "speed over the planner's own");
    double before = 1, at = LEFT;
    for (int i = 0; i < t->moments; i++) {
        const struct moment *m = &t->history[i];
        double here = axis_at(&time, m->at);
        put_dot(p, here, axis_at(&speed, m->ratio), 2.5, m->ratio > m->best ? "good" : "unsure");
        put_line(p, at, axis_at(&speed, before), here, axis_at(&speed, before), "c0 line");
        if (m->best > before || m->best < before)
            put_line(p, here, axis_at(&speed, before), here, axis_at(&speed, m->best), "c0 line");
        before = m->best;
        at = here;
    }
    put_label(p, LEFT, bottom + ROOM_BELOW - PAGE_GAP, ANCHOR_START, SMALL_LETTER, "dim",
              "line: the best so far; dots: plans that were measured, green where faster than it");
    p->width = fmax(p->width, RIGHT + PAGE_GAP);
    p->bottom = bottom + ROOM_BELOW + PAGE_GAP;
}

bool history_svg(const struct tuned_kernel *x, int count, const char *details, struct text *out)
{
    static const char title[] = "Plans that were tried";
    struct page page;
    page_begin(&page, title, details, command_said());
    for (int i = 0; i < count; i++)
        if (x[i].tuning && x[i].tuning->moments)
            put_panel(&page, &x[i]);
    page_finish(&page, title, out);
    return !out->lost;
}
