/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.c - a kernel's metadata: the generator's `meta` lines, parsed once, and what the API tells
 * of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moegen_runtime.h"
#include "engine.h"
#include "unit.h"

/* Cut the next word off *at (words are separated by one space); NULL at the end of the line. */
static char *word(char **at)
{
    char *start = *at;
    if (!start || !*start)
        return NULL;
    char *space = strchr(start, ' ');
    if (space)
        *space = '\0';
    *at = space ? space + 1 : NULL;
    return start;
}

static bool add_pair(struct unit *u, struct pair **list, size_t *count, const char *key,
                     const char *value)
{
    if ((*count & (*count + 1)) == 0) { /* full at 0, 1, 3, 7, ...? */
        struct pair *more = realloc(*list, 2 * (*count + 1) * sizeof *more);
        if (!more) {
            u->memory_out = true;
            return false;
        }
        *list = more;
    }
    (*list)[(*count)++] = (struct pair){key, value};
    return true;
}

static bool parse_arg(struct unit *u, char *rest)
{
    static const char *const roles[] = {"in", "out", "inout"};
    int n = u->facts.arg_count;
    char *name = word(&rest), *dtype = word(&rest), *role = word(&rest), *need = word(&rest);
    if (n == MAX_ARGS || !need)
        return false;
    moegen_arg *a = &u->arg[n];
    int found = dtype_find(dtype), r = 0;
    while (r < 3 && strcmp(roles[r], role) != 0)
        r++;
    if (found < 0 || r == 3)
        return false;
    *a = (moegen_arg){.name = name,
                      .dtype = (moegen_dtype)found,
                      .role = (moegen_role)r,
                      .optional = strcmp(need, "optional") == 0,
                      .extent = u->extent_text[n],
                      .doc = ""};
    for (char *x; (x = word(&rest)); a->rank++) {
        if (a->rank == MAX_RANK ||
            !extent_parse(x, u->dim, u->facts.dim_count, &u->extent[n][a->rank]))
            return false;
        u->extent_text[n][a->rank] = x;
    }
    u->facts.arg_count++;
    return true;
}

/* Of the argument in the line before. */
static bool parse_says(struct unit *u, char *rest)
{
    if (!u->facts.arg_count || !rest)
        return false;
    u->arg[u->facts.arg_count - 1].doc = rest;
    return true;
}

/* Likewise. The extents of such an argument are constants. */
static bool parse_listed(struct unit *u, char *rest)
{
    int n = u->facts.arg_count - 1;
    (void)rest;
    for (int d = 0; n >= 0 && d < u->arg[n].rank; d++)
        if (u->extent[n][d].dim >= 0)
            return false;
    return n >= 0 && u->arg[n].rank > 0 && u->arg[n].role == MOEGEN_IN && (u->listed[n] = true);
}

static bool parse_dim(struct unit *u, char *rest)
{
    if (u->facts.dim_count == MAX_DIMS || !rest)
        return false;
    u->dim[u->facts.dim_count++] = rest;
    return true;
}

static bool parse_derived(struct unit *u, char *rest)
{
    return u->derived_count < MAX_DIMS && rest &&
           derived_parse(rest, u->dim, u->facts.dim_count, &u->derived[u->derived_count++]);
}

static bool parse_param(struct unit *u, char *rest)
{
    char *key = word(&rest);
    return key && add_pair(u, &u->param, &u->param_count, key, rest ? rest : "");
}

static bool parse_status(struct unit *u, char *rest)
{
    char *code = word(&rest);
    return rest && add_pair(u, &u->answer, &u->answer_count, code, rest);
}

static bool parse_threads(struct unit *u, char *rest)
{
    u->facts.threads = rest ? atoi(rest) : 0;
    return u->facts.threads > 0;
}

static bool parse_work(struct unit *u, char *rest)
{
    char *what = word(&rest);
    if (!rest)
        return false;
    const struct {
        const char *what;
        int64_t *at;
    } amounts[] = {
        {"flops_per_row", &u->facts.flops_per_row},
        {"flops_per_token", &u->facts.flops_per_token},
        {"weight_bytes_per_expert", &u->facts.weight_bytes_per_expert},
        {"weight_bytes", &u->facts.weight_bytes},
    };
    for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++)
        if (strcmp(amounts[i].what, what) == 0)
            *amounts[i].at = strtoll(rest, NULL, 10);
    return true;
}

/* Lines that hold one string, and lines with a parser of their own. Unknown lines are for other
 * readers. */
static bool parse_line(struct unit *u, char *key, char *rest)
{
    const struct {
        const char *key;
        const char **at;
    } strings[] = {
        {"name", &u->facts.name},
        {"family", &u->facts.family},
        {"target", &u->facts.target},
        {"spelling", &u->facts.spelling},
        {"dtype", &u->facts.dtype},
        {"requires", &u->requires},
        {"cflags", &u->cflags},
        {"entry", &u->entry_name},
        {"workspace", &u->workspace_name},
    };
    static const struct {
        const char *key;
        bool (*parse)(struct unit *u, char *rest);
    } parsers[] = {
        {"dim", parse_dim},         {"derive", parse_derived}, {"arg", parse_arg},
        {"param", parse_param},     {"status", parse_status},  {"work", parse_work},
        {"threads", parse_threads}, {"says", parse_says},      {"listed", parse_listed},
    };
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        if (strcmp(strings[i].key, key) == 0) {
            *strings[i].at = rest ? rest : "";
            return true;
        }
    for (size_t i = 0; i < sizeof parsers / sizeof *parsers; i++)
        if (strcmp(parsers[i].key, key) == 0)
            return parsers[i].parse(u, rest);
    return true;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct pair *)a)->key, ((const struct pair *)b)->key);
}

static bool parse_meta(struct unit *u)
{
    static const char *const first = "moegen-kernel 1";
    u->facts.name = u->facts.family = u->facts.target = u->facts.spelling = u->facts.dtype = "";
    u->requires = u->cflags = "";
    char *line = u->meta.at, *end;
    for (int n = 0; line && *line; n++, line = end) {
        end = strchr(line, '\n');
        if (end)
            *end++ = '\0';
        if (n == 0) {
            if (strcmp(line, first) != 0)
                return false;
            continue;
        }
        char *rest = line, *key = word(&rest);
        if (key && !parse_line(u, key, rest))
            return false;
    }
    if (u->param_count)
        qsort(u->param, u->param_count, sizeof *u->param, by_key);
    return u->entry_name && u->workspace_name;
}

moegen_status unit_create(const char *meta, size_t len, struct crew *crew, struct unit **out,
                          moegen_error **err)
{
    struct unit *u = calloc(1, sizeof *u);
    if (!u)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    u->refs = 1;
    u->made.unit = u->kept.unit = u;
    u->kept.origin = "memory";
    u->facts.args = u->arg;
    u->facts.dims = u->dim;
    text_add(&u->meta, meta, len);
    if (u->meta.lost || !parse_meta(u)) {
        bool memory = u->meta.lost || u->memory_out;
        moegen_status status = memory ? MOEGEN_NO_MEMORY : MOEGEN_INTERNAL;
        unit_release(u);
        return error_set(err, status, "%s",
                         status == MOEGEN_INTERNAL ? "the generator's metadata cannot be parsed"
                                                   : "out of memory");
    }
    u->crew = crew_retain(crew);
    u->facts.threads = crew_threads(crew, u->facts.threads);
    *out = u;
    return MOEGEN_OK;
}

moegen_status unit_check_cpu(const struct unit *u, moegen_error **err)
{
    struct text missing = {0};
    bool lacks = false;
    for (const char *at = u->requires; *at;) {
        char name[64];
        size_t len = strcspn(at, " ");
        snprintf(name, sizeof name, "%.*s", (int)len, at);
        if (len && !moegen_rt_cpu_has(name)) {
            text_fmt(&missing, "%s%s", lacks ? ", " : "", name);
            lacks = true;
        }
        at += len + (at[len] != '\0');
    }
    if (lacks)
        error_set(err, MOEGEN_UNSUPPORTED,
                  "kernel '%s' for target %s in spelling %s needs %s, which this CPU lacks",
                  u->facts.name, u->facts.target, u->facts.spelling,
                  missing.at ? missing.at : "features");
    text_free(&missing);
    return lacks ? MOEGEN_UNSUPPORTED : MOEGEN_OK;
}

void unit_attach(struct unit *u, struct code *code, const char *origin, double seconds)
{
    u->code = *code;
    *code = (struct code){0};
    memcpy(&u->entry, &u->code.fn[0], sizeof u->entry);
    memcpy(&u->workspace, &u->code.fn[1], sizeof u->workspace);
    u->made.origin = origin;
    u->facts.code_bytes = u->code.size;
    u->facts.jit_seconds = seconds;
}

void unit_retain(struct unit *u)
{
    u->refs++;
}

void unit_release(struct unit *u)
{
    if (!u || --u->refs)
        return;
    code_unmap(&u->code);
    crew_release(u->crew);
    free(u->param);
    free(u->answer);
    text_free(&u->meta);
    free(u);
}

static void retain_value(void *value)
{
    unit_retain(value);
}

static void release_value(void *value)
{
    unit_release(value);
}

static bool value_in_use(const void *value)
{
    return ((const struct unit *)value)->refs > 1;
}

const struct registry_ops unit_ops = {retain_value, release_value, value_in_use};

void moegen_kernel_retain(moegen_kernel *kernel)
{
    if (kernel)
        unit_retain(kernel->unit);
}

void moegen_kernel_release(moegen_kernel *kernel)
{
    if (kernel)
        unit_release(kernel->unit);
}

moegen_status moegen_kernel_info(const moegen_kernel *kernel, moegen_kernel_facts *facts)
{
    static const size_t sizes[] = SIZES_OF(moegen_kernel_facts, weight_bytes);
    if (!kernel || !facts)
        return MOEGEN_BAD_ARGUMENT;
    moegen_kernel_facts all = kernel->unit->facts;
    all.origin = kernel->origin;
    return sized_give(facts, &all, sizes, sizeof sizes / sizeof *sizes) ? MOEGEN_OK
                                                                        : MOEGEN_BAD_ARGUMENT;
}

const char *moegen_kernel_param(const moegen_kernel *kernel, const char *key)
{
    if (!kernel || !key || !kernel->unit->param_count)
        return NULL;
    struct pair wanted = {key, NULL};
    struct pair *found =
        bsearch(&wanted, kernel->unit->param, kernel->unit->param_count, sizeof wanted, by_key);
    return found ? found->value : NULL;
}

bool kernel_param_at(const moegen_kernel *kernel, size_t i, const char **key, const char **value)
{
    const struct unit *u = kernel->unit;
    if (i >= u->param_count)
        return false;
    *key = u->param[i].key;
    *value = u->param[i].value;
    return true;
}

const moegen_kernel_facts *kernel_facts(const moegen_kernel *kernel)
{
    return &kernel->unit->facts;
}

const char *unit_answer(const struct unit *u, int32_t code)
{
    for (size_t i = 0; i < u->answer_count; i++)
        if (strtol(u->answer[i].key, NULL, 10) == code)
            return u->answer[i].value;
    return "the kernel returned a status that its metadata does not explain";
}

moegen_status moegen_kernel_entry(const moegen_kernel *kernel, moegen_entry *entry,
                                  moegen_workspace *workspace, moegen_error **err)
{
    if (!kernel || !entry || !workspace)
        return error_set(err, MOEGEN_BAD_ARGUMENT, "kernel, entry and workspace must not be NULL");
    *entry = kernel->unit->entry;
    *workspace = kernel->unit->workspace;
    return MOEGEN_OK;
}

bool kernel_same_code(const moegen_kernel *a, const moegen_kernel *b)
{
    const struct code *x = &a->unit->code, *y = &b->unit->code;
    const char *from_x = x->map, *from_y = y->map;
    if (x == y)
        return true;
    bool same = from_x && from_y && x->size == y->size && memcmp(from_x, from_y, x->size) == 0;
    for (int i = 0; i < 2 && same; i++)
        same = (const char *)x->fn[i] - from_x == (const char *)y->fn[i] - from_y;
    return same;
}
