/* SPDX-License-Identifier: Apache-2.0 */
/* host.c - from C to the generator in Lua and back: request in, texts or complaints out. */
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "private.h"

/* One call of a function of module "moegen". Results go to whichever outputs are set. */
struct job {
    const char *function;
    const struct host_request *request; /* or NULL */
    const char *argument;               /* instead of a request; or NULL */
    struct generated *built;
    struct text *text;
    struct listing *listing;
    bool names; /* the listing's items are plain names */
    struct sandbox box;
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
    listing_free(&g->notes);
}

/* ---- request: C to Lua ---- */

static void set_string(lua_State *L, const char *key, const char *value)
{
    if (value) {
        lua_pushstring(L, value);
        lua_setfield(L, -2, key);
    }
}

/* Pushes the label of an override. */
static const char *push_label(lua_State *L, const struct host_set *set)
{
    return set->label ? lua_pushstring(L, set->label)
                      : lua_pushfstring(L, "--set %s=%s", set->key, set->value);
}

static bool blank(const char *s)
{
    return s[strspn(s, " \t\r\n")] == '\0';
}

/* Parses an override's value and pushes its node. A complaint about it has the label as its place:
 * there is no file. */
static moegen_status push_value(lua_State *L, const struct host_set *set, const char *label,
                                moegen_error **err)
{
    if (blank(set->value))
        return error_add(err, MOEGEN_BAD_SPEC, label, 0, 0, 0, "no value after '='",
                         "`null` gives a key its default back", NULL);
    size_t before = err && *err ? (*err)->count : 0;
    moegen_status status = spec_push(L, label, set->value, strlen(set->value), err);
    for (size_t i = before; err && *err && i < (*err)->count; i++) {
        struct diag *d = &(*err)->diag[i];
        d->line = d->col = 0;
        free(d->source);
        d->source = NULL;
    }
    return status;
}

/* Pushes the list of overrides; false after complaints. */
static bool push_sets(lua_State *L, struct job *job)
{
    const struct host_request *r = job->request;
    bool good = true;
    lua_createtable(L, (int)r->set_count, 0);
    for (size_t i = 0; i < r->set_count; i++) {
        lua_createtable(L, 0, 3);
        set_string(L, "key", r->set[i].key);
        const char *label = push_label(L, &r->set[i]);
        moegen_status status = push_value(L, &r->set[i], label, job->err);
        if (status == MOEGEN_OK) {
            lua_setfield(L, -3, "node");
        } else {
            job->status = status;
            good = false;
        }
        lua_setfield(L, -2, "label");
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return good;
}

static void push_digest(lua_State *L, const void *bytes, size_t len)
{
    unsigned char sum[32];
    char hex[65] = "";
    digest_sha256(bytes, len, sum);
    digest_hex(sum, sizeof sum, hex);
    lua_pushlstring(L, hex, 64);
}

/* Pushes the request table; false after complaints. */
static bool push_request(lua_State *L, struct job *job)
{
    const struct host_request *r = job->request;
    bool good = true;
    lua_createtable(L, 0, 12);
    moegen_status status = spec_push(L, r->file, r->text, r->len, job->err);
    if (status == MOEGEN_OK) {
        lua_setfield(L, -2, "root");
    } else {
        job->status = status;
        good = false;
    }
    good = push_sets(L, job) && good;
    lua_setfield(L, -2, "sets");
    lua_createtable(L, 0, (int)r->feature_count);
    for (size_t i = 0; i < r->feature_count; i++) {
        lua_pushboolean(L, 1);
        lua_setfield(L, -2, r->feature[i]);
    }
    lua_setfield(L, -2, "features");
    lua_createtable(L, 0, (int)r->prop_count);
    for (size_t i = 0; i < r->prop_count; i++) {
        lua_pushnumber(L, r->prop[i].value);
        lua_setfield(L, -2, r->prop[i].name);
    }
    lua_setfield(L, -2, "props");
    lua_pushboolean(L, r->measure != NULL);
    lua_setfield(L, -2, "measures");
    set_string(L, "file", r->file);
    set_string(L, "kernel", r->kernel && *r->kernel ? r->kernel : NULL);
    set_string(L, "purpose", r->purpose ? r->purpose : "file");
    set_string(L, "command", r->command);
    push_digest(L, r->text, r->len);
    lua_setfield(L, -2, "digest");
    char hex[65];
    if (sandbox_digest(job->box.root, hex))
        set_string(L, "generator", hex);
    return good;
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
        bool in_set = source && strcmp(source, "set") == 0;
        int line = in_set ? 0 : number(L, "line");
        char *quoted =
            line && job->request ? spec_line(job->request->text, job->request->len, line) : NULL;
        moegen_status status =
            kind && strcmp(kind, "unsupported") == 0 ? MOEGEN_UNSUPPORTED : MOEGEN_BAD_SPEC;
        if (job->status == MOEGEN_OK)
            job->status = status;
        error_add(job->err, status, field(L, "file"), line, in_set ? 0 : number(L, "col"),
                  number(L, "len"), message ? message : "no message", field(L, "hint"), quoted);
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
    sandbox_setup(L, &job->box);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "moegen");
    if (job->request) {
        if (!push_request(L, job))
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
    lua_State *L = sandbox_create(&job->box);
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
                           job->box.full
                               ? "the kernel is too large: generating it takes more than 256 MiB"
                               : "out of memory");
        break;
    default:
        status = broken(L, job);
    }
out:
    sandbox_destroy(&job->box);
    return status;
}

static locale_t c_locale;

static void make_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* Numbers must read and print the same under every locale of the host program. */
static moegen_status run(struct job *job)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_locale);
    if (!c_locale)
        return error_set(job->err, MOEGEN_NO_MEMORY, "out of memory");
    locale_t before = uselocale(c_locale);
    moegen_status status = protected_call(job);
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
    const char *root = secure_getenv("MOEGEN_TEMPLATE_DIR");
    return sandbox_digest(root && *root ? root : NULL, hex);
}
