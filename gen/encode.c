/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encode.c - module "encode": machine code from the Intel manual's notation.
 *
 *   EVEX   62 | R X B R' 0 m m m | W v v v v 1 p p | z L' L b V' a a a | opcode ModRM [SIB] [disp]
 *   VEX3   C4 | R X B m m m m m  | W v v v v L p p |                     opcode ModRM [SIB] [disp]
 *   VEX2   C5 | R v v v v L p p  |                                       opcode ModRM [SIB] [disp]
 *          (R X B R' V' vvvv are stored inverted; the immediate comes last)
 *
 * A form is a row's notation and places, parsed once: "EVEX.512.66.0F38.W0 B8 /r ib" (or "REX.W 8B
 * /r" without a vector prefix) and "RVM". Its functions give the bytes of one instruction.
 */
#include <stdint.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "private.h"

enum kind { LEGACY, VEX, EVEX };
enum { MAX_OPCODE = 4, MAX_CODE = 24 };

struct form {
    enum kind kind;
    uint8_t length, prefix, map, w, broadcast;
    uint8_t opcode[MAX_OPCODE], opcodes;
    bool modrm, plus; /* plus: the register is part of the opcode */
    bool fixed;       /* the immediate is `value` */
    int digit;        /* in place of a register, or -1 */
    int imm;          /* bytes of the immediate */
    int scale;        /* what an 8-bit displacement is multiplied by */
    lua_Integer value;
    uint8_t at[26]; /* letter of a place - 'A' -> number of the operand, 0: none */
};

struct bytes {
    uint8_t at[MAX_CODE];
    size_t n;
};

static void put(struct bytes *b, unsigned byte)
{
    b->at[b->n++] = (uint8_t)byte;
}

static void put_32(struct bytes *b, uint32_t word)
{
    for (int i = 0; i < 32; i += 8)
        put(b, word >> i & 255);
}

/* ---- notation ---- */

static const struct {
    const char *name;
    size_t field;
    uint8_t value;
} words[] = {
    {"128", offsetof(struct form, length), 0}, {"256", offsetof(struct form, length), 1},
    {"512", offsetof(struct form, length), 2}, {"LIG", offsetof(struct form, length), 0},
    {"LZ", offsetof(struct form, length), 0},  {"NP", offsetof(struct form, prefix), 0},
    {"66", offsetof(struct form, prefix), 1},  {"F3", offsetof(struct form, prefix), 2},
    {"F2", offsetof(struct form, prefix), 3},  {"0F", offsetof(struct form, map), 1},
    {"0F38", offsetof(struct form, map), 2},   {"0F3A", offsetof(struct form, map), 3},
    {"W0", offsetof(struct form, w), 0},       {"W1", offsetof(struct form, w), 1},
    {"WIG", offsetof(struct form, w), 0},      {"b", offsetof(struct form, broadcast), 1},
};

static bool same(const char *name, const char *at, size_t n)
{
    return strncmp(name, at, n) == 0 && name[n] == '\0';
}

/* "EVEX.512.66.0F38.W0", n characters. */
static bool parse_prefix(struct form *f, const char *at, size_t n)
{
    const char *stop = at + n;
    f->kind = *at == 'E' ? EVEX : VEX;
    f->map = 1;
    for (at += strcspn(at, "."); at < stop; at += n) {
        size_t i = 0;
        n = strcspn(++at, ". ");
        while (i < sizeof words / sizeof *words && !same(words[i].name, at, n))
            i++;
        if (i == sizeof words / sizeof *words)
            return false;
        ((uint8_t *)f)[words[i].field] = words[i].value;
    }
    return true;
}

static int hex_digit(char c)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static bool parse_word(struct form *f, const char *at, size_t n)
{
    if (same("/r", at, n)) {
        f->modrm = true;
    } else if (same("ib", at, n) || same("id", at, n)) {
        f->imm = at[1] == 'b' ? 1 : 4;
    } else if (same("REX.W", at, n)) {
        f->w = 1;
    } else if (same("+r", at, n)) {
        f->plus = true;
    } else if (n == 2 && *at == '/' && at[1] >= '0' && at[1] <= '7') {
        f->modrm = true;
        f->digit = at[1] - '0';
    } else {
        int high = hex_digit(at[0]), low = n == 2 ? hex_digit(at[1]) : -1;
        if (high < 0 || low < 0 || f->opcodes == MAX_OPCODE)
            return false;
        f->opcode[f->opcodes++] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool parse(struct form *f, const char *at)
{
    if (strncmp(at, "VEX.", 4) == 0 || strncmp(at, "EVEX.", 5) == 0) {
        size_t n = strcspn(at, " ");
        if (!parse_prefix(f, at, n))
            return false;
        at += n;
    }
    for (at += strspn(at, " "); *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");
        if (!parse_word(f, at, n))
            return false;
        at += n;
    }
    return f->opcodes > 0;
}

/* encode.form(notation, places, n, fixed) -> form. places: "RVM", a letter per operand; n: size of
 * what an EVEX memory operand reads (64); fixed: the immediate, if it is not an operand */
static int encode_form(lua_State *L)
{
    const char *notation = luaL_checkstring(L, 1), *places = luaL_checkstring(L, 2);
    struct form *f = lua_newuserdatauv(L, sizeof *f, 0);
    *f = (struct form){.digit = -1};
    if (!parse(f, notation))
        return luaL_error(L, "no encoding: '%s'", notation);
    f->scale = f->kind == EVEX ? (int)luaL_optinteger(L, 3, 64) : 1;
    f->fixed = !lua_isnoneornil(L, 4);
    f->value = f->fixed ? luaL_checkinteger(L, 4) : 0;
    for (int i = 0; places[i]; i++) {
        if (places[i] < 'A' || places[i] > 'Z')
            return luaL_error(L, "no places: '%s'", places);
        f->at[places[i] - 'A'] = (uint8_t)(i + 1);
    }
    return 1;
}

/* ---- instructions ---- */

/* What an instruction works on; registers by number, 0 where there is none. */
struct operands {
    unsigned reg, vvvv, mask;
    unsigned rm;          /* a register.. */
    unsigned base, index; /* ..or memory */
    bool indexed;
    unsigned scale; /* of the index, 0..3 */
    int64_t disp, imm;
};

static unsigned reg_of(const struct form *f, const struct operands *o)
{
    return f->digit < 0 ? o->reg : (unsigned)f->digit;
}

/* Prefix and opcode. x, b: bit 3 of index and base, or bits 4 and 3 of an rm register. */
static void put_head(struct bytes *to, const struct form *f, const struct operands *o, unsigned x,
                     unsigned b)
{
    unsigned reg = reg_of(f, o), v = o->vvvv, r = ~reg >> 3 & 1;
    if (f->kind == EVEX) {
        put(to, 0x62);
        put(to, r << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | (~reg >> 4 & 1) << 4 | f->map);
        put(to, (unsigned)f->w << 7 | (~v & 15) << 3 | 4 | f->prefix);
        put(to,
            (unsigned)f->length << 5 | (unsigned)f->broadcast << 4 | (~v >> 4 & 1) << 3 | o->mask);
    } else if (f->kind == VEX) {
        unsigned last = (~v & 15) << 3 | (unsigned)f->length << 2 | f->prefix;
        if (!x && !b && f->map == 1 && !f->w) {
            put(to, 0xc5);
            put(to, r << 7 | last);
        } else {
            put(to, 0xc4);
            put(to, r << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | f->map);
            put(to, (unsigned)f->w << 7 | last);
        }
    } else {
        unsigned rex = (unsigned)f->w << 3 | (reg >> 3 & 1) << 2 | x << 1 | b;
        if (rex)
            put(to, 0x40 | rex);
    }
    for (int i = 0; i < f->opcodes; i++)
        put(to, f->opcode[i]);
}

static void put_imm(struct bytes *to, const struct form *f, int64_t imm)
{
    if (f->imm == 1)
        put(to, (unsigned)imm & 255);
    else if (f->imm == 4)
        put_32(to, (uint32_t)imm);
}

static void put_register(struct bytes *to, const struct form *f, const struct operands *o)
{
    put_head(to, f, o, o->rm >> 4 & 1, o->rm >> 3 & 1);
    if (f->plus)
        to->at[to->n - 1] = (uint8_t)(to->at[to->n - 1] + (o->rm & 7));
    else if (f->modrm)
        put(to, 0xc0 | (reg_of(f, o) & 7) << 3 | (o->rm & 7));
    put_imm(to, f, o->imm);
}

static void put_memory(struct bytes *to, const struct form *f, const struct operands *o)
{
    unsigned low = o->base & 7, modrm = (reg_of(f, o) & 7) << 3;
    bool sib = o->indexed || low == 4;
    put_head(to, f, o, o->indexed ? o->index >> 3 : 0, o->base >> 3);
    int64_t n = f->scale, part = o->disp / n;
    bool none = o->disp == 0 && low != 5;
    bool little = !none && part * n == o->disp && part >= -128 && part <= 127;
    put(to, modrm | (sib ? 4 : low) | (none ? 0 : little ? 0x40 : 0x80));
    if (sib)
        put(to, o->indexed ? o->scale << 6 | (o->index & 7) << 3 | low : 0x24);
    if (little)
        put(to, (unsigned)part & 255);
    else if (!none)
        put_32(to, (uint32_t)o->disp);
    put_imm(to, f, o->imm);
}

/* ---- from Lua ---- */

static const struct form *form_of(lua_State *L)
{
    luaL_argcheck(L, lua_isuserdata(L, 1) && lua_rawlen(L, 1) == sizeof(struct form), 1,
                  "not a form");
    return lua_touserdata(L, 1);
}

/* Field of the table on top that is an integer. */
static lua_Integer number(lua_State *L, const char *key)
{
    int good;
    lua_getfield(L, -1, key);
    lua_Integer n = lua_tointegerx(L, -1, &good);
    if (!good)
        luaL_error(L, "an operand has no '%s'", key);
    lua_pop(L, 1);
    return n;
}

/* Argument i, a register's number; 0 without it. */
static unsigned small(lua_State *L, int i)
{
    lua_Integer n = luaL_optinteger(L, i, 0);
    luaL_argcheck(L, n >= 0 && n < 32, i, "no register");
    return (unsigned)n;
}

static unsigned reg_on_top(lua_State *L)
{
    lua_Integer n = number(L, "reg");
    if (n < 0 || n >= 32)
        luaL_error(L, "no register %d", (int)n);
    return (unsigned)n;
}

/* Register of the operand at the place of a letter in the list that is argument 2; 0 without it. */
static unsigned reg_at(lua_State *L, const struct form *f, char letter)
{
    int i = f->at[letter - 'A'];
    if (!i)
        return 0;
    lua_rawgeti(L, 2, i);
    unsigned reg = reg_on_top(L);
    lua_pop(L, 1);
    return reg;
}

/* Memory, in the table on top, into o; false: it is a register. */
static bool memory(lua_State *L, const struct form *f, struct operands *o)
{
    int stride = f->at['T' - 'A'];
    if (lua_getfield(L, -1, "base") == LUA_TNIL) {
        lua_pop(L, 1);
        return false;
    }
    o->base = reg_on_top(L);
    lua_Integer size = number(L, "size");
    lua_pop(L, 1);
    o->disp = number(L, "offset") * size;
    if (stride) /* rows a stride apart */
        lua_rawgeti(L, 2, stride + 1);
    else
        lua_getfield(L, -1, "index");
    o->indexed = lua_istable(L, -1);
    if (o->indexed) {
        o->index = reg_on_top(L);
        while (!stride && (1 << o->scale) < size)
            o->scale++;
    }
    lua_pop(L, 1);
    return true;
}

static int give(lua_State *L, const struct bytes *b)
{
    return lua_pushlstring(L, (const char *)b->at, b->n) != NULL;
}

/* encode.op(form, operands, rip) -> bytes of an op of a program. operands: a list, see the places
 * in isa/avx512.lua: values with `reg`, memory {base=, offset=, index=}, an integer at I. rip: a
 * memory operand is so far from the end of the instruction */
static int encode_op(lua_State *L)
{
    const struct form *f = form_of(L);
    struct operands o = {0};
    struct bytes code = {.n = 0};
    const uint8_t *at = f->at;
    luaL_checktype(L, 2, LUA_TTABLE);
    o.reg = at['A' - 'A'] ? reg_at(L, f, 'A') : reg_at(L, f, 'R');
    o.vvvv = at['V' - 'A'] ? reg_at(L, f, 'V') : reg_at(L, f, 'A');
    o.mask = reg_at(L, f, 'K');
    o.imm = f->value;
    if (!f->fixed && at['I' - 'A'] && f->imm) {
        lua_rawgeti(L, 2, at['I' - 'A']);
        o.imm = (int64_t)lua_tointeger(L, -1);
        lua_pop(L, 1);
    }
    if (at['S' - 'A'] && at['M' - 'A']) /* a register in the high half of the immediate */
        o.imm = (int64_t)reg_at(L, f, 'S') << 4;
    int m = at['M' - 'A'] ? at['M' - 'A'] : at['T' - 'A'] ? at['T' - 'A'] : at['A' - 'A'];
    if (!lua_isnoneornil(L, 3)) {
        o.disp = (int64_t)luaL_checkinteger(L, 3);
        put_head(&code, f, &o, 0, 0);
        put(&code, (reg_of(f, &o) & 7) << 3 | 5);
        put_32(&code, (uint32_t)o.disp);
        put_imm(&code, f, o.imm);
    } else if (!m) {
        put_register(&code, f, &o);
    } else {
        lua_rawgeti(L, 2, m);
        if (memory(L, f, &o)) {
            put_memory(&code, f, &o);
        } else {
            o.rm = reg_on_top(L);
            put_register(&code, f, &o);
        }
    }
    return give(L, &code);
}

/* encode.register(form, reg, rm, imm) -> bytes */
static int encode_register(lua_State *L)
{
    const struct form *f = form_of(L);
    struct operands o = {.reg = small(L, 2), .rm = small(L, 3), .imm = luaL_optinteger(L, 4, 0)};
    struct bytes code = {.n = 0};
    put_register(&code, f, &o);
    return give(L, &code);
}

/* encode.memory(form, reg, base, index, scale, disp, imm) -> bytes; index may be nil, scale is 0..3
 */
static int encode_memory(lua_State *L)
{
    const struct form *f = form_of(L);
    struct operands o = {.reg = small(L, 2),
                         .base = small(L, 3),
                         .index = small(L, 4),
                         .indexed = !lua_isnoneornil(L, 4),
                         .scale = small(L, 5) & 3,
                         .disp = luaL_optinteger(L, 6, 0),
                         .imm = luaL_optinteger(L, 7, 0)};
    struct bytes code = {.n = 0};
    put_memory(&code, f, &o);
    return give(L, &code);
}

int encode_open(lua_State *L)
{
    static const luaL_Reg functions[] = {{"form", encode_form},
                                         {"op", encode_op},
                                         {"register", encode_register},
                                         {"memory", encode_memory},
                                         {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
