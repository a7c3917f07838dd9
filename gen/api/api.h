/* SPDX-License-Identifier: Apache-2.0 */
/* api.h - what this room gives to the program beside moegen.h: requests in parts, kernels through
 * other compilers, and how complaints are shown. */
#ifndef MOEGEN_API_API_H
#define MOEGEN_API_API_H

#include "base/base.h"
#include "host/host.h"

enum { MAX_RANK = 8, MAX_DIMS = 8, MAX_ARGS = 48 }; /* of kernels */

/* ---- diagnostic.c ---- */

/* Escape sequences around parts of a rendered complaint; all "" for plain text. */
struct paint {
    const char *place, *error, *hint, *off;
};
const char *diag_message(const struct diag *d); /* never NULL */
void diag_render(struct text *t, const struct diag *d, const struct paint *p);

/* ---- shape.c ---- */

/* "[65, 2048]" from numbers. */
void shape_text(struct text *t, int rank, const int64_t *shape);

/* ---- kernel.c ---- */

/* What moegen_kernel_info tells, but for the origin, which is a handle's own. */
const moegen_kernel_facts *kernel_facts(const moegen_kernel *kernel);
/* Does it take a list of experts' matrices for this argument? */
bool kernel_takes_list(const moegen_kernel *kernel, const char *name);
/* Do they run the same machine code? */
bool kernel_same_code(const moegen_kernel *a, const moegen_kernel *b);
/* Spec key i and its value; false past the last one. */
bool kernel_param_at(const moegen_kernel *kernel, size_t i, const char **key, const char **value);

/* ---- tuned.c ---- */

/* Files of tuned plans, read once. Starts as {0}. */
enum { MAX_TUNED = 2 };
struct tuned {
    struct tuned_file {
        char *label;
        struct text text;
    } file[MAX_TUNED];
    struct host_tuned host[MAX_TUNED]; /* the same, for requests */
    int files;
};
/* Where this CPU's own file is: $MOEGEN_TUNED, else moegen/tuned/KIND.yaml of $XDG_CONFIG_HOME or
 * ~/.config. NULL: nowhere, or out of memory. Caller frees. */
char *tuned_path(void);
/* Adds a file; an errno. */
int tuned_add(struct tuned *t, const char *path);
void tuned_close(struct tuned *t);

/* ---- property.c: kernels of family `probe`, which tell what this CPU can do ---- */

/* What one is made for; NULL: the default. */
struct probe_kind {
    const char *target, *op, *spelling, *state;
};
moegen_status probe_kernel(moegen_engine *e, const struct probe_kind *kind, moegen_kernel **kernel,
                           moegen_error **err);
/* A call that has not run; release it in any case. buffer: what is read; result: 16 numbers, both
 * borrowed. */
moegen_status probe_call(moegen_kernel *kernel, const void *buffer, size_t bytes, float *result,
                         int64_t iterations, int threads, moegen_call **call);

/* ---- engine.c ---- */

/* An engine like this one, with a disk cache of its own ("": none), without tuned plans, and mute:
 * for kernels that are tried and forgotten. */
moegen_status engine_scratch(const moegen_engine *like, const char *cache_dir,
                             moegen_engine **engine, moegen_error **err);

/* moegen_kernel_get; with cc not NULL the C text of purpose "file" goes through that compiler. */
moegen_status kernel_get(moegen_engine *e, const moegen_spec *spec, const char *cc,
                         moegen_kernel **kernel, moegen_error **err);

/* ---- generate.c ---- */

/* The host's spec in this library's form, or a complaint about it. text is never NULL. */
moegen_status spec_take(moegen_spec *own, const moegen_spec *given, moegen_error **err);
/* A request to the generator that borrows from spec and engine. */
enum { MAX_PROPS = 4 };
struct ask {
    struct host_request request;
    struct host_set *set;
    struct host_prop prop[MAX_PROPS];
    struct text wanted[MAX_PROPS]; /* their names */
    struct tuned tuned;            /* the file that an override names */
};
moegen_status ask_open(struct ask *a, const moegen_engine *engine, const moegen_spec *spec,
                       const char *purpose, moegen_error **err);
void ask_close(struct ask *a); /* legal after a failed ask_open */
/* host_build, host_explain and host_space, with the properties of this CPU that they want measured
 * on the way.
 */
moegen_status ask_build(struct ask *a, moegen_engine *engine, struct generated *out,
                        moegen_error **err);
moegen_status ask_explain(struct ask *a, moegen_engine *engine, struct text *out,
                          moegen_error **err);
moegen_status ask_space(struct ask *a, moegen_engine *engine, struct listing *out,
                        moegen_error **err);
/* The entries of a file of tuned plans, see gen/lua/tuned.lua: item[i].name is the line where it
 * begins, text what it is for. */
moegen_status ask_entries(struct ask *a, const struct host_tuned *file, struct listing *out,
                          moegen_error **err);

/* ---- pack.c ---- */

/* Where packed bytes go: into memory for all of them, or each part through `put`, from any thread
 * and in any order. */
struct pack_sink {
    char *memory;
    void (*put)(void *ctx, size_t at, const void *bytes, size_t len);
    void *ctx;
};
/* moegen_pack into a sink. */
moegen_status pack_in_parts(const moegen_kernel *kernel, const char *layout,
                            const moegen_tensor *from, const struct pack_sink *to, size_t bytes,
                            int threads, moegen_error **err);

#endif
