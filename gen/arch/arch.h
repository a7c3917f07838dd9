/* SPDX-License-Identifier: Apache-2.0 */
/* arch.h - what the JIT asks of a machine, whose room gives it: arch/x86. */
#ifndef MOEGEN_ARCH_ARCH_H
#define MOEGEN_ARCH_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum file { VECTOR, MASK, TILE, GENERAL, FILES }; /* register files: v, k, t, r */
enum { MAX_CODE = 24, MAX_OPERANDS = 8, MAX_GENERAL = 32 };

/* The code of an instruction. */
struct bytes {
    uint8_t at[MAX_CODE];
    size_t n;
};

/* What an op works on: one operand. */
enum operand_kind { AS_REGISTER, AS_MEMORY, AS_NUMBER };
struct operand {
    uint8_t kind;
    uint8_t reg;  /* the register; of memory its base */
    int8_t index; /* of memory: the register that counts elements, or -1 */
    uint8_t size; /* of memory: bytes of an element */
    int64_t n;    /* the number; of memory: bytes from the base */
};

/* Instructions that are no ops; of these, what a, b and n are. */
enum control {
    SAVE,       /* register a, on the stack */
    RESTORE,    /* register a */
    ARGUMENT,   /* into a, the one that lies n words above the top of the stack */
    MOVE,       /* into a from b */
    NUMBER,     /* into a: n */
    ADD,        /* to a: n */
    ADD_SCALED, /* to a: n times b; n is 1, 2, 4 or 8 */
    LOOK,       /* is a 0? for SKIP */
    DOWN,       /* one off a, for JUMP */
    JUMP,       /* if something is left, to n bytes from this instruction's start */
    SKIP,       /* if there is nothing; likewise */
    WIDE_OFF,   /* what wide vectors leave behind is cleared */
    BACK        /* to the caller */
};

/* Of a target's machine; the room's own data follow. */
struct machine {
    const struct arch *arch;
};

struct arch {
    /* Registers of integers and addresses: those of arguments, in order; the others of a leaf
     * function, those first that need not be saved. */
    int arguments, argument[MAX_GENERAL], scratches, scratch[MAX_GENERAL];
    bool must_save[MAX_GENERAL];
    int first[FILES]; /* register that is given to values */
    /* Adds an op. coder: made of its row by the room; x: its operands, in order; away: its constant
     * is so far from its end, or NULL. */
    void (*op)(struct bytes *to, const void *coder, const struct operand *x, const int64_t *away);
    /* Adds an instruction, whose length n does not change for JUMP and SKIP. */
    void (*control)(struct bytes *to, const struct machine *m, enum control what, unsigned a,
                    unsigned b, int64_t n);
};

#endif
