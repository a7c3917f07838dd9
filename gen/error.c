/* SPDX-License-Identifier: Apache-2.0 */
/* error.c - growable text, and errors as objects that hold every diagnostic. Never prints. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

void text_add(struct text *t, const char *bytes, size_t len)
{
    if (t->len + len + 1 > t->room) {
        size_t room = t->room ? t->room : 128;
        while (room < t->len + len + 1)
            room *= 2;
        char *at = realloc(t->at, room);
        if (!at) {
            t->lost = true;
            return;
        }
        t->at = at;
        t->room = room;
    }
    if (len)
        memcpy(t->at + t->len, bytes, len);
    t->len += len;
    t->at[t->len] = '\0';
}

static void add_formatted(struct text *t, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    char small[256];
    int n = vsnprintf(small, sizeof small, format, args);
    if (n >= 0 && (size_t)n < sizeof small) {
        text_add(t, small, (size_t)n);
    } else if (n >= 0) {
        char *large = malloc((size_t)n + 1);
        if (large) {
            vsnprintf(large, (size_t)n + 1, format, again);
            text_add(t, large, (size_t)n);
            free(large);
        } else {
            t->lost = true;
        }
    }
    va_end(again);
}

void text_fmt(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add_formatted(t, format, args);
    va_end(args);
}

void text_free(struct text *t)
{
    free(t->at);
    *t = (struct text){0};
}

static char *copy(const char *s)
{
    return s ? strdup(s) : NULL;
}

moegen_status error_add(moegen_error **err, moegen_status status, const char *file, int line,
                        int col, int len, const char *message, const char *hint, const char *source)
{
    if (!err)
        return status;
    if (!*err)
        *err = calloc(1, sizeof **err);
    moegen_error *e = *err;
    if (!e)
        return status;
    if (e->count == e->room) {
        size_t room = e->room ? 2 * e->room : 4;
        struct diag *more = realloc(e->diag, room * sizeof *more);
        if (!more)
            return status;
        e->diag = more;
        e->room = room;
    }
    if (e->count == 0)
        e->status = status;
    e->diag[e->count++] = (struct diag){
        .file = copy(file),
        .line = line,
        .col = col,
        .len = len < 1 ? 1 : len,
        .message = copy(message),
        .hint = copy(hint),
        .source = copy(source),
    };
    text_free(&e->rendered);
    return status;
}

moegen_status error_set(moegen_error **err, moegen_status status, const char *format, ...)
{
    struct text t = {0};
    va_list args;
    va_start(args, format);
    add_formatted(&t, format, args);
    va_end(args);
    error_add(err, status, NULL, 0, 0, 0, t.at ? t.at : "out of memory", NULL, NULL);
    text_free(&t);
    return status;
}
