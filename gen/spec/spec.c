/* SPDX-License-Identifier: Apache-2.0 */
/* spec.c - YAML text to a tree of Lua tables that remembers where everything stood.
 *
 * A spec may come from anybody, so everything is bounded (the limits below) and what a spec does
 * not need is refused: anchors, aliases, tags, directives, several documents, keys that are not
 * text. Events are pulled one at a time, since libyaml alone is quadratic in the depth of flow
 * nesting and has no limits of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <yaml.h>

#include "spec.h"
#include "syntax.h"

enum {
    MAX_DEPTH = 16,
    MAX_EVENTS = 20000,
    MAX_SCALAR = 4096,
    MAX_COMPLAINTS = 50,
};

/* An open map or list. Its Lua stack slots, from base: node, children, and for maps: seen keys,
 * entry being read. */
struct frame {
    bool map;
    int base;
    int count; /* children so far */
};

struct reader {
    lua_State *L;
    const char *file, *text;
    size_t len;
    yaml_parser_t parser;
    yaml_event_t event;
    struct frame frame[MAX_DEPTH];
    int depth, events, complaints;
    int documents;
    moegen_error **err;
};

static void complain(struct reader *r, int line, int col, int len, const char *message,
                     const char *hint)
{
    if (r->complaints++ >= MAX_COMPLAINTS)
        return;
    char *source = line_of(r->text, r->len, line);
    error_add(r->err, MOEGEN_BAD_SPEC, r->file, line, col, len, message, hint, source);
    free(source);
}

static int span(yaml_mark_t start, yaml_mark_t end)
{
    return start.line == end.line && end.column > start.column ? (int)(end.column - start.column)
                                                               : 1;
}

/* A complaint at a libyaml mark. */
static void complain_at(struct reader *r, yaml_mark_t at, int len, const char *message,
                        const char *hint)
{
    complain(r, (int)at.line + 1, (int)at.column + 1, len, message, hint);
}

/* A complaint at the event being handled. */
static void refuse(struct reader *r, const char *message, const char *hint)
{
    complain_at(r, r->event.start_mark, span(r->event.start_mark, r->event.end_mark), message,
                hint);
}

/* ---- events to nodes ---- */

static void set_int(lua_State *L, const char *key, lua_Integer value)
{
    lua_pushinteger(L, value);
    lua_setfield(L, -2, key);
}

/* Pushes {kind=, line=, col=, len=} for the event. */
static void push_node(struct reader *r, const char *kind)
{
    lua_State *L = r->L;
    lua_createtable(L, 0, 6);
    lua_pushstring(L, kind);
    lua_setfield(L, -2, "kind");
    set_int(L, "line", (lua_Integer)r->event.start_mark.line + 1);
    set_int(L, "col", (lua_Integer)r->event.start_mark.column + 1);
    set_int(L, "len", span(r->event.start_mark, r->event.end_mark));
}

static void push_scalar(struct reader *r)
{
    lua_State *L = r->L;
    const char *value = (const char *)r->event.data.scalar.value;
    size_t length = r->event.data.scalar.length;
    if (length > MAX_SCALAR) {
        refuse(r, "this text is longer than 4096 bytes, the limit", NULL);
        length = 0;
    }
    push_node(r, "scalar");
    lua_pushlstring(L, value, length);
    lua_setfield(L, -2, "value");
    lua_pushboolean(L, r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE);
    lua_setfield(L, -2, "plain");
}

static void twice(struct reader *r, const char *key, size_t length, long long first)
{
    char shown[48], message[160];
    size_t n = 0;
    for (; n < length && n < sizeof shown - 1; n++)
        shown[n] = (unsigned char)key[n] < ' ' ? '?' : key[n];
    while (n < length && n && (key[n] & 0xC0) == 0x80) /* cut inside a code point? */
        n--;
    shown[n] = '\0';
    snprintf(message, sizeof message, "key '%s' is given twice; first at line %lld, column %lld",
             shown, first >> 32, first & 0xFFFFFFFF);
    refuse(r, message, NULL);
}

/* A scalar in key position of the top map: pops nothing, leaves the begun entry in the frame's
 * slot. */
static void take_key(struct reader *r, struct frame *f)
{
    lua_State *L = r->L;
    push_scalar(r);
    lua_getfield(L, -1, "value");
    lua_pushvalue(L, -1);
    if (lua_rawget(L, f->base + 2) == LUA_TNIL) {
        yaml_mark_t at = r->event.start_mark;
        lua_pop(L, 1);
        lua_pushinteger(L, (lua_Integer)(at.line + 1) << 32 | (lua_Integer)(at.column + 1));
        lua_rawset(L, f->base + 2);
    } else {
        size_t length;
        const char *key = lua_tolstring(L, -2, &length);
        twice(r, key, length, lua_tointeger(L, -1));
        lua_pop(L, 2);
    }
    lua_createtable(L, 0, 2);
    lua_insert(L, -2);
    lua_setfield(L, -2, "key");
    lua_replace(L, f->base + 3);
}

/* The finished node on top of the stack becomes a child of the open map or list; at depth 0 it
 * stays: it is the result. */
static void attach(struct reader *r)
{
    lua_State *L = r->L;
    if (r->depth == 0)
        return;
    struct frame *f = &r->frame[r->depth - 1];
    if (f->map) {
        lua_setfield(L, f->base + 3, "value");
        lua_pushvalue(L, f->base + 3);
        lua_rawseti(L, f->base + 1, ++f->count);
        lua_pushnil(L);
        lua_replace(L, f->base + 3);
    } else {
        lua_rawseti(L, f->base + 1, ++f->count);
    }
}

static void open_frame(struct reader *r, bool map)
{
    lua_State *L = r->L;
    push_node(r, map ? "map" : "list");
    struct frame *f = &r->frame[r->depth++];
    *f = (struct frame){.map = map, .base = lua_gettop(L)};
    lua_newtable(L);
    if (map) {
        lua_newtable(L);
        lua_pushnil(L);
    }
}

static void close_frame(struct reader *r)
{
    struct frame *f = &r->frame[--r->depth];
    lua_settop(r->L, f->base + 1);
    lua_setfield(r->L, f->base, f->map ? "entries" : "items");
    attach(r);
}

/* Complains of an anchor or a tag; both pointers may be NULL. */
static void plain_only(struct reader *r, const yaml_char_t *anchor, const yaml_char_t *tag)
{
    if (anchor)
        refuse(r, "anchors (&) are not supported in specs",
               "write the value out where it is needed");
    if (tag)
        refuse(r, "tags (!) are not supported in specs",
               "the type of a value follows from its key");
}

static bool in_key(const struct reader *r)
{
    if (r->depth == 0 || !r->frame[r->depth - 1].map)
        return false;
    return lua_isnil(r->L, r->frame[r->depth - 1].base + 3);
}

/* Handles one event; false to stop reading. */
static bool take(struct reader *r)
{
    yaml_event_t *e = &r->event;
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (e->data.document_start.version_directive ||
            e->data.document_start.tag_directives.start !=
                e->data.document_start.tag_directives.end)
            refuse(r, "directives (%) are not supported in specs", NULL);
        if (++r->documents > 1) {
            refuse(r, "a second document starts here",
                   "one spec is one document; use `kernels:` for several kernels");
            return false;
        }
        return true;
    case YAML_ALIAS_EVENT:
        refuse(r, "aliases (*) are not supported in specs", "write the value out");
        return false;
    case YAML_SCALAR_EVENT:
        plain_only(r, e->data.scalar.anchor, e->data.scalar.tag);
        if (in_key(r)) {
            take_key(r, &r->frame[r->depth - 1]);
        } else {
            push_scalar(r);
            attach(r);
        }
        return true;
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        if (e->type == YAML_SEQUENCE_START_EVENT)
            plain_only(r, e->data.sequence_start.anchor, e->data.sequence_start.tag);
        else
            plain_only(r, e->data.mapping_start.anchor, e->data.mapping_start.tag);
        if (in_key(r)) {
            complain_at(r, e->start_mark, 1, "a key must be plain text, not a map or a list", NULL);
            return false;
        }
        if (r->depth == MAX_DEPTH) {
            complain_at(r, e->start_mark, 1, "nested deeper than 16 levels, the limit", NULL);
            return false;
        }
        open_frame(r, e->type == YAML_MAPPING_START_EVENT);
        return true;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        close_frame(r);
        return true;
    case YAML_STREAM_END_EVENT:
        if (r->documents == 0)
            complain(r, 1, 1, 1, "the spec is empty",
                     "a spec is a map of keys, such as `kernel: moe_forward`");
        return false;
    default:
        return true;
    }
}

/* Runs protected; argument: the reader. Returns the tree, or nothing after complaints. */
static int read_tree(lua_State *L)
{
    struct reader *r = lua_touserdata(L, 1);
    r->L = L;
    luaL_checkstack(L, 4 * MAX_DEPTH + LUA_MINSTACK, NULL);
    bool more = true;
    while (more) {
        yaml_event_delete(&r->event);
        if (!yaml_parser_parse(&r->parser, &r->event)) {
            lua_pushinteger(L, spec_syntax(&r->parser, r->file, r->text, r->len, r->err));
            return 1;
        }
        if (++r->events > MAX_EVENTS) {
            refuse(r, "more than 20000 values, the limit", NULL);
            break;
        }
        more = take(r);
    }
    if (r->complaints)
        lua_pushinteger(L, MOEGEN_BAD_SPEC);
    return 1;
}

moegen_status spec_fits(const char *file, size_t len, moegen_error **err)
{
    return len <= SPEC_MOST
               ? MOEGEN_OK
               : error_set(err, MOEGEN_BAD_SPEC, "%s: the spec has %zu bytes; the limit is %d",
                           file, len, SPEC_MOST);
}

moegen_status spec_push(lua_State *L, const char *file, const char *text, size_t len,
                        moegen_error **err)
{
    moegen_status status = spec_fits(file, len, err);
    if (status)
        return status;
    if (!text) /* libyaml aborts */
        text = "";
    if (len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) { /* a byte order mark? */
        text += 3;
        len -= 3;
    }
    struct reader r = {.file = file, .text = text, .len = len, .err = err};
    if (!lua_checkstack(L, 4) || !yaml_parser_initialize(&r.parser))
        return error_set(err, MOEGEN_NO_MEMORY, "%s: out of memory", file);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);

    lua_pushcfunction(L, read_tree);
    lua_pushlightuserdata(L, &r);
    if (lua_pcall(L, 1, 1, 0) != LUA_OK)
        status = error_set(err, MOEGEN_NO_MEMORY, "%s: out of memory", file);
    else if (!lua_istable(L, -1))
        status = (moegen_status)lua_tointeger(L, -1);
    if (status != MOEGEN_OK)
        lua_pop(L, 1);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return status;
}
