/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_header.c - the JSON header of a tensor file, read strictly.
 *
 *     {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
 *      "__metadata__": {"text": "text", ...}}
 *
 * Nothing else is accepted: no other key, no duplicate, no fraction, no hole between tensors. A
 * dtype may be another one: that is for whoever wants the tensor.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime_private.h"

enum { MAX_TENSORS = 16384, MAX_TEXTS = 16384 };

static bool no_memory(struct rt_scan *s)
{
    s->status = rt_fail(s->err, MOEGEN_RT_NO_MEMORY, "%s: out of memory", s->path);
    return false;
}

static bool metadata(struct rt_scan *s, moegen_rt_problem *to)
{
    char key[sizeof s->string];
    int texts = 0;
    if (!rt_scan_expect(s, '{', "after \"__metadata__\""))
        return false;
    if (rt_scan_take(s, '}'))
        return true;
    do {
        if (!rt_scan_string(s, true, "in __metadata__"))
            return false;
        memcpy(key, s->string, sizeof key);
        if (!rt_scan_expect(s, ':', "in __metadata__") ||
            !rt_scan_string(s, true, "in __metadata__"))
            return false;
        if (to && ++texts > MAX_TEXTS)
            return rt_scan_bad(s, "more than %d texts in __metadata__", MAX_TEXTS);
        if (to && *key && moegen_rt_problem_set(to, key, s->string))
            return no_memory(s);
    } while (rt_scan_take(s, ','));
    return rt_scan_expect(s, '}', "after __metadata__");
}

/* The dtype of that name. Codes in other dtypes of a byte, int8 and e8m0, are as good in U8. */
static void name_dtype(const char *name, struct rt_entry *e)
{
    const bool is_code = strcmp(name, "I8") == 0 || strcmp(name, "F8_E8M0") == 0;
    const int dtype = rt_dtype_of_safetensors(name, strlen(name));
    e->dtype = dtype >= 0 ? (moegen_rt_dtype)dtype : is_code ? MOEGEN_RT_U8 : MOEGEN_RT_DTYPES;
    if (dtype < 0)
        snprintf(e->other, sizeof e->other, "%.15s", *name ? name : "?");
    rt_disarm(e->other);
}

enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };

static bool field(struct rt_scan *s, struct rt_entry *e, int *seen)
{
    static const char *const names[] = {"dtype", "shape", "data_offsets"};
    int64_t offsets[2];
    int n, which = 0;
    if (!rt_scan_string(s, true, "as a key"))
        return false;
    while (which < 3 && strcmp(names[which], s->string) != 0)
        which++;
    if (which == 3)
        return rt_scan_bad(s, "unknown key '%.64s'", s->string);
    if (*seen & 1 << which)
        return rt_scan_bad(s, "key '%s' twice", s->string);
    *seen |= 1 << which;
    if (!rt_scan_expect(s, ':', "after a key"))
        return false;
    if (1 << which == DTYPE) {
        if (!rt_scan_string(s, true, "after \"dtype\""))
            return false;
        name_dtype(s->string, e);
        return true;
    }
    if (1 << which == SHAPE)
        return rt_scan_numbers(s, 8, e->shape, &e->rank, "in \"shape\"");
    if (!rt_scan_numbers(s, 2, offsets, &n, "in \"data_offsets\""))
        return false;
    if (n != 2)
        return rt_scan_bad(s, "data_offsets needs two numbers");
    e->begin = (uint64_t)offsets[0];
    e->end = (uint64_t)offsets[1];
    return true;
}

static bool entry(struct rt_scan *s, struct rt_entry *e, uint64_t data_bytes)
{
    int seen = 0;
    size_t bytes;
    struct rt_shape_text text;
    if (!rt_scan_expect(s, '{', "after the name of a tensor"))
        return false;
    do {
        if (!field(s, e, &seen))
            return false;
    } while (rt_scan_take(s, ','));
    if (!rt_scan_expect(s, '}', "after the fields of a tensor"))
        return false;
    if (seen != (DTYPE | SHAPE | OFFSETS))
        return rt_scan_bad(s, "dtype, shape and data_offsets are all needed");
    if (e->begin > e->end || e->end > data_bytes)
        return rt_scan_bad(s, "data_offsets [%llu, %llu] are not inside the data of %llu bytes",
                           (unsigned long long)e->begin, (unsigned long long)e->end,
                           (unsigned long long)data_bytes);
    if (e->dtype == MOEGEN_RT_DTYPES)
        return true;
    if (!rt_tensor_bytes(e->dtype, e->rank, e->shape, &bytes))
        return rt_scan_bad(s, "shape %s is too large", rt_shape(&text, e->rank, e->shape));
    if (bytes != e->end - e->begin)
        return rt_scan_bad(s, "%s of shape %s needs %zu bytes, data_offsets give %llu",
                           *e->other ? e->other : moegen_rt_dtype_of(e->dtype)->safetensors,
                           rt_shape(&text, e->rank, e->shape), bytes,
                           (unsigned long long)(e->end - e->begin));
    return true;
}

static bool next_entry(struct rt_scan *s, struct rt_entry **entries, size_t *count, size_t *room,
                       uint64_t data_bytes)
{
    if (*count == MAX_TENSORS)
        return rt_scan_bad(s, "more than %d tensors", MAX_TENSORS);
    if (*count == *room) {
        size_t more = *room ? 2 * *room : 16;
        struct rt_entry *grown = realloc(*entries, more * sizeof **entries);
        if (!grown)
            return no_memory(s);
        *entries = grown;
        *room = more;
    }
    if (!*s->string)
        return rt_scan_bad(s, "a tensor has an empty name");
    struct rt_entry *e = &(*entries)[*count];
    *e = (struct rt_entry){.name = strdup(s->string)};
    if (!e->name)
        return no_memory(s);
    ++*count;
    memcpy(s->name, s->string, sizeof s->name);
    bool ok = entry(s, e, data_bytes);
    s->name[0] = '\0';
    return ok;
}

static int by_offset(const void *a, const void *b)
{
    const struct rt_entry *x = *(struct rt_entry *const *)a, *y = *(struct rt_entry *const *)b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct rt_entry *const *)a)->name, (*(struct rt_entry *const *)b)->name);
}

/* No name twice; the tensors cover the data without overlap or hole. */
static bool layout(struct rt_scan *s, struct rt_entry *entries, size_t count, uint64_t data_bytes)
{
    struct rt_entry **sorted = malloc((count + 1) * sizeof(struct rt_entry *));
    if (!sorted)
        return no_memory(s);
    bool ok = true;
    for (size_t i = 0; i < count; i++)
        sorted[i] = &entries[i];
    qsort(sorted, count, sizeof *sorted, by_name);
    for (size_t i = 1; i < count && ok; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            ok = rt_scan_bad(s, "tensor '%s' twice", sorted[i]->name);
    qsort(sorted, count, sizeof *sorted, by_offset);
    uint64_t end = 0;
    for (size_t i = 0; i < count && ok; end = sorted[i++]->end)
        if (sorted[i]->begin != end)
            ok = rt_scan_bad(s, "tensor '%s' %s", sorted[i]->name,
                             sorted[i]->begin < end ? "overlaps another"
                                                    : "leaves a hole in the data before it");
    if (ok && end != data_bytes)
        ok = rt_scan_bad(s, "the tensors cover %llu of %llu bytes of data", (unsigned long long)end,
                         (unsigned long long)data_bytes);
    free(sorted);
    return ok;
}

moegen_rt_status rt_header_parse(const char *path, const char *text, size_t len,
                                 uint64_t data_bytes, struct rt_entry **entries, size_t *count,
                                 moegen_rt_problem *texts, moegen_rt_error *err)
{
    struct rt_scan scan = {.path = path, .start = text, .at = text, .end = text + len, .err = err};
    struct rt_scan *s = &scan;
    size_t room = 0;
    *entries = NULL;
    *count = 0;
    if (!rt_scan_expect(s, '{', "at the start"))
        return s->status;
    if (!rt_scan_take(s, '}')) {
        bool has_metadata = false;
        do {
            if (!rt_scan_string(s, false, "naming a tensor") ||
                !rt_scan_expect(s, ':', "after a name"))
                return s->status;
            bool is_metadata = strcmp(s->string, "__metadata__") == 0;
            if (is_metadata && has_metadata)
                return rt_scan_bad(s, "__metadata__ twice"), s->status;
            has_metadata |= is_metadata;
            if (is_metadata ? !metadata(s, texts)
                            : !next_entry(s, entries, count, &room, data_bytes))
                return s->status;
        } while (rt_scan_take(s, ','));
        if (!rt_scan_expect(s, '}', "at the end"))
            return s->status;
    }
    rt_scan_skip(s); /* the white space that pads the header */
    if (s->at != s->end)
        return rt_scan_bad(s, "text after the end"), s->status;
    layout(s, *entries, *count, data_bytes);
    return s->status;
}

void rt_entries_free(struct rt_entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(entries[i].name);
    free(entries);
}
