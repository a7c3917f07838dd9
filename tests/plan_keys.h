/* SPDX-License-Identifier: Apache-2.0 */
/* plan_keys.h - the families of tests/kernels with their cases, and the keys of their plans as
 * `moegen list keys` says them; included once by each program, after cases.h. */
#include <inttypes.h>

enum { KEYS = 64, CASES = 128, WORDS = 8 };

struct key {
    char name[48]; /* plan.mc */
    int64_t least, most;
    char word[WORDS][24]; /* its values, if they are no numbers */
    int words, ran;       /* ran: values that no kernel refused */
};

struct family {
    char name[32], path[600];
    char cases[CASES][100];
    int case_count, keys;
    struct key key[KEYS];
};

/* "an integer in 1..64 [-] ..." or "one of a, b [-] ..." */
static inline bool read_type(struct key *k, const char *text)
{
    char list[160], *at = list;
    if (sscanf(text, "an integer in %" SCNd64 "..%" SCNd64, &k->least, &k->most) == 2)
        return true;
    if (sscanf(text, "one of %159[^[]", list) != 1)
        return false;
    for (char *word; k->words < WORDS && (word = strtok_r(at, ", ", &at));)
        snprintf(k->word[k->words++], sizeof k->word[0], "%s", word);
    return k->words > 0;
}

static inline void read_keys(struct family *f, const struct listing *all)
{
    size_t len = strlen(f->name);
    for (size_t i = 0; i < all->count; i++) {
        const char *name = all->item[i].name, *text = all->item[i].text;
        struct key *k = &f->key[f->keys];
        if (strncmp(name, f->name, len) != 0 || strncmp(name + len, ": plan.", 7) != 0 ||
            strncmp(text, "a map", 5) == 0)
            continue;
        snprintf(where, sizeof where, "%s", name);
        snprintf(k->name, sizeof k->name, "%s", name + len + 2);
        if (f->keys == KEYS - 1 || !read_type(k, text))
            complain("its values are not known", text);
        else
            f->keys++;
    }
}

static struct {
    struct family *at;
    int count, room;
} families;

static inline void add_case(const char *path, const char *name, void *ctx)
{
    struct family *f = families.at + families.count - 1;
    (void)ctx;
    if (families.count == 0 || strcmp(f->path, path) != 0) {
        const char *stem = strrchr(path, '/') + 1;
        if (families.count == families.room) {
            complain("too many families", path);
            return;
        }
        f = &families.at[families.count++];
        snprintf(f->path, sizeof f->path, "%s", path);
        snprintf(f->name, sizeof f->name, "%.*s", (int)strcspn(stem, "."), stem);
    }
    if (f->case_count < CASES)
        snprintf(f->cases[f->case_count++], sizeof f->cases[0], "%s", name);
}

enum { VALUES = 16 };
struct setting {
    const struct key *key;
    char value[24];
};

/* few: the two extremes only. */
static inline int values_of(const struct key *k, struct setting s[VALUES], bool few)
{
    const int64_t numbers[] = {k->least, k->most, k->most + 1, (int64_t)1 << 40,
                               0,        1,       k->least + 1};
    int count = 0;
    for (int i = 0; i < k->words; i++)
        snprintf(s[count++].value, sizeof s[0].value, "%s", k->word[i]);
    for (size_t i = 0; i < (few ? 2 : sizeof numbers / sizeof *numbers); i++) {
        bool known = false;
        snprintf(s[count].value, sizeof s[0].value, "%" PRId64, numbers[i]);
        for (int j = 0; j < count; j++)
            known = known || strcmp(s[j].value, s[count].value) == 0;
        count += !known;
    }
    for (int i = 0; i < count; i++)
        s[i].key = k;
    return count;
}
