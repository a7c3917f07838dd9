/* SPDX-License-Identifier: Apache-2.0 */
/* tune.h - finding the plan that is fastest here: what may be chosen, the runs that it is measured
 * with, the search, and the file that the winner goes to. */
#ifndef MOEGEN_TUNE_H
#define MOEGEN_TUNE_H

#include "paired.h"
#include "reference/kept.h"
#include "trial/trial.h"

enum { MAX_COURSES = 8, MAX_KNOBS = 48, MAX_VALUES = 12 };

double tune_now(void); /* seconds */

/* ---- space.c: what may be chosen ---- */

/* A key of the plan that the spec leaves open, and values beside the planner's own. */
struct knob {
    char *key, *value[MAX_VALUES]; /* owned */
    int values;
};
struct space {
    char *spec, *target; /* of an entry of a file of tuned plans; owned */
    struct knob knob[MAX_KNOBS];
    int knobs;
};
/* Of each knob the number of a value, or -1: the planner's own. */
struct choice {
    signed char at[MAX_KNOBS];
};
moegen_status space_read(struct space *s, moegen_engine *engine, const moegen_spec *spec,
                         moegen_error **err);
void space_free(struct space *s);
int space_plans(const struct space *s); /* values of all knobs */
struct choice choice_none(void);
/* `best` with one knob turned. */
struct choice choice_with(const struct choice *best, int knob, int value);
bool choice_is_none(const struct choice *c);
/* The same knobs with the same values? */
bool space_same(const struct space *a, const struct space *b);
/* Room for MAX_KNOBS at *out; returns how many were filled in. Strings are lent. */
int choice_overrides(const struct space *s, const struct choice *c, moegen_override *out);
/* "plan.tile_rows=12 plan.mc=8" */
void choice_text(const struct space *s, const struct choice *c, struct text *out);
/* "{tile_rows: 12, experts: {mc: 8}}" */
void choice_yaml(const struct space *s, const struct choice *c, struct text *out);
/* A number of a knob's value doubled or halved, away from what it was before: the number of the
 * value it added; -1: none, since it is no number, or there is no room. */
int knob_farther(struct knob *k, int value);

/* ---- course.c: the runs ---- */

/* A layer that stands for the spec's: of fewer experts, narrower where those are large. */
enum { SMALL_KEYS = 3 };
struct small {
    int64_t experts, chosen, width; /* 0: as in the spec */
    int64_t tokens;                 /* of its calls */
    char text[SMALL_KEYS][24];
};
/* Calls of one number of tokens: the planner's own kernel bound to inputs, and what is right. */
struct course {
    struct small small;
    int64_t tokens; /* that it tells of */
    struct trial trial;
    moegen_rt_problem *in, *want;
    struct rt_kept kept[MAX_ARGS]; /* in the place of outputs in `want`, by their number */
    struct stand stand;
    double error;   /* of the planner's own choice: the worst relative L2 of its outputs */
    int batch;      /* runs of a sample */
    double seconds; /* of one */
    bool lends;     /* its stand is open */
    bool waits;     /* is left out of a first look at plans */
    struct stopwatch watch;
};
/* Of c->small.tokens; c is else zero, but for what it tells of. Weights are those of `like`, of as
 * many experts and as wide, or NULL. */
moegen_status course_open(struct course *c, const struct course *like, const moegen_kernel *kernel,
                          int threads, moegen_error **err);
void course_close(struct course *c);
/* Has an argument the same extents however many tokens there are? */
bool arg_is_fixed(const moegen_arg *a);
/* Seconds of a run, of a call on the course's tensors; NAN: it failed. */
double course_time(struct course *c, moegen_call *call);
/* Are its results as right as those of the planner's own choice? */
moegen_status course_check(struct course *c, moegen_call *call, bool *right, moegen_error **err);

/* ---- model.c: what no plan can do ---- */

enum { MAX_RATES = 8 };
struct model {
    bool used;
    int threads;
    struct rate {
        char target[64], op[32];
        double flops; /* per second and thread; NAN: not known */
    } rate[MAX_RATES];
    int rates;
    double bytes; /* per second, that all threads together read of memory; NAN: not known */
    double cache; /* bytes of the last one */
};

/* ---- search.c ---- */

enum { MOST_SET = SMALL_KEYS + MAX_KNOBS };
/* A plan and its kernels, ready to run on every course. */
struct candidate {
    struct choice choice;
    moegen_kernel *kernel[MAX_COURSES]; /* the same one for layers of the same size */
    moegen_call *call[MAX_COURSES];
    double gain; /* log of its speed over that of the plan it was compared with */
};
/* A moment of a search, for its history. */
struct moment {
    double at, ratio, best; /* seconds; of the plan tried then, of the best; over the planner's */
};
struct search {
    moegen_engine *engine;
    moegen_spec spec; /* overrides[0 .. own) are the caller's, there is room for MOST_SET more */
    moegen_override *set;
    size_t own;
    const moegen_tune_options *options;
    struct space space;
    struct course course[MAX_COURSES];
    int courses, threads, smaller; /* smaller: courses of layers that stand for the spec's */
    struct candidate base, best;   /* the planner's own choice; what is better so far */
    struct model model;
    int looked_at, pruned; /* turns; of them those that the model or their code says nothing of */
    int missed;            /* turns from the planner's own choice that there was no time for */
    int waited;            /* the most courses that were left out of a first look */
    double best_gain;
    bool lenient;        /* another confirms the best, unless the callback stops this */
    double making;       /* seconds that generating and compiling took */
    double filling;      /* until all tensors were there and the planner's own results were right */
    double begin, until; /* until: the search; then the best is confirmed */
    double confirm_until;
    int stops; /* how often the callback said so */
    struct moment *history;
    int moments, room;
    struct paired paired; /* of the best, in the end */
    bool worse;           /* for one of the courses */
};
moegen_status search_open(struct search *s, moegen_error **err);
moegen_status search_run(struct search *s, moegen_error **err);
void search_close(struct search *s);
bool search_stopped(const struct search *s);
/* To the callback, and to the history. gain: NAN: not measured. */
void search_tell(struct search *s, const char *what, const struct choice *tried, double gain,
                 int done, int all);
/* The kernel of a choice for one course. */
moegen_status candidate_kernel(struct search *s, const struct choice *choice, int course,
                               moegen_kernel **kernel, moegen_error **err);
/* c->choice's kernels and calls. *legal: no such plan, or none that takes these tensors. */
moegen_status candidate_open(struct search *s, struct candidate *c, bool *legal,
                             moegen_error **err);
void candidate_close(struct candidate *c);
/* Do they run the same machine code? */
bool candidate_same_code(const struct search *s, const struct candidate *a,
                         const struct candidate *b);

/* ---- courses.c ---- */

bool small_is(const struct small *s); /* than the spec's? */
/* Room for SMALL_KEYS at *out; returns how many were filled in. Strings are lent. */
int small_overrides(const struct small *s, moegen_override *out);
extern double stand_in_caches; /* last caches that weights must not fit; for tests: 0 */
/* whole: nothing stands for the kernel's own layer. */
moegen_status courses_open(struct search *s, const moegen_kernel *kernel, const int64_t *tokens,
                           int count, bool whole, moegen_error **err);
/* Those of the layer itself in place of those that stood for it. *legal: the best plan is one for
 * it, too. */
moegen_status courses_whole(struct search *s, bool *legal, moegen_error **err);
void courses_close(struct search *s);

/* Measures this machine, for calls of such a kernel. */
void model_open(struct model *m, moegen_engine *e, const moegen_kernel *kernel, int threads);
/* The most that a candidate can gain over the best, log of a ratio; INFINITY: nothing is known. */
double model_gain(struct search *s, const struct candidate *c);
/* Can it not be faster than the best? Never of the planner's own choice. */
bool model_prunes(struct search *s, const struct candidate *c);
/* Is what it says of the planner's own choice possible? Else it is not used. */
bool model_check(struct search *s);
extern void (*model_hook)(struct model *m); /* for tests: changes what was measured */

/* ---- screen.c ---- */

/* One knob turned to one value, and what that gains over the best: the mean of some looks. */
struct turn {
    int knob, value, looks;
    double gain;
};
enum { MOST_TURNS = MAX_KNOBS * MAX_VALUES };
/* Seconds of a run of all courses; of a search in which there is time for a look at so many. */
double screen_once(const struct search *s);
double screen_enough(const struct search *s, int plans);
/* Fills turn[0 .. *count) with those that are worth more than a look, the fastest first. */
moegen_status screen(struct search *s, struct turn *turn, int *count, moegen_error **err);

/* ---- ahead.c ---- */

/* Makes the kernels of all turns from the best on all CPUs, in processes that have ended when it
 * returns. What cannot be made is left to whoever wants it. */
void make_ahead(struct search *s, const struct turn *turn, int count);

/* ---- file.c ---- */

struct moegen_tuning {
    struct text plan, yaml; /* of the winner, or empty */
    struct text spec, target;
    int64_t least, most; /* tokens */
    int threads;
    struct paired paired;
    struct text entry;
    struct moment *history;
    int moments;
    int64_t experts[2];    /* least and most of layers that stood for the spec's; 0: none did */
    int64_t width;         /* I_TP of narrower ones; 0: none was */
    int plans, missed;     /* all turns from the planner's own choice; those without a look */
    int looked_at, pruned; /* plans */
    int waited;            /* longest courses that were left out of a first look */
    double making, took;   /* seconds: of generating and compiling; of the search */
    double once, enough;   /* seconds: of a run of all courses; in which all plans are tried */
    double filling;        /* of it until the first plan was tried */
    bool modelled;         /* false: the model was wrong of the planner's own choice */
};
/* moegen_tune without a file; lenient: the best is confirmed by the caller, unless the callback
 * stopped the search. */
moegen_status tune(moegen_engine *engine, const moegen_spec *spec,
                   const moegen_tune_options *options, bool lenient, moegen_tuning **tuning,
                   moegen_error **err);
/* The entry, with these figures. False: out of memory. */
bool tuning_entry(moegen_tuning *t, double ratio, double low, double high, int pairs);
/* Could tuning_write put an entry there? Asked before a search, which takes minutes. */
moegen_status tuning_ready(moegen_engine *engine, const char *path, moegen_error **err);
/* Puts the entry into the file: in place of the one for the same spec, tokens, threads and target,
 * or before the others. path "": this CPU's own. *pinned: that one is pinned, nothing was
 * written. */
moegen_status tuning_write(const moegen_tuning *t, moegen_engine *engine, const char *path,
                           bool *pinned, moegen_error **err);

#endif
