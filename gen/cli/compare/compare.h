/* SPDX-License-Identifier: Apache-2.0 */
/* compare.h - what the files of `moegen compare` share: results of benches, benches in fresh
 * processes, and duels, which paired.h judges. */
#ifndef MOEGEN_COMPARE_H
#define MOEGEN_COMPARE_H

#include <sys/types.h>

#include "cli/bench/bench.h"
#include "tune/paired.h"

/* ---- json.c: text to nodes that remember where they stood ---- */

enum json_kind {
    JSON_MAP,
    JSON_LIST,
    JSON_TEXT,
    JSON_PLAIN
}; /* plain: number, true, false, null */
/* In `json.node`, in the order of the text: a node's children follow it, of a map a key before each
 * value. */
struct json_node {
    enum json_kind kind;
    int line, col, len; /* 1-based, code points */
    int after;          /* the first node that is not inside of it */
    char *text;         /* of text and plain */
};
struct json {
    const char *label; /* lent, with the text, for complaints */
    const char *text;
    size_t len;
    struct json_node *node; /* the first is the document */
    int nodes, room;
};
/* Refuses what is too large, too deep or not JSON, with its place. Free it in any case. */
moegen_status json_read(struct json *j, const char *label, const char *text, size_t len,
                        moegen_error **err);
void json_free(struct json *j);
/* What `parse` makes of a file of at most so many bytes, in `to`; an exit code. */
typedef moegen_status json_parser(void *to, const char *label, const char *text, size_t len,
                                  moegen_error **err);
int json_file(const char *path, size_t most, json_parser *parse, void *to);
/* A complaint at a node, in printf form. */
moegen_status json_refuse(const struct json *j, int node, moegen_error **err, const char *format,
                          ...) __attribute__((format(printf, 4, 5)));
/* The value of a key in *value; 0, which is no value, where the map has none. Refuses a node that
 * is no map, and a key that is there twice. */
moegen_status json_find(const struct json *j, int map, const char *key, int *value,
                        moegen_error **err);
/* The same where one must be there: text; a number from low to high. */
moegen_status json_get_text(const struct json *j, int map, const char *key, const char **out,
                            moegen_error **err);
moegen_status json_get_number(const struct json *j, int map, const char *key, double low,
                              double high, double *out, moegen_error **err);
/* The same, or NAN where it is null or not there. */
moegen_status json_may_number(const struct json *j, int map, const char *key, double low,
                              double high, double *out, moegen_error **err);
/* The same; *out is left alone where it is not there. */
moegen_status json_may_text(const struct json *j, int map, const char *key, const char **out,
                            moegen_error **err);
/* Is it there, and true? */
moegen_status json_may_true(const struct json *j, int map, const char *key, bool *out,
                            moegen_error **err);
/* A node that must be a list; 0 where the key is not there is refused. */
moegen_status json_get_list(const struct json *j, int map, const char *key, int *list,
                            moegen_error **err);
/* A node that must be a number. */
moegen_status json_as_number(const struct json *j, int node, double low, double high, double *out,
                             moegen_error **err);

/* ---- results.c: what `bench --json` wrote ---- */

/* One variant of one kernel. */
struct measured {
    char *kernel, *variant; /* owned */
    int64_t T, threads;
    double *seconds; /* of each sample, in their order; or see results_read */
    int samples;
};
struct results {
    char *cpu; /* owned */
    bool cold;
    struct measured *row;
    int rows;
};
/* Rows without a sample (their outputs were wrong) are left out. of_roof: times are not seconds but
 * multiples of what the roof of their run allows. Free it in any case. */
moegen_status results_read(struct results *r, const char *label, const char *text, size_t len,
                           bool of_roof, moegen_error **err);
void results_free(struct results *r);
double median_of(const double *at, int count); /* NAN: none, or no memory, see lost() */

/* ---- duels.c: B against A ---- */

/* One kernel: medians of pairs of runs. */
struct duel {
    char *kernel, *a_variant, *b_variant; /* owned */
    int64_t T, threads;
    double *a, *b; /* seconds of each pair */
    int pairs, room;
    double a_seconds, b_seconds; /* medians of those */
    struct paired paired;
};
struct duels {
    char *cpu; /* A's, or NULL; owned */
    struct duel *row;
    int rows;
    struct paired overall; /* of the geometric mean of all kernels' ratios */
    bool lost;             /* out of memory */
};
/*
 * Adds a pair for each kernel that both have: of the medians of all its samples, or with parts > 1
 * as many pairs, of the medians of the first, second, ... part of them. Kernels are the same by
 * name, variant, T and threads, or by name alone where each has one that is left. Returns how many
 * of A and B found no partner.
 */
enum { IN_TURNS = 0 }; /* parts: samples were taken in turns, their ratios' median counts */
int duels_add(struct duels *d, const struct results *a, const struct results *b, int parts);
int duels_judge(struct duels *d, double margin); /* fills medians, paired, overall; an exit code */
/* Of `processes` each, less than PAIRED_LEAST, whose parts were the pairs: a busy machine alone
 * makes one process take up to twice as long as another, so smaller differences become noisy. */
void duels_doubt(struct duels *d, int processes, int parts);
bool duels_settled(const struct duels *d); /* is nothing noisy? */
void duels_free(struct duels *d);

/* ---- fresh.c: benches in fresh processes ---- */

/* What a process is to bench: words after `moegen bench`, without --json. Starts as {0}. */
struct side {
    const char *program; /* another version of moegen, lent; NULL: this very program */
    char **word;         /* owned */
    int words;
    bool lost; /* out of memory */
};
void side_add(struct side *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Options that all sides share: which kernel it is, and how it is called, too. */
void side_add_kernel(const struct options *o, struct side *s);
void side_add_options(const struct options *o, struct side *s);
void side_free(struct side *s);
/* One process of the side's program: posix_spawn, so that nothing of this one's memory matters. Its
 * complaints go to stderr; an exit code, its own where it fails. of_roof: as of results_read. Free
 * the results in any case. */
int fresh_bench(const struct side *s, bool without_notes, bool of_roof, struct results *out);

/* The parts of that. Starts one with these words more ("": none) and ends of pipes or sockets,
 * closed on exec, as stdin (-1: this one's) and stdout; an errno. */
int bench_start(const struct side *s, const char *more, bool without_notes, int in, int out,
                pid_t *child);
int bench_not_started(const struct side *s, int why); /* complains, and returns an exit code */
/* Is there something to read, or an end, by `until`? (As of seconds_now; INFINITY: waits.) */
bool bench_says(int from, double until);
/* Reads what it still says after `json` from `from`, closes that and waits for it; one that says
 * more than there may be is killed, and so is one that is not at its end by `until`: then *late.
 * Its wait status. */
int bench_end(pid_t child, int from, double until, struct text *json, bool *late);
/* What it measured. Complains, and returns an exit code. */
int bench_result(const struct side *s, int status, const struct text *json, bool of_roof,
                 struct results *out);

/* ---- turns.c: two benches that take turns ---- */

struct limits {
    double seconds; /* of each kernel in each process; 0: see turns_play */
    double margin;  /* see paired.h */
    int pairs;      /* exactly so many; 0: until nothing is noisy, or */
    double budget;  /* ... so many seconds are over, looked at after each kernel, */
    double longest; /* or so many, as long as within them all would be clear, and B be faster */
};

/* Two processes at once, of which one runs while the other waits: A B, B A, ...; samples of the
 * same kernel are of both in the same order. limits->seconds: of each variant; 0: as long as the
 * kernel's inputs took to fill, and at least the usual, since less would be spent on few runs, and
 * more on those of one process. No kernel is begun after `until`. Another program that is silent
 * for the whole budget, and for much longer than this one, is refused. An exit code. Free the
 * results in any case. */
int turns_play(const struct side *a, const struct side *b, const struct limits *limits,
               double until, bool without_notes, struct results *of_a, struct results *of_b);

/* sides >= 2, the first is A: runs A and B, A and C, ... in turns and fills out[0 .. sides - 2],
 * which start as {0} and are judged: each other side against A. An exit code. */
int fresh_duels(const struct side *side, int sides, const struct limits *limits, struct duels *out);

/* ---- show.c: tables, Markdown, JSON ---- */

/* B against A. */
struct shown {
    const char *a, *b; /* a file, a variant */
    bool of_files;     /* then variants are of each kernel */
    bool of_roof;      /* times are multiples of what the roof allows */
    struct duels duels;
};
/* A time of a duel for a reader, in `out`: seconds, or a share of the roof. */
const char *show_took(char out[32], const struct shown *s, double took);
/* Adds the kernel's name, with its variant where files are compared. */
void duel_name(const struct shown *s, const struct duel *d, struct text *out);
void compared_table(const struct shown *s, int count, struct table *t);
/* All against one A. An exit code: EXIT_FAILED where something is slower than --fail-below. */
int show_compared(const struct options *o, const struct shown *s, int count, double margin);

/* ---- plot.c ---- */

/* A picture of the same. False: out of memory. */
bool compared_svg(const struct shown *s, int count, double margin, const char *title,
                  const char *command, struct text *out);

#endif
