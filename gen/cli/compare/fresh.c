/* SPDX-License-Identifier: Apache-2.0 */
/* fresh.c - benches of this program in processes of their own, in turns. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
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

static void read_all(int from, struct text *out)
{
    char part[4096];
    for (ssize_t n; (n = read(from, part, sizeof part)) > 0 || (n < 0 && errno == EINTR);)
        if (n > 0 && out->len < MOST_OUTPUT)
            text_add(out, part, (size_t)n);
    close(from);
}

int bench_finish(pid_t child, int from, struct text *json, bool of_roof, struct results *out)
{
    int status = 0;
    moegen_error *err = NULL;
    read_all(from, json);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status)) {
        bad("`moegen bench` in a process of its own: %s", strsignal(WTERMSIG(status)));
        return EXIT_FAILED;
    }
    if (WEXITSTATUS(status))
        return WEXITSTATUS(status); /* it has said why */
    moegen_status why = json->lost
                            ? MOEGEN_NO_MEMORY
                            : results_read(out, "output of `moegen bench`",
                                           json->at ? json->at : "", json->len, of_roof, &err);
    return why ? fail(why, err) : EXIT_OK;
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
    if (failed) {
        bad("cannot start a process: %s", strerror(failed));
        return EXIT_NOT_HERE;
    }
    int result = bench_finish(child, ends[0], &json, of_roof, out);
    text_free(&json);
    return result;
}

/* ---- many ---- */

/* A with each of the others; what they measured is added as pairs. */
static int round_of(const struct side *side, int sides, const struct limits *limits, int round,
                    struct duels *out)
{
    int result = EXIT_OK;
    for (int i = 1; i < sides && !result; i++) {
        struct results r[2];
        int first = round % 2; /* whose memory comes first */
        result = turns_play(&side[first ? i : 0], &side[first ? 0 : i], limits->seconds, round > 0,
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

/* Is there time left, where all pairs until now took so many seconds? */
static bool has_time(const struct limits *limits, const struct duels *d, int count, double spent)
{
    bool promising = limits->longest > limits->budget;
    for (int i = 0; i < count; i++)
        promising = promising && paired_promises(&d[i].overall, spent, limits->longest);
    return spent <= limits->budget || promising;
}

int fresh_duels(const struct side *side, int sides, const struct limits *limits, struct duels *out)
{
    double begin = seconds_now();
    int result = EXIT_OK;
    for (int round = 0; !result && round < PAIRED_MOST; round++) {
        double spent = seconds_now() - begin;
        bool even = round >= LEAST && round % 2 == 0;
        if (limits->pairs
                ? round >= limits->pairs
                : even && (!has_time(limits, out, sides - 1, spent) || settled(out, sides - 1)))
            break;
        progress("comparing", limits->pairs ? round : (int)spent,
                 limits->pairs ? limits->pairs : (int)limits->budget + 1);
        result = round_of(side, sides, limits, round, out);
        for (int i = 1; i < sides && !result; i++)
            result = duels_judge(&out[i - 1], limits->margin);
    }
    progress("", 100, 100);
    return result;
}
