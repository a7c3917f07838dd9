/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.c - Lua states that can compute but not touch the outside, with the generator's modules
 * built in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "arch/x86/x86.h"
#include "sandbox.h"

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

lua_State *sandbox_create(struct sandbox *s, char *room, size_t size)
{
    *s = (struct sandbox){.soft = soft_limit, .root = tree_root()};
    if (room)
        s->arena = (struct arena){
            .at = room, .left = size, .base = room, .base_size = size, .whole = true};
    lua_State *L = lua_newstate(allocate, s);
    if (L)
        lua_gc(L, LUA_GCSTOP);
    return L;
}

void sandbox_destroy(struct sandbox *s)
{
    arena_drop(&s->arena); /* nothing in a sandbox has a finaliser */
}

/* ---- require ---- */

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
    source_load(L, ((const struct sandbox *)user)->root, name);
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
    native_format(L);
    lua_newtable(L); /* loaded modules */
    source_open(L);
    lua_setfield(L, -2, "source");
    native_open(L);
    lua_setfield(L, -2, "native");
    encode_open(L);
    lua_setfield(L, -2, "encode");
    tape_open(L);
    lua_setfield(L, -2, "tape");
    words_open(L);
    lua_setfield(L, -2, "words");
    lua_pushcclosure(L, require, 1);
    lua_setglobal(L, "require");
    source_load(L, s->root, "prelude");
    lua_call(L, 0, 0);
}
