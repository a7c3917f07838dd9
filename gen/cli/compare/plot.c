/* SPDX-License-Identifier: Apache-2.0 */
/* plot.c - the SVG of `moegen compare --plot`: a bar for each kernel from 1 to its ratio, with the
 * interval, in the verdict's colour. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"

static const char *const styles[] = {
    [VERDICT_NOISY] = "unsure",
    [VERDICT_SAME] = "same",
    [VERDICT_FASTER] = "good",
    [VERDICT_SLOWER] = "poor",
};

static void add_bar(struct bars *b, const struct paired *p, const char *label, const char *detail)
{
    struct bar_row *r = isfinite(p->ratio) ? bars_add(b) : NULL;
    if (!r)
        return;
    r->value = p->ratio;
    r->low = p->low;
    r->high = p->high;
    r->style = styles[p->verdict];
    text_fmt(&r->label, "%s", label);
    text_fmt(&r->detail, "%s", detail);
    text_fmt(&r->column[0], "%.3f", p->ratio);
    text_fmt(&r->column[1], "%s", verdict_name(p->verdict));
    b->lost = b->lost || r->label.lost || r->detail.lost || r->column[0].lost || r->column[1].lost;
}

static void add_bars(struct bars *b, const struct shown *s)
{
    char detail[160], a_time[32], b_time[32], pairs[32];
    for (int i = 0; i < s->duels.rows; i++) {
        const struct duel *d = &s->duels.row[i];
        struct text label = {0};
        duel_name(s, d, &label);
        snprintf(detail, sizeof detail, "T = %lld, %lld thread%s, %s to %s, %d pairs",
                 (long long)d->T, (long long)d->threads, d->threads == 1 ? "" : "s",
                 show_took(a_time, s, d->a_seconds), show_took(b_time, s, d->b_seconds),
                 d->paired.pairs);
        if (!s->of_files)
            text_fmt(&label, "  %s", s->b);
        add_bar(b, &d->paired, label.at ? label.at : "", detail);
        b->lost = b->lost || label.lost;
        text_free(&label);
    }
    snprintf(pairs, sizeof pairs, "%d pairs", s->duels.overall.pairs);
    snprintf(detail, sizeof detail, "geometric mean of all%s%.100s", s->of_files ? "" : ", ",
             s->of_files ? "" : s->b);
    if (s->duels.rows > 1)
        add_bar(b, &s->duels.overall, detail, pairs);
}

bool compared_svg(const struct shown *s, int count, double margin, const char *title,
                  const char *command, struct text *out)
{
    struct text details = {0};
    struct page page;
    struct bars bars = {.title = "Speed of B over that of A",
                        .axis = "speed of B over that of A, ratio",
                        .head = {"ratio", "B is"},
                        .legend = {"95 % interval", NULL},
                        .from = 1,
                        .margin = margin,
                        .nothing = "no kernel was compared"};
    for (int i = 0; i < count; i++)
        add_bars(&bars, &s[i]);
    if (count && s->duels.cpu && *s->duels.cpu)
        text_fmt(&details, "%s; ", s->duels.cpu);
    text_fmt(&details,
             "A: %s%s%s; differences within %g %% (the band) count as the same; moegen %d.%d.%d",
             s->a, s->of_files ? ", B: " : "", s->of_files ? s->b : "", 100 * margin,
             MOEGEN_VERSION_MAJOR, MOEGEN_VERSION_MINOR, MOEGEN_VERSION_PATCH);
    page_begin(&page, title, details.at ? details.at : "", command);
    put_bars(&page, &bars);
    page_finish(&page, title, out);
    bool ok = !bars.lost && !details.lost && !out->lost;
    bars_free(&bars);
    text_free(&details);
    return ok;
}
