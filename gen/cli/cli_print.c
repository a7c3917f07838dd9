/* SPDX-License-Identifier: Apache-2.0 */
/* cli_print.c - complaints, notes, tables, progress and JSON: what all commands say alike. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

bool quiet;
int verbose;

static bool has_colours(FILE *to)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(to)) && !(no && *no) && !(term && strcmp(term, "dumb") == 0);
}

static const struct paint *paint(void)
{
    static const struct paint plain = {"", "", "", ""};
    static const struct paint bright = {"\033[1m", "\033[1;31m", "\033[36m", "\033[0m"};
    return has_colours(stderr) ? &bright : &plain;
}

static int exit_code(moegen_status status)
{
    static const int codes[] = {
        [MOEGEN_OK] = EXIT_OK,
        [MOEGEN_BAD_ARGUMENT] = EXIT_BAD_INPUT,
        [MOEGEN_BAD_SPEC] = EXIT_BAD_INPUT,
        [MOEGEN_UNSUPPORTED] = EXIT_NOT_HERE,
        [MOEGEN_BAD_DATA] = EXIT_BAD_INPUT,
        [MOEGEN_NO_MEMORY] = EXIT_NOT_HERE,
        [MOEGEN_IO] = EXIT_BAD_INPUT,
        [MOEGEN_INTERNAL] = EXIT_BUG,
    };
    return (size_t)status < sizeof codes / sizeof *codes ? codes[status] : EXIT_BUG;
}

static bool something_lost;

void lost(void)
{
    something_lost = true;
}

int whole(int result)
{
    return result == EXIT_OK && something_lost ? fail(MOEGEN_NO_MEMORY, NULL) : result;
}

static struct text said;

static void free_said(void)
{
    text_free(&said);
}

/* A word as a shell takes it. */
static void add_word(const char *word)
{
    bool plain = *word && !word[strcspn(word, " \t\n\"'`$&|;<>()*?[]{}!#~\\")];
    text_fmt(&said, plain ? "%s" : "'", word);
    for (; !plain && *word; word++)
        text_fmt(&said, *word == '\'' ? "'\\''" : "%c", *word);
    text_fmt(&said, plain ? "" : "'");
}

bool command_keep(int count, char **words)
{
    text_fmt(&said, "moegen");
    for (int i = 1; i < count; i++) {
        text_fmt(&said, " ");
        add_word(words[i]);
    }
    atexit(free_said);
    return !said.lost;
}

const char *command_said(void)
{
    return said.at && !said.lost ? said.at : "";
}

int put_text(struct text *t)
{
    int result = t->lost ? fail(MOEGEN_NO_MEMORY, NULL) : EXIT_OK;
    fputs(t->at ? t->at : "", stdout);
    text_free(t);
    return result;
}

int fail(moegen_status status, moegen_error *err)
{
    enum { SHOWN = 12 }; /* of our own bugs; of the user's, all */
    struct text t = {0};
    size_t shown = err ? err->count : 0;
    if (status == MOEGEN_INTERNAL && shown > SHOWN && !verbose)
        shown = SHOWN;
    for (size_t i = 0; i < shown; i++)
        diag_render(&t, &err->diag[i], paint());
    if (err && shown < err->count)
        text_fmt(&t, "... and %zu more (-v shows them)\n", err->count - shown);
    if (!shown)
        text_fmt(&t, "error: %s\n", moegen_status_name(status));
    if (status == MOEGEN_INTERNAL)
        text_fmt(&t, "This is a bug of moegen. Please report it with the spec and the command.\n");
    if (t.at)
        fputs(t.at, stderr);
    else
        fprintf(stderr, "error: %s, and there is no memory to say more\n",
                moegen_status_name(status));
    text_free(&t);
    moegen_error_release(err);
    return exit_code(status);
}

int bad(const char *format, ...)
{
    const struct paint *p = paint();
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%serror:%s ", p->error, p->off);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return EXIT_BAD_INPUT;
}

void note(const char *format, ...)
{
    if (quiet)
        return;
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

void progress(const char *what, int done, int total)
{
    enum { WIDTH = 30 };
    if (quiet || !isatty(STDERR_FILENO) || total < 2)
        return;
    if (done >= total) {
        fprintf(stderr, "\r\033[K");
        return;
    }
    int full = WIDTH * done / total;
    fprintf(stderr, "\r\033[K[%.*s%*s] %d/%d %s", full, "##############################",
            WIDTH - full, "", done, total, what);
    fflush(stderr);
}

void json_string(struct text *t, const char *s)
{
    text_add(t, "\"", 1);
    for (; s && *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            text_fmt(t, "\\%c", c);
        else if (c == '\n')
            text_add(t, "\\n", 2);
        else if (c < 0x20)
            text_fmt(t, "\\u%04x", c);
        else
            text_add(t, s, 1);
    }
    text_add(t, "\"", 1);
}

void json_number(struct text *t, double value)
{
    if (isfinite(value))
        text_fmt(t, "%.9g", value);
    else
        text_add(t, "null", 4);
}

void table_add(struct table *t, const char *format, ...)
{
    struct text *more = realloc(t->cell, (size_t)(t->cells + 1) * sizeof *more);
    t->lost = t->lost || !more;
    if (!more)
        return;
    struct text *cell = &more[t->cells++];
    t->cell = more;
    *cell = (struct text){0};
    va_list args;
    va_start(args, format);
    text_vfmt(cell, format, args);
    va_end(args);
    t->lost = t->lost || cell->lost;
}

static bool numeric(const char *s)
{
    return s && strchr("0123456789.+-", *s) && *s;
}

void table_print(struct table *t, FILE *to)
{
    int width[32] = {0};
    if (t->lost) {
        lost();
        table_free(t);
        return;
    }
    for (int i = 0; i < t->cells; i++) {
        int *w = &width[i % t->columns];
        if ((int)t->cell[i].len > *w)
            *w = (int)t->cell[i].len;
    }
    for (int i = 0; i < t->cells; i++) {
        int column = i % t->columns;
        /* a header stands over its column as the first value does */
        const char *shown = i < t->columns && i + t->columns < t->cells ? t->cell[i + t->columns].at
                                                                        : t->cell[i].at;
        bool right = numeric(shown), last = column == t->columns - 1;
        const char *s = t->cell[i].at ? t->cell[i].at : "";
        fprintf(to, "%s%*s%s", column ? "  " : "",
                right  ? width[column]
                : last ? 0
                       : -width[column],
                s, last ? "\n" : "");
    }
    table_free(t);
}

void table_free(struct table *t)
{
    for (int i = 0; i < t->cells; i++)
        text_free(&t->cell[i]);
    free(t->cell);
    *t = (struct table){.columns = t->columns};
}

double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static const char *scaled(char out[32], double value, const char *const *unit, int units,
                          double step)
{
    int i = 0;
    while (i + 1 < units && value >= step) {
        value /= step;
        i++;
    }
    snprintf(out, 32, value < 10 ? "%.2f %s" : value < 100 ? "%.1f %s" : "%.0f %s", value, unit[i]);
    return out;
}

const char *show_seconds(char out[32], double seconds)
{
    static const char *const unit[] = {"ns", "us", "ms", "s"};
    return scaled(out, 1e9 * seconds, unit, 4, 1000);
}

const char *show_bytes(char out[32], double bytes)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB"};
    return scaled(out, bytes, unit, 4, 1000);
}
