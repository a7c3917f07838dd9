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

static void open_search(struct search *s, moegen_engine *engine, const char *text, int threads,
                        const moegen_tune_options *o)
{
    moegen_error *err = NULL;
    *s = (struct search){.engine = engine, .spec = spec_of(text), .options = o, .threads = threads};
    s->own = s->spec.override_count = 1;
    s->set = calloc(MOST_SET + 1, sizeof *s->set);
    if (!s->set)
        exit(1);
    s->set[0] = (moegen_override){"plan.tuned", "false"};
    s->spec.overrides = s->set;
    s->until = s->confirm_until = tune_now() + 1000;
    CHECK(!search_open(s, &err), "%s: %s", text, moegen_error_text(err));
}

/* The first plan beside the best that there is. */
static bool turn_any(struct search *s, struct candidate *c)
{
    bool legal = false;
    for (int k = 0; k < s->space.knobs && !legal; k++) {
        candidate_close(c);
        c->choice = choice_with(&s->base.choice, k, 0);
        CHECK(!candidate_open(s, c, &legal, NULL), "%s", s->space.knob[k].key);
    }
    return legal;
}

static void test_model(moegen_engine *engine)
{
    static const int64_t tokens[] = {9};
    moegen_tune_options o = {.struct_size = sizeof o, .tokens = tokens, .token_count = 1};
    moegen_error *err = NULL;
    struct search s;
    open_search(&s, engine, toy, 1, &o);
    CHECK(s.model.used, "the model of this machine says that the planner's own choice cannot be");
    CHECK(model_gain(&s, &s.base) > -0.05, "gain %g", model_gain(&s, &s.base));
    CHECK(!model_prunes(&s, &s.base), "the planner's own choice is pruned");
    struct candidate c = {.gain = 0};
    CHECK(turn_any(&s, &c), "no plan is legal");
    CHECK(candidate_same_code(&s, &s.base, &s.best), "the same plan, other code");
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

/* ---- layers that stand for larger ones ---- */

static const struct stands {
    const char *text;
    double caches; /* last ones that weights must not fit */
    int threads;
    int64_t tokens;
    struct small want;
} stands[] = {
#define LAYER "name: toy\ndtype: f32\nH: 64\nI_TP: 32\nE: 32\ntop_k: 4\nblock_size: 16\n"
    {"kernel: moe_forward\n" LAYER, 2, 1, 64, {.tokens = 64}},       /* caches hold its weights */
    {"kernel: moe_forward\n" LAYER, 0, 1, 64, {4, 2, .tokens = 16}}, /* eight rows for each */
    {"kernel: moe_forward\n" LAYER, 0, 4, 64, {8, 2, .tokens = 32}},
    {"kernel: moe_forward\n" LAYER, 0, 16, 64, {.tokens = 64}},    /* too many threads for them */
    {"kernel: moe_forward\n" LAYER, 0, 1, 1, {4, 4, .tokens = 1}}, /* the same rows in any case */
    {"kernel: moe_forward\n" LAYER, 0, 1, 4, {8, 4, .tokens = 2}},
    {"kernel: moe_forward\n" LAYER "T: 64\n", 0, 1, 64, {.tokens = 64}},
    {"kernel: moe_backward\n" LAYER, 0, 1, 64, {4, 2, .tokens = 16}},
    {"kernel: grouped_gemm\nop: dW\npermute: x\ndtype: f32\nN: 64\nK: 32\nE: 32\ntop_k: 4\n",
     0,
     1,
     64,
     {4, 2, .tokens = 16}},
    {"kernel: moe_layer\nmethod: softmax_topk\ndispatch: dense\n" LAYER, 0, 1, 64, {.tokens = 64}},
    {"kernel: router\nop: forward\nmethod: softmax_topk\ndtype: f32\nH: 64\nE: 32\n",
     0,
     1,
     64,
     {.tokens = 64}},
#define WIDE "dtype: f32\nH: 32\nI_TP: 3000\n"
    {"kernel: moe_backward\nE: 8\ntop_k: 2\nblock_size: 16\n" WIDE,
     0,
     1,
     64,
     {4, 2, 1080, .tokens = 32}},
    {"kernel: mlp_backward\n" WIDE, 0, 1, 64, {.width = 1080, .tokens = 64}},
};

static void test_stand_in(moegen_engine *engine)
{
    for (size_t i = 0; i < sizeof stands / sizeof *stands; i++) {
        const struct stands *x = &stands[i];
        moegen_tune_options o = {.struct_size = sizeof o, .tokens = &x->tokens, .token_count = 1};
        struct search s;
        struct candidate c = {.gain = 0};
        bool right = false;
        stand_in_caches = x->caches;
        open_search(&s, engine, x->text, x->threads, &o);
        const struct small *got = &s.course[0].small;
        CHECK(got->experts == x->want.experts && got->chosen == x->want.chosen &&
                  got->width == x->want.width && got->tokens == x->want.tokens &&
                  s.course[0].tokens == x->tokens && s.smaller == small_is(&x->want),
              "row %zu: %lld of %lld experts, %lld tokens", i, (long long)got->chosen,
              (long long)got->experts, (long long)got->tokens);
        CHECK(turn_any(&s, &c) && !course_check(&s.course[0], c.call[0], &right, NULL) && right,
              "row %zu: another plan is wrong", i);
        candidate_close(&c);
        search_close(&s);
    }
    stand_in_caches = 2;
}

/* Groups of experts stay whole, and the router's plan the same. */
static void test_groups(moegen_engine *engine)
{
    static const char text[] =
        "kernel: moe_layer\nmethod: sigmoid_topk\ngroups: {count: 8, keep: 4}\n"
        "name: toy\ndtype: f32\nH: 64\nI_TP: 32\nE: 128\ntop_k: 4\nblock_size: 16\n";
    static const int64_t tokens[] = {128};
    moegen_tune_options o = {.struct_size = sizeof o, .tokens = tokens, .token_count = 1};
    struct search s;
    stand_in_caches = 0;
    open_search(&s, engine, text, 1, &o);
    const struct small *got = &s.course[0].small;
    CHECK(got->experts % 8 == 0 && got->experts && got->tokens * got->chosen == 4 * got->experts,
          "%lld of %lld experts, %lld tokens", (long long)got->chosen, (long long)got->experts,
          (long long)got->tokens);
    struct space space = {0};
    moegen_spec spec = s.spec;
    spec.override_count = s.own + (size_t)small_overrides(got, s.set + s.own);
    CHECK(!space_read(&space, engine, &spec, NULL) && space_same(&space, &s.space), "another plan");
    CHECK(knob_farther(&space.knob[0], 0) < 0 || !space_same(&space, &s.space), "more values");
    space_free(&space);
    search_close(&s);
    stand_in_caches = 2;
}

/* There is no time for a search: a plan is confirmed, by the calls themselves. */
static void test_whole(moegen_engine *engine)
{
    static const int64_t tokens[] = {1, 64, 32};
    moegen_tune_options o = {.struct_size = sizeof o, .tokens = tokens, .token_count = 3};
    moegen_error *err = NULL;
    struct search s;
    stand_in_caches = 0;
    open_search(&s, engine, stands[0].text, 1, &o);
    CHECK(s.smaller == 3 && s.course[2].in && s.course[0].small.experts == 4, "%d stood in",
          s.smaller);
    CHECK(turn_any(&s, &s.best), "no plan is legal");
    s.until = 0;
    s.confirm_until = tune_now() + 0.1;
    CHECK(!search_run(&s, &err), "%s", moegen_error_text(err));
    CHECK(s.courses == 3 && s.paired.pairs >= PAIRED_LEAST, "%d pairs", s.paired.pairs);
    for (int i = 0; i < s.courses; i++)
        CHECK(!s.course[i].small.experts && s.course[i].trial.how.T == tokens[i],
              "%lld tokens of %lld experts", (long long)s.course[i].trial.how.T,
              (long long)s.course[i].small.experts);
    search_close(&s);
    stand_in_caches = 2;
}

/* Where one call takes too long for a look at all plans, they are looked at without it. */
static void test_waits(moegen_engine *engine)
{
    static const int64_t tokens[] = {1, 64, 32};
    moegen_tune_options o = {.struct_size = sizeof o, .tokens = tokens, .token_count = 3};
    struct search s;
    struct turn turn[MOST_TURNS];
    int count = 0;
    open_search(&s, engine, toy, 1, &o);
    s.course[1].seconds = 1000;
    s.until = tune_now() + 30;
    CHECK(!screen(&s, turn, &count, NULL), "it failed");
    CHECK(count == space_plans(&s.space) && s.missed == 0 && s.waited == 1,
          "%d of %d plans, %d missed", count, space_plans(&s.space), s.missed);
    for (int i = 0; i < s.courses; i++)
        CHECK(!s.course[i].waits, "course %d still waits", i);
    search_close(&s);
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
    open_search(&s, engine, toy, 1, &o);
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
            moegen_kernel_info(c.kernel[0], &facts);
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
    test_groups(engine);
    test_whole(engine);
    test_waits(engine);
    test_ahead();
    test_refused(engine);
    moegen_engine_release(engine);
    printf("%d complaints\n", failures);
    return failures != 0;
}
