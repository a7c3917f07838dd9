/* SPDX-License-Identifier: Apache-2.0 */
/* request.c - a spec and its overrides as the bytes that name a kernel in memory and on disk. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

static void put(struct request *r, const char *bytes, size_t len)
{
    if (r->at && r->len + sizeof len + len <= r->room) {
        memcpy(r->at + r->len, &len, sizeof len);
        if (len)
            memcpy(r->at + r->len + sizeof len, bytes, len);
    }
    r->len += sizeof len + len;
}

static void put_all(struct request *r, const moegen_spec *s, const char *cc)
{
    r->len = 0;
    put(r, s->text, s->len);
    put(r, s->kernel ? s->kernel : "", s->kernel ? strlen(s->kernel) : 0);
    put(r, cc ? cc : "", cc ? strlen(cc) : 0);
    for (size_t i = 0; i < s->override_count; i++) {
        put(r, s->overrides[i].key, strlen(s->overrides[i].key));
        put(r, s->overrides[i].value, strlen(s->overrides[i].value));
    }
}

bool request_make(struct request *r, const moegen_spec *s, const char *cc)
{
    r->at = r->small;
    r->room = sizeof r->small;
    put_all(r, s, cc);
    if (r->len <= r->room)
        return true;
    r->room = r->len;
    r->at = malloc(r->room);
    if (r->at)
        put_all(r, s, cc);
    return r->at != NULL;
}

void request_free(struct request *r)
{
    if (r->at != r->small)
        free(r->at);
}
