/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - the conversions of one target, in the three spellings (plain C alone where the CPU
 * lacks the target), against those of runtime/tensor.c and format.c, bit by bit: widening and
 * decoding of every code; narrowing of every number that has one, of the half-way points beside it
 * and of their neighbours, subnormals, infinities and NaNs among them. Two NaNs are equal; a
 * narrowed one is quiet. Made for tests/meanings.sh.
 */
#include <stdio.h>
#include <string.h>

#include "format.h"
#include "moegen_runtime.h"

struct op {
    const char *kind, *from, *to, *order;
    int flushes; /* it may take subnormal numbers as zeros */
    double unit; /* a decoded value times this is the code's */
};
extern const struct op ops[];
extern const char *const needs[];
extern const int lanes;
extern void (*const bytes_table[])(void), (*const intrinsics_table[])(void),
    (*const scalar_table[])(void);

typedef void (*program)(void *out, const void *in, int64_t n);

enum { CODES = 65536, POINTS = 9, EXTREMES = 32, COUNT = CODES * POINTS + 64 };

static _Alignas(64) unsigned char in[4 * COUNT], out[4 * COUNT], want[4 * COUNT];
static int wrong;

/* Element i of floats or of codes, as bits. */
static uint32_t get(const void *at, size_t bytes, int i)
{
    uint32_t word = 0;
    memcpy(&word, (const char *)at + (size_t)i * bytes, bytes);
    return word;
}

static void put(size_t bytes, int i, uint32_t word)
{
    memcpy(in + (size_t)i * bytes, &word, bytes);
}

static int is_nan(const moegen_rt_dtype_facts *dtype, uint32_t word)
{
    double x;
    moegen_rt_dtype type;
    return moegen_rt_dtype_find(dtype->name, &type) &&
           (moegen_rt_decode(type, &word, 1, &x), x != x);
}

/* Every code; how many. */
static int fill_codes(const moegen_rt_dtype_facts *from)
{
    int n = 1 << (8 * from->bytes);
    for (int i = 0; i < n; i++)
        put(from->bytes, i, (uint32_t)i);
    return n;
}

/* The float of every code, the points half and a quarter of the way to the next one, all with their
 * neighbours. Between f32 numbers of one exponent, the middle is that of their codes. And numbers
 * of all sizes from zero to infinity. */
static int fill_points(moegen_rt_dtype to, const moegen_rt_dtype_facts *facts)
{
    int codes = 1 << (8 * facts->bytes), n = 0;
    for (int i = 0; i < codes; i++) {
        unsigned char pair[2 * sizeof(uint32_t)];
        float x[2];
        uint32_t a, b;
        for (int j = 0; j < 2; j++) {
            uint32_t code = (uint32_t)(i + j);
            memcpy(pair + (size_t)j * facts->bytes, &code, facts->bytes);
        }
        moegen_rt_convert(to, pair, MOEGEN_RT_F32, x, 2);
        memcpy(&a, &x[0], 4);
        memcpy(&b, &x[1], 4);
        double middle = ((double)x[0] + (double)x[1]) / 2;
        float half = (float)middle;
        uint32_t h = a + 0x8000; /* for what has no neighbour: infinities, NaNs */
        if (middle - middle == 0)
            memcpy(&h, &half, 4);
        for (uint32_t d = 0; d < 3; d++) {
            put(4, n++, h - 1 + d);
            put(4, n++, a - 1 + d);
            put(4, n++, a + (h - a) / 2 - 1 + d);
        }
    }
    for (int i = 0; i < EXTREMES; i++) { /* a small type may have no code near them */
        uint32_t size = (uint32_t)i / 2, rest = size % 3 == 2 ? 0x7fffff : size % 3;
        put(4, n++, (uint32_t)i % 2 << 31 | (size * 0x11) << 23 | rest);
    }
    return n;
}

/* Where the program puts the i-th of a pair of vectors' elements. */
static int place(const struct op *op, int i)
{
    int at = i % (2 * lanes), first = i - at;
    if (strcmp(op->order, "groups") == 0) /* 4 of one vector, 4 of the other */
        return first + at % lanes / 4 * 8 + at / lanes * 4 + at % 4;
    if (strcmp(op->order, "lanes") == 0) /* low and high halves of lanes */
        return first + at % 2 * lanes + at / 2;
    if (strcmp(op->order, "joined") == 0)
        return first + at % lanes * 2 + at / lanes;
    return i;
}

static uint32_t expected(const struct op *op, const moegen_rt_dtype_facts *from,
                         const moegen_rt_dtype_facts *to, int i)
{
    uint32_t word = get(in, from->bytes, i);
    if (op->flushes && (word & 0x7f800000u) == 0)
        return word >> 31 << (8 * to->bytes - 1);
    return get(want, to->bytes, i);
}

static void compare(const struct op *op, const char *spelling, int n)
{
    moegen_rt_dtype type[2];
    moegen_rt_dtype_find(op->from, &type[0]);
    moegen_rt_dtype_find(op->to, &type[1]);
    const moegen_rt_dtype_facts *from = moegen_rt_dtype_of(type[0]);
    const moegen_rt_dtype_facts *to = moegen_rt_dtype_of(type[1]);
    uint32_t quiet = 1u << (to->digits - 2);
    for (int i = 0; i < n; i++) {
        uint32_t got = get(out, to->bytes, place(op, i)), need = expected(op, from, to, i);
        int nan = is_nan(to, need), narrows = to->bytes < from->bytes;
        if (nan ? is_nan(to, got) && (!narrows || (got & quiet)) : got == need)
            continue;
        if (wrong++ < 20)
            printf("FAIL %s to %s, %s, %s: %08x gives %08x, expected %08x\n", op->from, op->to,
                   op->kind, spelling, get(in, from->bytes, i), got, need);
    }
}

static const char *const spelling[] = {"plain C", "bytes", "intrinsics"};

/* Every code of a format of weights. */
static void decode(const struct op *op, const struct rt_format *f, int i, int able)
{
    void (*const spelled[])(void) = {scalar_table[i], bytes_table[i], intrinsics_table[i]};
    moegen_rt_dtype to;
    int known = moegen_rt_dtype_find(op->to, &to), n = 1 << f->element->bits;
    size_t bytes = known ? moegen_rt_dtype_of(to)->bytes : 0;
    for (int code = 0; code < n; code++) {
        double value = f->element->value((uint32_t)code) / op->unit;
        in[code] = (unsigned char)code;
        moegen_rt_encode(to, &value, 1, want + (size_t)code * bytes);
    }
    for (int s = 0; s < (able ? 3 : 1); s++) {
        memset(out, 0xa5, sizeof out);
        ((program)spelled[s])(out, in, n / lanes / (op->order[0] ? 2 : 1));
        for (int code = 0; code < n; code++) {
            uint32_t got = get(out, bytes, place(op, code)), need = get(want, bytes, code);
            const moegen_rt_dtype_facts *facts = moegen_rt_dtype_of(to);
            if (is_nan(facts, need) ? is_nan(facts, got) : got == need)
                continue;
            if (wrong++ < 20)
                printf("FAIL %s, %s, %s: %02x gives %08x, expected %08x\n", op->from, op->kind,
                       spelling[s], (unsigned)code, got, need);
        }
    }
}

static void run(const struct op *op, int i, int able)
{
    void (*const spelled[])(void) = {scalar_table[i], bytes_table[i], intrinsics_table[i]};
    if (strcmp(op->kind, "decode") == 0 || strcmp(op->kind, "pairs") == 0) {
        const struct rt_format *f = rt_format_find(op->from);
        if (f)
            decode(op, f, i, able);
        else
            wrong += printf("FAIL the runtime lacks %s\n", op->from) > 0;
        return;
    }
    moegen_rt_dtype from, to;
    if (!moegen_rt_dtype_find(op->from, &from) || !moegen_rt_dtype_find(op->to, &to)) {
        printf("FAIL the runtime lacks %s or %s\n", op->from, op->to);
        wrong++;
        return;
    }
    int n = from == MOEGEN_RT_F32 ? fill_points(to, moegen_rt_dtype_of(to))
                                  : fill_codes(moegen_rt_dtype_of(from));
    moegen_rt_convert(from, in, to, want, (size_t)n);
    int vectors = n / lanes / (op->order[0] || strstr(op->kind, "bits") ? 2 : 1);
    for (int s = 0; s < (able && strcmp(op->kind, "element") != 0 ? 3 : 1); s++) {
        memset(out, 0xa5, sizeof out);
        ((program)spelled[s])(out, in, vectors);
        compare(op, spelling[s], n);
    }
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "target";
    int able = 1, n = 0;
    for (int i = 0; needs[i]; i++)
        able = able && moegen_rt_cpu_has(needs[i]);
    for (; ops[n].kind; n++)
        run(&ops[n], n, able);
    printf("%s%s: %d conversions, %d wrong\n", name, able ? "" : " (plain C only)", n, wrong);
    return wrong != 0 || n == 0;
}
