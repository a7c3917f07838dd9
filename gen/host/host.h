/* SPDX-License-Identifier: Apache-2.0 */
/* host.h - the generator in Lua as functions of C: a request in, texts or complaints out. */
#ifndef MOEGEN_HOST_HOST_H
#define MOEGEN_HOST_HOST_H

#include "base/base.h"

/* The generator. Every call runs in a Lua state as good as new (sandboxed: no files, no clock, no
 * randomness, bounded memory), so any thread may call at any time and equal requests give equal
 * bytes. Complaints about the spec are MOEGEN_BAD_SPEC (all of them, with places) or
 * MOEGEN_UNSUPPORTED; a failure of the generator itself is MOEGEN_INTERNAL with the Lua traceback
 * as hint. */
struct host_set {
    const char *key, *value; /* "shard.on" and YAML text */
    const char *label;       /* for messages; NULL: "--set key=value" */
};
struct host_prop {
    const char *name; /* measured property of this CPU, see property.c */
    double value;
};
struct host_tuned {
    const char *label, *text; /* a file of tuned plans, see gen/lua/tuned.lua */
    size_t len;
};
struct host_request {
    const char *file; /* label of the text in messages: a path, or "<spec>" */
    const char *text;
    size_t len;
    const char *kernel;         /* a name of `kernels:`; NULL or "": the only one */
    const struct host_set *set; /* later ones win */
    size_t set_count;
    const char *const *feature; /* names of cpu.c that this machine, or the machine aimed at, has */
    size_t feature_count;
    double (*known)(const void *of, const char *name); /* such a property, or -1; may be NULL */
    const void *known_of;
    const struct host_prop *prop; /* more of them */
    size_t prop_count;
    struct text *measure; /* gets the name of a property without which there is no plan, and then
                           * nothing else is given: ask again with it in `prop` (0: it cannot be
                           * measured). NULL: plan without the properties that are not given */
    const char *purpose;  /* "jit" or "file"; NULL: "file" */
    const char *command;  /* for the banner, "moegen gen specs/x.yaml:forward"; may be NULL */
    const struct host_tuned *tuned; /* earlier ones win */
    size_t tuned_count;
    bool tuned_given;  /* an override names the only one: what is wrong in it is a complaint */
    bool tunes;        /* tuned plans are for this purpose, unless the spec says no */
    const char *cpu;   /* kind of the CPU */
    int threads, cpus; /* of a call that asks for none: 0: as the spec says, or else so many */
};
struct listing {
    struct text text; /* ready to print */
    struct listing_item {
        char *name, *text;
    } * item;
    size_t count;
};
void listing_free(struct listing *l);
struct generated {
    struct text name, c, h, meta; /* kernel name; the two files; metadata lines */
    struct text code;             /* of the tiles, where the C lacks it, for jit_compile */
    struct listing notes;         /* remarks on the request that are no errors: item[i].text */
};
void generated_free(struct generated *g);
/* Outputs start as {0}, are filled on MOEGEN_OK only, and are freed by the caller. */
moegen_status host_build(const struct host_request *r, struct generated *out, moegen_error **err);
moegen_status host_explain(const struct host_request *r, struct text *out, moegen_error **err);
/* What may be tuned, see gen/lua/space.lua: item[i].name and text. */
moegen_status host_space(const struct host_request *r, struct listing *out, moegen_error **err);
/* The entries of the request's file of tuned plans, see gen/lua/tuned.lua: item[i].name and text.
 */
moegen_status host_entries(const struct host_request *r, struct listing *out, moegen_error **err);
/* Names of the kernels of a spec: item[i].name; one "" for a spec of one kernel. */
moegen_status host_kernels(const struct host_request *r, struct listing *out, moegen_error **err);
/* what: kernels, activations, dtypes, targets, keys. */
moegen_status host_list(const char *what, struct listing *out, moegen_error **err);
moegen_status host_schema(struct text *out,
                          moegen_error **err); /* JSON schema of the spec language */
/* Digest (64 hex digits) of the generator: every Lua module and template. False:
 * $MOEGEN_TEMPLATE_DIR cannot be read. That variable (development only) names a source tree to read
 * modules and templates from instead of the embedded copies; the digest is then that of its files
 * as they are now. */
bool host_digest(char hex[65]);

#endif
