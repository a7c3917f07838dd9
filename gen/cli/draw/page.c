/* SPDX-License-Identifier: Apache-2.0 */
/* page.c - marks on a page, and the page as SVG. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

/* Classes, light and dark. */
static const char sheet[] =
    "<style>"
    ".paper{fill:#ffffff}.ink{fill:#1f2328}.dim{fill:#59636e}.bold{font-weight:bold}"
    ""
    ".grid{stroke:#dde2e7}.axis{stroke:#1f2328}.whisker{stroke:#0f2233;stroke-width:1.5px}"
    ".bar{fill:#5b93c7}.good{fill:#4fa36c}.poor{fill:#d0694f}.same{fill:#8f9aa6}.unsure{fill:#"
    "c9b458}"
    ".band{fill:#8f9aa6;fill-opacity:0.2}"
    ".peak{stroke:#6e7781;stroke-width:2px;stroke-dasharray:5 "
    "3}.roof{stroke:#c0392b;stroke-width:3px}"
    ".ceiling{stroke:#c0392b;stroke-width:1.5px}.leader{stroke:#8f9aa6}.dot{stroke:#ffffff}"
    ".c0{fill:#2f6fb0;stroke:#2f6fb0}.c1{fill:#c4601d;stroke:#c4601d}.c2{fill:#2d8659;stroke:#"
    "2d8659}"
    ".c3{fill:#8250b8;stroke:#8250b8}.c4{fill:#b03060;stroke:#b03060}.c5{fill:#7a6a12;stroke:#"
    "7a6a12}"
    ".line{stroke-width:2px}"
    "@media(prefers-color-scheme:dark){"
    ".paper{fill:#0d1117}.ink{fill:#e6edf3}.dim{fill:#9198a1}"
    ".grid{stroke:#2a313a}.axis{stroke:#e6edf3}.whisker{stroke:#e6edf3}"
    ".bar{fill:#3b78b4}.good{fill:#3a8a57}.poor{fill:#b5543b}.same{fill:#6b7682}.unsure{fill:#"
    "9a8836}"
    ".peak{stroke:#9198a1}.roof{stroke:#f0705f}.ceiling{stroke:#f0705f}.leader{stroke:#6b7682}"
    ".dot{stroke:#0d1117}"
    ".c0{fill:#6cb0f5;stroke:#6cb0f5}.c1{fill:#f0a060;stroke:#f0a060}.c2{fill:#63c995;stroke:#"
    "63c995}"
    ".c3{fill:#bf97ee;stroke:#bf97ee}.c4{fill:#f080a8;stroke:#f080a8}.c5{fill:#d3bf4f;stroke:#"
    "d3bf4f}"
    "}</style>\n";

double letters_wide(size_t letters, int size)
{
    return ceil((double)letters * size * 0.62);
}

static void put_markup(struct text *t, const char *s)
{
    for (; *s; s++)
        if (strchr("<>&\"", *s))
            text_fmt(t, "&#%d;", *s);
        else if ((unsigned char)*s >= ' ')
            text_add(t, s, 1);
}

static void reach(struct page *p, double x, double y)
{
    p->width = fmax(p->width, x + PAGE_GAP);
    p->bottom = fmax(p->bottom, y);
}

void put_label(struct page *p, double x, double y, enum anchor anchor, int size, const char *style,
               const char *text)
{
    static const char *const names[] = {"start", "middle", "end"};
    static const double parts[] = {1, 0.5, 0};
    text_fmt(&p->body,
             "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\" class=\"%s\">", x, y,
             names[anchor], size, style);
    put_markup(&p->body, text ? text : "");
    text_fmt(&p->body, "</text>\n");
    reach(p, x + parts[anchor] * letters_wide(text ? strlen(text) : 0, size), y + 4);
}

void put_line(struct page *p, double x1, double y1, double x2, double y2, const char *style)
{
    text_fmt(&p->body, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1,
             y1, x2, y2, style);
    reach(p, fmax(x1, x2), fmax(y1, y2));
}

void put_rect(struct page *p, double x, double y, double w, double h, const char *style)
{
    text_fmt(&p->body,
             "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\"/>\n", x, y, w,
             h, style);
    reach(p, x + w, y + h);
}

void put_dot(struct page *p, double x, double y, double radius, const char *style)
{
    text_fmt(&p->body, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" class=\"%s dot\"/>\n", x, y,
             radius, style);
    reach(p, x + radius, y + radius);
}

void put_whisker(struct page *p, double from, double to, double at, bool upright)
{
    enum { ARM = 5 };
    if (upright) {
        put_line(p, at, from, at, to, "whisker");
        put_line(p, at - ARM, from, at + ARM, from, "whisker");
        put_line(p, at - ARM, to, at + ARM, to, "whisker");
    } else {
        put_line(p, from, at, to, at, "whisker");
        put_line(p, from, at - ARM, from, at + ARM, "whisker");
        put_line(p, to, at - ARM, to, at + ARM, "whisker");
    }
}

void put_title(struct page *p, const char *title)
{
    p->bottom += 2 * PAGE_GAP;
    put_label(p, PAGE_GAP, p->bottom, ANCHOR_START, 15, "ink bold", title);
}

/* In lines of whole words. */
static void put_command(struct page *p, const char *command)
{
    enum { MOST = 120, HIGH = 16 };
    char line[512];
    for (double y = 66; *command; y += HIGH) {
        size_t len = strlen(command), cut = len;
        if (len > MOST)
            for (cut = MOST; cut && command[cut] != ' ';)
                cut--;
        cut = cut ? cut : strcspn(command, " ");
        cut = cut < sizeof line ? cut : sizeof line - 1;
        snprintf(line, sizeof line, "%.*s", (int)cut, command);
        put_label(p, PAGE_GAP, y, ANCHOR_START, SMALL_LETTER, "dim command", line);
        command += cut + (command[cut] == ' ');
    }
}

void page_begin(struct page *p, const char *title, const char *details, const char *command)
{
    *p = (struct page){0};
    put_label(p, PAGE_GAP, 28, ANCHOR_START, 18, "ink bold", title);
    put_label(p, PAGE_GAP, 48, ANCHOR_START, SMALL_LETTER, "dim machine", details);
    put_command(p, command ? command : "");
}

void page_finish(struct page *p, const char *title, struct text *out)
{
    double width = ceil(p->width), height = ceil(p->bottom + PAGE_GAP);
    text_fmt(out,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
             "viewBox=\"0 0 %.0f %.0f\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, "
             "monospace\" xml:space=\"preserve\">\n<title>",
             width, height, width, height);
    put_markup(out, title);
    text_fmt(out, "</title>\n%s", sheet);
    text_fmt(out, "<rect width=\"%.0f\" height=\"%.0f\" class=\"paper\"/>\n", width, height);
    text_fmt(out, "%s</svg>\n", p->body.at ? p->body.at : "");
    if (p->body.lost)
        text_lose(out);
    text_free(&p->body);
}
