/* SPDX-License-Identifier: Apache-2.0 */
/* native.c - what Lua would do byte by byte, or through the C library's printf: module "native",
 * and a faster string.format. */
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "sandbox.h"

static char *put_hex(char *out, unsigned char byte)
{
    static const char digits[] = "0123456789abcdef";
    *out++ = digits[byte >> 4];
    *out++ = digits[byte & 15];
    return out;
}

static char *put(char *out, const char *s)
{
    size_t n = strlen(s);
    memcpy(out, s, n);
    return out + n;
}

/* "0x62,0xf2" */
static char *put_bytes(char *out, const unsigned char *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out = put_hex(put(out, i ? ",0x" : "0x"), at[i]);
    return out;
}

/* native.hex(bytes) -> "0x62,0xf2,...": the operands of a .byte line */
static int native_hex(lua_State *L)
{
    size_t n;
    const unsigned char *at = (const unsigned char *)luaL_checklstring(L, 1, &n);
    luaL_Buffer b;
    char *start = luaL_buffinitsize(L, &b, 5 * n + 1);
    luaL_pushresultsize(&b, (size_t)(put_bytes(start, at, n) - start));
    return 1;
}

/* ---- string.format of names: %s of a string and %d of an integer, and nothing else ---- */

/* Room for text on its way. */
struct span {
    char *at, *stop;
};

static bool put_string(struct span *out, const char *s, size_t n)
{
    if (n > (size_t)(out->stop - out->at))
        return false;
    memcpy(out->at, s, n);
    out->at += n;
    return true;
}

static bool put_integer(struct span *out, lua_Integer x)
{
    char digits[24], *at = digits + sizeof digits;
    lua_Unsigned left = x < 0 ? 0 - (lua_Unsigned)x : (lua_Unsigned)x;
    do
        *--at = (char)('0' + left % 10);
    while (left /= 10);
    if (x < 0)
        *--at = '-';
    return put_string(out, at, (size_t)(digits + sizeof digits - at));
}

/* False: this needs the other one. */
static bool format_name(lua_State *L, struct span *out)
{
    size_t n;
    const char *at = luaL_checklstring(L, 1, &n), *stop = at + n;
    for (int arg = 2; at < stop; arg++) {
        const char *sign = memchr(at, '%', (size_t)(stop - at));
        if (!put_string(out, at, (size_t)((sign ? sign : stop) - at)))
            return false;
        if (!sign)
            break;
        at = sign + 2;
        if (sign[1] == 's' && lua_type(L, arg) == LUA_TSTRING) {
            const char *s = lua_tolstring(L, arg, &n);
            if (!put_string(out, s, n))
                return false;
        } else if (sign[1] != 'd' || !lua_isinteger(L, arg) ||
                   !put_integer(out, lua_tointeger(L, arg))) {
            return false;
        }
    }
    return true;
}

/* Upvalue: the library's. */
static int format(lua_State *L)
{
    char room[256];
    struct span out = {room, room + sizeof room};
    if (format_name(L, &out)) {
        lua_pushlstring(L, room, (size_t)(out.at - room));
        return 1;
    }
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, 1);
    return 1;
}

void native_format(lua_State *L)
{
    lua_getglobal(L, LUA_STRLIBNAME);
    lua_getfield(L, -1, "format");
    lua_pushcclosure(L, format, 1);
    lua_setfield(L, -2, "format");
    lua_pop(L, 1);
}

int native_open(lua_State *L)
{
    static const luaL_Reg functions[] = {{"hex", native_hex}, {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
