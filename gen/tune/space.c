/* SPDX-License-Identifier: Apache-2.0 */
/* space.c - the keys of a plan that may be tuned, and choices of their values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tune.h"

enum { PREFIX = sizeof "plan." - 1 };

/* Adds a copy of a value; its number, or -1. */
static int add_value(struct knob *k, const char *value, size_t len)
{
    if (k->values == MAX_VALUES || !(k->value[k->values] = strndup(value, len)))
        return -1;
    return k->values++;
}

static bool take(struct space *s, const struct listing_item *x)
{
    char **text = strcmp(x->name, "spec") == 0     ? &s->spec
                  : strcmp(x->name, "target") == 0 ? &s->target
                                                   : NULL;
    if (text)
        return (*text = strdup(x->text)) != NULL;
    if (s->knobs == MAX_KNOBS)
        return true;
    struct knob *k = &s->knob[s->knobs++];
    *k = (struct knob){.key = strdup(x->name)};
    for (const char *at = x->text; k->key && *at && k->values < MAX_VALUES;) {
        size_t len = strcspn(at, " ");
        if (add_value(k, at, len) < 0)
            return false;
        at += len + strspn(at + len, " ");
    }
    return k->key != NULL;
}

moegen_status space_read(struct space *s, moegen_engine *engine, const moegen_spec *spec,
                         moegen_error **err)
{
    struct ask a;
    struct listing items = {0};
    *s = (struct space){0};
    moegen_status status = ask_open(&a, engine, spec, "jit", err);
    if (!status)
        status = ask_space(&a, engine, &items, err);
    for (size_t i = 0; i < items.count && !status; i++)
        if (!take(s, &items.item[i]))
            status = error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    listing_free(&items);
    ask_close(&a);
    return status;
}

int space_plans(const struct space *s)
{
    int count = 0;
    for (int k = 0; k < s->knobs; k++)
        count += s->knob[k].values;
    return count;
}

bool space_same(const struct space *a, const struct space *b)
{
    bool same = a->knobs == b->knobs;
    for (int i = 0; i < a->knobs && same; i++) {
        const struct knob *x = &a->knob[i], *y = &b->knob[i];
        same = strcmp(x->key, y->key) == 0 && x->values == y->values;
        for (int v = 0; v < x->values && same; v++)
            same = strcmp(x->value[v], y->value[v]) == 0;
    }
    return same;
}

void space_free(struct space *s)
{
    for (int i = 0; i < s->knobs; i++) {
        free(s->knob[i].key);
        for (int v = 0; v < s->knob[i].values; v++)
            free(s->knob[i].value[v]);
    }
    free(s->spec);
    free(s->target);
    *s = (struct space){0};
}

/* ---- choices ---- */

struct choice choice_none(void)
{
    struct choice c;
    memset(c.at, -1, sizeof c.at);
    return c;
}

struct choice choice_with(const struct choice *best, int knob, int value)
{
    struct choice c = *best;
    c.at[knob] = (signed char)value;
    return c;
}

bool choice_is_none(const struct choice *c)
{
    for (int i = 0; i < MAX_KNOBS; i++)
        if (c->at[i] >= 0)
            return false;
    return true;
}

int choice_overrides(const struct space *s, const struct choice *c, moegen_override *out)
{
    int count = 0;
    for (int i = 0; i < s->knobs; i++)
        if (c->at[i] >= 0)
            out[count++] = (moegen_override){s->knob[i].key, s->knob[i].value[c->at[i]]};
    return count;
}

void choice_text(const struct space *s, const struct choice *c, struct text *out)
{
    moegen_override set[MAX_KNOBS];
    int count = choice_overrides(s, c, set);
    text_add(out, "", 0);
    for (int i = 0; i < count; i++)
        text_fmt(out, "%s%s=%s", i ? " " : "", set[i].key, set[i].value);
}

/* Length of the part's name in "plan.experts.mc"; 0: none. */
static size_t part_of(const char *key)
{
    const char *name = key + PREFIX, *dot = strchr(name, '.');
    return dot ? (size_t)(dot - name) : 0;
}

void choice_yaml(const struct space *s, const struct choice *c, struct text *out)
{
    moegen_override set[MAX_KNOBS];
    int count = choice_overrides(s, c, set);
    const char *before = NULL; /* key of the part that is open; keys of a part follow each other */
    text_fmt(out, "{");
    for (int i = 0; i < count; i++) {
        const char *name = set[i].key + PREFIX;
        size_t part = part_of(set[i].key);
        bool same = before && part == part_of(before) && memcmp(name, before + PREFIX, part) == 0;
        if (before && !same)
            text_fmt(out, "}");
        if (i)
            text_fmt(out, ", ");
        if (part && !same)
            text_fmt(out, "%.*s: {", (int)part, name);
        text_fmt(out, "%s: %s", part ? name + part + 1 : name, set[i].value);
        before = part ? set[i].key : NULL;
    }
    text_fmt(out, "%s}", before ? "}" : "");
}

int knob_farther(struct knob *k, int value)
{
    char *end, text[24];
    long at = strtol(k->value[value], &end, 10), near = strtol(k->value[0], NULL, 10) / 2;
    if (*end || end == k->value[value] || at < 1 || near < 1)
        return -1;
    snprintf(text, sizeof text, "%ld", at > near ? 2 * at : at / 2);
    for (int i = 0; i < k->values; i++)
        if (strcmp(k->value[i], text) == 0)
            return -1;
    return add_value(k, text, strlen(text));
}
