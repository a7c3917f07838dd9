/* SPDX-License-Identifier: Apache-2.0 */
/* router.c - what the router does with one token's logits, and its derivatives, in float64
 * (SEMANTICS 5). */
#include <float.h>
#include <math.h>
#include <string.h>

#include "reference.h"

static const struct rt_router_method methods[] = {
    {"softmax_topk", false, false, false},      {"softmax_topk_renorm", false, false, true},
    {"topk_softmax", false, true, false},       {"sigmoid_topk", true, false, false},
    {"sigmoid_topk_renorm", true, false, true}, {"topk_sigmoid", true, true, false},
};
enum { METHODS = sizeof methods / sizeof *methods };

/* Scores nearer than this to one another (times the largest) may change places in f32. */
static const double CLOSE = 1e-5;

moegen_rt_status rt_router_read(const moegen_rt_problem *p, struct rt_router *r,
                                moegen_rt_error *err)
{
    *r = (struct rt_router){.how = methods};
    moegen_rt_status status = rt_size(p, "H", 1 << 24, &r->H, err);
    if (status == MOEGEN_RT_OK)
        status = rt_size(p, "E", 1 << 20, &r->E, err);
    if (status != MOEGEN_RT_OK)
        return status;
    r->k = moegen_rt_problem_int(p, "top_k", 1);
    if (r->k < 1 || r->k > r->E)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "top_k: %lld is not in 1..%lld (E)",
                       (long long)r->k, (long long)r->E);
    const char *method = moegen_rt_problem_text(p, "method", "softmax_topk");
    while (r->how < methods + METHODS && strcmp(r->how->name, method) != 0)
        r->how++;
    if (r->how == methods + METHODS)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "method: the router has no '%s'", method);
    r->backward = strcmp(moegen_rt_problem_text(p, "op", "forward"), "backward") == 0;
    r->bias = moegen_rt_problem_bool(p, "bias", 0);
    r->correction = moegen_rt_problem_bool(p, "correction_bias", 0);
    r->scale = moegen_rt_problem_number(p, "routing_scale", 1);
    r->balance = moegen_rt_problem_text(p, "aux_loss.load_balance", NULL) != NULL;
    r->balance_c = moegen_rt_problem_number(p, "aux_loss.load_balance", 0);
    const char *per = moegen_rt_problem_text(p, "aux_loss.per", "tokens_and_choices");
    r->per_token = strcmp(per, "tokens") == 0;
    r->z = moegen_rt_problem_text(p, "aux_loss.z", NULL) != NULL;
    r->z_c = moegen_rt_problem_number(p, "aux_loss.z", 0);
    return MOEGEN_RT_OK;
}

/* ---- one token ---- */

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

void rt_router_scores(bool is_sigmoid, const double *l, int64_t n, double *p)
{
    double lse = log_sum_exp(l, n);
    for (int64_t i = 0; i < n; i++)
        p[i] = is_sigmoid ? sigmoid(l[i]) : exp(l[i] - lse);
}

/* dl of p = rt_router_scores(l), from dp; they may be the same memory. */
static void apply_back(bool is_sigmoid, const double *p, const double *dp, int64_t n, double *dl)
{
    double mean = is_sigmoid ? 0 : rt_dot(p, dp, n);
    for (int64_t i = 0; i < n; i++)
        dl[i] = is_sigmoid ? dp[i] * p[i] * (1 - p[i]) : p[i] * (dp[i] - mean);
}

/* q = p / sum p, and back: dp from dq. */
static void normalise(const double *p, int64_t n, double *q)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += p[i];
    for (int64_t i = 0; i < n; i++)
        q[i] = p[i] / sum;
}

static void normalise_back(const double *p, const double *dq, int64_t n, double *dp)
{
    double sum = 0, mean = 0;
    for (int64_t i = 0; i < n; i++)
        sum += p[i];
    for (int64_t i = 0; i < n; i++)
        mean += dq[i] * (p[i] / sum);
    for (int64_t i = 0; i < n; i++)
        dp[i] = (dq[i] - mean) / sum;
}

/* Affinities of the chosen experts from the logits, before the scale. */
void rt_router_weigh(const struct rt_router *r, const double *logits, const int64_t *chosen,
                     struct rt_router_token *t)
{
    rt_router_scores(r->how->sigmoid, logits, r->E, t->p);
    for (int64_t j = 0; j < r->k; j++)
        t->l[j] = r->how->after ? logits[chosen[j]] : t->p[chosen[j]];
    if (r->how->after)
        rt_router_scores(r->how->sigmoid, t->l, r->k, t->q);
    else if (r->how->renorm)
        normalise(t->l, r->k, t->q);
    else
        memcpy(t->q, t->l, (size_t)r->k * sizeof *t->q);
}

/* dlogits += those of the affinities; t->dq holds the gradients of the affinities. */
void rt_router_weigh_back(const struct rt_router *r, const int64_t *chosen,
                          struct rt_router_token *t, double *dlogits)
{
    for (int64_t j = 0; j < r->k; j++)
        t->dq[j] *= r->scale;
    if (r->how->after) {
        apply_back(r->how->sigmoid, t->q, t->dq, r->k, t->dl);
        for (int64_t j = 0; j < r->k; j++)
            dlogits[chosen[j]] += t->dl[j];
        return;
    }
    if (r->how->renorm)
        normalise_back(t->l, t->dq, r->k, t->dq);
    memset(t->dp, 0, (size_t)r->E * sizeof *t->dp);
    for (int64_t j = 0; j < r->k; j++)
        t->dp[chosen[j]] = t->dq[j];
    apply_back(r->how->sigmoid, t->p, t->dp, r->E, t->dp); /* all experts, not the chosen alone */
    for (int64_t e = 0; e < r->E; e++)
        dlogits[e] += t->dp[e];
}

void rt_router_rank(const struct rt_router *r, const double *logits, const double *correction,
                    struct rt_router_token *t)
{
    rt_router_scores(r->how->sigmoid, logits, r->E, t->p);
    for (int64_t e = 0; e < r->E; e++)
        t->rank[e] = !correction     ? logits[e]
                     : r->how->after ? logits[e] + correction[e]
                                     : t->p[e] + correction[e];
}

/* What is compared: NaN and -infinity come last. */
static double rank_key(double x)
{
    return x > -FLT_MAX ? x : -FLT_MAX;
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

/* The k best experts, best first, the lower index first among equals. Neighbours that are close,
 * but not all equal, may change places when rounded: they are unsure. True if that might exchange
 * one of the chosen for another. */
bool rt_router_choose(const struct rt_router *r, const double *rank, int64_t *chosen,
                      uint8_t *unsure)
{
    double largest = 1;
    int64_t first = 0, last = -1; /* place where the neighbours at hand start; the expert before */
    bool torn = false;            /* not all of them are equal */
    for (int64_t e = 0; e < r->E; e++)
        largest = isfinite(rank[e]) ? fmax(largest, fabs(rank[e])) : largest;
    memset(unsure, 0, (size_t)r->k);
    for (int64_t j = 0;; j++) {
        int64_t e = next_best(rank, r->E, last);
        double gap = j == 0 ? 0 : e < 0 ? INFINITY : rank_key(rank[last]) - rank_key(rank[e]);
        if (gap >= CLOSE * largest) {
            for (int64_t i = first; i < j && i < r->k; i++)
                unsure[i] = torn;
            if (j >= r->k)
                return torn && first < r->k && j > r->k;
            first = j;
            torn = false;
        }
        torn |= gap > 0 && gap < CLOSE * largest;
        if (j < r->k)
            chosen[j] = e;
        last = e;
    }
}

/* ---- auxiliary losses ---- */

/* What the load balancing loss calls a probability: scores that sum to one. */
static void shares(const struct rt_router *r, const double *logits, struct rt_router_token *t,
                   double *share)
{
    rt_router_scores(r->how->sigmoid, logits, r->E, t->p);
    if (r->how->sigmoid)
        normalise(t->p, r->E, share);
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
        if (r->how->sigmoid)
            normalise_back(t->p, t->dp, r->E, t->dp);
        apply_back(r->how->sigmoid, t->p, t->dp, r->E, t->dp);
        for (int64_t e = 0; e < r->E; e++)
            dlogits[e] += t->dp[e];
    }
    double lse = log_sum_exp(logits, r->E);
    for (int64_t e = 0; r->z && e < r->E; e++)
        dlogits[e] += r->z_c * 2 * lse * exp(logits[e] - lse) / (double)T;
}
