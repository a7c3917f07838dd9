/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.c - Lua states that can compute but not touch the outside, with the generator's modules
 * built in. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "private.h"

enum { PATH_ROOM = 4096, MAX_FILE = 4 << 20 };
static const size_t soft_limit = 64u << 20, hard_limit = 256u << 20;

/* ---- memory ---- */

/* Where to collect garbage next, with `used` bytes alive now. Close to the cap it no longer pays.
 */
static size_t next_soft(size_t used)
{
    size_t twice = used * 2 > soft_limit ? used * 2 : soft_limit;
    size_t left = hard_limit - used;
    return twice < hard_limit ? twice : left > hard_limit / 16 ? used + left / 2 : hard_limit;
}

/* Lua's garbage collector is stopped, as a generation is short; Lua collects when this allocator
 * refuses, and then asks again. It refuses once at every soft limit, and only new objects (old_size
 * is a type tag then): for buffers Lua does not ask twice. */
static void *allocate(void *user, void *old, size_t old_size, size_t new_size)
{
    struct sandbox *s = user;
    bool object = !old && old_size != 0;
    if (!old)
        old_size = 0;
    if (new_size == 0) {
        arena_give(&s->arena, old, old_size);
        s->used -= old_size;
        return NULL;
    }
    if (new_size > old_size && s->used + (new_size - old_size) > hard_limit) {
        s->full = true;
        return NULL;
    }
    if (object && s->asked) {
        s->asked = false;
        s->soft = next_soft(s->used);
    } else if (object && s->used > s->soft) {
        s->asked = true;
        return NULL;
    }
    void *new = arena_resize(&s->arena, old, old_size, new_size);
    if (new)
        s->used += new_size - old_size;
    return new;
}

lua_State *sandbox_create(struct sandbox *s)
{
    *s = (struct sandbox){.soft = soft_limit, .root = secure_getenv("MOEGEN_TEMPLATE_DIR")};
    if (s->root && !*s->root)
        s->root = NULL;
    lua_State *L = lua_newstate(allocate, s);
    if (L)
        lua_gc(L, LUA_GCSTOP);
    return L;
}

void sandbox_destroy(struct sandbox *s)
{
    arena_drop(&s->arena); /* nothing in a sandbox has a finaliser */
}

/* ---- a source tree in place of the embedded copies (development) ---- */

static bool read_file(const char *path, struct text *out)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    char part[16384];
    size_t n;
    while ((n = fread(part, 1, sizeof part, f)) > 0 && out->len < MAX_FILE)
        text_add(out, part, n);
    bool good = !ferror(f) && feof(f) && !out->lost;
    fclose(f);
    return good;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **name, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(name[i]);
    free(name);
}

/* Sorted stems of the files of root/folder that end in suffix; false if the folder cannot be read.
 */
static bool list_folder(const char *root, const char *folder, const char *suffix, char ***names,
                        size_t *count)
{
    char path[PATH_ROOM];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    *names = NULL;
    *count = 0;
    DIR *d = opendir(path);
    if (!d)
        return false;
    bool good = true;
    size_t tail = strlen(suffix);
    for (struct dirent *e; good && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (e->d_name[0] == '.' || n <= tail || strcmp(e->d_name + n - tail, suffix) != 0)
            continue;
        char **more = realloc(*names, (*count + 1) * sizeof *more);
        char *stem = more ? strndup(e->d_name, n - tail) : NULL;
        if (more)
            *names = more;
        if (stem)
            (*names)[(*count)++] = stem;
        good = stem != NULL;
    }
    closedir(d);
    if (*count)
        qsort(*names, *count, sizeof **names, by_name);
    return good;
}

/* Where the modules, templates and fragments of templates live, and the prefix of their names.
 * embed.cmake enumerates the same. */
static const struct {
    const char *folder, *suffix, *prefix;
} places[] = {
    {"gen/lua", ".lua", ""},
    {"gen/lua/isa", ".lua", "isa."},
    {"templates/lib", ".lua", "lib."},
    {"templates", ".c.in", ""},
    {"templates/lib", ".c.in", "lib."},
};
enum { PLACES = sizeof places / sizeof *places, ISAS = 1, MODULES = 3, TEMPLATES = MODULES };

bool sandbox_digest(const char *root, char hex[65])
{
    if (!root) {
        memcpy(hex, embedded_digest, 65);
        return true;
    }
    struct sha256 sum;
    sha256_start(&sum);
    size_t files = 0;
    for (int i = 0; i < PLACES; i++) {
        char **name, path[PATH_ROOM];
        size_t count;
        list_folder(root, places[i].folder, places[i].suffix, &name, &count);
        for (size_t k = 0; k < count; k++) {
            struct text content = {0};
            snprintf(path, sizeof path, "%s/%s/%s%s", root, places[i].folder, name[k],
                     places[i].suffix);
            files += read_file(path, &content);
            const char *relative = path + strlen(root);
            sha256_add(&sum, relative, strlen(relative) + 1);
            sha256_add(&sum, &content.len, sizeof content.len);
            if (content.len)
                sha256_add(&sum, content.at, content.len);
            text_free(&content);
        }
        free_names(name, count);
    }
    unsigned char out[32];
    sha256_end(&sum, out);
    digest_hex(out, sizeof out, hex);
    hex[64] = '\0';
    return files > 0;
}

/* ---- require ---- */

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
    bool good = read_file(path, &content);
    if (good)
        lua_pushlstring(L, content.at ? content.at : "",
                        content.len); /* leaks if this very push runs out of memory */
    text_free(&content);
    return good;
}

/* The file of the name, relative to the source tree, by the last of `count` places whose prefix it
 * has. */
static void find_file(char path[PATH_ROOM], const char *name, int first, int count)
{
    int i = first + count - 1;
    while (i > first && strncmp(name, places[i].prefix, strlen(places[i].prefix)) != 0)
        i--;
    snprintf(path, PATH_ROOM, "%s/%s%s", places[i].folder, name + strlen(places[i].prefix),
             places[i].suffix);
}

/* Pushes the module's chunk from the source tree; false if there is no such file. */
static bool load_from_tree(lua_State *L, const char *root, const char *name)
{
    char label[PATH_ROOM + 1] = "@", path[2 * PATH_ROOM];
    find_file(label + 1, name, 0, MODULES);
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

static void load_embedded(lua_State *L, const struct embedded *e)
{
    if (luaL_loadbufferx(L, (const char *)e->at, e->len, e->name, "b") != LUA_OK)
        lua_error(L);
}

/* Pushes the module's chunk, or raises. */
static void load_module(lua_State *L, const struct sandbox *s, const char *name)
{
    if (sound_name(name)) {
        if (s->root) {
            if (load_from_tree(L, s->root, name))
                return;
        } else {
            const struct embedded *m = find(embedded_modules, embedded_module_count, name);
            if (m) {
                load_embedded(L, m);
                return;
            }
        }
    }
    luaL_error(L, "no module '%s'", name);
}

/* require(name): upvalue 1 is the table of loaded modules; `false` marks one being loaded. */
static int require(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    lua_settop(L, 1);
    int type = lua_getfield(L, lua_upvalueindex(1), name);
    if (type == LUA_TBOOLEAN && !lua_toboolean(L, -1))
        return luaL_error(L, "module '%s' requires itself", name);
    if (type != LUA_TNIL)
        return 1;
    lua_pushboolean(L, 0);
    lua_setfield(L, lua_upvalueindex(1), name);
    void *user;
    lua_getallocf(L, &user);
    load_module(L, user, name);
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    if (lua_isnil(L, -1)) {
        lua_pushboolean(L, 1);
        lua_replace(L, -2);
    }
    lua_pushvalue(L, -1);
    lua_setfield(L, lua_upvalueindex(1), name);
    return 1;
}

/* ---- module "source" ---- */

/* source.text("moe_forward"), or "lib.routing" for a fragment -> text, path; of a source tree only:
 * see source.chunk for the embedded ones */
static int source_text(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    char path[PATH_ROOM], full[2 * PATH_ROOM];
    void *user;
    lua_getallocf(L, &user);
    const struct sandbox *s = user;
    if (s->root && sound_name(name)) {
        find_file(path, name, TEMPLATES, PLACES - TEMPLATES);
        snprintf(full, sizeof full, "%s/%s", s->root, path);
        if (push_file(L, full)) {
            lua_pushstring(L, path);
            return 2;
        }
    }
    return luaL_error(L, "no template '%s'", name);
}

/* source.chunk("moe_forward", "body") -> that part of the template or fragment (see translate.lua)
 * as a function, or nil with a source tree */
static int source_chunk(lua_State *L)
{
    const char *family = luaL_checkstring(L, 1), *part = luaL_checkstring(L, 2);
    void *user;
    lua_getallocf(L, &user);
    const struct sandbox *s = user;
    if (s->root)
        return 0;
    const struct embedded *e = find(embedded_templates, embedded_template_count,
                                    lua_pushfstring(L, "%s.%s", family, part));
    if (!e)
        return luaL_error(L, "no template '%s' with part '%s'", family, part);
    load_embedded(L, e);
    return 1;
}

/* Pushes a sorted list of the names in one of `places`. */
static int push_names(lua_State *L, int place)
{
    void *user;
    lua_getallocf(L, &user);
    const struct sandbox *s = user;
    lua_newtable(L);
    if (s->root) {
        char **name;
        size_t count;
        list_folder(s->root, places[place].folder, places[place].suffix, &name, &count);
        for (size_t i = 0; i < count; i++) {
            lua_pushstring(L, name[i]);
            lua_rawseti(L, -2, (lua_Integer)i + 1);
        }
        free_names(name, count);
        return 1;
    }
    const struct embedded *table = place == TEMPLATES ? embedded_templates : embedded_modules;
    size_t count = place == TEMPLATES ? embedded_template_count : embedded_module_count;
    const char *prefix = place == TEMPLATES ? "" : places[place].prefix;
    const char *suffix = place == TEMPLATES ? ".head" : "";
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
    return push_names(L, TEMPLATES);
}

static int source_isas(lua_State *L)
{
    return push_names(L, ISAS);
}

/* ---- the state ---- */

static const luaL_Reg libraries[] = {
    {LUA_GNAME, luaopen_base},        {LUA_TABLIBNAME, luaopen_table},
    {LUA_STRLIBNAME, luaopen_string}, {LUA_MATHLIBNAME, luaopen_math},
    {LUA_UTF8LIBNAME, luaopen_utf8},  {LUA_COLIBNAME, luaopen_coroutine},
};
/* What would reach outside, depend on chance, print, or run unverified bytecode. */
static const struct {
    const char *table, *name;
} removed[] = {
    {LUA_GNAME, "dofile"},         {LUA_GNAME, "loadfile"},
    {LUA_GNAME, "collectgarbage"}, {LUA_GNAME, "print"},
    {LUA_GNAME, "warn"},           {LUA_STRLIBNAME, "dump"},
    {LUA_MATHLIBNAME, "random"},   {LUA_MATHLIBNAME, "randomseed"},
};
static const luaL_Reg source_functions[] = {{"text", source_text},
                                            {"chunk", source_chunk},
                                            {"families", source_families},
                                            {"isas", source_isas},
                                            {NULL, NULL}};

void sandbox_setup(lua_State *L, struct sandbox *s)
{
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        luaL_requiref(L, libraries[i].name, libraries[i].func, 1);
        lua_pop(L, 1);
    }
    for (size_t i = 0; i < sizeof removed / sizeof *removed; i++) {
        lua_getglobal(L, removed[i].table);
        lua_pushnil(L);
        lua_setfield(L, -2, removed[i].name);
        lua_pop(L, 1);
    }
    lua_newtable(L); /* loaded modules */
    luaL_newlib(L, source_functions);
    lua_setfield(L, -2, "source");
    native_open(L);
    lua_setfield(L, -2, "native");
    lua_pushcclosure(L, require, 1);
    lua_setglobal(L, "require");
    load_module(L, s, "prelude");
    lua_call(L, 0, 0);
}
