/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_header.c - the JSON header of a tensor file, read strictly.
 *
 *     {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
 *      "__metadata__": {"text": "text", ...}}
 *
 * Nothing else is accepted: no other key, no duplicate, no fraction, no hole between tensors.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime_private.h"

enum { MAX_NAME = 256, MAX_TENSORS = 16384 };

struct scan {
    const char *path;
    const char *start, *at, *end; /* *end is readable and not part of the text */
    char string[MAX_NAME + 1];    /* last string read */
    char name[MAX_NAME + 1];      /* tensor being read, "" outside of one */
    moegen_rt_status status;      /* of the first failure */
    moegen_rt_error *err;
};

/* The first failure stays. Always false. */
static bool bad(struct scan *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool bad(struct scan *s, const char *format, ...)
{
    if (s->status != MOEGEN_RT_OK)
        return false;
    char what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    s->status = *s->name ? rt_fail(s->err, MOEGEN_RT_BAD_DATA, "%s: tensor '%s': %s", s->path,
                                   s->name, what)
                         : rt_fail(s->err, MOEGEN_RT_BAD_DATA, "%s: header, byte %zu: %s", s->path,
                                   (size_t)(s->at - s->start), what);
    return false;
}

static bool no_memory(struct scan *s)
{
    s->status = rt_fail(s->err, MOEGEN_RT_NO_MEMORY, "%s: out of memory", s->path);
    return false;
}

/* ---- tokens ---- */

static void skip(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r'))
        s->at++;
}

/* Skips white space; true and past it if the next character is c. */
static bool take(struct scan *s, char c)
{
    skip(s);
    if (s->at == s->end || *s->at != c)
        return false;
    s->at++;
    return true;
}

static bool expect(struct scan *s, char c, const char *where)
{
    return take(s, c) || bad(s, "expected '%c' %s", c, where);
}

int rt_utf8(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    int n = s[0] < 0x80   ? 1
            : s[0] < 0xc2 ? 0
            : s[0] < 0xe0 ? 2
            : s[0] < 0xf0 ? 3
            : s[0] < 0xf5 ? 4
                          : 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || /* overlong, surrogate */
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))   /* beyond U+10FFFF */
        return 0;
    return n;
}

static int put_utf8(char *to, uint32_t c)
{
    if (c < 0x80)
        return to[0] = (char)c, 1;
    if (c < 0x800)
        return to[0] = (char)(0xc0 | c >> 6), to[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000)
        return to[0] = (char)(0xe0 | c >> 12), to[1] = (char)(0x80 | (c >> 6 & 63)),
               to[2] = (char)(0x80 | (c & 63)), 3;
    return to[0] = (char)(0xf0 | c >> 18), to[1] = (char)(0x80 | (c >> 12 & 63)),
           to[2] = (char)(0x80 | (c >> 6 & 63)), to[3] = (char)(0x80 | (c & 63)), 4;
}

/* Four hexadecimal digits. */
static bool hex4(struct scan *s, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char *d = s->at < s->end && *s->at ? strchr(digits, *s->at) : NULL;
        if (!d)
            return bad(s, "\\u needs four hexadecimal digits");
        *code = *code << 4 | (uint32_t)((d - digits) & 15);
    }
    return true;
}

/* What follows a backslash, as UTF-8 in to. */
static bool escape(struct scan *s, char *to, int *len)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    char c = s->at < s->end ? *s->at++ : '\0';
    const char *known = c ? strchr(from, c) : NULL;
    uint32_t code, low;
    if (known)
        return *to = into[known - from], *len = 1, true;
    if (c != 'u')
        return bad(s, "unknown escape in a string");
    if (!hex4(s, &code))
        return false;
    if (code >= 0xd800 && code < 0xdc00) {
        if (s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u')
            return bad(s, "half of a surrogate pair");
        s->at += 2;
        if (!hex4(s, &low))
            return false;
        if (low < 0xdc00 || low > 0xdfff)
            return bad(s, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        return bad(s, "half of a surrogate pair");
    }
    if (code == 0)
        return bad(s, "a string holds the character NUL");
    *len = put_utf8(to, code);
    return true;
}

/* A string into s->string; one too long for it is refused, or reads as "" if `any`. */
static bool string(struct scan *s, bool any, const char *where)
{
    size_t len = 0;
    if (!take(s, '"'))
        return bad(s, "expected a string %s", where);
    for (;;) {
        char piece[4];
        int n = 1;
        if (s->at == s->end)
            return bad(s, "a string does not end");
        if (*s->at == '"')
            break;
        if ((unsigned char)*s->at < 0x20)
            return bad(s, "a string holds a control character");
        if (*s->at == '\\') {
            s->at++;
            if (!escape(s, piece, &n))
                return false;
        } else {
            n = rt_utf8(s->at);
            if (n == 0 || n > s->end - s->at)
                return bad(s, "a string is not UTF-8");
            memcpy(piece, s->at, (size_t)n);
            s->at += n;
        }
        if (len + (size_t)n <= MAX_NAME)
            memcpy(s->string + len, piece, (size_t)n);
        else if (!any)
            return bad(s, "a name is longer than %d bytes", MAX_NAME);
        len += (size_t)n;
    }
    s->at++;
    s->string[len <= MAX_NAME ? len : 0] = '\0';
    return true;
}

/* A whole number below 2^63 without sign, fraction or leading zero. */
static bool number(struct scan *s, int64_t *value)
{
    skip(s);
    const char *first = s->at;
    uint64_t v = 0;
    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++) {
        if (v > (INT64_MAX - 9) / 10)
            return bad(s, "a number is too large");
        v = v * 10 + (uint64_t)(*s->at - '0');
    }
    if (s->at == first || (*first == '0' && s->at - first > 1))
        return bad(s, "expected a whole number, not negative, without leading zeros");
    *value = (int64_t)v;
    return true;
}

/* [n, n, ...] of at most `room` numbers. */
static bool numbers(struct scan *s, int room, int64_t *to, int *count, const char *what)
{
    *count = 0;
    if (!expect(s, '[', what))
        return false;
    if (take(s, ']'))
        return true;
    do {
        if (*count == room)
            return bad(s, "more than %d numbers %s", room, what);
        if (!number(s, &to[(*count)++]))
            return false;
    } while (take(s, ','));
    return expect(s, ']', what);
}

/* ---- the header ---- */

static bool metadata(struct scan *s)
{
    if (!expect(s, '{', "after \"__metadata__\""))
        return false;
    if (take(s, '}'))
        return true;
    do {
        if (!string(s, true, "in __metadata__") || !expect(s, ':', "in __metadata__") ||
            !string(s, true, "in __metadata__"))
            return false;
    } while (take(s, ','));
    return expect(s, '}', "after __metadata__");
}

enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };

static bool field(struct scan *s, struct rt_entry *e, int *seen)
{
    static const char *const names[] = {"dtype", "shape", "data_offsets"};
    int64_t offsets[2];
    int n, which = 0;
    if (!string(s, true, "as a key"))
        return false;
    while (which < 3 && strcmp(names[which], s->string) != 0)
        which++;
    if (which == 3)
        return bad(s, "unknown key '%.64s'", s->string);
    if (*seen & 1 << which)
        return bad(s, "key '%s' twice", s->string);
    *seen |= 1 << which;
    if (!expect(s, ':', "after a key"))
        return false;
    if (1 << which == DTYPE) {
        if (!string(s, true, "after \"dtype\""))
            return false;
        int dtype = rt_dtype_of_safetensors(s->string, strlen(s->string));
        if (dtype < 0)
            return bad(s, "dtype '%.64s' is not one of" RT_DTYPE_FILE_NAMES, s->string);
        e->dtype = (moegen_rt_dtype)dtype;
        return true;
    }
    if (1 << which == SHAPE)
        return numbers(s, 8, e->shape, &e->rank, "in \"shape\"");
    if (!numbers(s, 2, offsets, &n, "in \"data_offsets\""))
        return false;
    if (n != 2)
        return bad(s, "data_offsets needs two numbers");
    e->begin = (uint64_t)offsets[0];
    e->end = (uint64_t)offsets[1];
    return true;
}

static bool entry(struct scan *s, struct rt_entry *e, uint64_t data_bytes)
{
    int seen = 0;
    size_t bytes;
    struct rt_shape_text text;
    if (!expect(s, '{', "after the name of a tensor"))
        return false;
    do {
        if (!field(s, e, &seen))
            return false;
    } while (take(s, ','));
    if (!expect(s, '}', "after the fields of a tensor"))
        return false;
    if (seen != (DTYPE | SHAPE | OFFSETS))
        return bad(s, "dtype, shape and data_offsets are all needed");
    if (e->begin > e->end || e->end > data_bytes)
        return bad(s, "data_offsets [%llu, %llu] are not inside the data of %llu bytes",
                   (unsigned long long)e->begin, (unsigned long long)e->end,
                   (unsigned long long)data_bytes);
    if (!rt_tensor_bytes(e->dtype, e->rank, e->shape, &bytes))
        return bad(s, "shape %s is too large", rt_shape(&text, e->rank, e->shape));
    if (bytes != e->end - e->begin)
        return bad(s, "%s of shape %s needs %zu bytes, data_offsets give %llu",
                   moegen_rt_dtype_of(e->dtype)->safetensors, rt_shape(&text, e->rank, e->shape),
                   bytes, (unsigned long long)(e->end - e->begin));
    return true;
}

static bool next_entry(struct scan *s, struct rt_entry **entries, size_t *count, size_t *room,
                       uint64_t data_bytes)
{
    if (*count == MAX_TENSORS)
        return bad(s, "more than %d tensors", MAX_TENSORS);
    if (*count == *room) {
        size_t more = *room ? 2 * *room : 16;
        struct rt_entry *grown = realloc(*entries, more * sizeof **entries);
        if (!grown)
            return no_memory(s);
        *entries = grown;
        *room = more;
    }
    if (!*s->string)
        return bad(s, "a tensor has an empty name");
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
static bool layout(struct scan *s, struct rt_entry *entries, size_t count, uint64_t data_bytes)
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
            ok = bad(s, "tensor '%s' twice", sorted[i]->name);
    qsort(sorted, count, sizeof *sorted, by_offset);
    uint64_t end = 0;
    for (size_t i = 0; i < count && ok; end = sorted[i++]->end)
        if (sorted[i]->begin != end)
            ok = bad(s, "tensor '%s' %s", sorted[i]->name,
                     sorted[i]->begin < end ? "overlaps another"
                                            : "leaves a hole in the data before it");
    if (ok && end != data_bytes)
        ok = bad(s, "the tensors cover %llu of %llu bytes of data", (unsigned long long)end,
                 (unsigned long long)data_bytes);
    free(sorted);
    return ok;
}

moegen_rt_status rt_header_parse(const char *path, const char *text, size_t len,
                                 uint64_t data_bytes, struct rt_entry **entries, size_t *count,
                                 moegen_rt_error *err)
{
    struct scan scan = {.path = path, .start = text, .at = text, .end = text + len, .err = err};
    struct scan *s = &scan;
    size_t room = 0;
    *entries = NULL;
    *count = 0;
    if (!expect(s, '{', "at the start"))
        return s->status;
    if (!take(s, '}')) {
        bool has_metadata = false;
        do {
            if (!string(s, false, "naming a tensor") || !expect(s, ':', "after a name"))
                return s->status;
            bool is_metadata = strcmp(s->string, "__metadata__") == 0;
            if (is_metadata && has_metadata)
                return bad(s, "__metadata__ twice"), s->status;
            has_metadata |= is_metadata;
            if (is_metadata ? !metadata(s) : !next_entry(s, entries, count, &room, data_bytes))
                return s->status;
        } while (take(s, ','));
        if (!expect(s, '}', "at the end"))
            return s->status;
    }
    skip(s); /* the white space that pads the header */
    if (s->at != s->end)
        return bad(s, "text after the end"), s->status;
    layout(s, *entries, *count, data_bytes);
    return s->status;
}

void rt_entries_free(struct rt_entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(entries[i].name);
    free(entries);
}
