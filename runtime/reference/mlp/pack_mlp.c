/* SPDX-License-Identifier: Apache-2.0 */
/* pack_mlp.c - operands in the order in which products read them (weights.layout = packed), or as
 * codes of a format with scales. */
#include "mlp.h"

static bool is_coded(const moegen_rt_problem *p, const struct rt_operand_shape *o)
{
    return o->scale && rt_matrices_coded(p);
}

static struct rt_matrices rows_of(const struct rt_operand_shape *o)
{
    return (struct rt_matrices){
        .names = {o->name, o->scale, o->second}, .K = o->columns, .C = o->rows, .parts = o->parts};
}

/* l->run is 0 if the operand lies as its shape says. */
static moegen_rt_status lay(const moegen_rt_problem *p, const struct rt_operand_shape *o,
                            struct rt_packed *l, moegen_rt_error *err)
{
    *l = (struct rt_packed){.run = 0};
    return o->scale ? rt_packed_of(p, moegen_rt_problem_text(p, "dtype", "f32"), o->columns,
                                   o->rows, o->parts, false, l, err)
                    : MOEGEN_RT_OK;
}

moegen_rt_status rt_operand_unpack(const moegen_rt_problem *p, const struct rt_operand_shape *o,
                                   struct rt_operand *to, moegen_rt_error *err)
{
    struct rt_packed l;
    struct rt_matrices rows = rows_of(o);
    const moegen_rt_tensor *t;
    if (is_coded(p, o)) {
        to->t = &to->decoded;
        return rt_matrices_read(p, &rows, &to->decoded, err);
    }
    moegen_rt_status status = lay(p, o, &l, err);
    if (status == MOEGEN_RT_OK && l.run)
        status = rt_input(p, o->name, true, 1, &l.each, &t, err);
    if (status != MOEGEN_RT_OK || !l.run)
        return status;
    to->decoded = (moegen_rt_tensor){.name = to->decoded.name,
                                     .dtype = t->dtype,
                                     .rank = 2,
                                     .shape = {o->rows, o->columns},
                                     .data = rt_unpacked(&l, t, 1)};
    if (!to->decoded.data)
        return rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    to->t = &to->decoded;
    return MOEGEN_RT_OK;
}

moegen_rt_status rt_operand_pack(moegen_rt_problem *p, const struct rt_operand_shape *o,
                                 moegen_rt_dtype dtype, uint64_t seed, double scale, bool *done,
                                 moegen_rt_error *err)
{
    struct rt_packed l;
    struct rt_matrices rows = rows_of(o);
    if ((*done = is_coded(p, o)))
        return rt_matrices_fill(p, &rows, seed, scale, err);
    moegen_rt_status status = lay(p, o, &l, err);
    *done = l.run > 0;
    return status == MOEGEN_RT_OK && l.run
               ? rt_add_packed(p, o->name, dtype, &l, 0, seed, scale, err)
               : status;
}

moegen_rt_status rt_mlp_online(const moegen_rt_problem *p, const struct rt_mlp *m,
                               struct rt_online q[2], moegen_rt_error *err)
{
    struct rt_operand_shape of[RT_OPERANDS];
    rt_mlp_operands(m, -1, false, of);
    struct rt_matrices gate_up = rows_of(&of[RT_WGU]), down = rows_of(&of[RT_WD]);
    moegen_rt_status status = rt_matrices_online(p, &gate_up, &q[0], err);
    return status == MOEGEN_RT_OK ? rt_matrices_online(p, &down, &q[1], err) : status;
}
