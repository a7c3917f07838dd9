/* SPDX-License-Identifier: Apache-2.0 */
/* diagnostic.c - the public side of errors, names of statuses and dtypes, the version. */
#include <stdlib.h>
#include <string.h>

#include "moegen_runtime.h"
#include "engine.h"

static const char *const status_names[] = {
    [MOEGEN_OK] = "ok",
    [MOEGEN_BAD_ARGUMENT] = "bad argument",
    [MOEGEN_BAD_SPEC] = "bad spec",
    [MOEGEN_UNSUPPORTED] = "not supported on this machine",
    [MOEGEN_BAD_DATA] = "bad data",
    [MOEGEN_NO_MEMORY] = "out of memory",
    [MOEGEN_IO] = "input/output error",
    [MOEGEN_INTERNAL] = "internal error",
};

uint32_t moegen_version(void)
{
    return MOEGEN_VERSION_MAJOR * 10000 + MOEGEN_VERSION_MINOR * 100 + MOEGEN_VERSION_PATCH;
}

const char *moegen_status_name(moegen_status status)
{
    return (size_t)status <= MOEGEN_INTERNAL ? status_names[status] : "unknown status";
}

const char *moegen_dtype_name(moegen_dtype dtype)
{
    const moegen_rt_dtype_facts *facts = moegen_rt_dtype_of((moegen_rt_dtype)dtype);
    return facts ? facts->name : "?";
}

size_t moegen_dtype_size(moegen_dtype dtype)
{
    const moegen_rt_dtype_facts *facts = moegen_rt_dtype_of((moegen_rt_dtype)dtype);
    return facts ? facts->bytes : 0;
}

int dtype_find(const char *name)
{
    moegen_rt_dtype found;
    return moegen_rt_dtype_find(name, &found) ? (int)found : -1;
}

/* Columns count code points, so the caret line repeats tabs and gives every other code point one
 * space. */
static void indent(struct text *t, const char *source, int col)
{
    const char *at = source;
    for (int i = 1; i < col; i++) {
        text_add(t, *at == '\t' ? "\t" : " ", 1);
        if (*at)
            at++;
        while (((unsigned char)*at & 0xC0) == 0x80)
            at++;
    }
}

const char *diag_message(const struct diag *d)
{
    return d->message ? d->message : "out of memory";
}

void diag_render(struct text *t, const struct diag *d, const struct paint *p)
{
    if (d->file)
        text_fmt(t, "%s%s:", p->place, d->file);
    if (d->line > 0)
        text_fmt(t, "%d:%d:", d->line, d->col);
    text_fmt(t, "%s%serror:%s %s\n", d->file ? " " : "", p->error, p->off, diag_message(d));
    if (d->source && d->line > 0) {
        text_fmt(t, "%5d | %s\n      | ", d->line, d->source);
        indent(t, d->source, d->col);
        text_fmt(t, "%s^", p->error);
        for (int i = 1; i < d->len; i++)
            text_add(t, "~", 1);
        text_fmt(t, "%s\n", p->off);
    }
    if (d->hint)
        text_fmt(t, "%s%shint:%s %s\n", d->source ? "      = " : "  ", p->hint, p->off, d->hint);
}

const char *moegen_error_text(moegen_error *err)
{
    static const struct paint plain = {"", "", "", ""};
    if (!err)
        return "";
    if (err == &error_lost)
        return "error: out of memory\n";
    struct text *t = &err->rendered;
    if (t->lost)
        text_free(t);
    if (!t->at) {
        for (size_t i = 0; i < err->count; i++)
            diag_render(t, &err->diag[i], &plain);
        if (err->lost)
            text_fmt(t, "error: out of memory for more complaints\n");
    }
    return t->at ? t->at : "error: out of memory\n";
}

size_t moegen_error_count(const moegen_error *err)
{
    return err == &error_lost ? 1 : err ? err->count : 0;
}

moegen_status moegen_error_diagnostic(const moegen_error *err, size_t i, moegen_diagnostic *out)
{
    static const struct diag lost = {.len = 1};
    if (i >= moegen_error_count(err) || !out)
        return MOEGEN_BAD_ARGUMENT;
    const struct diag *d = err == &error_lost ? &lost : &err->diag[i];
    *out = (moegen_diagnostic){
        .file = d->file,
        .line = d->line,
        .col = d->col,
        .len = d->len,
        .message = diag_message(d),
        .hint = d->hint,
        .source = d->source,
    };
    return MOEGEN_OK;
}

void moegen_error_release(moegen_error *err)
{
    if (!err || err == &error_lost)
        return;
    for (size_t i = 0; i < err->count; i++) {
        struct diag *d = &err->diag[i];
        free(d->file);
        free(d->message);
        free(d->hint);
        free(d->source);
    }
    free(err->diag);
    text_free(&err->rendered);
    free(err);
}
