/* SPDX-License-Identifier: Apache-2.0 */
/* pack_mlp.c - operands in the order in which products read them (weights.layout = packed). */
#include "mlp.h"

/* l->run is 0 if the operand lies as its shape says. */
static moegen_rt_status lay(const moegen_rt_problem *p, const struct rt_operand_shape *o,
                            struct rt_packed *l, moegen_rt_error *err)
{
    *l = (struct rt_packed){.run = 0};
    return o->is_matrix ? rt_packed_of(p, moegen_rt_problem_text(p, "dtype", "f32"), o->columns,
                                       o->rows, o->parts, false, l, err)
                        : MOEGEN_RT_OK;
}

moegen_rt_status rt_operand_unpack(const moegen_rt_problem *p, const struct rt_operand_shape *o,
                                   struct rt_operand *to, moegen_rt_error *err)
{
    struct rt_packed l;
    const moegen_rt_tensor *t;
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
                                 moegen_rt_dtype dtype, uint64_t seed, double scale,
                                 bool *is_packed, moegen_rt_error *err)
{
    struct rt_packed l;
    moegen_rt_status status = lay(p, o, &l, err);
    *is_packed = l.run > 0;
    return status == MOEGEN_RT_OK && l.run
               ? rt_add_packed(p, o->name, dtype, &l, 0, seed, scale, err)
               : status;
}
