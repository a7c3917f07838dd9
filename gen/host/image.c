/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.c - a Lua state in which the generator is loaded, as bytes. Loading modules and templates
 * takes as long as making a small kernel. So the process keeps what a state was when all was loaded
 * that builds so far have asked for, and puts it back, at the same addresses, before each build: no
 * build can see anything of another, as if each had a new state. Who builds while another thread
 * does has a new one.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <lua.h>

#include "sandbox.h"

/* Of the state, at fixed addresses; what builds do not touch of it costs nothing. */
enum { ROOM = 6 << 20 };

static atomic_flag taken = ATOMIC_FLAG_INIT;
static char *room;           /* NULL: none yet */
static bool too_small;       /* is the room? */
static struct sandbox state; /* in the room */
static lua_State *lua;
static struct wishes wishes;
static struct {
    char *bytes; /* the first ones of the room; NULL: no image */
    size_t len, wishes;
    struct sandbox state;
} image;

static bool find_room(void)
{
    size_t all = embedded_module_count + embedded_template_count;
    room = room ? room : malloc(ROOM);
    wishes.asked = wishes.asked ? wishes.asked : calloc(all, 1);
    return room && wishes.asked;
}

static void put_back(void)
{
    memcpy(room, image.bytes, image.len);
    state = image.state;
}

/* Runs protected. */
static int load_wishes(lua_State *L)
{
    if (!image.bytes)
        sandbox_setup(L, &state);
    source_load_wishes(L, &wishes);
    return 0;
}

static void keep(void)
{
    size_t len = (size_t)(state.arena.at - room);
    char *bytes = realloc(image.bytes, len);
    if (!bytes)
        return; /* the next build tries again */
    memcpy(bytes, room, len);
    image.bytes = bytes;
    image.len = len;
    image.wishes = wishes.count;
    image.state = state;
}

/* The state with all that was asked for, and the image of it. */
static bool load(void)
{
    if (!find_room())
        return false;
    if (image.bytes)
        put_back();
    else
        lua = sandbox_create(&state, room, ROOM);
    state.arena.whole = true;
    if (lua)
        lua_pushcfunction(lua, load_wishes);
    if (!lua || lua_pcall(lua, 0, 0, 0) != LUA_OK) {
        too_small = true;
        return false;
    }
    state.arena.whole = false;
    state.wishes = &wishes;
    if (wishes.count)
        keep();
    return true;
}

lua_State *image_open(struct sandbox **s)
{
    if (tree_root() || atomic_flag_test_and_set(&taken))
        return NULL;
    if (image.bytes && image.wishes == wishes.count)
        put_back();
    else if (too_small || !load()) {
        image_close();
        return NULL;
    }
    *s = &state;
    return lua;
}

void image_close(void)
{
    sandbox_destroy(&state);
    atomic_flag_clear(&taken);
}
