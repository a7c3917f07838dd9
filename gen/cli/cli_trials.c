/* SPDX-License-Identifier: Apache-2.0 */
/* cli_trials.c - which inputs a kernel is tried on. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const double scalar_most = 3e7;

/* Tokens that cost about this many operations, within limits. */
static int64_t tokens_for(const moegen_kernel *kernel, double flops, int64_t least, int64_t most)
{
    double one = kernel_flops(kernel, 1);
    double fit = one > 0 ? flops / one : (double)most;
    return fit < (double)least ? least : fit > (double)most ? most : (int64_t)fit;
}

struct plan {
    struct trial *out;
    int count;
    uint64_t seed;
};

static struct trial *add(struct plan *p, int64_t tokens, const char *routing)
{
    struct trial *t = &p->out[p->count];
    if (p->count == MAX_TRIALS)
        return t - 1;
    *t = (struct trial){.how = {.T = tokens, .seed = p->seed + (uint64_t)p->count}};
    t->how.routing = routing;
    p->count++;
    return t;
}

/* The first one, and what costs no more operations together than the scalar spelling has time for:
 * what depends on the routing, small kernels show in it. */
static void find_long(struct plan *p, const moegen_kernel *kernel)
{
    double spent = 0;
    for (int i = 0; i < p->count; i++) {
        double flops = kernel_flops(kernel, p->out[i].how.T);
        p->out[i].long_one = i > 0 && spent + flops > scalar_most;
        spent += p->out[i].long_one ? 0 : flops;
    }
}

static int describe(struct plan *p, const moegen_kernel *kernel)
{
    find_long(p, kernel);
    for (int i = 0; i < p->count; i++) {
        const moegen_rt_fill *h = &p->out[i].how;
        snprintf(p->out[i].text, sizeof p->out[i].text,
                 "T=%" PRId64 " routing=%s seed=%" PRIu64 "%s%s", h->T, h->routing, h->seed,
                 h->extra_blocks ? " with surplus blocks" : "",
                 h->no_conditions ? " without conditions" : "");
    }
    return p->count;
}

int trials_plan(const moegen_kernel *kernel, const struct options *o, struct trial *out)
{
    struct plan p = {.out = out, .seed = (uint64_t)o->seed};
    const char *only = o->routing;
    int64_t fixed = kernel_tokens(kernel, o->tokens);
    const moegen_kernel_facts *f = kernel_facts(kernel);
    double weights = (double)f->weight_bytes_per_expert * (double)param_int(kernel, "E", 1) +
                     (double)f->weight_bytes;
    bool large = weights > 64e6; /* filling the weights takes longer than running: few cases */
    int64_t some = fixed ? fixed : tokens_for(kernel, 0.3e9, 3, 37);
    int64_t many = fixed ? fixed : tokens_for(kernel, 40e9, 4, 333);
    for (int i = 0; moegen_rt_routing(i); i++) {
        const char *kind = moegen_rt_routing(i);
        bool core = strcmp(kind, "uniform") == 0 || strcmp(kind, "one") == 0;
        if (only ? strcmp(only, kind) == 0 : !large || core)
            add(&p, some, kind);
    }
    if (fixed || only) {
        if (!p.count) /* a kind that the runtime does not know: let it say so */
            add(&p, some, only);
        return describe(&p, kernel);
    }
    add(&p, large ? many : (many + 1) / 2, "uniform");
    if (large)
        return describe(&p, kernel);
    add(&p, many, "skewed");
    add(&p, 1, "uniform");
    add(&p, 2, "one");
    add(&p, some, "uniform")->how.extra_blocks = 3;
    add(&p, some, "skewed")->how.no_conditions = 1;
    return describe(&p, kernel);
}
