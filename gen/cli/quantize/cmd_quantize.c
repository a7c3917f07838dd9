/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_quantize.c - `moegen quantize`: the tensors of a file to codes and scales, or back. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "quantize.h"

/* ---- options ---- */

/* "one of a, b" of names that `at` gives until NULL. */
static void names_of(struct text *to, const char *(*at)(int i))
{
    for (int i = 0; at(i); i++)
        text_fmt(to, "%s%s", i ? ", " : "", at(i));
}

static const char *format_name(int i)
{
    return rt_format_at(i) ? rt_format_at(i)->name : NULL;
}

static int no_format(const char *option, const char *word, const char *others)
{
    struct text all = {0};
    names_of(&all, format_name);
    int result = bad("%s: '%s' is not one of %s%s", option, word, all.at ? all.at : "", others);
    text_free(&all);
    return result;
}

static int share_option(const struct options *o, struct wish *w)
{
    struct text all = {0};
    w->share = rt_format_share(w->format, o->scale);
    if (w->share != RT_SHARES)
        return EXIT_OK;
    for (const enum rt_share *s = w->format->shares; *s != RT_SHARES; s++)
        text_fmt(&all, "%s%s", all.len ? ", " : "", rt_sharings[*s].name);
    int result = bad("--scale: '%s' is not one of those of %s: %s", o->scale, w->format->name,
                     all.at ? all.at : "");
    text_free(&all);
    return result;
}

static int group_option(const struct options *o, struct wish *w)
{
    const int *g = w->format->groups;
    w->group = o->group;
    if (!o->group)
        return EXIT_OK;
    for (int i = 0; i < 3 && g[i]; i++)
        if (g[i] == o->group)
            return EXIT_OK;
    if (!g[0])
        return bad("--group: %s has no groups", w->format->name);
    return g[1] ? bad("--group: %" PRId64 " is not %d or %d, the groups of %s", o->group, g[0],
                      g[1], w->format->name)
                : bad("--group: %" PRId64 " is not %d, the group of %s", o->group, g[0],
                      w->format->name);
}

static int rule_option(const struct options *o, struct wish *w)
{
    const char *rule = o->scale_rule;
    w->rule = rule && strcmp(rule, "wide") == 0 ? RT_WIDE : RT_OCP;
    if (rule && strcmp(rule, "wide") != 0 && strcmp(rule, "ocp") != 0)
        return bad("--scale-rule: '%s' is not one of ocp, wide", rule);
    if (rule && !rt_format_has_rule(w->format))
        return bad("--scale-rule: the scales of %s are not powers of two", w->format->name);
    return EXIT_OK;
}

static int parts_option(const struct options *o, struct wish *w)
{
    if (!o->gate_up)
        return EXIT_OK;
    for (w->parts = SPLIT; w->parts < PARTS; w->parts++)
        if (strcmp(o->gate_up, parts_name(w->parts)) == 0)
            return EXIT_OK;
    return bad("--gate-up: '%s' is not one of split, interleaved", o->gate_up);
}

/* What all options say together. */
static int options_plan(const struct options *o, struct plan *p)
{
    if (o->operands.count != 1 || !o->out || !o->to)
        return bad("quantize takes one tensor file, --to FORMAT and --out FILE (safetensors)");
    p->path = o->operands.at[0];
    p->only = &o->only;
    p->wish.axis = o->axis > 8 ? 8 : (int)o->axis;
    p->back = moegen_rt_dtype_find(o->to, &p->to) && is_values(p->to);
    const char *format = p->back ? o->from : o->to;
    if (o->from && !p->back)
        return bad("--from is for --to f32, bf16 or f16");
    if (!format)
        return EXIT_OK;
    p->wish.format = rt_format_find(format);
    if (!p->wish.format)
        return no_format(p->back ? "--from" : "--to", format, p->back ? "" : ", f32, bf16, f16");
    int result = share_option(o, &p->wish);
    result = result ? result : group_option(o, &p->wish);
    result = result ? result : rule_option(o, &p->wish);
    return result ? result : parts_option(o, &p->wish);
}

/* ---- the work ---- */

/* What is written: tensors of the file that was read, and those that are made. */
struct output {
    moegen_rt_tensor *at; /* in the file's order; data NULL: goes to the file while it is made */
    size_t count;
    moegen_rt_problem *made;
    double before, after; /* bytes of what is converted */
    int64_t nans;
};

/* One more, with memory of its own or without; false after a complaint. */
static bool make(struct output *to, struct text *name, moegen_rt_dtype dtype, int rank,
                 const int64_t *shape, bool in_memory)
{
    static char nowhere;
    moegen_rt_tensor *t = NULL;
    moegen_rt_error why;
    bool ok = false;
    if (name->lost) {
        fail(MOEGEN_NO_MEMORY, NULL);
    } else if (moegen_rt_problem_tensor(to->made, name->at)) {
        bad("two tensors would have the name '%s'", name->at);
    } else if (in_memory ? moegen_rt_problem_add(to->made, name->at, dtype, rank, shape, &t, &why)
                         : moegen_rt_problem_lend(to->made, name->at, dtype, rank, shape, &nowhere,
                                                  &why)) {
        bad("%s", why.text);
    } else {
        t = moegen_rt_problem_tensor(to->made, name->at);
        to->at[to->count] = *t;
        if (!in_memory)
            to->at[to->count].data = NULL;
        to->count++;
        to->after += (double)t->bytes;
        ok = true;
    }
    text_free(name);
    return ok;
}

static bool make_codes(struct output *to, const struct item *t)
{
    struct text name = {0};
    int64_t shape[8];
    int rank = store_codes_shape(&t->store, shape);
    text_fmt(&name, "%s", t->from->name);
    return make(to, &name, t->store.format->codes, rank, shape, !store_streams(&t->store, false));
}

static bool make_scales(struct output *to, const struct item *t, bool second)
{
    const struct store *s = &t->store;
    struct text name = {0};
    int64_t shape[8];
    int rank = second ? store_second_shape(s, shape) : store_scales_shape(s, shape);
    scale_name(&name, t->from->name, second ? "_scale_2" : "_scale");
    return make(to, &name, second ? MOEGEN_RT_F32 : s->format->scale->dtype, rank, shape, true);
}

static bool make_values(struct output *to, const struct item *t, moegen_rt_dtype dtype)
{
    struct text name = {0};
    text_fmt(&name, "%.*s", (int)t->keep, t->from->name);
    return make(to, &name, dtype, t->store.rank, t->store.shape, !store_streams(&t->store, true));
}

/* The tensors that become of one, and what the metadata says of it. */
static int make_of(struct plan *p, const struct item *t, struct output *to)
{
    to->before += (double)t->from->bytes;
    if (p->back) {
        (void)moegen_rt_problem_set(p->metadata, t->from->name, NULL);
        to->before += (double)t->scales->bytes;
        return make_values(to, t, p->to) ? EXIT_OK : EXIT_BAD_INPUT;
    }
    if (!make_codes(to, t) || !make_scales(to, t, false) ||
        (t->store.per_second && !make_scales(to, t, true)))
        return EXIT_BAD_INPUT;
    struct text line = {0};
    store_print(&t->store, &line);
    bool ok = !line.lost && !moegen_rt_problem_set(p->metadata, t->from->name, line.at);
    text_free(&line);
    return ok ? EXIT_OK : fail(MOEGEN_NO_MEMORY, NULL);
}

static int make_all(struct plan *p, struct output *to)
{
    for (size_t i = 0; i < p->items; i++) {
        const struct item *t = &p->item[i];
        int result = EXIT_OK;
        if (t->chosen)
            result = make_of(p, t, to);
        else if (!t->dropped)
            to->at[to->count++] = *t->from;
        if (result)
            return result;
    }
    return EXIT_OK;
}

/* What was made in memory, to the file, on all ranks. */
struct putting {
    struct rt_file *file;
    size_t number;
    const moegen_rt_tensor *from;
};

static void put_part(void *ctx, const moegen_worker *worker)
{
    enum { STEP = 1 << 20 };
    const struct putting *p = ctx;
    const size_t rank = worker ? (size_t)worker->rank : 0, size = worker ? (size_t)worker->size : 1;
    for (size_t at = rank * STEP; at < p->from->bytes; at += size * STEP) {
        size_t left = p->from->bytes - at;
        rt_file_put(p->file, p->number, at, (const char *)p->from->data + at,
                    left < STEP ? left : STEP);
    }
}

static bool put(struct rt_file *file, size_t number, const moegen_rt_tensor *from,
                moegen_rt_team *team)
{
    struct putting p = {file, number, from};
    return moegen_rt_team_run(team, put_part, &p) == MOEGEN_RT_OK;
}

/* Makes one tensor's, number `at` and the next ones; how many they are, or 0: no memory. */
static size_t convert_one(const struct plan *p, const struct item *t, struct output *to, size_t at,
                          struct rt_file *file, moegen_rt_team *team)
{
    moegen_rt_tensor *made = to->at + at;
    struct sink sink = {file, at, made->data};
    const struct store *s = &t->store;
    int64_t nans = 0;
    if (p->back)
        return store_decode(s, t->from, t->scales, t->second, p->to, &sink, team) ? 1 : 0;
    if (!store_encode(s, t->from, &sink, made + 1, s->per_second ? made + 2 : NULL, team, &nans))
        return 0;
    if (nans)
        note("note: %s: tensor '%s': %" PRId64
             " scales are NaN: of values that are NaN or infinite",
             p->path, t->from->name, nans);
    to->nans += nans;
    return s->per_second ? 3 : 2;
}

static int convert_all(const struct plan *p, struct output *to, struct rt_file *file,
                       moegen_rt_team *team)
{
    int done = 0;
    for (size_t i = 0, at = 0; i < p->items; i++) {
        const struct item *t = &p->item[i];
        size_t n = t->dropped && !t->chosen ? 0 : 1;
        if (t->chosen) {
            n = convert_one(p, t, to, at, file, team);
            progress(t->from->name, ++done, (int)p->chosen);
            if (!n)
                return fail(MOEGEN_NO_MEMORY, NULL);
        }
        for (size_t k = at; k < at + n; k++)
            if (to->at[k].data && !put(file, k, &to->at[k], team))
                return fail(MOEGEN_NO_MEMORY, NULL);
        at += n;
    }
    return EXIT_OK;
}

static void report(const struct options *o, const struct plan *p, const struct output *to)
{
    char before[32], after[32];
    struct text t = {0};
    size_t copied = 0;
    for (size_t i = 0; i < p->items; i++)
        copied += !p->item[i].chosen && !p->item[i].dropped;
    text_fmt(&t,
             "{\"to\": \"%s\", \"converted\": %zu, \"copied\": %zu, \"bytes_before\": %.0f, "
             "\"bytes_after\": %.0f, \"nan_scales\": %" PRId64 ", \"tensors\": [",
             o->to, p->chosen, copied, to->before, to->after, to->nans);
    for (size_t i = 0; i < to->count; i++) {
        text_fmt(&t, "%s\n  {\"name\": ", i ? "," : "");
        json_string(&t, to->at[i].name);
        text_fmt(&t, ", \"dtype\": \"%s\", \"shape\": ", moegen_rt_dtype_of(to->at[i].dtype)->name);
        shape_text(&t, to->at[i].rank, to->at[i].shape);
        text_add(&t, "}", 1);
    }
    if (o->json && t.lost)
        lost();
    else if (o->json)
        printf("%s\n]}\n", t.at);
    else if (!quiet)
        printf("%zu tensors to %s, %s to %s; %zu copied: wrote %s\n", p->chosen, o->to,
               show_bytes(before, to->before), show_bytes(after, to->after), copied, o->out);
    text_free(&t);
}

static int convert(const struct options *o, struct plan *p)
{
    struct output to = {.made = moegen_rt_problem_create()};
    moegen_rt_team *team = NULL;
    struct rt_file *file = NULL;
    moegen_rt_error why;
    int result = EXIT_OK, threads = o->threads ? (int)o->threads : moegen_rt_cpu_count();
    to.at = malloc((3 * p->items + 1) * sizeof *to.at);
    if (!to.at || !to.made)
        result = fail(MOEGEN_NO_MEMORY, NULL);
    else if (moegen_rt_team_create(threads, &team, &why))
        result = bad("--threads: %s", why.text);
    result = result ? result : make_all(p, &to);
    if (!result && rt_file_open(o->out, to.at, to.count, p->metadata, &file, &why))
        result = bad("%s", why.text);
    result = result ? result : convert_all(p, &to, file, team);
    if (result)
        rt_file_drop(file);
    else if (rt_file_close(file, &why))
        result = bad("%s", why.text);
    if (!result)
        report(o, p, &to);
    moegen_rt_team_destroy(team);
    moegen_rt_problem_destroy(to.made);
    free(to.at);
    return result;
}

int cmd_quantize(struct options *o)
{
    struct plan p = {0};
    moegen_rt_error why;
    int result = options_plan(o, &p);
    if (result)
        return result;
    p.in = moegen_rt_problem_create();
    p.metadata = moegen_rt_problem_create();
    if (!p.in || !p.metadata)
        result = fail(MOEGEN_NO_MEMORY, NULL);
    else if (rt_file_map(p.path, p.in, p.metadata, &why))
        result = bad("%s", why.text);
    result = result ? result : plan_make(&p);
    result = result ? result : convert(o, &p);
    moegen_rt_problem_destroy(p.in);
    moegen_rt_problem_destroy(p.metadata);
    free(p.item);
    return result;
}
