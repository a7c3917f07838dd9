/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encode_lua.c - module "encode": encode.c for gen/lua/arch/x86/code.lua.
 *
 * A coder is a row of an instruction table, parsed once: its notation, and the places where the
 * operands of its op go. See the head of gen/lua/isa/avx512.lua.
 */
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "encode.h"
#include "x86.h"

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

/* The operand on top: a register, memory, or an integer. */
static struct operand operand_on_top(lua_State *L)
{
    struct operand x = {.kind = AS_NUMBER, .index = -1};
    if (!lua_istable(L, -1)) {
        x.n = (int64_t)lua_tointeger(L, -1);
        return x;
    }
    x.kind = field(L, -1, BASE) == LUA_TNIL ? AS_REGISTER : AS_MEMORY;
    if (x.kind == AS_REGISTER) {
        lua_pop(L, 1);
        x.reg = (uint8_t)reg_on_top(L);
        return x;
    }
    x.reg = (uint8_t)reg_on_top(L);
    x.size = (uint8_t)number(L, SIZE);
    lua_pop(L, 1);
    x.n = number(L, OFFSET) * x.size;
    if (field(L, -1, INDEX) != LUA_TNIL)
        x.index = (int8_t)reg_on_top(L);
    lua_pop(L, 1);
    return x;
}

/* The op whose operands are at `list` of the stack. */
static void add_op(lua_State *L, const struct coder *c, int list, const int64_t *rip,
                   struct bytes *to)
{
    static const char values[] = "RVKSMTA"; /* places of what is no immediate */
    struct operand x[MAX_OPERANDS];
    int count = (int)lua_rawlen(L, list);
    luaL_argcheck(L, count <= MAX_OPERANDS, list, "too many operands");
    for (int i = 0; i < count; i++) {
        lua_rawgeti(L, list, i + 1);
        x[i] = operand_on_top(L);
        lua_pop(L, 1);
    }
    for (int i = 0; values[i]; i++) {
        int at = c->at[values[i] - 'A'];
        if (at > count || (at && x[at - 1].kind == AS_NUMBER && !rip))
            luaL_error(L, "an operand is no value");
    }
    x86_arch.op(to, c, x, rip);
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
    int64_t rip = luaL_optinteger(L, 3, 0);
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

/* encode.machine(coders) -> the machine, for a tape. coders: of the frame's instructions, in the
 * order of enum frame, which must live as long */
static int new_machine(lua_State *L)
{
    struct x86 *m = lua_newuserdatauv(L, sizeof *m, 0);
    *m = (struct x86){.machine = {&x86_arch}};
    for (int i = 0; i < FRAMES; i++) {
        lua_rawgeti(L, 1, i + 1);
        const struct coder *c = coder_at(L, -1);
        luaL_argcheck(L, c, 1, "a coder is missing");
        m->frame[i] = &c->form;
        lua_pop(L, 1);
    }
    return 1;
}

int encode_open(lua_State *L)
{
    static const luaL_Reg functions[] = {{"coder", new_coder},      {"op", one_op},
                                         {"register", on_register}, {"memory", on_memory},
                                         {"machine", new_machine},  {NULL, NULL}};
    luaL_newlibtable(L, functions);
    for (int i = 0; i < KEYS; i++)
        lua_pushstring(L, key_names[i]);
    luaL_setfuncs(L, functions, KEYS);
    return 1;
}
