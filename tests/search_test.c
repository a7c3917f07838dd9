/* SPDX-License-Identifier: Apache-2.0 */
/* search_test.c - moegen_tune: its steps, how it stops, options that are refused, and the model of
 * what no plan can do. Whether a search finds something depends on the machine, so that no test
 * asks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "tune/tune.h"

static const char toy[] =
    "kernel: moe_forward\nname: toy\ndtype: f32\nH: 64\nI_TP: 32\nE: 4\ntop_k: 2\n"
    "block_size: 16\n";
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

static void open_search(struct search *s, moegen_engine *engine, const moegen_tune_options *o)
{
    moegen_error *err = NULL;
    *s = (struct search){.engine = engine, .spec = spec_of(toy), .options = o, .threads = 1};
    s->own = s->spec.override_count = 1;
    s->set = calloc(MAX_KNOBS + 1, sizeof *s->set);
    if (!s->set)
        exit(1);
    s->set[0] = (moegen_override){"plan.tuned", "false"};
    s->spec.overrides = s->set;
    s->until = s->confirm_until = tune_now() + 1000;
    CHECK(!search_open(s, &err), "%s", moegen_error_text(err));
}

static void test_model(moegen_engine *engine)
{
    static const int64_t tokens[] = {9};
    moegen_tune_options o = {.struct_size = sizeof o, .tokens = tokens, .token_count = 1};
    moegen_error *err = NULL;
    bool legal = false;
    struct search s;
    open_search(&s, engine, &o);
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

/* ---- small calls in place of large ones ---- */

/* The tokens of the call that stands for 9: of 2 of 4 experts there are half as many. */
static void stands(moegen_engine *engine, const char *set, int threads, int64_t want)
{
    char text[sizeof toy + 64];
    snprintf(text, sizeof text, "%s%s", toy, set);
    moegen_spec spec = spec_of(text);
    moegen_kernel *kernel = NULL;
    moegen_error *err = NULL;
    struct course c = {.batch = 0};
    moegen_status status = moegen_kernel_get(engine, &spec, &kernel, &err);
    if (!status)
        status = course_open(&c, NULL, kernel, 9, threads, false, &err);
    CHECK(!status, "%s: %s", set, moegen_error_text(err));
    CHECK(c.trial.how.T == want && c.tokens == 9, "%s: %lld tokens stand for %lld", set,
          (long long)c.trial.how.T, (long long)c.tokens);
    course_close(&c);
    moegen_kernel_release(kernel);
    moegen_error_release(err);
}

static void test_stand_in(moegen_engine *engine)
{
    static const int64_t tokens[] = {1, 9};
    moegen_tune_options o = {.struct_size = sizeof o, .tokens = tokens, .token_count = 2};
    moegen_error *err = NULL;
    struct search s;
    bool legal = false;
    stands(engine, "", 1, 9); /* weights that caches hold */
    stand_in_caches = 0;
    stands(engine, "", 1, 4);
    stands(engine, "", 2, 9); /* an expert each: nobody shares a pass */
    open_search(&s, engine, &o);
    CHECK(s.stood_for == 1 && s.course[0].trial.how.T == 1 && s.course[1].trial.how.T == 4,
          "%d stood for", s.stood_for);
    for (int k = 0; k < s.space.knobs && !legal; k++) {
        candidate_close(&s.best);
        s.best.choice = choice_with(&s.base.choice, k, 0);
        CHECK(!candidate_open(&s, &s.best, &legal, &err), "%s", moegen_error_text(err));
    }
    s.until =
        0; /* there is no time for a search: that plan is confirmed, by the calls themselves */
    s.confirm_until = tune_now() + 0.1;
    CHECK(!search_run(&s, &err), "%s", moegen_error_text(err));
    CHECK(s.courses == 2 && s.course[1].trial.how.T == 9 && s.paired.pairs >= PAIRED_LEAST,
          "%d pairs, of %lld tokens", s.paired.pairs, (long long)s.course[1].trial.how.T);
    search_close(&s);
    stand_in_caches = 2;
}

/* ---- kernels that are made ahead ---- */

static void test_ahead(void)
{
    static const int64_t tokens[] = {9};
    moegen_tune_options o = {.struct_size = sizeof o, .tokens = tokens, .token_count = 1};
    char root[] = "/tmp/moegen-search-XXXXXX", folder[FOLDER_NAME];
    CHECK(mkdtemp(root) && !setenv("TMPDIR", root, 1), "no folder in /tmp");
    CHECK(folder_open("tune", folder) && strncmp(folder, root, strlen(root)) == 0,
          "no folder in %s", root);
    moegen_engine_options eo = {.struct_size = sizeof eo, .cache_dir = folder};
    moegen_engine *engine = NULL;
    if (moegen_engine_create(&eo, &engine, NULL))
        exit(1);
    struct search s;
    struct turn turn[MAX_KNOBS];
    int count = 0, found = 0;
    open_search(&s, engine, &o);
    for (int k = 0; k < s.space.knobs; k++)
        turn[count++] = (struct turn){.knob = k, .value = 0};
    make_ahead(&s, turn, count);
    CHECK(waitpid(-1, NULL, 0) < 0, "a helper is left");
    for (int i = 0; i < count; i++) {
        struct candidate c = {.choice = choice_with(&s.base.choice, turn[i].knob, turn[i].value)};
        bool legal = false;
        CHECK(!candidate_open(&s, &c, &legal, NULL), "plan %d", i);
        moegen_kernel_facts facts = {.struct_size = sizeof facts};
        if (legal)
            moegen_kernel_info(c.kernel, &facts);
        found += legal && strcmp(facts.origin, "disk") == 0;
        candidate_close(&c);
    }
    CHECK(found > 0 || moegen_rt_cpu_count() < 2 || count < 8, "of %d plans none was made ahead",
          count);
    search_close(&s);
    moegen_engine_release(engine);
    folder_close(folder);
    CHECK(access(folder, F_OK) < 0, "%s is left", folder);

    pid_t child = fork(); /* one that is killed */
    if (child == 0) {
        char own[FOLDER_NAME];
        _exit(folder_open("tune", own) ? 0 : 1);
    }
    int status = 0;
    char left[128], next[FOLDER_NAME];
    snprintf(left, sizeof left, "ls -d %s/moegen-tune-%ld-* >/dev/null 2>&1", root, (long)child);
    CHECK(waitpid(child, &status, 0) == child && !status, "no folder");
    CHECK(system(left) == 0, "its folder is gone with it");
    CHECK(folder_open("tune", next), "no folder");
    CHECK(system(left) != 0, "its folder is left");
    folder_close(next);
    CHECK(!rmdir(root) && !unsetenv("TMPDIR"), "%s is not empty", root);
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

int main(void)
{
    moegen_engine *engine = NULL;
    moegen_engine_options o = {.struct_size = sizeof o, .cache_dir = ""};
    if (moegen_engine_create(&o, &engine, NULL))
        return 1;
    test_search(engine);
    test_model(engine);
    test_stand_in(engine);
    test_ahead();
    test_refused(engine);
    moegen_engine_release(engine);
    printf("%d complaints\n", failures);
    return failures != 0;
}
