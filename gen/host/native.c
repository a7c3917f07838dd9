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

/* native.text(bytes) -> the inside of a C string literal with these bytes, as raw as C allows */
static int native_text(lua_State *L)
{
    size_t n;
    const unsigned char *at = (const unsigned char *)luaL_checklstring(L, 1, &n);
    luaL_Buffer b;
    char *start = luaL_buffinitsize(L, &b, 4 * n + 1), *out = start;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = at[i];
        if (c != '\0' && c != '\n' && c != '\r' && c != '"' && c != '\\' && c != '?') {
            *out++ = (char)c;
            continue;
        }
        /* Would what follows be taken as part of the escape? */
        bool digit = i + 1 < n && at[i + 1] >= '0' && at[i + 1] <= '7';
        *out++ = '\\';
        if (c >> 6 || digit)
            *out++ = (char)('0' + (c >> 6));
        if (c >> 3 || digit)
            *out++ = (char)('0' + (c >> 3 & 7));
        *out++ = (char)('0' + (c & 7));
    }
    luaL_pushresultsize(&b, (size_t)(out - start));
    return 1;
}

/* native.quads(bytes) -> C string literals, a line each: 8 quads (little endian), then the rest as
 * quads and bytes */
static int native_quads(lua_State *L)
{
    static const char quad[] = "\".quad ", byte[] = "\".byte ", end[] = "\\n\"\n";
    size_t n;
    const unsigned char *at = (const unsigned char *)luaL_checklstring(L, 1, &n);
    luaL_Buffer b;
    size_t lines = n / 64 + 2;
    char *start =
             luaL_buffinitsize(L, &b, lines * (sizeof quad + sizeof end) + (n / 8) * 19 + 8 * 5),
         *out = start;
    size_t whole = n / 8 * 8;
    for (size_t i = 0; i < whole; i += 8) {
        out = put(out, i % 64 == 0 ? quad : ",");
        out = put(out, "0x");
        for (size_t k = 8; k-- > 0;)
            out = put_hex(out, at[i + k]);
        if (i % 64 == 56 || i + 8 == whole)
            out = put(out, end);
    }
    if (n > whole)
        out = put(put_bytes(put(out, byte), at + whole, n - whole), end);
    luaL_pushresultsize(&b, (size_t)(out - start));
    return 1;
}

int native_open(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"hex", native_hex}, {"text", native_text}, {"quads", native_quads}, {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
