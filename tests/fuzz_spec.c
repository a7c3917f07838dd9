/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_spec.c - spec_push against hostile text: never crashes, never leaks, never slow, and always
 * either one value on the Lua stack or complaints with sound places.
 *
 *     fuzz_spec RUNS [FILE...]      the built-in corpus and the files, then RUNS mutations of them
 */
#include <time.h>

#include <lauxlib.h>
#include <lua.h>

#include "fuzz.h"
#include "spec/spec.h"

/* Every node has a kind, a place and its content; returns the number of nodes of the tree on top of
 * the stack. */
static int walk(lua_State *L)
{
    int nodes = 1;
    require(lua_istable(L, -1), "a node is a table");
    require(lua_getfield(L, -1, "line") == LUA_TNUMBER && lua_tointeger(L, -1) >= 1,
            "a node has a line");
    require(lua_getfield(L, -2, "col") == LUA_TNUMBER && lua_tointeger(L, -1) >= 1,
            "a node has a column");
    require(lua_getfield(L, -3, "len") == LUA_TNUMBER && lua_tointeger(L, -1) >= 1,
            "a node has a length");
    lua_pop(L, 3);
    lua_getfield(L, -1, "kind");
    const char *kind = lua_tostring(L, -1);
    lua_pop(L, 1);
    require(kind != NULL, "a node has a kind");
    if (strcmp(kind, "scalar") == 0) {
        require(lua_getfield(L, -1, "value") == LUA_TSTRING, "a scalar has text");
        require(lua_getfield(L, -2, "plain") == LUA_TBOOLEAN, "a scalar is plain or not");
        lua_pop(L, 2);
        return nodes;
    }
    bool map = strcmp(kind, "map") == 0;
    require(lua_getfield(L, -1, map ? "entries" : "items") == LUA_TTABLE,
            "a list has items, a map entries");
    lua_Integer count = luaL_len(L, -1);
    for (lua_Integer i = 1; i <= count; i++) {
        lua_rawgeti(L, -1, i);
        if (map) {
            lua_getfield(L, -1, "key");
            nodes += walk(L);
            lua_pop(L, 1);
            lua_getfield(L, -1, "value");
        }
        nodes += walk(L);
        lua_pop(L, map ? 2 : 1);
    }
    lua_pop(L, 1);
    return nodes;
}

static void try(const char *text, size_t len)
{
    lua_State *L = luaL_newstate();
    require(L != NULL, "no memory");
    moegen_error *err = NULL;
    moegen_status status = spec_push(L, "fuzz", text, len, &err);
    if (status == MOEGEN_OK) {
        require(lua_gettop(L) == 1 && !err, "one value and no complaint on success");
        walk(L);
    } else {
        require(lua_gettop(L) == 0 && err && err->count > 0, "no value and complaints on failure");
        for (size_t i = 0; i < err->count; i++) {
            const struct diag *d = &err->diag[i];
            require(d->message && *d->message && !strchr(d->message, '\n'),
                    "a complaint is a sentence");
            require(len > 256 * 1024 || (d->line >= 1 && d->col >= 1), "a complaint has a place");
        }
        require(*moegen_error_text(err), "complaints can be printed");
    }
    moegen_error_release(err);
    lua_close(L);
}

#ifndef MOEGEN_LIBFUZZER

enum { BIG = 250 * 1024 };

/* A text repeated up to BIG bytes: what breaks parsers that are quadratic or recursive somewhere.
 */
static const char *const repeated[] = {
    "[",
    "{",
    "{a: ",
    "[[],",
    "- ",
    "? ",
    "a: ",
    "a:\n ",
    "- - - -\n",
    "? ? a\n",
    "\"",
    "'",
    "\"\\u0041",
    "a\n",
    "a b ",
    "|\n",
    ">\n  x\n",
    "- |\n a\n",
    "#\n",
    "# comment\n",
    "\n",
    "\r\n",
    " ",
    "\t",
    "&a ",
    "*a ",
    "!a ",
    "!!",
    "%A\n",
    "---\n",
    "...\n",
    "---\n...\n",
    "a: 1\n",
    "[a, b], ",
    "{a: b}, ",
    ", ",
    ":",
    ": ",
    "::",
    "\xEF\xBB\xBF",
    "\xC2\x85",
    "\xE2\x80\xA8",
    "\xFF",
    "\xC3",
    "\xF4\x90\x80\x80",
    "k: [1, 2, 3]\n",
    "a: &x b\n",
    "aaaaaaaaaaaaaaaaaaaa",
};
static const char *const seeds[] = {
    "kernel: moe_forward\nH: 2048\nE: 64\nclamp: {gate: [null, 7], up: [-7, 7]}\n",
    "name: toy\nkernels:\n  forward: {kernel: moe_forward, block_size: 128}\n  index:\n    kernel: "
    "moe_index\n",
    "a: \"x\\n\\0\\u263a\"\nb: 'it''s'\nc: |\n  text\n  more\nd: >-\n  folded\n- e\n",
    "? a\n: b\n",
    "{a: 1, b: [c, {d: e}]}",
    "a: 1\na: 2\n",
    "&x a: *x\n",
    "%YAML 1.1\n---\na\n...\n",
    "H:4096\nE: 1\n",
    "a: b: c\n",
    "- a\n- b:\n  - c\n",
    "\xEF\xBB\xBF"
    "a: 1\n",
};

/* Of this process's own CPU time: other work on the machine does not count. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void try_repeated(void)
{
    double slowest = 0;
    size_t slow = 0;
    for (size_t i = 0; i < sizeof repeated / sizeof *repeated; i++) {
        struct text t = {0};
        while (t.len < BIG)
            text_add(&t, repeated[i], strlen(repeated[i]));
        double start = now();
        try(t.at, t.len);
        double took = now() - start;
        if (took > slowest) {
            slowest = took;
            slow = i;
        }
        text_free(&t);
    }
    printf("slowest of %zu: \"%.12s...\", %.1f ms\n", sizeof repeated / sizeof *repeated,
           repeated[slow], slowest * 1e3);
    require(slowest < 3.0, "hostile text took seconds");
}

int main(int argc, char **argv)
{
    /* YAML's own signs */
    static const char signs[] = "[]{}:,-?&*!|>'\"%@`#\n \t\\\0\xC3\xFF~0";
    try_repeated();
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        seed_add(seeds[i], strlen(seeds[i]));
    for (int i = 2; i < argc; i++)
        seed_file(argv[i]);
    fuzz(argc > 1 ? atol(argv[1]) : 10000, signs, sizeof signs - 1);
    return 0;
}

#endif
