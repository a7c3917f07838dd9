/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_keys.c - cases of tests/kernels with keys set at random, to what their documentation says or
 * to anything else: C comes out, or complaints that are sentences; never a bug of the generator.
 *
 *     fuzz_keys DIRECTORY RUNS [SEED] */
#include "cases.h"

enum { MAX_CASES = 1024, MAX_KEYS = 1024, MAX_SETS = 3, LINE = 400 };

static struct spec {
    char path[600], name[100], family[100];
} cases[MAX_CASES];
static int case_count;

/* Lines of `moegen list keys`: "family: key   values [default]  what it is". */
static struct key {
    char family[64], name[64], line[LINE];
} keys[MAX_KEYS];
static int key_count;

static uint64_t state = 0x9E3779B97F4A7C15u;
static int made, refused;

static int chance(int below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int)((state >> 33) % (uint64_t)below);
}

static void add_case(const char *path, const char *name, void *ctx)
{
    const char *slash = strrchr(path, '/');
    (void)ctx;
    if (case_count == MAX_CASES)
        return;
    struct spec *c = &cases[case_count++];
    snprintf(c->path, sizeof c->path, "%s", path);
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->family, sizeof c->family, "%.*s", (int)strcspn(slash + 1, "."), slash + 1);
}

static bool read_keys(void)
{
    struct listing all = {0};
    moegen_error *err = NULL;
    if (host_list("keys", &all, &err)) {
        complain("no keys", moegen_error_text(err));
        moegen_error_release(err);
        return false;
    }
    for (const char *at = all.text.at; *at && key_count < MAX_KEYS;) {
        struct key *k = &keys[key_count];
        size_t len = strcspn(at, "\n");
        snprintf(k->line, sizeof k->line, "%.*s", (int)len, at);
        key_count += sscanf(k->line, "%63[a-z_]: %63s", k->family, k->name) == 2;
        at += len + (at[len] != '\0');
    }
    listing_free(&all);
    return key_count > 0;
}

/* A value: a word of the key's documentation, or one of these. */
static void value_of(const struct key *k, char out[64])
{
    static const char *const any[] = {
        "0",      "-1",   "1",     "2",    "3",       "7",         "8",   "16",
        "33",     "64",   "100",   "128",  "4096",    "65537",     "1e9", "99999999999999999999",
        "0.5",    "-0.0", "1e400", "nan",  ".inf",    "null",      "~",   "true",
        "false",  "auto", "[]",    "{}",   "[1, 2]",  "[null, 7]", "''",  "\"\"",
        "[-7, 7", "#",    "x y",   "a: b", "*a",      "\xff",      " ",   "00",
        "0x10",   "f32",  "bf16",  "none", "Forward", "f8_e4m3",   "%s",  "-9223372036854775808"};
    static const char *const counts[] = {"1", "2", "3", "5", "8", "16", "33", "64", "200"};
    const char *values = strstr(k->line, "one of "), *end = values ? strchr(values, '[') : NULL;
    int words = 0;
    if (chance(6) == 0) {
        snprintf(out, 64, "%s", any[chance(sizeof any / sizeof *any)]);
        return;
    }
    if (!end && strstr(k->line, "integer")) {
        snprintf(out, 64, "%s", counts[chance(sizeof counts / sizeof *counts)]);
        return;
    }
    for (const char *at = end ? values + 7 : k->line; *at && at != end; words++) {
        at += strspn(at, " ,");
        size_t len = strcspn(at, " ,[]");
        if (len > 0 && len < 64 && chance(words + 1) == 0)
            snprintf(out, 64, "%.*s", (int)len, at);
        at += len + (at[len] == ']' || (at[len] == '[' && at + len != end));
    }
}

static const struct key *key_for(const char *family)
{
    const struct key *k = &keys[chance(key_count)];
    for (int tries = 0; strcmp(k->family, family) != 0 && tries < 100 && chance(20); tries++)
        k = &keys[chance(key_count)];
    return k;
}

static void judge(moegen_status status, const moegen_source *source, moegen_error *err)
{
    if (status == MOEGEN_OK) {
        made++;
        if (!source || strlen(moegen_source_c(source)) < 100 || err)
            complain("no C", "");
        return;
    }
    refused++;
    if (status != MOEGEN_BAD_SPEC && status != MOEGEN_UNSUPPORTED)
        complain(moegen_status_name(status), err ? moegen_error_text(err) : "");
    else if (source || !err || err->count == 0)
        complain("refused without a complaint", "");
    for (size_t i = 0; err && i < err->count; i++)
        if (!err->diag[i].message || !*err->diag[i].message || strchr(err->diag[i].message, '\n'))
            complain("a complaint is not a sentence", err->diag[i].message);
}

static void try(moegen_engine *engine)
{
    static char text[65536];
    char value[MAX_SETS][64] = {{0}};
    const struct spec *c = &cases[chance(case_count)];
    moegen_override set[MAX_SETS + 1] = {{"target", "scalar"}};
    int sets = 1 + chance(MAX_SETS);
    int len = snprintf(where, sizeof where, "%s:%s", c->family, c->name);
    for (int i = 1; i <= sets; i++) {
        const struct key *k = key_for(c->family);
        value_of(k, value[i - 1]);
        set[i] = (moegen_override){k->name, value[i - 1]};
        len += snprintf(where + len, sizeof where - (size_t)len, " --set '%s=%s'", k->name,
                        value[i - 1]);
    }
    FILE *f = fopen(c->path, "rb");
    moegen_spec spec = {.struct_size = sizeof spec,
                        .text = text,
                        .len = f ? fread(text, 1, sizeof text, f) : 0,
                        .label = c->path,
                        .kernel = c->name,
                        .overrides = set,
                        .override_count = (size_t)sets + 1};
    if (f)
        fclose(f);
    moegen_source *source = NULL;
    moegen_error *err = NULL;
    moegen_status status = moegen_generate(engine, &spec, &source, &err);
    judge(status, source, err);
    moegen_source_release(source);
    moegen_error_release(err);
}

int main(int argc, char **argv)
{
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = ""};
    moegen_engine *engine = NULL;
    if (argc < 3 || each_case(argv[1], "", add_case, NULL) < 1 ||
        moegen_engine_create(&options, &engine, NULL)) {
        fprintf(stderr, "usage: fuzz_keys DIRECTORY RUNS [SEED]\n");
        return 2;
    }
    state ^= argc > 3 ? strtoull(argv[3], NULL, 10) * 0xD1342543DE82EF95u : 0;
    for (long runs = read_keys() ? atol(argv[2]) : 0; runs > 0; runs--)
        try(engine);
    moegen_engine_release(engine);
    printf("%d made, %d refused, %d complaints\n", made, refused, failures);
    return failures != 0 || made == 0 || refused == 0;
}
