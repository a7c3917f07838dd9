/* SPDX-License-Identifier: Apache-2.0 */
/* tape.h - a program of gen/lua/ir.lua that nobody reads, only the CPU: tape.c records it,
 * tape_code.c gives its values registers and makes its machine code. Items count from 1, as
 * ir.lua's. All memory is that of the Lua state. */
#ifndef MOEGEN_TAPE_H
#define MOEGEN_TAPE_H

#include "arch/arch.h"

struct lua_State;

enum { MAX_PARAMS = 32, MAX_OPS = 256 };

struct value {
    int def, last; /* items; last: the last one that uses it */
    int next;      /* in the list of those that end at the same item */
    int16_t reg;   /* -1: none */
    uint8_t file;
    uint8_t size;  /* of what an address points to */
    bool stays;    /* a parameter that needs no register if it lies on the stack, */
    int16_t param; /* as so many before it */
};

struct place {
    int base, index; /* values; index -1: none */
    int64_t offset;  /* elements */
};

struct op {
    const char *name;         /* NULL: a free entry */
    const void *coder;        /* of its machine */
    char roles[MAX_OPERANDS]; /* a letter per operand, see isa/scalar.lua */
    int operands, size;
    enum file file;
    bool pooled; /* its immediate lies behind the code */
};

/* Those of a target: a table of names, which the generator's modules keep. */
struct ops {
    struct op row[MAX_OPS];
    int count;
};

enum item_kind { OP, LOOP, AGAIN, COUNT, SET, ADVANCE };
struct item {
    uint8_t kind;
    bool maybe;
    int16_t row; /* -1: of all rows */
    int arg[MAX_OPERANDS];
    const struct op *op;
    int64_t imm;
    uint32_t at, len; /* its code, as far as that does not depend on where it is */
};

struct tape {
    const struct machine *machine;
    const struct arch *arch; /* its */
    int registers[FILES];
    bool zero_upper;
    int row; /* what is added belongs to it */
    struct ops *ops;
    struct value *value;
    struct place *place;
    struct item *item, *hoisted;
    int values, value_room, places, place_room, items, item_room, hoists, hoisted_room;
    int param[MAX_PARAMS], params;
    /* made once, by the first tape_code */
    bool placed;
    int peak;                      /* vector registers in use at most */
    int saved[MAX_GENERAL], saves; /* registers that the frame saves */
    uint8_t *code;                 /* of all items */
    uint32_t code_len;
    int extras;   /* items that have code which depends on its place */
    uint8_t *out; /* room for a whole program, its constants, and where they are loaded */
    uint32_t *pool;
    struct fixup {
        const struct item *item;
        size_t at, stop;
        int pooled;
    } * fixup;
};

struct tape *tape_of(struct lua_State *L); /* of argument 1, a program */
/* Zeros, dropped with the Lua state: room for count + 1 elements. Raises when memory is out. */
void *tape_room(struct lua_State *L, size_t count, size_t size);
/* tape.ops() -> what is known of the ops of a target: nothing yet */
int tape_ops(struct lua_State *L);
/* The op whose name is argument 2, a string; argument 1: the program of the tape. */
const struct op *tape_op_named(struct lua_State *L, struct tape *t);
/* Sets reg of all values, peak and saved. False: a sentence is on top of the stack, with the name.
 */
bool tape_registers(struct lua_State *L, struct tape *t, const char *name);
/* tape.code(p, name, rows) -> machine code of its rows (nil: all), vector registers in use at most;
 * or nil and why it does not fit. name: for that sentence */
int tape_code(struct lua_State *L);

#endif
