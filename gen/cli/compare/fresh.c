/* SPDX-License-Identifier: Apache-2.0 */
/* fresh.c - benches of this program in processes of their own, in turns. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "compare.h"

extern char **environ;

enum { LEAST = 2, MOST_OUTPUT = 1 << 26 };

/* ---- words ---- */

void side_add(struct side *s, const char *format, ...)
{
    struct text t = {0};
    va_list args;
    va_start(args, format);
    text_vfmt(&t, format, args);
    va_end(args);
    char **more = t.lost ? NULL : realloc(s->word, (size_t)(s->words + 1) * sizeof *more);
    if (!more) {
        text_free(&t);
        s->lost = true;
        return;
    }
    s->word = more;
    s->word[s->words++] = t.at;
}

void side_free(struct side *s)
{
    for (int i = 0; i < s->words; i++)
        free(s->word[i]);
    free(s->word);
    *s = (struct side){0};
}

void side_add_kernel(const struct options *o, struct side *s)
{
    for (int i = 0; i < o->set.count; i++)
        side_add(s, "--set=%s", o->set.at[i]);
    if (o->target)
        side_add(s, "--target=%s", o->target);
    if (o->spelling)
        side_add(s, "--spelling=%s", o->spelling);
}

void side_add_options(const struct options *o, struct side *s)
{
    side_add_kernel(o, s);
    if (o->routing)
        side_add(s, "--routing=%s", o->routing);
    if (o->tokens)
        side_add(s, "--T=%lld", (long long)o->tokens);
    if (o->threads)
        side_add(s, "--threads=%lld", (long long)o->threads);
    if (o->cold)
        side_add(s, "--cold");
    side_add(s, "--seed=%lld", (long long)o->seed);
}

/* ---- one process ---- */

int bench_start(const struct side *s, const char *more, bool without_notes, int in, int out,
                pid_t *child)
{
    static char word[][10] = {"moegen", "bench", "--json=-", "--quiet"};
    char **argv = calloc((size_t)s->words + 6, sizeof *argv), *own = strdup(more);
    posix_spawn_file_actions_t files;
    int n = 0, failed = argv && own ? posix_spawn_file_actions_init(&files) : ENOMEM;
    if (!failed) {
        while (n < (without_notes ? 4 : 3)) {
            argv[n] = word[n];
            n++;
        }
        if (*own)
            argv[n++] = own;
        memcpy(argv + n, s->word, (size_t)s->words * sizeof *argv);
        if (in >= 0)
            failed = posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
        if (!failed)
            failed = posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
        if (!failed)
            failed = posix_spawn(child, s->program ? s->program : "/proc/self/exe", &files, NULL,
                                 argv, environ);
        posix_spawn_file_actions_destroy(&files);
    }
    free(own);
    free(argv);
    return failed;
}

bool bench_says(int from, double until)
{
    struct pollfd end = {.fd = from, .events = POLLIN};
    for (;;) {
        double left = fmax(0, fmin(until - seconds_now(), 1));
        int n = poll(&end, 1, (int)ceil(1e3 * left));
        if (n > 0 || (n < 0 && errno != EINTR))
            return true;
        if (left <= 0)
            return false;
    }
}

/* False: there was more than there may be, or it is late, and it is not read. */
static bool read_all(int from, double until, struct text *out, bool *late)
{
    char part[4096];
    ssize_t n = 0;
    while (out->len < MOST_OUTPUT && !(*late = !bench_says(from, until)) &&
           ((n = read(from, part, sizeof part)) > 0 || (n < 0 && errno == EINTR)))
        if (n > 0)
            text_add(out, part, (size_t)n);
    close(from);
    return n <= 0 && !*late;
}

int bench_end(pid_t child, int from, double until, struct text *json, bool *late)
{
    static const struct timespec moment = {.tv_nsec = 2000000};
    int status = 0;
    bool killed = !read_all(from, until, json, late) && !kill(child, SIGKILL);
    for (pid_t ended = 0; ended != child && !(ended < 0 && errno != EINTR);) {
        ended = waitpid(child, &status, killed || isinf(until) ? 0 : WNOHANG);
        if (ended == 0 && seconds_now() < until)
            nanosleep(&moment, NULL);
        else if (ended == 0)
            killed = *late = !kill(child, SIGKILL);
    }
    return status;
}

int bench_result(const struct side *s, int status, const struct text *json, bool of_roof,
                 struct results *out)
{
    struct text label = {0};
    moegen_error *err = NULL;
    int result = EXIT_OK;
    text_fmt(&label, "output of `%s bench`", s->program ? s->program : "moegen");
    if (json->lost || label.lost)
        result = fail(MOEGEN_NO_MEMORY, NULL);
    else if (json->len >= MOST_OUTPUT)
        result = bad("%s: more than %d bytes, the limit", label.at, MOST_OUTPUT - 1);
    else if (WIFSIGNALED(status))
        result = bad("`%s bench` in a process of its own: %s", s->program ? s->program : "moegen",
                     strsignal(WTERMSIG(status)));
    else if (status && s->program)
        result = bad("`%s bench` ended with exit status %d", s->program, WEXITSTATUS(status));
    else if (status)
        result = WEXITSTATUS(status); /* it has said why */
    if (!status && !result) {
        moegen_status why =
            results_read(out, label.at, json->at ? json->at : "", json->len, of_roof, &err);
        result = why ? fail(why, err) : EXIT_OK;
    }
    text_free(&label);
    return WIFSIGNALED(status) && !s->program ? EXIT_FAILED : result;
}

int bench_not_started(const struct side *s, int why)
{
    if (s->program)
        return bad("cannot start %s: %s", s->program, strerror(why));
    bad("cannot start a process: %s", strerror(why));
    return EXIT_NOT_HERE;
}

int fresh_bench(const struct side *s, bool without_notes, bool of_roof, struct results *out)
{
    struct text json = {0};
    pid_t child;
    int ends[2];
    *out = (struct results){0};
    if (s->lost)
        return fail(MOEGEN_NO_MEMORY, NULL);
    int failed = pipe2(ends, O_CLOEXEC) ? errno : 0;
    if (!failed) {
        failed = bench_start(s, "", without_notes, -1, ends[1], &child);
        close(ends[1]);
        if (failed)
            close(ends[0]);
    }
    if (failed)
        return bench_not_started(s, failed);
    bool late;
    int status = bench_end(child, ends[0], INFINITY, &json, &late);
    int result = bench_result(s, status, &json, of_roof, out);
    text_free(&json);
    return result;
}

/* ---- many ---- */

/* A with each of the others, as long as there is time; what they measured is added as pairs. */
static int round_of(const struct side *side, int sides, const struct limits *limits, int round,
                    double until, struct duels *out)
{
    int result = EXIT_OK;
    for (int i = 1; i < sides && !result && (i == 1 || seconds_now() < until); i++) {
        struct results r[2];
        int first = round % 2; /* whose memory comes first */
        result = turns_play(&side[first ? i : 0], &side[first ? 0 : i], limits, until, round > 0,
                            &r[first], &r[1 - first]);
        if (!result)
            duels_add(&out[i - 1], &r[0], &r[1], IN_TURNS);
        if (!result && out[i - 1].lost)
            result = fail(MOEGEN_NO_MEMORY, NULL);
        else if (!result && !out[i - 1].rows)
            result = bad("no kernel is in both of two variants");
        for (int k = 0; k < 2; k++)
            results_free(&r[k]);
    }
    return result;
}

static bool settled(const struct duels *d, int count)
{
    for (int i = 0; i < count; i++)
        if (!duels_settled(&d[i]))
            return false;
    return true;
}

/* Is it worth the time, where all pairs until now took so many seconds? */
static bool has_time(const struct limits *limits, const struct duels *d, int count, double spent)
{
    bool promising = limits->longest > limits->budget;
    for (int i = 0; i < count; i++)
        promising = promising && paired_promises(&d[i].overall, spent, limits->longest);
    return spent <= limits->budget || promising;
}

int fresh_duels(const struct side *side, int sides, const struct limits *limits, struct duels *out)
{
    double begin = seconds_now(), most = fmax(limits->budget, limits->longest);
    int result = EXIT_OK, round = 0;
    for (; !result && round < PAIRED_MOST; round++) {
        double spent = seconds_now() - begin;
        bool even = round >= LEAST && round % 2 == 0;
        if (limits->pairs ? round >= limits->pairs
                          : (round > 0 && spent >= most) ||
                                (even && (!has_time(limits, out, sides - 1, spent) ||
                                          settled(out, sides - 1))))
            break;
        progress("comparing", limits->pairs ? round : (int)spent,
                 limits->pairs ? limits->pairs : (int)limits->budget + 1);
        result = round_of(side, sides, limits, round, limits->pairs ? INFINITY : begin + most, out);
        for (int i = 1; i < sides && !result; i++)
            result = duels_judge(&out[i - 1], limits->margin);
    }
    progress("", 100, 100);
    if (!result && !limits->pairs && round <= LEAST && seconds_now() - begin >= most)
        note("note: %g s were over before each kernel had %d pairs (--budget): one that is not in "
             "the table was not compared",
             most, LEAST);
    return result;
}
