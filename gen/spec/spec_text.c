/* SPDX-License-Identifier: Apache-2.0 */
/* spec_text.c - what libyaml complains of, in our words. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "syntax.h"

struct place {
    const yaml_parser_t *parser;
    const char *file, *text;
    size_t len;
    moegen_error **err;
};

static void complain(const struct place *p, int line, int col, const char *message,
                     const char *hint)
{
    char *source = line_of(p->text, p->len, line);
    error_add(p->err, MOEGEN_BAD_SPEC, p->file, line, col, 1, message, hint, source);
    free(source);
}

static const struct {
    const char *problem; /* libyaml's words */
    bool context;        /* the fault is where the construct began, not where libyaml noticed */
    const char *message, *hint;
} problems[] = {
    {"could not find expected ':'", true, "a ':' is missing after this key", NULL},
    {"did not find expected key", false, "a key is expected here", "check the indentation"},
    {"mapping values are not allowed in this context", false, "a ':' cannot stand here",
     "quote the text, or start a new line"},
    {"block sequence entries are not allowed in this context", false,
     "a '-' list item cannot stand here", "start the list on a new line, or write [a, b]"},
    {"did not find expected ',' or ']'", true, "this list is not closed",
     "',' or ']' is expected after an item"},
    {"did not find expected ',' or '}'", true, "this map is not closed",
     "',' or '}' is expected after a value"},
    {"did not find expected '-' indicator", false, "a '-' list item is expected here",
     "check the indentation"},
    {"did not find expected node content", false, "a value is expected here", NULL},
    {"did not find expected <document start>", false, "the spec should end here",
     "a spec is one map of keys"},
    {"found unexpected end of stream", true, "this quoted text is not closed", NULL},
    {"found unexpected document indicator", true, "this quoted text is not closed", NULL},
    {"found character that cannot start any token", false, "this character cannot start a value",
     "indent with spaces, not tabs; quote text that starts with @, ` or %"},
    {"found unknown directive name", false, "directives (%) are not supported in specs", NULL},
    {"found incompatible YAML document", false, "directives (%) are not supported in specs", NULL},
};

/* Does the line at p read `key:value`, without the space that YAML wants? */
static bool lacks_space(const char *text, size_t len, int line)
{
    char *s = line_of(text, len, line);
    char *colon = s ? strchr(s, ':') : NULL;
    bool lacks = colon && colon != s && colon[1] && colon[1] != ' ' && colon[1] != '\t';
    free(s);
    return lacks;
}

/* Where libyaml stopped to understand the bytes. */
static void bad_encoding(const struct place *p)
{
    const yaml_parser_t *r = p->parser;
    int line = 1, col = 1;
    size_t offset = r->problem_offset < p->len ? r->problem_offset : p->len;
    const char *stop = p->text + offset;
    for (const char *at = p->text; at < stop;) {
        size_t n = line_break(at, stop);
        col = n ? 1 : col + ((*at & 0xC0) != 0x80);
        line += n > 0;
        at += n ? n : 1;
    }
    char message[160];
    if (r->problem_value >= 0 && strstr(r->problem, "control"))
        snprintf(message, sizeof message, "control character 0x%02x is not allowed",
                 (unsigned)r->problem_value);
    else
        snprintf(message, sizeof message, "byte 0x%02x is not valid UTF-8",
                 offset < p->len ? (unsigned)(unsigned char)p->text[offset] : 0u);
    complain(p, line, col, message, "a spec is UTF-8 text");
}

moegen_status spec_syntax(const yaml_parser_t *p, const char *file, const char *text, size_t len,
                          moegen_error **err)
{
    const struct place place = {p, file, text, len, err};
    if (p->error == YAML_MEMORY_ERROR)
        return error_set(err, MOEGEN_NO_MEMORY, "%s: out of memory", file);
    if (p->error == YAML_READER_ERROR) {
        bad_encoding(&place);
        return MOEGEN_BAD_SPEC;
    }
    const char *problem = p->problem ? p->problem : "not YAML";
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        if (strcmp(problem, problems[i].problem) != 0)
            continue;
        yaml_mark_t at = problems[i].context && p->context ? p->context_mark : p->problem_mark;
        const char *hint = problems[i].hint;
        if (i == 0 && lacks_space(text, len, (int)at.line + 1))
            hint = "missing space after ':'";
        complain(&place, (int)at.line + 1, (int)at.column + 1, problems[i].message, hint);
        return MOEGEN_BAD_SPEC;
    }
    char message[200];
    snprintf(message, sizeof message, "not YAML: %.150s", problem);
    complain(&place, (int)p->problem_mark.line + 1, (int)p->problem_mark.column + 1, message, NULL);
    return MOEGEN_BAD_SPEC;
}
