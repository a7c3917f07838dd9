/* SPDX-License-Identifier: Apache-2.0 */
/* weights_lay.c - the tensors that hold the experts' matrices, or others whose rows are contracted:
 * names, shapes and places. */
#include <stdlib.h>
#include <string.h>

#include "reference/moe.h"
#include "reference/quantised.h"
#include "stored.h"

/* Names of a kind's tensors. */
static const struct rt_tensor_names joined[RT_KINDS] = {
    [RT_GATE_UP] = {"gate_up_proj_weight", "gate_up_proj_scale", "gate_up_proj_scale_2"},
    [RT_DOWN] = {"down_proj_weight", "down_proj_scale", "down_proj_scale_2"},
    [RT_GATE_UP_BIAS] = {"gate_and_up_proj_bias", NULL, NULL},
};
const struct rt_tensor_names rt_apart[2] = {
    {"gate_proj_weight", "gate_proj_scale", "gate_proj_scale_2"},
    {"up_proj_weight", "up_proj_scale", "up_proj_scale_2"},
};

/* ---- what the spec says ---- */

static bool is(const moegen_rt_problem *p, const char *key, const char *value,
               const char *otherwise)
{
    return strcmp(moegen_rt_problem_text(p, key, otherwise), value) == 0;
}

static moegen_rt_status find_layout(const moegen_rt_problem *p, const struct rt_matrix *x,
                                    const struct rt_layout **layout, moegen_rt_error *err)
{
    const struct rt_format *f = x->format;
    const char *name = moegen_rt_problem_text(p, "weights.layout", "plain");
    if (x->rows && strcmp(name, "plain") == 0)
        name = f && rt_format_grouped(f) ? "contiguous" : "transposed";
    const struct rt_layout *l = *layout = rt_layout_find(name);
    if (!l)
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED,
                       "weights.layout: the float64 reference does not read '%s'", name);
    if (!l->holds(f))
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED, "weights.layout: %s does not hold %s", name,
                       f ? f->name : "numbers without scales");
    if (x->H % l->of_H || x->I % l->of_I)
        return rt_fail(err, MOEGEN_RT_BAD_ARGUMENT,
                       "weights.layout: %s needs a multiple of %lld for H, here %lld, and of %lld "
                       "for I_TP, here %lld",
                       name, (long long)l->of_H, (long long)x->H, (long long)l->of_I,
                       (long long)x->I);
    return MOEGEN_RT_OK;
}

static moegen_rt_status find_format(const moegen_rt_problem *p, struct rt_weights *w,
                                    struct rt_matrix *x, moegen_rt_error *err)
{
    const char *scale = moegen_rt_problem_text(p, "weights.scale", NULL);
    w->format = x->format = rt_weights_format(p);
    if (!w->format)
        return MOEGEN_RT_OK;
    w->share = x->share = rt_format_share(w->format, scale);
    if (w->share == RT_SHARES)
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED, "weights.scale: %s has no scale '%s'",
                       w->format->name, scale);
    x->group = moegen_rt_problem_int(p, "weights.group", w->format->groups[0]);
    bool known = w->share != RT_GROUP;
    for (int i = 0; i < 3 && w->format->groups[i] && !known; i++)
        known = x->group == w->format->groups[i];
    return known ? MOEGEN_RT_OK
                 : rt_fail(err, MOEGEN_RT_UNSUPPORTED, "weights.group: %s has no groups of %lld",
                           w->format->name, (long long)x->group);
}

/* ---- the tensors of a kind ---- */

static bool lay_place(const struct rt_matrix *x, rt_places *how, bool shared, struct rt_place *p)
{
    p->row = calloc((size_t)(x->K + x->C), sizeof *p->row);
    if (!p->row)
        return false;
    p->column = p->row + x->K;
    if (x->E)
        p->shape[p->rank++] = shared ? 1 : x->E;
    int first = p->rank;
    how(x, p);
    p->count = 1;
    for (int i = first; i < p->rank; i++)
        p->count *= p->shape[i];
    p->each = shared ? 0 : p->count;
    return true;
}

static moegen_rt_status lay_tensors(const struct rt_layout *l, const struct rt_matrix *x,
                                    const struct rt_tensor_names *names, bool shared,
                                    struct rt_stored *to, moegen_rt_error *err)
{
    const struct rt_format *f = x->format;
    bool bias = x->kind == RT_GATE_UP_BIAS, ok;
    *to = (struct rt_stored){.name = names->weight,
                             .scale_name = names->scale,
                             .second_name = names->second,
                             .C = x->C,
                             .lanes = bias || !f ? 1
                                      : l->lanes ? l->lanes
                                                 : 8 / f->element->bits};
    ok = lay_place(x, bias ? l->bias : l->codes, false, &to->code);
    to->code.each *= to->lanes;
    if (ok && f && !bias)
        ok = lay_place(x, rt_scale_places(l, x), shared, &to->scale);
    if (ok && f && !bias && f->second)
        ok = lay_place(x, rt_second_scale, shared, &to->second);
    return ok ? MOEGEN_RT_OK : rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
}

/* names: of `count` tensors, x the matrix of each. */
static moegen_rt_status lay(const moegen_rt_problem *p, struct rt_matrix *x,
                            const struct rt_tensor_names *names, int count, struct rt_weights *w,
                            moegen_rt_error *err)
{
    const struct rt_layout *l = NULL;
    bool shared = moegen_rt_problem_bool(p, "weights.shared", 0);
    moegen_rt_status status = find_format(p, w, x, err);
    if (status == MOEGEN_RT_OK)
        status = find_layout(p, x, &l, err);
    if (status == MOEGEN_RT_OK && x->kind != RT_GATE_UP_BIAS)
        status = rt_packed_of(p, moegen_rt_problem_text(p, "weights.dtype", ""), x->K, x->C,
                              x->parts, x->interleaved, &x->packed, err);
    for (int i = 0; i < count && status == MOEGEN_RT_OK; i++) {
        status = lay_tensors(l, x, &names[i], shared, &w->of[i], err);
        w->of[i].first = i * x->width;
        w->of[i].packed = x->packed;
        w->count++;
    }
    w->format = x->kind == RT_GATE_UP_BIAS ? NULL : w->format; /* a bias has none */
    w->canonical = status == MOEGEN_RT_OK && rt_weights_canonical(w);
    return status;
}

/* Those of them that come as codes already: each tensor as [K, C], or transposed. */
static moegen_rt_status lay_given(const moegen_rt_problem *p, const struct rt_matrix *x,
                                  struct rt_weights *w, moegen_rt_error *err)
{
    bool across = is(p, "weights.layout", "transposed", "plain"), down = x->kind == RT_DOWN;
    bool again = is(p, "checkpoint", "recompute", "saved");
    struct rt_operand_shape o = {.key = w->whole,
                                 .E = x->E,
                                 .rows = across ? x->C : x->K,
                                 .columns = across ? x->K : x->C,
                                 .parts = x->parts,
                                 .beside = !across,
                                 .down = across == down ? "H" : "I",
                                 .along = down || again ? "H" : "I"};
    struct rt_quantiser q;
    moegen_rt_status status = rt_quantiser_read(p, &q, err);
    for (int i = 0; i < w->count && status == MOEGEN_RT_OK; i++) {
        struct rt_stored *s = &w->of[i];
        struct rt_codes c;
        o.name = s->name;
        o.rank = s->code.rank;
        memcpy(o.shape, s->code.shape, sizeof o.shape);
        status = rt_codes_read(p, &q, &o, &c, err);
        s->given = c.is_given ? malloc(sizeof c) : NULL;
        if (s->given)
            *s->given = c;
        else
            rt_codes_free(&c);
        if (status == MOEGEN_RT_OK && c.is_given && !s->given)
            status = rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
        w->along_K = c.is_given && c.down != across;
        w->along_C = c.is_given && !w->along_K;
        w->canonical = w->canonical && !c.is_given;
    }
    return status;
}

moegen_rt_status rt_weights_lay(const moegen_rt_problem *p, const struct rt_moe *m,
                                enum rt_kind kind, struct rt_weights *w, moegen_rt_error *err)
{
    bool down = kind == RT_DOWN;
    bool separate = kind == RT_GATE_UP && is(p, "weights.gate_up", "separate", "joined");
    int64_t K = down ? m->I : m->H;
    struct rt_matrix x = {.kind = kind,
                          .K = kind == RT_GATE_UP_BIAS ? 1 : K,
                          .width = down ? m->H : m->I,
                          .parts = down || separate ? 1 : m->parts,
                          .axis = !down && !separate,
                          .H = m->H,
                          .I = m->I,
                          .E = m->E};
    x.C = x.parts * x.width;
    x.interleaved = x.parts > 1 && is(p, "weights.gate_up_order", "interleaved", "split");
    *w = (struct rt_weights){
        .kind = kind, .E = m->E, .K = x.K, .expert = -1, .whole = joined[kind].weight};
    w->C = down ? m->H : m->parts * m->I;
    int count = separate ? (int)m->parts : 1;
    moegen_rt_status status =
        lay(p, &x, separate ? &rt_apart[2 - count] : &joined[kind], count, w, err);
    return status == MOEGEN_RT_OK && kind != RT_GATE_UP_BIAS ? lay_given(p, &x, w, err) : status;
}

moegen_rt_status rt_matrices_lay(const moegen_rt_problem *p, const struct rt_matrices *r,
                                 struct rt_weights *w, moegen_rt_error *err)
{
    bool separate = r->gate_up && is(p, "weights.gate_up", "separate", "joined");
    int64_t count = separate ? r->parts : 1, parts = separate ? 1 : r->parts;
    struct rt_matrix x = {.kind = RT_GATE_UP,
                          .K = r->K,
                          .C = r->C / count,
                          .width = r->C / r->parts,
                          .parts = parts,
                          .axis = parts > 1,
                          .H = r->K,
                          .I = r->C,
                          .E = r->E,
                          .rows = true};
    *w = (struct rt_weights){.kind = RT_GATE_UP,
                             .E = r->E ? r->E : 1,
                             .K = r->K,
                             .C = r->C,
                             .expert = -1,
                             .whole = r->names.weight};
    x.interleaved =
        r->gate_up && parts > 1 && is(p, "weights.gate_up_order", "interleaved", "split");
    return lay(p, &x, separate ? &rt_apart[2 - count] : &r->names, (int)count, w, err);
}
