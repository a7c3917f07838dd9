/* SPDX-License-Identifier: Apache-2.0 */
/* tape.c - module "tape": what gen/lua/vector/taped.lua records of a program; tape_code.c makes
 * machine code of it. In Lua, values and places in memory are references: light userdata. */
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "sandbox.h"
#include "tape.h"

enum { VALUE = 1, MEMORY = 2, TAG = 3 }; /* kinds of references */

struct tape *tape_of(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_rawgeti(L, 1, 1);
    struct tape *t = lua_touserdata(L, -1);
    lua_pop(L, 1);
    if (!t)
        luaL_error(L, "no tape");
    return t;
}

/* Room for one more element of an array of the tape, from the memory of the state. */
static void *grow(lua_State *L, void *old, int count, int *room, size_t size)
{
    if (count < *room)
        return old;
    void *user;
    int more = *room ? 2 * *room : 32;
    lua_Alloc allocate = lua_getallocf(L, &user);
    void *new = allocate(user, old, (size_t)*room * size, (size_t)more * size);
    if (!new) {
        lua_pushliteral(L, "not enough memory");
        lua_error(L);
    }
    *room = more;
    return new;
}

void *tape_room(lua_State *L, size_t count, size_t size)
{
    void *user;
    lua_Alloc allocate = lua_getallocf(L, &user);
    size_t bytes = (count + 1) * size;
    void *new = allocate(user, NULL, 0, bytes);
    if (!new) {
        lua_pushliteral(L, "not enough memory");
        lua_error(L);
    }
    return memset(new, 0, bytes);
}

/* ---- references ---- */

static int push_reference(lua_State *L, int kind, int i)
{
    lua_pushlightuserdata(L, (void *)((uintptr_t)i << 2 | (uintptr_t)kind));
    return 1;
}

static int reference(lua_State *L, int arg, int kind, int count)
{
    uintptr_t x = (uintptr_t)lua_touserdata(L, arg); /* of all else: no kind */
    if ((int)(x & TAG) != kind || x >> 2 >= (uintptr_t)count)
        luaL_error(L, "argument %d is no %s of the program", arg - 1,
                   kind == VALUE ? "value" : "place in memory");
    return (int)(x >> 2);
}

static int value_at(lua_State *L, const struct tape *t, int arg)
{
    return reference(L, arg, VALUE, t->values);
}

static int add_value(lua_State *L, struct tape *t, enum file file, int size, int def)
{
    t->value = grow(L, t->value, t->values, &t->value_room, sizeof *t->value);
    t->value[t->values] = (struct value){
        .def = def, .last = def, .reg = -1, .file = (uint8_t)file, .size = (uint8_t)size};
    return t->values++;
}

static struct item *add_item(lua_State *L, struct tape *t, enum item_kind kind, int row)
{
    t->item = grow(L, t->item, t->items, &t->item_room, sizeof *t->item);
    struct item *x = &t->item[t->items++];
    *x = (struct item){.kind = (uint8_t)kind, .row = (int16_t)row};
    return x;
}

/* The newest item uses it. */
static void use(struct tape *t, int v)
{
    t->value[v].last = t->items;
}

/* ---- the functions: (program, ...) ---- */

/* The tape of a function that is a program's own. */
static struct tape *own_tape(lua_State *L)
{
    return lua_touserdata(L, lua_upvalueindex(1));
}

/* tape.parameter(p, size, stays) -> value: an address or count that the caller gives; stays: only
 * counts start as it */
static int tape_parameter(lua_State *L)
{
    bool stays = lua_toboolean(L, 3);
    struct tape *t = tape_of(L);
    int v = add_value(L, t, GENERAL, (int)luaL_checkinteger(L, 2), t->items);
    if (t->params == MAX_PARAMS)
        luaL_error(L, "more than %d parameters", MAX_PARAMS);
    t->value[v].stays = stays;
    t->value[v].param = (int16_t)t->params;
    t->param[t->params++] = v;
    return push_reference(L, VALUE, v);
}

/* p:row(row), see ir.lua */
static int tape_row(lua_State *L)
{
    own_tape(L)->row = (int)luaL_optinteger(L, 2, -1);
    return 0;
}

/* p:at(base, offset, index) -> place in memory */
static int tape_at(lua_State *L)
{
    struct tape *t = own_tape(L);
    int is_number;
    lua_Integer offset = lua_tointegerx(L, 3, &is_number);
    t->place = grow(L, t->place, t->places, &t->place_room, sizeof *t->place);
    t->place[t->places] = (struct place){.base = value_at(L, t, 2),
                                         .offset = is_number ? offset : luaL_optinteger(L, 3, 0),
                                         .index = lua_isnoneornil(L, 4) ? -1 : value_at(L, t, 4)};
    return push_reference(L, MEMORY, t->places++);
}

static uint32_t bits_of(lua_State *L, int arg)
{
    if (lua_isinteger(L, arg))
        return (uint32_t)lua_tointeger(L, arg);
    float x = (float)luaL_checknumber(L, arg);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* An operand that is there before the op. */
static void take_operand(lua_State *L, struct tape *t, struct item *x, int i)
{
    int arg = i + 3;
    switch (x->op->roles[i]) {
    case 'm':
        x->arg[i] = reference(L, arg, MEMORY, t->places);
        use(t, t->place[x->arg[i]].base);
        if (t->place[x->arg[i]].index >= 0)
            use(t, t->place[x->arg[i]].index);
        break;
    case 'i':
        x->imm = x->op->pooled ? (int64_t)bits_of(L, arg) : luaL_checkinteger(L, arg);
        break;
    case 'd':
        break;
    default:
        x->arg[i] = value_at(L, t, arg);
        use(t, x->arg[i]);
    }
}

/* p:op(name, ...) -> its result, see ir.lua */
static int tape_op(lua_State *L)
{
    struct tape *t = own_tape(L);
    const struct op *op = tape_op_named(L, t);
    struct item *x = add_item(L, t, OP, t->row);
    int result = -1;
    x->op = op;
    for (int i = 0; i < op->operands; i++) {
        take_operand(L, t, x, i);
        result = op->roles[i] == 'D' ? x->arg[i] : result;
    }
    for (int i = 0; i < op->operands; i++)
        if (op->roles[i] == 'd')
            result = x->arg[i] = add_value(L, t, op->file, op->size, t->items);
    return result < 0 ? 0 : push_reference(L, VALUE, result);
}

/* tape.hoist(p, x) -> value: a constant that is loaded before the code */
static int tape_hoist(lua_State *L)
{
    struct tape *t = tape_of(L);
    lua_pushliteral(L, "const");
    lua_insert(L, 2);
    const struct op *op = tape_op_named(L, t);
    int v = add_value(L, t, op->file, 0, 0);
    t->value[v].last = t->items;
    t->hoisted = grow(L, t->hoisted, t->hoists, &t->hoisted_room, sizeof *t->hoisted);
    t->hoisted[t->hoists++] =
        (struct item){.kind = OP, .row = -1, .op = op, .arg = {v}, .imm = bits_of(L, 3)};
    return push_reference(L, VALUE, v);
}

/* tape.loop(p, count, maybe) -> the start, for tape.again */
static int tape_loop(lua_State *L)
{
    struct tape *t = tape_of(L);
    int v = value_at(L, t, 2);
    struct item *x = add_item(L, t, LOOP, -1);
    x->arg[0] = v;
    x->arg[1] = t->values;
    x->arg[2] = t->hoists;
    x->maybe = lua_toboolean(L, 3);
    use(t, v);
    lua_pushinteger(L, t->items);
    return 1;
}

/* tape.again(p, start): what was there before the loop, and is used in it, lives until its end */
static int tape_again(lua_State *L)
{
    struct tape *t = tape_of(L);
    lua_Integer start = luaL_checkinteger(L, 2);
    luaL_argcheck(L, start > 0 && start <= t->items, 2, "no loop");
    struct item *x = add_item(L, t, AGAIN, -1), from = t->item[start - 1];
    x->arg[0] = from.arg[0];
    x->maybe = from.maybe;
    use(t, from.arg[0]);
    for (int i = 0; i < from.arg[1]; i++)
        if (t->value[i].last > start)
            t->value[i].last = t->items;
    for (int i = from.arg[2]; i < t->hoists; i++)
        use(t, t->hoisted[i].arg[0]);
    return 0;
}

/* The second operand of an item: a value or a number. */
static void take_amount(lua_State *L, struct tape *t, struct item *x, int arg)
{
    x->arg[1] = -1;
    if (lua_islightuserdata(L, arg)) {
        x->arg[1] = value_at(L, t, arg);
        use(t, x->arg[1]);
    } else {
        x->imm = luaL_checkinteger(L, arg);
    }
}

/* tape.count(p, from) -> value that starts as another, or as a number */
static int tape_count(lua_State *L)
{
    struct tape *t = tape_of(L);
    struct item *x = add_item(L, t, COUNT, -1);
    x->arg[0] = add_value(L, t, GENERAL, 0, t->items);
    take_amount(L, t, x, 2);
    return push_reference(L, VALUE, x->arg[0]);
}

/* tape.set(p, value, from) */
static int tape_set(lua_State *L)
{
    struct tape *t = tape_of(L);
    struct item *x = add_item(L, t, SET, -1);
    x->arg[0] = value_at(L, t, 2);
    x->arg[1] = value_at(L, t, 3);
    use(t, x->arg[0]);
    use(t, x->arg[1]);
    return 0;
}

/* p:advance(pointer, by) */
static int tape_advance(lua_State *L)
{
    struct tape *t = own_tape(L);
    struct item *x = add_item(L, t, ADVANCE, t->row);
    x->arg[0] = value_at(L, t, 2);
    use(t, x->arg[0]);
    take_amount(L, t, x, 3);
    return 0;
}

/* tape.new(p, sizes, machine, zero_upper, ops): the tape of a new program, and functions of its own
 * for what programs call most. sizes: registers of each file; a machine of arch/arch.h; the caller
 * keeps both of these */
static int tape_new(lua_State *L)
{
    static const luaL_Reg functions[] = {{"op", tape_op},
                                         {"at", tape_at},
                                         {"advance", tape_advance},
                                         {"row", tape_row},
                                         {NULL, NULL}};
    const struct machine *m = lua_touserdata(L, 3);
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_argcheck(L, lua_type(L, 3) == LUA_TUSERDATA, 3, "no machine");
    luaL_argcheck(L, lua_type(L, 5) == LUA_TUSERDATA, 5, "no ops");
    struct tape *t = lua_newuserdatauv(L, sizeof *t, 0);
    *t = (struct tape){.row = -1,
                       .machine = m,
                       .arch = m->arch,
                       .zero_upper = lua_toboolean(L, 4),
                       .ops = lua_touserdata(L, 5)};
    for (int i = 0; i < FILES; i++) {
        lua_rawgeti(L, 2, i + 1);
        t->registers[i] = (int)lua_tointeger(L, -1);
        lua_pop(L, 1);
    }
    lua_pushvalue(L, -1);
    lua_rawseti(L, 1, 1);
    lua_pushvalue(L, 1);
    lua_insert(L, -2);
    luaL_setfuncs(L, functions, 1);
    return 0;
}

/* Templates call a value after another one, x.name, which nobody reads here, and ask whether it is
 * a list of them, x[1]. */
static int field_of_reference(lua_State *L)
{
    if (lua_type(L, 2) == LUA_TNUMBER)
        return 0;
    const char *key = luaL_checkstring(L, 2);
    if (strcmp(key, "name") != 0)
        return luaL_error(L, "a template may ask for the name of a value, not for '%s'", key);
    lua_pushliteral(L, "");
    return 1;
}

int tape_open(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"new", tape_new},     {"ops", tape_ops},   {"parameter", tape_parameter},
        {"hoist", tape_hoist}, {"loop", tape_loop}, {"again", tape_again},
        {"count", tape_count}, {"set", tape_set},   {"code", tape_code},
        {NULL, NULL}};
    lua_pushlightuserdata(L, NULL); /* all light userdata share a metatable */
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, field_of_reference);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    lua_pop(L, 1);
    luaL_newlib(L, functions);
    return 1;
}
