/* SPDX-License-Identifier: Apache-2.0 */
/* error.c - growable text, and errors as objects that hold every diagnostic. Never prints. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"

void text_lose(struct text *t)
{
    free(t->at);
    *t = (struct text){.lost = true};
}

/* Room for `more` bytes and a NUL; false: lost. */
static bool reserve(struct text *t, size_t more)
{
    if (t->lost)
        return false;
    if (more >= t->room - t->len) {
        size_t room = t->room ? t->room : 128;
        while (room - t->len <= more && room <= SIZE_MAX / 2)
            room *= 2;
        char *at = room - t->len > more ? realloc(t->at, room) : NULL;
        if (!at) {
            text_lose(t);
            return false;
        }
        t->at = at;
        t->room = room;
    }
    return true;
}

void text_add(struct text *t, const char *bytes, size_t len)
{
    if (!reserve(t, len))
        return;
    if (len)
        memcpy(t->at + t->len, bytes, len);
    t->len += len;
    t->at[t->len] = '\0';
}

void text_vfmt(struct text *t, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    char small[256];
    int n = vsnprintf(small, sizeof small, format, args);
    if (n < 0) {
        text_lose(t);
    } else if ((size_t)n < sizeof small) {
        text_add(t, small, (size_t)n);
    } else if (reserve(t, (size_t)n)) {
        vsnprintf(t->at + t->len, (size_t)n + 1, format, again);
        t->len += (size_t)n;
    }
    va_end(again);
}

void text_fmt(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    text_vfmt(t, format, args);
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

/* Stands for a complaint that could not be kept. */
static const char out_of_memory[] = "out of memory for the complaint";

moegen_error error_lost = {.lost = true};

moegen_status error_add(moegen_error **err, moegen_status status, const char *file, int line,
                        int col, int len, const char *message, const char *hint, const char *source)
{
    if (!err || *err == &error_lost)
        return status;
    if (!*err)
        *err = calloc(1, sizeof **err);
    if (!*err) {
        *err = &error_lost;
        return status;
    }
    moegen_error *e = *err;
    text_free(&e->rendered);
    if (e->count == e->room) {
        size_t room = e->room ? 2 * e->room : 4;
        struct diag *more = realloc(e->diag, room * sizeof *more);
        if (!more) {
            e->lost = true;
            return status;
        }
        e->diag = more;
        e->room = room;
    }
    struct diag d = {
        .file = copy(file),
        .line = line,
        .col = col,
        .len = len < 1 ? 1 : len,
        .message = copy(message),
        .hint = copy(hint),
        .source = copy(source),
    };
    if (file && !d.file) /* a place in no file says nothing */
        d.line = d.col = 0;
    e->diag[e->count++] = d;
    return status;
}

moegen_status error_take(moegen_error **err, moegen_status status, struct text *message)
{
    if (message->lost)
        error_add(err, status, NULL, 0, 0, 0, out_of_memory, NULL, NULL);
    else
        error_add(err, status, NULL, 0, 0, 0, message->at ? message->at : "", NULL, NULL);
    text_free(message);
    return status;
}

moegen_status error_set(moegen_error **err, moegen_status status, const char *format, ...)
{
    struct text t = {0};
    va_list args;
    va_start(args, format);
    text_vfmt(&t, format, args);
    va_end(args);
    return error_take(err, status, &t);
}
