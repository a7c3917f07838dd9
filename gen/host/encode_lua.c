/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encode_lua.c - module "encode": encode.c for gen/lua/vector/assemble.lua.
 *
 * A coder is a row of an instruction table, parsed once: its notation, and the places where the
 * operands of its op go. See the head of gen/lua/isa/avx512.lua.
 */
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "encode.h"
#include "sandbox.h"

/* encode.coder(notation, places, n, fixed). places: "RVM", a letter per operand; n: size of what an
 * EVEX memory operand reads (64); fixed: the immediate, if it is not an operand */
static int new_coder(lua_State *L)
{
    const char *notation = luaL_checkstring(L, 1), *places = luaL_checkstring(L, 2);
    struct coder *c = lua_newuserdatauv(L, sizeof *c, 0);
    *c = (struct coder){.fixed = !lua_isnoneornil(L, 4)};
    if (!encode_parse(&c->form, notation))
        return luaL_error(L, "no encoding: '%s'", notation);
    c->form.scale = c->form.kind == EVEX ? (int)luaL_optinteger(L, 3, 64) : 1;
    c->value = c->fixed ? luaL_checkinteger(L, 4) : 0;
    for (int i = 0; places[i]; i++) {
        if (places[i] < 'A' || places[i] > 'Z')
            return luaL_error(L, "no places: '%s'", places);
        c->at[places[i] - 'A'] = (uint8_t)(i + 1);
    }
    return 1;
}

/* The coder at a place of the stack, or NULL. */
static const struct coder *coder_at(lua_State *L, int i)
{
    return lua_rawlen(L, i) == sizeof(struct coder) ? lua_touserdata(L, i) : NULL;
}

static const struct coder *first_coder(lua_State *L)
{
    const struct coder *c = coder_at(L, 1);
    luaL_argcheck(L, c, 1, "not a coder");
    return c;
}

/* ---- operands ---- */

/* Argument i, a register's number; 0 without it. */
static unsigned small(lua_State *L, int i)
{
    lua_Integer n = luaL_optinteger(L, i, 0);
    luaL_argcheck(L, n >= 0 && n < 32, i, "no register");
    return (unsigned)n;
}

/* Fields of operands; their names are upvalues of every function, in this order. */
enum key { REG, BASE, SIZE, OFFSET, INDEX, KEYS };
static const char *const key_names[] = {"reg", "base", "size", "offset", "index"};

/* Pushes a field of the table at a place of the stack; returns its type. */
static int field(lua_State *L, int table, enum key key)
{
    table = lua_absindex(L, table);
    lua_pushvalue(L, lua_upvalueindex((int)key + 1));
    return lua_rawget(L, table);
}

/* Field of the table on top that is an integer. */
static lua_Integer number(lua_State *L, enum key key)
{
    int good;
    field(L, -1, key);
    lua_Integer n = lua_tointegerx(L, -1, &good);
    if (!good)
        luaL_error(L, "an operand has no '%s'", key_names[key]);
    lua_pop(L, 1);
    return n;
}

static unsigned reg_on_top(lua_State *L)
{
    if (!lua_istable(L, -1))
        luaL_error(L, "an operand is no value");
    lua_Integer n = number(L, REG);
    if (n < 0 || n >= 32)
        luaL_error(L, "no register %d", (int)n);
    return (unsigned)n;
}

/* Register of the operand of `list` at the place of a letter; 0 without it. */
static unsigned reg_at(lua_State *L, const struct coder *c, int list, char letter)
{
    int i = c->at[letter - 'A'];
    if (!i)
        return 0;
    lua_rawgeti(L, list, i);
    unsigned reg = reg_on_top(L);
    lua_pop(L, 1);
    return reg;
}

/* Memory, in the table on top, into o; false: it is a register. */
static bool memory(lua_State *L, const struct coder *c, int list, struct operands *o)
{
    int stride = c->at['T' - 'A'];
    if (!lua_istable(L, -1))
        luaL_error(L, "an operand is no value");
    if (field(L, -1, BASE) == LUA_TNIL) {
        lua_pop(L, 1);
        return false;
    }
    o->base = reg_on_top(L);
    lua_Integer size = number(L, SIZE);
    lua_pop(L, 1);
    o->disp = number(L, OFFSET) * size;
    if (stride) /* rows a stride apart */
        lua_rawgeti(L, list, stride + 1);
    else
        field(L, -1, INDEX);
    o->indexed = lua_istable(L, -1);
    if (o->indexed) {
        o->index = reg_on_top(L);
        while (!stride && (1 << o->scale) < size && o->scale < 3)
            o->scale++;
    }
    lua_pop(L, 1);
    return true;
}

/* The op whose operands are at `list` of the stack. */
static void add_op(lua_State *L, const struct coder *c, int list, const lua_Integer *rip,
                   struct bytes *to)
{
    const uint8_t *at = c->at;
    struct operands o = {.imm = c->value};
    o.reg = reg_at(L, c, list, at['A' - 'A'] ? 'A' : 'R');
    o.vvvv = reg_at(L, c, list, at['V' - 'A'] ? 'V' : 'A');
    o.mask = reg_at(L, c, list, 'K');
    if (!c->fixed && c->form.imm && at['I' - 'A']) {
        lua_rawgeti(L, list, at['I' - 'A']);
        o.imm = (int64_t)lua_tointeger(L, -1);
        lua_pop(L, 1);
    }
    if (at['S' - 'A'] && at['M' - 'A']) /* a register in the high half of the immediate */
        o.imm = (int64_t)reg_at(L, c, list, 'S') << 4;
    int m = at['M' - 'A'] ? at['M' - 'A'] : at['T' - 'A'] ? at['T' - 'A'] : at['A' - 'A'];
    if (rip) {
        o.disp = (int64_t)*rip;
        encode_relative(to, &c->form, &o);
    } else if (!m) {
        encode_register(to, &c->form, &o);
    } else {
        lua_rawgeti(L, list, m);
        if (memory(L, c, list, &o)) {
            encode_memory(to, &c->form, &o);
        } else {
            o.rm = reg_on_top(L);
            encode_register(to, &c->form, &o);
        }
        lua_pop(L, 1);
    }
}

/* ---- the module ---- */

static int give(lua_State *L, const struct bytes *b)
{
    lua_pushlstring(L, (const char *)b->at, b->n);
    return 1;
}

/* encode.op(coder, operands, rip) -> bytes. operands: a list of values with `reg`, memory {base=,
 * offset=, index=}, an integer at I. rip: the memory operand is so far from the instruction's end
 */
static int one_op(lua_State *L)
{
    const struct coder *c = first_coder(L);
    struct bytes code = {.n = 0};
    lua_Integer rip = luaL_optinteger(L, 3, 0);
    luaL_checktype(L, 2, LUA_TTABLE);
    add_op(L, c, 2, lua_isnoneornil(L, 3) ? NULL : &rip, &code);
    return give(L, &code);
}

/* encode.register(coder, reg, rm, imm) -> bytes */
static int on_register(lua_State *L)
{
    const struct coder *c = first_coder(L);
    struct operands o = {.reg = small(L, 2), .rm = small(L, 3), .imm = luaL_optinteger(L, 4, 0)};
    struct bytes code = {.n = 0};
    encode_register(&code, &c->form, &o);
    return give(L, &code);
}

/* encode.memory(coder, reg, base, index, scale, disp, imm) -> bytes; index may be nil, scale is
 * 0..3 */
static int on_memory(lua_State *L)
{
    const struct coder *c = first_coder(L);
    struct operands o = {.reg = small(L, 2),
                         .base = small(L, 3),
                         .index = small(L, 4),
                         .indexed = !lua_isnoneornil(L, 4),
                         .scale = small(L, 5) & 3,
                         .disp = luaL_optinteger(L, 6, 0),
                         .imm = luaL_optinteger(L, 7, 0)};
    struct bytes code = {.n = 0};
    encode_memory(&code, &c->form, &o);
    return give(L, &code);
}

int encode_open(lua_State *L)
{
    static const luaL_Reg functions[] = {{"coder", new_coder},
                                         {"op", one_op},
                                         {"register", on_register},
                                         {"memory", on_memory},
                                         {NULL, NULL}};
    luaL_newlibtable(L, functions);
    for (int i = 0; i < KEYS; i++)
        lua_pushstring(L, key_names[i]);
    luaL_setfuncs(L, functions, KEYS);
    return 1;
}
