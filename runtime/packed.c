/* SPDX-License-Identifier: Apache-2.0 */
/* packed.c - weights into the order in which products of rows read them. */
#include <string.h>

#include "moegen_runtime.h"
#include "packed.h"
#include "rt_wide.h"

/* A run of the default plans is at most a line, and divides it: then sizes do not depend on the
 * plan, and the header says what is wrong. */
enum { LINE = 128, SIDE = 64, UNIT = 16, MANY = 2048, APART = 16 };

static int64_t round_up(int64_t n, int64_t by)
{
    return (n + by - 1) / by * by;
}

void rt_packed_lay(struct rt_packed *p, const char *dtype, int64_t K, int64_t C, int64_t run,
                   int64_t parts, int64_t order)
{
    *p = (struct rt_packed){.run = run > 0 ? run : 0};
    moegen_rt_dtype of;
    if (run < 1 || !moegen_rt_dtype_find(dtype, &of))
        return;
    int64_t bytes = (int64_t)moegen_rt_dtype_of(of)->bytes, line = LINE / bytes;
    int64_t rows = round_up(C, UNIT) + UNIT + (C >= MANY ? APART : 0);
    size_t letters = strlen(dtype), kept = sizeof p->is.dtype;
    p->is = (struct rt_packed_header){.version = 1, .K = K, .C = C, .rows = rows, .run = run};
    p->is.parts = parts;
    p->is.order = order;
    memcpy(p->is.magic, "moegenPK", sizeof p->is.magic);
    memcpy(p->is.dtype, dtype + (letters > kept ? letters - kept : 0),
           letters < kept ? letters : kept);
    p->header = (int64_t)sizeof p->is / bytes;
    p->pitch = rows * run;
    p->each = p->header + rows * round_up(K, run > line ? run : line);
}

int64_t rt_packed_at(const struct rt_packed *p, int64_t row, int64_t k)
{
    return p->header + k / p->run * p->pitch + row * p->run + k % p->run;
}

void rt_packed_header(const struct rt_packed *p, void *slice)
{
    memcpy(slice, &p->is, sizeof p->is);
}

/* Rows [C][K] of the matrix to runs of a panel from column k on. */
static void pack_rows(const struct rt_packed *p, const char *from, int64_t column, int64_t k,
                      size_t bytes, char *to)
{
    int64_t have = p->is.K - k < p->run ? p->is.K - k : p->run;
    size_t full = (size_t)p->run * bytes, some = (size_t)(have > 0 ? have : 0) * bytes;
    for (int64_t c = 0; c < p->is.C; c++, to += full) {
        memcpy(to, from + (size_t)(c * column + k) * bytes, some);
        memset(to + some, 0, full - some);
    }
}

/* The same of columns [K][C], a line of each row at a time: WORDS of elements of rows that follow
 * each other in a run, made by vectors, wait in L1 until all of a run are stored together. */
enum { WORDS = LINE / 8 };

#define AT(j)  ((uint64_t)x[(j) * (row)] << ((j) * (BITS)))
#define TWO(j) (AT(j) | AT(j + 1))
#define FOUR   (TWO(0) | TWO(2))
#define EIGHT  (FOUR | TWO(4) | TWO(6))
#define PACK_COLUMNS(type, word)                                                                   \
    WIDE static void words_##type(const type *restrict from, int64_t row, int64_t n,               \
                                  uint64_t *restrict to)                                           \
    {                                                                                              \
        enum { JOINED = 8 / sizeof(type), BITS = 8 * sizeof(type), SOME = SIDE / sizeof(type) };   \
        for (int64_t i = 0; i < n; i++, from += JOINED * row, to += SOME)                          \
            for (int j = 0; j < SOME; j++) {                                                       \
                const type *x = from + j;                                                          \
                to[j] = word;                                                                      \
            }                                                                                      \
    }                                                                                              \
    static void turn_##type(const type *from, int64_t row, int64_t rows, int64_t run, type *to)    \
    {                                                                                              \
        enum { JOINED = 8 / sizeof(type), SOME = SIDE / sizeof(type) };                            \
        uint64_t words[WORDS * SOME];                                                              \
        for (int64_t i = 0, n; i < rows / JOINED; i += n) {                                        \
            n = rows / JOINED - i < WORDS ? rows / JOINED - i : WORDS;                             \
            words_##type(from + i * JOINED * row, row, n, words);                                  \
            for (int64_t j = 0; j < SOME; j++)                                                     \
                for (int64_t w = 0; w < n; w++)                                                    \
                    memcpy(to + j * run + (i + w) * JOINED, &words[w * SOME + j], 8);              \
        }                                                                                          \
    }                                                                                              \
    static void pack_columns_##type(const struct rt_packed *p, const type *from, int64_t row,      \
                                    int64_t k, type *to)                                           \
    {                                                                                              \
        enum { JOINED = 8 / sizeof(type), SOME = SIDE / sizeof(type) };                            \
        const int64_t left = p->is.K > k ? p->is.K - k : 0, have = left < p->run ? left : p->run;  \
        for (int64_t c = 0, n; c < p->is.C; c += n, to += n * p->run) {                            \
            const type *x = from + k * row + c;                                                    \
            n = p->is.C - c < SOME ? p->is.C - c : SOME;                                           \
            const int64_t turned = n < SOME ? 0 : have / JOINED * JOINED;                          \
            turn_##type(x, row, turned, p->run, to);                                               \
            for (int64_t i = turned; i < p->run; i++)                                              \
                for (int64_t j = 0; j < n; j++)                                                    \
                    to[j * p->run + i] = i < have ? x[i * row + j] : 0;                            \
        }                                                                                          \
    }
PACK_COLUMNS(uint8_t, EIGHT)
PACK_COLUMNS(uint16_t, FOUR)
PACK_COLUMNS(uint32_t, TWO(0))

void rt_turn(const uint8_t *from, int64_t row, int64_t rows, int64_t n, uint8_t *to, int64_t pitch)
{
    for (int64_t c = 0, some; c < n; c += some, from += some, to += some * pitch) {
        some = n - c < SIDE ? n - c : SIDE;
        const int64_t turned = some < SIDE ? 0 : rows / 8 * 8;
        turn_uint8_t(from, row, turned, pitch, to);
        for (int64_t i = turned; i < rows; i++)
            for (int64_t j = 0; j < some; j++)
                to[j * pitch + i] = from[i * row + j];
    }
}

int64_t rt_packed_panels(const struct rt_packed *p)
{
    return (p->each - p->header) / p->pitch;
}

int64_t rt_packed_start(const struct rt_packed *p, int64_t i)
{
    int64_t panels = rt_packed_panels(p), e = i / panels, panel = i % panels;
    return e * p->each + (panel > 0 ? p->header + panel * p->pitch : 0);
}

void rt_pack(const struct rt_packed *p, const struct rt_unpacked *from, int bytes, void *to,
             int64_t first, int64_t end)
{
    const int64_t panels = rt_packed_panels(p), start = rt_packed_start(p, first);
    for (int64_t i = first; i < end; i++) {
        int64_t e = i / panels, k = i % panels * p->run, at = rt_packed_start(p, i);
        char *panel = (char *)to + (size_t)(at - start) * (size_t)bytes;
        size_t whole = (size_t)(rt_packed_start(p, i + 1) - at) * (size_t)bytes;
        size_t used = (size_t)(p->is.C * p->run) * (size_t)bytes;
        const char *matrix = (const char *)from->data + (size_t)(e * from->each) * (size_t)bytes;
        if (k == 0) {
            rt_packed_header(p, panel);
            panel += sizeof p->is;
            whole -= sizeof p->is;
        }
        if (from->row == 1)
            pack_rows(p, matrix, from->column, k, (size_t)bytes, panel);
        else if (bytes == 1)
            pack_columns_uint8_t(p, (const uint8_t *)matrix, from->row, k, (uint8_t *)panel);
        else if (bytes == 2)
            pack_columns_uint16_t(p, (const uint16_t *)(const void *)matrix, from->row, k,
                                  (uint16_t *)(void *)panel);
        else
            pack_columns_uint32_t(p, (const uint32_t *)(const void *)matrix, from->row, k,
                                  (uint32_t *)(void *)panel);
        memset(panel + used, 0, whole - used);
    }
}
