/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox_test.c - what the generator's Lua states can and cannot do, through the C interface of
 * host.c.
 *
 *     sandbox_test SOURCE_ROOT
 *
 * A source tree is made in a temporary directory, with the real prelude and template engine and a
 * module "moegen" whose build() runs the check that the first override names; MOEGEN_TEMPLATE_DIR
 * points there. */
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/host.h"

/* What goes wrong, and how it is told. */
static const char faults[] =
    "local checks = {}\n"
    "function checks.undefined() return undefinedname end\n"
    "function checks.assignment() undefinedname = 1 end\n"
    "function checks.crash()\n"
    "    local nothing\n"
    "    return nothing.field\n"
    "end\n"
    "function checks.recursion() return 1 + checks.recursion() end\n"
    "function checks.large_garbage() local s for i = 1, 1500 do s = ('x'):rep(100000 + i) end "
    "return s end\n"
    "function checks.memory() local t = {} for i = 1, 1e9 do t[i] = ('x'):rep(100000) .. i end "
    "end\n"
    "function checks.small_memory() local t = {} for i = 1, 1e9 do t[i] = {i, {}} end end\n"
    "function checks.complaints() return {\n"
    "    {file = 'f', line = 2, col = 3, len = 4, message = 'm', hint = 'h', source = 'spec'},\n"
    "    {file = '--set x=y', line = 1, col = 1, message = 'n', source = 'set'}} end\n"
    "function checks.unsupported() return {{message = 'm', status = 'unsupported'}} end\n"
    "function checks.format()\n"
    "    assert(('%s_%d_%d.'):format('acc', -12, 0) == 'acc_-12_0.' and ('%d'):format(3.0) == "
    "'3')\n"
    "    assert(('%d'):format(math.mininteger) == '-9223372036854775808' and ('%s'):format(1) == "
    "'1')\n"
    "    assert(('%3d%%%x'):format(7, 255) == '  7%ff' and #('%s,'):format(('x'):rep(300)) == "
    "301)\n"
    "    assert(not pcall(string.format, '%d', 1.5) and not pcall(string.format, '%s'))\n"
    "    assert(not pcall(string.format, '%') and ('%s'):format('a\\0b') == 'a\\0b')\n"
    "end\n"
    "return checks\n";

static const char module[] =
    "local native, source = require 'native', require 'source'\n"
    "local checks = require 'faults'\n"
    "function checks.globals()\n"
    "    for _, name in ipairs {'io', 'os', 'debug', 'package', 'print', 'warn', 'dofile', "
    "'loadfile',\n"
    "                           'collectgarbage'} do assert(rawget(_G, name) == nil, name) end\n"
    "    assert(not string.dump and not math.random and not math.randomseed)\n"
    "end\n"
    "function checks.load()\n"
    "    assert(load('return 7')() == 7 and load('return x', '=x', 'b', {x = 3})() == 3)\n"
    "    assert(not load('\\27Lua') and not pcall(load, function() end))\n"
    "end\n"
    "function checks.order()\n"
    "    local t, seen = {}, {}\n"
    "    for _, word in ipairs {'one', 'two', 'three', 'four', 'five', 'six'} do t[word] = true "
    "end\n"
    "    t[10], t[9], t[1.5] = 1, 1, 1\n"
    "    for key in pairs(t) do seen[#seen + 1] = tostring(key) end\n"
    "    assert(table.concat(seen, ' ') == '1.5 9 10 five four one six three two')\n"
    "    assert(not pcall(pairs, {[{}] = 1, [{}] = 2}))\n"
    "end\n"
    "function checks.require()\n"
    "    for _, name in ipairs {'../moegen', 'a..b', '/etc/x', 'isa/x', '.x', 'x.', '', 'nowhere'} "
    "do\n"
    "        local good, why = pcall(require, name)\n"
    "        assert(not good and why:find('no module', 1, true), name)\n"
    "    end\n"
    "    local good, why = pcall(require, 'circle')\n"
    "    assert(not good and why:find('requires itself', 1, true), why)\n"
    "    assert(require 'isa.toy' == 'toy' and require 'shared.toy' == 'room')\n"
    "end\n"
    "function checks.source()\n"
    "    assert(table.concat(source.families(), ' ') == 'a_b none zz' and "
    "table.concat(source.isas()) "
    "== 'toy')\n"
    "    local text, path = source.text 'zz'\n"
    "    assert(text == 'text\\n' and path == 'templates/zz.c.in')\n"
    "    assert(select(2, source.text 'shared.part') == 'templates/shared/part.c.in')\n"
    "    for _, name in ipairs {'../zz', 'shared/part', 'part', 'shared.', 'shared.none'} do\n"
    "        local good, why = pcall(source.text, name)\n"
    "        assert(not good and why:find('no template', 1, true), name)\n"
    "    end\n"
    "end\n"
    "local function fragments(n, bare)\n"
    "    return require 'render.template'.render({family = 'a_b', rooms = {'more'}}, {n = n}, "
    "bare)\n"
    "end\n"
    "function checks.fragments()\n"
    "    assert(fragments(2, false) == 'x\\n    y = 2; // two\\n\\nz\\n')\n"
    "    assert(fragments(2, true) == 'x\\ny = 2;\\nz\\n')\n"
    "    assert(not pcall(require 'render.template'.family, 'zz'))\n"
    "end\n"
    "function checks.fragment_fails() fragments({}, false) end\n"
    "function checks.rooms()\n"
    "    local template = require 'render.template'\n"
    "    local function find(what, ...)\n"
    "        local found, why = template.find({family = 'a_b', rooms = {...}}, what)\n"
    "        return found or why\n"
    "    end\n"
    "    assert(find 'part' == 'shared.part' and find('part', 'more') == 'shared.part')\n"
    "    assert(find 'own' == 'a_b.own' and find('twice', 'more') == 'more.twice')\n"
    "    assert(find('own', 'more', 'again') == \"fragment 'own' is in more than one room: a_b, "
    "\"\n"
    "        .. 'again')\n"
    "    assert(find '../a_b' == \"no fragment '../a_b' in the rooms a_b, shared\")\n"
    "    assert(find 'toy' == \"no fragment 'toy' in the rooms a_b, shared\")\n"
    "end\n"
    "function checks.no_fragment() require 'render.template'.render({family = 'none'}, {}) end\n"
    "function checks.two_fragments() require 'render.template'.render({family = 'none', rooms = "
    "{'more', "
    "'again'}}, {}) end\n"
    "function checks.native()\n"
    "    assert(native.hex '' == '' and native.hex '\\x62\\xf2' == '0x62,0xf2')\n"
    "end\n"
    "function checks.locale() assert(tostring(0.5) == '0.5' and ('%.2f'):format(1.25) == '1.25' "
    "and tonumber '1.5' == 1.5) end\n"
    "function checks.garbage() local s for i = 1, 90000 do s = ('x'):rep(2000) .. i end return s "
    "end\n"
    "return {build = function(req)\n"
    "    assert(req.features.avx2 and req.props.rate == 0.5 and req.purpose == 'file' and "
    "#req.digest == 64)\n"
    "    local errors = checks[req.sets[1].key]()\n"
    "    if type(errors) == 'table' then return {errors = errors} end\n"
    "    return {name = 'n', c = 'c', h = 'h', code = '', meta = req.generator, notes = "
    "{'remark'}}\n"
    "end}\n";

static const struct {
    const char *path, *text;
} files[] = {
    {"gen/lua/moegen.lua", module},
    {"gen/lua/faults.lua", faults},
    {"gen/lua/circle.lua", "return require 'circle'\n"},
    {"gen/lua/isa/toy.lua", "return 'toy'\n"},
    {"templates/shared/toy.lua", "return 'room'\n"},
    {"templates/a_b/own.c.in", "own\n"},
    {"templates/more/twice.c.in", "twice\n"},
    {"templates/again/own.c.in", "own\n"},
    {"templates/again/twice.c.in", "twice\n"},
    {"templates/none.c.in", "@ return {}\n@ ----\nx\n$(include \"twice\")\n"},
    {"templates/shared/part.c.in",
     "    y = $(n); // two\n@ if n ~= 2 then\nnothing: $(n + 1)\n@ end\n\n"},
    {"templates/a_b.c.in", "@ return {}\n@ ----\nx\n$(include \"part\")\nz\n"},
    {"templates/zz.c.in", "text\n"},
};

static const struct {
    const char *check;
    moegen_status status;
    const char *message, *hint; /* parts of the first complaint */
} cases[] = {
    {"globals", MOEGEN_OK, NULL, NULL},
    {"load", MOEGEN_OK, NULL, NULL},
    {"order", MOEGEN_OK, NULL, NULL},
    {"require", MOEGEN_OK, NULL, NULL},
    {"source", MOEGEN_OK, NULL, NULL},
    {"fragments", MOEGEN_OK, NULL, NULL},
    {"fragment_fails", MOEGEN_INTERNAL, "templates/shared/part.c.in:3: ", "templates/a_b.c.in:4: "},
    {"rooms", MOEGEN_OK, NULL, NULL},
    {"no_fragment", MOEGEN_INTERNAL,
     "templates/none.c.in:4: no fragment 'twice' in the rooms none, shared", NULL},
    {"two_fragments", MOEGEN_INTERNAL,
     "templates/none.c.in:4: fragment 'twice' is in more than one room: more, again", NULL},
    {"native", MOEGEN_OK, NULL, NULL},
    {"format", MOEGEN_OK, NULL, NULL},
    {"locale", MOEGEN_OK, NULL, NULL},
    {"garbage", MOEGEN_OK, NULL, NULL},
    {"large_garbage", MOEGEN_OK, NULL, NULL},
    {"undefined", MOEGEN_INTERNAL, "gen/lua/faults.lua:", "stack traceback"},
    {"assignment", MOEGEN_INTERNAL, "undefined name 'undefinedname'", "stack traceback"},
    {"crash", MOEGEN_INTERNAL, "attempt to index a nil value (local 'nothing')",
     "gen/lua/faults.lua:"},
    {"recursion", MOEGEN_INTERNAL, "stack overflow", "stack traceback"},
    {"memory", MOEGEN_NO_MEMORY, "256 MiB", NULL},
    {"small_memory", MOEGEN_NO_MEMORY, "256 MiB", NULL},
    {"complaints", MOEGEN_BAD_SPEC, "m", "h"},
    {"unsupported", MOEGEN_UNSUPPORTED, "m", NULL},
};

static char root[] = "/tmp/moegen-sandbox-XXXXXX";
static int failures;

static void expect(bool holds, const char *where, const char *what)
{
    if (!holds) {
        fprintf(stderr, "sandbox_test: %s: %s\n", where, what);
        failures++;
    }
}

static void write_file(const char *path, const char *text, size_t len)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = full + sizeof root; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(full, 0700);
    }
    FILE *f = fopen(full, "wb");
    expect(f && fwrite(text, 1, len, f) == len && fclose(f) == 0, path, "cannot be written");
}

static const char *const copied[] = {"gen/lua/prelude.lua", "gen/lua/render/template.lua",
                                     "gen/lua/render/translate.lua"};

static void copy(const char *source_root)
{
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        char path[4096], text[16384];
        snprintf(path, sizeof path, "%s/%s", source_root, copied[i]);
        FILE *f = fopen(path, "rb");
        size_t n = f ? fread(text, 1, sizeof text, f) : 0;
        expect(n > 0 && n < sizeof text, path, "cannot be read");
        if (f)
            fclose(f);
        write_file(copied[i], text, n);
    }
}

static void remove_tree(void)
{
    static const char *const rest[] = {
        "gen/lua/isa",    "gen/lua/render",  "gen/lua",          "gen",       "templates/a_b",
        "templates/more", "templates/again", "templates/shared", "templates", ""};
    char full[512];
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        snprintf(full, sizeof full, "%s/%s", root, copied[i]);
        remove(full);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(full, sizeof full, "%s/%s", root, files[i].path);
        remove(full);
    }
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        snprintf(full, sizeof full, "%s/%s", root, rest[i]);
        remove(full);
    }
}

static moegen_status build(const char *check, struct generated *out, moegen_error **err)
{
    static const char spec[] = "a: 1\nkey: value\n";
    const char *const feature[] = {"avx2"};
    const struct host_prop prop = {"rate", 0.5};
    const struct host_set set = {check, "[1, two]", NULL};
    const struct host_request r = {.file = "f",
                                   .text = spec,
                                   .len = sizeof spec - 1,
                                   .set = &set,
                                   .set_count = 1,
                                   .feature = feature,
                                   .feature_count = 1,
                                   .prop = &prop,
                                   .prop_count = 1};
    return host_build(&r, out, err);
}

static void run_case(size_t i)
{
    struct generated out;
    moegen_error *err = NULL;
    moegen_status status = build(cases[i].check, &out, &err);
    const char *first = err && err->count ? err->diag[0].message : "",
               *hint = err && err->count ? err->diag[0].hint : "";
    expect(status == cases[i].status, cases[i].check, *first ? first : "wrong status");
    expect((err != NULL) == (status != MOEGEN_OK), cases[i].check,
           "complaints and status disagree");
    expect(!cases[i].message || strstr(first, cases[i].message), cases[i].check, first);
    expect(!cases[i].hint || (hint && strstr(hint, cases[i].hint)), cases[i].check,
           hint ? hint : "no hint");
    if (status == MOEGEN_OK)
        expect(strcmp(out.c.at, "c") == 0 && out.meta.len == 64 && out.notes.count == 1 &&
                   strcmp(out.notes.item[0].text, "remark") == 0,
               cases[i].check, "wrong result");
    if (strcmp(cases[i].check, "complaints") == 0) {
        expect(err->count == 2 && err->diag[0].line == 2 && err->diag[0].col == 3 &&
                   err->diag[0].len == 4 && strcmp(err->diag[0].source, "key: value") == 0,
               "complaints", "wrong place");
        expect(err->diag[1].line == 0 && !err->diag[1].source, "complaints",
               "an override has no line");
    }
    generated_free(&out);
    moegen_error_release(err);
}

static void *thread(void *unused)
{
    (void)unused;
    for (int i = 0; i < 50; i++)
        run_case((size_t)i % 7);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 2 || !mkdtemp(root)) {
        fprintf(stderr, "usage: sandbox_test SOURCE_ROOT\n");
        return 2;
    }
    setlocale(LC_ALL, "de_DE.UTF-8"); /* where numbers have commas, if installed */
    char embedded[65], first[65], second[65];
    unsetenv("MOEGEN_TEMPLATE_DIR");
    expect(host_digest(embedded), "digest", "the embedded sources have one");
    setenv("MOEGEN_TEMPLATE_DIR", root, 1);
    expect(!host_digest(first), "digest", "an empty tree has none");
    copy(argv[1]);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        write_file(files[i].path, files[i].text, strlen(files[i].text));
    expect(host_digest(first) && strcmp(first, embedded) != 0, "digest", "a tree has its own");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_case(i);
    pthread_t id[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&id[i], NULL, thread, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(id[i], NULL);
    static const char *const kinds[] = {"templates/zz.c.in", "templates/more/twice.c.in",
                                        "templates/shared/toy.lua"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        write_file(kinds[i], "texu\n", 5);
        expect(host_digest(second) && strcmp(first, second) != 0, "digest", kinds[i]);
        memcpy(first, second, sizeof first);
    }
    remove_tree();
    if (!failures)
        printf("ok\n");
    return failures != 0;
}
