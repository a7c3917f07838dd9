/* SPDX-License-Identifier: Apache-2.0 */
/* host.c - from C to the generator in Lua and back: request in, texts or complaints out. */
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "sandbox.h"

/* One call of a function of module "moegen". Results go to whichever outputs are set. */
struct job {
    const char *function;
    const struct host_request *request; /* or NULL */
    const char *argument;               /* instead of a request; or NULL */
    struct generated *built;
    struct text *text;
    struct listing *listing;
    bool names; /* the listing's items are plain names */
    struct sandbox *box;
    bool ready; /* is the sandbox set up? */
    moegen_status status;
    moegen_error **err;
};

void listing_free(struct listing *l)
{
    for (size_t i = 0; i < l->count; i++) {
        free(l->item[i].name);
        free(l->item[i].text);
    }
    free(l->item);
    text_free(&l->text);
    *l = (struct listing){0};
}

void generated_free(struct generated *g)
{
    text_free(&g->name);
    text_free(&g->c);
    text_free(&g->h);
    text_free(&g->meta);
    text_free(&g->code);
    listing_free(&g->notes);
}

/* ---- result: Lua to C ---- */

/* Field of the table on top: a string, or NULL. It stays valid as long as that table. */
static const char *field(lua_State *L, const char *key)
{
    lua_getfield(L, -1, key);
    const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    lua_pop(L, 1);
    return s;
}

static int number(lua_State *L, const char *key)
{
    lua_getfield(L, -1, key);
    lua_Integer n = lua_tointeger(L, -1);
    lua_pop(L, 1);
    return n < 0 || n > 1 << 30 ? 0 : (int)n;
}

/* Raises what Lua itself raises, so that it counts as LUA_ERRMEM. */
static void out_of_memory(lua_State *L)
{
    lua_pushliteral(L, "not enough memory");
    lua_error(L);
}

/* Field of the table on top, which must be text, into out. */
static void take_text(lua_State *L, const char *key, struct text *out)
{
    size_t len;
    if (lua_getfield(L, -1, key) != LUA_TSTRING)
        luaL_error(L, "moegen.lua: no text '%s' in the result", key);
    const char *s = lua_tolstring(L, -1, &len);
    text_add(out, s, len);
    if (out->lost)
        out_of_memory(L);
    lua_pop(L, 1);
}

static void add_item(lua_State *L, struct listing *out, const char *name, const char *text)
{
    struct listing_item *more = realloc(out->item, (out->count + 1) * sizeof *more);
    if (more) {
        out->item = more;
        more[out->count] =
            (struct listing_item){name ? strdup(name) : NULL, text ? strdup(text) : NULL};
        out->count++;
    }
    if (!more || (name && !more[out->count - 1].name) || (text && !more[out->count - 1].text))
        out_of_memory(L);
}

/* Field of the table on top, a list, into out: of {name=, text=} tables, or of strings (names, or
 * else texts). */
static void take_list(lua_State *L, const char *key, struct listing *out, bool names)
{
    if (lua_getfield(L, -1, key) != LUA_TTABLE) {
        lua_pop(L, 1);
        return;
    }
    lua_Integer count = luaL_len(L, -1);
    for (lua_Integer i = 1; i <= count; i++) {
        if (lua_rawgeti(L, -1, i) == LUA_TTABLE)
            add_item(L, out, field(L, "name"), field(L, "text"));
        else
            add_item(L, out, names ? lua_tostring(L, -1) : NULL,
                     names ? NULL : lua_tostring(L, -1));
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

/* The line of the text with this label, or NULL; caller frees. */
static char *quote(const struct host_request *r, const char *label, int line)
{
    for (size_t i = 0; i < r->tuned_count; i++)
        if (label && strcmp(label, r->tuned[i].label) == 0)
            return line_of(r->tuned[i].text, r->tuned[i].len, line);
    return line_of(r->text, r->len, line);
}

/* Turns the result's complaints into err; true if there were any. */
static bool take_errors(lua_State *L, struct job *job)
{
    lua_Integer count = 0;
    if (lua_getfield(L, -1, "errors") == LUA_TTABLE)
        count = luaL_len(L, -1);
    for (lua_Integer i = 1; i <= count; i++) {
        lua_rawgeti(L, -1, i);
        const char *source = field(L, "source"), *kind = field(L, "status"),
                   *message = field(L, "message");
        const char *file = field(L, "file"), *hint = field(L, "hint");
        bool in_set = source && strcmp(source, "set") == 0;
        int line = in_set ? 0 : number(L, "line"), col = in_set ? 0 : number(L, "col"),
            len = number(L, "len");
        char *quoted = /* nothing below may raise */
            line && job->request ? quote(job->request, file, line) : NULL;
        moegen_status status =
            kind && strcmp(kind, "unsupported") == 0 ? MOEGEN_UNSUPPORTED : MOEGEN_BAD_SPEC;
        if (job->status == MOEGEN_OK)
            job->status = status;
        error_add(job->err, status, file, line, col, len, message ? message : "no message", hint,
                  quoted);
        free(quoted);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return count > 0;
}

static void take_result(lua_State *L, struct job *job)
{
    if (!lua_istable(L, -1))
        luaL_error(L, "moegen.%s returned a %s", job->function, luaL_typename(L, -1));
    if (take_errors(L, job))
        return;
    if (job->request && job->request->measure && field(L, "measure")) {
        take_text(L, "measure", job->request->measure);
        return;
    }
    if (job->built) {
        take_text(L, "name", &job->built->name);
        take_text(L, "c", &job->built->c);
        take_text(L, "h", &job->built->h);
        take_text(L, "meta", &job->built->meta);
        take_text(L, "code", &job->built->code);
        take_list(L, "notes", &job->built->notes, false);
    }
    if (job->text)
        take_text(L, "text", job->text);
    if (job->listing)
        take_list(L, job->names ? "names" : "items", job->listing, job->names);
}

/* ---- the call ---- */

/* Runs protected; argument: the job. */
static int work(lua_State *L)
{
    struct job *job = lua_touserdata(L, 1);
    if (!job->ready)
        sandbox_setup(L, job->box);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "moegen");
    if (job->request) {
        job->status = request_push(L, job->request, job->box->root, job->err);
        if (job->status != MOEGEN_OK)
            return 0;
    } else {
        lua_pushstring(L, job->argument);
    }
    lua_insert(L, 2); /* request, require, "moegen" */
    lua_call(L, 1, 1);
    if (lua_getfield(L, -1, job->function) != LUA_TFUNCTION)
        return luaL_error(L, "moegen.lua has no function '%s'", job->function);
    lua_pushvalue(L, 2);
    lua_call(L, 1, 1);
    take_result(L, job);
    return 0;
}

static int add_traceback(lua_State *L)
{
    luaL_traceback(L, L, luaL_tolstring(L, 1, NULL), 1);
    return 1;
}

/* The text of a Lua failure: its first line is the message, the traceback the hint. */
static moegen_status broken(lua_State *L, struct job *job)
{
    const char *report = lua_tostring(L, -1);
    struct text message = {0};
    size_t first = strcspn(report ? report : "", "\n");
    text_fmt(&message, "the generator failed: %.*s", (int)first, report ? report : "?");
    const char *rest = report && report[first] ? report + first + 1 : NULL;
    error_add(job->err, MOEGEN_INTERNAL, job->request ? job->request->file : NULL, 0, 0, 0,
              message.at ? message.at : "the generator failed", rest, NULL);
    text_free(&message);
    return MOEGEN_INTERNAL;
}

static moegen_status protected_call(struct job *job)
{
    moegen_status status;
    struct sandbox own;
    lua_State *L = image_open(&job->box);
    job->ready = L != NULL;
    if (!L) {
        job->box = &own;
        L = sandbox_create(&own, NULL, 0);
    }
    if (!L) {
        status = error_set(job->err, MOEGEN_NO_MEMORY, "out of memory");
        goto out;
    }
    lua_pushcfunction(L, add_traceback);
    lua_pushcfunction(L, work);
    lua_pushlightuserdata(L, job);
    switch (lua_pcall(L, 1, 0, 1)) {
    case LUA_OK:
        status = job->status;
        break;
    case LUA_ERRMEM:
        status = error_set(job->err, MOEGEN_NO_MEMORY,
                           job->box->full
                               ? "the kernel is too large: generating it takes more than 256 MiB"
                               : "out of memory");
        break;
    default:
        status = broken(L, job);
    }
out:
    if (job->ready)
        image_close();
    else
        sandbox_destroy(&own);
    return status;
}

static locale_t c_locale; /* glibc needs no memory for it */

static void make_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* Numbers must read and print the same under every locale and floating-point mode of the host
 * program. */
static moegen_status run(struct job *job)
{
    fenv_t mode;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_locale);
    if (!c_locale)
        return error_set(job->err, MOEGEN_NO_MEMORY, "out of memory");
    moegen_status status = stack_check(job->err);
    if (status)
        return status;
    const char *root = tree_root();
    if (root && !tree_is_one(root))
        return error_set(job->err, MOEGEN_BAD_ARGUMENT,
                         "MOEGEN_TEMPLATE_DIR: %s is no tree of moegen's sources, there is no "
                         "gen/lua/prelude.lua in it",
                         root);
    locale_t before = uselocale(c_locale);
    fegetenv(&mode);
    fesetenv(FE_DFL_ENV);
    status = protected_call(job);
    fesetenv(&mode);
    uselocale(before);
    return status;
}

moegen_status host_build(const struct host_request *r, struct generated *out, moegen_error **err)
{
    *out = (struct generated){0};
    struct job job = {.function = "build", .request = r, .built = out, .err = err};
    moegen_status status = run(&job);
    if (status != MOEGEN_OK)
        generated_free(out);
    return status;
}

moegen_status host_explain(const struct host_request *r, struct text *out, moegen_error **err)
{
    *out = (struct text){0};
    struct job job = {.function = "explain", .request = r, .text = out, .err = err};
    moegen_status status = run(&job);
    if (status != MOEGEN_OK)
        text_free(out);
    return status;
}

moegen_status host_space(const struct host_request *r, struct listing *out, moegen_error **err)
{
    *out = (struct listing){0};
    struct job job = {.function = "space", .request = r, .listing = out, .err = err};
    moegen_status status = run(&job);
    if (status != MOEGEN_OK)
        listing_free(out);
    return status;
}

moegen_status host_entries(const struct host_request *r, struct listing *out, moegen_error **err)
{
    *out = (struct listing){0};
    struct job job = {.function = "entries", .request = r, .listing = out, .err = err};
    moegen_status status = run(&job);
    if (status != MOEGEN_OK)
        listing_free(out);
    return status;
}

moegen_status host_kernels(const struct host_request *r, struct listing *out, moegen_error **err)
{
    *out = (struct listing){0};
    struct job job = {
        .function = "kernels", .request = r, .listing = out, .names = true, .err = err};
    moegen_status status = run(&job);
    if (status != MOEGEN_OK)
        listing_free(out);
    return status;
}

moegen_status host_list(const char *what, struct listing *out, moegen_error **err)
{
    *out = (struct listing){0};
    struct job job = {
        .function = "list", .argument = what, .text = &out->text, .listing = out, .err = err};
    moegen_status status = run(&job);
    if (status != MOEGEN_OK)
        listing_free(out);
    return status;
}

moegen_status host_schema(struct text *out, moegen_error **err)
{
    *out = (struct text){0};
    struct job job = {.function = "schema", .text = out, .err = err};
    moegen_status status = run(&job);
    if (status != MOEGEN_OK)
        text_free(out);
    return status;
}

bool host_digest(char hex[65])
{
    return tree_digest(tree_root(), hex);
}
