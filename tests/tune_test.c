/* SPDX-License-Identifier: Apache-2.0 */
/* tune_test.c - moegen_tune: its steps, how it stops, options that are refused; and files of tuned
 * plans: entries are added, replaced or left alone, comments stay, several write at once or are
 * killed, and what is no such file is refused and keeps its bytes. Whether a search finds something
 * depends on the machine, so that no test asks. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "tune/tune.h"

static const char toy[] =
    "kernel: moe_forward\nname: toy\ndtype: f32\nH: 64\nI_TP: 32\nE: 4\ntop_k: 2\n"
    "block_size: 16\n";
static char folder[] = "/tmp/moegen-tune-XXXXXX", path[64];

static moegen_spec spec_of(const char *text)
{
    return (moegen_spec){.struct_size = sizeof(moegen_spec), .text = text, .len = strlen(text)};
}

/* ---- searches ---- */

struct seen {
    int steps, measured, stop_at, stops;
    bool right;
};

static int on_step(void *user, const moegen_tune_step *step)
{
    struct seen *s = user;
    s->steps++;
    s->measured += isfinite(step->ratio);
    s->right = s->right && step->struct_size == sizeof *step && step->what && step->plan &&
               step->best && step->best_ratio > 0 && step->tried >= 0 && step->seconds_left >= 0 &&
               (!*step->plan || strncmp(step->plan, "plan.", 5) == 0);
    bool stop = s->stop_at && s->steps >= s->stop_at;
    s->stops += stop;
    return stop;
}

static void test_search(moegen_engine *engine)
{
    const int64_t tokens[] = {5, 1};
    struct seen seen = {.right = true};
    moegen_spec spec = spec_of(toy);
    moegen_tuning *t = NULL;
    moegen_error *err = NULL;
    moegen_tune_options o = {.struct_size = sizeof o, .tokens = tokens, .token_count = 2};
    o.seconds = 0.4;
    o.threads = 1;
    o.step = on_step;
    o.user = &seen;
    moegen_status status = moegen_tune(engine, &spec, &o, &t, &err);
    CHECK(!status, "%s", moegen_error_text(err));
    CHECK(seen.right && seen.measured > 0, "%d steps, %d measured", seen.steps, seen.measured);
    double low, high, ratio = moegen_tuning_ratio(t, &low, &high);
    CHECK(low <= ratio && ratio <= high, "%g is not in %g..%g", ratio, low, high);
    bool won = *moegen_tuning_plan(t);
    CHECK(won == (*moegen_tuning_entry(t) != 0), "a plan without an entry, or the reverse");
    CHECK(!won || strstr(moegen_tuning_entry(t), "tokens: [1, 5]"), "%s", moegen_tuning_entry(t));
    moegen_tuning_release(t);

    seen = (struct seen){.right = true, .stop_at = 3};
    t = NULL;
    o.seconds = 1000; /* it is stopped long before */
    double start = tune_now();
    CHECK(!moegen_tune(engine, &spec, &o, &t, &err), "stopped: %s", moegen_error_text(err));
    CHECK(seen.stops >= 1, "it was not stopped");
    CHECK(tune_now() - start < 500, "it went on");
    moegen_tuning_release(t);
}

/* ---- the model ---- */

static void without_memory(struct model *m)
{
    m->bytes = 1e-3; /* a second */
    m->cache = 0;
}

static int on_model_step(void *user, const moegen_tune_step *step)
{
    struct seen *s = user;
    s->stops += strcmp(step->what, "without a model") == 0;
    s->steps += strcmp(step->what, "pruned") == 0;
    s->right = s->right && step->pruned <= step->looked_at;
    s->measured = step->pruned;
    return 0;
}

static void test_model(moegen_engine *engine)
{
    static const int64_t tokens[] = {9};
    moegen_tune_options o = {.struct_size = sizeof o, .tokens = tokens, .token_count = 1};
    moegen_override set[MAX_KNOBS + 1] = {{"plan.tuned", "false"}};
    struct search s = {.engine = engine, .spec = spec_of(toy), .options = &o, .threads = 1};
    moegen_error *err = NULL;
    bool legal = false;
    s.own = s.spec.override_count = 1;
    s.set = malloc(sizeof set);
    memcpy(s.set, set, sizeof set);
    s.spec.overrides = s.set;
    s.until = s.confirm_until = tune_now() + 1000;
    CHECK(!search_open(&s, &err), "%s", moegen_error_text(err));
    CHECK(s.model.used, "the model of this machine says that the planner's own choice cannot be");
    CHECK(model_gain(&s, &s.base) > -0.05, "gain %g", model_gain(&s, &s.base));
    CHECK(!model_prunes(&s, &s.base), "the planner's own choice is pruned");
    struct candidate c = {.choice = choice_with(&s.base.choice, 0, 0)};
    for (int k = 0; k < s.space.knobs && !legal; k++) {
        candidate_close(&c);
        c.choice = choice_with(&s.base.choice, k, 0);
        CHECK(!candidate_open(&s, &c, &legal, &err), "%s", moegen_error_text(err));
    }
    CHECK(legal, "no plan is legal");
    CHECK(kernel_same_code(s.base.kernel, s.best.kernel), "the same plan, other code");
    /* Of a machine that hardly reads nothing is fast enough, but for what the planner chose. */
    without_memory(&s.model);
    CHECK(model_prunes(&s, &c), "it is not pruned");
    CHECK(!model_prunes(&s, &s.base), "the planner's own choice is pruned");
    CHECK(!model_check(&s) && !s.model.used, "what cannot be is believed");
    CHECK(!model_prunes(&s, &c), "a model that is not used prunes");
    candidate_close(&c);
    search_close(&s);

    /* The search notices such a model, says so, and goes on without it. */
    struct seen seen = {.right = true};
    moegen_spec spec = spec_of(toy);
    moegen_tuning *t = NULL;
    o.seconds = 0.4;
    o.threads = 1;
    o.step = on_model_step;
    o.user = &seen;
    model_hook = without_memory;
    CHECK(!moegen_tune(engine, &spec, &o, &t, &err), "%s", moegen_error_text(err));
    model_hook = NULL;
    CHECK(seen.stops == 1 && !t->modelled, "nobody noticed: %d", seen.stops);
    CHECK(seen.right && seen.steps == t->pruned && t->pruned <= t->looked_at, "%d of %d pruned, %d",
          t->pruned, t->looked_at, seen.steps);
    moegen_tuning_release(t);
    seen = (struct seen){.right = true};
    t = NULL;
    CHECK(!moegen_tune(engine, &spec, &o, &t, &err), "%s", moegen_error_text(err));
    CHECK(seen.stops == 0 && t->modelled, "the model of this machine is not used");
    moegen_tuning_release(t);
}

static void refused(moegen_engine *engine, const char *text, const moegen_tune_options *o,
                    moegen_status want, const char *word)
{
    moegen_spec spec = spec_of(text);
    moegen_tuning *t = NULL;
    moegen_error *err = NULL;
    moegen_status status = moegen_tune(engine, &spec, o, &t, &err);
    CHECK(status == want && !t && err && strstr(moegen_error_text(err), word), "%s: status %d, %s",
          word, (int)status, err ? moegen_error_text(err) : "no error");
    moegen_error_release(err);
    moegen_tuning_release(t);
}

static void test_refused(moegen_engine *engine)
{
    const int64_t none[] = {0}, two[] = {2}, many[MAX_COURSES + 1] = {1};
    moegen_tune_options o = {.struct_size = sizeof o, .seconds = 0.01};
    refused(engine, "kernel: moe_forward\nE: 4\n", &o, MOEGEN_BAD_SPEC, "missing");
    o.tokens = none;
    o.token_count = 1;
    refused(engine, toy, &o, MOEGEN_BAD_ARGUMENT, "less than 1");
    o.tokens = many;
    o.token_count = MAX_COURSES + 1;
    refused(engine, toy, &o, MOEGEN_BAD_ARGUMENT, "1 to 8 numbers");
    char fixed[sizeof toy + 16];
    snprintf(fixed, sizeof fixed, "%sT: 3\n", toy);
    o.tokens = two;
    o.token_count = 1;
    refused(engine, fixed, &o, MOEGEN_BAD_ARGUMENT, "the spec fixes them");
    o.struct_size = 3;
    refused(engine, toy, &o, MOEGEN_BAD_ARGUMENT, "struct_size");
}

/* ---- files ---- */

static moegen_tuning plan_of(int64_t least, int threads, const char *plan)
{
    moegen_tuning t = {.least = least, .most = 2 * least, .threads = threads};
    text_fmt(&t.spec, "{kernel: moe_forward, H: 64, I_TP: 32, E: 4, top_k: 2}");
    text_fmt(&t.target, "avx2");
    text_fmt(&t.yaml, "%s", plan);
    CHECK(tuning_entry(&t, 1.25, 1.2, 1.3, 8), "no entry");
    return t;
}

static void forget(moegen_tuning *t)
{
    text_free(&t->spec);
    text_free(&t->target);
    text_free(&t->yaml);
    text_free(&t->entry);
}

static moegen_status add(moegen_engine *engine, int64_t least, int threads, const char *plan,
                         bool *pinned, moegen_error **err)
{
    bool is_pinned = false;
    moegen_tuning t = plan_of(least, threads, plan);
    moegen_status status = tuning_write(&t, engine, path, &is_pinned, err);
    if (pinned)
        *pinned = is_pinned;
    forget(&t);
    return status;
}

static char *content(void)
{
    struct text t = {0};
    if (file_read(path, 1 << 20, &t))
        text_fmt(&t, "no file");
    return t.at;
}

static bool has(const char *word)
{
    char *all = content();
    bool found = strstr(all, word) != NULL;
    free(all);
    return found;
}

static void put(const char *text)
{
    CHECK(!file_write(path, text, strlen(text)), "cannot write %s", path);
}

static void test_entries(moegen_engine *engine)
{
    bool pinned;
    unlink(path);
    CHECK(!add(engine, 1, 2, "{tile_rows: 3}", NULL, NULL), "a new file");
    CHECK(!add(engine, 8, 2, "{tile_rows: 4}", NULL, NULL), "a second entry");
    CHECK(has("tile_rows: 3") && has("tile_rows: 4"), "one of two is not there");
    CHECK(!add(engine, 1, 2, "{tile_rows: 5}", NULL, NULL), "in place of one");
    CHECK(!has("tile_rows: 3") && has("tile_rows: 4") && has("tile_rows: 5"), "not replaced");
    CHECK(!add(engine, 1, 4, "{tile_rows: 6}", NULL, NULL), "other threads");
    CHECK(has("tile_rows: 5") && has("tile_rows: 6"), "other threads replace");

    char *all = content(), *own;
    struct text t = {0};
    const char *at = strstr(all, "  - spec");
    text_fmt(&t, "# mine\n%.*s      # about the first\n", (int)(at - all), all);
    for (const char *line = at; *line; line += strcspn(line, "\n") + 1)
        text_fmt(&t, "    %.*s\n%s", (int)strcspn(line, "\n"), line,
                 strstr(line, "tile_rows: 5") == strstr(line, "tile_rows") &&
                         strncmp(line, "    plan: ", 10) == 0 && strstr(line, "tile_rows: 5}\n")
                     ? "        pinned: true # it is best\n"
                     : "");
    text_fmt(&t, "# the end\n");
    put(t.at);
    CHECK(!add(engine, 1, 2, "{tile_rows: 7}", &pinned, NULL) && pinned, "a pinned one");
    own = content();
    CHECK(strcmp(own, t.at) == 0, "a file was written though the entry is pinned:\n%s", own);
    free(own);
    CHECK(!add(engine, 8, 2, "{tile_rows: 8}", &pinned, NULL) && !pinned, "beside a pinned one");
    CHECK(has("# mine") && has("# about the first") && has("# it is best") && has("# the end") &&
              has("tile_rows: 8") && !has("tile_rows: 4") && has("tile_rows: 6"),
          "something else is lost");
    text_free(&t);
    free(all);
}

static void keeps(moegen_engine *engine, const char *text, const char *word)
{
    moegen_error *err = NULL;
    put(text);
    moegen_status status = add(engine, 1, 1, "{tile_rows: 3}", NULL, &err);
    char *after = content();
    CHECK(status == MOEGEN_BAD_SPEC && err && strstr(moegen_error_text(err), word),
          "%s: status %d, %s", word, (int)status, err ? moegen_error_text(err) : "no error");
    CHECK(strcmp(after, text) == 0, "%s: the file was changed", word);
    free(after);
    moegen_error_release(err);
}

static void test_kept(moegen_engine *engine)
{
    char text[600];
    keeps(engine, "hello", "a map of");
    keeps(engine, "cpu: another\nplans: []\n", "another");
    keeps(engine, "cpu: [\n", "a value is expected");
    snprintf(text, sizeof text,
             "cpu: %s\nplans: [{spec: {kernel: moe_forward}, tokens: [1, 2], threads: 1, target: "
             "avx2, plan: {}, measured: {ratio: 1, low: 1, high: 1, pairs: 6, moegen: x}}]\n",
             moegen_rt_cpu_kind());
    keeps(engine, text, "begin with");
    snprintf(text, sizeof text, "# mine\ncpu: %s\nplans: []\n", moegen_rt_cpu_kind());
    put(text);
    CHECK(!add(engine, 1, 1, "{tile_rows: 3}", NULL, NULL), "into an empty list");
    CHECK(has("# mine") && has("tile_rows: 3"), "not in the list");
    char *whole = content();
    put(whole);
    CHECK(!add(engine, 8, 1, "{tile_rows: 4}", NULL, NULL), "and another");
    free(whole);
    moegen_error *err = NULL;
    char other[] = "/proc/no-such-directory/t.yaml";
    moegen_tuning t = plan_of(1, 1, "{}");
    bool pinned;
    CHECK(tuning_write(&t, engine, other, &pinned, &err) == MOEGEN_IO, "nowhere");
    moegen_error_release(err);
    forget(&t);
}

/* Processes that write at once lose no entry. */
static void test_crowd(moegen_engine *engine)
{
    enum { CROWD = 6 };
    unlink(path);
    for (int i = 0; i < CROWD; i++)
        if (fork() == 0) {
            char plan[40];
            snprintf(plan, sizeof plan, "{tile_rows: %d}", i + 1);
            _exit(add(engine, 1 + i, 1, plan, NULL, NULL) != MOEGEN_OK);
        }
    int status, failed = 0;
    while (wait(&status) > 0)
        failed += status != 0;
    CHECK(!failed, "%d of %d writers failed", failed, CROWD);
    for (int i = 0; i < CROWD; i++) {
        char plan[40];
        snprintf(plan, sizeof plan, "{tile_rows: %d}", i + 1);
        CHECK(has(plan), "%s is lost", plan);
    }
}

/* Writers that are killed at any moment leave a file that others can read and add to. */
static void test_killed(moegen_engine *engine)
{
    enum { KILLED = 12 };
    unlink(path);
    CHECK(!add(engine, 1, 1, "{tile_rows: 1}", NULL, NULL), "a first one");
    for (int i = 0; i < KILLED; i++) {
        pid_t child = fork();
        if (child == 0)
            for (int n = 0;; n++) {
                char plan[40];
                snprintf(plan, sizeof plan, "{tile_rows: %d}", n % 60 + 2);
                add(engine, 2 + n % 5, 1, plan, NULL, NULL);
            }
        struct timespec t = {.tv_nsec = 1000000 + 1700000L * i};
        nanosleep(&t, NULL);
        CHECK(child > 0 && !kill(child, SIGKILL) && waitpid(child, NULL, 0) == child, "no child");
        CHECK(!add(engine, 100 + i, 1, "{tile_rows: 3}", NULL, NULL), "after writer %d", i);
    }
    CHECK(has("tile_rows: 1}"), "the first one is lost");
    DIR *all = opendir(folder);
    for (struct dirent *x; all && (x = readdir(all));)
        CHECK(!strstr(x->d_name, ".tmp"), "%s is left though somebody wrote since", x->d_name);
    if (all)
        closedir(all);
}

/* What a living process is writing, or one of another container, and what has another name, stays;
 * what a dead one left goes. */
static void test_leftovers(void)
{
    enum { DEAD = 0x7ffffff0 }; /* more than any process's number */
    char other[5][96];
    const bool stays[] = {true, true, true, false, true};
    snprintf(other[0], sizeof other[0], "%s.1.tmp", path);
    snprintf(other[1], sizeof other[1], "%s.%d.tmp2", path, DEAD);
    snprintf(other[2], sizeof other[2], "%s/u.yaml.%d.tmp", folder, DEAD);
    snprintf(other[3], sizeof other[3], "%s.%d.tmp", path, DEAD);
    snprintf(other[4], sizeof other[4], "%s.%d.tmp", path, DEAD + 1);
    for (int i = 4; i >= 0; i--) {
        FILE *f = fopen(other[i], "w");
        CHECK(f && !fclose(f), "cannot make %s", other[i]);
    }
    int writes = open(other[4], O_WRONLY | O_CLOEXEC);
    CHECK(writes >= 0 && !flock(writes, LOCK_EX), "cannot lock %s", other[4]);
    put("x");
    for (int i = 0; i < 5; i++)
        CHECK(!access(other[i], F_OK) == stays[i], "%s: not as it should", other[i]);
    close(writes);
}

/* ---- choices ---- */

static void test_choices(void)
{
    struct space s = {0};
    s.knob[s.knobs++] = (struct knob){.key = strdup("plan.tile_rows"), .values = 1};
    s.knob[s.knobs++] = (struct knob){.key = strdup("plan.experts.mc"), .values = 1};
    s.knob[s.knobs++] = (struct knob){.key = strdup("plan.experts.nc"), .values = 1};
    s.knob[s.knobs++] = (struct knob){.key = strdup("plan.router.nc"), .values = 1};
    for (int i = 0; i < s.knobs; i++)
        s.knob[i].value[0] = strdup(i % 2 ? "word" : "8");
    struct choice c = choice_none();
    struct text yaml = {0}, text = {0};
    CHECK(choice_is_none(&c), "none is some");
    for (int i = 0; i < s.knobs; i++)
        c.at[i] = 0;
    choice_yaml(&s, &c, &yaml);
    CHECK(strcmp(yaml.at, "{tile_rows: 8, experts: {mc: word, nc: 8}, router: {nc: word}}") == 0,
          "%s", yaml.at);
    choice_text(&s, &c, &text);
    CHECK(strcmp(text.at, "plan.tile_rows=8 plan.experts.mc=word plan.experts.nc=8 "
                          "plan.router.nc=word") == 0,
          "%s", text.at);
    CHECK(knob_farther(&s.knob[1], 0) == -1, "a word is doubled");
    CHECK(knob_farther(&s.knob[0], 0) == 1 && strcmp(s.knob[0].value[1], "16") == 0, "8 to 16");
    CHECK(knob_farther(&s.knob[0], 0) == -1, "a value twice");
    text_free(&yaml);
    text_free(&text);
    space_free(&s);
}

/* Files are left that nobody writes again. */
static void sweep(void)
{
    char name[400];
    DIR *all = opendir(folder);
    for (struct dirent *x; all && (x = readdir(all));) {
        snprintf(name, sizeof name, "%s/%s", folder, x->d_name);
        unlink(name);
    }
    if (all)
        closedir(all);
}

int main(void)
{
    moegen_engine *engine = NULL;
    moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = ""};
    if (!mkdtemp(folder) || moegen_engine_create(&o, &engine, NULL))
        return 1;
    snprintf(path, sizeof path, "%s/t.yaml", folder);
    test_choices();
    test_search(engine);
    test_model(engine);
    test_refused(engine);
    test_entries(engine);
    test_kept(engine);
    test_crowd(engine);
    test_killed(engine);
    test_leftovers();
    sweep();
    CHECK(!rmdir(folder), "%s is left", folder);
    moegen_engine_release(engine);
    printf("%d complaints\n", failures);
    return failures != 0;
}
