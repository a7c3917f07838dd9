/* SPDX-License-Identifier: Apache-2.0 */
/* pack_mlp.c - operands as the key `weights` has them: packed, codes of a format with scales, gate
 * and up in turn or in tensors of their own. */
#include "mlp.h"

static struct rt_matrices rows_of(const struct rt_operand_shape *o)
{
    return (struct rt_matrices){.names = {o->name, o->scale, o->second},
                                .K = o->columns,
                                .C = o->rows,
                                .parts = o->parts,
                                .gate_up = o->gate_up};
}

static bool is_plain(const moegen_rt_problem *p, const struct rt_operand_shape *o)
{
    struct rt_matrices rows = rows_of(o);
    return !o->scale || rt_matrices_plain(p, &rows);
}

moegen_rt_status rt_operand_unpack(const moegen_rt_problem *p, const struct rt_operand_shape *o,
                                   struct rt_operand *to, moegen_rt_error *err)
{
    struct rt_matrices rows = rows_of(o);
    if (is_plain(p, o))
        return MOEGEN_RT_OK;
    to->t = &to->decoded;
    return rt_matrices_read(p, &rows, &to->decoded, err);
}

moegen_rt_status rt_operand_add(moegen_rt_problem *p, const struct rt_operand_shape *o,
                                moegen_rt_dtype dtype, uint64_t seed, double scale,
                                moegen_rt_error *err)
{
    struct rt_matrices rows = rows_of(o);
    int64_t extents[] = {o->rows, o->columns};
    return is_plain(p, o) ? rt_add_normal(p, o->name, dtype, 2, extents, seed, scale, err)
                          : rt_matrices_fill(p, &rows, dtype, seed, scale, err);
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
