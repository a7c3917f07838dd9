/* SPDX-License-Identifier: Apache-2.0 */
/* words.c - module "words": names in C text. What Lua's patterns say of it in a few lines, for each
 * byte of a long text, takes a third of a build. */
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "sandbox.h"

/* The text, without a copy: [at, stop). */
struct span {
    const char *at, *stop;
};

enum { FIRST = 1, WORD = 2, SPACE = 4 };
#define LETTER(c) [c] = FIRST | WORD, [c | 32] = FIRST | WORD
static const unsigned char kinds[256] = {
    LETTER('A'),    LETTER('B'),          LETTER('C'),    LETTER('D'),    LETTER('E'),
    LETTER('F'),    LETTER('G'),          LETTER('H'),    LETTER('I'),    LETTER('J'),
    LETTER('K'),    LETTER('L'),          LETTER('M'),    LETTER('N'),    LETTER('O'),
    LETTER('P'),    LETTER('Q'),          LETTER('R'),    LETTER('S'),    LETTER('T'),
    LETTER('U'),    LETTER('V'),          LETTER('W'),    LETTER('X'),    LETTER('Y'),
    LETTER('Z'),    ['_'] = FIRST | WORD, ['0'] = WORD,   ['1'] = WORD,   ['2'] = WORD,
    ['3'] = WORD,   ['4'] = WORD,         ['5'] = WORD,   ['6'] = WORD,   ['7'] = WORD,
    ['8'] = WORD,   ['9'] = WORD,         [' '] = SPACE,  ['\t'] = SPACE, ['\n'] = SPACE,
    ['\v'] = SPACE, ['\f'] = SPACE,       ['\r'] = SPACE,
};
#undef LETTER

static bool is_first(char c)
{
    return kinds[(unsigned char)c] & FIRST;
}

static bool is_word(char c)
{
    return kinds[(unsigned char)c] & WORD;
}

static bool is_space(char c)
{
    return kinds[(unsigned char)c] & SPACE;
}

static const char *skip_spaces(const char *at, const char *stop)
{
    while (at < stop && is_space(*at))
        at++;
    return at;
}

static const char *skip_word(const char *at, const char *stop)
{
    while (at < stop && is_word(*at))
        at++;
    return at;
}

/* The next word from `at` on, or {stop, stop}; what follows a digit directly is part of a number.
 */
static struct span next_word(const char *at, const char *stop)
{
    for (; at < stop; at++) {
        if (!is_word(*at))
            continue;
        const char *end = skip_word(at, stop);
        if (is_first(*at))
            return (struct span){at, end};
        at = end - 1;
    }
    return (struct span){stop, stop};
}

static bool is(struct span word, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(word.stop - word.at) == n && memcmp(word.at, text, n) == 0;
}

/* ---- names that a text defines ---- */

/* Adds a name to the set on top of the stack; an empty one is none. */
static void add(lua_State *L, struct span name)
{
    if (name.at >= name.stop)
        return;
    lua_pushlstring(L, name.at, (size_t)(name.stop - name.at));
    lua_pushboolean(L, 1);
    lua_rawset(L, -3);
}

/* The word that ends at `stop`; empty without one. */
static struct span word_before(const char *from, const char *stop)
{
    const char *at = stop;
    while (at > from && is_word(at[-1]))
        at--;
    while (at < stop && !is_first(*at))
        at++;
    return (struct span){at, stop};
}

/* static TYPE NAME, with '(', '[', '=' or ';' behind it */
static void of_static(lua_State *L, struct span rest)
{
    const char *at = skip_spaces(rest.at, rest.stop), *end = at;
    while (end < rest.stop && !strchr(";={}([", *end))
        end++;
    if (at == rest.at || end == rest.stop || *end == '{' || *end == '}')
        return;
    while (end > at && is_space(end[-1]))
        end--;
    add(L, word_before(at, end));
}

/* typedef TYPE NAME; */
static void of_typedef(lua_State *L, struct span rest)
{
    const char *end = memchr(rest.at, ';', (size_t)(rest.stop - rest.at));
    if (end && is_space(*rest.at))
        add(L, word_before(rest.at + 1, end));
}

/* struct, union or enum NAME { */
static void of_tag(lua_State *L, struct span rest)
{
    const char *at = skip_spaces(rest.at, rest.stop);
    struct span name = {at, skip_word(at, rest.stop)};
    const char *brace = skip_spaces(name.stop, rest.stop);
    if (at > rest.at && name.stop > at && is_first(*at) && brace < rest.stop && *brace == '{')
        add(L, name);
}

/* The enumerators: words behind '{' or ','. */
static void of_enum(lua_State *L, struct span rest)
{
    const char *at = skip_spaces(rest.at, rest.stop);
    at = skip_spaces(skip_word(at, rest.stop), rest.stop);
    if (at == rest.stop || *at != '{')
        return;
    int depth = 0;
    const char *end = at;
    do {
        depth += *end == '{' ? 1 : *end == '}' ? -1 : 0;
    } while (++end < rest.stop && depth);
    if (depth)
        return;
    for (; at < end; at++)
        if (*at == '{' || *at == ',') {
            const char *name = skip_spaces(at + 1, end);
            if (name < end && is_first(*name))
                add(L, (struct span){name, skip_word(name, end)});
        }
}

/* The text without its comments to the end of a line. */
static struct span uncommented(lua_State *L, const char *text, size_t n)
{
    char *copy = lua_newuserdatauv(L, n + 1, 0), *to = copy;
    const char *stop = text + n;
    while (text < stop) {
        const char *slash = memmem(text, (size_t)(stop - text), "//", 2);
        size_t plain = (size_t)((slash ? slash : stop) - text);
        memcpy(to, text, plain);
        to += plain;
        text = slash ? memchr(slash, '\n', (size_t)(stop - slash)) : stop;
        if (!text)
            break;
    }
    *to = '\0';
    return (struct span){copy, to};
}

/* words.defined(text) -> set of the names that C text defines at file scope: functions, data, tags,
 * enumerators, types */
static int words_defined(lua_State *L)
{
    size_t n;
    const char *text = luaL_checklstring(L, 1, &n);
    struct span rest = uncommented(L, text, n);
    lua_newtable(L);
    while (rest.at < rest.stop) {
        struct span word = next_word(rest.at, rest.stop);
        rest.at = word.stop;
        if (is(word, "static"))
            of_static(L, rest);
        else if (is(word, "typedef"))
            of_typedef(L, rest);
        else if (is(word, "struct") || is(word, "union") || is(word, "enum"))
            of_tag(L, rest);
        if (is(word, "enum"))
            of_enum(L, rest);
    }
    return 1;
}

/* ---- names replaced ---- */

/* Which words may be in a map: a bit per length, by first letter. */
struct filter {
    uint64_t lengths[256];
};

static void filter_make(lua_State *L, int map, struct filter *f)
{
    memset(f, 0, sizeof *f);
    for (lua_pushnil(L); lua_next(L, map); lua_pop(L, 1)) {
        size_t n;
        luaL_argcheck(L, lua_type(L, -2) == LUA_TSTRING, map, "a key is no name");
        const unsigned char *name = (const unsigned char *)lua_tolstring(L, -2, &n);
        f->lengths[*name] |= (uint64_t)1 << (n & 63);
    }
}

/* What stands for a word; at NULL: itself. It lives as long as the map. */
static struct span other(lua_State *L, int map, const struct filter *f, struct span word)
{
    size_t n = (size_t)(word.stop - word.at);
    struct span found = {NULL, NULL};
    if (!(f->lengths[(unsigned char)*word.at] >> (n & 63) & 1))
        return found;
    lua_pushlstring(L, word.at, n);
    if (lua_rawget(L, map) == LUA_TSTRING) {
        found.at = lua_tolstring(L, -1, &n);
        found.stop = found.at + n;
    }
    lua_pop(L, 1);
    return found;
}

/* Where the code of a line ends: at a comment that stands before any string. */
static const char *code_end(const char *at, const char *stop)
{
    for (const char *c = at; c < stop && *c != '"'; c++)
        if (*c == '/' && c + 1 < stop && c[1] == '/')
            return c;
    return stop;
}

/* words.renamed(text, map) -> the text with the words of the map replaced, outside of comments */
static int words_renamed(lua_State *L)
{
    size_t n;
    const char *text = luaL_checklstring(L, 1, &n), *stop = text + n, *done = text;
    struct filter f;
    luaL_Buffer out;
    luaL_checktype(L, 2, LUA_TTABLE);
    filter_make(L, 2, &f);
    luaL_buffinit(L, &out);
    for (const char *line = text; line < stop;) {
        const char *end = memchr(line, '\n', (size_t)(stop - line));
        end = end ? end + 1 : stop;
        const char *code = code_end(line, end);
        for (struct span word = next_word(line, code); word.at < code;
             word = next_word(word.stop, code)) {
            struct span to = other(L, 2, &f, word);
            if (!to.at)
                continue;
            luaL_addlstring(&out, done, (size_t)(word.at - done));
            luaL_addlstring(&out, to.at, (size_t)(to.stop - to.at));
            done = word.stop;
        }
        line = end;
    }
    luaL_addlstring(&out, done, (size_t)(stop - done));
    luaL_pushresult(&out);
    return 1;
}

/* words.replaced(text, from, to) -> the text with each `from`, also within words, replaced */
static int words_replaced(lua_State *L)
{
    size_t n, from_len, to_len;
    const char *text = luaL_checklstring(L, 1, &n), *stop = text + n, *at;
    const char *from = luaL_checklstring(L, 2, &from_len), *to = luaL_checklstring(L, 3, &to_len);
    luaL_Buffer out;
    luaL_argcheck(L, from_len > 0, 2, "nothing to replace");
    luaL_buffinitsize(L, &out, n);
    while ((at = memmem(text, (size_t)(stop - text), from, from_len))) {
        luaL_addlstring(&out, text, (size_t)(at - text));
        luaL_addlstring(&out, to, to_len);
        text = at + from_len;
    }
    luaL_addlstring(&out, text, (size_t)(stop - text));
    luaL_pushresult(&out);
    return 1;
}

int words_open(lua_State *L)
{
    static const luaL_Reg functions[] = {{"defined", words_defined},
                                         {"renamed", words_renamed},
                                         {"replaced", words_replaced},
                                         {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
