/* SPDX-License-Identifier: Apache-2.0 */
/* encode.h - machine code of one instruction: encode.c, and what the files of this room share. */
#ifndef MOEGEN_ARCH_X86_ENCODE_H
#define MOEGEN_ARCH_X86_ENCODE_H

#include "arch/arch.h"

/* What a notation says: "EVEX.512.66.0F38.W0 B8 /r ib", or "REX.W 8B /r" without a vector prefix.
 */
enum kind { LEGACY, VEX, EVEX };
enum { MAX_OPCODE = 4 };

struct form {
    enum kind kind;
    uint8_t length, prefix, map, w, broadcast;
    uint8_t opcode[MAX_OPCODE], opcodes;
    bool modrm, plus; /* plus: the register is part of the opcode */
    int digit;        /* in place of a register, or -1 */
    int imm;          /* bytes of the immediate */
    int scale;        /* what an 8-bit displacement is multiplied by */
};

/* What an instruction works on; registers by number, 0 where there is none. */
struct operands {
    unsigned reg, vvvv, mask;
    unsigned rm;          /* a register.. */
    unsigned base, index; /* ..or memory */
    bool indexed;
    unsigned scale; /* of the index, 0..3 */
    int64_t disp, imm;
};

/* A row of an instruction table, parsed: its notation, and the places where the operands of its op
 * go. See the head of gen/lua/isa/avx512.lua. */
struct coder {
    struct form form;
    bool fixed; /* the immediate is `value` */
    int64_t value;
    uint8_t at[26]; /* letter of a place - 'A' -> number of the operand, 0: none */
};

/* Instructions that are no ops, by their place in the list that gen/lua/arch/x86/code.lua gives. */
enum frame {
    PUSH,
    POP,
    MOV,
    MOV_NUMBER,
    LEA,
    ADD_8,
    ADD_32,
    SUB_8,
    JNZ,
    JZ,
    VZEROUPPER,
    RET,
    FRAMES
};

struct x86 {
    struct machine machine;
    const struct form *frame[FRAMES];
};

extern const struct arch x86_arch; /* x86.c; its coders are struct coder */

bool encode_parse(struct form *f, const char *notation); /* false: not a notation */
/* Add an instruction whose ModRM operand is a register, memory at base + index << scale + disp, or
 * memory at disp from the instruction's end. */
void encode_register(struct bytes *to, const struct form *f, const struct operands *o);
void encode_memory(struct bytes *to, const struct form *f, const struct operands *o);
void encode_relative(struct bytes *to, const struct form *f, const struct operands *o);

#endif
