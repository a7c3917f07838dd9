/* SPDX-License-Identifier: Apache-2.0 */
/* private.h - what the files of gen/ share, grouped under the name of the file that defines it. */
#ifndef MOEGEN_PRIVATE_H
#define MOEGEN_PRIVATE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

#include "moegen.h"
#include "moegen_rt.h"

struct lua_State;

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

/* ---- spec.c, host.c ---- */

enum { SPEC_MOST = 256 * 1024 }; /* bytes of a spec */
/* Reads YAML and pushes one node tree on L's stack:
 *     node = {kind="map"|"list"|"scalar", line=, col=, len=}         1-based, code points
 *     scalar: value=text, plain=not quoted; list: items={node,...}; map: entries={{key=scalar,
 * value=node},...} Bounded in every direction, so hostile text costs milliseconds. After an error
 * nothing is pushed and err holds every complaint that could be found, with its place and line.
 * file is the label of the text in messages. */
moegen_status spec_push(struct lua_State *L, const char *file, const char *text, size_t len,
                        moegen_error **err);
/* A copy of the 1-based line of text, without its break: what goes into diag.source. NULL if there
 * is no such line, or it is empty or too long to quote. Caller frees. */
char *spec_line(const char *text, size_t len, int line);
/* Reports why yaml_parser_parse failed on text, the parser's whole input. */
struct yaml_parser_s;
moegen_status spec_syntax(const struct yaml_parser_s *parser, const char *file, const char *text,
                          size_t len, moegen_error **err);

/* stack.c: MOEGEN_NO_MEMORY when this thread has less stack left than making a kernel may take
 * (measured: 30 KiB, and 46 KiB from a source tree). */
enum { STACK_NEEDED = 96 << 10 };
moegen_status stack_check(moegen_error **err);

/* host.c: the generator. Every call runs in a Lua state of its own (sandboxed: no files, no clock,
 * no randomness, bounded memory), so any thread may call at any time and equal requests give equal
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
struct host_request {
    const char *file; /* label of the text in messages: a path, or "<spec>" */
    const char *text;
    size_t len;
    const char *kernel;         /* a name of `kernels:`; NULL or "": the only one */
    const struct host_set *set; /* later ones win */
    size_t set_count;
    const char *const *feature; /* names of cpu.c that this machine, or the machine aimed at, has */
    size_t feature_count;
    const struct host_prop *prop;
    size_t prop_count;
    struct text *measure; /* gets the name of a property without which there is no plan, and then
                           * nothing else is given: ask again with it in `prop` (0: it cannot be
                           * measured). NULL: plan without the properties that are not given */
    const char *purpose;  /* "jit" or "file"; NULL: "file" */
    const char *command;  /* for the banner, "moegen gen specs/x.yaml:forward"; may be NULL */
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
    struct listing notes;         /* remarks on the request that are no errors: item[i].text */
};
void generated_free(struct generated *g);
/* Outputs start as {0}, are filled on MOEGEN_OK only, and are freed by the caller. */
moegen_status host_build(const struct host_request *r, struct generated *out, moegen_error **err);
moegen_status host_explain(const struct host_request *r, struct text *out, moegen_error **err);
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

/* request.c: pushes the request as a table. After complaints about the spec or its overrides the
 * table lacks what was wrong. root: of a source tree, or NULL. */
moegen_status request_push(struct lua_State *L, const struct host_request *r, const char *root,
                           moegen_error **err);

/* arena.c: memory that is dropped all at once. Starts as {0}; blocks are aligned to 16 bytes; one
 * thread. */
enum { ARENA_CLASSES = 33 };
struct arena {
    struct arena_block *chunks, *large;
    void *freed[ARENA_CLASSES];
    char *at; /* rest of the newest chunk */
    size_t left, chunk_size;
};
/* size > 0; old NULL: a new block. NULL: out of memory, and the old block is as it was. */
void *arena_resize(struct arena *a, void *old, size_t old_size, size_t size);
void arena_give(struct arena *a, void *block, size_t size);
void arena_drop(struct arena *a);

/* sandbox.c: the Lua states of host.c. */
struct sandbox {
    struct arena arena;
    size_t used, soft; /* bytes; at `soft` garbage is collected */
    bool asked;        /* a collection was asked for: the next request decides */
    bool full;         /* the cap was hit */
    const char *root;  /* $MOEGEN_TEMPLATE_DIR or NULL */
};
struct lua_State *
sandbox_create(struct sandbox *s); /* a bare state, NULL: out of memory; *s must stay put */
void sandbox_setup(struct lua_State *L,
                   struct sandbox *s);   /* libraries and `require`; call protected */
void sandbox_destroy(struct sandbox *s); /* ends the state too */
/* source.c: modules, templates and fragments; root: of a source tree, NULL: those built in. */
bool source_digest(const char *root, char hex[65]); /* false: there is none */
void source_load(struct lua_State *L, const char *root,
                 const char *name);    /* pushes a module's chunk, or raises */
void source_open(struct lua_State *L); /* pushes module "source" */
int native_open(struct lua_State *L);  /* native.c: pushes module "native" */
int encode_open(struct lua_State *L);  /* encode_lua.c: pushes module "encode" */

/* embedded.c, made by embed.c at build time: sorted by name, and the digest of all of it. */
struct embedded {
    const char
        *name; /* "isa.avx512"; of a template "moe_forward.head": parts as in translate.lua */
    const unsigned char *at;
    size_t len;
};
extern const struct embedded embedded_modules[], embedded_templates[];
extern const size_t embedded_module_count, embedded_template_count;
extern const char embedded_digest[65];

/* ---- digest.c jit.c code.c cc.c cache.c cache_list.c registry.c ---- */

/* digest.c. SHA-256 names things on disk; the fast hash (about 8 bytes per cycle, any alignment,
 * same value on every machine) finds things in memory and detects damage, but resists no attacker.
 */
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

/* Position-independent machine code and its read-only data, owned. Starts as {0}. */
enum { MAX_ENTRIES = 4 };
struct blob {
    unsigned char *at; /* malloc */
    size_t len;
    uint32_t entry[MAX_ENTRIES]; /* offsets of the asked symbols, in the order asked */
};
void blob_free(struct blob *b);

/* Code that can be called; immutable. Starts as {0}. */
struct code {
    void *map; /* read+execute mapping, or NULL */
    size_t size;
    void *fn[MAX_ENTRIES]; /* the asked symbols, in the order asked */
    void *dl;              /* dlopen handle, or NULL */
};
/* code.c: publish a blob as a read+execute mapping; no page is ever writable and executable.
 * MOEGEN_UNSUPPORTED when the system refuses executable memory. The blob is not needed afterwards.
 */
moegen_status code_map(const struct blob *b, struct code *out, moegen_error **err);
/* With MOEGEN_PERF_MAP=1 in the environment: name the code for `perf report`. */
void code_note(const struct code *c, const char *name);
void code_unmap(struct code *c);
/* runtime/write.c: write(2) until all is written; no signal at the limit of a file's size. */
bool rt_write_all(int fd, const void *bytes, size_t len);

/* jit.c: compile C text with libtcc, in memory and hermetically: no includes, no libraries, no
 * files, no external symbols; static data must be const. symbols: names of the 1..MAX_ENTRIES
 * functions that are not static. A rejected text is MOEGEN_INTERNAL with tcc's sentence and the
 * line of the text, since we wrote that text. Any thread may call at any time; compiles take turns.
 */
moegen_status jit_compile(const char *text, const char *const *symbols, int n, struct blob *out,
                          moegen_error **err);
/* What the machine code depends on besides the text: digest of the libtcc it was built with. For
 * cache keys. */
const char *jit_identity(void);

/* cc.c: the same through an installed compiler. cc: program name or path; NULL: $MOEGEN_CC, else
 * gcc, cc, clang. flags: extra arguments, NULL-terminated, or NULL. "moegen_rt.h" is found by the
 * text. $MOEGEN_CC_LEVEL: another level than -O2. MOEGEN_UNSUPPORTED when no compiler can be
 * started; MOEGEN_INTERNAL with every error message when it rejects the text. */
moegen_status cc_compile(const char *text, const char *cc, const char *const *flags,
                         const char *const *symbols, int n, struct code *out, moegen_error **err);
/* Only ask whether the text compiles, e.g. with flags -Wall -Werror; every message becomes a
 * diagnostic. */
moegen_status cc_check(const char *text, const char *cc, const char *const *flags,
                       moegen_error **err);
extern const char moegen_rt_header_text[]; /* runtime/moegen_rt.h, embedded by the build */

/* cache.c: kernels on disk. Thread-safe; concurrent processes are fine. Never fails the program: a
 * problem is logged once and the cache then misses. A NULL cache is legal everywhere and always
 * misses. */
struct cache;
typedef void cache_log(void *user, int level, const char *message);
/* dir NULL: $MOEGEN_CACHE_DIR, else $XDG_CACHE_HOME/moegen, else ~/.cache/moegen; made if missing.
 * NULL when dir is "" (no message) or not usable (logged). */
struct cache *cache_open(const char *dir, cache_log *log, void *user);
void cache_close(struct cache *c);
const char *
cache_path(const struct cache *c); /* absolute directory; "" for NULL; owned by the cache */
/* True: *out and *meta (kernel metadata, NUL-terminated, caller frees with text_free) are as they
 * were put. */
bool cache_get(struct cache *c, const unsigned char key[32], struct blob *out, struct text *meta);
/* True when the entry is there now. meta: the metadata text. */
bool cache_put(struct cache *c, const unsigned char key[32], const struct blob *b, const char *meta,
               size_t meta_len);
struct cache_entry {
    char key[65];        /* hex */
    const char *meta;    /* metadata text; "" when the entry is damaged */
    const char *problem; /* NULL, or why the entry will not be used: one sentence */
    uint64_t bytes;      /* size of the file */
    int64_t used;        /* seconds since 1970: when it was last used, to the hour */
};
/* Read and verify every entry, sorted by key; visit returns false to stop. Returns the number of
 * entries visited; SIZE_MAX: memory was out before the end. */
size_t cache_each(struct cache *c, bool (*visit)(void *user, const struct cache_entry *e),
                  void *user);
/* Remove least recently used entries until at most max_bytes remain, and forgotten temporary files.
 * 0 removes all. Returns the number of entries removed; *bytes (may be NULL) gets the bytes freed.
 * SIZE_MAX: out of memory, and none was. */
size_t cache_prune(struct cache *c, uint64_t max_bytes, uint64_t *bytes);
bool cache_drop(struct cache *c,
                const char *key); /* remove one entry by its hex key; true if it was there */

/* registry.c: request bytes -> value, in memory: at most `limit` (0: 1024), and those in use.
 * Thread-safe. Values are reference-counted: the registry holds one reference of each, and what
 * find and add return comes with another one for the caller. */
struct registry_ops {
    void (*retain)(void *value);
    void (*release)(void *value);
    bool (*in_use)(const void *value); /* has it more references than the registry's? */
};
struct registry;
struct registry *registry_create(size_t limit,
                                 const struct registry_ops *ops);     /* NULL: out of memory */
void *registry_find(struct registry *r, const void *key, size_t len); /* NULL: not there */
/* Returns the value now stored under key: `value`, or the one that another thread stored first.
 * NULL: out of memory. Makes room as registry_trim does. */
void *registry_add(struct registry *r, const void *key, size_t len, void *value);
/* Forget what was not used for longest and is not in use, until at most `keep` are left. Returns
 * how many went. */
size_t registry_trim(struct registry *r, size_t keep);
void registry_destroy(struct registry *r);

/* ---- engine.c kernel.c call.c generate.c ---- */

/* sized.c: copies of structs that begin with their size_t struct_size, which may be that of any
 * version: sizes[0..count) in ascending order, the last one that of this library; SIZES_OF names
 * the last member of the first version. False: it is none of them, or more is set than this library
 * knows. sized_take fills *to, what the host's version lacks being zero; sized_give fills what the
 * host's *to has room for. */
bool sized_take(void *to, const void *from, const size_t *sizes, size_t count);
bool sized_give(void *to, const void *from, const size_t *sizes, size_t count);
#define SIZES_OF(type, last)                                                                       \
    {                                                                                              \
        offsetof(type, last) + sizeof((type){0}.last), sizeof(type)                                \
    }

/* diagnostic.c: escape sequences around parts of a rendered complaint; all "" for plain text. */
struct paint {
    const char *place, *error, *hint, *off;
};
const char *diag_message(const struct diag *d); /* never NULL */
void diag_render(struct text *t, const struct diag *d, const struct paint *p);
int dtype_find(const char *name); /* moegen_dtype, or -1 */

/* crew.c: idle thread teams, shared by an engine and its kernels. Thread-safe, reference-counted.
 */
struct crew;
struct crew *crew_create(int threads); /* 0: as kernels want it; NULL: out of memory */
struct crew *crew_retain(struct crew *c);
void crew_release(struct crew *c);
/* The team size of a call that asks for none: the crew's own, else what the kernel wants (0:
 * nothing), else the number of CPUs. */
int crew_threads(const struct crew *c, int wanted);
/* Run one entry on `size` ranks (the caller is rank 0); *result is the entry's. */
moegen_status crew_run(struct crew *c, int size, moegen_entry entry, const void *args,
                       int32_t *result);

/* shape.c: an extent of a tensor, times * dim + plus. */
enum { MAX_RANK = 8, MAX_DIMS = 8, MAX_ARGS = 48 };
struct extent {
    int64_t times, plus;
    int dim; /* index of the run-time size, or -1 for a constant */
};
/* Parse "2048", "T", "T+1", "128*N", "64*T+64"; false if it is none of these. */
bool extent_parse(const char *text, const char *const *dims, int dim_count, struct extent *out);
/* Value with the given sizes, or -1 when its size is unknown (< 0) or it overflows. */
int64_t extent_value(const struct extent *x, const int64_t *size);
/* The size that makes the extent equal `value`, or -1 if none does. */
int64_t extent_solve(const struct extent *x, int64_t value);
/* A run-time size that no input fixes: max(least, ceil((from * times - less) / per) + less), the
 * most blocks of `per` slots that from * times rows of less + 1 experts can need. */
struct derived {
    int dim, from; /* indices of run-time sizes */
    int64_t times, less, per, least;
};
/* Parse "N T 8 63 128 1": dim, from, times, less, per, least. */
bool derived_parse(const char *text, const char *const *dims, int dim_count, struct derived *out);
/* Its value, or -1 when size[from] is unknown (< 0) or it overflows. */
int64_t derived_value(const struct derived *x, const int64_t *size);
/* "[65, 2048]" from numbers. */
void shape_text(struct text *t, int rank, const int64_t *shape);

/* kernel.c: what all handles of one kernel share. Immutable after unit_create. */
struct moegen_kernel {
    struct unit *unit;
    const char *origin;
};
struct unit {
    _Atomic int refs;
    struct moegen_kernel made; /* handle for whoever caused it to be made or loaded */
    struct moegen_kernel kept; /* handle for later requests (origin "memory") */
    struct text meta;          /* split in place; the strings below point into it */
    bool memory_out;           /* why parsing it failed */
    moegen_kernel_facts facts;
    moegen_arg arg[MAX_ARGS];
    struct extent extent[MAX_ARGS][MAX_RANK];
    const char *extent_text[MAX_ARGS][MAX_RANK];
    const char *dim[MAX_DIMS];
    struct derived derived[MAX_DIMS];
    int derived_count;
    struct pair {
        const char *key, *value;
    } * param, *answer; /* spec keys (sorted); sentences of positive return codes */
    size_t param_count, answer_count;
    const char *requires; /* CPU features */
    const char *cflags;   /* what gcc and clang need to compile its C */
    const char *entry_name, *workspace_name;
    moegen_entry entry; /* NULL when this CPU cannot run it */
    moegen_workspace workspace;
    struct code code;
    struct crew *crew;
};
/* A unit with one reference from metadata text (copied); no code yet. */
moegen_status unit_create(const char *meta, size_t len, struct crew *crew, struct unit **out,
                          moegen_error **err);
/* MOEGEN_UNSUPPORTED: this CPU cannot run it. */
moegen_status unit_check_cpu(const struct unit *u, moegen_error **err);
/* Give it its code: fn[0] is the entry, fn[1] the workspace function. *code is emptied. */
void unit_attach(struct unit *u, struct code *code, const char *origin, double seconds);
void unit_retain(struct unit *u);
void unit_release(struct unit *u);
extern const struct registry_ops unit_ops; /* the same, for a registry of units */
const char *unit_answer(const struct unit *u,
                        int32_t code); /* sentence of a positive return code */

/* engine.c */
struct cache *engine_cache(const moegen_engine *engine); /* NULL: none */
void engine_features(const moegen_engine *engine, const char *const **names, size_t *count);
/* moegen_kernel_get; with cc not NULL the C text of purpose "file" goes through that compiler. */
moegen_status kernel_get(moegen_engine *e, const moegen_spec *spec, const char *cc,
                         moegen_kernel **kernel, moegen_error **err);

/* generate.c: a request to the generator that borrows from spec and engine. */
enum { MAX_PROPS = 4 };
struct ask {
    struct host_request request;
    struct host_set *set;
    struct host_prop prop[MAX_PROPS];
    struct text wanted[MAX_PROPS]; /* their names */
};
/* The host's spec in this library's form, or a complaint about it. text is never NULL. */
moegen_status spec_take(moegen_spec *own, const moegen_spec *given, moegen_error **err);
moegen_status ask_open(struct ask *a, const moegen_engine *engine, const moegen_spec *spec,
                       const char *purpose, moegen_error **err);
void ask_close(struct ask *a); /* legal after a failed ask_open */
/* host_build and host_explain, with the properties of this CPU that they want measured on the way.
 */
moegen_status ask_build(struct ask *a, moegen_engine *engine, struct generated *out,
                        moegen_error **err);
moegen_status ask_explain(struct ask *a, moegen_engine *engine, struct text *out,
                          moegen_error **err);

/* property.c: a measured property of this CPU, TARGET.OP; 0 when it cannot be measured here, -1
 * when memory is out. The first call takes some milliseconds. Thread-safe; a thread that makes a
 * kernel may call it. */
double property_of(moegen_engine *engine, const char *name);
/* What is kept on disk of it, in thousandths. */
bool property_load(struct cache *cache, const char *name, long *value);
void property_save(struct cache *cache, const char *name, long value);

#endif
