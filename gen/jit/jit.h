/* SPDX-License-Identifier: Apache-2.0 */
/* jit.h - C text to code that can be called: in memory with libtcc, or by an installed compiler. */
#ifndef MOEGEN_JIT_JIT_H
#define MOEGEN_JIT_JIT_H

#include "base/base.h"

/* ---- code.c ---- */

/* Code that can be called; immutable. Starts as {0}. */
struct code {
    void *map; /* read+execute mapping, or NULL */
    size_t size;
    void *fn[MAX_ENTRIES]; /* the asked symbols, in the order asked */
    void *dl;              /* dlopen handle, or NULL */
};
/* Publish a blob as a read+execute mapping; no page is ever writable and executable.
 * MOEGEN_UNSUPPORTED when the system refuses executable memory. The blob is not needed afterwards.
 */
moegen_status code_map(const struct blob *b, struct code *out, moegen_error **err);
/* With MOEGEN_PERF_MAP=1 in the environment: name the code for `perf report`. */
void code_note(const struct code *c, const char *name);
void code_unmap(struct code *c);

/* ---- jit.c ---- */

/* Compile C text with libtcc, in memory and hermetically: no includes, no libraries, no files, no
 * external symbols; static data must be const. code: goes where the text defines
 * `moegen_tiles_here`, which has room for it; or NULL. symbols: names of the 1..MAX_ENTRIES
 * functions that are not static. A rejected text is MOEGEN_INTERNAL with tcc's sentence and the
 * line of the text, since we wrote that text. Any thread may call at any time; compiles take turns.
 */
moegen_status jit_compile(const char *text, const struct text *code, const char *const *symbols,
                          int n, struct blob *out, moegen_error **err);
/* What the machine code depends on besides the text: digest of the libtcc it was built with. For
 * cache keys. */
const char *jit_identity(void);

/* ---- cc.c ---- */

/* The same through an installed compiler. cc: program name or path; NULL: $MOEGEN_CC, else gcc, cc,
 * clang. flags: extra arguments, NULL-terminated, or NULL. "moegen_rt.h" is found by the text.
 * $MOEGEN_CC_LEVEL: another level than -O2. MOEGEN_UNSUPPORTED when no compiler can be started;
 * MOEGEN_INTERNAL with every error message when it rejects the text; MOEGEN_BAD_ARGUMENT when it
 * makes nothing of it and finds no fault with it. */
moegen_status cc_compile(const char *text, const char *cc, const char *const *flags,
                         const char *const *symbols, int n, struct code *out, moegen_error **err);
/* Only ask whether the text compiles, e.g. with flags -Wall -Werror; every error becomes a
 * diagnostic. */
moegen_status cc_check(const char *text, const char *cc, const char *const *flags,
                       moegen_error **err);
/* Can this compiler be started? MOEGEN_UNSUPPORTED: it cannot. */
moegen_status cc_there(const char *cc, moegen_error **err);
extern const char moegen_rt_header_text[]; /* runtime/moegen_rt.h, embedded by the build */

#endif
