/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moegen_runtime.h - what a caller of generated kernels may want besides the kernel itself:
 * threads, CPU features, memory, tensors and their files, inputs to try a kernel on, and float64
 * references to judge its answer by. Depends on libc, pthread and libm only.
 *
 * Rules for all functions. A function that can fail returns a moegen_rt_status; when it is not
 * MOEGEN_RT_OK and `err` is not NULL, err->text holds one sentence (no final period, no newline).
 * Functions that take only const pointers may run in several threads at once; an object passed by
 * plain pointer belongs to one thread at a time. Releasing NULL is legal. Nothing is printed, no
 * signal handler is installed, the process is never ended. Sizes are in bytes and shapes in
 * elements unless said otherwise; tensors are dense, row-major, last index fastest.
 */
#ifndef MOEGEN_RUNTIME_H
#define MOEGEN_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include "moegen_dtype.h"
#include "moegen_rt.h"

#if defined(__GNUC__)
#define MOEGEN_RT_API __attribute__((visibility("default")))
#else
#define MOEGEN_RT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum moegen_rt_status {
    MOEGEN_RT_OK = 0,
    MOEGEN_RT_BAD_ARGUMENT = 1, /* the caller's fault: unknown name, wrong shape, dtype or size */
    MOEGEN_RT_BAD_DATA = 2,     /* the content of a file or tensor is out of range */
    MOEGEN_RT_UNSUPPORTED = 3,  /* right, but not offered */
    MOEGEN_RT_NO_MEMORY = 4,    /* or no thread to be had */
    MOEGEN_RT_IO = 5            /* a file could not be opened, read or written */
} moegen_rt_status;

/* Where a failure is told. Owned by the caller; needs no initialisation; untouched on success. */
typedef struct moegen_rt_error {
    char text[1024];
} moegen_rt_error;

/* ---- team.c: threads that run a kernel together -------------------------------------------- */

typedef struct moegen_rt_team moegen_rt_team;
typedef void (*moegen_rt_entry)(void *ctx, const moegen_worker *worker);

/* A team of `size` ranks, 1..1024: the thread that calls run plus size-1 threads of its own, which
 * block all signals. Idle threads spin for some tens of microseconds and then sleep; ranks that
 * wait for others in a run spin for some hundreds. After fork() in the child the threads are made
 * anew at the next run. */
MOEGEN_RT_API moegen_rt_status moegen_rt_team_create(int size, moegen_rt_team **team,
                                                     moegen_rt_error *err);
/* Ends the threads. No run may be in progress. */
MOEGEN_RT_API void moegen_rt_team_destroy(moegen_rt_team *team);
/* Ranks of the team; 1 for NULL. */
MOEGEN_RT_API int moegen_rt_team_size(const moegen_rt_team *team);
/* Calls entry(ctx, worker) once on every rank, rank 0 on the calling thread, and returns when all
 * have returned. One run at a time per team: neither concurrent nor nested. The worker lives until
 * entry returns. Every rank must make the same number of barrier calls. team NULL is a team of one,
 * and a team of one is a plain call. Fails (nothing was called) only after fork(), with
 * MOEGEN_RT_NO_MEMORY, when the threads cannot be made anew. */
MOEGEN_RT_API moegen_rt_status moegen_rt_team_run(moegen_rt_team *team, moegen_rt_entry entry,
                                                  void *ctx);
/* Runs a generated kernel on all ranks and returns its status (0 or a positive code); -1 if the run
 * failed as above. args is the kernel's argument structure with a workspace for this team size. */
MOEGEN_RT_API int32_t moegen_rt_team_call(moegen_rt_team *team, moegen_entry entry,
                                          const void *args);

/* ---- cpu.c: what this CPU can do ----------------------------------------------------------- */

/* 1 if the CPU has the feature and the operating system keeps its registers, else 0; also 0 for an
 * unknown name. Names are those of /proc/cpuinfo in lower case; underscores may be left out or
 * added (avx512_vbmi is avx512vbmi). Asking for an amx_ feature asks the kernel, once, for this
 * process's permission to use the tiles. Thread-safe. */
MOEGEN_RT_API int moegen_rt_cpu_has(const char *feature);
/* Name of the i-th known feature, 0.., whether this CPU has it or not; NULL past the end. */
MOEGEN_RT_API const char *moegen_rt_cpu_feature(int i);
/* Maker, family, model and stepping, as in GenuineIntel-000c06f2; for keys of what was measured. */
MOEGEN_RT_API const char *moegen_rt_cpu_kind(void);
/* CPUs that this process may run on (its affinity mask), at least 1. */
MOEGEN_RT_API int moegen_rt_cpu_count(void);
/* Bytes of the data cache of level 1, 2 or 3 that one core sees; 0 when unknown or absent. */
MOEGEN_RT_API size_t moegen_rt_cpu_cache(int level);

/* ---- memory.c: aligned memory -------------------------------------------------------------- */

/* `bytes` uninitialised bytes, aligned to 64; from 4 MiB on aligned to 2 MiB and huge pages asked
 * for. 0 bytes give a valid pointer. NULL when there is no memory. */
MOEGEN_RT_API void *moegen_rt_alloc(size_t bytes);
MOEGEN_RT_API void moegen_rt_free(void *at);

/* ---- tensor.c: element types and tensors --------------------------------------------------- */

/* MOEGEN_RT_F32, MOEGEN_RT_BF16, ...: see moegen_dtype.h. They equal those of moegen.h. */
#define MOEGEN_RT_DTYPE(NAME, value, ...) MOEGEN_RT_##NAME = value,
typedef enum moegen_rt_dtype {
    MOEGEN_DTYPES(MOEGEN_RT_DTYPE) MOEGEN_RT_DTYPES /* how many there are */
} moegen_rt_dtype;
#undef MOEGEN_RT_DTYPE

typedef struct moegen_rt_dtype_facts {
    const char *name;        /* as specs spell it: "bf16" */
    const char *safetensors; /* as safetensors spells it: "BF16" */
    size_t bytes;            /* of one element */
    int digits;              /* significand bits with the hidden one: 24, 8, ...; 0 for integers */
    double l2_limit;         /* relative L2 error that a kernel's output of this dtype may have */
} moegen_rt_dtype_facts;

/* Facts of a dtype, static storage; NULL for a value that is no dtype. */
MOEGEN_RT_API const moegen_rt_dtype_facts *moegen_rt_dtype_of(moegen_rt_dtype dtype);
/* Finds a dtype by its spec name ("fp8_e4m3"); 0 if there is none, else 1 and *dtype is set. */
MOEGEN_RT_API int moegen_rt_dtype_find(const char *name, moegen_rt_dtype *dtype);

/* n elements at src to double. Exact, except for i64 beyond 2^53. src aligned to its element. */
MOEGEN_RT_API void moegen_rt_decode(moegen_rt_dtype dtype, const void *src, size_t n, double *dst);
/* n doubles to elements at dst, one rounding to nearest even, subnormals included. Overflow gives
 * infinity in f32, bf16, f16 and fp8_e5m2; it saturates in fp8_e4m3 (also an infinity gives 448)
 * and in integers. NaN stays NaN; in integers it gives 0. */
MOEGEN_RT_API void moegen_rt_encode(moegen_rt_dtype dtype, const double *src, size_t n, void *dst);
/* n elements of one dtype to another, with one rounding as in moegen_rt_encode; fast between f32,
 * bf16 and f16. Memory must not overlap. */
MOEGEN_RT_API void moegen_rt_convert(moegen_rt_dtype from, const void *src, moegen_rt_dtype to,
                                     void *dst, size_t n);
/* Fills n elements with NaN; integers with bytes 0x7e, a value that no index has. */
MOEGEN_RT_API void moegen_rt_poison(moegen_rt_dtype dtype, void *data, size_t n);
/* Fills n elements with approximately normal values, mean 0 and deviation `scale`, cut off at 3.7
 * deviations. Element i depends on seed and i alone. Under 4 ns an element for f32, bf16, f16. */
MOEGEN_RT_API void moegen_rt_normal(moegen_rt_dtype dtype, void *data, size_t n, uint64_t seed,
                                    double scale);

typedef struct moegen_rt_tensor {
    const char *name; /* owned by whoever holds the tensor */
    moegen_rt_dtype dtype;
    int rank; /* 0..8; 0 is a scalar */
    int64_t shape[8];
    void *data;    /* aligned to 64 when the library allocated it */
    size_t bytes;  /* elements times the size of one */
    double noise;  /* of a reference's output: relative L2 error that roundings of what the kernel
                      computes before it can cause, where that is much (sums that cancel, of few
                      numbers or of what is quantised); else 0 */
    int once;      /* of a reference's output: 1 if a kernel rounds nothing to fewer digits than f32
                      has on the way to it, and it once */
    int across;    /* of a reference's output: 1 if what belongs together for comparing is a run of
                      the extent before the last one: of a matrix that is stored transposed */
    double coarse; /* noise of an output of 16 bits, where a kernel may round to as many before */
    int64_t terms; /* of a reference's output that sums over tokens: at most so many; else 0 */
} moegen_rt_tensor;

/* Number of elements. */
MOEGEN_RT_API int64_t moegen_rt_tensor_count(const moegen_rt_tensor *tensor);

/* ---- problem.c: named tensors and parameters ----------------------------------------------- */

/* Tensors and parameters by name. Parameters are those of the kernel's canonical spec, flattened,
 * as text: "H" -> "64", "affinity.scale" -> "post", "clamp.gate.lo" -> "-1"; a null is absent. */
typedef struct moegen_rt_problem moegen_rt_problem;

/* An empty problem; NULL when there is no memory. */
MOEGEN_RT_API moegen_rt_problem *moegen_rt_problem_create(void);
/* Frees the problem and every tensor that it owns. */
MOEGEN_RT_API void moegen_rt_problem_destroy(moegen_rt_problem *problem);

/* Adds a tensor with uninitialised memory of its own and gives it in *tensor (may be NULL). The
 * name is copied; a tensor of that name is replaced. Fails on a bad rank, extent or size. The
 * tensor stays in place as long as the problem does not drop it. */
MOEGEN_RT_API moegen_rt_status moegen_rt_problem_add(moegen_rt_problem *problem, const char *name,
                                                     moegen_rt_dtype dtype, int rank,
                                                     const int64_t *shape,
                                                     moegen_rt_tensor **tensor,
                                                     moegen_rt_error *err);
/* The same over the caller's memory, which must outlive the problem and is not freed with it. */
MOEGEN_RT_API moegen_rt_status moegen_rt_problem_lend(moegen_rt_problem *problem, const char *name,
                                                      moegen_rt_dtype dtype, int rank,
                                                      const int64_t *shape, void *data,
                                                      moegen_rt_error *err);
/* Forgets (and frees, if owned) the tensor of that name, if there is one. */
MOEGEN_RT_API void moegen_rt_problem_drop(moegen_rt_problem *problem, const char *name);
/* Tensor by name, NULL if there is none; the i-th tensor in the order of adding, NULL past the end.
 * The data may be written through it; name, shape and data pointer may not be changed. */
MOEGEN_RT_API moegen_rt_tensor *moegen_rt_problem_tensor(const moegen_rt_problem *problem,
                                                         const char *name);
MOEGEN_RT_API moegen_rt_tensor *moegen_rt_problem_at(const moegen_rt_problem *problem, size_t i);

/* Sets a parameter (both strings are copied; value NULL removes it). */
MOEGEN_RT_API moegen_rt_status moegen_rt_problem_set(moegen_rt_problem *problem, const char *key,
                                                     const char *value);
/* A parameter's text, number or truth; `otherwise` when it is absent or does not read as one. */
MOEGEN_RT_API const char *moegen_rt_problem_text(const moegen_rt_problem *problem, const char *key,
                                                 const char *otherwise);
MOEGEN_RT_API int64_t moegen_rt_problem_int(const moegen_rt_problem *problem, const char *key,
                                            int64_t otherwise);
MOEGEN_RT_API double moegen_rt_problem_number(const moegen_rt_problem *problem, const char *key,
                                              double otherwise);
MOEGEN_RT_API int moegen_rt_problem_bool(const moegen_rt_problem *problem, const char *key,
                                         int otherwise);

/* ---- safetensors.c: tensor files ----------------------------------------------------------- */

/* Adds every tensor of the file to the problem, each in memory of its own. A file that breaks a
 * rule of the format (or: header over 16 MiB, more than 16384 tensors, a name over 256 bytes, rank
 * over 8) is refused with a sentence that names the file and the tensor; the problem is then
 * unchanged. __metadata__ is ignored. A tensor of the same name is replaced. */
MOEGEN_RT_API moegen_rt_status moegen_rt_safetensors_read(const char *path,
                                                          moegen_rt_problem *problem,
                                                          moegen_rt_error *err);
/* The same, and the texts of __metadata__ become parameters of `metadata`, at most 16384; a value
 * over 256 bytes reads as "", and a text whose name is over 256 bytes is left out. After a failure
 * some may be set. */
MOEGEN_RT_API moegen_rt_status moegen_rt_safetensors_read_with(const char *path,
                                                               moegen_rt_problem *problem,
                                                               moegen_rt_problem *metadata,
                                                               moegen_rt_error *err);
/* The same of the tensors whose names `wanted` answers with other than 0; of the others nothing but
 * the header is read, and they may be of any dtype. I8 and F8_E8M0 are read as U8, for codes and
 * scales. */
MOEGEN_RT_API moegen_rt_status moegen_rt_safetensors_read_some(
    const char *path, moegen_rt_problem *problem, int (*wanted)(void *user, const char *name),
    void *user, moegen_rt_error *err);
/* Writes tensors in the order given. The file appears whole under its name or not at all: it is
 * written beside it and renamed. Names must be unique, UTF-8, without control characters. */
MOEGEN_RT_API moegen_rt_status moegen_rt_safetensors_write(const char *path,
                                                           const moegen_rt_tensor *tensors,
                                                           size_t count, moegen_rt_error *err);
/* The same with the parameters of `metadata` (NULL: none), which are UTF-8, as __metadata__. */
MOEGEN_RT_API moegen_rt_status moegen_rt_safetensors_write_with(const char *path,
                                                                const moegen_rt_tensor *tensors,
                                                                size_t count,
                                                                const moegen_rt_problem *metadata,
                                                                moegen_rt_error *err);

/* ---- reference.c: inputs to try a family on, and its mathematics in float64 ---------------- */

/* How inputs are made. Zero-initialise, then set what differs. Parameters T and N_blocks of the
 * problem, where present, fix those sizes instead. */
typedef struct moegen_rt_fill {
    int64_t T;            /* tokens (rows of the batch), >= 1 */
    uint64_t seed;        /* same seed, same inputs */
    const char *routing;  /* a name of moegen_rt_routing; NULL: "uniform" */
    int64_t extra_blocks; /* surplus blocks of nothing but padding after those that are needed */
    int no_conditions;    /* leave out the optional tensor `conditions` */
} moegen_rt_fill;

/* What of the outputs is wanted. Zero-initialised: everything. */
typedef struct moegen_rt_want {
    const int64_t *tokens; /* token ids; NULL: all. Rows of other tokens become NaN: not compared */
    int64_t token_count;
    int padding_is_zero; /* padding slots of checkpoints: 0: NaN, not compared; 1: zero, when tokens
                            is NULL */
    int own_choice;      /* 0: what depends on a router's choice that rounding could change is NaN;
                            1: it is what float64 chooses */
    int64_t features;    /* of each gradient of weights at most so many features, at least 2; others
                            are NaN, not compared; 0: all, or with `tokens` their share of all */
} moegen_rt_want;

/* One family. Both functions read the problem's parameters (H, I_TP, E, top_k, ...).
 * fill: adds all input tensors of the family's kernel in the spec's dtypes (tensors of the same
 *   names are replaced).
 * compute: reads the problem's inputs (any float dtype, weights also in the formats and layouts
 * that the parameters weights.dtype, weights.layout, ... name; decoded exactly) and adds the
 * outputs to `out` as f64 tensors, under the kernel's output names and shapes, pure float64
 * arithmetic; NaN marks what is not to be compared. Bad shapes, indices out of range: a sentence,
 * and `out` may hold some outputs. Thread-safe over one problem. */
typedef struct moegen_rt_reference {
    const char *family;
    moegen_rt_status (*fill)(moegen_rt_problem *problem, const moegen_rt_fill *how,
                             moegen_rt_error *err);
    moegen_rt_status (*compute)(const moegen_rt_problem *problem, const moegen_rt_want *want,
                                moegen_rt_problem *out, moegen_rt_error *err);
} moegen_rt_reference;

/* The reference of a family, NULL if there is none; the i-th, NULL past the end. */
MOEGEN_RT_API const moegen_rt_reference *moegen_rt_reference_find(const char *family);
MOEGEN_RT_API const moegen_rt_reference *moegen_rt_reference_at(int i);
/* Name of the i-th routing kind, NULL past the end:
 *   uniform      random experts           skewed       expert e drawn in proportion to 1/(1+e)
 *   one          all tokens to the same k experts from E/2 on, the others empty
 *   empty_first, empty_middle, empty_last  that expert gets no token (if top_k < E)
 *   one_token    expert 0 gets one token  balanced     all experts the same count (+-1) */
MOEGEN_RT_API const char *moegen_rt_routing(int i);

/* An activation as specs name it: value and derivative in float64. */
typedef struct moegen_rt_activation {
    const char *name;
    double (*value)(double x);
    double (*slope)(double x);
    double term; /* of a sum that cancels and that value(x) / x is, so that a kernel has no more
                    digits of it than of its terms; else 0 */
} moegen_rt_activation;
MOEGEN_RT_API const moegen_rt_activation *moegen_rt_activation_find(const char *name);
MOEGEN_RT_API const moegen_rt_activation *moegen_rt_activation_at(int i);

/* ---- compare.c: how right is right --------------------------------------------------------- */

typedef struct moegen_rt_comparison {
    int ok;           /* all limits kept; so it is if nothing was compared */
    double l2;        /* ||got - want|| / ||want||; the plain norm of got when want is all zero */
    double l2_limit;  /* of the dtype of got; 0 for integers */
    double roundings; /* largest |got - want| in roundings: units in the last place, 2^(1 - digits),
                       * of the row's largest magnitude */
    double roundings_limit; /* 16; 0 for integers */
    double beyond;          /* largest |got - want| beyond half a unit in the last place of want
                             * itself, in roundings of f32 (2^-23) of the row's largest magnitude; 0
                             * unless want->once and got has fewer digits than f32 */
    double bias;            /* sum of got - want away from 0, over that of the units in the last
                             * place: 0 when rounded to nearest, -0.5 when cut off; 0 unless got has
                             * fewer digits than f32 */
    double bias_limit;      /* 0.4; 0 where too little is compared to judge it */
    int64_t compared;       /* elements compared */
    int64_t skipped;        /* elements that are NaN in want */
    int64_t nans;           /* elements that are NaN in got and not in want: always a failure */
    int64_t worst; /* flat index of the element with the most roundings, or of the first NaN */
    double worst_got, worst_want;
    char text[256]; /* one sentence: what is wrong, or the two errors */
} moegen_rt_comparison;

/* Compares an output with its reference (f64, NaN = not compared). Shapes must agree up to trailing
 * extents of 1; got may have more rows (first extent) than want. A row is a run of the last extent
 * that is not such a 1; of a tensor whose name ends in _T, of the last extent but one. Its largest
 * magnitude counts as at least the root mean square of all that is not 0. What is subnormal in the
 * dtype of got may be off by half a unit more, and what is beyond its largest number should be
 * that, if it has no infinities. want->noise widens the limits. `beyond` has the limit that
 * roundings have. The bias is judged from 32 rows and 1000 elements other than 0 on. Fails only on
 * shapes that do not agree or want not f64; a wrong value is result->ok = 0. */
MOEGEN_RT_API moegen_rt_status moegen_rt_compare(const moegen_rt_tensor *got,
                                                 const moegen_rt_tensor *want,
                                                 moegen_rt_comparison *result,
                                                 moegen_rt_error *err);

#ifdef __cplusplus
}
#endif
#endif
