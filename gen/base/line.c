/* SPDX-License-Identifier: Apache-2.0 */
/* line.c - the lines of a text, for complaints that quote them. */
#include <string.h>

#include "base.h"

enum { MAX_SOURCE = 400 }; /* longer lines are not quoted in messages */

size_t line_break(const char *p, const char *end)
{
    const unsigned char *u = (const unsigned char *)p;
    size_t left = (size_t)(end - p);
    if (left && u[0] == '\n')
        return 1;
    if (left && u[0] == '\r')
        return left > 1 && u[1] == '\n' ? 2 : 1;
    if (left > 1 && u[0] == 0xC2 && u[1] == 0x85)
        return 2;
    if (left > 2 && u[0] == 0xE2 && u[1] == 0x80 && (u[2] == 0xA8 || u[2] == 0xA9))
        return 3;
    return 0;
}

static const char *line_end(const char *p, const char *end)
{
    while (p < end && !line_break(p, end))
        p++;
    return p;
}

char *line_of(const char *text, size_t len, int line)
{
    const char *p = text, *end = text + len;
    for (int at = 1; at < line; at++) {
        p = line_end(p, end);
        if (p == end)
            return NULL;
        p += line_break(p, end);
    }
    const char *stop = line_end(p, end);
    return stop == p || stop - p > MAX_SOURCE ? NULL : strndup(p, (size_t)(stop - p));
}
