/* SPDX-License-Identifier: Apache-2.0 */
/* sized.c - structs that begin with their size, so that later versions can add members at their
 * end: the rule at the head of moegen.h, in one place. */
#include <string.h>

#include "base.h"

enum { MOST = 4096 }; /* bytes; larger ones are not sizes */

static bool is_zero(const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (bytes[i])
            return false;
    return true;
}

/* The size of some version's struct, or of one to come? */
static bool is_size(size_t given, const size_t *sizes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (given == sizes[i])
            return true;
    return given > sizes[count - 1] && given <= MOST;
}

bool sized_take(void *to, const void *from, const size_t *sizes, size_t count)
{
    size_t given, known = sizes[count - 1];
    memcpy(&given, from, sizeof given);
    if (!is_size(given, sizes, count))
        return false;
    if (given > known && !is_zero((const char *)from + known, given - known))
        return false;
    memset(to, 0, known);
    memcpy(to, from, given < known ? given : known);
    memcpy(to, &known, sizeof known);
    return true;
}

bool sized_give(void *to, const void *from, const size_t *sizes, size_t count)
{
    size_t given, known = sizes[count - 1], head = sizeof given;
    memcpy(&given, to, sizeof given);
    if (!is_size(given, sizes, count))
        return false;
    memcpy((char *)to + head, (const char *)from + head, (given < known ? given : known) - head);
    if (given > known)
        memset((char *)to + known, 0, given - known);
    return true;
}
