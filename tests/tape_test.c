/* SPDX-License-Identifier: Apache-2.0 */
/* tape_test.c - the machine code that the JIT makes of a program (gen/tape.h) is, byte for byte,
 * that of the text for readers (gen/lua/vector/assemble.lua): all tiles of every STEPth case of
 * tests/kernels, on vector targets and in dtypes in turn.
 *
 *     tape_test DIRECTORY STEP */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/host.h"

enum { MAX_TILE = 1 << 16 };

static int tiles, failures, seen, step;
static char where[4400];

static void complain(const char *what, const char *detail)
{
    printf("FAIL %s: %s: %s\n", where, what, detail);
    failures++;
}

/* Bytes of the lines `".byte 0x62,0xf1\n" // ...` that follow the label, until a line begins with
 * ')'. */
static size_t listing(const char *at, unsigned char *out)
{
    static const char byte[] = "\".byte ";
    size_t n = 0;
    for (; at && *at != ')'; at = strchr(at, '\n'), at = at ? at + 1 : NULL) {
        const char *from = at + strspn(at, " ");
        if (strncmp(from, byte, strlen(byte)) != 0)
            continue;
        char *next = (char *)from + strlen(byte) - 1;
        do
            out[n++] = (unsigned char)strtoul(next + 1, &next, 16);
        while (*next == ',' && n < MAX_TILE);
    }
    return n;
}

/* Tiles of the JIT are lines `#define NAME ((TYPE)(moegen_tiles+PLACE))`, in the order of their
 * code: up to the next one there are zeros, fewer than a cache line and a byte. */
static void compare(const struct generated *jit, const char *file)
{
    static unsigned char bytes[MAX_TILE];
    static const char head[] = "#define ", tail[] = ")(moegen_tiles+";
    const char *rest = file; /* tiles have the same order in both */
    int found = 0;
    for (const char *at = strstr(jit->c.at, tail), *next; at; at = next, found++) {
        char label[200];
        const char *name = at;
        next = strstr(at + 1, tail);
        while (name > jit->c.at && name[-1] != '\n')
            name--;
        name += strlen(head);
        snprintf(label, sizeof label, "\"%.*s:\\n\"\n", (int)strcspn(name, " "), name);
        const char *lines = strstr(rest, label);
        if (!lines) {
            complain("no such tile in the text for readers", label);
            continue;
        }
        rest = lines;
        size_t from = strtoul(at + strlen(tail), NULL, 10);
        size_t stop = next ? strtoul(next + strlen(tail), NULL, 10) : jit->code.len;
        size_t n = listing(lines + strlen(label), bytes);
        if (from % 64 || stop < from + n || stop > from + n + 64 || stop > jit->code.len ||
            memcmp(jit->code.at + from, bytes, n) != 0)
            complain("other bytes", label);
        for (size_t i = from + n; i < stop; i++)
            if (jit->code.at[i])
                complain("something behind the tile", label);
    }
    if (!found)
        complain("no tile", "in the JIT's text");
    tiles += found;
}

/* dtype: NULL: the family has none */
static void build(const char *path, const struct text *spec, const char *name, const char *target,
                  const char *dtype)
{
    static const char *const features[] = {"avx",         "avx2",        "fma",        "f16c",
                                           "avx512f",     "avx512bw",    "avx512dq",   "avx512vl",
                                           "avx512_bf16", "avx512_vnni", "avx512_vbmi"};
    const struct host_set set[] = {{.key = "target", .value = target},
                                   {.key = "spelling", .value = "bytes"},
                                   {.key = "dtype", .value = dtype}};
    struct host_request r = {.file = path,
                             .text = spec->at,
                             .len = spec->len,
                             .kernel = name,
                             .set = set,
                             .set_count = dtype ? 3 : 2,
                             .feature = features,
                             .feature_count = sizeof features / sizeof *features};
    struct generated jit = {0}, file = {0};
    moegen_error *err = NULL;
    snprintf(where, sizeof where, "%s:%s on %s, %s", path, name, target, dtype ? dtype : "");
    r.purpose = "jit";
    moegen_status status = host_build(&r, &jit, &err);
    r.purpose = "file";
    if (status || host_build(&r, &file, &err))
        complain("cannot be made", moegen_error_text(err));
    else
        compare(&jit, file.c.at);
    moegen_error_release(err);
    generated_free(&jit);
    generated_free(&file);
}

static void cases(const char *path, const struct listing *dtypes)
{
    static const char *const targets[] = {"avx2", "avx512", "avx512_bf16"};
    static char bytes[1 << 16];
    struct listing names = {0};
    FILE *f = fopen(path, "rb");
    struct text spec = {.at = bytes, .len = f ? fread(bytes, 1, sizeof bytes - 1, f) : 0};
    struct host_request r = {.file = path, .text = spec.at, .len = spec.len};
    if (f)
        fclose(f);
    snprintf(where, sizeof where, "%s", path);
    bytes[spec.len] = '\0';
    bool typed = strstr(bytes, "\ndtype:") != NULL;
    if (host_kernels(&r, &names, NULL) || !names.count)
        complain("no cases", path);
    for (size_t i = 0; i < names.count; i++)
        if (++seen % step == 0)
            build(path, &spec, names.item[i].name, targets[seen / step % 3],
                  typed ? dtypes->item[(size_t)(seen / step / 3) % dtypes->count].name : NULL);
    listing_free(&names);
}

int main(int argc, char **argv)
{
    struct listing dtypes = {0};
    step = argc > 2 ? atoi(argv[2]) : 0;
    if (host_list("dtypes", &dtypes, NULL) || !dtypes.count)
        return 2;
    DIR *d = step > 0 ? opendir(argv[1]) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[4096];
        size_t n = strlen(e->d_name);
        if (n < 5 || strcmp(e->d_name + n - 5, ".yaml") != 0)
            continue;
        snprintf(path, sizeof path, "%.3000s/%.255s", argv[1], e->d_name);
        cases(path, &dtypes);
    }
    if (d)
        closedir(d);
    listing_free(&dtypes);
    printf("%d tiles, %d failures\n", tiles, failures);
    return failures || tiles < 100;
}
