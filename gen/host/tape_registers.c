/* SPDX-License-Identifier: Apache-2.0 */
/* tape_registers.c - registers for the values on a tape: linear scan, as
 * gen/lua/vector/regalloc.lua says it of programs that are read. */
#include <lauxlib.h>
#include <lua.h>

#include "tape.h"

/* Free registers, the last of which goes next; `low`: how many were free at least. */
struct free_list {
    int reg[64], n, low;
};

/* Values by the item that uses them last, in the order in which they got their registers. */
struct ending {
    int first, last; /* value + 1; 0: none */
};

struct scan {
    struct tape *t;
    struct free_list file[FILES];
    struct ending *ending;
};

static void put_back(struct free_list *f, int reg)
{
    f->reg[f->n++] = reg;
}

static bool take(struct free_list *f, struct value *v)
{
    if (!f->n)
        return false;
    v->reg = (int16_t)f->reg[--f->n];
    if (f->n < f->low)
        f->low = f->n;
    return true;
}

static void ends(struct scan *s, int v)
{
    struct ending *e = &s->ending[s->t->value[v].last];
    if (e->last)
        s->t->value[e->last - 1].next = v + 1;
    else
        e->first = v + 1;
    e->last = v + 1;
    s->t->value[v].next = 0;
}

static void die(struct scan *s, int item)
{
    for (int i = s->ending[item].first; i;) {
        const struct value *v = &s->t->value[i - 1];
        put_back(&s->file[v->file], v->reg);
        i = v->next;
    }
}

static void fill_files(struct scan *s)
{
    for (int f = 0; f < FILES; f++) {
        struct free_list *file = &s->file[f];
        int n = f == GENERAL ? 0 : s->t->registers[f];
        for (int i = n - 1; i >= s->t->arch->first[f]; i--)
            put_back(file, i);
        file->low = file->n;
    }
    for (int i = s->t->arch->scratches - 1; i >= 0; i--)
        put_back(&s->file[GENERAL], s->t->arch->scratch[i]);
}

/* The first ones arrive in registers, the others are loaded from the stack. */
static const char *place_params(struct scan *s)
{
    struct tape *t = s->t;
    const struct arch *a = t->arch;
    for (int i = a->arguments - 1; i >= 0; i--) {
        struct value *v = i < t->params ? &t->value[t->param[i]] : NULL;
        if (v && v->last > 0) {
            v->reg = (int16_t)a->argument[i];
            ends(s, t->param[i]);
        } else {
            put_back(&s->file[GENERAL], a->argument[i]);
        }
    }
    for (int i = a->arguments; i < t->params; i++) {
        struct value *v = &t->value[t->param[i]];
        if (v->last == 0 || v->stays)
            continue;
        if (!take(&s->file[GENERAL], v))
            return "more addresses than general registers";
        ends(s, t->param[i]);
    }
    return NULL;
}

static const char *place_constants(struct scan *s)
{
    for (int i = 0; i < s->t->hoists; i++) {
        int v = s->t->hoisted[i].arg[0];
        if (!take(&s->file[VECTOR], &s->t->value[v]))
            return "more constants than vector registers";
        ends(s, v);
    }
    return NULL;
}

/* Registers for what the program defines, in order; the file that has too few, or -1. */
static int place_values(struct scan *s)
{
    struct tape *t = s->t;
    for (int i = 0, at = 1; i < t->values; i++) {
        struct value *v = &t->value[i];
        if (v->def <= 0)
            continue;
        for (; at <= v->def; at++)
            die(s, at);
        if (!take(&s->file[v->file], v))
            return v->file;
        if (v->last > v->def)
            ends(s, i);
        else
            put_back(&s->file[v->file], v->reg);
    }
    return -1;
}

static void choose_saved(struct tape *t)
{
    const struct arch *a = t->arch;
    bool used[MAX_GENERAL] = {false};
    for (int i = 0; i < t->values; i++)
        if (t->value[i].file == GENERAL && t->value[i].reg >= 0)
            used[t->value[i].reg] = true;
    for (int i = 0; i < a->scratches; i++)
        if (used[a->scratch[i]] && a->must_save[a->scratch[i]])
            t->saved[t->saves++] = a->scratch[i];
}

bool tape_registers(lua_State *L, struct tape *t, const char *name)
{
    static const char letters[] = "vktr";
    struct scan s = {.t = t, .ending = tape_room(L, (size_t)t->items, sizeof *s.ending)};
    fill_files(&s);
    const char *why = place_params(&s);
    if (!why)
        why = place_constants(&s);
    s.file[VECTOR].low = s.file[VECTOR].n;
    if (why) {
        lua_pushfstring(L, "%s has %s", name, why);
        return false;
    }
    int full = place_values(&s);
    if (full >= 0) {
        lua_pushfstring(L, "%s needs more than %d %c registers", name, t->registers[full],
                        letters[full]);
        return false;
    }
    t->peak = t->registers[VECTOR] - s.file[VECTOR].low;
    choose_saved(t);
    return true;
}
