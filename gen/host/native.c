/* SPDX-License-Identifier: Apache-2.0 */
/* native.c - module "native": what Lua would do byte by byte, for megabytes of machine code. */
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

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

int native_open(lua_State *L)
{
    static const luaL_Reg functions[] = {{"hex", native_hex}, {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
