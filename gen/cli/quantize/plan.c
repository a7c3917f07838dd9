/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - which tensors of a file are converted, and where the scales of codes are. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "quantize.h"

bool is_values(moegen_rt_dtype dtype)
{
    const moegen_rt_dtype_facts *facts = moegen_rt_dtype_of(dtype);
    return facts->digits && (facts->bytes == 2 || facts->bytes == 4);
}

/* Does `name` end like that? Then *stem is the length without it. */
static bool ends(const char *name, const char *ending, size_t *stem)
{
    size_t n = strlen(name), m = strlen(ending);
    *stem = n - m;
    return n > m && strcmp(name + n - m, ending) == 0;
}

void scale_name(struct text *to, const char *name, const char *ending)
{
    size_t stem;
    if (!ends(name, "_weight", &stem))
        stem = strlen(name);
    text_fmt(to, "%.*s%s", (int)stem, name, ending);
}

/* ---- which ---- */

/* The pattern that asks for it; NULL if none does. */
static const char *asked(const struct plan *p, const char *name)
{
    for (int i = 0; i < p->only->count; i++)
        if (fnmatch(p->only->at[i], name, 0) == 0)
            return p->only->at[i];
    return NULL;
}

static int complain(const struct plan *p, const char *name, struct text *why)
{
    int result = why->lost ? fail(MOEGEN_NO_MEMORY, NULL)
                           : bad("%s: tensor '%s' %s", p->path, name, why->at ? why->at : "");
    text_free(why);
    return result;
}

/* ---- to codes ---- */

/* What may do where a row is not whole groups. */
static void say_what_may_do(const struct store *s, struct text *why)
{
    const char *comma = "";
    if (!s->group || s->in % s->group == 0)
        return;
    text_fmt(why, ": another --axis");
    for (const int *g = s->format->groups; *g; g++)
        if (s->in % *g == 0)
            text_fmt(why, ", --group %d", *g);
    text_fmt(why, " or a format without groups (");
    for (int i = 0; rt_format_at(i); i++)
        if (!rt_format_grouped(rt_format_at(i))) {
            text_fmt(why, "%s%s", comma, rt_format_at(i)->name);
            comma = ", ";
        }
    text_fmt(why, ") may do; --only leaves tensors as they are");
}

static int to_codes(struct plan *p, struct item *t)
{
    const char *name = t->from->name;
    struct text why = {0}, scale = {0};
    if (!is_values(t->from->dtype)) {
        text_fmt(&why, "is %s: only f32, bf16 and f16 become %s",
                 moegen_rt_dtype_of(t->from->dtype)->name, p->wish.format->name);
        return complain(p, name, &why);
    }
    if (!store_open(&t->store, &p->wish, t->from->rank, t->from->shape, &why)) {
        say_what_may_do(&t->store, &why);
        return complain(p, name, &why);
    }
    static const char *const endings[] = {"_scale", "_scale_2"};
    for (int i = 0; i < (p->wish.format->second ? 2 : 1); i++) {
        scale_name(&scale, name, endings[i]);
        p->lost = p->lost || scale.lost;
        if (!scale.lost && moegen_rt_problem_tensor(p->in, scale.at)) {
            text_fmt(&why, "would have scales of the name '%s', which is another tensor's",
                     scale.at);
            text_free(&scale);
            return complain(p, name, &why);
        }
        text_free(&scale);
    }
    return EXIT_OK;
}

/* ---- from codes ---- */

/* Where scales are, by the names of codes: ours, and those of published checkpoints. */
static const struct {
    const char *codes, *scales, *values;
} names[] = {
    {"_weight", "_scale", "_weight"},
    {"_blocks", "_scales", ""},
    {"", "_scale", ""},
    {"", "_scale_inv", ""},
};

static bool find_scales(struct plan *p, struct item *t)
{
    for (size_t i = 0; i < sizeof names / sizeof *names && !t->scales; i++) {
        size_t stem;
        struct text name = {0};
        if (!ends(t->from->name, names[i].codes, &stem))
            continue;
        text_fmt(&name, "%.*s%s", (int)stem, t->from->name, names[i].scales);
        if (!name.lost)
            t->scales = moegen_rt_problem_tensor(p->in, name.at);
        text_fmt(&name, "_2");
        if (!name.lost && t->scales)
            t->second = moegen_rt_problem_tensor(p->in, name.at);
        p->lost = p->lost || name.lost;
        text_free(&name);
        t->keep = stem + strlen(names[i].values);
    }
    return t->scales != NULL;
}

static bool same_shape(const moegen_rt_tensor *t, int rank, const int64_t *shape)
{
    return t->rank == rank && memcmp(t->shape, shape, (size_t)rank * sizeof *shape) == 0;
}

/* Are a format's scales, or second scales, in a tensor of that dtype? */
static bool is_scales(const struct rt_coding *c, moegen_rt_dtype dtype)
{
    return dtype == c->dtype || (is_values(c->dtype) && is_values(dtype));
}

static void say_tensor(struct text *why, const char *what, const moegen_rt_tensor *t,
                       const char *dtype, int rank, const int64_t *shape)
{
    text_fmt(why, "%s: %s ", what, moegen_rt_dtype_of(t->dtype)->name);
    shape_text(why, t->rank, t->shape);
    text_fmt(why, ", expected %s ", dtype);
    shape_text(why, rank, shape);
}

/* Codes, scales and second scales as the store has them? Of scales the number counts. */
static bool fits(const struct item *t, struct text *why)
{
    const struct store *s = &t->store;
    const struct rt_format *f = s->format;
    int64_t shape[8];
    int rank = store_codes_shape(s, shape);
    if (t->from->dtype != f->codes || !same_shape(t->from, rank, shape)) {
        say_tensor(why, "are no such codes", t->from, moegen_rt_dtype_of(f->codes)->name, rank,
                   shape);
        return false;
    }
    rank = store_scales_shape(s, shape);
    if (!is_scales(f->scale, t->scales->dtype) ||
        moegen_rt_tensor_count(t->scales) != s->count * s->per) {
        say_tensor(why, "has other scales", t->scales, moegen_rt_dtype_of(f->scale->dtype)->name,
                   rank, shape);
        return false;
    }
    rank = store_second_shape(s, shape);
    if (f->second && !t->second) {
        text_fmt(why, "has no second scales, '%s_2'", t->scales->name);
        return false;
    }
    if (f->second && (t->second->dtype != MOEGEN_RT_F32 ||
                      moegen_rt_tensor_count(t->second) != s->count * s->per_second)) {
        say_tensor(why, "has other second scales", t->second, "f32", rank, shape);
        return false;
    }
    return true;
}

/* The values' shape from the codes', by --from; scales of two parts where there are twice as many
 * as matrices. */
static bool shape_of_codes(const struct plan *p, struct item *t, struct text *why)
{
    struct wish w = p->wish;
    const struct rt_format *f = w.format;
    int64_t shape[8];
    int rank = t->from->rank;
    memcpy(shape, t->from->shape, sizeof shape);
    if (rt_format_grouped(f)) {
        int64_t in = 1;
        for (int last = f->blocked ? 2 : 1; last > 0 && rank > 0; last--)
            if (__builtin_mul_overflow(in, shape[--rank], &in))
                in = 0;
        shape[rank++] = in * 8 / f->element->bits;
        w.axis = -1;
    }
    if (!store_open(&t->store, &w, rank, shape, why))
        return false;
    int64_t given = f->second && t->second ? moegen_rt_tensor_count(t->second)
                                           : moegen_rt_tensor_count(t->scales);
    if ((w.share == RT_STATIC || f->second) && w.parts == WHOLE && given == 2 * t->store.count) {
        w.parts = SPLIT;
        return store_open(&t->store, &w, rank, shape, why);
    }
    return true;
}

static int from_codes(struct plan *p, struct item *t)
{
    const char *name = t->from->name;
    const char *line = moegen_rt_problem_text(p->metadata, name, "");
    struct text why = {0};
    bool known = strncmp(line, "moegen ", 7) == 0;
    if (known && !store_parse(&t->store, line)) {
        text_fmt(&why, "has metadata that says nothing of a format: ");
        json_string(&why, line); /* as it stands in the file */
    } else if (!known && !p->wish.format)
        text_fmt(&why, "is of no format that the file's metadata names; --from FORMAT says it");
    else if (!find_scales(p, t))
        text_fmt(&why, "has no tensor of scales beside it");
    else if (known || shape_of_codes(p, t, &why))
        (void)fits(t, &why);
    if (p->lost)
        text_lose(&why);
    return why.at || why.lost ? complain(p, name, &why) : EXIT_OK;
}

/* ---- all ---- */

/* What is converted where nothing is asked for by name. */
static bool by_itself(struct plan *p, const moegen_rt_tensor *t)
{
    struct item probe = {.from = t};
    if (!p->back)
        return is_values(t->dtype) && t->rank >= 2;
    if (strncmp(moegen_rt_problem_text(p->metadata, t->name, ""), "moegen ", 7) == 0)
        return true;
    return p->wish.format && t->dtype == p->wish.format->codes && find_scales(p, &probe);
}

static struct item *item_of(const struct plan *p, const moegen_rt_tensor *tensor)
{
    for (size_t i = 0; tensor && i < p->items; i++)
        if (p->item[i].from == tensor)
            return &p->item[i];
    return NULL;
}

static int check_patterns(const struct plan *p)
{
    int result = EXIT_OK;
    for (int i = 0; i < p->only->count; i++) {
        size_t k = 0;
        while (k < p->items && fnmatch(p->only->at[i], p->item[k].from->name, 0) != 0)
            k++;
        if (k == p->items)
            result = bad("--only %s: %s has no tensor of such a name", p->only->at[i], p->path);
    }
    if (!result && !p->chosen)
        result = bad(!p->back ? "%s: no tensor of f32, bf16 or f16 is a matrix"
                     : p->wish.format
                         ? "%s: no tensor has codes of the format of --from, and scales beside it"
                         : "%s: no tensor is of a format that the metadata names; --from FORMAT "
                           "says it",
                     p->path);
    return result;
}

int plan_make(struct plan *p)
{
    int result = EXIT_OK;
    while (moegen_rt_problem_at(p->in, p->items))
        p->items++;
    p->item = calloc(p->items + 1, sizeof *p->item);
    if (!p->item)
        return fail(MOEGEN_NO_MEMORY, NULL);
    for (size_t i = 0; i < p->items; i++) {
        struct item *t = &p->item[i];
        t->from = moegen_rt_problem_at(p->in, i);
        t->keep = strlen(t->from->name);
        t->chosen = p->only->count ? asked(p, t->from->name) != NULL : by_itself(p, t->from);
        p->chosen += t->chosen;
    }
    for (size_t i = 0; i < p->items; i++) {
        struct item *t = &p->item[i];
        int one = !t->chosen ? EXIT_OK : p->back ? from_codes(p, t) : to_codes(p, t);
        result = result ? result : one;
        struct item *scales = item_of(p, t->scales), *second = item_of(p, t->second);
        if (scales)
            scales->dropped = true;
        if (second && t->store.per_second)
            second->dropped = true;
    }
    if (!result && p->lost)
        return fail(MOEGEN_NO_MEMORY, NULL);
    int patterns = check_patterns(p);
    return result ? result : patterns;
}
