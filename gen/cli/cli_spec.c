/* SPDX-License-Identifier: Apache-2.0 */
/* cli_spec.c - the spec operand FILE[:KERNELS] and its overrides. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "spec/spec.h"

static void log_line(void *user, int level, const char *message)
{
    (void)user;
    if (level <= verbose)
        note("%s", message);
}

/* FILE:KERNEL, unless a file of that whole name exists. */
static const char *split_kernel(char *path)
{
    char *colon = strrchr(path, ':');
    if (!colon || access(path, F_OK) == 0)
        return NULL;
    *colon = '\0';
    return colon + 1;
}

static int collect_sets(struct job *j, const struct options *o)
{
    const char *const fixed[][2] = {{"target", o->target}, {"spelling", o->spelling}};
    j->set = calloc((size_t)o->set.count + 3 + EXTRA_SETS, sizeof *j->set);
    if (!j->set)
        return fail(MOEGEN_NO_MEMORY, NULL);
    for (int i = 0; i < o->set.count; i++) {
        const char *equals = strchr(o->set.at[i], '=');
        if (!equals || equals == o->set.at[i])
            return bad("--set takes KEY=VALUE, not '%s'", o->set.at[i]);
        char *key = strndup(o->set.at[i], (size_t)(equals - o->set.at[i]));
        if (!key)
            return fail(MOEGEN_NO_MEMORY, NULL);
        j->set[j->sets++] = (moegen_override){key, equals + 1};
        j->own_sets = j->sets;
    }
    bool lists = o->command->bit & CHECK; /* there --target and --spelling are lists */
    for (int i = 0; i < 2 && !lists; i++)
        if (fixed[i][1])
            j->set[j->sets++] = (moegen_override){fixed[i][0], fixed[i][1]};
    return EXIT_OK;
}

static bool has_empty_name(const char *wanted)
{
    size_t len = strlen(wanted);
    return !len || *wanted == ',' || wanted[len - 1] == ',' || strstr(wanted, ",,");
}

static int find_kernels(struct job *j, const char *wanted)
{
    moegen_error *err = NULL;
    if (wanted && has_empty_name(wanted))
        return bad("%s:%s: no name of a kernel where one is wanted", j->path, wanted);
    struct listing names = {0};
    moegen_spec spec = {.struct_size = sizeof spec,
                        .text = j->text.at,
                        .len = j->text.len,
                        .label = j->label,
                        .overrides = j->set,
                        .override_count = (size_t)j->sets};
    struct ask a;
    moegen_status status = ask_open(&a, j->engine, &spec, "file", &err);
    if (!status && !wanted)
        status = host_kernels(&a.request, &names, &err);
    ask_close(&a);
    if (status)
        return fail(status, err);
    size_t count = wanted ? 1 : names.count;
    for (const char *c = wanted; c && *c; c++)
        count += *c == ',';
    j->kernel = calloc(count + 1, sizeof *j->kernel);
    bool whole = j->kernel != NULL;
    for (size_t i = 0; whole && i < count; i++) {
        const char *from = wanted ? wanted : names.item[i].name;
        size_t len = strcspn(from, ",");
        char *name = strndup(from, len);
        wanted = from[len] ? from + len + 1 : wanted;
        whole = name != NULL;
        j->kernel[j->kernels] = name;
        j->kernels += whole;
    }
    listing_free(&names);
    return whole ? EXIT_OK : fail(MOEGEN_NO_MEMORY, NULL);
}

int job_open(struct job *j, const struct options *o)
{
    *j = (struct job){0};
    if (o->operands.count != 1)
        return bad("%s takes one spec, got %d; `moegen %s --help` has examples", o->command->name,
                   o->operands.count, o->command->name);
    j->path = strdup(o->operands.at[0]);
    if (!j->path)
        return fail(MOEGEN_NO_MEMORY, NULL);
    const char *kernel = split_kernel(j->path);
    j->label = strcmp(j->path, "-") == 0 ? "<stdin>" : j->path;
    int result = read_file(j->path, SPEC_MOST, &j->text);
    if (result || (result = collect_sets(j, o)))
        return result;
    moegen_engine_options e = {
        .struct_size = sizeof e, .threads = (int)o->threads, .log = log_line};
    if (o->command->bit & BENCH) /* it tells how long compiling takes */
        e.cache_dir = "";
    moegen_error *err = NULL;
    moegen_status status = moegen_engine_create(&e, &j->engine, &err);
    if (status)
        return fail(status, err);
    return find_kernels(j, kernel);
}

moegen_spec job_spec(const struct job *j, int k, int extra)
{
    return (moegen_spec){
        .struct_size = sizeof(moegen_spec),
        .text = j->text.at,
        .len = j->text.len,
        .label = j->label,
        .kernel = *j->kernel[k] ? j->kernel[k] : NULL,
        .overrides = j->set,
        .override_count = (size_t)(j->sets + extra),
    };
}

moegen_status job_kernel(struct job *j, int k, int extra, int64_t tokens, const char *cc,
                         moegen_kernel **kernel, moegen_error **err)
{
    moegen_spec spec = job_spec(j, k, extra);
    moegen_status status = kernel_get(j->engine, &spec, cc, kernel, err);
    const char *fixed = status ? NULL : kernel_fixes(*kernel);
    if (!fixed || !tokens || kernel_tokens(*kernel, 0) == tokens)
        return status;
    moegen_kernel_release(*kernel);
    *kernel = NULL;
    snprintf(j->tokens, sizeof j->tokens, "%lld", (long long)tokens);
    j->set[j->sets + extra] = (moegen_override){fixed, j->tokens};
    spec = job_spec(j, k, extra + 1);
    return kernel_get(j->engine, &spec, cc, kernel, err);
}

void job_close(struct job *j)
{
    for (int i = 0; i < j->own_sets; i++)
        free((char *)(uintptr_t)j->set[i].key);
    for (int i = 0; i < j->kernels; i++)
        free(j->kernel[i]);
    free(j->kernel);
    free(j->set);
    free(j->path);
    text_free(&j->text);
    moegen_engine_release(j->engine);
    *j = (struct job){0};
}
