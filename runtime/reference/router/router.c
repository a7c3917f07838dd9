/* SPDX-License-Identifier: Apache-2.0 */
/* router.c - what the router does with one token's logits, and its derivatives, in float64
 * (SEMANTICS 5). */
#include <float.h>
#include <math.h>
#include <string.h>

#include "router.h"

/* Scores nearer than this to one another (times the largest) may change places in f32. */
static const double CLOSE = 1e-5;

static double sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double log_sum_exp(const double *l, int64_t n)
{
    double most = l[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        most = fmax(most, l[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp(l[i] - most);
    return most + log(sum);
}

static double softplus(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

/* p[n] from l[n]. */
static void apply(enum rt_score score, const double *l, int64_t n, double *p)
{
    double lse = log_sum_exp(l, n);
    for (int64_t i = 0; i < n; i++)
        p[i] = score == RT_SIGMOID         ? sigmoid(l[i])
               : score == RT_SQRT_SOFTPLUS ? sqrt(softplus(l[i]))
                                           : exp(l[i] - lse);
}

/* dl of p = apply(l), from dp; dp and dl may be the same memory. */
static void apply_back(enum rt_score score, const double *l, const double *p, const double *dp,
                       int64_t n, double *dl)
{
    double mean = score == RT_SOFTMAX ? rt_dot(p, dp, n) : 0;
    for (int64_t i = 0; i < n; i++)
        dl[i] = score == RT_SIGMOID         ? dp[i] * p[i] * (1 - p[i])
                : score == RT_SQRT_SOFTPLUS ? dp[i] * sigmoid(l[i]) / (2 * p[i])
                                            : p[i] * (dp[i] - mean);
}

void rt_router_cap(const struct rt_router *r, const double *logits, struct rt_router_token *t)
{
    for (int64_t e = 0; e < r->E; e++)
        t->z[e] = r->cap > 0 ? r->cap * tanh(r->times * logits[e] / r->cap) : r->times * logits[e];
}

void rt_router_cap_back(const struct rt_router *r, const double *logits, double *dlogits)
{
    for (int64_t e = 0; e < r->E; e++) { /* 1 - tanh^2 would cancel */
        double c = r->cap > 0 ? cosh(r->times * logits[e] / r->cap) : 1;
        dlogits[e] *= r->times / c / c;
    }
}

/* q = p / divisor of their sum, and back: dp from dq. NaN stays. */
static double divisor(const struct rt_router *r, const double *p, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += p[i];
    sum += r->eps;
    return sum < r->least ? r->least : sum;
}

static void normalise(const struct rt_router *r, const double *p, int64_t n, double *q)
{
    double by = divisor(r, p, n);
    for (int64_t i = 0; i < n; i++)
        q[i] = p[i] / by;
}

static void normalise_back(const struct rt_router *r, const double *p, const double *dq, int64_t n,
                           double *dp)
{
    double by = divisor(r, p, n), mean = 0;
    for (int64_t i = 0; i < n && by > r->least; i++)
        mean += dq[i] * (p[i] / by); /* of one: exactly dq, which leaves 0 */
    for (int64_t i = 0; i < n; i++)
        dp[i] = (dq[i] - mean) / by;
}

/* ---- sparsemixer: SparseMixer's inference, its steps one after the other ---- */

/* The logit that limits which experts count beside the one chosen in place j, and how far expert e
 * is on the right side of that limit (below 0: it does not count). */
static double within(const struct rt_router *r, const double *z, int64_t best, int64_t e)
{
    return 2 * r->jitter * fmax(fabs(z[e]), z[best]) - (z[best] - z[e]);
}

/* share[E] of the experts in place j: a softmax over those that count and were not chosen before.
 */
static void mixer_shares(const struct rt_router *r, const double *z, const int64_t *chosen,
                         int64_t j, double *share)
{
    double sum = 0;
    for (int64_t e = 0; e < r->E; e++) {
        bool counts = e == chosen[j] || within(r, z, chosen[j], e) >= 0;
        for (int64_t i = 0; i < j; i++)
            counts &= e != chosen[i];
        share[e] = counts ? exp(z[e] - z[chosen[j]]) : 0;
        sum += share[e];
    }
    for (int64_t e = 0; e < r->E; e++)
        share[e] /= sum;
}

/* Could rounding decide whether an expert counts? */
static bool mixer_open(const struct rt_router *r, const double *z, const int64_t *chosen)
{
    double largest = 1;
    for (int64_t e = 0; e < r->E; e++)
        largest = isfinite(z[e]) ? fmax(largest, fabs(z[e])) : largest;
    for (int64_t j = 0; j < r->k; j++)
        for (int64_t e = 0; e < r->E; e++)
            if (e != chosen[j] && fabs(within(r, z, chosen[j], e)) < CLOSE * largest)
                return true;
    return false;
}

/* Affinities of the chosen experts from the logits, before the scale. */
void rt_router_weigh(const struct rt_router *r, const double *logits, const int64_t *chosen,
                     struct rt_router_token *t)
{
    for (int64_t j = 0; r->how.mixer && j < r->k; j++) {
        mixer_shares(r, logits, chosen, j, t->p);
        t->q[j] = t->p[chosen[j]];
    }
    if (r->how.mixer)
        return;
    apply(r->how.score, logits, r->E, t->p);
    for (int64_t j = 0; j < r->k; j++)
        t->l[j] = r->how.after ? logits[chosen[j]] : t->p[chosen[j]];
    if (r->how.after)
        apply(r->how.score, t->l, r->k, t->s);
    else
        memcpy(t->s, t->l, (size_t)r->k * sizeof *t->s);
    if (r->how.renorm)
        normalise(r, t->s, r->k, t->q);
    else
        memcpy(t->q, t->s, (size_t)r->k * sizeof *t->q);
}

/* dlogits += those of the affinities; t->dq holds the gradients of the affinities. */
void rt_router_weigh_back(const struct rt_router *r, const double *logits, const int64_t *chosen,
                          struct rt_router_token *t, double *dlogits)
{
    for (int64_t j = 0; j < r->k; j++)
        t->dq[j] *= r->scale;
    for (int64_t j = 0; r->how.mixer && j < r->k; j++) {
        mixer_shares(r, logits, chosen, j, t->p);
        for (int64_t e = 0; e < r->E; e++)
            dlogits[e] += t->dq[j] * t->q[j] * ((e == chosen[j]) - t->p[e]);
    }
    if (r->how.mixer)
        return;
    if (r->how.renorm)
        normalise_back(r, t->s, t->dq, r->k, t->dq);
    if (r->how.after) {
        apply_back(r->how.score, t->l, t->s, t->dq, r->k, t->dl);
        for (int64_t j = 0; j < r->k; j++)
            dlogits[chosen[j]] += t->dl[j];
        return;
    }
    memset(t->dp, 0, (size_t)r->E * sizeof *t->dp);
    for (int64_t j = 0; j < r->k; j++)
        t->dp[chosen[j]] = t->dq[j];
    apply_back(r->how.score, logits, t->p, t->dp, r->E, t->dp); /* all experts, not the chosen */
    for (int64_t e = 0; e < r->E; e++)
        dlogits[e] += t->dp[e];
}

/* What is compared: NaN comes first, -infinity last. */
static double rank_key(double x)
{
    return isnan(x) ? INFINITY : x > -FLT_MAX ? x : -FLT_MAX;
}

/* The best expert after `last` (-1: of all), in the order of falling rank, then rising index; -1:
 * none. */
static int64_t next_best(const double *rank, int64_t E, int64_t last)
{
    int64_t best = -1;
    for (int64_t e = 0; e < E; e++) {
        double x = rank_key(rank[e]), limit = last < 0 ? INFINITY : rank_key(rank[last]);
        bool after = last < 0 || x < limit || (x == limit && e > last);
        if (after && (best < 0 || x > rank_key(rank[best])))
            best = e;
    }
    return best;
}

/* Fills the ranks of the groups that do not stay. t->open: the last that stays is close to the next
 * one, and not equal to it or to all others that are as close. */
static void fill_groups(const struct rt_router *r, struct rt_router_token *t)
{
    int64_t n = r->E / r->groups, last = -1, next;
    double largest = 1;
    for (int64_t g = 0; g < r->groups; g++) {
        double best = -INFINITY, second = -INFINITY;
        for (int64_t e = g * n; e < (g + 1) * n; e++) {
            double x = rank_key(t->rank[e]);
            second = fmax(second, fmin(best, x));
            best = fmax(best, x);
        }
        t->group[g] = r->top2 ? rank_key(best + second) : best;
        largest = t->group[g] > -FLT_MAX && isfinite(best) ? fmax(largest, fabs(best)) : largest;
    }
    for (int64_t i = 0; i < r->keep; i++)
        last = next_best(t->group, r->groups, last);
    next = next_best(t->group, r->groups, last);
    double gap = next < 0 ? INFINITY : t->group[last] - t->group[next];
    for (int64_t g = 0; g < r->groups && gap < CLOSE * largest; g++) {
        double far = fabs(t->group[g] - t->group[last]);
        t->open |= far > 0 && far < CLOSE * largest;
    }
    for (int64_t g = 0; g < r->groups; g++)
        for (int64_t e = g * n; e < (g + 1) * n; e++)
            if (t->group[g] < t->group[last] || (t->group[g] == t->group[last] && g > last))
                t->rank[e] = r->fill_zero ? 0 : -INFINITY;
}

void rt_router_rank(const struct rt_router *r, const double *logits, const double *correction,
                    struct rt_router_token *t)
{
    bool scored = !r->how.after && (correction || r->groups);
    apply(r->how.score, logits, r->E, t->p);
    for (int64_t e = 0; e < r->E; e++)
        t->rank[e] = (scored ? t->p[e] : logits[e]) +
                     (correction && e < r->E - r->always ? correction[e] : 0);
    t->open = false;
    if (r->groups)
        fill_groups(r, t);
}

/* The k best experts, best first, the lower index first among equals. Neighbours that are close,
 * but not all equal, may change places when rounded: they are unsure. True if that might exchange
 * one of the chosen for another. */
static bool choose(const struct rt_router *r, const struct rt_router_token *t, int64_t *chosen,
                   uint8_t *unsure)
{
    const double *rank = t->rank;
    double largest = 1;
    int64_t first = 0, last = -1; /* place where the neighbours at hand start; the expert before */
    bool torn = false;            /* not all of them are equal */
    for (int64_t e = 0; e < r->E; e++)
        largest = isfinite(rank[e]) ? fmax(largest, fabs(rank[e])) : largest;
    memset(unsure, 0, (size_t)r->k);
    int64_t n = r->E - r->always, k = r->k - r->always; /* that have to be chosen */
    for (int64_t j = k; j < r->k; j++)
        chosen[j] = r->E - r->k + j;
    for (int64_t j = 0;; j++) {
        int64_t e = next_best(rank, n, last);
        double gap = j == 0 ? 0 : e < 0 ? INFINITY : rank_key(rank[last]) - rank_key(rank[e]);
        if (gap >= CLOSE * largest) {
            for (int64_t i = first; i < j && i < k; i++)
                unsure[i] = torn || t->open;
            if (j >= k)
                return t->open || (torn && first < k && j > k);
            first = j;
            torn = false;
        }
        torn |= gap > 0 && gap < CLOSE * largest;
        if (j < k)
            chosen[j] = e;
        last = e;
    }
}

/* Weights of the mixer depend on the places. */
bool rt_router_choose(const struct rt_router *r, const struct rt_router_token *t, int64_t *chosen,
                      uint8_t *unsure)
{
    bool open = choose(r, t, chosen, unsure);
    for (int64_t j = 0; r->how.mixer && j < r->k; j++)
        open |= unsure[j] != 0;
    return open || (r->how.mixer && mixer_open(r, t->z, chosen));
}

/* ---- auxiliary losses ---- */

static const struct rt_router plain; /* whose sums are divided by as they are */

/* What the load balancing loss calls a probability: scores that sum to one. */
static void shares(const struct rt_router *r, const double *logits, struct rt_router_token *t,
                   double *share)
{
    apply(r->how.score, logits, r->E, t->p);
    if (r->how.score != RT_SOFTMAX)
        normalise(&plain, t->p, r->E, share);
    else
        memcpy(share, t->p, (size_t)r->E * sizeof *share);
}

static double balance_factor(const struct rt_router *r, int64_t T)
{
    double counted = (double)T * (r->per_token ? 1 : (double)r->k);
    return r->balance_c * (double)r->E / counted / (double)T;
}

/* Adds one token's part of both losses; `count` tokens chose each expert. */
void rt_router_losses(const struct rt_router *r, int64_t T, const double *logits,
                      const double *count, struct rt_router_token *t, double *balance, double *z)
{
    shares(r, logits, t, t->dp);
    double lse = log_sum_exp(logits, r->E);
    *balance += balance_factor(r, T) * rt_dot(count, t->dp, r->E);
    *z += r->z_c * lse * lse / (double)T;
}

void rt_router_losses_back(const struct rt_router *r, int64_t T, const double *logits,
                           const double *count, struct rt_router_token *t, double *dlogits)
{
    if (r->balance) {
        shares(r, logits, t, t->dp);
        for (int64_t e = 0; e < r->E; e++)
            t->dp[e] = balance_factor(r, T) * count[e];
        if (r->how.score != RT_SOFTMAX)
            normalise_back(&plain, t->p, t->dp, r->E, t->dp);
        apply_back(r->how.score, logits, t->p, t->dp, r->E, t->dp);
        for (int64_t e = 0; e < r->E; e++)
            dlogits[e] += t->dp[e];
    }
    double lse = log_sum_exp(logits, r->E);
    for (int64_t e = 0; r->z && e < r->E; e++)
        dlogits[e] += r->z_c * 2 * lse * exp(logits[e] - lse) / (double)T;
}
