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

/* Where a parameter lies on the stack, in words from its top. */
static int64_t place_of(const struct tape *t, int v)
{
    return t->saves + 1 + t->value[v].param - t->arch->arguments;
}

static void add_control(struct bytes *to, const struct tape *t, enum control what, unsigned a,
                        unsigned b, int64_t n)
{
    t->arch->control(to, t->machine, what, a, b, n);
}

/* An op; away: where its constant is, from its end, or NULL. */
static void encode_op(struct bytes *to, const struct tape *t, const struct item *x,
                      const int64_t *away)
{
    struct operand list[MAX_OPERANDS];
    for (int i = 0; i < x->op->operands; i++) {
        char role = x->op->roles[i];
        if (role == 'm') {
            const struct place *p = &t->place[x->arg[i]];
            const struct value *base = &t->value[p->base];
            list[i] = (struct operand){.kind = AS_MEMORY,
                                       .reg = (uint8_t)base->reg,
                                       .index = p->index < 0 ? -1 : (int8_t)reg(t, p->index),
                                       .size = base->size,
                                       .n = p->offset * base->size};
        } else if (role == 'i') {
            list[i] = (struct operand){.kind = AS_NUMBER, .n = x->imm};
        } else {
            list[i] = (struct operand){.kind = AS_REGISTER, .reg = (uint8_t)reg(t, x->arg[i])};
        }
    }
    t->arch->op(to, x->op->coder, list, away);
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
            add_control(to, t, LOOK, reg(t, x->arg[0]), 0, 0);
        break;
    case AGAIN:
        add_control(to, t, DOWN, reg(t, x->arg[0]), 0, 0);
        break;
    case COUNT:
    case SET:
        if (x->arg[1] >= 0 && t->value[x->arg[1]].reg < 0)
            add_control(to, t, ARGUMENT, reg(t, x->arg[0]), 0, place_of(t, x->arg[1]));
        else if (x->arg[1] < 0)
            add_control(to, t, NUMBER, reg(t, x->arg[0]), 0, x->imm);
        else
            add_control(to, t, MOVE, reg(t, x->arg[0]), reg(t, x->arg[1]), 0);
        break;
    case ADVANCE:
        if (x->arg[1] < 0)
            add_control(to, t, ADD, reg(t, x->arg[0]), 0, x->imm * t->value[x->arg[0]].size);
        else
            add_control(to, t, ADD_SCALED, reg(t, x->arg[0]), reg(t, x->arg[1]),
                        t->value[x->arg[0]].size);
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
        size_t start, skip; /* skip: of the jump past it, */
        bool maybe;         /* if there is one */
    } loop[MAX_DEPTH];
    int depth;
    int fixups, pools;
};

static size_t emit(struct program *p, const struct bytes *b)
{
    memcpy(p->at + p->n, b->at, b->n);
    return p->n += b->n;
}

static void emit_control(struct program *p, enum control what, unsigned a, int64_t n)
{
    struct bytes b = {.n = 0};
    add_control(&b, p->t, what, a, 0, n);
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
        p->loop[p->depth].skip = p->n;
        p->loop[p->depth].maybe = x->maybe;
        if (x->maybe)
            emit_control(p, SKIP, 0, 0);
        p->loop[p->depth++].start = p->n;
    }
    if (x->kind != AGAIN)
        return;
    p->depth--;
    emit_control(p, JUMP, 0, (int64_t)p->loop[p->depth].start - (int64_t)p->n);
    if (p->loop[p->depth].maybe) {
        size_t skip = p->loop[p->depth].skip;
        struct bytes b = {.n = 0};
        add_control(&b, t, SKIP, 0, 0, (int64_t)(p->n - skip));
        memcpy(p->at + skip, b.at, b.n);
    }
}

static void emit_head(struct program *p)
{
    const struct tape *t = p->t;
    for (int i = 0; i < t->saves; i++)
        emit_control(p, SAVE, (unsigned)t->saved[i], 0);
    for (int i = t->arch->arguments; i < t->params; i++)
        if (t->value[t->param[i]].reg >= 0)
            emit_control(p, ARGUMENT, reg(t, t->param[i]), place_of(t, t->param[i]));
    for (int i = 0; i < t->hoists; i++)
        emit_constant(p, &t->hoisted[i]);
}

static void emit_tail(struct program *p)
{
    const struct tape *t = p->t;
    if (t->zero_upper)
        emit_control(p, WIDE_OFF, 0, 0);
    for (int i = t->saves - 1; i >= 0; i--)
        emit_control(p, RESTORE, (unsigned)t->saved[i], 0);
    emit_control(p, BACK, 0, 0);
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
