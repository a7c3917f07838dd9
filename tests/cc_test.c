/* SPDX-License-Identifier: Apache-2.0 */
/* cc_test.c - C text through an installed compiler: what it makes runs, and whose fault it is when
 * nothing comes of it. */
#include <signal.h>
#include <string.h>

#include "check.h"
#include "jit/jit.h"

static const char *const strict[] = {"-Wall",        "-Wextra", "-Wpedantic",
                                     "-Wconversion", "-Werror", NULL};
static const char *const unknown_option[] = {"-no-such-option", NULL};

static const char twice[] = "#include \"moegen_rt.h\"\n"
                            "int32_t twice(const void *a, const moegen_worker *w)\n"
                            "{ (void)w; return 2 * *(const int32_t *)a; }\n";
static const char unknown_name[] = "int f(void)\n{\n  return 1 + yy;\n}\n";

static const struct {
    const char *text, *cc;
    const char *const *flags;
    moegen_status want;
    int line, col;       /* in the text; 0: it is not the text's fault, or any */
    const char *message; /* a part of it */
} cases[] = {
    {twice, NULL, strict, MOEGEN_OK, 0, 0, NULL},
    {unknown_name, NULL, NULL, MOEGEN_INTERNAL, 3, 14, "yy"},
    {"int f(long x);\nint f(long x) { return x; }\n", NULL, strict, MOEGEN_INTERNAL, 2, 0, ""},
    {twice, "no-such-compiler", NULL, MOEGEN_UNSUPPORTED, 0, 0, "cannot start no-such-compiler"},
    {twice, "false", NULL, MOEGEN_BAD_ARGUMENT, 0, 0, "compiler false makes nothing of a kernel"},
    {twice, "true", NULL, MOEGEN_BAD_ARGUMENT, 0, 0, "compiler true makes nothing of a kernel"},
    {twice, NULL, unknown_option, MOEGEN_BAD_ARGUMENT, 0, 0, "-no-such-option"},
    {"#include <no-such.h>\n", NULL, NULL, MOEGEN_BAD_ARGUMENT, 0, 0, "no-such.h"},
};

static void run_case(size_t i)
{
    moegen_error *err = NULL;
    moegen_status status = cc_check(cases[i].text, cases[i].cc, cases[i].flags, &err);
    CHECK(status == cases[i].want, "case %zu: %s: %s", i, moegen_status_name(status),
          moegen_error_text(err));
    const struct diag *d = err ? err->diag : NULL;
    CHECK(!err == !cases[i].message, "case %zu: a message, or none", i);
    if (d && cases[i].message) {
        CHECK(d->line == cases[i].line && (!cases[i].col || d->col == cases[i].col),
              "case %zu: at %d:%d", i, d->line, d->col);
        CHECK(strstr(d->message, cases[i].message), "case %zu: %s", i, d->message);
    }
    moegen_error_release(err);
}

int main(void)
{
    struct code c = {0};
    moegen_error *err = NULL;
    moegen_status status =
        cc_compile(twice, NULL, NULL, (const char *const[]){"twice"}, 1, &c, &err);
    if (status == MOEGEN_UNSUPPORTED) {
        fprintf(stderr, "note: no compiler here\n");
        moegen_error_release(err);
        return 0;
    }
    CHECK(status == MOEGEN_OK, "%s", moegen_error_text(err));
    moegen_entry f;
    int32_t x = 21;
    memcpy(&f, &c.fn[0], sizeof f);
    CHECK(!status && f(&x, NULL) == 42, "twice 21");
    code_unmap(&c);
    CHECK(cc_compile(twice, NULL, NULL, (const char *const[]){"absent"}, 1, &c, NULL) ==
              MOEGEN_INTERNAL,
          "a function that is not there");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_case(i);
    CHECK(cc_check(unknown_name, NULL, NULL, &err) == MOEGEN_INTERNAL &&
              strcmp(err->diag[0].source, "  return 1 + yy;") == 0,
          "the line");
    moegen_error_release(err);
    signal(SIGCHLD, SIG_IGN); /* a host that does not wait for its children */
    CHECK(cc_check(twice, NULL, strict, NULL) == MOEGEN_OK, "no child to wait for");
    CHECK(cc_check("oops", NULL, strict, NULL) == MOEGEN_INTERNAL, "no child to wait for");
    return failures != 0;
}
