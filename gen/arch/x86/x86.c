/* SPDX-License-Identifier: Apache-2.0 */
/* x86.c - x86-64 as arch.h asks for it, with the calling convention of System V. As
 * gen/lua/arch/x86 has it for code that is read. */
#include "encode.h"

enum { STACK = 4, JUMP_LENGTH = 6 };

/* ---- ops ---- */

/* Register of the operand at the place of a letter; 0 without it. */
static unsigned reg_at(const struct coder *c, const struct operand *x, char letter)
{
    int i = c->at[letter - 'A'];
    return i ? x[i - 1].reg : 0;
}

static unsigned scale_of(int size)
{
    unsigned scale = 0;
    while ((1 << scale) < size && scale < 3)
        scale++;
    return scale;
}

static void set_memory(const struct coder *c, const struct operand *m, struct operands *o)
{
    bool stride = c->at['T' - 'A'] != 0; /* rows so far apart: the operand that follows */
    o->base = m->reg;
    o->disp = m->n;
    o->indexed = stride || m->index >= 0;
    if (stride)
        o->index = m[1].reg;
    else if (o->indexed) {
        o->index = (unsigned)m->index;
        o->scale = scale_of(m->size);
    }
}

static void add_op(struct bytes *to, const void *coder, const struct operand *x,
                   const int64_t *away)
{
    const struct coder *c = coder;
    const uint8_t *at = c->at;
    struct operands o = {.imm = c->value};
    o.reg = reg_at(c, x, at['A' - 'A'] ? 'A' : 'R');
    o.vvvv = reg_at(c, x, at['V' - 'A'] ? 'V' : 'A');
    o.mask = reg_at(c, x, 'K');
    if (!c->fixed && c->form.imm && at['I' - 'A'])
        o.imm = x[at['I' - 'A'] - 1].n;
    if (at['S' - 'A'] && at['M' - 'A']) /* a register in the high half of the immediate */
        o.imm = (int64_t)reg_at(c, x, 'S') << 4;
    int m = (at['M' - 'A'] ? at['M' - 'A'] : at['T' - 'A'] ? at['T' - 'A'] : at['A' - 'A']) - 1;
    if (away) {
        o.disp = *away;
        encode_relative(to, &c->form, &o);
    } else if (m >= 0 && x[m].kind == AS_MEMORY) {
        set_memory(c, &x[m], &o);
        encode_memory(to, &c->form, &o);
    } else {
        o.rm = m >= 0 ? x[m].reg : 0;
        encode_register(to, &c->form, &o);
    }
}

/* ---- what is no op ---- */

static void add_control(struct bytes *to, const struct machine *m, enum control what, unsigned a,
                        unsigned b, int64_t n)
{
    const struct form *const *frame = ((const struct x86 *)m)->frame;
    struct operands o = {.rm = a, .imm = n};
    switch (what) {
    case SAVE:
        encode_register(to, frame[PUSH], &o);
        break;
    case RESTORE:
        encode_register(to, frame[POP], &o);
        break;
    case ARGUMENT:
        o = (struct operands){.reg = a, .base = STACK, .disp = 8 * n};
        encode_memory(to, frame[MOV], &o);
        break;
    case MOVE:
        o = (struct operands){.reg = a, .rm = b};
        encode_register(to, frame[MOV], &o);
        break;
    case NUMBER:
        encode_register(to, frame[MOV_NUMBER], &o);
        break;
    case ADD:
        encode_register(to, frame[n >= -128 && n < 128 ? ADD_8 : ADD_32], &o);
        break;
    case ADD_SCALED:
        o = (struct operands){
            .reg = a, .base = a, .index = b, .indexed = true, .scale = scale_of((int)n)};
        encode_memory(to, frame[LEA], &o);
        break;
    case LOOK:
        o.imm = 0;
        encode_register(to, frame[ADD_8], &o);
        break;
    case DOWN:
        o.imm = 1;
        encode_register(to, frame[SUB_8], &o);
        break;
    case JUMP:
    case SKIP:
        o = (struct operands){.imm = n - JUMP_LENGTH};
        encode_register(to, frame[what == JUMP ? JNZ : JZ], &o);
        break;
    case WIDE_OFF:
        encode_register(to, frame[VZEROUPPER], &o);
        break;
    case BACK:
        encode_register(to, frame[RET], &o);
    }
}

const struct arch x86_arch = {
    .arguments = 6,
    .argument = {7, 6, 2, 1, 8, 9},
    .scratches = 9,
    .scratch = {0, 10, 11, 3, 5, 12, 13, 14, 15},
    .must_save = {[3] = true, [5] = true, [12] = true, [13] = true, [14] = true, [15] = true},
    .first = {[MASK] = 1}, /* k0 means "no mask" */
    .op = add_op,
    .control = add_control,
};
