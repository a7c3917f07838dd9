/* SPDX-License-Identifier: Apache-2.0 */
/* cli_vary.c - the variants of `--vary`: all combinations of some keys' values. */
#include <string.h>

#include "bench.h"

static int parse_axis(struct axis *a, const char *text)
{
    enum { MOST = sizeof a->value / sizeof *a->value };
    const char *at = strchr(text, '=');
    if (!at || at == text || (size_t)(at - text) >= sizeof a->key)
        return bad("--vary takes KEY=VALUE,VALUE,..., not '%s'", text);
    snprintf(a->key, sizeof a->key, "%.*s", (int)(at - text), text);
    int result = items_fit("--vary", ++at);
    while (!result && a->values < MOST && next_item(&at, a->value[a->values]))
        a->values++;
    if (!result && !a->values)
        result = bad("--vary %s: no values", text);
    if (!result && *at)
        result = bad("--vary %s: more than %d values", a->key, MOST);
    return result;
}

int parse_axes(struct axis axes[MAX_VARY], const struct words *vary)
{
    int result = EXIT_OK;
    if (vary->count > MAX_VARY)
        return bad("more than %d options --vary", MAX_VARY);
    for (int i = 0; i < vary->count && !result; i++) {
        result = parse_axis(&axes[i], vary->at[i]);
        for (int k = 0; k < i && !result; k++)
            if (strcmp(axes[k].key, axes[i].key) == 0) /* one of the two would not count */
                result = bad("--vary %s: twice; all values go into one", axes[i].key);
    }
    return result;
}

bool next_combination(struct axis *axes, int count)
{
    for (int i = count - 1; i >= 0; i--) {
        if (++axes[i].now < axes[i].values)
            return true;
        axes[i].now = 0;
    }
    return false;
}

/* A complaint about a key of the plan that the variant sets has the label "--set KEY=VALUE". */
static bool is_of_plan(const struct diag *d, const char *variant)
{
    static const char set[] = "--set ";
    const char *key =
        d->file && strncmp(d->file, set, sizeof set - 1) == 0 ? d->file + sizeof set - 1 : "";
    const char *at = strstr(variant, key);
    return strncmp(key, "plan.", 5) == 0 && at &&
           (at[strlen(key)] == ' ' || at[strlen(key)] == '\0');
}

bool variant_is_refused(const char *variant, const moegen_error *err)
{
    if (!variant) /* nothing varies */
        return false;
    for (size_t i = 0; err && i < err->count; i++)
        if (!is_of_plan(&err->diag[i], variant))
            return false;
    if (err && err->count)
        note("note: %s is left out: %s", variant, diag_message(err->diag));
    return err && err->count;
}
