/* SPDX-License-Identifier: Apache-2.0 */
/* router.h - what the reference and the filler of routers share, grouped by the file that defines
 * it. */
#ifndef MOEGEN_REFERENCE_ROUTER_H
#define MOEGEN_REFERENCE_ROUTER_H

#include "reference/reference.h"

/* ---- router.c: one token ---- */

/* A router turns logits into scores (all experts), chooses the top k of the scores or of the
 * logits, and turns what is chosen into affinities. */
enum rt_score { RT_SOFTMAX, RT_SIGMOID, RT_SQRT_SOFTPLUS, RT_SCORES };
struct rt_router_method {
    const char *name;
    enum rt_score score;
    bool after;  /* the function is applied to the chosen logits only */
    bool renorm; /* the chosen scores are divided by their sum */
    bool mixer;  /* each has a softmax of its own, see rt_router_weigh */
};
struct rt_router {
    int64_t H, E, k;
    struct rt_router_method how;
    bool backward, bias, correction;
    double eps, least;    /* of the sum that the chosen are divided by: added, or no less */
    double cap, times;    /* of the logits: what they are capped at, 0: not; their factor */
    double jitter;        /* of the mixer */
    int64_t always;       /* of the E experts the last ones, which every token chooses */
    int64_t scales;       /* numbers that multiply the weights as parameters: 0, 1 or E */
    bool norm;            /* hidden states are divided by the root of their mean square */
    double norm_eps;      /* which this is added to */
    int64_t groups, keep; /* groups of experts, and those that stay; 0: no groups */
    bool top2, fill_zero; /* their score is a sum of two; what others are filled with */
    double scale;         /* of the affinities */
    bool balance, z;      /* auxiliary losses */
    bool per_token;       /* shares of experts in the balance are of T tokens, not of T k choices */
    double balance_c, z_c; /* their coefficients */
};
moegen_rt_status rt_router_read(const moegen_rt_problem *p, struct rt_router *r,
                                moegen_rt_error *err);
/* The size of inputs' logits: that with which they are of order 1, or of that of their cap, once
 * they are multiplied by their factor; of extremes of both they keep some. */
double rt_router_size(const struct rt_router *r);
/* Moves the hidden states of each token towards the weights of the experts that the routing asks
 * for, so that the router chooses them (as far as H leaves room for E directions). An affinity is
 * as far off as the last bits of a logit: logits stay of order 1. */
moegen_rt_status rt_router_push(moegen_rt_problem *p, const struct rt_router *r,
                                const moegen_rt_fill *how, moegen_rt_error *err);
struct rt_router_token {
    double *p;       /* [E] scores of all experts */
    double *rank;    /* [E] what is ranked */
    double *l, *s;   /* [k] of the chosen: logits or scores, and scores, */
    double *q;       /* [k] and affinities before the scale */
    double *dq, *dl; /* [k] */
    double *dp;      /* [E] */
    double *z;       /* [E] logits, capped */
    double *group;   /* [E] scores of groups */
    bool open;       /* f32 could keep other groups */
};
/* t->z: what everything else takes as logits. */
void rt_router_cap(const struct rt_router *r, const double *logits, struct rt_router_token *t);
/* dlogits, of what rt_router_cap makes of these logits, become those of the logits. */
void rt_router_cap_back(const struct rt_router *r, const double *logits, double *dlogits);
/* t->rank: what the experts are chosen by; correction [E] may be NULL. Also sets t->p, t->open. */
void rt_router_rank(const struct rt_router *r, const double *logits, const double *correction,
                    struct rt_router_token *t);
/* The k best of t->rank into chosen, best first, the lower index first among equals. Says which
 * places and (result) whether the set itself could come out differently in f32. */
bool rt_router_choose(const struct rt_router *r, const struct rt_router_token *t, int64_t *chosen,
                      uint8_t *unsure);
/* t->q: affinities of the chosen experts from the logits, before the scale. */
void rt_router_weigh(const struct rt_router *r, const double *logits, const int64_t *chosen,
                     struct rt_router_token *t);
/* dlogits += those of the affinities, whose gradients are in t->dq; after rt_router_weigh. */
void rt_router_weigh_back(const struct rt_router *r, const double *logits, const int64_t *chosen,
                          struct rt_router_token *t, double *dlogits);
/* Adds one token's part of both auxiliary losses; count[e] of the T tokens chose expert e. */
void rt_router_losses(const struct rt_router *r, int64_t T, const double *logits,
                      const double *count, struct rt_router_token *t, double *balance, double *z);
void rt_router_losses_back(const struct rt_router *r, int64_t T, const double *logits,
                           const double *count, struct rt_router_token *t, double *dlogits);

#endif
