/* SPDX-License-Identifier: Apache-2.0 */
/* cases.h - the cases of tests/kernels for programs that run each of them: included once by each.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/call.h"
#include "host/host.h"
#include "moegen.h"
#include "moegen_runtime.h"

static char where[900]; /* what is being tried */
static int failures;

static void complain(const char *what, const char *detail)
{
    printf("FAIL %s: %s%s%s\n", where, what, *detail ? ": " : "", detail);
    failures++;
}

/* What hidden states and weights may be stored as: `moegen list dtypes`. */
static inline const struct listing *io_dtypes(void)
{
    static struct listing all;
    if (!all.count && host_list("dtypes", &all, NULL))
        complain("cannot list dtypes", "");
    return &all;
}

/* The i-th of them, NULL after the last one. */
static inline const char *io_dtype(size_t i)
{
    return i < io_dtypes()->count ? io_dtypes()->item[i].name : NULL;
}

/* One after the other, for ever. */
static inline const char *io_dtype_in_turn(int64_t i)
{
    return io_dtype((size_t)i % io_dtypes()->count);
}

/* The text of a file of cases with one of them alone, which is read in a tenth of the time: its
 * length. */
static inline size_t text_of_case(const char *path, const char *name, char *text, size_t room)
{
    char line[400], begin[110];
    size_t len = 0;
    FILE *f = fopen(path, "r");
    snprintf(begin, sizeof begin, "  %s:", name);
    while (f && len < room - sizeof line && fgets(line, sizeof line, f))
        if (strncmp(line, "  ", 2) != 0 || strncmp(line, begin, strlen(begin)) == 0)
            len += (size_t)snprintf(text + len, room - len, "%s", line);
    if (f)
        fclose(f);
    return len;
}

/* The kernel of a case with overrides. NULL after a complaint. */
static inline moegen_kernel *get_set(moegen_engine *engine, const char *path, const char *name,
                                     const moegen_override *set, size_t count)
{
    static char text[65536];
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    moegen_spec spec = {.struct_size = sizeof spec,
                        .text = text,
                        .len = text_of_case(path, name, text, sizeof text),
                        .label = path,
                        .kernel = name,
                        .overrides = set,
                        .override_count = count};
    if (moegen_kernel_get(engine, &spec, &kernel, &err))
        complain("cannot be made", moegen_error_text(err));
    moegen_error_release(err);
    return kernel;
}

/* The kernel of a case; dtype NULL: the case's own. A target that was asked for by name is tried in
 * plain C, which runs on any CPU. NULL after a complaint. */
static inline moegen_kernel *get(moegen_engine *engine, const char *path, const char *name,
                                 const char *dtype, const char *target)
{
    const bool plain = strcmp(target, "auto") != 0 && strcmp(target, "scalar") != 0;
    moegen_override set[3] = {{0}};
    size_t count = 0; /* in the order that `moegen check` has: so that both find it in the cache */
    if (dtype)
        set[count++] = (moegen_override){"dtype", dtype};
    set[count++] = (moegen_override){"target", target};
    if (plain)
        set[count++] = (moegen_override){"spelling", "scalar"};
    return get_set(engine, path, name, set, count);
}

/* Where the tests of one run keep kernels for each other; "" where nobody says: nowhere. */
static inline const char *shared_cache(void)
{
    const char *set = getenv("MOEGEN_CACHE_DIR");
    return set ? set : "";
}

/* Whether the cases of a file have a dtype. */
static inline bool is_typed(const char *path)
{
    char line[400];
    bool typed = false;
    FILE *f = fopen(path, "r");
    while (f && !typed && fgets(line, sizeof line, f))
        typed = strncmp(line, "dtype:", 6) == 0;
    if (f)
        fclose(f);
    return typed;
}

/* Inputs of a kernel for T tokens, or as many as its spec fixes; the kernel's parameters with them.
 */
static inline moegen_rt_problem *inputs(const moegen_kernel *kernel, int64_t T, const char *routing)
{
    const struct unit *u = kernel->unit;
    const char *fixed = moegen_kernel_param(kernel, "T");
    fixed = fixed ? fixed : moegen_kernel_param(kernel, "S");
    moegen_rt_problem *in = moegen_rt_problem_create();
    moegen_rt_fill how = {
        .T = fixed ? strtoll(fixed, NULL, 10) : T, .seed = 11, .routing = routing};
    moegen_rt_error why = {{0}};
    for (size_t p = 0; p < u->param_count; p++)
        moegen_rt_problem_set(in, u->param[p].key, u->param[p].value);
    if (moegen_rt_reference_find(u->facts.family)->fill(in, &how, &why))
        complain("no inputs", why.text);
    return in;
}

/* Outputs as they are before a call: poison, or what is added to. */
static inline void reset(const moegen_call *call, const moegen_rt_problem *in,
                         moegen_rt_problem *out)
{
    const moegen_kernel_facts *facts = &call->unit->facts;
    for (int i = 0; i < facts->arg_count; i++) {
        moegen_rt_tensor *t = facts->args[i].role == MOEGEN_IN
                                  ? NULL
                                  : moegen_rt_problem_tensor(out, facts->args[i].name);
        const moegen_rt_tensor *start = moegen_rt_problem_tensor(in, facts->args[i].name);
        if (t)
            moegen_rt_poison(t->dtype, t->data, (size_t)moegen_rt_tensor_count(t));
        if (t && start && facts->args[i].role == MOEGEN_INOUT)
            memcpy(t->data, start->data, t->bytes);
    }
}

/* Binds the inputs, and outputs that it adds to `out`. */
static inline moegen_status bind(moegen_call *call, const moegen_rt_problem *in,
                                 moegen_rt_problem *out, moegen_error **err)
{
    const moegen_kernel_facts *facts = &call->unit->facts;
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < facts->arg_count && !status; i++) {
        const moegen_rt_tensor *t = moegen_rt_problem_tensor(in, facts->args[i].name);
        if (facts->args[i].role == MOEGEN_IN && t)
            status = moegen_call_bind_const(call, t->name, t->data, (moegen_dtype)t->dtype, t->rank,
                                            t->shape, err);
    }
    for (int i = 0; i < facts->arg_count && !status; i++) {
        const moegen_arg *a = &facts->args[i];
        moegen_rt_tensor *t = NULL;
        int rank;
        int64_t shape[8];
        if (a->role == MOEGEN_IN)
            continue;
        status = moegen_call_shape(call, a->name, &rank, shape, err);
        if (!status &&
            moegen_rt_problem_add(out, a->name, (moegen_rt_dtype)a->dtype, rank, shape, &t, NULL))
            status = MOEGEN_NO_MEMORY;
        if (!status)
            status = moegen_call_bind(call, a->name, t->data, a->dtype, rank, shape, err);
    }
    return status;
}

/* Is that its name, or what its name begins with if it ends with an asterisk? */
static inline bool is_of(const char *name, const char *only)
{
    size_t len = strlen(only);
    return len && only[len - 1] == '*' ? strncmp(name, only, len - 1) == 0
                                       : strcmp(name, only) == 0;
}

/* Calls try(path, name, ctx) for every case of the .yaml files of a directory, or of one family, or
 * one case of it (FAMILY[:CASE]; empty: all). Returns how many there were; -1: no directory. */
static inline int each_case(const char *directory, const char *only,
                            void (*try)(const char *path, const char *name, void *ctx), void *ctx)
{
    DIR *dir = opendir(directory);
    const char *only_case = strchr(only, ':');
    size_t family = only_case ? (size_t)(only_case - only) : strlen(only);
    int cases = 0;
    if (!dir)
        return -1;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[600], line[400], name[100];
        size_t len = strlen(entry->d_name);
        if (len < 5 || strcmp(entry->d_name + len - 5, ".yaml") != 0 ||
            (family && (len - 5 != family || strncmp(entry->d_name, only, family) != 0)))
            continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        FILE *f = fopen(path, "r");
        while (f && fgets(line, sizeof line, f)) {
            if (strncmp(line, "  ", 2) != 0 || !strstr(line, "{kernel: ") ||
                sscanf(line, " %99[a-zA-Z0-9_]", name) != 1 ||
                (only_case && !is_of(name, only_case + 1)))
                continue;
            cases++;
            try(path, name, ctx);
        }
        if (f)
            fclose(f);
    }
    closedir(dir);
    return cases;
}
