/* SPDX-License-Identifier: Apache-2.0 */
/*
 * screen.c - the first look at all plans beside the best: each value of each knob alone, in threes
 * between two runs of the best. The slower half is dropped, the others are looked at again, and so
 * on: what one look says on a machine that others use is little, what the mean of several says is
 * more, and so is what the median of several rounds of one says where there is time for them. Where
 * there is no time for all plans, the first look leaves out the longest calls: a plan that most
 * calls gain by is found without them, and then has to show that they gain, too.
 */
#include <math.h>
#include <stdlib.h>

#include "tune.h"

enum { GROUP = 3, FEW = 4, MOST_LOOKS = 5, MOST_ROUNDS = 7 };
static const double share_of_screening = 0.5, share_of_looks = 0.65, share_of_first = 0.15;

static int compare_turns(const void *a, const void *b)
{
    double x = ((const struct turn *)a)->gain, y = ((const struct turn *)b)->gain;
    return (x < y) - (x > y);
}

double screen_once(const struct search *s)
{
    double once = 0;
    for (int i = 0; i < s->courses; i++)
        once += s->course[i].seconds * s->course[i].batch;
    return once;
}

/* Of a look that takes so long, beside runs of the best. */
static double look_seconds(double once)
{
    return once * (GROUP + 2) / GROUP + 5e-3;
}

double screen_enough(const struct search *s, int plans)
{
    return plans * look_seconds(screen_once(s)) / share_of_screening;
}

static int longest(const struct search *s)
{
    int at = -1;
    double most = 0;
    for (int i = 0; i < s->courses; i++) {
        const struct course *c = &s->course[i];
        if (!c->waits && c->seconds * c->batch > most) {
            most = c->seconds * c->batch;
            at = i;
        }
    }
    return at;
}

/* Lets the longest calls wait until there is time for a look at so many plans in `seconds`, but for
 * one. Returns how long the others take. */
static double let_wait(struct search *s, int plans, double seconds)
{
    double once = screen_once(s);
    for (int i = 0; i < s->courses; i++)
        s->course[i].waits = false;
    for (int left = s->courses; left > 1 && plans * look_seconds(once) > seconds; left--) {
        struct course *c = &s->course[longest(s)];
        c->waits = true;
        once -= c->seconds * c->batch;
        s->waited = s->courses - left + 1 > s->waited ? s->courses - left + 1 : s->waited;
    }
    return once;
}

/* All turns from the best, the boldest values of all knobs first; as many as there is time for. */
static int plan_turns(struct search *s, struct turn *turn)
{
    int count = 0;
    double seconds = share_of_screening * (s->until - tune_now()),
           most = seconds / look_seconds(let_wait(s, space_plans(&s->space), seconds));
    for (int v = 0; v < MAX_VALUES; v++)
        for (int k = 0; k < s->space.knobs; k++)
            if (v < s->space.knob[k].values && s->best.choice.at[k] < 0 && count < MOST_TURNS &&
                count < most)
                turn[count++] = (struct turn){.knob = k, .value = v, .gain = -INFINITY};
    return count;
}

/* Adds gains of up to GROUP candidates, timed between two runs of the best, course after course. */
static void time_round(struct search *s, struct candidate *c, const bool *legal, int count,
                       double *gain)
{
    int courses = 0;
    for (int i = 0; i < s->courses; i++)
        courses += !s->course[i].waits;
    for (int n = 0; n < count; n++)
        gain[n] = 0;
    for (int i = 0; i < s->courses; i++) {
        struct course *at = &s->course[i];
        if (at->waits)
            continue;
        double own[GROUP], before = course_time(at, s->best.call[i]);
        for (int n = 0; n < count; n++)
            own[n] = legal[n] ? course_time(at, c[n].call[i]) : NAN;
        double after = course_time(at, s->best.call[i]);
        for (int n = 0; n < count; n++)
            gain[n] += log(sqrt(before * after) / own[n]) / courses;
    }
}

static int compare_gains(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of some rounds. */
static void time_group(struct search *s, struct candidate *c, const bool *legal, int count,
                       int rounds)
{
    double gain[MOST_ROUNDS][GROUP], own[MOST_ROUNDS];
    for (int r = 0; r < rounds; r++)
        time_round(s, c, legal, count, gain[r]);
    for (int n = 0; n < count; n++) {
        for (int r = 0; r < rounds; r++)
            own[r] = gain[r][n];
        qsort(own, (size_t)rounds, sizeof *own, compare_gains);
        c[n].gain = own[rounds / 2];
    }
}

/* An odd number of rounds for so many plans: a first look is to leave time for others. */
static int plan_rounds(const struct search *s, int plans)
{
    double most = share_of_first * (s->until - tune_now()) / look_seconds(screen_once(s)) / plans;
    int rounds = (int)fmax(1, fmin(MOST_ROUNDS, most));
    return rounds - (rounds % 2 == 0);
}

/* All of them once more, while there is time; sorts them, those that gain most first. */
static moegen_status look(struct search *s, struct turn *turn, int count, int rounds, double until,
                          moegen_error **err)
{
    moegen_status status = MOEGEN_OK;
    for (int i = 0; i < count && !status && !search_stopped(s) && tune_now() < until; i += GROUP) {
        struct candidate c[GROUP] = {{.gain = 0}};
        bool legal[GROUP] = {false};
        int some = count - i < GROUP ? count - i : GROUP;
        for (int n = 0; n < some && !status; n++) {
            c[n].choice = choice_with(&s->best.choice, turn[i + n].knob, turn[i + n].value);
            status = candidate_open(s, &c[n], &legal[n], err);
        }
        bool pruned[GROUP] = {false}, any = false;
        for (int n = 0; n < some && !status; n++)
            if (legal[n] && !turn[i + n].looks) {
                s->looked_at++;
                pruned[n] = candidate_same_code(s, &c[n], &s->best) || model_prunes(s, &c[n]);
                s->pruned += pruned[n];
                legal[n] = !pruned[n];
            }
        for (int n = 0; n < some; n++)
            any |= legal[n];
        if (!status && any)
            time_group(s, c, legal, some, rounds);
        for (int n = 0; n < some; n++) {
            struct turn *t = &turn[i + n];
            if (!legal[n])
                c[n].gain = NAN;
            if (!status)
                search_tell(s, pruned[n] ? "pruned" : "screening", &c[n].choice, c[n].gain,
                            i + n + 1, count);
            t->gain = !isfinite(c[n].gain) ? -INFINITY
                      : t->looks           ? (t->gain * t->looks + c[n].gain) / (t->looks + 1)
                                           : c[n].gain;
            t->looks++;
            candidate_close(&c[n]);
        }
    }
    qsort(turn, (size_t)count, sizeof *turn, compare_turns);
    return status;
}

/* A later screening, of what is farther, misses no more than an earlier one. */
static void count_missed(struct search *s, const struct turn *turn, int count)
{
    int missed = space_plans(&s->space);
    for (int i = 0; i < count; i++)
        missed -= turn[i].looks > 0;
    s->missed = missed < s->missed ? missed : s->missed;
}

moegen_status screen(struct search *s, struct turn *turn, int *count, moegen_error **err)
{
    double begin = tune_now(), until = begin + share_of_looks * (s->until - begin);
    *count = plan_turns(s, turn);
    make_ahead(s, turn, *count);
    int rounds = *count ? plan_rounds(s, *count) : 1;
    moegen_status status = *count ? look(s, turn, *count, rounds, until, err) : MOEGEN_OK;
    if (choice_is_none(&s->best.choice))
        count_missed(s, turn, *count);
    for (int i = 0; i < s->courses; i++)
        s->course[i].waits = false;
    double each = *count ? (tune_now() - begin) / *count : 0;
    each = fmax(each, rounds * look_seconds(screen_once(s)));
    for (int looks = 1; looks < MOST_LOOKS && !status && !search_stopped(s); looks++) {
        int half = (*count + 1) / 2;
        while (half && !isfinite(turn[half - 1].gain))
            half--;
        if (half < FEW || tune_now() + half * each > until)
            break;
        *count = half;
        status = look(s, turn, half, rounds, until, err);
    }
    return status;
}
