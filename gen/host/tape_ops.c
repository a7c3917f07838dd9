/* SPDX-License-Identifier: Apache-2.0 */
/* tape_ops.c - what a tape knows of the ops of its target: asked once of each, of the program. */
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "tape.h"

static enum file file_of(lua_State *L, const char *name)
{
    static const char files[] = "vktr";
    const char *at = *name ? strchr(files, *name) : NULL;
    if (!at)
        luaL_error(L, "no register file '%s'", name);
    return (enum file)(at - files);
}

int tape_ops(lua_State *L)
{
    struct ops *ops = lua_newuserdatauv(L, sizeof *ops, 0);
    memset(ops, 0, sizeof *ops);
    return 1;
}

/* The letters of "d a m"; false: there are too many. */
static bool set_roles(struct op *op, const char *letters)
{
    op->operands = 0;
    for (; *letters; letters++) {
        if (*letters == ' ')
            continue;
        if (op->operands == MAX_OPERANDS)
            return false;
        op->roles[op->operands++] = *letters;
    }
    return true;
}

/* Known, or asked of the program's method `describe`, which returns coder, roles, register file and
 * size of its result. */
const struct op *tape_op_named(lua_State *L, struct tape *t)
{
    const char *name = lua_tostring(L, 2);
    if (!name)
        luaL_checkstring(L, 2);
    for (unsigned h = (unsigned)((uintptr_t)name >> 4) * 2654435769u >> 24;;
         h = (h + 1) % MAX_OPS) {
        struct op *op = &t->ops->row[h];
        if (op->name == name)
            return op;
        if (op->name)
            continue;
        if (++t->ops->count == MAX_OPS)
            luaL_error(L, "more than %d ops", MAX_OPS - 1);
        lua_getfield(L, 1, "describe");
        lua_pushvalue(L, 1);
        lua_pushvalue(L, 2);
        lua_call(L, 2, 4);
        op->coder = lua_touserdata(L, -4);
        if (!set_roles(op, luaL_checkstring(L, -3)) || !op->coder)
            luaL_error(L, "op %s cannot be taped", name);
        op->file = file_of(L, luaL_checkstring(L, -2));
        op->size = (int)luaL_checkinteger(L, -1);
        op->pooled = strcmp(name, "const") == 0;
        op->name = name;
        lua_pop(L, 4);
        return op;
    }
}
