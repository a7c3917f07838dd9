/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.c - tensors under the names that a checkpoint has for them: the spec's keys
 * `tensors` and `layer`. One tensor for each expert becomes a list, or one tensor. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trial.h"

static const char layer_hole[] = "{layer}", expert_hole[] = "{expert}";

/* ---- names ---- */

/* A name with `hole` filled. */
static void fill_hole(struct text *t, const char *name, const char *hole, const char *with)
{
    const char *at;
    for (; (at = strstr(name, hole)) != NULL; name = at + strlen(hole))
        text_fmt(t, "%.*s%s", (int)(at - name), name, with);
    text_fmt(t, "%s", name);
}

/* The checkpoint's name of an argument, {expert} left in it; empty: the spec gives none. */
static struct text name_of(const moegen_kernel *kernel, const char *arg)
{
    struct text key = {0}, name = {0};
    text_fmt(&key, "tensors.%s.name", arg);
    const char *value = key.at ? moegen_kernel_param(kernel, key.at) : NULL;
    const char *layer = moegen_kernel_param(kernel, "layer");
    if (value)
        fill_hole(&name, value, layer_hole, layer ? layer : "");
    name.lost = name.lost || key.lost;
    text_free(&key);
    return name;
}

static bool is_transposed(const moegen_kernel *kernel, const char *arg)
{
    struct text key = {0};
    text_fmt(&key, "tensors.%s.transposed", arg);
    const char *value = key.at ? moegen_kernel_param(kernel, key.at) : NULL;
    text_free(&key);
    return value && strcmp(value, "true") == 0;
}

/* Is `name` the pattern, with any number for {expert}? */
static bool matches(const char *pattern, const char *name)
{
    const char *hole = strstr(pattern, expert_hole);
    if (!hole)
        return strcmp(pattern, name) == 0;
    size_t before = (size_t)(hole - pattern), digits = 0;
    if (strncmp(pattern, name, before) == 0)
        digits = strspn(name + before, "0123456789");
    return digits && strcmp(hole + strlen(expert_hole), name + before + digits) == 0;
}

/* ---- reading ---- */

struct wanted {
    const moegen_kernel_facts *facts;
    struct text name[MAX_ARGS]; /* the checkpoint's */
    bool any;                   /* is there one? */
    void (*other)(const char *name);
};

/* Does the kernel take it? */
static int is_taken(void *user, const char *name)
{
    const struct wanted *w = user;
    bool taken = false;
    for (int i = 0; i < w->facts->arg_count && !taken; i++)
        taken = strcmp(w->facts->args[i].name, name) == 0 ||
                (w->name[i].len && matches(w->name[i].at, name));
    return taken;
}

static int is_wanted(void *user, const char *name)
{
    const struct wanted *w = user;
    const int taken = is_taken(user, name);
    if (!taken && !w->any)
        w->other(name);
    return taken;
}

static int is_tensor_file(const struct dirent *entry)
{
    static const char suffix[] = ".safetensors";
    size_t len = strlen(entry->d_name);
    return len > sizeof suffix - 1 &&
           strcmp(entry->d_name + len - (sizeof suffix - 1), suffix) == 0;
}

/* Paths, owned. */
struct files {
    char **at;
    int count;
};

static moegen_status add_file(struct files *f, const char *directory, const char *name,
                              moegen_error **err)
{
    struct text path = {0};
    char **more = realloc(f->at, (size_t)(f->count + 1) * sizeof *more);
    f->at = more ? more : f->at;
    text_fmt(&path, "%s%s%s", directory, *directory ? "/" : "", name);
    if (!more || path.lost) {
        text_free(&path);
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    }
    f->at[f->count++] = path.at;
    return MOEGEN_OK;
}

/* All tensor files of a directory, in the order of their names. */
static moegen_status add_directory(struct files *f, const char *path, moegen_error **err)
{
    struct dirent **entries;
    int count = scandir(path, &entries, is_tensor_file, alphasort);
    moegen_status result = MOEGEN_OK;
    if (count < 0)
        return error_set(err, errno == ENOMEM ? MOEGEN_NO_MEMORY : MOEGEN_BAD_ARGUMENT,
                         "cannot read %s: %s", path, strerror(errno));
    if (count == 0)
        result =
            error_set(err, MOEGEN_BAD_ARGUMENT, "%s: no *.safetensors in this directory", path);
    for (int i = 0; i < count; i++) {
        if (!result)
            result = add_file(f, path, entries[i]->d_name, err);
        free(entries[i]);
    }
    free(entries);
    return result;
}

static moegen_status read_files(const struct files *f, struct wanted *w, moegen_rt_problem *in,
                                moegen_error **err)
{
    moegen_rt_error why;
    moegen_status result = files_distinct((const char *const *)f->at, f->count, is_taken, w, err);
    for (int i = 0; i < f->count && !result; i++)
        if (moegen_rt_safetensors_read_some(f->at[i], in, is_wanted, w, &why))
            result = error_set(err, MOEGEN_BAD_ARGUMENT, "%s", why.text);
    return result;
}

moegen_status checkpoint_read(const moegen_kernel *kernel, const char *const *path, int paths,
                              void (*other)(const char *name), moegen_rt_problem *in,
                              moegen_error **err)
{
    struct wanted w = {.facts = kernel_facts(kernel), .other = other};
    struct files f = {0};
    bool lacks_memory = false;
    for (int i = 0; i < w.facts->arg_count; i++) {
        w.name[i] = name_of(kernel, w.facts->args[i].name);
        w.any = w.any || w.name[i].len;
        lacks_memory = lacks_memory || w.name[i].lost;
    }
    moegen_status result =
        lacks_memory ? error_set(err, MOEGEN_NO_MEMORY, "out of memory") : MOEGEN_OK;
    for (int i = 0; i < paths && !result; i++) {
        DIR *directory = opendir(path[i]);
        if (directory)
            closedir(directory);
        result = directory ? add_directory(&f, path[i], err) : add_file(&f, "", path[i], err);
    }
    if (!result)
        result = read_files(&f, &w, in, err);
    for (int i = 0; i < f.count; i++)
        free(f.at[i]);
    free(f.at);
    for (int i = 0; i < w.facts->arg_count; i++)
        text_free(&w.name[i]);
    return result;
}

/* ---- binding ---- */

/* What an argument consists of. */
struct parts {
    const moegen_arg *arg;
    const moegen_rt_tensor **at;
    int64_t count;
    bool is_list; /* one for each expert */
    bool transposed;
};

static moegen_status missing(const struct parts *p, const char *name, moegen_error **err)
{
    return error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s' is missing: there is no '%s'",
                     p->arg->name, name);
}

/* Finds all; they are alike. Complains. */
static moegen_status find_parts(struct parts *p, const char *pattern, const moegen_rt_problem *in,
                                moegen_error **err)
{
    moegen_status status = MOEGEN_OK;
    for (int64_t e = 0; e < p->count && !status; e++) {
        struct text name = {0};
        char number[24];
        snprintf(number, sizeof number, "%" PRId64, e);
        fill_hole(&name, pattern, expert_hole, number);
        const moegen_rt_tensor *t = name.lost ? NULL : moegen_rt_problem_tensor(in, name.at);
        p->at[e] = t;
        const moegen_rt_tensor *first = p->at[0];
        if (name.lost)
            status = error_set(err, MOEGEN_NO_MEMORY, "out of memory");
        else if (!t)
            status = missing(p, name.at, err);
        else if (t->dtype != first->dtype || t->rank != first->rank ||
                 memcmp(t->shape, first->shape, (size_t)t->rank * sizeof *t->shape) != 0)
            status =
                error_set(err, MOEGEN_BAD_ARGUMENT,
                          "tensor '%s' has another dtype or shape than '%s'", t->name, first->name);
        else if (p->transposed && t->rank != 2)
            status =
                error_set(err, MOEGEN_BAD_ARGUMENT,
                          "tensor '%s' has %d extents: transposed ones have 2", t->name, t->rank);
        text_free(&name);
    }
    return status;
}

/* One tensor of all of them, under the argument's name; a copy. */
static moegen_status join(const struct parts *p, moegen_rt_problem *in, moegen_error **err)
{
    const moegen_rt_tensor *first = p->at[0];
    int64_t shape[MAX_RANK + 1] = {p->count};
    int rank = first->rank + p->is_list;
    moegen_rt_error why;
    moegen_rt_tensor *to;
    memcpy(shape + p->is_list, first->shape, (size_t)first->rank * sizeof *shape);
    if (p->transposed) {
        shape[rank - 2] = first->shape[1];
        shape[rank - 1] = first->shape[0];
    }
    if (rank > MAX_RANK ||
        moegen_rt_problem_add(in, p->arg->name, first->dtype, rank, shape, &to, &why))
        return error_set(err, MOEGEN_BAD_ARGUMENT, "tensor '%s': %s", p->arg->name,
                         rank > MAX_RANK ? "too many extents" : why.text);
    size_t size = moegen_rt_dtype_of(first->dtype)->bytes, bytes = first->bytes;
    for (int64_t e = 0; e < p->count; e++) {
        char *at = (char *)to->data + (size_t)e * bytes;
        const char *from = p->at[e]->data;
        int64_t rows = p->transposed ? first->shape[0] : 1, columns = first->shape[1];
        if (!p->transposed)
            memcpy(at, from, bytes);
        for (int64_t r = 0; r < rows && p->transposed; r++)
            for (int64_t c = 0; c < columns; c++)
                memcpy(at + (size_t)(c * rows + r) * size, from + (size_t)(r * columns + c) * size,
                       size);
    }
    return MOEGEN_OK;
}

/* As they lie: one under the argument's name, or a list. */
static moegen_status bind_parts(const struct parts *p, moegen_call *call, moegen_rt_problem *in,
                                bool *is_bound, moegen_error **err)
{
    const moegen_rt_tensor *t = p->at[0];
    moegen_rt_error why;
    if (!p->is_list)
        return moegen_rt_problem_lend(in, p->arg->name, t->dtype, t->rank, t->shape, t->data, &why)
                   ? error_set(err, MOEGEN_NO_MEMORY, "%s", why.text)
                   : MOEGEN_OK;
    const void **list = malloc((size_t)p->count * sizeof *list);
    if (!list)
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    for (int64_t e = 0; e < p->count; e++)
        list[e] = p->at[e]->data;
    *is_bound = true;
    moegen_status status = moegen_call_bind_experts(call, p->arg->name, list, p->count,
                                                    (moegen_dtype)t->dtype, t->rank, t->shape, err);
    free(list);
    return status;
}

moegen_status checkpoint_bind(const moegen_kernel *kernel, moegen_call *call, const moegen_arg *a,
                              moegen_rt_problem *in, bool *is_bound, moegen_error **err)
{
    struct text name = name_of(kernel, a->name);
    struct parts p = {.arg = a, .transposed = is_transposed(kernel, a->name)};
    moegen_status status = MOEGEN_OK;
    p.is_list = name.len && strstr(name.at, expert_hole);
    p.count = p.is_list ? param_int(kernel, "E", 1) : 1;
    p.at = calloc((size_t)p.count, sizeof *p.at);
    if (name.lost || !p.at)
        status = error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    else if (!name.len || moegen_rt_problem_tensor(in, a->name))
        ; /* it has the argument's own name */
    else if (!(status = find_parts(&p, name.at, in, err))) {
        bool fits =
            kernel_takes_list(kernel, a->name) && p.at[0]->dtype == (moegen_rt_dtype)a->dtype;
        bool as_is = !p.transposed && (!p.is_list || fits);
        status = as_is ? bind_parts(&p, call, in, is_bound, err) : join(&p, in, err);
    }
    free(p.at);
    text_free(&name);
    return status;
}
