/* SPDX-License-Identifier: Apache-2.0 */
/* tune_test.c - files of tuned plans: entries are added, replaced or left alone, comments stay,
 * several write at once or are killed, and what is no such file is refused and keeps its bytes. */
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

static char folder[] = "/tmp/moegen-tune-XXXXXX", path[64];

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

/* Before a search: is there a place? An empty file is one; a link stays, and leads to the entry. */
static void test_places(moegen_engine *engine)
{
    moegen_error *err = NULL;
    char link[sizeof path + 8], nowhere[] = "/proc/no-such-directory/t.yaml";
    unlink(path);
    CHECK(!tuning_ready(engine, path, NULL) && access(path, F_OK), "a file that is yet to be");
    CHECK(tuning_ready(engine, nowhere, &err) == MOEGEN_IO, "nowhere");
    moegen_error_release(err);
    CHECK(tuning_ready(engine, folder, NULL) == MOEGEN_IO, "a directory");
    put("cpu: another\nplans: []\n");
    CHECK(tuning_ready(engine, path, NULL) == MOEGEN_BAD_SPEC, "another CPU's");
    unlink(path);
    int fd = creat(path, 0666);
    CHECK(fd >= 0 && !close(fd) && !tuning_ready(engine, path, NULL), "an empty file");
    CHECK(!add(engine, 1, 1, "{tile_rows: 3}", NULL, NULL) && has("tile_rows: 3"), "into it");
    snprintf(link, sizeof link, "%s.link", path);
    CHECK(!symlink("t.yaml", link), "no link");
    moegen_tuning t = plan_of(8, 1, "{tile_rows: 4}");
    bool pinned;
    CHECK(!tuning_write(&t, engine, link, &pinned, NULL), "through a link");
    forget(&t);
    char to[8] = {0};
    CHECK(readlink(link, to, sizeof to) == 6 && has("tile_rows: 3") && has("tile_rows: 4"),
          "the link is gone, or not followed");
    unlink(link);
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
    test_entries(engine);
    test_kept(engine);
    test_places(engine);
    test_crowd(engine);
    test_killed(engine);
    test_leftovers();
    sweep();
    CHECK(!rmdir(folder), "%s is left", folder);
    moegen_engine_release(engine);
    printf("%d complaints\n", failures);
    return failures != 0;
}
