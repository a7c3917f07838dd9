/* SPDX-License-Identifier: Apache-2.0 */
/* banner_test.c - text in the banner of generated C is a comment, whatever it tries to be.
 *
 *     banner_test SOURCE-TREE */
#include "cases.h"
#include "scratch.h"

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
    snprintf(where, sizeof where, "a banner with \"%.300s\"", command);
    moegen_source *made = commanded(engine, path, command);
    if (!made)
        return;
    if (unprintable(moegen_source_c(made)) || unprintable(moegen_source_h(made)))
        complain("holds what does not show", "");
    write_text("hostile", ".c", moegen_source_c(made));
    write_text("hostile", ".h", moegen_source_h(made));
    run("for x in c h; do for std in c11 gnu17; do\n"
        "for x2 in plain hostile; do gcc -std=$std -Wall -Wextra -Wpedantic -Werror "
        "-I\"$SOURCE/runtime\" -E -P $x2.$x"
        " >$x2.$x.out || exit 1; done\ncmp plain.$x.out hostile.$x.out || exit 1; done; done\n"
        "tcc -Wall -Werror -I\"$SOURCE/runtime\" -c hostile.c -o hostile.o");
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
    moegen_engine *engine = NULL;
    source = argc > 1 ? argv[1] : ".";
    if (!mkdtemp(folder) || moegen_engine_create(NULL, &engine, NULL))
        return 2;
    try_commands(engine);
    try_ignored(engine);
    moegen_engine_release(engine);
    if (rmdir(folder))
        complain("is not empty", folder);
    return failures != 0;
}
