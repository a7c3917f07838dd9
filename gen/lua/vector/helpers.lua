-- SPDX-License-Identifier: Apache-2.0
-- helpers.lua - types and functions that the meanings of isa/scalar.lua refer to, as C; each after what it needs itself.
-- Plain C11 without any library, exact: the scalar spelling gives the bits that the instructions give.
local dtype = require "dtype"

return {
    {"vec", [[
typedef union {
    float f[LANES];
    int32_t i[LANES];
    uint32_t u[LANES];
    uint16_t h[2 * LANES];
    uint8_t b[4 * LANES];
} vec;   // one vector of the target, lane by lane
]]},
    {"tile", [[
typedef union {
    float f[16][16];
    uint32_t u[16][16];
    uint16_t h[16][32];
    uint8_t row[16][64];
} tile;
]]},
    {"copy_64", [[
static void copy_64(uint8_t *d, const uint8_t *m)
{
    for (int i = 0; i < 64; i++)
        d[i] = m[i];
}
]]},
    {"half_to_float", (dtype.f16.scalar.f16_to_f32:gsub("f16_to_f32", "half_to_float"))},
    {"float_to_half", (dtype.f16.scalar.f32_to_f16:gsub("f32_to_f16", "float_to_half"))},
    {"fused", [[
// a * b + c, rounded once: the product is exact in double. A sum that may lie half-way between two floats is moved off
// that point by what its own rounding lost.
static float fused(float a, float b, float c)
{
    const double p = (double)a * (double)b, q = (double)c;
    union { double f; uint64_t u; } sum;
    sum.f = p + q;
    if ((sum.u & 0xfffffffu) == 0) {
        const double t = sum.f - p, lost = (p - (sum.f - t)) + (q - t);
        if (lost > 0 || lost < 0)
            sum.u = (lost > 0) == (sum.f > 0) ? sum.u + 1 : sum.u - 1;
    }
    return (float)sum.f;
}
]]},
    {"nearest", [[
// To the nearest integer, ties to even; |x| >= 2^23 is one already. The sign stays, of zeros too.
static float nearest(float x)
{
    union { float f; uint32_t u; } y;
    y.f = x;
    const uint32_t sign = y.u & 0x80000000u;
    y.u ^= sign;
    if (y.u >= 0x4b000000u)
        return x;
    volatile float sum = y.f + 0x1p23f;
    y.f = sum - 0x1p23f;
    y.u |= sign;
    return y.f;
}
]]},
    {"integer", [[
// Out of range and NaN: the least integer.
static int32_t integer(float x)
{
    const float y = nearest(x);
    return y >= -0x1p31f && y < 0x1p31f ? (int32_t)y : -2147483647 - 1;
}
]]},
    {"saturated", [[
static uint16_t saturated(int32_t x)
{
    return (uint16_t)(x < 0 ? 0 : x > 65535 ? 65535 : x);
}
]]},
    {"scaled", [[
// x * 2^floor(n), rounded once: it is exact in double. As the instruction has it, a quiet NaN times 2^infinity is infinity.
static float scaled(float x, float n)
{
    union { uint64_t u; double f; } step;
    union { float f; uint32_t u; } bits;
    int e = n > 300 ? 300 : n > -300 ? (int)n : -300;
    if (n != n)
        return x + n;
    if (n - n != 0) {
        const float power = n > 0 ? n : 0;
        bits.f = x;
        return x != x && (bits.u & 0x400000u) != 0 ? power : x * power;
    }
    if ((float)e > n)
        e--;
    step.u = (uint64_t)(1023 + e) << 52;
    return (float)((double)x * step.f);
}
]]},
    {"flushed", [[
static float flushed(float x)
{
    return x > -0x1p-126f && x < 0x1p-126f ? x * 0 : x;
}
]]},
    {"widened", [[
static float widened(uint16_t bf16)
{
    union { uint32_t u; float f; } x;
    x.u = (uint32_t)bf16 << 16;
    return flushed(x.f);
}
]]},
    {"bf16_of", [[
// An f32 number as bf16, ties to even; subnormal numbers are taken as zeros, NaN is made quiet.
static uint16_t bf16_of(uint32_t x)
{
    const uint32_t exponent = 0x7f800000u;
    if ((x & exponent) == 0)
        return (uint16_t)(x >> 16 & 0x8000u);
    if ((x & 0x7fffffffu) > exponent)
        return (uint16_t)(x >> 16 | 0x40u);
    return (uint16_t)((x + 0x7fffu + (x >> 16 & 1u)) >> 16);
}
]]},
    {"dot_pair", [[
// sum + a[1] * b[1] + a[0] * b[0], bf16, in this order, in two steps that are rounded once each; subnormal numbers are taken
// and given as zeros. A product has 16 bits: in f32 it is exact, unless it is too small or too large.
static float dot_pair(const uint16_t *a, const uint16_t *b, float sum)
{
    const uint32_t sign = 0x80000000u, exponent = 0x7f800000u;
    union { uint32_t u; float f; } x, y, s, p;
    s.f = sum;
    for (int i = 1; i >= 0; i--) {
        x.u = (uint32_t)a[i] << 16;
        y.u = (uint32_t)b[i] << 16;
        x.u &= (x.u & exponent) ? ~0u : sign;
        y.u &= (y.u & exponent) ? ~0u : sign;
        s.u &= (s.u & exponent) ? ~0u : sign;
        p.f = x.f * y.f;
        s.f = (p.u & exponent) - 0x01000000u < 0x7d000000u ? p.f + s.f : fused(x.f, y.f, s.f);
    }
    s.u &= (s.u & exponent) ? ~0u : sign;
    return s.f;
}
]]},
    {"mode_get", [[
// The thread's floating-point control word. Where it is not known how to reach it, the kernel computes as its caller does.
// The bytes are stmxcsr (%rax) and ldmxcsr (%rax), which not every assembler knows.
#if defined(__x86_64__)
enum { DEFAULT_MODE = 0x1f80 };
static void mode_get(int32_t *m)
{
    __asm__ volatile(".byte 0x0f,0xae,0x18" : : "a"(m) : "memory");
}
#elif defined(__aarch64__) && !defined(__TINYC__)
enum { DEFAULT_MODE = 0 };
static void mode_get(int32_t *m)
{
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word) : : "memory");
    *m = (int32_t)word;
}
#else
enum { DEFAULT_MODE = 0 };
static void mode_get(int32_t *m)
{
    *m = 0;
}
#endif
]]},
    {"mode_set", [[
static void mode_set(int32_t m)
{
#if defined(__x86_64__)
    __asm__ volatile(".byte 0x0f,0xae,0x10" : : "a"(&m) : "memory");
#elif defined(__aarch64__) && !defined(__TINYC__)
    const uint64_t word = (uint32_t)m;
    __asm__ volatile("msr fpcr, %0" : : "r"(word) : "memory");
#else
    (void)m;
#endif
}
]]},
    {"dot_tiles", [[
// d[r][n] += sum over k: a[r][k] * b[k / 4][4 n + k % 4], of signed bytes; d holds integers.
static void dot_tiles(tile *d, const tile *a, const tile *b)
{
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 64; k++)
            for (int n = 0; n < 16; n++)
                d->u[r][n] += (uint32_t)((int8_t)a->row[r][k] * (int8_t)b->row[k / 4][4 * n + k % 4]);
}
]]},
    {"dot_bf16", [[
// d[r][n] += sum over k: a[r][2 k] * b[k][2 n] + a[r][2 k + 1] * b[k][2 n + 1]; d holds f32, a and b bf16. As the
// instruction does it: sums of even and of odd terms, subnormal numbers taken and given as zeros. A product of two bf16 is exact in f32,
// unless it is too small or too large.
static void dot_bf16(tile *d, const tile *a, const tile *b)
{
    float x[32], y[16][32];
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < 32; n++)
            y[n / 2][2 * k + n % 2] = widened(b->h[k][n]);
    for (int r = 0; r < 16; r++) {
        for (int k = 0; k < 32; k++)
            x[k] = widened(a->h[r][k]);
        for (int n = 0; n < 16; n++) {
            float sum[2] = {0, 0};
            const float *const z = y[n];
            for (int k = 0; k < 32; k++) {
                const float p = x[k] * z[k], size = p < 0 ? -p : p;
                float *const s = sum + k % 2;
                if (size > 0x1p-120f && size < 0x1p120f && (*s > 0x1p-120f || *s < -0x1p-120f))
                    *s = p + *s;
                else
                    *s = fused(x[k], z[k], *s);
                if (*s < 0x1p-126f && *s > -0x1p-126f)
                    *s *= 0;
            }
            d->f[r][n] = flushed(flushed(d->f[r][n]) + flushed(sum[0] + sum[1]));
        }
    }
}
]]},
}
