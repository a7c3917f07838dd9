/* SPDX-License-Identifier: Apache-2.0 */
/* router_read.c - what a problem says of the router (SEMANTICS 5). */
#include <string.h>

#include "router.h"

static const struct rt_router_method methods[] = {
    /* name, score, after, renorm, mixer */
    {"softmax_topk", RT_SOFTMAX, false, false, false},
    {"softmax_topk_renorm", RT_SOFTMAX, false, true, false},
    {"topk_softmax", RT_SOFTMAX, true, false, false},
    {"sigmoid_topk", RT_SIGMOID, false, false, false},
    {"topk_sigmoid", RT_SIGMOID, true, false, false},
    {"sigmoid_topk_renorm", RT_SIGMOID, false, true, false},
    {"sparsemixer", RT_SOFTMAX, true, false, true},
};
enum { METHODS = sizeof methods / sizeof *methods };

static const char *const scores[RT_SCORES] = {"softmax", "sigmoid", "sqrt_softplus"};

static moegen_rt_status read_method(const moegen_rt_problem *p, struct rt_router *r,
                                    moegen_rt_error *err)
{
    const char *method = moegen_rt_problem_text(p, "method", "softmax_topk");
    const char *score = moegen_rt_problem_text(p, "score", NULL);
    int i = 0, j = 0;
    while (i < METHODS && strcmp(methods[i].name, method) != 0)
        i++;
    if (i == METHODS)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "method: the router has no '%s'", method);
    r->how = methods[i];
    while (score && j < RT_SCORES && strcmp(scores[j], score) != 0)
        j++;
    if (j == RT_SCORES)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "score: the router has no '%s'", score);
    if (score)
        r->how.score = (enum rt_score)j;
    r->how.renorm |= moegen_rt_problem_text(p, "renorm.eps", NULL) ||
                     moegen_rt_problem_text(p, "renorm.min", NULL);
    r->eps = moegen_rt_problem_number(p, "renorm.eps", 0);
    r->least = moegen_rt_problem_number(p, "renorm.min", 0);
    r->cap = moegen_rt_problem_number(p, "softcap", 0);
    r->times = moegen_rt_problem_number(p, "logit_scale", 1);
    r->always = moegen_rt_problem_int(p, "always", 0);
    if (r->always < 0 || (r->always && r->always >= r->k))
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "always: %lld is not below top_k",
                       (long long)r->always);
    const char *scale = moegen_rt_problem_text(p, "router_scale", "none");
    r->scales = strcmp(scale, "each") == 0 ? r->E : strcmp(scale, "one") == 0;
    r->norm = moegen_rt_problem_text(p, "router_norm.eps", NULL) != NULL;
    r->norm_eps = moegen_rt_problem_number(p, "router_norm.eps", 0);
    r->jitter = moegen_rt_problem_number(p, "jitter", 0.01);
    return MOEGEN_RT_OK;
}

static moegen_rt_status read_groups(const moegen_rt_problem *p, struct rt_router *r,
                                    moegen_rt_error *err)
{
    if (!moegen_rt_problem_text(p, "groups.count", NULL))
        return MOEGEN_RT_OK;
    r->groups = moegen_rt_problem_int(p, "groups.count", 0);
    r->keep = moegen_rt_problem_int(p, "groups.keep", 0);
    r->top2 = strcmp(moegen_rt_problem_text(p, "groups.score", "top2_sum"), "top2_sum") == 0;
    r->fill_zero = strcmp(moegen_rt_problem_text(p, "groups.fill", ""), "zero") == 0;
    if (r->groups < 1 || r->E % r->groups != 0 || r->keep < 1 || r->keep > r->groups ||
        r->k > r->keep * (r->E / r->groups) || (r->top2 && r->E / r->groups < 2))
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "groups: %lld of %lld do not fit E and top_k",
                       (long long)r->keep, (long long)r->groups);
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_router_read(const moegen_rt_problem *p, struct rt_router *r,
                                moegen_rt_error *err)
{
    *r = (struct rt_router){0};
    moegen_rt_status status = rt_size(p, "H", 1 << 24, &r->H, err);
    if (status == MOEGEN_RT_OK)
        status = rt_size(p, "E", 1 << 20, &r->E, err);
    if (status != MOEGEN_RT_OK)
        return status;
    r->k = moegen_rt_problem_int(p, "top_k", 1);
    if (r->k < 1 || r->k > r->E)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT, "top_k: %lld is not in 1..%lld (E)",
                       (long long)r->k, (long long)r->E);
    status = read_method(p, r, err);
    if (status == MOEGEN_RT_OK)
        status = read_groups(p, r, err);
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
    return status;
}
