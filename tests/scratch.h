/* SPDX-License-Identifier: Apache-2.0 */
/* scratch.h - for tests that give generated C to other programs: a folder for files, commands that
 * run in it, and the spec of a case of tests/kernels. Included once by each, after cases.h. */
#include <unistd.h>

enum { LONGEST = 300 };
static const char *source; /* the source tree */
static char folder[] = "/tmp/moegen-names-XXXXXX";

/* What a shell command that runs in the folder prints; complains, with that, if it fails. It finds
 * the source tree, whose path may have any characters, as $SOURCE. */
static inline const char *run(const char *command)
{
    static char said[8 << 20];
    char all[1600];
    snprintf(all, sizeof all, "cd %s && { %s\n} 2>&1", folder, command);
    FILE *p = setenv("SOURCE", source, 1) ? NULL : popen(all, "r");
    size_t len = p ? fread(said, 1, sizeof said - 1, p) : 0;
    said[len] = '\0';
    if (!p || pclose(p)) {
        complain(command, "");
        printf("%.2000s\n", said);
    }
    return said;
}

static void write_text(const char *stem, const char *suffix, const char *text)
{
    char path[LONGEST + 100];
    snprintf(path, sizeof path, "%s/%s%s", folder, stem, suffix);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f))
        complain("cannot be written", path);
}

static char text[65536]; /* of the spec */

static moegen_spec spec_of(const char *path, const char *kernel, const moegen_override *set,
                           size_t sets)
{
    FILE *f = fopen(path, "rb");
    size_t len = f ? fread(text, 1, sizeof text, f) : 0;
    if (f)
        fclose(f);
    return (moegen_spec){.struct_size = sizeof(moegen_spec),
                         .text = text,
                         .len = len,
                         .label = path,
                         .kernel = kernel,
                         .overrides = set,
                         .override_count = sets};
}
