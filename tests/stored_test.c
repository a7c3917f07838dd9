/* SPDX-License-Identifier: Apache-2.0 */
/* stored_test.c - what kernels ask for (templates/shared/tensors.lua) is what the references fill
 * and give: names, dtypes and shapes of weights, scales, biases and gradients, in every layout and
 * format.
 *
 *     stored_test SOURCE_TREE */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "stored.h"

/* A spec as templates see it, of which both lists are made: parameters, then their gradients. */
static const char SPEC[] =
    "local root, H, I, E, gated, order, gate_up, layout, dtype, scale, group, shared, grads = ...\n"
    "package.path = root .. '/gen/lua/?.lua;' .. root .. '/templates/?.lua'\n"
    "require 'prelude'\n"
    "local tensors = require 'shared.tensors'\n"
    "local s = {H = H, I_TP = I, E = E, gated = gated, dtype = 'bf16', bias_dtype = 'f32',\n"
    "    output_dtype = 'f16', bias = {gate_up = true, down = true}, norm = 'layer',\n"
    "    weight_grads = grads, weights = {gate_up_order = order, gate_up = gate_up,\n"
    "    layout = layout, dtype = dtype, scale = scale, group = group, shared = shared}}\n"
    "local parameters = tensors.parameters(s)\n"
    "return parameters, tensors.gradients(s, parameters)\n";

static void push_case(lua_State *L, const char *root, const struct how *w, bool frozen)
{
    CHECK(luaL_loadstring(L, SPEC) == LUA_OK, "%s", lua_tostring(L, -1));
    lua_pushstring(L, root);
    lua_pushinteger(L, w->H);
    lua_pushinteger(L, w->I);
    lua_pushinteger(L, w->E);
    lua_pushboolean(L, w->gated);
    lua_pushstring(L, w->interleaved ? "interleaved" : "split");
    lua_pushstring(L, w->separate ? "separate" : "joined");
    lua_pushstring(L, layouts[w->layout]);
    lua_pushstring(L, w->format ? w->format->name : "bf16");
    if (w->format && w->format->fp8 && w->share != ROW)
        lua_pushstring(L, shares[w->share]);
    else
        lua_pushnil(L);
    if (w->format && w->format->group == 128)
        lua_pushinteger(L, 128);
    else
        lua_pushnil(L);
    lua_pushboolean(L, w->shared);
    lua_pushstring(L, frozen ? "none" : "all");
    int status = lua_pcall(L, 13, 2, 0);
    CHECK(status == LUA_OK, "%s", lua_tostring(L, -1));
    if (status != LUA_OK)
        exit(1);
}

/* The row on top of the stack against the tensor of its name. */
static void same_tensor(lua_State *L, const moegen_rt_problem *p, bool typed, const char *text)
{
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    const char *name = lua_tostring(L, -2), *dtype = lua_tostring(L, -1);
    const moegen_rt_tensor *t = moegen_rt_problem_tensor(p, name);
    CHECK(t, "%s: kernels ask for %s, which the reference does not have", text, name);
    CHECK(!t || !typed || strcmp(moegen_rt_dtype_of(t->dtype)->name, dtype) == 0,
          "%s: %s is of %s, and kernels ask for %s", text, name, moegen_rt_dtype_of(t->dtype)->name,
          dtype);
    int rank = (int)lua_rawlen(L, -3) - 3;
    CHECK(!t || t->rank == rank, "%s: %s has %d extents, and kernels ask for %d", text, name,
          t->rank, rank);
    for (int i = 0; t && i < rank && i < t->rank; i++) {
        lua_rawgeti(L, -3, 4 + i);
        CHECK(lua_isinteger(L, -1) && lua_tointeger(L, -1) == t->shape[i],
              "%s: extent %d of %s is %lld, and kernels ask for %lld", text, i, name,
              (long long)t->shape[i], (long long)lua_tointeger(L, -1));
        lua_pop(L, 1);
    }
    lua_pop(L, 2);
}

/* The list at that place of the stack: so many tensors of p have such names. */
static void same_tensors(lua_State *L, int list, const moegen_rt_problem *p, const char *with,
                         bool typed, const char *text)
{
    lua_Integer rows = luaL_len(L, list), have = 0;
    for (lua_Integer i = 1; i <= rows; i++) {
        lua_rawgeti(L, list, i);
        same_tensor(L, p, typed, text);
        lua_pop(L, 1);
    }
    for (size_t i = 0; moegen_rt_problem_at(p, i); i++) {
        const char *name = moegen_rt_problem_at(p, i)->name;
        bool grad = strstr(name, "_grad") != NULL;
        have += (strstr(name, "_proj_") || strncmp(name, "norm_", 5) == 0) && grad == (*with != 0);
    }
    CHECK(have == rows, "%s: %lld tensors%s, and kernels ask for %lld", text, (long long)have, with,
          (long long)rows);
}

static void one_case(lua_State *L, const char *root, const struct how *w)
{
    char text[256];
    const char *more = w->format
                           ? "dtype bf16 bias_dtype f32 bias true checkpoint recompute norm layer "
                             "weight_grads none accumulate_grads true output_dtype f16"
                           : "dtype bf16 bias_dtype f32 bias true checkpoint recompute norm layer "
                             "accumulate_grads true output_dtype f16";
    say(w, text, sizeof text);
    moegen_rt_problem *p = stored_problem(w, "moe_backward", more),
                      *out = outputs(p, "moe_backward");
    push_case(L, root, w, w->format != NULL);
    same_tensors(L, 1, p, "", true, text);
    same_tensors(L, 2, p, " of gradients", true, text);
    same_tensors(L, 2, out, " of gradients", false, text);
    lua_settop(L, 0);
    moegen_rt_problem_destroy(p);
    moegen_rt_problem_destroy(out);
}

int main(int argc, char **argv)
{
    lua_State *L = luaL_newstate();
    int cases = 0;
    if (argc != 2 || !L) {
        fprintf(stderr, "usage: stored_test SOURCE_TREE\n");
        return 2;
    }
    luaL_openlibs(L);
    for (int f = -1; f < FORMATS; f++)
        for (int i = 0; i < 2 * 2 * 2 * 2 * 4 * LAYOUTS; i++) {
            struct how w = {.H = 150,
                            .I = 70,
                            .E = 2,
                            .gated = i & 1,
                            .interleaved = i & 2,
                            .separate = i & 4,
                            .shared = i & 8,
                            .share = (enum share)(i >> 4 & 3),
                            .layout = (enum layout)(i >> 6),
                            .format = f < 0 ? NULL : &formats[f]};
            if (!is_sound(&w))
                continue;
            w.H = w.layout == NKI ? 512 : w.H;
            w.I = w.layout == NKI ? w.shared ? 520 : 36 : w.I;
            one_case(L, argv[1], &w);
            cases++;
        }
    lua_close(L);
    printf("%d cases, %d complaints\n", cases, failures);
    return failures != 0 || cases == 0;
}
