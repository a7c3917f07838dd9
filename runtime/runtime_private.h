/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_private.h - what the files of runtime/ share, and the references use, grouped by the file
 * that defines it. */
#ifndef MOEGEN_RUNTIME_PRIVATE_H
#define MOEGEN_RUNTIME_PRIVATE_H

#include <stdbool.h>

#include "moegen_runtime.h"

/* ---- problem.c ---- */

/* Composes the sentence of a failure (err may be NULL) and returns status, so that callers can
 * write `return rt_fail(...)`. */
moegen_rt_status rt_fail(moegen_rt_error *err, moegen_rt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* bytes = product of extents times the size of dtype; false on a bad rank, extent or overflow. */
bool rt_tensor_bytes(moegen_rt_dtype dtype, int rank, const int64_t *shape, size_t *bytes);
/* "[2, 3]" for messages; returns text. */
struct rt_shape_text {
    char text[192];
};
const char *rt_shape(struct rt_shape_text *to, int rank, const int64_t *shape);
/* Maps a file, for as long as the problem lives. NULL: it cannot be. */
char *rt_problem_map(moegen_rt_problem *p, int fd, size_t bytes);
/* Moves every tensor of `from`, and its maps, into `to`, replacing those of the same name. All or
 * nothing. */
moegen_rt_status rt_problem_move(moegen_rt_problem *to, moegen_rt_problem *from,
                                 moegen_rt_error *err);
/* Sets all parameters of `from` in `to`. */
moegen_rt_status rt_problem_params(moegen_rt_problem *to, const moegen_rt_problem *from,
                                   moegen_rt_error *err);
/* The i-th parameter; false past the end. */
bool rt_problem_param(const moegen_rt_problem *p, size_t i, const char **key, const char **value);

/* ---- tensor.c ---- */

/* Finds a dtype by its safetensors name, -1 if there is none. */
int rt_dtype_of_safetensors(const char *name, size_t len);
/* All of their names, with a space before each. */
#define RT_DTYPE_FILE_NAME(NAME, value, text, file, ...) " " file
#define RT_DTYPE_FILE_NAMES                              MOEGEN_DTYPES(RT_DTYPE_FILE_NAME)

/* ---- safetensors_header.c ---- */

/* One tensor of a file's header; name is owned. */
struct rt_entry {
    char *name;
    moegen_rt_dtype dtype; /* MOEGEN_RT_DTYPES: one that files have and nothing here */
    char other[16]; /* what the file calls it if it is none of ours: codes of a byte are U8 */
    int rank;
    int64_t shape[8];
    uint64_t begin, end; /* bytes of the data section */
};
/* Reads the JSON text of a header (text[len] is readable) and checks every entry against the
 * others and against data_bytes, the length of the data section. `path` is for messages. Texts of
 * __metadata__ become parameters of `metadata`, unless NULL. The caller frees *entries with
 * rt_entries_free, also after a failure. */
moegen_rt_status rt_header_parse(const char *path, const char *text, size_t len,
                                 uint64_t data_bytes, struct rt_entry **entries, size_t *count,
                                 moegen_rt_problem *metadata, moegen_rt_error *err);
void rt_entries_free(struct rt_entry *entries, size_t count);

/* ---- json.c ---- */

enum { RT_MAX_NAME = 256 };
struct rt_scan {
    const char *path;
    const char *start, *at, *end; /* *end is readable and not part of the text */
    char string[RT_MAX_NAME + 1]; /* last string read */
    char name[RT_MAX_NAME + 1];   /* tensor being read, "" outside of one */
    moegen_rt_status status;      /* of the first failure */
    moegen_rt_error *err;
};
/* The first failure stays. Always false. */
bool rt_scan_bad(struct rt_scan *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* White space. */
void rt_scan_skip(struct rt_scan *s);
/* Skips white space; true and past it if the next character is c. */
bool rt_scan_take(struct rt_scan *s, char c);
/* The same where c must come; `where` ends the complaint: "after a key". */
bool rt_scan_expect(struct rt_scan *s, char c, const char *where);
/* A string into s->string; one too long for it is refused, or reads as "" if `any`. */
bool rt_scan_string(struct rt_scan *s, bool any, const char *where);
/* [n, n, ...] of at most `room` numbers. */
bool rt_scan_numbers(struct rt_scan *s, int room, int64_t *to, int *count, const char *what);
/* Bytes of the UTF-8 sequence at s (NUL-terminated text); 0 if it is not one. */
int rt_utf8(const char *s);
/* The same of a control character there (below U+0020, U+007F to U+009F); 0 if it is another. */
int rt_control(const char *s);
/* Control characters of a text become '?': it is a file's, and no terminal obeys it. */
void rt_disarm(char *text);

#endif
