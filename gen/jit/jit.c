/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jit.c - C text to position-independent machine code, with libtcc.
 *
 * libtcc runs behind tcc_shim.c under one lock. It writes the code into plain memory, never into
 * executable pages; the bytes are then copied out, and code.c publishes them. libtcc recurses on
 * nested expressions and blocks: 1 KiB of stack holds one nested parenthesis or 4 nested blocks,
 * and no template nests more than a few.
 */
#include <fenv.h>
#include <libtcc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "jit.h"
#include "tcc_shim.h"

/* The names that libtcc.cmake gives to the API. */
#define API(name) __asm__("moegen_" #name) __attribute__((visibility("hidden")))
extern __typeof__(tcc_new) tcc_new API(tcc_new);
extern __typeof__(tcc_set_error_func) tcc_set_error_func API(tcc_set_error_func);
extern __typeof__(tcc_set_options) tcc_set_options API(tcc_set_options);
extern __typeof__(tcc_set_output_type) tcc_set_output_type API(tcc_set_output_type);
extern __typeof__(tcc_compile_string) tcc_compile_string API(tcc_compile_string);
extern __typeof__(tcc_relocate) tcc_relocate API(tcc_relocate);
extern __typeof__(tcc_get_symbol) tcc_get_symbol API(tcc_get_symbol);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool hooked, ready;

static void hold(void)
{
    pthread_mutex_lock(&lock);
}

static void let_go(void)
{
    pthread_mutex_unlock(&lock);
}

/* Before the lock is ever taken: a child that is forked while it is held could not compile. */
static void hook(void)
{
    hooked = pthread_atfork(hold, let_go, let_go) == 0;
}

/* At first use; memory for it is asked for again after a failure. */
static bool setup(void)
{
    if (pthread_once(&once, hook) || !hooked)
        return false;
    hold();
    ready = ready || tcc_shim_setup();
    bool done = ready;
    let_go();
    return done;
}

/* One compile. */
struct job {
    const char *text;
    const char *const *symbols;
    int n;
    size_t code_len; /* 0: none */
    unsigned char
        *at; /* result: relocated for this address; mapping, MAP_FAILED while there is none */
    size_t size;
    uint32_t entry[MAX_ENTRIES];
    uint32_t code;   /* where code goes */
    struct text log; /* libtcc's messages, one per line */
};

static void collect(void *log, const char *message)
{
    text_fmt(log, "%s\n", message);
}

/* Offset of so many bytes that have a name; what: they are. */
static bool find(TCCState *s, struct job *j, const char *what, const char *name, size_t len,
                 uint32_t *offset)
{
    size_t at = (size_t)((unsigned char *)tcc_get_symbol(s, name) - j->at);
    if (at >= j->size || len > j->size - at) {
        text_fmt(&j->log, "no %s is called '%s'\n", what, name);
        return false;
    }
    *offset = (uint32_t)at;
    return true;
}

static bool translate(struct job *j)
{
    TCCState *s = tcc_new();
    if (!s)
        return false;
    tcc_set_error_func(s, &j->log, collect);
    tcc_set_options(s,
                    "-nostdinc -nostdlib -Wall -Werror"); /* before set_output_type, or ignored */
    if (tcc_set_output_type(s, TCC_OUTPUT_MEMORY) || tcc_compile_string(s, j->text))
        return false;
    int size = tcc_relocate(s, NULL);
    if (size <= 0)
        return false;
    j->size = (size_t)size;
    j->at = mmap(NULL, j->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (j->at == MAP_FAILED) {
        tcc_shim_reason = "out of memory";
        return false;
    }
    if (tcc_relocate(s, j->at))
        return false;
    for (int i = 0; i < j->n; i++)
        if (!find(s, j, "function", j->symbols[i], 1, &j->entry[i]))
            return false;
    return !j->code_len || find(s, j, "room for tiles", "moegen_tiles_here", j->code_len, &j->code);
}

/* The shim leaves libtcc by jumping here. */
static bool translate_or_escape(struct job *j)
{
    if (sigsetjmp(tcc_shim_escape, 0))
        return false;
    return translate(j);
}

/* Returns NULL, or why it failed, where the log does not say it. */
static const char *run(struct job *j, bool *ok)
{
    fenv_t mode;
    hold();
    fegetenv(&mode);
    fesetenv(FE_DFL_ENV); /* libtcc folds constants */
    *ok = translate_or_escape(j);
    fesetenv(&mode);
    const char *reason = tcc_shim_reason;
    tcc_shim_reset();
    let_go();
    return reason;
}

static void job_free(struct job *j)
{
    if (j->at != MAP_FAILED)
        munmap(j->at, j->size);
    text_free(&j->log);
}

/* "FILE:LINE: error: MESSAGE" or "tcc: error: MESSAGE"; FILE is "<string>" except after a #line of
 * the text. */
static void complain(const struct job *j, char *line, moegen_error **err)
{
    static const char kind[] = " error: ";
    char *colon = strstr(line, ":");
    char *message = strstr(line, kind);
    if (strncmp(line, "In file included", 16) == 0) /* the complaint follows */
        return;
    if (!colon || !message) {
        error_add(err, MOEGEN_INTERNAL, NULL, 0, 0, 0, line, NULL, NULL);
        return;
    }
    message += sizeof kind - 1;
    *colon = '\0';
    int number = (int)strtol(colon + 1, NULL, 10);
    bool ours = strcmp(line, "<string>") == 0;
    char *source = ours && number > 0 ? line_of(j->text, strlen(j->text), number) : NULL;
    error_add(err, MOEGEN_INTERNAL,
              number <= 0 ? NULL
              : ours      ? "<generated>"
                          : line,
              number, number > 0, 1, message, NULL, source);
    free(source);
}

static moegen_status report(const struct job *j, const char *reason, moegen_error **err)
{
    if (j->log.lost || (reason && strcmp(reason, "out of memory") == 0))
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory while compiling the kernel");
    if (reason)
        return error_set(err, MOEGEN_INTERNAL, "libtcc gave up on the generated C: %s", reason);
    if (!j->log.at)
        return error_set(err, MOEGEN_INTERNAL, "libtcc refused the generated C without a reason");
    char *rest = NULL;
    for (char *line = strtok_r(j->log.at, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        complain(j, line, err);
    return MOEGEN_INTERNAL;
}

/* Could some eight bytes be an address inside the code itself? Such a one has the same sixth byte.
 */
static bool address_inside(const struct job *j)
{
    enum { SIXTH = 5, SHIFT = 8 * SIXTH };
    uint64_t base = (uint64_t)(uintptr_t)j->at;
    const unsigned char *at = j->at, *stop = j->at + j->size;
    if (base >> SHIFT != (base + j->size) >> SHIFT)
        return true;
    while (stop - at >= 8) {
        uint64_t word;
        const unsigned char *sixth =
            memchr(at + SIXTH, (int)(base >> SHIFT & 255), (size_t)(stop - at) - 7);
        if (!sixth)
            return false;
        memcpy(&word, sixth - SIXTH, sizeof word);
        if (word - base <= j->size)
            return true;
        at = sixth - SIXTH + 1;
    }
    return false;
}

/* Compile again for another address: the same bytes? Offset of the first difference, or the size.
 * Narrower absolute addresses than eight bytes do not get here: they overflow, which libtcc
 * reports. */
static size_t moved(const struct job *j)
{
    struct job again = {.text = j->text, .symbols = j->symbols, .n = j->n, .at = MAP_FAILED};
    bool ok;
    run(&again, &ok);
    size_t i = 0;
    if (ok && again.size == j->size)
        while (i < j->size && again.at[i] == j->at[i])
            i++;
    job_free(&again);
    return i;
}

#ifdef NDEBUG
enum { ALWAYS_COMPARE = 0 };
#else
enum { ALWAYS_COMPARE = 1 };
#endif

moegen_status jit_compile(const char *text, const struct text *code, const char *const *symbols,
                          int n, struct blob *out, moegen_error **err)
{
    if (n < 1 || n > MAX_ENTRIES)
        return error_set(err, MOEGEN_INTERNAL, "a kernel has 1 to %d entries, not %d", MAX_ENTRIES,
                         n);
    if (!setup())
        return error_set(err, MOEGEN_NO_MEMORY, "out of memory while starting libtcc");
    struct job j = {.text = text,
                    .symbols = symbols,
                    .n = n,
                    .code_len = code ? code->len : 0,
                    .at = MAP_FAILED};
    moegen_status status = stack_check(err);
    if (status)
        return status;
    bool ok;
    const char *reason = run(&j, &ok);
    if (!ok) {
        status = report(&j, reason, err);
        goto out;
    }
    if (ALWAYS_COMPARE || address_inside(&j)) {
        size_t at = moved(&j);
        if (at < j.size) {
            status = error_set(
                err, MOEGEN_INTERNAL,
                "the generated C holds the address of one of its own objects (byte %zu of "
                "%zu): each must be static or hidden, and no initialiser may be one",
                at, j.size);
            goto out;
        }
    }
    unsigned char *copy = malloc(j.size);
    if (!copy) {
        status = error_set(err, MOEGEN_NO_MEMORY, "out of memory for %zu bytes of code", j.size);
        goto out;
    }
    *out = (struct blob){.at = memcpy(copy, j.at, j.size), .len = j.size};
    memcpy(out->entry, j.entry, sizeof j.entry);
    if (j.code_len)
        memcpy(out->at + j.code, code->at, j.code_len);
out:
    job_free(&j);
    return status;
}

const char *jit_identity(void)
{
    return MOEGEN_TCC_ID
        " 1"; /* raise the number when this file or the shim changes the code it gives */
}
