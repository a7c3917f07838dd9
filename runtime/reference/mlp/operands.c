/* SPDX-License-Identifier: Apache-2.0 */
/* operands.c - what an MLP multiplies: numbers, packed ones, or codes (SEMANTICS 3). */
#include <stdlib.h>
#include <string.h>

#include "mlp.h"

void rt_mlp_operands(const struct rt_mlp *m, int64_t S, bool backward,
                     struct rt_operand_shape of[RT_OPERANDS])
{
    of[RT_X] = (struct rt_operand_shape){
        .name = "hidden_states", .rows = S, .columns = m->H, .parts = 1, .down = "S", .along = "H"};
    of[RT_WGU] = (struct rt_operand_shape){.name = "gate_up_weights",
                                           .rows = m->parts * m->I,
                                           .columns = m->H,
                                           .parts = m->parts,
                                           .down = "I",
                                           .along = "H",
                                           .scale = "gate_up_weights_scale",
                                           .second = "gate_up_weights_scale_2",
                                           .gate_up = true};
    of[RT_WD] = (struct rt_operand_shape){.name = "down_proj_weight",
                                          .rows = m->H,
                                          .columns = m->I,
                                          .parts = 1,
                                          .down = "H",
                                          .along = backward ? "H" : "I",
                                          .scale = "down_proj_scale",
                                          .second = "down_proj_scale_2"};
    of[RT_DY] = of[RT_X];
    of[RT_DY].name = "output_hidden_states_grad";
}

/* How many tensors there are of an operand, and the i-th one as an operand of its own. */
static int tensors_of(const moegen_rt_problem *p, const struct rt_operand_shape *o)
{
    const char *how = moegen_rt_problem_text(p, "weights.gate_up", "joined");
    return o->gate_up && strcmp(how, "separate") == 0 ? (int)o->parts : 0;
}

static struct rt_operand_shape tensor_of(const struct rt_operand_shape *o, int i)
{
    struct rt_operand_shape one = *o;
    one.key = o->name;
    one.name = rt_apart[2 - o->parts + i].weight;
    one.rows = o->rows / o->parts;
    one.parts = 1;
    return one;
}

/* An operand that is given as codes in several tensors: their rows follow each other. */
static moegen_rt_status decode_apart(const moegen_rt_problem *p, const struct rt_quantiser *q,
                                     const struct rt_operand_shape *shape, int count,
                                     struct rt_operand *to, moegen_rt_error *err)
{
    const size_t each = (size_t)(shape->rows / count * shape->columns) * sizeof(double);
    char *rows = NULL;
    moegen_rt_status status = MOEGEN_RT_OK;
    for (int i = 0; i < count && status == MOEGEN_RT_OK; i++) {
        struct rt_operand_shape of_one = tensor_of(shape, i);
        struct rt_operand one;
        status = rt_operand_decode(p, q, &of_one, &one, err);
        if (status == MOEGEN_RT_OK && one.is_given && i == 0 && !(rows = malloc(each * count)))
            status = rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
        if (status == MOEGEN_RT_OK && one.is_given)
            memcpy(rows + i * each, one.decoded.data, each);
        *to = one;
        to->t = NULL;
        to->decoded.data = NULL;
        rt_operand_free(&one);
    }
    if (!rows)
        return status;
    to->decoded.shape[0] = shape->rows;
    to->decoded.data = rows;
    to->t = &to->decoded;
    return status;
}

static moegen_rt_status operand_read(const moegen_rt_problem *p, const struct rt_quantiser *q,
                                     const struct rt_operand_shape *shape, struct rt_operand *to,
                                     moegen_rt_error *err)
{
    int64_t extents[] = {shape->rows, shape->columns};
    int count = tensors_of(p, shape);
    moegen_rt_status status =
        count ? decode_apart(p, q, shape, count, to, err) : rt_operand_decode(p, q, shape, to, err);
    if (status == MOEGEN_RT_OK && !to->is_given)
        status = rt_operand_unpack(p, shape, to, err);
    if (status == MOEGEN_RT_OK && !to->t)
        status = rt_input(p, shape->name, true, 2, extents, &to->t, err);
    return status;
}

moegen_rt_status rt_mlp_operands_read(const moegen_rt_problem *p, const struct rt_quantiser *q,
                                      const struct rt_mlp *m, bool backward,
                                      struct rt_operand to[RT_OPERANDS], int64_t *S,
                                      moegen_rt_error *err)
{
    struct rt_operand_shape of[RT_OPERANDS];
    moegen_rt_status status = MOEGEN_RT_OK;
    *S = -1;
    for (int i = 0; i < (backward ? RT_OPERANDS : RT_DY) && status == MOEGEN_RT_OK; i++) {
        rt_mlp_operands(m, *S, backward, of);
        status = operand_read(p, q, &of[i], &to[i], err);
        if (i == RT_X && status == MOEGEN_RT_OK)
            *S = to[i].t->rank ? to[i].t->shape[0] : 1;
    }
    return status;
}

moegen_rt_status rt_operand_quantise(const struct rt_quantiser *q, const struct rt_operand *o,
                                     int64_t rows, int64_t columns, int64_t down,
                                     moegen_rt_tensor *to, moegen_rt_error *err)
{
    struct rt_quantiser how = *q;
    how.on = !(o->is_given && o->is_down == (down > 0)); /* along its scales it stays as it is */
    return rt_quantise_matrix(&how, o->t, rows, columns, down, to, err);
}

moegen_rt_status rt_mlp_quantise(const struct rt_quantiser *q, const struct rt_mlp *m,
                                 bool backward, const struct rt_operand *operand,
                                 moegen_rt_tensor to[3], moegen_rt_error *err)
{
    const struct rt_operand *gate_up = &operand[RT_WGU], *down = &operand[RT_WD];
    int64_t columns = m->parts * m->I;
    moegen_rt_status status = rt_operand_quantise(q, gate_up, columns, m->H, 0, to, err);
    if (backward && status == MOEGEN_RT_OK)
        status = rt_operand_quantise(q, gate_up, columns, m->H, m->I, to + 1, err);
    if (status == MOEGEN_RT_OK)
        status = rt_operand_quantise(q, down, m->H, m->I, backward ? m->H : 0, to + 2, err);
    return status;
}

moegen_rt_status rt_operand_fill(moegen_rt_problem *p, const struct rt_quantiser *q,
                                 const struct rt_operand_shape *shape, moegen_rt_dtype dtype,
                                 uint64_t seed, double scale, moegen_rt_error *err)
{
    bool is_given = false;
    int count = tensors_of(p, shape);
    moegen_rt_status status = MOEGEN_RT_OK;
    for (int i = 0; i < (count ? count : 1) && status == MOEGEN_RT_OK; i++) {
        struct rt_operand_shape one = count ? tensor_of(shape, i) : *shape;
        struct rt_codes c;
        status = rt_codes_read(p, q, &one, &c, err);
        is_given = c.is_given;
        if (status == MOEGEN_RT_OK && is_given)
            status = rt_codes_fill(p, &c, seed, scale, err);
        rt_codes_free(&c);
    }
    return status == MOEGEN_RT_OK && !is_given ? rt_operand_add(p, shape, dtype, seed, scale, err)
                                               : status;
}
