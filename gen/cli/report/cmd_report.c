/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_report.c - `moegen report`: tables and pictures of the result files of a directory as one
 * HTML page, which needs no other file. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

enum { MOST_FILE = 1 << 26 };

static int is_json(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return e->d_name[0] != '.' && n > 5 && strcmp(e->d_name + n - 5, ".json") == 0;
}

/* What a file with that key is of. */
static const struct kind {
    const char *key;
    moegen_status (*report)(const struct json *j, struct text *out, moegen_error **err);
} kinds[] = {
    {"results", report_bench},
    {"comparisons", report_compare},
};

/* *known: is it of bench or compare? */
static moegen_status add_file(const char *path, const char *name, const struct text *text,
                              struct text *out, bool *known, moegen_error **err)
{
    struct json j;
    moegen_status status = json_read(&j, path, text->at ? text->at : "", text->len, err);
    *known = false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !status && !*known; i++) {
        int value = 0;
        if (j.node->kind == JSON_MAP)
            status = json_find(&j, 0, kinds[i].key, &value, err);
        if (status || !value)
            continue;
        *known = true;
        text_fmt(out, "<section>\n<h2>");
        html_text(out, name);
        text_fmt(out, "</h2>\n");
        status = kinds[i].report(&j, out, err);
        text_fmt(out, "</section>\n");
    }
    json_free(&j);
    return status;
}

static int report_file(const char *directory, const char *name, struct text *out, int *files)
{
    struct text path = {0}, text = {0};
    bool known = false;
    text_fmt(&path, "%s/%s", directory, name);
    int result = path.lost ? fail(MOEGEN_NO_MEMORY, NULL) : read_file(path.at, MOST_FILE, &text);
    if (!result) {
        moegen_error *err = NULL;
        moegen_status status =
            text.lost ? MOEGEN_NO_MEMORY : add_file(path.at, name, &text, out, &known, &err);
        result = status ? fail(status, err) : EXIT_OK;
    }
    *files += known;
    if (!result && !known)
        note("note: %s is neither of `moegen bench --json` nor of `moegen compare --json`",
             path.at);
    text_free(&path);
    text_free(&text);
    return result;
}

static int write_page(const struct options *o, const char *directory, const struct text *sections)
{
    struct text out = {0}, path = {0};
    text_fmt(&path, "%s/report.html", directory);
    html_page(&out, "moegen report", sections);
    const char *to = o->out ? o->out : path.at;
    int result = path.lost || out.lost ? fail(MOEGEN_NO_MEMORY, NULL) : EXIT_OK;
    if (!result && strcmp(to, "-") == 0)
        result = put_text(&out);
    else if (!result && !(result = write_text(to, &out)))
        note("wrote %s", to);
    text_free(&path);
    text_free(&out);
    return result;
}

int cmd_report(struct options *o)
{
    struct dirent **entry;
    struct text sections = {0};
    int files = 0, result = EXIT_OK;
    if (o->operands.count != 1)
        return bad("report takes one directory, with files of `moegen bench --json` or `moegen "
                   "compare --json`");
    const char *directory = o->operands.at[0];
    int count = scandir(directory, &entry, is_json, alphasort);
    if (count < 0)
        return bad("cannot read the directory %s: %s", directory, strerror(errno));
    for (int i = 0; i < count; i++) {
        if (!result)
            result = report_file(directory, entry[i]->d_name, &sections, &files);
        free(entry[i]);
    }
    free(entry);
    if (!result && !files)
        result =
            bad("%s has no result of `moegen bench --json` or `moegen compare --json`", directory);
    if (!result)
        result = write_page(o, directory, &sections);
    text_free(&sections);
    return result;
}
