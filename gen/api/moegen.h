/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moegen.h - the public interface of libmoegen: from a spec's text to a kernel that can be called.
 *
 *     moegen_engine   settings, caches and thread teams; thread-safe; one per process is enough
 *     moegen_kernel   one compiled kernel; immutable; callable from any thread
 *     moegen_call     a kernel with its tensors bound; belongs to one thread at a time
 *     moegen_layer    forward and backward kernel of one spec; immutable
 *     moegen_error    every diagnostic of a failed call; owned by the caller
 *
 * Rules for all functions. A function that can fail returns a moegen_status, which alone tells
 * whether it did; when it is not MOEGEN_OK the outputs are untouched and, if `err` is not NULL,
 * *err holds a new error that the caller releases (*err must be NULL before the call, and stays
 * NULL on success). Where memory is out the error may hold fewer complaints or only say so, but
 * what is wrong is refused all the same. NULL is no crash: in place of an object it is
 * MOEGEN_BAD_ARGUMENT, or an empty text ("") or NULL from a function that returns a text or an
 * object. `const T *` parameters may be used by several threads at once, `T *` by one at a time,
 * except moegen_engine, which is always thread-safe. Releasing NULL is legal. The library never
 * prints, never exits, installs no signal handler and does not touch the locale; a limit on the
 * size of files (RLIMIT_FSIZE) costs it the disk cache, and raises no signal. It may be used after
 * fork() in the child unless another thread was inside the library at the time of the fork. Making
 * a kernel takes up to 96 KiB of stack, and is refused with MOEGEN_NO_MEMORY in a thread that has
 * less left; asking again for one that is in memory takes 16 KiB. The floating-point mode of the
 * calling thread (flushing of subnormal numbers, rounding, traps, flags) changes neither generated
 * code nor any result, and is the same after a call as before.
 *
 * Activations at the ends, forward: 0 or -0 at -infinity and the largest negative number, infinity
 * at infinity; their derivatives: 0 and 1 (squared_relu: 0 and infinity). NaN stays NaN.
 *
 * Structs with struct_size: set it to sizeof. Later versions add members at the end. A host built
 * against an older header passes a smaller size, and what it lacks counts as 0 (what the library
 * fills is cut there). A host built against a newer one passes a larger size (of at most 4096
 * bytes): what this library does not know must be 0 where the host fills the struct, and is set to
 * 0 where the library does. A size that no version had is MOEGEN_BAD_ARGUMENT.
 */
#ifndef MOEGEN_H
#define MOEGEN_H

#include <stddef.h>
#include <stdint.h>

#include "moegen_dtype.h"
#include "moegen_rt.h"

#if defined(__GNUC__)
#define MOEGEN_API __attribute__((visibility("default")))
#else
#define MOEGEN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MOEGEN_VERSION_MAJOR 0
#define MOEGEN_VERSION_MINOR 1
#define MOEGEN_VERSION_PATCH 0

typedef enum moegen_status {
    MOEGEN_OK = 0,
    MOEGEN_BAD_ARGUMENT = 1, /* the host's fault: NULL, unknown tensor name, wrong shape or dtype */
    MOEGEN_BAD_SPEC = 2,     /* the spec's fault; the error holds every complaint with its place */
    MOEGEN_UNSUPPORTED = 3,  /* this machine or spelling cannot */
    MOEGEN_BAD_DATA = 4,     /* a tensor's content is out of range (an expert index, a token id) */
    MOEGEN_NO_MEMORY = 5,
    MOEGEN_IO = 6,      /* a file could not be read or written */
    MOEGEN_INTERNAL = 7 /* our bug */
} moegen_status;

/* Element types of tensors: MOEGEN_F32, MOEGEN_BF16, ...: see moegen_dtype.h. 16-bit floats are
 * passed as uint16_t, 8-bit floats and packed fp4 as uint8_t. */
#define MOEGEN_DTYPE(NAME, value, ...) MOEGEN_##NAME = value,
typedef enum moegen_dtype { MOEGEN_DTYPES(MOEGEN_DTYPE) } moegen_dtype;
#undef MOEGEN_DTYPE

typedef enum moegen_role {
    MOEGEN_IN = 0,   /* only read */
    MOEGEN_OUT = 1,  /* written in full; what it held before does not matter */
    MOEGEN_INOUT = 2 /* read and written (accumulated gradients) */
} moegen_role;

typedef struct moegen_engine moegen_engine;
typedef struct moegen_kernel moegen_kernel;
typedef struct moegen_call moegen_call;
typedef struct moegen_source moegen_source;
typedef struct moegen_error moegen_error;
typedef struct moegen_layer moegen_layer;
typedef struct moegen_layer_state moegen_layer_state;

/* Version of the library in use: major * 10000 + minor * 100 + patch. */
MOEGEN_API uint32_t moegen_version(void);
/* "ok", "bad argument", ...; never NULL; static storage. */
MOEGEN_API const char *moegen_status_name(moegen_status status);
/* "f32", "bf16", ... as specs spell it; "?" for a value that is no dtype; static storage. */
MOEGEN_API const char *moegen_dtype_name(moegen_dtype dtype);
/* Bytes of one element; 0 for a value that is no dtype. */
MOEGEN_API size_t moegen_dtype_size(moegen_dtype dtype);

/* ---- errors ---------------------------------------------------------------------------------- */

/* One complaint. Strings belong to the error and live as long as it does. */
typedef struct moegen_diagnostic {
    const char *file;    /* label of the spec, "--set key" for an override, or NULL: no place */
    int line, col;       /* 1-based, columns in code points; 0 without a place */
    int len;             /* columns to underline, at least 1 */
    const char *message; /* one sentence without a final period */
    const char *hint;    /* a suggestion, or NULL */
    const char *source;  /* the source line without its newline, or NULL */
} moegen_diagnostic;

/* All complaints ready to print, one after the other: "file:line:col: error: sentence", source
 * line, caret, suggestion; each line ends in a newline. Rendered once and kept: owned by the error.
 * Never NULL. */
MOEGEN_API const char *moegen_error_text(moegen_error *err);
/* Number of complaints; 0 for NULL. */
MOEGEN_API size_t moegen_error_count(const moegen_error *err);
/* Fills *out with complaint i. MOEGEN_BAD_ARGUMENT if there is none. */
MOEGEN_API moegen_status moegen_error_diagnostic(const moegen_error *err, size_t i,
                                                 moegen_diagnostic *out);
MOEGEN_API void moegen_error_release(moegen_error *err);

/* ---- engine ---------------------------------------------------------------------------------- */

/* Zero-initialise, set struct_size, then whatever differs from the default. Strings are copied. */
typedef struct moegen_engine_options {
    size_t struct_size;    /* sizeof(moegen_engine_options) */
    const char *cache_dir; /* directory of the disk cache; NULL: $MOEGEN_CACHE_DIR, else
                            * $XDG_CACHE_HOME/moegen, else ~/.cache/moegen; "": no disk cache */
    int threads;           /* team size of calls that set none; 0: $MOEGEN_THREADS, else the spec's
                            * shard.cores, else the CPUs this process may use */
    /* Called with progress notes (a kernel was compiled, the cache is unusable): level 0 something
     * asked for is not done (a file of tuned plans cannot be read), 1 notable, 2 detail. May be
     * called from any thread that is inside the library; must not call back into it. */
    void (*log)(void *user, int level, const char *message);
    void *log_user;
    const char *features; /* for tests: CPU features, separated by spaces or commas, that plans may
                           * use; NULL: those of this CPU. A kernel that requires a feature this CPU
                           * lacks cannot be called. */
    const char
        *cc; /* compiler that builds spelling `intrinsics` at run time; NULL: $MOEGEN_CC, else gcc
              * or clang, whichever is found. libtcc compiles all other spellings. */
    size_t max_kernels; /* kernels kept in memory: beyond them the one not asked for the longest is
                         * forgotten (the disk cache still has it); those in use stay, and are not
                         * forgotten. 0: 1024; SIZE_MAX: all. A kernel takes its machine code in
                         * whole pages (a mapping of its own) and some 20 kB beside. */
    const char *tuned;  /* file of tuned plans, as `moegen tune` writes it, which kernels that are
                         * compiled at run time take their plans from where one fits; read once.
                         * NULL: $MOEGEN_TUNED, else moegen/tuned/KIND.yaml in $XDG_CONFIG_HOME or
                         * ~/.config, KIND being that of this CPU, and what this library has for
                         * it; "": none. What is wrong in it is logged and left out. */
} moegen_engine_options;

/* Makes an engine with one reference. options may be NULL. A cache directory that cannot be used is
 * not an error: the engine logs it and works without. MOEGEN_BAD_ARGUMENT: options->threads is not
 * in 0..1024, or $MOEGEN_THREADS, where it counts, no such number (nothing and 0: as if it were not
 * set). */
MOEGEN_API moegen_status moegen_engine_create(const moegen_engine_options *options,
                                              moegen_engine **engine, moegen_error **err);
MOEGEN_API void moegen_engine_retain(moegen_engine *engine);
/* Drops a reference. Kernels and calls got from the engine stay usable after its last reference is
 * gone. */
MOEGEN_API void moegen_engine_release(moegen_engine *engine);
/* Forgets kernels in memory, those not asked for the longest first, until at most `keep` are left:
 * 0 gives back all the memory that can be. Kernels in use (retained by the host, by a call or by a
 * layer) stay, remembered and counted, however many they are. Returns how many were forgotten; to
 * ask for one of those again loads or makes it anew. */
MOEGEN_API size_t moegen_engine_trim(moegen_engine *engine, size_t keep);
/* Directory of the disk cache in use, or "" when there is none (and for NULL). Owned by the engine.
 */
MOEGEN_API const char *moegen_engine_cache_dir(const moegen_engine *engine);

/* ---- kernels --------------------------------------------------------------------------------- */

/* A key of the spec and the YAML text of its value, e.g. {"plan.tile_rows", "6"}, {"target",
 * "avx512"}.
 */
typedef struct moegen_override {
    const char *key;
    const char *value;
} moegen_override;

/* What to generate. Zero-initialise and set struct_size. Nothing is kept after the call. */
typedef struct moegen_spec {
    size_t struct_size; /* sizeof(moegen_spec) */
    const char *text;   /* YAML, UTF-8; not NUL-terminated; at most 256 KiB; NULL: empty */
    size_t len;         /* bytes of text */
    const char *label;  /* what diagnostics call it; NULL: "<spec>" */
    const char *kernel; /* name of a kernel of a model file; NULL for a one-kernel spec */
    const moegen_override *overrides; /* applied in order after the spec */
    size_t override_count;
    const char *command; /* any text, which moegen_generate shows in the banner as the command that
                          * made the C; NULL: "moegen". moegen_kernel_get ignores it */
} moegen_spec;

/* From spec to callable code: memory, else disk cache, else generate and compile. Asking again for
 * the same text, kernel name and overrides gives the same kernel in about a microsecond. The kernel
 * comes with one reference for the caller. Fails with MOEGEN_BAD_SPEC (every complaint),
 * MOEGEN_UNSUPPORTED (the CPU lacks what the spec's target requires), MOEGEN_NO_MEMORY (also: too
 * little stack) or MOEGEN_INTERNAL. */
MOEGEN_API moegen_status moegen_kernel_get(moegen_engine *engine, const moegen_spec *spec,
                                           moegen_kernel **kernel, moegen_error **err);
MOEGEN_API void moegen_kernel_retain(moegen_kernel *kernel);
MOEGEN_API void moegen_kernel_release(moegen_kernel *kernel);

/* One tensor of a kernel. Tensors are dense and row-major. */
typedef struct moegen_arg {
    const char *name;
    moegen_dtype dtype;
    moegen_role role;
    int optional; /* may stay unbound: the kernel then gets NULL */
    int rank;     /* 0: a scalar */
    const char *const
        *extent; /* rank formulas: "2048", "T", "T+1", "128*N"; at most one run-time size each */
    const char *doc; /* what it is, in one line */
} moegen_arg;

/* Facts of a kernel. The caller sets struct_size; everything pointed to belongs to the kernel. */
typedef struct moegen_kernel_facts {
    size_t struct_size; /* sizeof(moegen_kernel_facts) */
    const char *name;
    const char *family;
    const char *target;   /* instruction set: scalar, avx2, avx512, ... */
    const char *spelling; /* bytes, intrinsics or scalar */
    const char *dtype;    /* io dtype */
    const char *origin;   /* of this handle: memory, disk, jit (libtcc) or cc (gcc, clang) */
    double jit_seconds;   /* spec text to callable code when it was made or loaded */
    size_t code_bytes;    /* machine code; 0 when the system's loader holds it (origin cc) */
    int arg_count;
    const moegen_arg *args; /* in the order of the argument structure */
    int dim_count;
    const char *const
        *dims;             /* names of the run-time sizes, in the order of the argument structure */
    int64_t flops_per_row; /* real work of one routed row (a token-expert pair); 0: not counted */
    int64_t weight_bytes_per_expert; /* weight bytes that one expert's product reads */
    int threads;                     /* team size of a call that sets none */
    int64_t flops_per_token;         /* work beside that of the rows */
    int64_t weight_bytes;            /* weight bytes beside those of the experts */
} moegen_kernel_facts;
/* Fills *facts, whose struct_size the caller has set. MOEGEN_BAD_ARGUMENT: NULL, or a struct_size
 * that no version had. */
MOEGEN_API moegen_status moegen_kernel_info(const moegen_kernel *kernel,
                                            moegen_kernel_facts *facts);
/* Value of a checked spec key with defaults filled in, flattened: "affinity.scale" gives "post".
 * NULL if the kernel has no such key. Owned by the kernel. */
MOEGEN_API const char *moegen_kernel_param(const moegen_kernel *kernel, const char *key);
/* The code itself, for a host that fills the argument structure of moegen_rt.h and brings its own
 * threads. Nothing is validated on this path. Valid while the kernel is retained.
 * MOEGEN_UNSUPPORTED if this CPU cannot run it. */
MOEGEN_API moegen_status moegen_kernel_entry(const moegen_kernel *kernel, moegen_entry *entry,
                                             moegen_workspace *workspace, moegen_error **err);

/* ---- calls ----------------------------------------------------------------------------------- */

/* A call of `kernel` with nothing bound. Keeps the kernel alive. */
MOEGEN_API moegen_status moegen_call_create(const moegen_kernel *kernel, moegen_call **call,
                                            moegen_error **err);
MOEGEN_API void moegen_call_release(moegen_call *call);
/* Binds tensor `name`: dense row-major data of the given dtype and shape, aligned to its element
 * size, which must stay valid and in place for every later run. dtype and rank are checked here
 * (trailing extents of 1 may be added or left out), sizes at the next run. data may be NULL for a
 * tensor without elements: one of whose extents is 0, as in {0, 2048} for no tokens. In any other
 * shape NULL unbinds, whatever dtype and shape are; rank 0 and shape NULL always do. Binding again
 * replaces; what is refused leaves what was bound. An output must not overlap any other tensor. */
MOEGEN_API moegen_status moegen_call_bind(moegen_call *call, const char *name, void *data,
                                          moegen_dtype dtype, int rank, const int64_t *shape,
                                          moegen_error **err);
/* The same for a tensor with role MOEGEN_IN, which is never written. */
MOEGEN_API moegen_status moegen_call_bind_const(moegen_call *call, const char *name,
                                                const void *data, moegen_dtype dtype, int rank,
                                                const int64_t *shape, moegen_error **err);
/* Binds tensor `name` of a kernel whose spec says `weights.experts: separate`: matrices[e] is that
 * of expert e, dense row-major data of this dtype and shape (the tensor's without its first
 * extent), aligned to its element size, only read, which must stay valid and in place for every
 * later run. Nothing is copied but the `count` addresses, one for each expert; none may be NULL,
 * and several may be the same. matrices NULL unbinds. moegen_call_bind, too, takes such a tensor,
 * all matrices behind each other; its gradient is one tensor in any case. After a failure
 * (MOEGEN_BAD_ARGUMENT also for another count and for a tensor that the kernel takes as one;
 * MOEGEN_NO_MEMORY) what was bound before stays. */
MOEGEN_API moegen_status moegen_call_bind_experts(moegen_call *call, const char *name,
                                                  const void *const *matrices, int64_t count,
                                                  moegen_dtype dtype, int rank,
                                                  const int64_t *shape, moegen_error **err);
/* Sets a run-time size (T, N, ...) by hand. Needed only for a size that no bound tensor fixes; a
 * size that the tensors contradict is an error at the next run. */
MOEGEN_API moegen_status moegen_call_set_size(moegen_call *call, const char *dim, int64_t value,
                                              moegen_error **err);
/* Threads that run the kernel, the calling one included; 0: the kernel's default (see
 * moegen_kernel_facts). Results do not depend on it. */
MOEGEN_API moegen_status moegen_call_set_threads(moegen_call *call, int threads,
                                                 moegen_error **err);
/* Threads of a host, as a pool has them: calls rank(at, number) once for each number of 0..ranks-1,
 * all at the same time on as many threads (the calling one may be among them), and returns 0 when
 * all have returned. Ranks wait for each other: a host that has fewer threads to give at the time
 * calls none and returns another number; then the calling thread runs the kernel alone, to the same
 * results. */
typedef int (*moegen_runner)(void *host, int ranks, void (*rank)(void *at, int number), void *at);
/* Runs of this call take the host's threads in place of the library's; all else stays as
 * moegen_call_run says. runner NULL: the library's again. A run whose ranks have not all been
 * called when the runner returns 0, or of which some have when it returns another number, is
 * MOEGEN_BAD_ARGUMENT, and what it wrote is of no use. */
MOEGEN_API moegen_status moegen_call_set_runner(moegen_call *call, moegen_runner runner, void *host,
                                                moegen_error **err);
/* Extents of a tensor with the sizes that the bound tensors fix: what to allocate for an output.
 * shape has room for 8 numbers; *rank says how many were written. */
MOEGEN_API moegen_status moegen_call_shape(const moegen_call *call, const char *name, int *rank,
                                           int64_t *shape, moegen_error **err);
/* Bytes of workspace that the bound sizes and threads need. Validates as run does. */
MOEGEN_API moegen_status moegen_call_workspace_bytes(moegen_call *call, size_t *bytes,
                                                     moegen_error **err);
/* Gives the call memory to work in (64-byte aligned, contents irrelevant); NULL: the call owns and
 * grows its own. */
MOEGEN_API moegen_status moegen_call_set_workspace(moegen_call *call, void *memory, size_t bytes,
                                                   moegen_error **err);
/* Runs the kernel on the bound tensors and returns when it is done. After a change, everything is
 * validated first: every required tensor bound, all sizes agree, workspace large enough
 * (MOEGEN_BAD_ARGUMENT with every complaint). With nothing changed since the last run the overhead
 * is below half a microsecond. MOEGEN_BAD_DATA: the content of a tensor is out of range; no output
 * was written then. */
MOEGEN_API moegen_status moegen_call_run(moegen_call *call, moegen_error **err);

/* ---- layers: a forward pass, and backward passes from the state that it leaves --------------- */

/* One tensor of a pass: dense row-major data of the caller's, as moegen_call_bind takes it (NULL
 * only for a tensor without elements; a tensor that is to be absent is left out). A pass only reads
 * its inputs. */
typedef struct moegen_tensor {
    const char *name;
    void *data;
    moegen_dtype dtype;
    int rank;
    int64_t shape[8];
} moegen_tensor;

/* Packs the matrices of weights for a kernel whose spec says `weights.layout: packed`. from: tensor
 * `name` as `layout` has it, "plain" or "transposed" (of the order that weights.gate_up_order
 * says; "plain" alone of mlp_forward, [2 I, H] and [H, I], and of grouped_gemm), in the kernel's
 * dtype. packed: the caller's room for that tensor's shape (moegen_call_shape), `bytes` in all,
 * aligned to its element size, to be bound as that tensor of any kernel whose plan reads the same,
 * forward or backward: others refuse it with MOEGEN_BAD_DATA or for its shape. threads: ranks that
 * pack, the calling one included; 0: one. Nothing is written after MOEGEN_BAD_ARGUMENT. */
MOEGEN_API moegen_status moegen_pack(const moegen_kernel *kernel, const char *layout,
                                     const moegen_tensor *from, void *packed, size_t bytes,
                                     int threads, moegen_error **err);

/* Both kernels of a spec of family moe_layer (or of any family with `op: forward` and `op:
 * backward`, such as router): sets `op` itself, and `checkpoint: save` in the forward kernel unless
 * the spec says `recompute`. The layer comes with one reference. Fails as moegen_kernel_get does.
 */
MOEGEN_API moegen_status moegen_layer_create(moegen_engine *engine, const moegen_spec *spec,
                                             moegen_layer **layer, moegen_error **err);
MOEGEN_API void moegen_layer_retain(moegen_layer *layer);
MOEGEN_API void moegen_layer_release(moegen_layer *layer);
/* The kernel of the forward pass, or with backward != 0 of the other; owned by the layer. Tensors
 * that forward writes and backward reads are the state: nobody else passes them. */
MOEGEN_API const moegen_kernel *moegen_layer_kernel(const moegen_layer *layer, int backward);
/* The i-th tensor of the state, owned by the layer; NULL when there are no more: `for (i = 0; (a =
 * moegen_layer_state_arg(layer, i)); i++)`. */
MOEGEN_API const moegen_arg *moegen_layer_state_arg(const moegen_layer *layer, size_t i);
/* Extents of a tensor of one pass, what to allocate for it. sizes: the run-time sizes of that
 * pass's kernel, in the order of its facts' `dims`, -1 for one that follows from the others (the
 * number of blocks from the number of tokens); NULL where the shape does not depend on them. shape
 * has room for 8 numbers; *rank says how many were written. MOEGEN_BAD_ARGUMENT for an unknown
 * tensor or a missing size. */
MOEGEN_API moegen_status moegen_layer_shape(const moegen_layer *layer, int backward,
                                            const char *name, const int64_t *sizes, int *rank,
                                            int64_t *shape, moegen_error **err);

/* A state without a forward pass in it. It keeps the layer alive, owns its memory (which grows to
 * the largest forward pass and is used again), and belongs to one thread at a time. */
MOEGEN_API moegen_status moegen_layer_state_create(moegen_layer *layer, moegen_layer_state **state,
                                                   moegen_error **err);
MOEGEN_API void moegen_layer_state_release(moegen_layer_state *state);
/* Binds a tensor of a layer with `weights.experts: separate` for all coming passes, as
 * moegen_call_bind_experts does; then it is not passed to moegen_layer_forward and _backward.
 * matrices NULL: it is again. After a failure it is bound in no pass. */
MOEGEN_API moegen_status moegen_layer_state_bind_experts(moegen_layer_state *state,
                                                         const char *name,
                                                         const void *const *matrices, int64_t count,
                                                         moegen_dtype dtype, int rank,
                                                         const int64_t *shape, moegen_error **err);
/* Threads that run the passes; see moegen_call_set_threads. */
MOEGEN_API moegen_status moegen_layer_state_set_threads(moegen_layer_state *state, int threads,
                                                        moegen_error **err);
/* The forward pass over the caller's tensors: all inputs and outputs of the forward kernel but the
 * state's, in any order. They need not outlive the call. A wrong, missing or unknown tensor is
 * MOEGEN_BAD_ARGUMENT, with every complaint; after any failure the state is what it was before. */
MOEGEN_API moegen_status moegen_layer_forward(moegen_layer_state *state,
                                              const moegen_tensor *tensors, size_t count,
                                              moegen_error **err);
/* The gradients of the last successful forward pass, in the same form: any number of times, with
 * the same answer for the same tensors. Before a forward pass, or with tensors of another number of
 * tokens: MOEGEN_BAD_ARGUMENT. Never changes the state. */
MOEGEN_API moegen_status moegen_layer_backward(moegen_layer_state *state,
                                               const moegen_tensor *tensors, size_t count,
                                               moegen_error **err);
/* A tensor of the state (expert_index, logits, ...), valid until the next forward pass or the
 * release. MOEGEN_BAD_ARGUMENT without a forward pass or for an unknown name. */
MOEGEN_API moegen_status moegen_layer_state_tensor(const moegen_layer_state *state,
                                                   const char *name, moegen_tensor *out,
                                                   moegen_error **err);

/* ---- tuning ---------------------------------------------------------------------------------- */

/* What a search does now. Filled by the library; strings are valid during the callback. */
typedef struct moegen_tune_step {
    size_t struct_size;
    const char *what;  /* "filling", "without a model" (what it says of the planner's own choice
                        * cannot be), "screening", "pruned", "combining" or "confirming" */
    const char *plan;  /* what was tried: "plan.tile_rows=12 plan.mc=8"; "": nothing yet */
    double ratio;      /* its speed over that of the best until then; NAN: not measured, since it
                        * was refused, gives wrong results, or is yet to be measured */
    const char *best;  /* the best plan so far; "": the planner's own */
    double best_ratio; /* its speed over that of the planner's own choice, as it seems */
    int tried, candidates; /* of this step */
    double seconds_left;
    int pruned, looked_at; /* of so many plans, those that were not timed: their machine code is
                            * that of the best, or what this machine multiplies and reads per
                            * second does not let them be faster */
} moegen_tune_step;

/* Zero-initialise, set struct_size, then whatever differs from the default. */
typedef struct moegen_tune_options {
    size_t struct_size;
    const int64_t *tokens; /* of the calls that are to be fast, at most 8 numbers; NULL: the spec's
                            * T, else 1, 16, 256 and 1024. A spec that fixes T takes no other. */
    size_t token_count;
    int threads;      /* of those calls; 0: the engine's */
    double seconds;   /* to spend, about, once tensors are filled; 0: 60. Confirming the best takes
                       * some runs in any case. */
    const char *path; /* file of tuned plans that gets the winner; "": this CPU's own (see
                       * moegen_engine_options); NULL: it is not written */
    /* Called now and then, from the calling thread; may be NULL. Not 0: stop, confirm the best and
     * return it; not 0 again while that is confirmed: give it up. */
    int (*step)(void *user, const moegen_tune_step *step);
    void *user;
} moegen_tune_options;
typedef struct moegen_tuning moegen_tuning;

/*
 * Searches the keys of `plan` that the spec leaves open for the plan that is fastest here, on
 * inputs made up for the purpose: first each key alone, those that are slower dropped early, then
 * the best together. Every plan that counts gives results as right as the planner's own; all are
 * measured in turns. The winner is measured in pairs with the planner's own choice in the end, and
 * is none if it is not clearly faster over all, or slower for one of the numbers of tokens.
 *
 * The file is written whole or not at all; other entries, and those with `pinned: true`, stay as
 * they are, and so do comments; two tunings may write the same file. The engine itself goes on with
 * what it read when it was created.
 *
 * The tuning comes with one reference. Fails as moegen_kernel_get does, or with MOEGEN_UNSUPPORTED
 * for a family that has no reference, MOEGEN_IO for the file. Other threads may use the engine
 * meanwhile, which disturbs what is measured.
 */
MOEGEN_API moegen_status moegen_tune(moegen_engine *engine, const moegen_spec *spec,
                                     const moegen_tune_options *options, moegen_tuning **tuning,
                                     moegen_error **err);
/* The winner, as overrides separated by spaces: "plan.tile_rows=12 plan.mc=8"; "" : the planner's
 * own choice stays. Owned by the tuning, as is the entry for a file of tuned plans; "" for NULL. */
MOEGEN_API const char *moegen_tuning_plan(const moegen_tuning *tuning);
MOEGEN_API const char *moegen_tuning_entry(const moegen_tuning *tuning);
/* Speed of the best plan over that of the planner's own choice, median of pairs, and its 95 %
 * interval; low and high may be NULL. 1 if there was nothing better to confirm. */
MOEGEN_API double moegen_tuning_ratio(const moegen_tuning *tuning, double *low, double *high);
MOEGEN_API void moegen_tuning_release(moegen_tuning *tuning);

/* ---- ahead of time --------------------------------------------------------------------------- */

/* Generates the C and header of one kernel, as `moegen gen` writes them. The source comes with one
 * reference. */
MOEGEN_API moegen_status moegen_generate(moegen_engine *engine, const moegen_spec *spec,
                                         moegen_source **source, moegen_error **err);
/* Stem of both file names, the C text and the header text; owned by the source. "" for NULL. */
MOEGEN_API const char *moegen_source_name(const moegen_source *source);
MOEGEN_API const char *moegen_source_c(const moegen_source *source);
MOEGEN_API const char *moegen_source_h(const moegen_source *source);
/* Options that gcc and clang need to compile the C, separated by spaces ("-mavx512f -mfma"); "" for
 * none, and for NULL. */
MOEGEN_API const char *moegen_source_cflags(const moegen_source *source);
MOEGEN_API void moegen_source_release(moegen_source *source);

#ifdef __cplusplus
}
#endif
#endif
