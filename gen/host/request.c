/* SPDX-License-Identifier: Apache-2.0 */
/* request.c - a request to the generator as the Lua table that gen/lua/moegen.lua describes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lua.h>

#include "sandbox.h"
#include "spec/spec.h"

static void set_string(lua_State *L, const char *key, const char *value)
{
    if (value) {
        lua_pushstring(L, value);
        lua_setfield(L, -2, key);
    }
}

/* Pushes the label of an override. */
static const char *push_label(lua_State *L, const struct host_set *set)
{
    return set->label ? lua_pushstring(L, set->label)
                      : lua_pushfstring(L, "--set %s=%s", set->key, set->value);
}

static bool blank(const char *s)
{
    return s[strspn(s, " \t\r\n")] == '\0';
}

/* Parses an override's value and pushes its node. A complaint about it has the label as its place:
 * there is no file. */
static moegen_status push_value(lua_State *L, const struct host_set *set, const char *label,
                                moegen_error **err)
{
    if (blank(set->value))
        return error_add(err, MOEGEN_BAD_SPEC, label, 0, 0, 0, "no value after '='",
                         "`null` gives a key its default back", NULL);
    size_t before = err && *err ? (*err)->count : 0;
    moegen_status status = spec_push(L, label, set->value, strlen(set->value), err);
    for (size_t i = before; err && *err && i < (*err)->count; i++) {
        struct diag *d = &(*err)->diag[i];
        d->line = d->col = 0;
        free(d->source);
        d->source = NULL;
    }
    return status;
}

/* Pushes the list of overrides, whatever the answer. */
static moegen_status push_sets(lua_State *L, const struct host_request *r, moegen_error **err)
{
    moegen_status result = MOEGEN_OK;
    lua_createtable(L, (int)r->set_count, 0);
    for (size_t i = 0; i < r->set_count; i++) {
        lua_createtable(L, 0, 3);
        set_string(L, "key", r->set[i].key);
        const char *label = push_label(L, &r->set[i]);
        moegen_status status = push_value(L, &r->set[i], label, err);
        if (status == MOEGEN_OK)
            lua_setfield(L, -3, "node");
        else
            result = status;
        lua_setfield(L, -2, "label");
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return result;
}

/* Pushes the list of files of tuned plans, whatever the answer: that of one that was given. */
static moegen_status push_tuned(lua_State *L, const struct host_request *r, moegen_error **err)
{
    moegen_status result = MOEGEN_OK;
    char fault[512];
    lua_createtable(L, (int)r->tuned_count, 0);
    for (size_t i = 0; i < r->tuned_count; i++) {
        const struct host_tuned *t = &r->tuned[i];
        moegen_error *own = NULL;
        lua_createtable(L, 0, 2);
        set_string(L, "file", t->label);
        moegen_status status = spec_push(L, t->label, t->text, t->len, r->tuned_given ? err : &own);
        const struct diag *d = own && own->count ? &own->diag[0] : NULL;
        snprintf(fault, sizeof fault, "%s:%d:%d: %s", t->label, d ? d->line : 0, d ? d->col : 0,
                 d && d->message ? d->message : "out of memory");
        moegen_error_release(own); /* what follows may raise */
        if (status == MOEGEN_OK) {
            lua_setfield(L, -2, "root");
        } else if (r->tuned_given || status != MOEGEN_BAD_SPEC) {
            result = status;
        } else {
            set_string(L, "fault", fault);
        }
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return result;
}

static void push_digest(lua_State *L, const void *bytes, size_t len)
{
    unsigned char sum[32];
    char hex[65] = "";
    digest_sha256(bytes, len, sum);
    digest_hex(sum, sizeof sum, hex);
    lua_pushlstring(L, hex, 64);
}

/* props[name], where the request does not say it; upvalue: the request */
static int known_property(lua_State *L)
{
    const struct host_request *r = lua_touserdata(L, lua_upvalueindex(1));
    double value = lua_type(L, 2) == LUA_TSTRING ? r->known(r->known_of, lua_tostring(L, 2)) : -1;
    if (value < 0)
        return 0;
    lua_pushnumber(L, value);
    return 1;
}

moegen_status request_push(lua_State *L, const struct host_request *r, const char *root,
                           moegen_error **err)
{
    lua_createtable(L, 0, 12);
    moegen_status status = spec_push(L, r->file, r->text, r->len, err);
    if (status == MOEGEN_OK)
        lua_setfield(L, -2, "root");
    moegen_status sets = push_sets(L, r, err);
    lua_setfield(L, -2, "sets");
    lua_createtable(L, 0, (int)r->feature_count);
    for (size_t i = 0; i < r->feature_count; i++) {
        lua_pushboolean(L, 1);
        lua_setfield(L, -2, r->feature[i]);
    }
    lua_setfield(L, -2, "features");
    lua_createtable(L, 0, (int)r->prop_count);
    for (size_t i = 0; i < r->prop_count; i++) {
        lua_pushnumber(L, r->prop[i].value);
        lua_setfield(L, -2, r->prop[i].name);
    }
    if (r->known) {
        lua_createtable(L, 0, 1);
        lua_pushlightuserdata(L, (void *)(uintptr_t)r);
        lua_pushcclosure(L, known_property, 1);
        lua_setfield(L, -2, "__index");
        lua_setmetatable(L, -2);
    }
    lua_setfield(L, -2, "props");
    lua_pushboolean(L, r->measure != NULL);
    lua_setfield(L, -2, "measures");
    moegen_status tuned = push_tuned(L, r, err);
    lua_setfield(L, -2, "tuned");
    lua_pushboolean(L, r->tuned_given);
    lua_setfield(L, -2, "tuned_given");
    lua_pushboolean(L, r->tunes);
    lua_setfield(L, -2, "tunes");
    set_string(L, "cpu", r->cpu ? r->cpu : "?");
    if (r->threads > 0) {
        lua_pushinteger(L, r->threads);
        lua_setfield(L, -2, "threads");
    }
    lua_pushinteger(L, r->cpus > 0 ? r->cpus : 1);
    lua_setfield(L, -2, "cpus");
    set_string(L, "file", r->file);
    set_string(L, "kernel", r->kernel && *r->kernel ? r->kernel : NULL);
    set_string(L, "purpose", r->purpose ? r->purpose : "file");
    set_string(L, "command", r->command);
    push_digest(L, r->text, r->len);
    lua_setfield(L, -2, "digest");
    char hex[65];
    if (!tree_digest(root, hex))
        return error_set(err, MOEGEN_IO, "%s: the generator cannot be read", root);
    set_string(L, "generator", hex);
    return sets ? sets : status ? status : tuned;
}
