/* SPDX-License-Identifier: Apache-2.0 */
/* names_test.c - whatever a kernel is called, its C compiles, or the name is refused: kernels of
 * every family, called what their own C calls something; names that the C library and the compilers
 * have; and text in the banner that tries to be code.
 *
 *     names_test SOURCE-TREE */
#include <ctype.h>
#include <unistd.h>

#include "cases.h"

enum { MOST = 8192, LONGEST = 300 };
static const char *source;
static char folder[] = "/tmp/moegen-names-XXXXXX";

/* ---- the identifiers of a text ---- */

struct words {
    char *word[MOST];
    int count;
};

/* Without those that begin with '_': none of them is a kernel's. */
static void add_word(struct words *w, const char *at, size_t len)
{
    if (*at == '_')
        return;
    for (int i = 0; i < w->count; i++)
        if (strlen(w->word[i]) == len && memcmp(w->word[i], at, len) == 0)
            return;
    if (w->count == MOST)
        complain("has too many names", "");
    else
        w->word[w->count++] = strndup(at, len);
}

static void free_words(struct words *w)
{
    while (w->count)
        free(w->word[--w->count]);
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* After the comment, string or directive that starts at `at`; `at` if none does. */
static const char *after_other(const char *at)
{
    const char *end = at;
    if (at[0] == '/' && at[1] == '/')
        end = strchr(at, '\n');
    else if (at[0] == '/' && at[1] == '*')
        end = strstr(at + 2, "*/") + 2;
    else if (*at == '#')
        end = strchr(at, '\n');
    else if (*at == '"') {
        for (end = at + 1; *end && *end != '"'; end++)
            end += *end == '\\' && end[1];
        end += *end == '"';
    }
    return end;
}

/* Of C text: names at file scope, enumerators among them; and all others. */
static void collect(const char *text, struct words *outer, struct words *inner)
{
    int depth = 0, parens = 0;
    bool in_enum = false;
    for (const char *at = text; *at;) {
        const char *next = after_other(at);
        if (next != at) {
            at = next;
            continue;
        }
        size_t len = 0;
        while (is_word(at[len]))
            len++;
        if (len && !isdigit((unsigned char)*at)) {
            if (depth == 0)
                in_enum = (in_enum && parens) || (len == 4 && memcmp(at, "enum", 4) == 0);
            add_word((depth == 0 && parens == 0) || (depth == 1 && in_enum) ? outer : inner, at,
                     len);
        }
        depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
        parens += *at == '(' ? 1 : *at == ')' ? -1 : 0;
        in_enum = in_enum && !(*at == ';' && depth == 0);
        at += len ? len : 1;
    }
}

/* ---- commands ---- */

/* What a shell command that runs in the folder prints; complains, with that, if it fails. */
static const char *run(const char *command)
{
    static char said[8 << 20];
    char all[1600];
    snprintf(all, sizeof all, "cd %s && { %s\n} 2>&1", folder, command);
    FILE *p = popen(all, "r");
    size_t len = p ? fread(said, 1, sizeof said - 1, p) : 0;
    said[len] = '\0';
    if (!p || pclose(p)) {
        complain(command, "");
        printf("%.2000s\n", said);
    }
    return said;
}

static void write_text(const char *stem, const char *suffix, const char *text)
{
    char path[LONGEST];
    snprintf(path, sizeof path, "%s/%s%s", folder, stem, suffix);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f))
        complain("cannot be written", path);
}

/* ---- names of a kernel's own C ---- */

static char text[65536]; /* of the spec */

static moegen_spec spec_of(const char *path, const char *kernel, const moegen_override *set,
                           size_t sets)
{
    FILE *f = fopen(path, "rb");
    size_t len = f ? fread(text, 1, sizeof text, f) : 0;
    if (f)
        fclose(f);
    return (moegen_spec){.struct_size = sizeof(moegen_spec),
                         .text = text,
                         .len = len,
                         .label = path,
                         .kernel = kernel,
                         .overrides = set,
                         .override_count = sets};
}

/* Is this the answer to a name that no kernel may have? */
static bool about_name(moegen_status status, moegen_error *err)
{
    bool yes = status == MOEGEN_BAD_SPEC && err && strstr(moegen_error_text(err), "error: name: '");
    if (status && !yes)
        complain("fails", moegen_error_text(err));
    moegen_error_release(err);
    return yes;
}

/* C of a case in its file, under a name or its own (NULL); NULL if that is refused. */
static moegen_source *generate(moegen_engine *engine, const char *path, const char *kernel,
                               const char *name)
{
    moegen_override set[] = {{"target", "scalar"}, {"name", name}};
    moegen_spec spec = spec_of(path, kernel, set, name ? 2 : 1);
    moegen_source *made = NULL;
    moegen_error *err = NULL;
    moegen_status status = moegen_generate(engine, &spec, &made, &err);
    about_name(status, err);
    return made;
}

/* In memory, by libtcc. */
static void try_kernel(moegen_engine *engine, const char *path, const char *kernel,
                       const char *name)
{
    moegen_override set[] = {{"name", name}};
    moegen_spec spec = spec_of(path, kernel, set, 1);
    moegen_kernel *made = NULL;
    moegen_error *err = NULL;
    moegen_status status = moegen_kernel_get(engine, &spec, &made, &err);
    if (!about_name(status, err) && made && strcmp(made->unit->facts.name, name) != 0)
        complain("has another name", made->unit->facts.name);
    moegen_kernel_release(made);
}

/* On disk; compile() tries what was written. */
static void try_files(moegen_engine *engine, const char *path, const char *kernel, const char *name)
{
    char stem[LONGEST];
    moegen_source *made = generate(engine, path, kernel, name);
    if (!made)
        return;
    snprintf(stem, sizeof stem, "%.100s-%.100s-%.50s", strrchr(path, '/') + 1, kernel, name);
    write_text(stem, ".c", moegen_source_c(made));
    moegen_source_release(made);
}

static void compile(void)
{
    char command[LONGEST];
    snprintf(where, sizeof where, "files, compiled together");
    snprintf(command, sizeof command, "tcc -Wall -Werror -I'%s/runtime' -c *.c && rm *.c *.o",
             source);
    run(command);
}

/* Every name at file scope and some of the others, in memory; some of the former as files. */
static void try_case(const char *path, const char *kernel, void *seed)
{
    unsigned *random = seed;
    struct words outer = {0}, inner = {0};
    moegen_engine *engine = NULL;
    moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = "", .threads = 1};
    if (strcmp(kernel, "plain") != 0)
        return;
    snprintf(where, sizeof where, "%s:%s", strrchr(path, '/') + 1, kernel);
    moegen_engine_create(&o, &engine, NULL);
    moegen_source *own = generate(engine, path, kernel, NULL);
    if (own)
        collect(moegen_source_c(own), &outer, &inner);
    int own_names = own ? (int)strlen(moegen_source_name(own)) : 0;
    for (int i = 0; i < outer.count + inner.count; i++) {
        const char *name = i < outer.count ? outer.word[i] : inner.word[i - outer.count];
        *random = *random * 1103515245u + 12345u;
        unsigned drawn = *random >> 16;
        if (strncmp(name, moegen_source_name(own), (size_t)own_names) == 0)
            continue; /* of the case's name, not of its C */
        snprintf(where, sizeof where, "%s:%s as '%s'", strrchr(path, '/') + 1, kernel, name);
        if (i < outer.count || drawn % 64 == 0)
            try_kernel(engine, path, kernel, name);
        if (i < outer.count && drawn % 16 < 2)
            try_files(engine, path, kernel, name);
    }
    if (outer.count < 10)
        complain("lacks names at file scope", "");
    moegen_source_release(own);
    moegen_engine_release(engine);
    free_words(&outer);
    free_words(&inner);
}

/* ---- names of the C library and of compilers ---- */

static bool refused(moegen_engine *engine, const char *name)
{
    char spec_text[LONGEST];
    snprintf(spec_text, sizeof spec_text, "{kernel: none, name: \"%.200s\"}", name);
    moegen_spec spec = {.struct_size = sizeof spec, .text = spec_text, .len = strlen(spec_text)};
    moegen_source *made = NULL;
    moegen_error *err = NULL;
    moegen_generate(engine, &spec, &made, &err);
    bool yes = err && strstr(moegen_error_text(err), "error: name: '");
    moegen_error_release(err);
    return yes;
}

/* Functions of the library, and what the headers of generated C declare and define: a kernel of any
 * of these names is refused, or can be declared and defined beside them without a warning. */
static void try_library(moegen_engine *engine)
{
    static struct words names, others;
    char command[1000];
    snprintf(where, sizeof where, "the C library");
    snprintf(
        command, sizeof command,
        "for f in libc.so.6 libm.so.6; do nm -D --defined-only $(gcc -print-file-name=$f); done |"
        " sed -n 's/@.*//; s/^.* \\([a-zA-Z][a-zA-Z0-9_]*\\)$/\\1;/p'");
    collect(run(command), &names, &others);
    snprintf(command, sizeof command,
             "printf '#include \"moegen_rt.h\"\\n#include <immintrin.h>\\n' >h.c; gcc -E -P "
             "-I'%s/runtime' h.c",
             source);
    collect(run(command), &names, &others);
    snprintf(
        command, sizeof command,
        "gcc -E -dM -I'%s/runtime' h.c | sed -n 's/^#define \\([a-zA-Z][a-zA-Z0-9_]*\\).*$/\\1;/p'",
        source);
    collect(run(command), &names, &others);
    char path[LONGEST];
    snprintf(path, sizeof path, "%s/all.c", folder);
    FILE *f = fopen(path, "w");
    fprintf(f, "#include \"h.c\"\n");
    int accepted = 0;
    for (int i = 0; f && i < names.count; i++)
        if (!refused(engine, names.word[i])) {
            fprintf(f, "int32_t %s(const void *args, const moegen_worker *worker);\n",
                    names.word[i]);
            accepted++;
        }
    if (f)
        fclose(f);
    for (int i = 0; i < 2; i++) {
        static const char *const compilers[] = {"gcc", "clang"};
        snprintf(command, sizeof command,
                 "%s -std=gnu17 -Wall -Werror -I'%s/runtime' -fsyntax-only all.c", compilers[i],
                 source);
        run(command);
    }
    printf("%d names of the library and its headers, %d for kernels\n", names.count, accepted);
    if (names.count < 1000 || accepted == names.count)
        complain("has no names", "");
    run("rm -f h.c all.c");
    free_words(&names);
    free_words(&others);
}

/* ---- text in the banner ---- */

static const char *const hostile[] = {
    "moegen gen */ int evil(void) { return 1; } /*",
    "moegen gen a\n*/ int evil(void) { return 1; } /*",
    "moegen gen a\r\n */\r int evil;\r/*",
    "*/int evil;//",
    "*\\\n/ int evil; /*",
    "*\n/ int evil; /*",
    "*?"
    "?/\n/ int evil; /*",
    "*?"
    "?/",
    "* /int evil; /*",
    "/* /* // */",
    "ends with a backslash \\",
    "\\",
    "and with a trigraph ?"
    "?/",
    "\x01\x02\x07\b\t\v\f\x1b[31mred\x1b[0m\x7f",
    "right-to-left \xe2\x80\xae evil \xe2\x81\xa6 isolated \xe2\x80\x8b hidden \xef\xbb\xbf mark "
    "\xc2\x85 next",
    "no text \xff\xfe \xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x80",
    "*/ * / */ * / */ * / */ * / */ * / */ * / */ * / */ * / */ * / */ * / */ * / */ * / */ * / */ "
    "* / */ * / */",
    "%s %n %d %",
    "",
};

static moegen_source *commanded(moegen_engine *engine, const char *path, const char *command)
{
    moegen_override set[] = {{"target", "scalar"}};
    moegen_spec spec = spec_of(path, "plain", set, 1);
    moegen_source *made = NULL;
    moegen_error *err = NULL;
    spec.command = command;
    if (moegen_generate(engine, &spec, &made, &err))
        complain("fails", moegen_error_text(err));
    moegen_error_release(err);
    return made;
}

/* A byte of it that is no part of plain text, or NULL. */
static const char *unprintable(const char *at)
{
    while (*at && (*at == '\n' || (*at >= ' ' && *at <= '~')))
        at++;
    return *at ? at : NULL;
}

/* The C is what it is with any other command. */
static void try_command(moegen_engine *engine, const char *path, const char *command)
{
    char compare[1200];
    snprintf(where, sizeof where, "a banner with \"%.300s\"", command);
    moegen_source *made = commanded(engine, path, command);
    if (!made)
        return;
    if (unprintable(moegen_source_c(made)) || unprintable(moegen_source_h(made)))
        complain("holds what does not show", "");
    write_text("hostile", ".c", moegen_source_c(made));
    write_text("hostile", ".h", moegen_source_h(made));
    snprintf(compare, sizeof compare,
             "for x in c h; do for std in c11 gnu17; do\n"
             "for x2 in plain hostile; do gcc -std=$std -Wall -Wextra -Wpedantic -Werror "
             "-I'%s/runtime' -E -P $x2.$x"
             " >$x2.$x.out || exit 1; done\ncmp plain.$x.out hostile.$x.out || exit 1; done; done\n"
             "tcc -Wall -Werror -I'%s/runtime' -c hostile.c -o hostile.o",
             source, source);
    run(compare);
    moegen_source_release(made);
}

static void try_commands(moegen_engine *engine)
{
    char path[LONGEST];
    snprintf(path, sizeof path, "%s/tests/kernels/moe_index.yaml", source);
    snprintf(where, sizeof where, "a banner");
    moegen_source *made = commanded(engine, path, "moegen gen plain.yaml");
    write_text("plain", ".c", made ? moegen_source_c(made) : "");
    write_text("plain", ".h", made ? moegen_source_h(made) : "");
    if (!made || !strstr(moegen_source_c(made), "\n *     moegen gen plain.yaml\n"))
        complain("does not name the command", "");
    moegen_source_release(made);
    made = commanded(engine, path, "moegen gen f\xc3\xbcr.yaml");
    if (made && !strstr(moegen_source_c(made), "moegen gen f\xc3\xbcr.yaml\n"))
        complain("has no letters but ASCII", "");
    moegen_source_release(made);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        try_command(engine, path, hostile[i]);
    run("rm plain.* hostile.*");
}

/* A kernel is the same whatever command made it. */
static void try_ignored(moegen_engine *engine)
{
    char path[LONGEST];
    moegen_kernel *made[2] = {NULL, NULL};
    snprintf(path, sizeof path, "%s/tests/kernels/moe_index.yaml", source);
    snprintf(where, sizeof where, "moegen_kernel_get");
    for (int i = 0; i < 2; i++) {
        moegen_spec spec = spec_of(path, "plain", NULL, 0);
        spec.command = i ? "*/ int evil;" : NULL;
        if (moegen_kernel_get(engine, &spec, &made[i], NULL))
            complain("fails", "");
    }
    if (made[0] && made[1] && made[0]->unit != made[1]->unit)
        complain("looks at the command", "");
    moegen_kernel_release(made[0]);
    moegen_kernel_release(made[1]);
}

int main(int argc, char **argv)
{
    char directory[LONGEST];
    unsigned seed = 12;
    moegen_engine *engine = NULL;
    source = argc > 1 ? argv[1] : ".";
    snprintf(directory, sizeof directory, "%s/tests/kernels", source);
    if (!mkdtemp(folder) || moegen_engine_create(NULL, &engine, NULL))
        return 2;
    if (each_case(directory, argc > 2 ? argv[2] : "", try_case, &seed) < 1)
        complain("no cases", directory);
    compile();
    try_library(engine);
    try_commands(engine);
    try_ignored(engine);
    moegen_engine_release(engine);
    if (rmdir(folder))
        complain("is not empty", folder);
    return failures != 0;
}
