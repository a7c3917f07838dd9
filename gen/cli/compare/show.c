/* SPDX-License-Identifier: Apache-2.0 */
/* show.c - what `moegen compare` found: a table, Markdown or JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"

/* ---- tables ---- */

static void add_paired(struct table *t, const struct paired *p)
{
    table_add(t, isfinite(p->ratio) ? "%.3f" : "-", p->ratio);
    table_add(t, isfinite(p->low) ? "%.3f..%.3f" : "-", p->low, p->high);
    table_add(t, "%d", p->pairs);
    if (p->verdict == VERDICT_NOISY)
        table_add(t, "noisy: %d pairs more", p->more);
    else
        table_add(t, "%s", verdict_name(p->verdict));
}

const char *show_took(char out[32], const struct shown *s, double took)
{
    if (!s->of_roof)
        return show_seconds(out, took);
    snprintf(out, 32, "%.1f %%", 100 / took);
    return out;
}

void duel_name(const struct shown *s, const struct duel *d, struct text *out)
{
    bool differ = strcmp(d->a_variant, d->b_variant) != 0;
    text_fmt(out, "%s", d->kernel);
    if (s->of_files && differ)
        text_fmt(out, " (%s), (%s)", d->a_variant, d->b_variant);
    else if (s->of_files && *d->a_variant)
        text_fmt(out, " %s", d->a_variant);
}

static void add_rows(struct table *t, const struct shown *s)
{
    char took[32];
    for (int i = 0; i < s->duels.rows; i++) {
        const struct duel *d = &s->duels.row[i];
        struct text name = {0};
        duel_name(s, d, &name);
        table_add(t, "%s", name.at ? name.at : "");
        t->lost = t->lost || name.lost;
        text_free(&name);
        table_add(t, "%s", s->b);
        table_add(t, "%lld", (long long)d->T);
        table_add(t, "%lld", (long long)d->threads);
        table_add(t, "%s", show_took(took, s, d->a_seconds));
        table_add(t, "%s", show_took(took, s, d->b_seconds));
        add_paired(t, &d->paired);
    }
    if (s->duels.rows < 2)
        return;
    table_add(t, "all, geometric mean");
    table_add(t, "%s", s->b);
    for (int i = 0; i < 4; i++)
        table_add(t, "-");
    add_paired(t, &s->duels.overall);
}

/* With every bar of a cell as &#124;, which would end it. */
static void print_markdown(struct table *t)
{
    for (int i = 0; i < t->cells && !t->lost; i++) {
        bool last = i % t->columns == t->columns - 1;
        printf("| ");
        for (const char *s = t->cell[i].at ? t->cell[i].at : ""; *s; s++)
            if (*s == '|')
                printf("&#124;");
            else
                putchar(*s);
        printf("%s", last ? " |\n" : " ");
        for (int k = 0; last && i < t->columns && k < t->columns; k++)
            printf(k < t->columns - 1 ? "|---" : "|---|\n");
    }
    if (t->lost)
        lost();
    table_free(t);
}

void compared_table(const struct shown *s, int count, struct table *t)
{
    bool of_roof = count > 0 && s->of_roof;
    const char *const head[] = {"kernel",
                                "B",
                                "T",
                                "threads",
                                of_roof ? "A, of roof" : "A takes",
                                of_roof ? "B, of roof" : "B takes",
                                "ratio",
                                "95 %",
                                "pairs",
                                "B is"};
    *t = (struct table){.columns = sizeof head / sizeof *head};
    for (int i = 0; i < t->columns; i++)
        table_add(t, "%s", head[i]);
    for (int i = 0; i < count; i++)
        add_rows(t, &s[i]);
}

static void print_tables(const struct options *o, const struct shown *s, int count, double margin)
{
    struct table t;
    compared_table(s, count, &t);
    printf("A: %s. Ratios are B's speed over A's, differences within %g %% count as the same.%s",
           s->a, 100 * margin, o->md ? "\n\n" : "\n");
    if (o->md)
        print_markdown(&t);
    else
        table_print(&t, stdout);
}

/* ---- JSON ---- */

static void pair(struct text *t, const char *key, double value)
{
    text_fmt(t, ", \"%s\": ", key);
    json_number(t, value);
}

static void pair_text(struct text *t, const char *key, const char *value, bool first)
{
    text_fmt(t, "%s\"%s\": ", first ? "" : ", ", key);
    json_string(t, value);
}

static void pair_list(struct text *t, const char *key, const double *at, int count)
{
    text_fmt(t, ", \"%s\": [", key);
    for (int i = 0; i < count; i++) {
        text_fmt(t, "%s", i ? ", " : "");
        json_number(t, at[i]);
    }
    text_fmt(t, "]");
}

static void pair_paired(struct text *t, const struct paired *p)
{
    pair(t, "ratio", p->ratio);
    pair(t, "low", p->low);
    pair(t, "high", p->high);
    pair(t, "pairs", p->pairs);
    pair_text(t, "verdict", verdict_name(p->verdict), false);
    pair(t, "more_pairs", p->more);
}

static void add_duels(struct text *t, const struct shown *s)
{
    text_fmt(t, "    {");
    pair_text(t, "b", s->b, true);
    text_fmt(t, ", \"kernels\": [");
    for (int i = 0; i < s->duels.rows; i++) {
        const struct duel *d = &s->duels.row[i];
        text_fmt(t, "%s\n      {", i ? "," : "");
        pair_text(t, "kernel", d->kernel, true);
        pair_text(t, "a_variant", d->a_variant, false);
        pair_text(t, "b_variant", d->b_variant, false);
        pair(t, "T", (double)d->T);
        pair(t, "threads", (double)d->threads);
        pair(t, "a_s", d->a_seconds);
        pair(t, "b_s", d->b_seconds);
        pair_paired(t, &d->paired);
        pair_list(t, "a_pairs_s", d->a, d->pairs);
        pair_list(t, "b_pairs_s", d->b, d->pairs);
        text_fmt(t, "}");
    }
    text_fmt(t, "],\n      \"overall\": {\"kernels\": %d", s->duels.rows);
    pair_paired(t, &s->duels.overall);
    text_fmt(t, "}}");
}

static int write_json(const struct options *o, const struct shown *s, int count, double margin)
{
    struct text t = {0};
    text_fmt(&t, "{\n  ");
    pair_text(&t, "a", s->a, true);
    pair_text(&t, "cpu", s->duels.cpu ? s->duels.cpu : "", false);
    pair_text(&t, "command", command_said(), false);
    text_fmt(&t, ", \"of_files\": %s, \"of_roof\": %s", s->of_files ? "true" : "false",
             s->of_roof ? "true" : "false");
    pair(&t, "margin", margin);
    text_fmt(&t, ", \"comparisons\": [\n");
    for (int i = 0; i < count; i++) {
        add_duels(&t, &s[i]);
        text_fmt(&t, i < count - 1 ? ",\n" : "\n");
    }
    text_fmt(&t, "  ]\n}\n");
    if (strcmp(o->json, "-") == 0)
        return put_text(&t);
    int result = write_text(o->json, &t);
    text_free(&t);
    return result;
}

/* ---- all ---- */

/* Is it slower than may be, and surely slower? */
static bool fails(const struct options *o, const struct paired *p, const char *what, const char *b)
{
    if (p->verdict != VERDICT_SLOWER || !(p->ratio < o->fail_below))
        return false;
    bad("%s, %s: ratio %.3f is below %g", what, b, p->ratio, o->fail_below);
    return true;
}

static const char *plot_title(const struct options *o, char out[200])
{
    const char *first = o->operands.count ? o->operands.at[0] : o->baseline,
               *slash = strrchr(first, '/');
    snprintf(out, 200, "moegen compare: %.160s", slash ? slash + 1 : first);
    return out;
}

int show_compared(const struct options *o, const struct shown *s, int count, double margin)
{
    bool failed = false;
    int result = EXIT_OK;
    char title[200];
    if (o->json)
        result = write_json(o, s, count, margin);
    if (!o->json || strcmp(o->json, "-") != 0)
        print_tables(o, s, count, margin);
    if (o->plot && !result) {
        struct text svg = {0};
        result = compared_svg(s, count, margin, plot_title(o, title), command_said(), &svg)
                     ? write_text(o->plot, &svg)
                     : fail(MOEGEN_NO_MEMORY, NULL);
        text_free(&svg);
    }
    for (int i = 0; i < count; i++) {
        const struct duels *d = &s[i].duels;
        for (int k = 0; k < d->rows; k++)
            failed |= fails(o, &d->row[k].paired, d->row[k].kernel, s[i].b);
        if (d->rows > 1)
            failed |= fails(o, &d->overall, "geometric mean", s[i].b);
    }
    return result ? result : failed ? EXIT_FAILED : EXIT_OK;
}
