/* SPDX-License-Identifier: Apache-2.0 */
/* plan_test.c - every key of every plan at its extremes, and plans drawn at random, on cases of
 * tests/kernels: a value is refused by a message that names the key; or the kernel ends, gives the
 * answers of float64 with each tensor and the workspace between pages that nobody may touch, and
 * asks for little more workspace than without it. Keys and bounds are what `moegen list keys` says.
 * Each key has a process of its own.
 *
 *     plan_test DIRECTORY [FAMILY [COUNT [SEED]]]       COUNT: random plans of a family */
#include <stddef.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "pages.h"
#include "plan_keys.h"

enum {
    SECONDS = 60,  /* of a value: of the processors */
    COUNT = 4,     /* random plans of a family */
    TOO_MUCH = 16, /* times the workspace that is taken by default */
    TAKEN = 16     /* exit status of a process: so much more than the plans that were taken */
};

struct choice { /* of a kernel */
    const char *path, *name, *dtype, *target;
};

static moegen_engine *engine;
static struct listing targets;
static char *tried; /* what a process of its own tries: shared with it */
static uint64_t state = 1;

static int64_t draw(int64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(state >> 33) % n;
}

/* ---- kernels ---- */

/* A spec with these settings; text and overrides stay until the next one. */
static moegen_spec spec_of(const struct choice *c, const struct setting *s, int count)
{
    static char text[65536];
    static moegen_override set[3 + KEYS];
    size_t sets = 0, len = text_of_case(c->path, c->name, text, sizeof text);
    set[sets++] = (moegen_override){"target", c->target};
    set[sets++] = (moegen_override){"spelling", strcmp(c->target, "auto") ? "scalar" : "auto"};
    if (c->dtype)
        set[sets++] = (moegen_override){"dtype", c->dtype};
    for (int i = 0; i < count; i++)
        set[sets++] = (moegen_override){s[i].key->name, s[i].value};
    return (moegen_spec){.struct_size = sizeof(moegen_spec),
                         .text = text,
                         .len = len,
                         .label = c->path,
                         .kernel = c->name,
                         .overrides = set,
                         .override_count = sets};
}

/* Is there a plan with these settings? */
static moegen_status explain(const struct choice *c, const struct setting *s, int count,
                             moegen_error **err)
{
    struct ask ask = {0};
    struct text text = {0};
    moegen_spec spec = spec_of(c, s, count);
    moegen_status status = ask_open(&ask, engine, &spec, "jit", err);
    if (!status)
        status = ask_explain(&ask, engine, &text, err);
    ask_close(&ask);
    text_free(&text);
    return status;
}

static void say_where(const struct choice *c, const struct setting *s, int count)
{
    int at = snprintf(where, sizeof where, "%s:%s --set dtype=%s --set target=%s", c->path, c->name,
                      c->dtype ? c->dtype : "", c->target);
    for (int i = 0; i < count && at < (int)sizeof where; i++)
        at += snprintf(where + at, sizeof where - (size_t)at, " --set %s=%s", s[i].key->name,
                       s[i].value);
    memcpy(tried, where, sizeof where);
}

/* The last part of a key: what messages call it. */
static const char *short_name(const struct key *k)
{
    return strrchr(k->name, '.') + 1;
}

static void judge_refusal(moegen_status status, moegen_error *err, const struct setting *s,
                          int count)
{
    bool named = false;
    for (int i = 0; i < count; i++)
        named = named || (err && strstr(moegen_error_text(err), short_name(s[i].key)));
    if (status != MOEGEN_BAD_SPEC || !named)
        complain("refused, but not for a key", err ? moegen_error_text(err) : "no reason");
}

/* ---- trials, in a process of their own ---- */

static void too_long(int signal)
{
    printf("FAIL %s: does not end (signal %d)\n", where, signal);
    fflush(stdout);
    _exit(4);
}

/* A value has this much time: of the processors, and on the clock if all wait. */
static void arm(void)
{
    struct itimerval limit = {.it_value = {.tv_sec = SECONDS}};
    setitimer(ITIMER_PROF, &limit, NULL);
    alarm(10 * SECONDS);
}

static const struct trial {
    int64_t tokens;
    const char *routing;
    int threads;
    enum placing how;
} trials[] = {{19, "skewed", 3, AT_END}, {70, "uniform", 1, AT_START}};
enum { TRIALS = sizeof trials / sizeof *trials };

/* Lane by lane: the first trial only. */
static int trials_of(const struct choice *c)
{
    return strcmp(c->target, "auto") ? 1 : TRIALS;
}

struct bench { /* inputs and answers of a kernel, and the workspace that it takes by default */
    moegen_rt_problem *in[TRIALS], *want[TRIALS];
    size_t bytes[TRIALS];
    const char *runs; /* of weights that are packed for its plan, or NULL */
};

static void open_bench(struct bench *b, const struct choice *c, const moegen_kernel *kernel)
{
    const moegen_rt_reference *family = moegen_rt_reference_find(kernel->unit->facts.family);
    moegen_rt_want what = {.padding_is_zero = 1};
    moegen_rt_error why = {{0}};
    b->runs = moegen_kernel_param(kernel, "weights.run");
    for (int i = 0; i < trials_of(c); i++) {
        b->in[i] = inputs(kernel, trials[i].tokens, trials[i].routing);
        b->want[i] = moegen_rt_problem_create();
        if (family->compute(b->in[i], &what, b->want[i], &why))
            complain("no reference", why.text);
        workspace_limit = SIZE_MAX;
        run(kernel, b->in[i], b->want[i], trials[i].threads, trials[i].how);
        b->bytes[i] = workspace_bytes;
    }
}

/* Was the plan taken? */
static bool try_plan(const struct bench *b, const struct choice *c, const struct setting *s,
                     int count)
{
    moegen_spec spec = spec_of(c, s, count);
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    say_where(c, s, count);
    arm();
    moegen_status status = moegen_kernel_get(engine, &spec, &kernel, &err);
    if (status)
        judge_refusal(status, err, s, count);
    for (int i = 0; i < trials_of(c) && !status; i++) {
        bool moved = b->runs && strcmp(b->runs, moegen_kernel_param(kernel, "weights.run")) != 0;
        moegen_rt_problem *in =
            moved ? inputs(kernel, trials[i].tokens, trials[i].routing) : b->in[i];
        workspace_limit = TOO_MUCH * b->bytes[i];
        run(kernel, in, b->want[i], trials[i].threads, trials[i].how);
        if (moved)
            moegen_rt_problem_destroy(in);
    }
    moegen_error_release(err);
    moegen_kernel_release(kernel);
    return !status;
}

/* Plans of one kernel, each of `each` settings: how many were taken; -1 after complaints. */
static int try_plans(const struct choice *c, const struct setting *s, int plans, int each)
{
    moegen_spec spec = spec_of(c, NULL, 0);
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    struct bench b = {0};
    int taken = 0;
    name_faults();
    signal(SIGPROF, too_long);
    signal(SIGALRM, too_long);
    say_where(c, NULL, 0);
    arm();
    failures = 0;
    if (moegen_kernel_get(engine, &spec, &kernel, &err))
        complain("cannot be made", moegen_error_text(err));
    else
        open_bench(&b, c, kernel);
    for (int i = 0; i < plans && !failures; i++)
        taken += try_plan(&b, c, s + (ptrdiff_t)i * each, each);
    moegen_error_release(err);
    moegen_kernel_release(kernel);
    for (int i = 0; i < TRIALS; i++) {
        moegen_rt_problem_destroy(b.in[i]);
        moegen_rt_problem_destroy(b.want[i]);
    }
    return failures ? -1 : taken;
}

/* The same in a new process: how many were taken. */
static int in_new_process(const struct choice *c, const struct setting *s, int plans, int each)
{
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int taken = try_plans(c, s, plans, each);
        fflush(stdout);
        _exit(taken < 0 ? 1 : TAKEN + taken);
    }
    if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
        WEXITSTATUS(status) >= TAKEN)
        return WEXITSTATUS(status) - TAKEN;
    memcpy(where, tried, sizeof where);
    complain("a process fails", WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "see above");
    return 0;
}

/* ---- every key at its extremes ---- */

/* The next case from number `first` on whose kernel has a use for a key; -1: none. */
static int user_of(const struct family *f, const struct key *k, int first, struct choice *c)
{
    struct setting s[VALUES];
    int count = values_of(k, s, false);
    for (int i = 0; i < f->case_count; i++) {
        int at = (first + i) % f->case_count;
        bool other = true; /* may another value be taken? */
        c->name = f->cases[at];
        for (int v = 0; v < count && other; v++) {
            moegen_error *err = NULL;
            if (!explain(c, &s[v], 1, &err))
                return at;
            other = !strstr(moegen_error_text(err), "this kernel does not use");
            moegen_error_release(err);
        }
    }
    return -1;
}

/* The same, of any dtype from number `turn` on. */
static int of_any_dtype(const struct family *f, const struct key *k, int first, int turn,
                        struct choice *c)
{
    int at = -1;
    for (size_t d = 0; d < io_dtypes()->count && at < 0; d++) {
        c->dtype = io_dtype_in_turn(turn + (int)d);
        at = user_of(f, k, first, c);
    }
    return at;
}

/* The case with the most panels and products, in families that have such a one; NULL. */
static const char *long_case(const struct family *f)
{
    for (int i = 0; i < f->case_count; i++)
        if (strcmp(f->cases[i], "long") == 0)
            return f->cases[i];
    return NULL;
}

static void sweep(struct family *f, const char *emulated)
{
    for (int i = 0; i < f->keys; i++) {
        struct key *k = &f->key[i];
        struct setting s[VALUES];
        int first = 0;
        for (int turn = 0; turn < 2; turn++, first = (int)draw(f->case_count)) {
            struct choice c = {f->path, NULL, NULL, turn ? emulated : "auto"};
            if (of_any_dtype(f, k, first, i + turn, &c) >= 0)
                k->ran += in_new_process(&c, s, values_of(k, s, turn > 0), 1);
        }
        const struct choice widest = {f->path, long_case(f), io_dtype_in_turn(i), "auto"};
        if (widest.name)
            k->ran += in_new_process(&widest, s, values_of(k, s, true), 1);
        for (size_t t = 0; t < targets.count && !k->ran; t++) { /* a target's own, lane by lane */
            struct choice c = {f->path, NULL, NULL, targets.item[t].name};
            if (of_any_dtype(f, k, 0, 0, &c) >= 0)
                k->ran += in_new_process(&c, s, values_of(k, s, true), 1);
        }
        snprintf(where, sizeof where, "%s", f->name);
        if (!k->ran)
            complain(k->name, "no case has a use for it");
    }
}

/* ---- plans at random ---- */

static void draw_value(struct setting *s)
{
    const struct key *k = s->key;
    int bits = 0;
    while (k->most >> bits)
        bits++;
    int64_t value = ((int64_t)1 << draw(bits + 1)) + (draw(4) ? 0 : draw(9) - 4);
    value = value < k->least ? k->least : value > k->most ? k->most : value;
    if (k->words)
        snprintf(s->value, sizeof s->value, "%s", k->word[draw(k->words)]);
    else
        snprintf(s->value, sizeof s->value, "%" PRId64, value);
}

/* Which setting the first complaint is about. */
static int blamed(const moegen_error *err, const struct setting *s, int count)
{
    for (int i = 0; i < count; i++) {
        char label[96];
        snprintf(label, sizeof label, "--set %s=", s[i].key->name);
        if (err && err->count && strncmp(err->diag[0].file, label, strlen(label)) == 0)
            return i;
    }
    return -1;
}

/* Settings of about half the keys, without those that are refused beside the others. */
static int draw_plan(const struct family *f, const struct choice *c, struct setting s[KEYS])
{
    int count = 0;
    for (int i = 0; i < f->keys; i++) {
        s[count].key = &f->key[i];
        draw_value(&s[count]);
        count += draw(3) > 0;
    }
    for (moegen_error *err = NULL; explain(c, s, count, &err); err = NULL) {
        int bad = blamed(err, s, count);
        if (bad < 0)
            judge_refusal(MOEGEN_INTERNAL, err, s, count);
        moegen_error_release(err);
        if (bad < 0)
            return 0;
        s[bad] = s[--count];
    }
    return count;
}

static int try_at_random(struct family *f, const char *emulated, int plans)
{
    int taken = 0;
    for (int i = 0; i < plans; i++) {
        struct setting s[KEYS];
        struct choice c = {f->path, f->cases[draw(f->case_count)], io_dtype_in_turn(draw(60)),
                           i % 3 == 2 ? emulated : "auto"};
        say_where(&c, NULL, 0);
        int count = draw_plan(f, &c, s);
        if (count)
            taken += in_new_process(&c, s, 1, count);
    }
    return taken;
}

int main(int argc, char **argv)
{
    moegen_engine_options options = {.struct_size = sizeof options, .cache_dir = ""};
    const char *only = argc > 2 ? argv[2] : "";
    int count = argc > 3 ? atoi(argv[3]) : COUNT, keys = 0, ran = 0, taken = 0;
    struct listing all = {0};
    tried = mmap(NULL, sizeof where, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    families.room = 16;
    families.at = calloc((size_t)families.room, sizeof *families.at);
    state += argc > 4 ? (uint64_t)atoll(argv[4]) : 0;
    if (tried == MAP_FAILED || !families.at || moegen_engine_create(&options, &engine, NULL) ||
        host_list("keys", &all, NULL) || host_list("targets", &targets, NULL))
        return 2;
    if (argc < 2 || each_case(argv[1], only, add_case, NULL) < 0) {
        fprintf(stderr, "usage: plan_test DIRECTORY [FAMILY [COUNT [SEED]]]\n");
        return 2;
    }
    for (int i = 0; i < families.count; i++) {
        struct family *f = &families.at[i];
        read_keys(f, &all);
        sweep(f, "scalar");
        taken += f->keys ? try_at_random(f, "scalar", count) : 0;
        keys += f->keys;
        for (int k = 0; k < f->keys; k++)
            ran += f->key[k].ran;
    }
    printf("%d keys, %d values taken, %d plans taken, %d complaints\n", keys, ran, taken, failures);
    listing_free(&all);
    listing_free(&targets);
    moegen_engine_release(engine);
    free(families.at);
    return failures != 0 || keys == 0 || ran == 0;
}
