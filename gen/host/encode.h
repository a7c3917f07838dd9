/* SPDX-License-Identifier: Apache-2.0 */
/* encode.h - machine code of one instruction: encode.c, and encode_lua.c which hands it to Lua. */
#ifndef MOEGEN_ENCODE_H
#define MOEGEN_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a notation says: "EVEX.512.66.0F38.W0 B8 /r ib", or "REX.W 8B /r" without a vector prefix.
 */
enum kind { LEGACY, VEX, EVEX };
enum { MAX_OPCODE = 4, MAX_CODE = 24 };

struct form {
    enum kind kind;
    uint8_t length, prefix, map, w, broadcast;
    uint8_t opcode[MAX_OPCODE], opcodes;
    bool modrm, plus; /* plus: the register is part of the opcode */
    int digit;        /* in place of a register, or -1 */
    int imm;          /* bytes of the immediate */
    int scale;        /* what an 8-bit displacement is multiplied by */
};

struct bytes {
    uint8_t at[MAX_CODE];
    size_t n;
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

bool encode_parse(struct form *f, const char *notation); /* false: not a notation */
/* Add an instruction whose ModRM operand is a register, memory at base + index << scale + disp, or
 * memory at disp from the instruction's end. */
void encode_register(struct bytes *to, const struct form *f, const struct operands *o);
void encode_memory(struct bytes *to, const struct form *f, const struct operands *o);
void encode_relative(struct bytes *to, const struct form *f, const struct operands *o);

#endif
