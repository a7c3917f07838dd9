/* SPDX-License-Identifier: Apache-2.0 */
/* source.c - the generator's own text: Lua modules, templates and fragments, built in or, for
 * development, in a source tree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>

#include "sandbox.h"

/* ---- modules ---- */

static int compare_embedded(const void *name, const void *entry)
{
    return strcmp(name, ((const struct embedded *)entry)->name);
}

static const struct embedded *find(const struct embedded *table, size_t count, const char *name)
{
    return bsearch(name, table, count, sizeof *table, compare_embedded);
}

/* Letters, digits, '_' and '-', and single dots between: nothing that walks the file system. */
static bool sound_name(const char *name)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    do {
        size_t n = strspn(name, word);
        if (n == 0)
            return false;
        name += n;
    } while (*name++ == '.');
    return name[-1] == '\0';
}

/* Pushes the text of a file of the source tree, or returns false. */
static bool push_file(lua_State *L, const char *path)
{
    struct text content = {0};
    bool good = tree_read(path, &content);
    if (good)
        lua_pushlstring(L, content.at ? content.at : "",
                        content.len); /* leaks if this very push runs out of memory */
    text_free(&content);
    return good;
}

/* The file of a name in a place, relative to the source tree: "ROOM.x" lies in a room of it. */
static void find_file(char path[PATH_ROOM], const char *name, struct source_place p)
{
    size_t folder = strlen(p.folder) + 1, n = strlen(name);
    snprintf(path, PATH_ROOM, "%s/%s%s", p.folder, name, p.suffix);
    for (size_t i = folder; i < folder + n && i < PATH_ROOM - 1; i++)
        if (path[i] == '.')
            path[i] = '/';
}

/* Pushes the module's chunk from a place of the source tree; false if there is no such file. */
static bool load_from_tree(lua_State *L, const char *root, const char *name, struct source_place p)
{
    char label[PATH_ROOM + 1] = "@", path[2 * PATH_ROOM];
    find_file(label + 1, name, p);
    snprintf(path, sizeof path, "%s/%s", root, label + 1);
    if (!push_file(L, path))
        return false;
    size_t len;
    const char *text = lua_tolstring(L, -1, &len);
    if (luaL_loadbufferx(L, text, len, label, "t") != LUA_OK)
        lua_error(L);
    lua_remove(L, -2);
    return true;
}

static struct sandbox *sandbox_of(lua_State *L)
{
    void *user;
    lua_getallocf(L, &user);
    return user;
}

/* index: of embedded_modules, and of embedded_templates behind them */
static void wish(struct wishes *w, size_t index)
{
    if (w && !w->asked[index]) {
        w->asked[index] = 1;
        w->count++;
    }
}

static void load_embedded(lua_State *L, const struct embedded *e)
{
    if (luaL_loadbufferx(L, (const char *)e->at, e->len, e->name, "b") != LUA_OK)
        lua_error(L);
}

void source_load(lua_State *L, const char *root, const char *name)
{
    if (sound_name(name)) {
        if (root) {
            if (load_from_tree(L, root, name, tree_modules) ||
                load_from_tree(L, root, name, tree_beside))
                return;
        } else {
            const struct embedded *m = find(embedded_modules, embedded_module_count, name);
            if (m) {
                wish(sandbox_of(L)->wishes, (size_t)(m - embedded_modules));
                load_embedded(L, m);
                return;
            }
        }
    }
    luaL_error(L, "no module '%s'%s%s", name, root ? " below $MOEGEN_TEMPLATE_DIR, " : "",
               root ? root : "");
}

/* ---- module "source" ---- */

/* $MOEGEN_TEMPLATE_DIR of the sandbox, or NULL. */
static const char *root_of(lua_State *L)
{
    return sandbox_of(L)->root;
}

/* source.text("moe_forward"), or "shared.team" for a fragment -> text, path; of a source tree only:
 * see source.chunk for the embedded ones */
static int source_text(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    char path[PATH_ROOM], full[2 * PATH_ROOM];
    const char *root = root_of(L);
    if (root && sound_name(name)) {
        find_file(path, name, tree_templates);
        snprintf(full, sizeof full, "%s/%s", root, path);
        if (push_file(L, full)) {
            lua_pushstring(L, path);
            return 2;
        }
    }
    return luaL_error(L, "no template '%s'", name);
}

/* Of the registry: name -> chunk of a template. */
static const char chunks[] = "moegen.chunks";

/* Pushes the chunk and keeps it in the table on top. */
static void keep_chunk(lua_State *L, const struct embedded *e)
{
    load_embedded(L, e);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, e->name);
}

/* source.chunk("moe_forward", "body") -> that part of the template or fragment (see translate.lua)
 * as a function, or nil with a source tree */
static int source_chunk(lua_State *L)
{
    const char *family = luaL_checkstring(L, 1), *part = luaL_checkstring(L, 2);
    const char *root = root_of(L);
    if (root)
        return 0;
    const struct embedded *e = find(embedded_templates, embedded_template_count,
                                    lua_pushfstring(L, "%s.%s", family, part));
    if (!e)
        return luaL_error(L, "no template '%s' with part '%s'", family, part);
    lua_getfield(L, LUA_REGISTRYINDEX, chunks);
    if (lua_getfield(L, -1, e->name) != LUA_TNIL)
        return 1;
    lua_pop(L, 1);
    wish(sandbox_of(L)->wishes, embedded_module_count + (size_t)(e - embedded_templates));
    keep_chunk(L, e);
    return 1;
}

/* What `require` gives for the name. */
static void push_module(lua_State *L, const char *name)
{
    lua_getglobal(L, "require");
    lua_pushstring(L, name);
    lua_call(L, 1, 1);
}

/* Of the part "FAMILY.head" of a template: the family's table, which render/template.lua keeps. */
static void make_family(lua_State *L, const char *part)
{
    const char *end = strrchr(part, '.');
    if (!end || strcmp(end, ".head") != 0)
        return;
    push_module(L, "render.template");
    lua_getfield(L, -1, "family");
    lua_pushlstring(L, part, (size_t)(end - part));
    lua_call(L, 1, 0);
    lua_pop(L, 1);
}

void source_load_wishes(lua_State *L, const struct wishes *w)
{
    for (size_t i = 0; i < embedded_module_count; i++)
        if (w->asked[i]) {
            push_module(L, embedded_modules[i].name);
            lua_pop(L, 1);
        }
    lua_getfield(L, LUA_REGISTRYINDEX, chunks);
    for (size_t i = 0; i < embedded_template_count; i++)
        if (w->asked[embedded_module_count + i]) {
            if (lua_getfield(L, -1, embedded_templates[i].name) == LUA_TNIL) {
                lua_pop(L, 1);
                keep_chunk(L, &embedded_templates[i]);
            }
            lua_pop(L, 1);
            make_family(L, embedded_templates[i].name);
        }
    lua_pop(L, 1);
}

static bool tree_holds(const char *root, const char *room, const char *fragment)
{
    char name[PATH_ROOM], path[PATH_ROOM], full[2 * PATH_ROOM];
    snprintf(name, sizeof name, "%s.%s", room, fragment);
    if (!sound_name(name))
        return false;
    find_file(path, name, tree_templates);
    snprintf(full, sizeof full, "%s/%s", root, path);
    return access(full, F_OK) == 0;
}

/* The body of a fragment, by name: "ROOM", and ".FRAGMENT.body" for all of its rooms. */
struct body {
    const char *room, *rest;
    size_t len; /* of room */
};

static int compare_body(const void *key, const void *entry)
{
    const struct body *b = key;
    const char *name = ((const struct embedded *)entry)->name;
    int order = strncmp(b->room, name, b->len);
    return order ? order : strcmp(b->rest, name + b->len);
}

static bool is_embedded(struct body b)
{
    b.len = strlen(b.room);
    return bsearch(&b, embedded_templates, embedded_template_count, sizeof *embedded_templates,
                   compare_body) != NULL;
}

/* source.holders("team", {"product", "shared"}) -> a list of those of these rooms that have such a
 * fragment */
static int source_holders(lua_State *L)
{
    const char *fragment = luaL_checkstring(L, 1), *root = root_of(L);
    const char *rest = lua_pushfstring(L, ".%s.body", fragment);
    lua_Integer found = 0;
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_newtable(L);
    for (lua_Integer i = 1; lua_rawgeti(L, 2, i) == LUA_TSTRING; i++) {
        const char *room = lua_tostring(L, -1);
        if (root ? tree_holds(root, room, fragment) : is_embedded((struct body){room, rest, 0}))
            lua_rawseti(L, -2, ++found);
        else
            lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return 1;
}

/* Pushes a sorted list of the names in a place. */
static int push_names(lua_State *L, struct source_place p)
{
    const char *root = root_of(L);
    lua_newtable(L);
    if (root) {
        char **name;
        size_t count;
        bool good = tree_list(root, p.folder, p.suffix, &name, &count);
        for (size_t i = 0; i < count; i++) {
            lua_pushstring(L, name[i]);
            lua_rawseti(L, -2, (lua_Integer)i + 1);
        }
        tree_free_names(name, count);
        return good ? 1 : luaL_error(L, "%s/%s cannot be read", root, p.folder);
    }
    bool heads = p.folder == tree_templates.folder; /* of families: fragments have none */
    const struct embedded *table = heads ? embedded_templates : embedded_modules;
    size_t count = heads ? embedded_template_count : embedded_module_count;
    const char *prefix = heads ? "" : "isa.", *suffix = heads ? ".head" : "";
    lua_Integer n = 0;
    for (size_t i = 0; i < count; i++) {
        const char *name = table[i].name;
        size_t head = strlen(prefix), tail = strlen(suffix), len = strlen(name);
        if (strncmp(name, prefix, head) == 0 && len > head + tail &&
            strcmp(name + len - tail, suffix) == 0) {
            lua_pushlstring(L, name + head, len - head - tail);
            lua_rawseti(L, -2, ++n);
        }
    }
    return 1;
}

static int source_families(lua_State *L)
{
    return push_names(L, tree_templates);
}

static int source_isas(lua_State *L)
{
    return push_names(L, tree_isas);
}

static const luaL_Reg source_functions[] = {
    {"text", source_text},         {"chunk", source_chunk}, {"holders", source_holders},
    {"families", source_families}, {"isas", source_isas},   {NULL, NULL}};

void source_open(lua_State *L)
{
    lua_newtable(L);
    lua_setfield(L, LUA_REGISTRYINDEX, chunks);
    luaL_newlib(L, source_functions);
}
