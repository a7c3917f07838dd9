/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encode.c - machine code from the Intel manual's notation.
 *
 *   EVEX   62 | R X B R' 0 m m m | W v v v v 1 p p | z L' L b V' a a a | opcode ModRM [SIB] [disp]
 *   VEX3   C4 | R X B m m m m m  | W v v v v L p p |                     opcode ModRM [SIB] [disp]
 *   VEX2   C5 | R v v v v L p p  |                                       opcode ModRM [SIB] [disp]
 *          (R X B R' V' vvvv are stored inverted; the immediate comes last)
 */
#include <stddef.h>
#include <string.h>

#include "encode.h"

static void put(struct bytes *b, unsigned byte)
{
    b->at[b->n++] = (uint8_t)byte;
}

static void put_32(struct bytes *b, uint32_t word)
{
    for (int i = 0; i < 32; i += 8)
        put(b, word >> i & 255);
}

/* ---- notation ---- */

static const struct {
    const char *name;
    size_t field;
    uint8_t value;
} words[] = {
    {"128", offsetof(struct form, length), 0}, {"256", offsetof(struct form, length), 1},
    {"512", offsetof(struct form, length), 2}, {"LIG", offsetof(struct form, length), 0},
    {"LZ", offsetof(struct form, length), 0},  {"NP", offsetof(struct form, prefix), 0},
    {"66", offsetof(struct form, prefix), 1},  {"F3", offsetof(struct form, prefix), 2},
    {"F2", offsetof(struct form, prefix), 3},  {"0F", offsetof(struct form, map), 1},
    {"0F38", offsetof(struct form, map), 2},   {"0F3A", offsetof(struct form, map), 3},
    {"MAP5", offsetof(struct form, map), 5},   {"MAP6", offsetof(struct form, map), 6},
    {"W0", offsetof(struct form, w), 0},       {"W1", offsetof(struct form, w), 1},
    {"WIG", offsetof(struct form, w), 0},      {"b", offsetof(struct form, broadcast), 1},
};

static bool same(const char *name, const char *at, size_t n)
{
    return strncmp(name, at, n) == 0 && name[n] == '\0';
}

/* "EVEX.512.66.0F38.W0", n characters. */
static bool parse_prefix(struct form *f, const char *at, size_t n)
{
    const char *stop = at + n;
    f->kind = *at == 'E' ? EVEX : VEX;
    f->map = 1;
    for (at += strcspn(at, "."); at < stop; at += n) {
        size_t i = 0;
        n = strcspn(++at, ". ");
        while (i < sizeof words / sizeof *words && !same(words[i].name, at, n))
            i++;
        if (i == sizeof words / sizeof *words)
            return false;
        ((uint8_t *)f)[words[i].field] = words[i].value;
    }
    return true;
}

static int hex_digit(char c)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static bool parse_word(struct form *f, const char *at, size_t n)
{
    if (same("/r", at, n)) {
        f->modrm = true;
    } else if (same("ib", at, n) || same("id", at, n)) {
        f->imm = at[1] == 'b' ? 1 : 4;
    } else if (same("REX.W", at, n)) {
        f->w = 1;
    } else if (same("+r", at, n)) {
        f->plus = true;
    } else if (n == 2 && *at == '/' && at[1] >= '0' && at[1] <= '7') {
        f->modrm = true;
        f->digit = at[1] - '0';
    } else {
        int high = hex_digit(at[0]), low = n == 2 ? hex_digit(at[1]) : -1;
        if (high < 0 || low < 0 || f->opcodes == MAX_OPCODE)
            return false;
        f->opcode[f->opcodes++] = (uint8_t)(high << 4 | low);
    }
    return true;
}

bool encode_parse(struct form *f, const char *at)
{
    *f = (struct form){.digit = -1};
    if (strncmp(at, "VEX.", 4) == 0 || strncmp(at, "EVEX.", 5) == 0) {
        size_t n = strcspn(at, " ");
        if (!parse_prefix(f, at, n))
            return false;
        at += n;
    }
    for (at += strspn(at, " "); *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");
        if (!parse_word(f, at, n))
            return false;
        at += n;
    }
    return f->opcodes > 0;
}

/* ---- instructions ---- */

static unsigned reg_of(const struct form *f, const struct operands *o)
{
    return f->digit < 0 ? o->reg : (unsigned)f->digit;
}

/* Prefix and opcode. x, b: bit 3 of index and base, or bits 4 and 3 of an rm register. */
static void put_head(struct bytes *to, const struct form *f, const struct operands *o, unsigned x,
                     unsigned b)
{
    unsigned reg = reg_of(f, o), v = o->vvvv, r = ~reg >> 3 & 1;
    if (f->kind == EVEX) {
        put(to, 0x62);
        put(to, r << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | (~reg >> 4 & 1) << 4 | f->map);
        put(to, (unsigned)f->w << 7 | (~v & 15) << 3 | 4 | f->prefix);
        put(to,
            (unsigned)f->length << 5 | (unsigned)f->broadcast << 4 | (~v >> 4 & 1) << 3 | o->mask);
    } else if (f->kind == VEX) {
        unsigned last = (~v & 15) << 3 | (unsigned)f->length << 2 | f->prefix;
        if (!x && !b && f->map == 1 && !f->w) {
            put(to, 0xc5);
            put(to, r << 7 | last);
        } else {
            put(to, 0xc4);
            put(to, r << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | f->map);
            put(to, (unsigned)f->w << 7 | last);
        }
    } else {
        unsigned rex = (unsigned)f->w << 3 | (reg >> 3 & 1) << 2 | x << 1 | b;
        if (rex)
            put(to, 0x40 | rex);
    }
    for (int i = 0; i < f->opcodes; i++)
        put(to, f->opcode[i]);
}

static void put_imm(struct bytes *to, const struct form *f, int64_t imm)
{
    if (f->imm == 1)
        put(to, (unsigned)imm & 255);
    else if (f->imm == 4)
        put_32(to, (uint32_t)imm);
}

void encode_register(struct bytes *to, const struct form *f, const struct operands *o)
{
    put_head(to, f, o, o->rm >> 4 & 1, o->rm >> 3 & 1);
    if (f->plus)
        to->at[to->n - 1] = (uint8_t)(to->at[to->n - 1] + (o->rm & 7));
    else if (f->modrm)
        put(to, 0xc0 | (reg_of(f, o) & 7) << 3 | (o->rm & 7));
    put_imm(to, f, o->imm);
}

void encode_memory(struct bytes *to, const struct form *f, const struct operands *o)
{
    unsigned low = o->base & 7, modrm = (reg_of(f, o) & 7) << 3;
    bool sib = o->indexed || low == 4;
    put_head(to, f, o, o->indexed ? o->index >> 3 : 0, o->base >> 3);
    int64_t n = f->scale, part = o->disp / n;
    bool none = o->disp == 0 && low != 5;
    bool little = !none && part * n == o->disp && part >= -128 && part <= 127;
    put(to, modrm | (sib ? 4 : low) | (none ? 0 : little ? 0x40 : 0x80));
    if (sib)
        put(to, o->indexed ? o->scale << 6 | (o->index & 7) << 3 | low : 0x24);
    if (little)
        put(to, (unsigned)part & 255);
    else if (!none)
        put_32(to, (uint32_t)o->disp);
    put_imm(to, f, o->imm);
}

void encode_relative(struct bytes *to, const struct form *f, const struct operands *o)
{
    put_head(to, f, o, 0, 0);
    put(to, (reg_of(f, o) & 7) << 3 | 5);
    put_32(to, (uint32_t)o->disp);
    put_imm(to, f, o->imm);
}
