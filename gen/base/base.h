/* SPDX-License-Identifier: Apache-2.0 */
/* base.h - what every room stands on: growable text, complaints, digests, machine code as bytes,
 * and whether there is enough stack. */
#ifndef MOEGEN_BASE_BASE_H
#define MOEGEN_BASE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moegen.h"

/* ---- error.c: growable text, diagnostics ---- */

/* Growable bytes, always NUL-terminated once anything was added. Starts as {0}; text_free of an
 * empty one is legal. When an allocation fails all of it is dropped, and it stays empty and lost
 * until text_free: nobody takes a part for the whole. Who uses a text as more than decoration looks
 * at `lost` first. */
struct text {
    char *at;    /* NULL while empty */
    size_t len;  /* without the NUL */
    size_t room; /* bytes allocated */
    bool lost;   /* an allocation failed: at is NULL */
};
void text_add(struct text *t, const char *bytes, size_t len);
void text_fmt(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_vfmt(struct text *t, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
void text_free(struct text *t);
/* Drops what there is, and marks it lost: a part of it is. */
void text_lose(struct text *t);

/* One complaint. All strings are owned by the moegen_error that holds it. */
struct diag {
    char *file;    /* label of the text: a path, "<spec>" or "--set key=value" */
    int line, col; /* 1-based, code points; 0 when the complaint has no place */
    int len;       /* columns under the caret, at least 1 */
    char *message; /* one sentence, no newline, no final period; NULL: see diag_message */
    char *hint;    /* "did you mean 'x'?" or NULL */
    char *source;  /* the source line, or NULL */
};
struct moegen_error {
    struct diag *diag;
    size_t count, room;
    bool lost;            /* there were more complaints */
    struct text rendered; /* what moegen_error_text returns */
};
/* Given where there is no memory for an error; never written, never released. Errors are for
 * people: whether something failed is told by a status, never by whether there is an error. */
extern moegen_error error_lost;
/* Append a complaint to *err, made on first use; strings are copied; hint and source may be NULL.
 * Returns status, so that callers can write `return error_add(...)`. A NULL err is legal (the
 * caller does not want to know). */
moegen_status error_add(moegen_error **err, moegen_status status, const char *file, int line,
                        int col, int len, const char *message, const char *hint,
                        const char *source);
/* The same without a place, from a format. */
moegen_status error_set(moegen_error **err, moegen_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same from a text, which is freed. */
moegen_status error_take(moegen_error **err, moegen_status status, struct text *message);

/* ---- line.c ---- */

/* Bytes of the line break at p (libyaml's idea of one: LF, CR, CRLF, NEL, LS, PS), 0 if there is
 * none. */
size_t line_break(const char *p, const char *end);
/* A copy of the 1-based line of text, without its break: what goes into diag.source. NULL if there
 * is no such line, or it is empty or too long to quote. Caller frees. */
char *line_of(const char *text, size_t len, int line);

/* ---- file.c ---- */

/* All of a regular file, or as much as is more than `most`; an errno, for file_why. */
int file_read(const char *path, size_t most, struct text *out);
const char *file_why(int why);
/* Through a temporary file beside it: the file is the old one or all of the new one. What writers
 * of it that were killed left there goes. A link stays, and what it leads to is written; so is what
 * is no regular file, in place. An errno. */
int file_write(const char *path, const char *bytes, size_t len);
/* Would file_write find a directory for it? What takes minutes asks first. An errno. */
int file_ready(const char *path);
/* Where temporary folders are made: $TMPDIR, if it is absolute and at most 400 bytes, or /tmp. */
const char *file_temporary(void);

/* ---- folder.c ---- */

enum { FOLDER_NAME = 512 };
/* A new folder among the temporary ones; those for the same purpose (a word) whose processes were
 * killed are removed. False: there is none, and folder "". */
bool folder_open(const char *what, char folder[FOLDER_NAME]);
void folder_close(const char *folder); /* removes it and what is in it */

/* ---- sized.c ---- */

/* Copies of structs that begin with their size_t struct_size, which may be that of any version:
 * sizes[0..count) in ascending order, the last one that of this library; SIZES_OF names the last
 * member of the first version. False: it is none of them, or more is set than this library knows.
 * sized_take fills *to, what the host's version lacks being zero; sized_give fills what the host's
 * *to has room for. */
bool sized_take(void *to, const void *from, const size_t *sizes, size_t count);
bool sized_give(void *to, const void *from, const size_t *sizes, size_t count);
#define SIZES_OF(type, last)                                                                       \
    {                                                                                              \
        offsetof(type, last) + sizeof((type){0}.last), sizeof(type)                                \
    }

/* ---- stack.c ---- */

/* MOEGEN_NO_MEMORY when this thread has less stack left than making a kernel may take (measured: 30
 * KiB, and 46 KiB from a source tree). */
enum { STACK_NEEDED = 96 << 10 };
moegen_status stack_check(moegen_error **err);

/* ---- digest.c ---- */

/* SHA-256 names things on disk; the fast hash (about 8 bytes per cycle, any alignment, same value
 * on every machine) finds things in memory and detects damage, but resists no attacker. */
struct sha256 {
    uint32_t h[8];
    uint64_t len;
    unsigned char tail[64];
};
void sha256_start(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *bytes, size_t len);
void sha256_end(struct sha256 *s, unsigned char out[32]);
void digest_sha256(const void *bytes, size_t len, unsigned char out[32]);
uint64_t digest_fast(const void *bytes, size_t len);
void digest_hex(const unsigned char *bytes, size_t len, char *out); /* 2 * len + 1 chars */

/* ---- blob.c ---- */

/* Position-independent machine code and its read-only data, owned. Starts as {0}. */
enum { MAX_ENTRIES = 4 };
struct blob {
    unsigned char *at; /* malloc */
    size_t len;
    uint32_t entry[MAX_ENTRIES]; /* offsets of the asked symbols, in the order asked */
};
void blob_free(struct blob *b);

#endif
