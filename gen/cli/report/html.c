/* SPDX-License-Identifier: Apache-2.0 */
/* html.c - tables and the page, which needs no other file. */
#include <string.h>

#include "report.h"

static const char head[] = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                           "<meta name=\"viewport\" content=\"width=device-width\">\n";
static const char sheet[] =
    "<style>\n"
    ":root{color-scheme:light dark}\n"
    "body{font-family:\"DejaVu Sans Mono\",Menlo,Consolas,monospace;font-size:14px;margin:24px;"
    "background:#ffffff;color:#1f2328}\n"
    "section{overflow-x:auto}\n"
    "table{border-collapse:collapse;margin:12px 0}\n"
    "th,td{padding:3px 10px;border-bottom:1px solid #dde2e7;text-align:left;white-space:nowrap}\n"
    "td.number,th.number{text-align:right}\n"
    "@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}"
    "th,td{border-bottom-color:#2a313a}}\n"
    "</style>\n";

void html_text(struct text *t, const char *s)
{
    for (; s && *s; s++)
        if (strchr("<>&\"", *s))
            text_fmt(t, "&#%d;", *s);
        else if ((unsigned char)*s >= ' ')
            text_add(t, s, 1);
}

static bool numeric(const char *s)
{
    return s && *s && strchr("0123456789.+-", *s);
}

void html_table(struct text *t, struct table *table)
{
    text_fmt(t, "<table>\n");
    for (int i = 0; i < table->cells; i++) {
        int column = i % table->columns, below = i + table->columns;
        bool top = i < table->columns;
        const char *shown = top && below < table->cells ? table->cell[below].at : table->cell[i].at;
        const char *element = top ? "th" : "td";
        text_fmt(t, "%s<%s%s>", column ? "" : "<tr>", element,
                 numeric(shown) ? " class=\"number\"" : "");
        html_text(t, table->cell[i].at);
        text_fmt(t, "</%s>%s", element, column == table->columns - 1 ? "</tr>\n" : "");
    }
    text_fmt(t, "</table>\n");
    if (table->lost)
        text_lose(t);
    table_free(table);
}

void html_page(struct text *out, const char *title, const struct text *sections)
{
    text_fmt(out, "%s<title>", head);
    html_text(out, title);
    text_fmt(out, "</title>\n%s</head>\n<body>\n<h1>", sheet);
    html_text(out, title);
    text_fmt(out, "</h1>\n%s</body>\n</html>\n", sections->at ? sections->at : "");
    if (sections->lost)
        text_lose(out);
}
