/* SPDX-License-Identifier: Apache-2.0 */
/* tape_code.c - the machine code of the program on a tape, as gen/lua/vector/assemble.lua makes it
 * for readers. */
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "sandbox.h"
#include "tape.h"

/* ---- machine code of single items ---- */

static unsigned reg(const struct tape *t, int v)
{
    return (unsigned)t->value[v].reg;
}

static void on_register(struct bytes *to, const struct tape *t, enum frame f, unsigned r,
                        unsigned rm, int64_t imm)
{
    struct operands o = {.reg = r, .rm = rm, .imm = imm};
    encode_register(to, &t->frame[f]->form, &o);
}

/* Register of the operand at the place of a letter; 0 without it. */
static unsigned reg_at(const struct tape *t, const struct item *x, char letter)
{
    int i = x->op->coder->at[letter - 'A'];
    return i ? reg(t, x->arg[i - 1]) : 0;
}

static void set_memory(const struct tape *t, const struct item *x, struct operands *o, int m)
{
    const struct place *p = &t->place[x->arg[m]];
    const struct coder *c = x->op->coder;
    int size = t->value[p->base].size;
    bool stride = c->at['T' - 'A'] != 0;
    int index = stride ? x->arg[m + 1] : p->index; /* stride: rows so far apart */
    o->base = reg(t, p->base);
    o->disp = p->offset * size;
    o->indexed = index >= 0;
    o->index = o->indexed ? reg(t, index) : 0;
    while (o->indexed && !stride && (1 << o->scale) < size && o->scale < 3)
        o->scale++;
}

/* An op; rip: where its constant is, from its end, or NULL. */
static void encode_op(struct bytes *to, const struct tape *t, const struct item *x,
                      const int64_t *rip)
{
    const struct coder *c = x->op->coder;
    const uint8_t *at = c->at;
    struct operands o = {.imm = c->value};
    o.reg = reg_at(t, x, at['A' - 'A'] ? 'A' : 'R');
    o.vvvv = reg_at(t, x, at['V' - 'A'] ? 'V' : 'A');
    o.mask = reg_at(t, x, 'K');
    if (!c->fixed && c->form.imm && at['I' - 'A'])
        o.imm = x->imm;
    if (at['S' - 'A'] && at['M' - 'A']) /* a register in the high half of the immediate */
        o.imm = (int64_t)reg_at(t, x, 'S') << 4;
    int m = (at['M' - 'A'] ? at['M' - 'A'] : at['T' - 'A'] ? at['T' - 'A'] : at['A' - 'A']) - 1;
    if (rip) {
        o.disp = *rip;
        encode_relative(to, &c->form, &o);
    } else if (m >= 0 && x->op->roles[m] == 'm') {
        set_memory(t, x, &o, m);
        encode_memory(to, &c->form, &o);
    } else {
        o.rm = m >= 0 ? reg(t, x->arg[m]) : 0;
        encode_register(to, &c->form, &o);
    }
}

static void encode_advance(struct bytes *to, const struct tape *t, const struct item *x)
{
    unsigned r = reg(t, x->arg[0]);
    int size = t->value[x->arg[0]].size;
    if (x->arg[1] < 0) {
        int64_t n = x->imm * size;
        on_register(to, t, n >= -128 && n < 128 ? ADD_8 : ADD_32, 0, r, n);
        return;
    }
    struct operands o = {.reg = r, .base = r, .index = reg(t, x->arg[1]), .indexed = true};
    while ((1 << o.scale) < size)
        o.scale++;
    encode_memory(to, &t->frame[ADDRESS]->form, &o);
}

/* What of an item does not depend on its place; of a loop: what stands before its start or end. */
static void encode_item(struct bytes *to, const struct tape *t, const struct item *x)
{
    switch ((enum item_kind)x->kind) {
    case OP:
        if (!x->op->pooled)
            encode_op(to, t, x, NULL);
        break;
    case LOOP:
        if (x->maybe)
            on_register(to, t, ADD_8, 0, reg(t, x->arg[0]), 0);
        break;
    case AGAIN:
        on_register(to, t, DOWN, 0, reg(t, x->arg[0]), 1);
        break;
    case COUNT:
    case SET:
        if (x->arg[1] < 0)
            on_register(to, t, NUMBER, 0, reg(t, x->arg[0]), x->imm);
        else
            on_register(to, t, MOVE, reg(t, x->arg[0]), reg(t, x->arg[1]), 0);
        break;
    case ADVANCE:
        encode_advance(to, t, x);
    }
}

static void encode_items(lua_State *L, struct tape *t)
{
    t->code = tape_room(L, (size_t)t->items, MAX_CODE);
    for (int i = 0; i < t->items; i++) {
        struct item *x = &t->item[i];
        struct bytes b = {.n = 0};
        encode_item(&b, t, x);
        x->at = t->code_len;
        x->len = (uint32_t)b.n;
        memcpy(t->code + t->code_len, b.at, b.n);
        t->code_len += (uint32_t)b.n;
        t->extras += x->kind == LOOP || x->kind == AGAIN || (x->kind == OP && x->op->pooled);
    }
    size_t more = (size_t)(t->extras + t->hoists);
    t->out = tape_room(L, t->code_len + (more + 64) * (MAX_CODE + 4), 1);
    t->fixup = tape_room(L, more, sizeof *t->fixup);
    t->pool = tape_room(L, more, sizeof *t->pool);
}

/* ---- a program ---- */

enum { MAX_DEPTH = 16 };

/* The code of some rows as it grows. */
struct program {
    const struct tape *t;
    uint8_t *at;
    size_t n;
    struct {
        size_t start, skip; /* skip: end of the jump past it, 0: none */
    } loop[MAX_DEPTH];
    int depth;
    int fixups, pools;
};

static size_t emit(struct program *p, const struct bytes *b)
{
    memcpy(p->at + p->n, b->at, b->n);
    return p->n += b->n;
}

static void emit_frame(struct program *p, enum frame f, unsigned r, unsigned rm, int64_t imm)
{
    struct bytes b = {.n = 0};
    on_register(&b, p->t, f, r, rm, imm);
    emit(p, &b);
}

/* Loads a constant from the pool behind the code. */
static void emit_constant(struct program *p, const struct item *x)
{
    const int64_t nowhere = 0;
    uint32_t bits = (uint32_t)x->imm;
    struct bytes b = {.n = 0};
    int i = 0;
    while (i < p->pools && p->t->pool[i] != bits)
        i++;
    p->t->pool[i] = bits;
    p->pools += i == p->pools;
    encode_op(&b, p->t, x, &nowhere);
    struct fixup *f = &p->t->fixup[p->fixups++];
    *f = (struct fixup){.item = x, .at = p->n, .pooled = i};
    f->stop = emit(p, &b);
}

static void emit_item(lua_State *L, struct program *p, const struct item *x)
{
    const struct tape *t = p->t;
    memcpy(p->at + p->n, t->code + x->at, x->len);
    p->n += x->len;
    if (x->kind == OP && x->op->pooled)
        emit_constant(p, x);
    if (x->kind == LOOP) {
        if (p->depth == MAX_DEPTH)
            luaL_error(L, "more than %d loops in each other", MAX_DEPTH);
        if (x->maybe)
            emit_frame(p, SKIP, 0, 0, 0);
        p->loop[p->depth].start = p->n;
        p->loop[p->depth++].skip = x->maybe ? p->n : 0;
    }
    if (x->kind != AGAIN)
        return;
    p->depth--;
    emit_frame(p, JUMP, 0, 0, (int64_t)p->loop[p->depth].start - (int64_t)(p->n + 6));
    size_t skip = p->loop[p->depth].skip;
    if (skip) {
        struct bytes b = {.n = 0};
        on_register(&b, t, SKIP, 0, 0, (int64_t)(p->n - skip));
        memcpy(p->at + skip - b.n, b.at, b.n);
    }
}

static void emit_head(struct program *p)
{
    const struct tape *t = p->t;
    for (int i = 0; i < t->saves; i++)
        emit_frame(p, PUSH, 0, (unsigned)t->saved[i], 0);
    for (int i = TAPE_ARGUMENTS; i < t->params; i++) {
        struct bytes b = {.n = 0};
        struct operands o = {.reg = reg(t, t->param[i]),
                             .base = 4, /* rsp */
                             .disp = 8 * (t->saves + 1 + i - TAPE_ARGUMENTS)};
        if (t->value[t->param[i]].reg < 0)
            continue;
        encode_memory(&b, &t->frame[MOVE]->form, &o);
        emit(p, &b);
    }
    for (int i = 0; i < t->hoists; i++)
        emit_constant(p, &t->hoisted[i]);
}

static void emit_tail(struct program *p)
{
    const struct tape *t = p->t;
    if (t->zero_upper)
        emit_frame(p, WIDE_OFF, 0, 0, 0);
    for (int i = t->saves - 1; i >= 0; i--)
        emit_frame(p, POP, 0, (unsigned)t->saved[i], 0);
    emit_frame(p, BACK, 0, 0, 0);
}

static void emit_pool(struct program *p)
{
    for (int i = 0; i < p->fixups; i++) {
        const struct fixup *f = &p->t->fixup[i];
        int64_t rip = (int64_t)(p->n + 4 * (size_t)f->pooled - f->stop);
        struct bytes b = {.n = 0};
        encode_op(&b, p->t, f->item, &rip);
        memcpy(p->at + f->at, b.at, b.n);
    }
    for (int i = 0; i < p->pools; i++) {
        struct bytes b = {.n = 4};
        for (int k = 0; k < 4; k++)
            b.at[k] = (uint8_t)(p->t->pool[i] >> 8 * k);
        emit(p, &b);
    }
}

int tape_code(lua_State *L)
{
    struct tape *t = tape_of(L);
    const char *name = luaL_checkstring(L, 2);
    lua_Integer rows = luaL_optinteger(L, 3, INT16_MAX);
    if (!t->placed) {
        lua_pushnil(L);
        if (!tape_registers(L, t, name))
            return 2;
        encode_items(L, t);
        t->placed = true;
    }
    struct program p = {.t = t, .at = t->out};
    emit_head(&p);
    for (int i = 0; i < t->items; i++)
        if (t->item[i].row < rows)
            emit_item(L, &p, &t->item[i]);
    emit_tail(&p);
    emit_pool(&p);
    lua_pushlstring(L, (const char *)p.at, p.n);
    lua_pushinteger(L, t->peak);
    return 2;
}
