/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_compare.c - `moegen compare`: is one variant faster than another? From files that `bench
 * --json` wrote, or from benches in fresh processes, in turns.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stored.h"

enum { MAX_SIDES = 16, MOST_FILE = 1 << 26, PARTS = 12 };
static const double usual_budget = 180; /* seconds; of a quiet machine it takes few of them */

/* ---- of files ---- */

static moegen_status parse_seconds(void *to, const char *label, const char *text, size_t len,
                                   moegen_error **err)
{
    return results_read(to, label, text, len, false, err);
}

static moegen_status parse_roofs(void *to, const char *label, const char *text, size_t len,
                                 moegen_error **err)
{
    return results_read(to, label, text, len, true, err);
}

static int read_results(const char *path, bool of_roof, struct results *out)
{
    *out = (struct results){0};
    return json_file(path, MOST_FILE, of_roof ? parse_roofs : parse_seconds, out);
}

/* What makes two files hard to compare. */
static void note_differences(const char *a_path, const struct results *a, const char *b_path,
                             const struct results *b)
{
    if (strcmp(a->cpu, b->cpu) != 0)
        note("note: %s is of another CPU (%s) than %s (%s)", b_path, b->cpu, a_path, a->cpu);
    if (a->cold != b->cold)
        note("note: %s was measured with --cold, %s was not", a->cold ? a_path : b_path,
             a->cold ? b_path : a_path);
}

/* The first half of the files is of A, the second of B. */
static int compare_files(const struct options *o, double margin)
{
    const struct words *w = &o->operands;
    int half = w->count / 2, result = EXIT_OK;
    int parts = half >= PAIRED_LEAST ? 1 : (PARTS + half - 1) / half;
    struct text name[2] = {{0}};
    for (int i = 0; i < 2; i++) {
        text_fmt(&name[i], "%s", w->at[i * half]);
        if (half > 1)
            text_fmt(&name[i], " +%d", half - 1);
        if (name[i].lost)
            result = fail(MOEGEN_NO_MEMORY, NULL);
    }
    struct shown s = {
        .a = name[0].at, .b = name[1].at, .of_files = true, .of_roof = o->baseline != NULL};
    for (int i = 0; i < half && !result; i++) {
        struct results a = {0}, b = {0};
        const char *a_path = w->at[i], *b_path = w->at[half + i];
        if (!(result = read_results(a_path, o->baseline != NULL, &a)) &&
            !(result = read_results(b_path, o->baseline != NULL, &b))) {
            note_differences(a_path, &a, b_path, &b);
            if (o->baseline && strcmp(a.cpu, b.cpu) != 0)
                result = bad("shares of the roofs of different CPUs say nothing");
            int alone = duels_add(&s.duels, &a, &b, parts);
            if (s.duels.lost)
                result = fail(MOEGEN_NO_MEMORY, NULL);
            else if (alone && s.duels.rows)
                note("note: %d results of %s and %s are in one of them only", alone, a_path,
                     b_path);
        }
        results_free(&a);
        results_free(&b);
    }
    if (!result && !s.duels.rows)
        result = bad("%s and %s have no kernel in common", w->at[0], w->at[half]);
    if (!result)
        result = duels_judge(&s.duels, margin);
    if (!result) {
        if (parts > 1) {
            duels_doubt(&s.duels, half, parts);
            note(
                "note: less than %d processes each (a file is one): only a difference of twice the "
                "speed would be told from a busy machine",
                PAIRED_LEAST);
        }
        result = show_compared(o, &s, 1, margin);
    }
    duels_free(&s.duels);
    text_free(&name[0]);
    text_free(&name[1]);
    return result;
}

/* ---- of a spec ---- */

static void add_spec(const struct options *o, struct side *s)
{
    side_add(s, "--"); /* whatever its name begins with */
    side_add(s, "%s", o->operands.at[0]);
}

/* A side for each combination of the axes, and its name. */
static int make_sides(const struct options *o, struct axis *axes, struct side *side,
                      struct text *name, int *sides)
{
    do {
        if (*sides == MAX_SIDES)
            return bad("--vary: more than %d combinations", MAX_SIDES);
        struct side *s = &side[*sides];
        struct text *t = &name[(*sides)++];
        side_add_options(o, s);
        for (int i = 0; i < o->vary.count; i++) {
            const char *key = axes[i].key, *value = axes[i].value[axes[i].now];
            side_add(s, "--vary=%s=%s", key, value);
            text_fmt(t, "%s%s=%s", i ? " " : "", key, value);
        }
        add_spec(o, s);
        if (s->lost || t->lost)
            return fail(MOEGEN_NO_MEMORY, NULL);
    } while (next_combination(axes, o->vary.count));
    return *sides < 2 ? bad("--vary: two values at least, to compare") : EXIT_OK;
}

static int compare_sides(const struct options *o, const struct side *side, const struct text *name,
                         int sides, double margin)
{
    struct limits limits = {.seconds = o->seconds,
                            .margin = margin,
                            .pairs = o->runs < PAIRED_MOST ? (int)o->runs : PAIRED_MOST,
                            .budget = o->budget > 0 ? o->budget : usual_budget};
    struct shown shown[MAX_SIDES] = {0};
    struct duels duels[MAX_SIDES] = {0};
    int result = fresh_duels(side, sides, &limits, duels);
    for (int i = 1; i < sides; i++)
        shown[i - 1] = (struct shown){name[0].at, name[i].at, false, false, duels[i - 1]};
    if (!result)
        result = show_compared(o, shown, sides - 1, margin);
    for (int i = 0; i < sides; i++)
        duels_free(&duels[i]);
    return result;
}

static int compare_variants(const struct options *o, double margin)
{
    struct axis axes[MAX_VARY] = {0};
    struct side side[MAX_SIDES] = {0};
    struct text name[MAX_SIDES] = {0};
    int sides = 0, result = parse_axes(axes, &o->vary);
    if (!result)
        result = make_sides(o, axes, side, name, &sides);
    if (!result)
        result = compare_sides(o, side, name, sides, margin);
    for (int i = 0; i < MAX_SIDES; i++) {
        side_free(&side[i]);
        text_free(&name[i]);
    }
    return result;
}

/* The same spec by two programs. */
static int compare_programs(const struct options *o, double margin)
{
    struct side side[2] = {{.program = o->against}};
    struct text name[2] = {{0}};
    bool lost = false;
    text_fmt(&name[0], "%s", o->against);
    text_fmt(&name[1], "this moegen");
    for (int i = 0; i < 2; i++) {
        side_add_options(o, &side[i]);
        add_spec(o, &side[i]);
        lost = lost || side[i].lost || name[i].lost;
    }
    int result = lost ? fail(MOEGEN_NO_MEMORY, NULL)
                 : access(o->against, X_OK)
                     ? bad("--against: cannot run %s: %s", o->against, strerror(errno))
                     : compare_sides(o, side, name, 2, margin);
    for (int i = 0; i < 2; i++) {
        side_free(&side[i]);
        text_free(&name[i]);
    }
    return result;
}

int cmd_compare(struct options *o)
{
    double margin = o->margin;
    int count = o->operands.count;
    if (!(margin > 0 && margin <= 0.5))
        return bad("--margin: %g is not in 0..0.5: 0.02 is 2 %%", margin);
    bool is_stored = o->baseline && strcmp(o->baseline, "-") != 0;
    if (o->baseline && o->vary.count)
        return bad("--baseline compares files, and --vary runs benches");
    if (o->against && (o->baseline || o->vary.count))
        return bad("--against compares versions of moegen; %s compares something else",
                   o->baseline ? "--baseline" : "--vary");
    if (o->record && !is_stored)
        return bad("--record: into which file? --baseline=F --record");
    if (o->record && (o->json || o->plot || o->md || o->fail_below > 0))
        return bad("--record compares nothing: %s goes without it", o->json   ? "--json"
                                                                    : o->plot ? "--plot"
                                                                    : o->md   ? "--md"
                                                                              : "--fail-below");
    if (is_stored && (o->tokens || o->threads))
        return bad("--baseline=F: F says how many tokens and threads; %s would change that",
                   o->tokens ? "--T" : "--threads");
    if (is_stored)
        return count ? bad("--baseline=F benches what F lists, and takes no operand: '%s'",
                           o->operands.at[0])
                     : compare_stored(o, margin);
    if (o->against || o->vary.count) {
        if (count == 1 && strcmp(o->operands.at[0], "-") == 0)
            return bad("compare reads its spec again and again: a file, please, not -");
        if (count != 1)
            return bad("compare %s takes one spec, not %d operands",
                       o->against ? "--against" : "--vary", count);
        return o->against ? compare_programs(o, margin) : compare_variants(o, margin);
    }
    if (count < 2 || count % 2)
        return bad(
            "compare takes two files of `moegen bench --json`, or as many of A and then of B, "
            "or a spec with --vary KEY=A,B or --against=PROGRAM");
    return compare_files(o, margin);
}
