/* SPDX-License-Identifier: Apache-2.0 */
/* names_test.c - whatever a kernel is called, its C compiles, or the name is refused: kernels of
 * every family, called what their own C calls something; and names that the C library and the
 * compilers have.
 *
 *     names_test SOURCE-TREE */
#include <ctype.h>

#include "cases.h"
#include "scratch.h"

enum { MOST = 8192 };

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

/* ---- names of a kernel's own C ---- */

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
    snprintf(where, sizeof where, "files, compiled together");
    run("tcc -Wall -Werror -I\"$SOURCE/runtime\" -c *.c && rm *.c *.o");
}

/* Was the word added before? */
static bool is_known(struct words *w, const char *word)
{
    int before = w->count;
    add_word(w, word, strlen(word));
    return w->count == before;
}

/* Every name at file scope and some of the others, in memory; some of the former as files. Names
 * of fragments that families share: every one once, then some. */
static void try_case(const char *path, const char *kernel, void *seed)
{
    static struct words tried;
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
        bool is_new = i < outer.count && !is_known(&tried, name);
        if (is_new || drawn % 64 == 0)
            try_kernel(engine, path, kernel, name);
        if (i < outer.count && drawn % 16 == 1)
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
    collect(run("for f in libc.so.6 libm.so.6; do nm -D --defined-only $(gcc -print-file-name=$f); "
                "done |"
                " sed -n 's/@.*//; s/^.* \\([a-zA-Z][a-zA-Z0-9_]*\\)$/\\1;/p'"),
            &names, &others);
    collect(run("printf '#include \"moegen_rt.h\"\\n#include <immintrin.h>\\n' >h.c; gcc -E -P "
                "-I\"$SOURCE/runtime\" h.c"),
            &names, &others);
    collect(run("gcc -E -dM -I\"$SOURCE/runtime\" h.c |"
                " sed -n 's/^#define \\([a-zA-Z][a-zA-Z0-9_]*\\).*$/\\1;/p'"),
            &names, &others);
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
                 "%s -std=gnu17 -Wall -Werror -I\"$SOURCE/runtime\" -fsyntax-only all.c",
                 compilers[i]);
        run(command);
    }
    printf("%d names of the library and its headers, %d for kernels\n", names.count, accepted);
    if (names.count < 1000 || accepted == names.count)
        complain("has no names", "");
    run("rm -f h.c all.c");
    free_words(&names);
    free_words(&others);
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
    moegen_engine_release(engine);
    if (rmdir(folder))
        complain("is not empty", folder);
    return failures != 0;
}
