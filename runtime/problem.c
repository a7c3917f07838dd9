/* SPDX-License-Identifier: Apache-2.0 */
/* problem.c - named tensors and flattened parameters; the sentences of failures. */
#include <errno.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime_private.h"

enum { MAX_NAME = 256 };

struct tensor {
    moegen_rt_tensor public;
    bool owned; /* data is ours */
};

struct param {
    char *key, *value;
};

/* A file that tensors lie in. */
struct map {
    struct map *next;
    void *at;
    size_t bytes;
};

struct moegen_rt_problem {
    struct tensor **tensor; /* one allocation each: public tensors stay in place */
    size_t tensors;
    struct param *param;
    size_t params;
    struct map *maps;
};

/* ---- failures and shapes ---- */

moegen_rt_status rt_fail(moegen_rt_error *err, moegen_rt_status status, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return status;
}

bool rt_tensor_bytes(moegen_rt_dtype dtype, int rank, const int64_t *shape, size_t *bytes)
{
    const moegen_rt_dtype_facts *facts = moegen_rt_dtype_of(dtype);
    if (!facts || rank < 0 || rank > 8)
        return false;
    uint64_t n = facts->bytes;
    bool empty = false;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0)
            return false;
        empty |= shape[i] == 0;
        if (shape[i] > 0 && __builtin_mul_overflow(n, (uint64_t)shape[i], &n))
            return false;
    }
    if (n > PTRDIFF_MAX)
        return false;
    *bytes = empty ? 0 : (size_t)n;
    return true;
}

const char *rt_shape(struct rt_shape_text *to, int rank, const int64_t *shape)
{
    size_t len = 0;
    to->text[len++] = '[';
    for (int i = 0; i < rank && i < 8; i++)
        len += (size_t)snprintf(to->text + len, sizeof to->text - len, "%s%lld", i ? ", " : "",
                                (long long)shape[i]);
    snprintf(to->text + len, sizeof to->text - len, "]");
    return to->text;
}

/* ---- tensors ---- */

moegen_rt_problem *moegen_rt_problem_create(void)
{
    return calloc(1, sizeof(moegen_rt_problem));
}

static void free_tensor(struct tensor *t)
{
    if (!t)
        return;
    if (t->owned)
        moegen_rt_free(t->public.data);
    free((char *)t->public.name);
    free(t);
}

void moegen_rt_problem_destroy(moegen_rt_problem *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->tensors; i++)
        free_tensor(p->tensor[i]);
    for (size_t i = 0; i < p->params; i++) {
        free(p->param[i].key);
        free(p->param[i].value);
    }
    for (struct map *m = p->maps, *next; m; m = next) {
        next = m->next;
        munmap(m->at, m->bytes);
        free(m);
    }
    free(p->tensor);
    free(p->param);
    free(p);
}

static size_t find(const moegen_rt_problem *p, const char *name)
{
    size_t i = 0;
    while (i < p->tensors && strcmp(p->tensor[i]->public.name, name) != 0)
        i++;
    return i;
}

static bool reserve(moegen_rt_problem *p, size_t more)
{
    struct tensor **grown = realloc(p->tensor, (p->tensors + more + 1) * sizeof(struct tensor *));
    if (grown)
        p->tensor = grown;
    return grown != NULL;
}

/* Puts t in the place of its namesake or at the end, where room is reserved. */
static void put(moegen_rt_problem *p, struct tensor *t)
{
    size_t i = find(p, t->public.name);
    if (i == p->tensors)
        p->tensors++;
    else
        free_tensor(p->tensor[i]);
    p->tensor[i] = t;
}

/* data NULL: memory of its own. */
static moegen_rt_status add(moegen_rt_problem *p, const char *name, moegen_rt_dtype dtype, int rank,
                            const int64_t *shape, void *data, moegen_rt_tensor **out,
                            moegen_rt_error *err)
{
    size_t bytes;
    struct rt_shape_text text;
    if (!*name || strlen(name) > MAX_NAME)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT,
                       "the name of a tensor has %zu bytes; allowed are 1 to %d", strlen(name),
                       MAX_NAME);
    if (!rt_tensor_bytes(dtype, rank, shape, &bytes))
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "tensor '%s' cannot have shape %s", name,
                       rt_shape(&text, rank, shape));
    struct tensor *t = calloc(1, sizeof *t);
    char *copy = strdup(name);
    bool owned = !data;
    if (t && copy && owned)
        data = moegen_rt_alloc(bytes);
    if (!t || !copy || !data || !reserve(p, 1)) {
        if (owned)
            moegen_rt_free(data);
        free(copy);
        free(t);
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory for tensor '%s' %s of %zu bytes",
                       name, rt_shape(&text, rank, shape), bytes);
    }
    t->owned = owned;
    t->public = (moegen_rt_tensor){
        .name = copy, .dtype = dtype, .rank = rank, .data = data, .bytes = bytes};
    if (rank)
        memcpy(t->public.shape, shape, (size_t)rank * sizeof *shape);
    put(p, t);
    if (out)
        *out = &t->public;
    return MOEGEN_RT_OK;
}

moegen_rt_status moegen_rt_problem_add(moegen_rt_problem *p, const char *name,
                                       moegen_rt_dtype dtype, int rank, const int64_t *shape,
                                       moegen_rt_tensor **tensor, moegen_rt_error *err)
{
    return add(p, name, dtype, rank, shape, NULL, tensor, err);
}

moegen_rt_status moegen_rt_problem_lend(moegen_rt_problem *p, const char *name,
                                        moegen_rt_dtype dtype, int rank, const int64_t *shape,
                                        void *data, moegen_rt_error *err)
{
    if (!data)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "tensor '%s' has no data", name);
    return add(p, name, dtype, rank, shape, data, NULL, err);
}

void moegen_rt_problem_drop(moegen_rt_problem *p, const char *name)
{
    size_t i = find(p, name);
    if (i == p->tensors)
        return;
    free_tensor(p->tensor[i]);
    p->tensors--;
    memmove(p->tensor + i, p->tensor + i + 1, (p->tensors - i) * sizeof *p->tensor);
}

moegen_rt_tensor *moegen_rt_problem_tensor(const moegen_rt_problem *p, const char *name)
{
    size_t i = find(p, name);
    return i < p->tensors ? &p->tensor[i]->public : NULL;
}

moegen_rt_tensor *moegen_rt_problem_at(const moegen_rt_problem *p, size_t i)
{
    return i < p->tensors ? &p->tensor[i]->public : NULL;
}

moegen_rt_status rt_problem_move(moegen_rt_problem *to, moegen_rt_problem *from,
                                 moegen_rt_error *err)
{
    if (!reserve(to, from->tensors))
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < from->tensors; i++)
        put(to, from->tensor[i]);
    from->tensors = 0;
    for (struct map *m; (m = from->maps);) {
        from->maps = m->next;
        m->next = to->maps;
        to->maps = m;
    }
    return MOEGEN_RT_OK;
}

char *rt_problem_map(moegen_rt_problem *p, int fd, size_t bytes)
{
    struct map *m = malloc(sizeof *m);
    void *at = m ? mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (at == MAP_FAILED) {
        free(m);
        return NULL;
    }
    *m = (struct map){p->maps, at, bytes};
    p->maps = m;
    return at;
}

/* ---- parameters ---- */

static struct param *find_param(const moegen_rt_problem *p, const char *key)
{
    for (size_t i = 0; i < p->params; i++)
        if (strcmp(p->param[i].key, key) == 0)
            return &p->param[i];
    return NULL;
}

moegen_rt_status moegen_rt_problem_set(moegen_rt_problem *p, const char *key, const char *value)
{
    struct param *at = find_param(p, key);
    if (!value) {
        if (at) {
            free(at->key);
            free(at->value);
            *at = p->param[--p->params];
        }
        return MOEGEN_RT_OK;
    }
    char *text = strdup(value);
    if (!text)
        return MOEGEN_RT_NO_MEMORY;
    if (at) {
        free(at->value);
        at->value = text;
        return MOEGEN_RT_OK;
    }
    char *name = strdup(key);
    struct param *grown = realloc(p->param, (p->params + 1) * sizeof *grown);
    if (grown)
        p->param = grown;
    if (!grown || !name) {
        free(name);
        free(text);
        return MOEGEN_RT_NO_MEMORY;
    }
    p->param[p->params++] = (struct param){name, text};
    return MOEGEN_RT_OK;
}

const char *moegen_rt_problem_text(const moegen_rt_problem *p, const char *key,
                                   const char *otherwise)
{
    const struct param *at = find_param(p, key);
    return at ? at->value : otherwise;
}

int64_t moegen_rt_problem_int(const moegen_rt_problem *p, const char *key, int64_t otherwise)
{
    const struct param *at = find_param(p, key);
    if (!at)
        return otherwise;
    char *end;
    errno = 0;
    long long value = strtoll(at->value, &end, 10);
    return end == at->value || *end || errno ? otherwise : value;
}

/* A number written with a point, whatever the locale says. */
static bool read_number(const char *s, double *value)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return false;
    char *end;
    *value = strtod_l(s, &end, c);
    freelocale(c);
    return end != s && !*end;
}

double moegen_rt_problem_number(const moegen_rt_problem *p, const char *key, double otherwise)
{
    const struct param *at = find_param(p, key);
    double value;
    return at && read_number(at->value, &value) ? value : otherwise;
}

int moegen_rt_problem_bool(const moegen_rt_problem *p, const char *key, int otherwise)
{
    const char *text = moegen_rt_problem_text(p, key, "");
    return strcmp(text, "true") == 0 ? 1 : strcmp(text, "false") == 0 ? 0 : otherwise;
}

bool rt_problem_param(const moegen_rt_problem *p, size_t i, const char **key, const char **value)
{
    if (i >= p->params)
        return false;
    *key = p->param[i].key;
    *value = p->param[i].value;
    return true;
}

moegen_rt_status rt_problem_params(moegen_rt_problem *to, const moegen_rt_problem *from,
                                   moegen_rt_error *err)
{
    moegen_rt_status status = MOEGEN_RT_OK;
    for (size_t i = 0; i < from->params && status == MOEGEN_RT_OK; i++)
        status = moegen_rt_problem_set(to, from->param[i].key, from->param[i].value);
    return status == MOEGEN_RT_OK ? status : rt_fail(err, status, "out of memory");
}
