/* SPDX-License-Identifier: Apache-2.0 */
/* tuned.c - files of tuned plans: where they are, and what is in them. gen/lua/tuned.lua reads
 * them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moegen_runtime.h"
#include "engine.h"
#include "spec/spec.h"

/* Those of the source tree's specs/tuned; made by the build, the last has no name. */
extern const struct moegen_shipped {
    const char *name, *text;
} moegen_shipped_plans[];

char *tuned_path(void)
{
    const char *path = secure_getenv("MOEGEN_TUNED");
    const char *base = secure_getenv("XDG_CONFIG_HOME"), *home = secure_getenv("HOME");
    struct text t = {0};
    if (path)
        text_fmt(&t, "%s", path);
    else if (base && base[0] == '/')
        text_fmt(&t, "%s/moegen/tuned/%s.yaml", base, moegen_rt_cpu_kind());
    else if (home && home[0] == '/')
        text_fmt(&t, "%s/.config/moegen/tuned/%s.yaml", home, moegen_rt_cpu_kind());
    if (!t.len)
        text_free(&t);
    return t.at;
}

int tuned_add(struct tuned *t, const char *path)
{
    struct tuned_file *f = &t->file[t->files];
    int why = file_read(path, SPEC_MOST, &f->text);
    f->label = why ? NULL : strdup(path);
    if (!f->label) {
        text_free(&f->text);
        return why ? why : ENOMEM;
    }
    t->host[t->files++] = (struct host_tuned){f->label, f->text.at, f->text.len};
    return 0;
}

bool tuned_open(struct tuned *t, const char *path, cache_log *log, void *user)
{
    bool named = path || secure_getenv("MOEGEN_TUNED");
    char line[512], *usual = path ? strdup(path) : tuned_path();
    int why = usual && *usual ? tuned_add(t, usual) : 0;
    if (why && log && (why != ENOENT || named)) {
        snprintf(line, sizeof line, "%s: tuned plans cannot be read: %s", usual, file_why(why));
        log(user, named ? 0 : 1, line);
    }
    free(usual);
    for (const struct moegen_shipped *s = moegen_shipped_plans; !named && s->name; s++) {
        if (strcmp(s->name, moegen_rt_cpu_kind()) != 0)
            continue;
        struct tuned_file *f = &t->file[t->files];
        text_fmt(&f->text, "%s", s->text);
        struct text label = {0};
        text_fmt(&label, "specs/tuned/%s.yaml", s->name);
        f->label = label.at;
        if (f->text.lost || !f->label)
            why = ENOMEM;
        else
            t->host[t->files++] = (struct host_tuned){f->label, f->text.at, f->text.len};
        break;
    }
    return why != ENOMEM;
}

void tuned_hash(const struct tuned *t, struct sha256 *s)
{
    for (int i = 0; i < t->files; i++) {
        sha256_add(s, t->host[i].label, strlen(t->host[i].label) + 1);
        sha256_add(s, &t->host[i].len, sizeof t->host[i].len);
        sha256_add(s, t->host[i].text, t->host[i].len);
    }
}

void tuned_close(struct tuned *t)
{
    for (int i = 0; i < MAX_TUNED; i++) {
        free(t->file[i].label);
        text_free(&t->file[i].text);
    }
}

const char *tuned_named(const moegen_spec *spec)
{
    static const char *const plain[] = {"true", "false", "null", "~", ""};
    const char *name = NULL;
    for (size_t i = 0; i < spec->override_count; i++)
        if (strcmp(spec->overrides[i].key, "plan.tuned") == 0)
            name = spec->overrides[i].value;
    for (size_t i = 0; name && i < sizeof plain / sizeof *plain; i++)
        if (strcmp(name, plain[i]) == 0)
            return NULL;
    return name;
}
