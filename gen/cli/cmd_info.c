/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_info.c - the commands that only tell: explain, list, cache, schema, completion. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache/cache.h"
#include "cli.h"

/* Print text, or {"text": ...} with --json. */
static int print_text(const struct options *o, const char *text)
{
    struct text t = {0};
    if (o->json) {
        text_fmt(&t, "{\"text\": ");
        json_string(&t, text);
        text_fmt(&t, "}\n");
    } else {
        text_fmt(&t, "%s%s", text, *text && text[strlen(text) - 1] != '\n' ? "\n" : "");
    }
    return put_text(&t);
}

int cmd_explain(struct options *o)
{
    struct job j;
    struct text all = {0};
    if (o->operands.count == 1 && code_explained(o->operands.at[0], &all)) {
        int told = print_text(o, all.at ? all.at : "");
        text_free(&all);
        return told;
    }
    if (o->operands.count == 1 && code_unknown(o->operands.at[0], &all)) {
        int told =
            bad("there is no status %s: known are %s", o->operands.at[0], all.at ? all.at : "");
        text_free(&all);
        return told;
    }
    int result = job_open(&j, o);
    for (int k = 0; !result && k < j.kernels; k++) {
        moegen_error *err = NULL;
        moegen_spec spec = job_spec(&j, k, 0);
        struct text one = {0};
        struct ask a;
        moegen_status status = ask_open(&a, j.engine, &spec, "jit", &err);
        if (!status)
            status = ask_explain(&a, j.engine, &one, &err);
        ask_close(&a);
        if (status)
            result = fail(status, err);
        else
            text_fmt(&all, "%s%s", k ? "\n" : "", one.at);
        text_free(&one);
    }
    if (!result)
        result = all.lost ? fail(MOEGEN_NO_MEMORY, NULL) : print_text(o, all.at ? all.at : "");
    text_free(&all);
    job_close(&j);
    return result;
}

static int print_items(const struct listing *l)
{
    struct text t = {0};
    text_add(&t, "[", 1);
    for (size_t i = 0; i < l->count; i++) {
        text_fmt(&t, "%s\n  {\"name\": ", i ? "," : "");
        json_string(&t, l->item[i].name);
        text_fmt(&t, ", \"text\": ");
        json_string(&t, l->item[i].text ? l->item[i].text : "");
        text_add(&t, "}", 1);
    }
    text_add(&t, "\n]\n", 3);
    return put_text(&t);
}

int cmd_list(struct options *o)
{
    struct listing l = {0};
    struct text what = {0};
    moegen_error *err = NULL;
    if (o->operands.count < 1 || o->operands.count > 2)
        return bad("list takes one of kernels, activations, dtypes, formats, targets, keys "
                   "[FAMILY]");
    bool formats = strcmp(o->operands.at[0], "formats") == 0;
    if (formats && o->operands.count == 2)
        return bad("a list of formats takes no '%s'", o->operands.at[1]);
    for (int i = 0; i < o->operands.count; i++)
        text_fmt(&what, "%s%s", i ? " " : "", o->operands.at[i]);
    moegen_status status;
    if (formats) /* the runtime's, not the templates' */
        status = formats_list(&l) ? MOEGEN_OK : MOEGEN_NO_MEMORY;
    else
        status = host_list(what.at ? what.at : "", &l, &err);
    text_free(&what);
    if (status) {
        listing_free(&l);
        return fail(status, err);
    }
    int result = o->json ? print_items(&l) : print_text(o, l.text.at ? l.text.at : "");
    listing_free(&l);
    return result;
}

int cmd_schema(struct options *o)
{
    struct text t = {0};
    moegen_error *err = NULL;
    if (o->operands.count)
        return bad("schema takes no operand");
    moegen_status status = host_schema(&t, &err);
    if (status)
        return fail(status, err);
    printf("%s\n", t.at);
    text_free(&t);
    return EXIT_OK;
}

int cmd_completion(struct options *o)
{
    if (o->operands.count != 1)
        return bad("completion takes one shell: bash or zsh");
    return completion_print(o->operands.at[0]);
}

/* ---- cache ---- */

struct tally {
    const struct options *o;
    struct table table;
    struct text json;
    uint64_t bytes;
    int entries, broken;
};

/* The value of one line of a kernel's metadata, cut at `room`. */
static const char *meta_value(const char *meta, const char *key, char *out, size_t room)
{
    size_t len = strlen(key);
    *out = '\0';
    for (const char *at = meta; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (strncmp(at, key, len) == 0 && at[len] == ' ')
            snprintf(out, room, "%.*s", (int)strcspn(at + len + 1, "\n"), at + len + 1);
    return out;
}

static bool visit(void *user, const struct cache_entry *e)
{
    struct tally *t = user;
    char name[96], target[32], spelling[32], size[32], day[32] = "";
    time_t used = (time_t)e->used;
    struct tm split;
    if (gmtime_r(&used, &split))
        strftime(day, sizeof day, "%Y-%m-%d", &split);
    t->entries++;
    t->broken += e->problem != NULL;
    t->bytes += e->bytes;
    meta_value(e->meta, "name", name, sizeof name);
    meta_value(e->meta, "target", target, sizeof target);
    meta_value(e->meta, "spelling", spelling, sizeof spelling);
    table_add(&t->table, "%.12s", e->key);
    table_add(&t->table, "%s", name);
    table_add(&t->table, "%s", target);
    table_add(&t->table, "%s", spelling);
    table_add(&t->table, "%s", show_bytes(size, (double)e->bytes));
    table_add(&t->table, "%s", day);
    table_add(&t->table, "%s", e->problem ? e->problem : "ok");
    text_fmt(&t->json, "%s\n  {\"key\": \"%s\", \"name\": ", t->json.len ? "," : "", e->key);
    json_string(&t->json, name);
    text_fmt(&t->json,
             ", \"target\": \"%s\", \"spelling\": \"%s\", \"bytes\": %" PRIu64
             ", \"used\": %" PRId64 ", \"problem\": ",
             target, spelling, e->bytes, e->used);
    if (e->problem)
        json_string(&t->json, e->problem);
    else
        text_add(&t->json, "null", 4);
    text_add(&t->json, "}", 1);
    return true;
}

static int cache_show(struct cache *c, struct options *o, bool only_sums)
{
    static const char *const head[] = {"key",  "kernel", "target", "spelling",
                                       "size", "used",   "state"};
    struct tally t = {.o = o, .table = {.columns = 7}};
    char size[32];
    for (int i = 0; i < 7; i++)
        table_add(&t.table, "%s", head[i]);
    bool whole = cache_each(c, visit, &t) != SIZE_MAX && !t.table.lost && !t.json.lost;
    if (!whole)
        lost();
    else if (o->json)
        printf("[%s\n]\n", t.json.at ? t.json.at : "");
    else if (t.entries && !only_sums)
        table_print(&t.table, stdout);
    if (whole && !o->json)
        printf("%d entries, %s, %d damaged\n", t.entries, show_bytes(size, (double)t.bytes),
               t.broken);
    table_free(&t.table);
    text_free(&t.json);
    return only_sums && t.broken ? EXIT_FAILED : EXIT_OK;
}

static int cache_path_command(struct cache *c, struct options *o)
{
    return print_text(o, cache_path(c));
}

static int cache_list(struct cache *c, struct options *o)
{
    return cache_show(c, o, false);
}

static int cache_verify(struct cache *c, struct options *o)
{
    return cache_show(c, o, true);
}

static int cache_shrink(struct cache *c, uint64_t keep, const struct options *o)
{
    uint64_t bytes = 0;
    char size[32];
    size_t n = cache_prune(c, keep, &bytes);
    if (n == SIZE_MAX)
        return fail(MOEGEN_NO_MEMORY, NULL);
    if (o->json)
        printf("{\"removed\": %zu, \"bytes\": %" PRIu64 "}\n", n, bytes);
    else
        printf("removed %zu entries, %s\n", n, show_bytes(size, (double)bytes));
    return EXIT_OK;
}

static int cache_prune_command(struct cache *c, struct options *o)
{
    static const char units[] = "KMGT";
    char *end = NULL;
    double keep = o->max ? strtod(o->max, &end) : -1;
    if (!o->max || end == o->max || !(keep >= 0))
        return bad("cache prune takes --max SIZE, for example --max 256M");
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (*end && (!unit || end[1]))
        return bad("--max: '%s' is not a size like 512K, 256M or 2G", o->max);
    for (long i = unit ? unit - units + 1 : 0; i > 0; i--)
        keep *= 1024;
    return cache_shrink(c, keep < 0x1p64 ? (uint64_t)keep : UINT64_MAX, o);
}

static int cache_clear(struct cache *c, struct options *o)
{
    return cache_shrink(c, 0, o);
}

static void say_why(void *user, int level, const char *message)
{
    (void)user;
    if (level <= 1)
        note("note: %s", message);
}

int cmd_cache(struct options *o)
{
    static const struct {
        const char *name;
        int (*run)(struct cache *c, struct options *o);
    } actions[] = {
        {"path", cache_path_command},   {"list", cache_list},   {"verify", cache_verify},
        {"prune", cache_prune_command}, {"clear", cache_clear},
    };
    const char *what = o->operands.count == 1 ? o->operands.at[0] : "";
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        if (strcmp(actions[i].name, what) == 0) {
            struct cache *c = cache_open(NULL, say_why, NULL);
            int result =
                c ? actions[i].run(c, o) : bad("the disk cache is switched off or not usable");
            cache_close(c);
            return result;
        }
    return bad("cache takes one of path, list, verify, prune, clear");
}
