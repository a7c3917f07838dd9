/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turns.c - two benches in processes of their own that take turns, run by run: A B, B A, ... While
 * one runs, the other waits. What else the machine does is then alike for both, and of the ratios
 * of runs that follow each other the median is that of the kernels.
 *
 * `moegen bench --turns` says on stdout, before each kernel, how many variants of it there are
 * (spaces, and a tab); then each byte 'r' on stdin asks for a run of each, which a newline ends,
 * another byte for the next kernel, and the end of stdin for what was measured until then. JSON
 * does not mind.
 */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "compare.h"

enum { LEAST_ROUNDS = 2, MOST_ROUNDS = 4096 };
static const double usual_seconds = 0.3, most_seconds = 10;
/* Another program may be silent so many times as long as this one was over the same. */
static const double slower_at_most = 10;

/* One of the two; to and from are -1 when closed. */
struct player {
    pid_t child;
    int to, from;
    int variants;    /* of the kernel at hand; 0: it is at its end */
    double patience; /* seconds that it may be silent */
    bool late;       /* it was silent for longer, and is killed */
    struct text json;
};

/* ---- processes ---- */

/* Starts it; an errno. All ends are closed in others. */
static int start(struct player *p, const struct side *s, bool without_notes)
{
    int in[2], out[2], failed;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in))
        return errno;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out)) {
        failed = errno;
    } else {
        failed = bench_start(s, "--turns", without_notes, in[1], out[1], &p->child);
        close(out[1]);
        p->from = failed ? (close(out[0]), -1) : out[0];
    }
    close(in[1]);
    p->to = failed ? (close(in[0]), -1) : in[0];
    return failed;
}

static bool tell(const struct player *p, char what)
{
    ssize_t n;
    while ((n = send(p->to, &what, 1, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        ;
    return n == 1;
}

/* The next byte, which is to come so many seconds after `begin` at most; -1: none comes. */
static int hear(struct player *p, double begin)
{
    unsigned char c;
    ssize_t n = -1;
    p->late = p->late || !bench_says(p->from, begin + p->patience);
    while (!p->late && (n = read(p->from, &c, 1)) < 0 && errno == EINTR)
        ;
    return n == 1 ? c : -1;
}

/* Waits for its next kernel, or its results. */
static void wait_kernel(struct player *p, double begin)
{
    int c;
    for (p->variants = 0; (c = hear(p, begin)) == ' ' && p->variants < MAX_CONTENDERS;)
        p->variants++;
    if (c == '\t')
        return;
    p->variants = 0;
    if (c > 0)
        text_add(&p->json, (char[]){(char)c}, 1);
}

/* Waits for its end, which its wait status tells. */
static int end(struct player *p)
{
    if (p->to >= 0)
        close(p->to);
    if (p->from < 0) /* it never was */
        return 0;
    bool late;
    double until = p->late ? 0 : seconds_now() + p->patience;
    int status = bench_end(p->child, p->from, until, &p->json, &late);
    p->late = p->late || late;
    return status;
}

/* The results of both. If one failed, the other was left alone and has none: of that nothing is
 * said. */
static int results_of(struct player p[2], const struct side *const side[2],
                      struct results *const out[2])
{
    int status[2];
    for (int i = 0; i < 2; i++)
        status[i] = end(&p[i]);
    for (int i = 0; i < 2; i++)
        if (p[i].late)
            return bad("`%s bench` does not go on: it was silent for %.3g s, the limit (--budget, "
                       "or %g times what this moegen takes)",
                       side[i]->program, p[i].patience, slower_at_most);
    int foreign = side[0]->program ? 0 : 1;
    int first = !status[0] != !status[1] ? !status[0] : status[0] ? !foreign : foreign;
    int result = bench_result(side[first], status[first], &p[first].json, false, out[first]);
    return result ? result
                  : bench_result(side[!first], status[!first], &p[!first].json, false, out[!first]);
}

/* ---- turns ---- */

/* A run of each of its kernel's variants. */
static bool run(struct player *p)
{
    return tell(p, 'r') && hear(p, seconds_now()) == '\n';
}

/* One kernel, for so many seconds. */
static bool play(struct player p[2], double budget)
{
    double begin = seconds_now();
    bool ok = true;
    for (int i = 0; ok && i < MOST_ROUNDS; i++) {
        if (i >= LEAST_ROUNDS && i % 2 == 0 && seconds_now() - begin > budget)
            break;
        ok = run(&p[i % 2]) && run(&p[1 - i % 2]);
    }
    return ok;
}

/* Waits until both have filled their next kernel, this program first: how long it took says how
 * long another one may take. Returns that. */
static double wait_kernels(struct player p[2], const struct side *const side[2],
                           const struct limits *limits)
{
    double begin = seconds_now();
    int own = side[0]->program ? 1 : 0;
    wait_kernel(&p[own], begin);
    double took = seconds_now() - begin;
    if (side[!own]->program)
        p[!own].patience = fmax(limits->budget, slower_at_most * took);
    wait_kernel(&p[!own], begin);
    return seconds_now() - begin;
}

int turns_play(const struct side *a, const struct side *b, const struct limits *limits,
               double until, bool without_notes, struct results *of_a, struct results *of_b)
{
    struct player p[2] = {{.to = -1, .from = -1, .patience = INFINITY},
                          {.to = -1, .from = -1, .patience = INFINITY}};
    const struct side *const side[2] = {a, b};
    double seconds = limits->seconds;
    *of_a = *of_b = (struct results){0};
    if (a->lost || b->lost)
        return fail(MOEGEN_NO_MEMORY, NULL);
    int failed = start(&p[0], a, without_notes);
    if (!failed)
        failed = start(&p[1], b, without_notes);
    for (bool ok = !failed; ok;) {
        double waited = wait_kernels(p, side, limits), variants = p[0].variants + p[1].variants;
        ok = p[0].variants && p[1].variants &&
             play(p, seconds > 0 ? seconds * variants
                                 : fmax(usual_seconds * variants, fmin(waited, most_seconds))) &&
             seconds_now() < until && tell(&p[0], 'n') && tell(&p[1], 'n');
    }
    int result = EXIT_OK;
    if (failed) {
        result = bench_not_started(p[0].from < 0 ? a : b, failed);
        end(&p[0]);
    } else {
        result = results_of(p, side, (struct results *const[]){of_a, of_b});
    }
    for (int i = 0; i < 2; i++)
        text_free(&p[i].json);
    return result;
}
