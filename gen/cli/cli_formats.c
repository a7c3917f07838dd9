/* SPDX-License-Identifier: Apache-2.0 */
/* cli_formats.c - `moegen list formats`: what the table of formats says. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "format.h"

/* "a", "a or b", "a, b or c": what stands before item i of n. */
static const char *comma(int i, int n)
{
    return i == 0 ? "" : i == n - 1 ? " or " : ", ";
}

/* Bits of an element with its share of scales; of scales that are few in a large matrix, without.
 */
static void say_bits(struct text *t, const struct rt_format *f)
{
    int n = 0;
    while (n < 3 && f->groups[n])
        n++;
    for (int i = 0; i < n; i++) {
        int64_t group = f->groups[i];
        double second = f->second ? 32 / (double)group : 0; /* one for any matrix: none of these */
        text_fmt(t, "%s%g", comma(i, n), rt_format_bits(f, f->shares[0], group, 1, group) - second);
    }
    if (!n)
        text_fmt(t, "%d", f->element->bits);
    text_fmt(t, " bits: ");
}

static void say_shares(struct text *t, const struct rt_format *f)
{
    int n = 0, groups = 0;
    while (f->shares[n] != RT_SHARES)
        n++;
    while (groups < 3 && f->groups[groups])
        groups++;
    text_fmt(t, "%s scale for ", f->scale->name);
    for (int i = 0; i < n && !groups; i++)
        text_fmt(t, "%s%s (%s)", comma(i, n), rt_sharings[f->shares[i]].says,
                 rt_sharings[f->shares[i]].name);
    for (int i = 0; i < groups; i++)
        text_fmt(t, "%s%d", comma(i, groups), f->groups[i]);
    text_fmt(t, "%s%s", groups ? " elements along the contraction" : "",
             f->second ? ", and an f32 for a matrix" : "");
}

bool formats_list(struct listing *out)
{
    const struct rt_format *f;
    int n = 0;
    while (rt_format_at(n))
        n++;
    *out = (struct listing){.item = calloc((size_t)n, sizeof *out->item)};
    bool ok = out->item != NULL;
    for (int i = 0; ok && (f = rt_format_at(i)); i++) {
        struct text t = {0};
        say_bits(&t, f);
        text_fmt(&t, "%s up to %g; ", f->element->name, f->element->largest);
        say_shares(&t, f);
        out->item[i] = (struct listing_item){strdup(f->name), t.lost ? NULL : strdup(t.at)};
        text_free(&t);
        out->count++;
        ok = out->item[i].name && out->item[i].text;
        if (ok)
            text_fmt(&out->text, "%-28s %s\n", f->name, out->item[i].text);
    }
    return ok && !out->text.lost;
}
