/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_gen.c - `moegen gen`: writes NAME.c and NAME.h of every chosen kernel, once all of them could
 * be generated. */
#include <errno.h>
#include <string.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "cli.h"

/* A word of a command as a shell reads it. */
static void add_word(struct text *t, const char *word)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%";
    if (*word && word[strspn(word, plain)] == '\0') {
        text_fmt(t, " %s", word);
        return;
    }
    text_add(t, " '", 2);
    for (; *word; word++)
        text_add(t, *word == '\'' ? "'\\''" : word, *word == '\'' ? 4 : 1);
    text_add(t, "'", 1);
}

static void add_option(struct text *t, const char *option, const char *value)
{
    if (value) {
        text_fmt(t, " %s", option);
        add_word(t, value);
    }
}

/* The command that the banner of the output names: what makes these bytes again, from the source's
 * directory. */
static void add_command(struct text *t, const struct options *o, const struct job *j, int k)
{
    struct text spec = {0};
    text_fmt(&spec, "%s%s%s", j->path, *j->kernel[k] ? ":" : "", j->kernel[k]);
    text_fmt(t, "./moegen gen");
    add_word(t, spec.at ? spec.at : "");
    const bool lost = spec.lost;
    text_free(&spec);
    add_option(t, "--target", o->target);
    add_option(t, "--spelling", o->spelling);
    for (int i = 0; i < o->set.count; i++)
        add_option(t, "--set", o->set.at[i]);
    add_option(t, "--stem", o->stem);
    if (lost)
        text_lose(t);
}

static int no_directory(const char *path, int why)
{
    return bad("cannot make directory %s: %s", path, strerror(why));
}

static int make_directory(const char *path)
{
    struct stat info;
    int why = mkdir(path, 0777) ? errno : 0; /* another process may make it now */
    if (why && stat(path, &info) == 0)
        return S_ISDIR(info.st_mode) ? EXIT_OK : bad("%s is not a directory", path);
    return why ? no_directory(path, why) : EXIT_OK;
}

/* Is it one, or can it be made? Seen before kernels are made, which may take long. */
static int directory_ready(const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0)
        return S_ISDIR(info.st_mode) ? EXIT_OK : bad("%s is not a directory", path);
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    char *name = strndup(path, len);
    int why = name ? file_ready(name) : ENOMEM;
    free(name);
    return why ? no_directory(path, why) : EXIT_OK;
}

/* Make escapes blanks and dollars so. */
static void add_escaped(struct text *t, const char *path)
{
    for (; *path; path++)
        text_fmt(t, "%s%c", *path == ' ' || *path == '#' ? "\\" : *path == '$' ? "$" : "", *path);
}

struct output {
    const char *dir;
    const struct options *o;
    struct text json, targets; /* what was written; the same for the dependency file */
};

static struct text path_of(const struct output *out, const char *stem, const char *suffix)
{
    struct text path = {0};
    bool here = strcmp(out->dir, ".") == 0;
    text_fmt(&path, "%s%s%s%s", here ? "" : out->dir, here ? "" : "/", stem, suffix);
    return path;
}

/* Would a file of the kernel take the place of one that is read, or another that of it? */
static int place_ready(const struct output *out, const char *stem, const char *suffix)
{
    const struct options *o = out->o;
    struct text path = path_of(out, stem, suffix);
    int result = EXIT_OK;
    if (path.lost)
        result = fail(MOEGEN_NO_MEMORY, NULL);
    else if (is_input(o, path.at))
        result = bad("%s is a file that is read, and would be one of the kernel", path.at);
    else if (o->depfile && strcmp(o->depfile, path.at) == 0)
        result = bad("--depfile: %s is a file of the kernel", path.at);
    else if (o->cflags && strcmp(o->cflags, path.at) == 0)
        result = bad("--cflags: %s is a file of the kernel", path.at);
    text_free(&path);
    return result;
}

static int write_one(struct output *out, const char *stem, const char *suffix, const char *text)
{
    struct text path = path_of(out, stem, suffix);
    bool changed;
    char size[32];
    if (path.lost)
        return fail(MOEGEN_NO_MEMORY, NULL);
    int result = write_file(path.at, text, strlen(text), &changed);
    if (!result) {
        text_fmt(&out->json, "%s\n  {\"file\": ", out->json.len ? "," : "");
        json_string(&out->json, path.at);
        text_fmt(&out->json, ", \"bytes\": %zu, \"changed\": %s}", strlen(text),
                 changed ? "true" : "false");
        text_add(&out->targets, " ", out->targets.len ? 1 : 0);
        add_escaped(&out->targets, path.at);
        if (!out->o->json && !quiet)
            printf("%s %s (%s)\n", changed ? "wrote" : "unchanged", path.at,
                   show_bytes(size, (double)strlen(text)));
    }
    text_free(&path);
    return result;
}

static int write_depfile(const struct output *out, const struct job *j)
{
    struct text t = {0};
    if (out->targets.lost)
        return fail(MOEGEN_NO_MEMORY, NULL);
    text_fmt(&t, "%s: ", out->targets.at);
    add_escaped(&t, j->path);
    text_add(&t, "\n", 1);
    int result = write_text(out->o->depfile, &t);
    text_free(&t);
    return result;
}

static int write_sources(const struct options *o, const struct job *j, moegen_source **source)
{
    struct output out = {.dir = o->out ? o->out : ".", .o = o};
    int result = EXIT_OK;
    if (strcmp(out.dir, "-") == 0) {
        for (int k = 0; k < j->kernels; k++)
            fputs(moegen_source_c(source[k]), stdout);
        return EXIT_OK;
    }
    for (int k = 0; k < j->kernels && !result; k++) {
        const char *stem = o->stem ? o->stem : moegen_source_name(source[k]);
        if (!(result = place_ready(&out, stem, ".c")))
            result = place_ready(&out, stem, ".h");
    }
    if (!result)
        result = make_directory(out.dir);
    for (int k = 0; k < j->kernels && !result; k++) {
        const char *stem = o->stem ? o->stem : moegen_source_name(source[k]);
        /* .c first: ninja wants a dependency file to name the first output first */
        if (!(result = write_one(&out, stem, ".c", moegen_source_c(source[k]))))
            result = write_one(&out, stem, ".h", moegen_source_h(source[k]));
    }
    if (!result && o->depfile)
        result = write_depfile(&out, j);
    if (!result && o->cflags) {
        const char *flags = moegen_source_cflags(source[0]);
        result = write_file(o->cflags, flags, strlen(flags), NULL);
    }
    if (!result && o->json && out.json.lost)
        result = fail(MOEGEN_NO_MEMORY, NULL);
    if (!result && o->json)
        printf("[%s\n]\n", out.json.at);
    text_free(&out.json);
    text_free(&out.targets);
    return result;
}

int cmd_gen(struct options *o)
{
    struct job j;
    moegen_source **source = NULL;
    moegen_error *err = NULL;
    int result = job_open(&j, o);
    if (result)
        goto out;
    source = calloc((size_t)j.kernels + 1, sizeof *source);
    if (!source) {
        result = fail(MOEGEN_NO_MEMORY, NULL);
        goto out;
    }
    if ((o->stem || o->cflags) && j.kernels != 1) {
        result = bad("%s is for one kernel, the spec has %d: give %s:KERNEL",
                     o->stem ? "--stem" : "--cflags", j.kernels, j.path);
        goto out;
    }
    if (o->stem && strchr(o->stem, '/')) {
        result = bad("--stem: '%s' is a path, where a name is wanted; -o says in which directory",
                     o->stem);
        goto out;
    }
    if (o->out && strcmp(o->out, "-") == 0 && (o->depfile || o->cflags)) {
        result =
            bad("%s goes with files; -o - prints the C", o->depfile ? "--depfile" : "--cflags");
        goto out;
    }
    if (o->out && strcmp(o->out, "-") != 0 && (result = directory_ready(o->out)))
        goto out;
    for (int k = 0; k < j.kernels; k++) {
        struct text command = {0};
        moegen_spec spec = job_spec(&j, k, 0);
        add_command(&command, o, &j, k);
        spec.command = command.at;
        moegen_status status =
            command.lost ? MOEGEN_NO_MEMORY : moegen_generate(j.engine, &spec, &source[k], &err);
        text_free(&command);
        progress(j.kernel[k], k + 1, j.kernels);
        if (status && (result = fail(status, err)))
            goto out;
    }
    result = write_sources(o, &j, source);
out:
    for (int k = 0; source && k < j.kernels; k++)
        moegen_source_release(source[k]);
    free(source);
    job_close(&j);
    return result;
}
