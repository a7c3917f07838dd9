/* SPDX-License-Identifier: Apache-2.0 */
/* embed.c - build-time program: Lua modules and templates, as bytecode, to C arrays.
 *
 *     embed OUT.c ROOT FILE...      FILE: path relative to ROOT, of one of the places below
 *
 * A template or fragment becomes the chunks that gen/lua/render/translate.lua makes of it; one more
 * chunk, "families.keys", is what gen/lua/index.lua finds out about all of them. Bytecode keeps its
 * line numbers, so that messages of the generator name file and line, but not the names of locals
 * and upvalues, which take a third of the time that loading it takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "base/base.h"

struct source {
    const char *path; /* relative */
    const char *part; /* of a template: "head", ..; of a module NULL */
    char name[128];   /* "isa.avx512", "moe_forward.head", "shared.team.body" */
    char *text;
    size_t len;
    bool made; /* text is there already, and is no file's */
};

static const char *const parts[] = {"bare", "body", "head"};
enum { MODULE = 0, FRAGMENT = 2, TEMPLATE = 3 }; /* so many of these parts */

static const struct {
    const char *folder, *suffix;
    size_t parts, parts_in_room; /* of a file in a folder of the folder */
} places[] = {
    {"gen/lua/", ".lua", MODULE, MODULE},
    {"templates/", ".lua", MODULE, MODULE},
    {"templates/", ".c.in", TEMPLATE, FRAGMENT},
};

static void die(const char *what, const char *which)
{
    fprintf(stderr, "embed: %s: %s\n", which, what);
    exit(1);
}

/* Fills in the entries of one file; returns their number. */
static size_t name_source(struct source *s, const char *path)
{
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        size_t head = strlen(places[i].folder), tail = strlen(places[i].suffix), n = strlen(path);
        if (strncmp(path, places[i].folder, head) != 0 || n <= head + tail ||
            strcmp(path + n - tail, places[i].suffix) != 0)
            continue;
        bool inside = strchr(path + head, '/') != NULL;
        size_t named = inside ? places[i].parts_in_room : places[i].parts;
        for (size_t k = 0; k < (named ? named : 1); k++) {
            s[k].path = path;
            s[k].part = named ? parts[k] : NULL;
            snprintf(s[k].name, sizeof s[k].name, "%.*s%s%s", (int)(n - head - tail), path + head,
                     named ? "." : "", named ? parts[k] : "");
            for (char *slash = s[k].name; (slash = strchr(slash, '/'));)
                *slash = '.';
        }
        return named ? named : 1;
    }
    die("neither a module nor a template", path);
    return 0;
}

static void read_source(struct source *s, const char *root)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", root, s->path);
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0)
        die("cannot be read", path);
    long size = ftell(f);
    rewind(f);
    s->text = malloc((size_t)size + 1);
    if (!s->text || fread(s->text, 1, (size_t)size, f) != (size_t)size)
        die("cannot be read", path);
    s->len = (size_t)size;
    fclose(f);
}

static int by_name(const void *a, const void *b)
{
    const struct source *x = a, *y = b;
    return !x->part != !y->part ? !y->part - !x->part : strcmp(x->name, y->name);
}

static void write_array(FILE *out, size_t index, const void *bytes, size_t len)
{
    const unsigned char *at = bytes;
    fprintf(out, "static const unsigned char chunk_%zu[] = {", index);
    for (size_t i = 0; i < len; i++)
        fprintf(out, "%s%u,", i % 24 == 0 ? "\n" : "", at[i]);
    fputs("0};\n", out);
}

static int collect(lua_State *L, const void *bytes, size_t len, void *user)
{
    (void)L;
    text_add(user, bytes, len);
    return 0;
}

/* Pushes the function that a module of gen/lua returns. */
static void load_function(lua_State *L, const char *root, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/gen/lua/%s.lua", root, name);
    luaL_openlibs(L);
    if (luaL_dofile(L, path) != LUA_OK)
        die(lua_tostring(L, -1), path);
}

/* The chunk that index.lua makes of all files. */
static void make_index(struct source *s, const char *root, char **file, int count)
{
    lua_State *L = luaL_newstate();
    if (!L)
        die("out of memory", root);
    load_function(L, root, "index");
    lua_pushstring(L, root);
    lua_createtable(L, count, 0);
    for (int i = 0; i < count; i++) {
        lua_pushstring(L, file[i]);
        lua_rawseti(L, -2, i + 1);
    }
    if (lua_pcall(L, 2, 1, 0) != LUA_OK) {
        fprintf(stderr, "%s\n", lua_tostring(L, -1)); /* has its places */
        exit(1);
    }
    *s = (struct source){.path = "gen/lua/index.lua", .part = "keys", .made = true};
    snprintf(s->name, sizeof s->name, "families.keys");
    s->text = strdup(luaL_checklstring(L, -1, &s->len));
    lua_close(L);
}

/* Replaces a template's text by that of the chunk; the translator is on top of the stack. */
static void translate(lua_State *L, struct source *s)
{
    lua_pushvalue(L, -1);
    lua_pushlstring(L, s->text, s->len);
    if (lua_pcall(L, 1, 1, 0) != LUA_OK)
        die(lua_tostring(L, -1), s->path);
    lua_getfield(L, -1, s->part);
    const char *text = lua_tolstring(L, -1, &s->len);
    free(s->text);
    s->text = text ? strdup(text) : NULL;
    if (!s->text)
        die("no such part", s->name);
    lua_pop(L, 2);
}

/* ---- bytecode of Lua 5.4 without names of variables ---- */

/* Reads `from` and copies what is kept. */
struct copy {
    const char *at, *stop;
    struct text *to; /* NULL: only read */
};

static const char *skip(struct copy *c, size_t n)
{
    const char *at = c->at;
    if (n > (size_t)(c->stop - c->at))
        die("not the bytecode that was expected", "a chunk");
    if (c->to)
        text_add(c->to, at, n);
    c->at += n;
    return at;
}

/* A number: 7 bits a byte, the last byte has bit 7. */
static size_t count(struct copy *c)
{
    size_t n = 0;
    unsigned char byte;
    do {
        byte = (unsigned char)*skip(c, 1);
        n = n << 7 | (byte & 127);
    } while (!(byte & 128));
    return n;
}

static void string(struct copy *c)
{
    size_t n = count(c);
    skip(c, n ? n - 1 : 0);
}

static void constant(struct copy *c)
{
    switch (*skip(c, 1) & 15) {
    case LUA_TNUMBER:
        skip(c, sizeof(lua_Number));
        break;
    case LUA_TSTRING:
        string(c);
        break;
    default: /* nil and booleans: the type says it */
        break;
    }
}

static void function(struct copy *c)
{
    string(c); /* source */
    count(c);  /* first and last line */
    count(c);
    skip(c, 3); /* parameters, vararg, stack */
    skip(c, count(c) * 4);
    for (size_t n = count(c); n; n--)
        constant(c);
    skip(c, count(c) * 3); /* upvalues */
    for (size_t n = count(c); n; n--)
        function(c);
    skip(c, count(c)); /* lines */
    for (size_t n = count(c) * 2; n; n--)
        count(c);
    struct text *to = c->to;
    c->to = NULL;
    for (size_t n = count(c); n; n--) { /* locals: name, from, to */
        string(c);
        count(c);
        count(c);
    }
    for (size_t n = count(c); n; n--) /* names of upvalues */
        string(c);
    c->to = to;
    if (to)
        text_add(to, "\x80\x80", 2); /* none of both */
}

static void drop_names(const struct text *code, struct text *to)
{
    enum { HEADER = 4 + 1 + 1 + 6 + 3 + sizeof(lua_Integer) + sizeof(lua_Number) + 1 };
    struct copy c = {code->at, code->at + code->len, to};
    skip(&c, HEADER);
    function(&c);
    if (c.at != c.stop)
        die("not the bytecode that was expected", "a chunk");
}

static void write_chunk(FILE *out, lua_State *L, size_t index, struct source *s)
{
    char label[160];
    struct text code = {0}, bare = {0};
    snprintf(label, sizeof label, "@%s", s->path);
    if (luaL_loadbufferx(L, s->text, s->len, label, "t") != LUA_OK)
        die(lua_tostring(L, -1), s->path);
    lua_dump(L, collect, &code, 0);
    drop_names(&code, &bare);
    if (code.lost || bare.lost)
        die("out of memory", s->path);
    write_array(out, index, bare.at, bare.len);
    s->len = bare.len;
    text_free(&code);
    text_free(&bare);
    lua_pop(L, 1);
}

/* Declares the sorted table of the modules or the templates among the sources. */
static void write_table(FILE *out, const char *kind, const struct source *s, size_t count,
                        bool template)
{
    size_t n = 0;
    fprintf(out, "const struct embedded embedded_%ss[] = {\n", kind);
    for (size_t i = 0; i < count; i++)
        if (!s[i].part != template) {
            fprintf(out, "    {\"%s\", chunk_%zu, %zu},\n", s[i].name, i, s[i].len);
            n++;
        }
    fprintf(out, "    {NULL, NULL, 0},\n};\nconst size_t embedded_%s_count = %zu;\n", kind, n);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        die("usage: embed OUT.c ROOT FILE...", "arguments");
    size_t count = 0;
    struct source *s = calloc((size_t)argc * TEMPLATE + 1, sizeof *s);
    lua_State *L = luaL_newstate();
    if (!s || !L)
        die("out of memory", argv[1]);
    struct sha256 sum;
    sha256_start(&sum);
    for (int i = 3; i < argc; i++)
        count += name_source(s + count, argv[i]);
    make_index(&s[count++], argv[2], argv + 3, argc - 3);
    qsort(s, count, sizeof *s, by_name);
    for (size_t i = 1; i < count; i++)
        if (by_name(&s[i - 1], &s[i]) == 0)
            die("a room of gen/lua and one of templates have a module of this name", s[i].name);
    FILE *out = fopen(argv[1], "wb");
    if (!out)
        die("cannot be written", argv[1]);
    load_function(L, argv[2], "render/translate");
    fputs("/* Made by embed.c from the Lua modules and templates. */\n"
          "#include \"host/sandbox.h\"\n\n",
          out);
    for (size_t i = 0; i < count; i++) {
        if (!s[i].made) {
            read_source(&s[i], argv[2]);
            sha256_add(&sum, s[i].path, strlen(s[i].path) + 1);
            sha256_add(&sum, &s[i].len, sizeof s[i].len);
            sha256_add(&sum, s[i].text, s[i].len);
            if (s[i].part)
                translate(L, &s[i]);
        }
        write_chunk(out, L, i, &s[i]);
        free(s[i].text);
    }
    write_table(out, "module", s, count, false);
    write_table(out, "template", s, count, true);
    unsigned char digest[32];
    char hex[65] = "";
    sha256_end(&sum, digest);
    digest_hex(digest, sizeof digest, hex);
    fprintf(out, "const char embedded_digest[65] = \"%.64s\";\n", hex);
    if (fclose(out) != 0)
        die("cannot be written", argv[1]);
    lua_close(L);
    free(s);
    return 0;
}
