-- SPDX-License-Identifier: Apache-2.0
-- dtype.lua - how numbers are stored. Kernels compute in f32: a type says how it is widened and narrowed.
--
-- A NEW DTYPE takes 3 files: a row in runtime/moegen_dtype.h (what it is called and how the reference reads it; not if the API
-- can name it already); a row here; a widening and a narrowing in templates/tiles/quantise.lua, unless ops `load` and `store` do.
-- The rest enumerates. A format of weights may have the same name: see formats.coded. Tiles leave a widening 3 vector registers
-- and a narrowing 4 beside what it narrows: constants that it hoists are not among them.
--
-- size     bytes an element      c        C type an element is passed as      digits   bits of the significand
-- least    exponent of the smallest normal number; top: the largest number, of types in which larger ones and infinities become that
-- also     what others call it: for hints
-- widen    name of the widening in quantise.lua, narrow likewise; both also name the C functions of `scalar`
-- dot      op that adds the products of pairs of this type to f32 lanes, on targets that have it; tiles: to matrix tiles
-- load     op that widens elements in memory, on all targets; store likewise
-- round    op that rounds f32 lanes to this type, on targets that have it; pair: op that does so with two vectors
-- scalar   C functions float <widen>(c) and c <narrow>(float) for single elements; round to nearest even, NaN stays NaN
return {
    f32 = {name = "f32", also = {"float32", "fp32", "float", "single"},
        size = 4, digits = 24, least = -126, c = "float", widen = nil, narrow = nil},

    bf16 = {name = "bf16", also = {"bfloat16"},
        size = 2, digits = 8, least = -126, c = "uint16_t", widen = "bf16_to_f32", narrow = "f32_to_bf16", dot = "dot_bf16",
        tiles = "tile_dot",
        round = "round_bf16", pair = "pair_bf16", scalar = {
        bf16_to_f32 = [[
static float bf16_to_f32(uint16_t x)
{
    union { uint32_t u; float f; } y;
    y.u = (uint32_t)x << 16;
    return y.f;
}
]],
        f32_to_bf16 = [[
static uint16_t f32_to_bf16(float x)
{
    union { float f; uint32_t u; } y;
    y.f = x;
    if ((y.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(y.u >> 16 | 0x40u);
    return (uint16_t)((y.u + 0x7fffu + (y.u >> 16 & 1u)) >> 16);
}
]]}},

    f16 = {name = "f16", also = {"float16", "fp16", "half"},
        size = 2, digits = 11, least = -14, c = "uint16_t", widen = "f16_to_f32", narrow = "f32_to_f16",
        load = "load_f16", store = "store_f16", scalar = {
        f16_to_f32 = [[
static float f16_to_f32(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
    const uint32_t rest = x & 0x7fffu;
    union { uint32_t u; float f; } y, scale;
    if (rest >= 0x7c00u) {                           // infinity, NaN (made quiet)
        y.u = sign | 0x7f800000u | rest << 13 | (rest > 0x7c00u ? 0x400000u : 0u);
        return y.f;
    }
    y.u = rest << 13;                                // as if the exponent bias were 127: off by 2^112
    scale.u = 0x77800000u;                           // 2^112, exact for subnormals too
    y.f *= scale.f;
    y.u |= sign;
    return y.f;
}
]],
        f32_to_f16 = [[
static uint16_t f32_to_f16(float x)
{
    union { float f; uint32_t u; } y;
    y.f = x;
    const uint32_t sign = y.u >> 16 & 0x8000u;
    uint32_t rest = y.u & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
    if (rest >= 0x477ff000u)                         // rounds beyond 65504
        return (uint16_t)(sign | 0x7c00u);
    if (rest < 0x38800000u) {                        // subnormal: shift with rounding
        const uint32_t shift = 126u - (rest >> 23);  // 14 .. 126
        const uint32_t m = (rest & 0x7fffffu) | 0x800000u;
        if (shift > 24u)
            return (uint16_t)sign;
        const uint32_t half = 1u << (shift - 1u);
        return (uint16_t)(sign | ((m + half - 1u + (m >> shift & 1u)) >> shift));
    }
    rest += 0xfffu + (rest >> 13 & 1u);
    return (uint16_t)(sign | ((rest - 0x38000000u) >> 13));
}
]]}},
}
