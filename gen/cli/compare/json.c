/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.c - JSON by the events of libyaml, which is here for specs and reads all that `bench`
 * writes: what is YAML but not JSON (plain style, anchors, tags, several documents) is refused.
 * Everything is bounded, since a file may come from anybody.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "compare.h"

enum { MAX_DEPTH = 16, MAX_NODES = 1 << 22, MAX_BYTES = 1 << 26 };

struct reader {
    struct json *j;
    yaml_parser_t parser;
    yaml_event_t event;
    int open[MAX_DEPTH], depth; /* maps and lists that are not closed */
    bool key[MAX_DEPTH];        /* is a key next? */
    moegen_error **err;
};

static moegen_status refuse_at(const struct json *j, int line, int col, int len, moegen_error **err,
                               const char *message)
{
    char *source = line_of(j->text, j->len, line);
    moegen_status status =
        error_add(err, MOEGEN_BAD_DATA, j->label, line, col, len, message, NULL, source);
    free(source);
    return status;
}

static moegen_status refuse(const struct reader *r, const char *message)
{
    yaml_mark_t from = r->event.start_mark, to = r->event.end_mark;
    int len = from.line == to.line && to.column > from.column ? (int)(to.column - from.column) : 1;
    return refuse_at(r->j, (int)from.line + 1, (int)from.column + 1, len, r->err, message);
}

moegen_status json_refuse(const struct json *j, int node, moegen_error **err, const char *format,
                          ...)
{
    const struct json_node *n = &j->node[node];
    char message[256];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return refuse_at(j, n->line, n->col, n->len, err, message);
}

/* ---- reading ---- */

static moegen_status add(struct reader *r, enum json_kind kind, const char *text)
{
    struct json *j = r->j;
    if (j->nodes == MAX_NODES)
        return refuse(r, "the file has more than 4194304 values, the limit");
    if (j->nodes == j->room) {
        int room = j->room ? 2 * j->room : 256;
        struct json_node *more = realloc(j->node, (size_t)room * sizeof *more);
        if (!more)
            return error_set(r->err, MOEGEN_NO_MEMORY, "out of memory");
        j->node = more;
        j->room = room;
    }
    yaml_mark_t from = r->event.start_mark, to = r->event.end_mark;
    j->node[j->nodes++] =
        (struct json_node){kind,
                           (int)from.line + 1,
                           (int)from.column + 1,
                           text && from.line == to.line ? (int)(to.column - from.column) : 1,
                           j->nodes,
                           NULL};
    if (text && !(j->node[j->nodes - 1].text = strdup(text)))
        return error_set(r->err, MOEGEN_NO_MEMORY, "out of memory");
    return MOEGEN_OK;
}

static bool is_number(const char *s)
{
    s += *s == '-';
    size_t whole = strspn(s, "0123456789"), part;
    if (!whole || (whole > 1 && *s == '0'))
        return false;
    s += whole;
    if (*s == '.') {
        if (!(part = strspn(s + 1, "0123456789")))
            return false;
        s += 1 + part;
    }
    if (*s == 'e' || *s == 'E') {
        s += 1 + (s[1] == '+' || s[1] == '-');
        if (!(part = strspn(s, "0123456789")))
            return false;
        s += part;
    }
    return !*s;
}

static bool is_plain(const char *s)
{
    return strcmp(s, "null") == 0 || strcmp(s, "true") == 0 || strcmp(s, "false") == 0 ||
           is_number(s);
}

static moegen_status take_scalar(struct reader *r)
{
    const char *text = (const char *)r->event.data.scalar.value;
    bool quoted = r->event.data.scalar.style == YAML_DOUBLE_QUOTED_SCALAR_STYLE;
    bool key =
        r->depth && r->j->node[r->open[r->depth - 1]].kind == JSON_MAP && r->key[r->depth - 1];
    if (strlen(text) != r->event.data.scalar.length)
        return refuse(r, "a text with a NUL");
    if (r->event.data.scalar.anchor || r->event.data.scalar.tag)
        return refuse(r, "this is not JSON: an anchor or a tag");
    if (!quoted &&
        (key || r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE || !is_plain(text)))
        return refuse(r, key ? "this is not JSON: a key in double quotes is wanted"
                             : "this is not JSON: a text in double quotes, a number, true, false "
                               "or null is wanted");
    return add(r, quoted ? JSON_TEXT : JSON_PLAIN, text);
}

static moegen_status take_open(struct reader *r, bool map)
{
    const yaml_event_t *e = &r->event;
    bool flow = map ? e->data.mapping_start.style == YAML_FLOW_MAPPING_STYLE
                    : e->data.sequence_start.style == YAML_FLOW_SEQUENCE_STYLE;
    bool named = map ? e->data.mapping_start.anchor || e->data.mapping_start.tag
                     : e->data.sequence_start.anchor || e->data.sequence_start.tag;
    if (!flow || named)
        return refuse(r, "this is not JSON: { or [ is wanted");
    if (r->depth && r->key[r->depth - 1])
        return refuse(r, "this is not JSON: a key in double quotes is wanted");
    if (r->depth == MAX_DEPTH)
        return refuse(r, "deeper than 16 levels, the limit");
    r->open[r->depth] = r->j->nodes;
    r->key[r->depth++] = false; /* `took` makes it true */
    return add(r, map ? JSON_MAP : JSON_LIST, NULL);
}

/* One value or key is whole: in a map, the other is next. */
static void took(struct reader *r, bool opened)
{
    if (r->depth && r->j->node[r->open[r->depth - 1]].kind == JSON_MAP)
        r->key[r->depth - 1] = opened || !r->key[r->depth - 1];
}

/* Handles the event. */
static moegen_status take(struct reader *r)
{
    moegen_status status = MOEGEN_OK;
    switch (r->event.type) {
    case YAML_SCALAR_EVENT:
        if (!(status = take_scalar(r)))
            took(r, false);
        return status;
    case YAML_MAPPING_START_EVENT:
    case YAML_SEQUENCE_START_EVENT:
        if (!(status = take_open(r, r->event.type == YAML_MAPPING_START_EVENT)))
            took(r, true);
        return status;
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        r->j->node[r->open[--r->depth]].after = r->j->nodes;
        took(r, false);
        return MOEGEN_OK;
    case YAML_ALIAS_EVENT:
        return refuse(r, "this is not JSON: an alias");
    case YAML_DOCUMENT_START_EVENT:
        if (r->j->nodes || !r->event.data.document_start.implicit)
            return refuse(r, "this is not JSON: a second document, or ---");
        return MOEGEN_OK;
    default:
        return MOEGEN_OK;
    }
}

moegen_status json_read(struct json *j, const char *label, const char *text, size_t len,
                        moegen_error **err)
{
    struct reader r = {.j = j, .err = err};
    moegen_status status = MOEGEN_OK;
    *j = (struct json){.label = label, .text = text, .len = len};
    if (len > MAX_BYTES)
        return refuse_at(j, 1, 1, 1, err, "the file is larger than 64 MiB, the limit");
    if (!yaml_parser_initialize(&r.parser))
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory");
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
    for (bool end = false; !end && !status;) {
        if (!yaml_parser_parse(&r.parser, &r.event)) {
            yaml_mark_t at = r.parser.problem_mark;
            status = r.parser.error == YAML_MEMORY_ERROR
                         ? error_set(err, MOEGEN_NO_MEMORY, "out of memory")
                         : refuse_at(j, (int)at.line + 1, (int)at.column + 1, 1, err,
                                     r.parser.problem ? r.parser.problem : "this is not JSON");
            break;
        }
        status = take(&r);
        end = r.event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&r.event);
    }
    yaml_parser_delete(&r.parser);
    if (!status && !j->nodes)
        status = refuse_at(j, 1, 1, 1, err, "the file is empty");
    return status;
}

void json_free(struct json *j)
{
    for (int i = 0; i < j->nodes; i++)
        free(j->node[i].text);
    free(j->node);
    *j = (struct json){0};
}

/* ---- asking ---- */

moegen_status json_find(const struct json *j, int map, const char *key, int *value,
                        moegen_error **err)
{
    *value = 0;
    if (j->node[map].kind != JSON_MAP)
        return json_refuse(j, map, err, "an object with \"%s\" is wanted", key);
    for (int i = map + 1; i < j->node[map].after; i = j->node[i + 1].after) {
        if (strcmp(j->node[i].text, key) != 0)
            continue;
        if (*value)
            return json_refuse(j, i, err, "\"%s\" is given twice", key);
        *value = i + 1;
    }
    return MOEGEN_OK;
}

static moegen_status find(const struct json *j, int map, const char *key, int *value,
                          moegen_error **err)
{
    moegen_status status = json_find(j, map, key, value, err);
    return status || *value ? status : json_refuse(j, map, err, "there is no \"%s\" here", key);
}

moegen_status json_get_text(const struct json *j, int map, const char *key, const char **out,
                            moegen_error **err)
{
    int value;
    moegen_status status = find(j, map, key, &value, err);
    if (!status && j->node[value].kind != JSON_TEXT)
        status = json_refuse(j, value, err, "\"%s\": a text is wanted", key);
    if (!status)
        *out = j->node[value].text;
    return status;
}

moegen_status json_as_number(const struct json *j, int node, double low, double high, double *out,
                             moegen_error **err)
{
    const struct json_node *n = &j->node[node];
    double value = n->kind == JSON_PLAIN && is_number(n->text) ? strtod(n->text, NULL) : NAN;
    if (!(value >= low && value <= high))
        return json_refuse(j, node, err, "a number from %g to %g is wanted", low, high);
    *out = value;
    return MOEGEN_OK;
}

moegen_status json_get_number(const struct json *j, int map, const char *key, double low,
                              double high, double *out, moegen_error **err)
{
    int value;
    moegen_status status = find(j, map, key, &value, err);
    return status ? status : json_as_number(j, value, low, high, out, err);
}

moegen_status json_may_number(const struct json *j, int map, const char *key, double low,
                              double high, double *out, moegen_error **err)
{
    int value;
    moegen_status status = json_find(j, map, key, &value, err);
    *out = NAN;
    if (status || !value ||
        (j->node[value].kind == JSON_PLAIN && strcmp(j->node[value].text, "null") == 0))
        return status;
    return json_as_number(j, value, low, high, out, err);
}

moegen_status json_may_text(const struct json *j, int map, const char *key, const char **out,
                            moegen_error **err)
{
    int value;
    moegen_status status = json_find(j, map, key, &value, err);
    return status || !value ? status : json_get_text(j, map, key, out, err);
}

moegen_status json_may_true(const struct json *j, int map, const char *key, bool *out,
                            moegen_error **err)
{
    int value;
    moegen_status status = json_find(j, map, key, &value, err);
    *out = value && j->node[value].kind == JSON_PLAIN && strcmp(j->node[value].text, "true") == 0;
    return status;
}

moegen_status json_get_list(const struct json *j, int map, const char *key, int *list,
                            moegen_error **err)
{
    moegen_status status = find(j, map, key, list, err);
    if (!status && j->node[*list].kind != JSON_LIST)
        status = json_refuse(j, *list, err, "\"%s\": a list is wanted", key);
    return status;
}

int json_file(const char *path, size_t most, json_parser *parse, void *to)
{
    struct text t = {0};
    moegen_error *err = NULL;
    int result = read_file(path, most, &t);
    if (!result && t.lost)
        result = fail(MOEGEN_NO_MEMORY, NULL);
    if (!result) {
        moegen_status status = parse(to, path, t.at ? t.at : "", t.len, &err);
        result = status ? fail(status, err) : EXIT_OK;
    }
    text_free(&t);
    return result;
}
