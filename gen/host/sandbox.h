/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.h - what the files of this room share: the Lua states, their memory and modules. */
#ifndef MOEGEN_HOST_SANDBOX_H
#define MOEGEN_HOST_SANDBOX_H

#include "host.h"

struct lua_State;

/* ---- request.c ---- */

/* Pushes the request as a table. After complaints about the spec or its overrides the table lacks
 * what was wrong. root: of a source tree, or NULL. */
moegen_status request_push(struct lua_State *L, const struct host_request *r, const char *root,
                           moegen_error **err);

/* ---- arena.c ---- */

/* Memory that is dropped all at once. Starts as {0}; blocks are aligned to 16 bytes; one thread. */
enum { ARENA_CLASSES = 33 };
struct arena {
    struct arena_block *chunks, *large;
    void *freed[ARENA_CLASSES];
    char *at; /* rest of the newest chunk */
    size_t left, chunk_size;
    char *base; /* first chunk, the caller's; or NULL */
    size_t base_size;
    bool whole; /* nothing beside it is to be had */
};
/* size > 0; old NULL: a new block. NULL: out of memory, and the old block is as it was. */
void *arena_resize(struct arena *a, void *old, size_t old_size, size_t size);
void arena_give(struct arena *a, void *block, size_t size);
void arena_drop(struct arena *a);

/* ---- sandbox.c ---- */

/* Built-in modules and templates that were asked for. */
struct wishes {
    unsigned char *asked; /* one for each of embedded_modules, then of embedded_templates */
    size_t count;
};

/* The Lua states of host.c. */
struct sandbox {
    struct arena arena;
    size_t used, soft;     /* bytes; at `soft` garbage is collected */
    bool asked;            /* a collection was asked for: the next request decides */
    bool full;             /* the cap was hit */
    const char *root;      /* $MOEGEN_TEMPLATE_DIR or NULL */
    struct wishes *wishes; /* gets what is loaded; or NULL */
};
/* A bare state; NULL: out of memory; *s must stay put. room: all its memory until arena.whole is
 * unset, and its first chunk then; NULL: malloc's. */
struct lua_State *sandbox_create(struct sandbox *s, char *room, size_t size);
void sandbox_setup(struct lua_State *L,
                   struct sandbox *s);   /* libraries and `require`; call protected */
void sandbox_destroy(struct sandbox *s); /* ends the state too */

/* ---- image.c ---- */

/* The state of the process for one build, with libraries, `require` and modules: as good as a new
 * one, and sooner there. NULL: another thread has it, there is a source tree, or memory is out. */
struct lua_State *image_open(struct sandbox **s);
void image_close(void); /* ends the build; only after an image_open that gave a state */

/* ---- tree.c: a source tree in place of what is built in, for development ---- */

enum { PATH_ROOM = 4096 };
/* Where modules and templates live. A folder of a place is a room: of modules, in templates of
 * fragments too. embed.cmake enumerates the same. */
struct source_place {
    const char *folder, *suffix;
};
extern const struct source_place tree_modules, tree_isas, tree_templates, tree_beside;
const char *tree_root(void); /* $MOEGEN_TEMPLATE_DIR; NULL: not set, or empty */
bool tree_is_one(const char *root);
bool tree_read(const char *path, struct text *out); /* a file of it */
/* Sorted stems of what in root/folder ends in suffix, none without such a folder; false if it
 * cannot be read. */
bool tree_list(const char *root, const char *folder, const char *suffix, char ***names,
               size_t *count);
void tree_free_names(char **name, size_t count);
/* root: NULL: of what is built in; false: there is none. */
bool tree_digest(const char *root, char hex[65]);

/* ---- modules for them: source.c native.c words.c tape.c ---- */

/* source.c: modules, templates and fragments; root: of a source tree, NULL: those built in. */
void source_load(struct lua_State *L, const char *root,
                 const char *name);    /* pushes a module's chunk, or raises */
void source_open(struct lua_State *L); /* pushes module "source" */
/* Loads those that are not loaded, and runs the modules; may raise. */
void source_load_wishes(struct lua_State *L, const struct wishes *w);
int native_open(struct lua_State *L);    /* native.c: pushes module "native" */
void native_format(struct lua_State *L); /* replaces string.format by a faster one */
int words_open(struct lua_State *L);     /* words.c: pushes module "words" */
int tape_open(struct lua_State *L);      /* tape.c: pushes module "tape" */

/* ---- embedded.c ---- */

/* Made by embed.c at build time: sorted by name, and the digest of all of it. */
struct embedded {
    /* "isa.avx512"; of a template "moe_forward.head": parts as in translate.lua */
    const char *name;
    const unsigned char *at;
    size_t len;
};
extern const struct embedded embedded_modules[], embedded_templates[];
extern const size_t embedded_module_count, embedded_template_count;
extern const char embedded_digest[65];

#endif
