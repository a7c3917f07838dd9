/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h - what the files of the program `moegen` share: options, printing, commands. */
#ifndef MOEGEN_CLI_H
#define MOEGEN_CLI_H

#include <stdbool.h>
#include <stdio.h>

#include "moegen_runtime.h"
#include "api/api.h"
#include "trial/trial.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_BAD_INPUT = 2, EXIT_NOT_HERE = 3, EXIT_BUG = 4 };

/* ---- cli_options.c: one table for parser, help and completions ---- */

struct words {
    const char **at;
    int count;
};
struct options {
    const struct command *command;
    struct words operands; /* the spec first, where a command takes one */
    struct words set;      /* KEY=VALUE */
    struct words vary;     /* KEY=V1,V2 */
    struct words in;       /* files, directories */
    const char *target, *spelling, *cc, *out, *depfile, *json, *max, *routing, *stem, *plot,
        *cflags, *to, *from, *scale, *scale_rule, *gate_up, *token_list, *thread_list, *baseline,
        *against;
    struct words only;                                /* PATTERN */
    int64_t threads, tokens, runs, seed, axis, group; /* axis -1: not given */
    double seconds, margin, fail_below, budget;
    bool quiet, help, latency, cold, version, md, record, turns;
    int verbose;
};
struct command {
    const char *name, *operands, *summary, *examples;
    unsigned bit;
    int (*run)(struct options *o);
};
extern const struct command commands[]; /* main.c; ends with a row without a name */
enum {                                  /* bits of commands, for the option table */
       GEN = 1,
       RUN = 2,
       CHECK = 4,
       BENCH = 8,
       EXPLAIN = 16,
       LIST = 32,
       CACHE = 64,
       SCHEMA = 128,
       COMPLETION = 256,
       QUANTIZE = 512,
       PACK = 1024,
       COMPARE = 2048,
       REPORT = 4096,
       TUNE = 8192,
       RESULTS = BENCH | COMPARE | TUNE, /* their --json may be a file */
       SPEC = GEN | RUN | CHECK | BENCH | EXPLAIN | PACK | TUNE,
       ANY = 16383
};
/* Fills *o from the words after the command; complains on stderr and returns false. */
bool options_parse(struct options *o, int count, char **words);
void options_free(struct options *o);
void help_command(const struct command *c, FILE *to);
void help_all(FILE *to);
int completion_print(const char *shell);
enum { ITEM = 256, MOST_THREADS = 1024 };
/* The next item of a comma-separated list (commas in brackets do not count): copies it to `out`,
 * moves *at; false at the end. Items are as long as fits. */
bool next_item(const char **at, char out[ITEM]);
int items_fit(const char *option, const char *list); /* complains, and returns an exit code */

/* ---- cli_files.c: files read and written whole ---- */

/* At most `most` bytes, however many there are to come; "-" is stdin. Complains and returns an exit
 * code. */
int read_file(const char *path, size_t most, struct text *out);
/* Writes through a temporary file beside `path`; leaves it alone if it has these bytes already.
 * *changed may be NULL. */
int write_file(const char *path, const char *bytes, size_t len, bool *changed);
int write_text(const char *path, const struct text *t); /* the same, unless it is lost */
/* Is there a place for the files that results go to in the end, and is none of them one that the
 * command reads? Complains and returns an exit code. */
int results_ready(const struct options *o);
/* Is it the spec, or a file of results, of stored baselines or of tensors that the command reads?
 */
bool is_input(const struct options *o, const char *path);

/* ---- cli_print.c: what all commands say alike ---- */

extern bool quiet;
extern int verbose;
/* Prints every complaint on stderr (in colour on a terminal), releases the error, gives the exit
 * code. */
int fail(moegen_status status, moegen_error *err);
/* Memory was out, and something is missing from what was, or will be, printed: the exit status says
 * so in the end. */
void lost(void);
int whole(int result); /* the exit code: `result`, unless something was lost */
/* The words that the program was called with, as a shell takes them. False: memory is out. */
bool command_keep(int count, char **words);
const char *command_said(void);
/* Prints a text on stdout, or complains that it is lost; frees it. */
int put_text(struct text *t);
/* A complaint in printf form as bad input. */
int bad(const char *format, ...) __attribute__((format(printf, 1, 2)));
void note(const char *format, ...) __attribute__((format(printf, 1, 2))); /* stderr, unless quiet */
void progress(const char *what, int done,
              int total); /* a bar on stderr, on a terminal only; done == total clears it */
void json_string(struct text *t, const char *s); /* quoted and escaped */
void json_number(struct text *t, double value);  /* null when not finite */
/* Rows of cells, aligned: text left, numbers right. The first row is the head. Cells are copied. */
struct table {
    int columns;
    struct text *cell;
    int cells;
    bool lost; /* no memory for a cell */
};
void table_add(struct table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_print(struct table *t, FILE *to); /* and frees it */
void table_free(struct table *t);
double seconds_now(void);
/* "1.25 ms", "412 kB" */
const char *show_seconds(char out[32], double seconds);
const char *show_bytes(char out[32], double bytes);

/* ---- cli_spec.c: the spec operand ---- */

/* A spec file and the kernels of it that were asked for. */
struct job {
    struct text text;  /* the file */
    const char *label; /* its path */
    char *path;        /* owned */
    char **kernel;     /* chosen names; "" for a one-kernel spec; owned */
    int kernels;
    moegen_override *set; /* --set, --target, --spelling; room for `extra` more at set[sets] */
    int sets, own_sets;   /* all; those from --set, whose keys are owned */
    char tokens[24];      /* value of an override of T */
    moegen_engine *engine;
};
enum { EXTRA_SETS = 16 };
/* Reads the file, opens an engine, finds the kernels. Complains and returns an exit code. */
int job_open(struct job *j, const struct options *o);
void job_close(struct job *j);
/* The request for kernel k with `extra` overrides filled in by the caller at set[sets]. */
moegen_spec job_spec(const struct job *j, int k, int extra);
/* That kernel. tokens > 0: where the spec fixes T, this many instead. cc: see kernel_get. */
moegen_status job_kernel(struct job *j, int k, int extra, int64_t tokens, const char *cc,
                         moegen_kernel **kernel, moegen_error **err);

/* ---- cli_trials.c: the edge cases of a kernel ---- */

enum { MAX_TRIALS = 32 };
/* The edge cases of this kernel, or the one that the options ask for. Returns their number. */
int trials_plan(const moegen_kernel *kernel, const struct options *o, struct trial *out);

/* ---- cli_formats.c ---- */

struct listing;
/* The formats of stored weights, and what a line says of each. False: no memory; free it anyway. */
bool formats_list(struct listing *out);

/* Appends what a status says: MOEGEN_... of moegen.h, or the program's exit status. False: none. */
bool code_explained(const char *name, struct text *to);
/* Is it meant as one that there is not, and no file? Then appends those of its kind. */
bool code_unknown(const char *name, struct text *known);

int cmd_gen(struct options *o);
int cmd_run(struct options *o);
int cmd_check(struct options *o);
int cmd_bench(struct options *o);
int cmd_explain(struct options *o);
int cmd_list(struct options *o);
int cmd_cache(struct options *o);
int cmd_schema(struct options *o);
int cmd_completion(struct options *o);
int cmd_quantize(struct options *o); /* quantize/ */
int cmd_pack(struct options *o);
int cmd_compare(struct options *o); /* compare/ */
int cmd_report(struct options *o);  /* report/ */
int cmd_tune(struct options *o);    /* tune/ */

#endif
