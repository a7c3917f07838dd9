-- SPDX-License-Identifier: Apache-2.0
-- functions.lua - exp, log, sigmoid, erf over IR vectors, accurate to a few roundings of f32.
-- Every function takes (program, name, x) and returns a vector; constants are named once per program.
local math_lib = {}

-- exp(x) = 2^n * e^r with n = round(x / ln 2), r = x - n ln 2 in two steps, |r| <= ln 2 / 2; e^r by its Taylor series to the
-- 7th power (error below 2^-27 there).
local exp_terms = {1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0}

-- e^r and n; down: of exp(-x), from -r.
local function exp_parts(p, name, x, down)
    local t = p:op("mul", name .. "_t", x, p:const(down and "minus_log2_e" or "log2_e", (down and -1 or 1) * 1.44269504088896341))
    local n = p:op("round", name .. "_n", t)
    local r = p:op("copy", name .. "_r", x)
    p:op(down and "fma" or "fnma", r, n, p:const("ln2_high", 0.693359375))
    p:op(down and "fma" or "fnma", r, n, p:const("ln2_low", -2.12194440e-4))
    local function term(i)
        local power = 8 - i
        return (down and power % 2 == 1 and "exp_minus_" or "exp_") .. power, (down and power % 2 == 1 and -1 or 1) * exp_terms[i]
    end
    local e = p:const_copy(name .. "_e", term(1))
    for i = 2, #exp_terms do
        p:op("mul_add", e, r, p:const(term(i)))
    end
    return e, n
end

-- e times 2^n; one: a vector of ones, where that may be no normal number: 2^-127 is 0 then, 2^128 infinity.
local function times_power(p, name, e, n, one)
    if p:has("scalef") then
        return p:op("scalef", name, e, n)
    end
    local bits = p:op("shl", name .. "_shift", p:op("to_int", name .. "_i", n), 23)
    return one and p:op("mul", name, e, p:op("int_add", name .. "_power", bits, one)) or p:op("int_add", name, e, bits)
end

-- exp(x). Inputs are clamped to where the result neither overflows nor becomes subnormal.
function math_lib.exp(p, name, x)
    local low, high = p:const("exp_low", -87.0), p:const("exp_high", 88.0)
    local safe = p:op("min", name .. "_capped", high, p:op("max", name .. "_floored", low, x))   -- NaN stays
    return times_power(p, name, exp_parts(p, name, safe))
end

-- exp(x), or exp(-x) when down, that ends exactly: 0 at -exp_end(p), infinity at 89. x must not be further out, or NaN.
-- one: a vector of ones.
function math_lib.exp_whole(p, name, x, one, down)
    local e, n = exp_parts(p, name, x, down)
    return times_power(p, name, e, n, one)
end

function math_lib.exp_end(p)
    return p:has("scalef") and 105.0 or 88.0
end

-- exp(x), and 0 where it would be less than the least normal number.
function math_lib.exp_or_zero(p, name, x)
    local e = math_lib.exp(p, name .. "_any", x)
    local far = p:op("is_less", name .. "_far", x, p:const("exp_low", -87.0))   -- no NaN is
    return p:op("blend", name, far, e, p:op("zero", name .. "_none"))
end

-- log(x) of a normal x > 0: x = 2^n * m with m in [0.75, 1.5), log m = 2 artanh(s) with s = (m - 1) / (m + 1), |s| <= 1 / 5,
-- by its series to the 11th power (error below 2^-32 there). NaN and infinity give NaN.
local log_terms = {2.0 / 11, 2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3, 2.0}

function math_lib.log(p, name, x)
    local moved = p:op("int_add", name .. "_moved", x, p:const("log_up", 0x00400000))   -- a carry where m would be 1.5 or more
    local biased = p:op("to_float", name .. "_biased", p:op("shr", name .. "_exponent", moved, 23))
    local n = p:op("sub", name .. "_n", biased, p:const("log_bias", 127.0))
    local fraction = p:op("bit_and", name .. "_fraction", moved, p:const("fraction_bits", 0x007fffff))
    local m = p:op("int_add", name .. "_m", fraction, p:const("three_quarters", 0x3f400000))   -- 0.75
    local one = p:const("one_f", 1.0)
    local s = p:op("div", name .. "_s", p:op("sub", name .. "_above", m, one), p:op("add", name .. "_below", m, one))
    local square = p:op("mul", name .. "_square", s, s)
    local sum = p:const_copy(name .. "_sum", "log_11", log_terms[1])
    for i = 2, #log_terms do
        p:op("mul_add", sum, square, p:const("log_" .. 13 - 2 * i, log_terms[i]))
    end
    local result = p:op("mul", name, sum, s)
    p:op("fma", result, n, p:const("ln2_low", -2.12194440e-4))
    p:op("fma", result, n, p:const("ln2_high", 0.693359375))
    return p:op("add", name .. "_sound", result, p:op("sub", name .. "_nan", x, x))
end

-- sqrt(x) of a normal x > 0: 1 / sqrt(x) by Newton's method from a guess that is right to 4 %, then x / sqrt(x), and what it lacks.
function math_lib.root(p, name, x)
    local half = p:op("mul", name .. "_half", x, p:const("one_half", 0.5))
    local minus = p:op("bit_xor", name .. "_minus", p:op("shr", name .. "_halved", x, 1), p:const("all_bits", 0xffffffff))
    local y = p:op("int_add", name .. "_guess", minus, p:const("root_magic", 0x5f3759e0))
    for i = 1, 3 do
        local slack = p:op("copy", name .. "_slack_" .. i, p:const("three_halves", 1.5))
        p:op("fnma", slack, half, p:op("mul", name .. "_square_" .. i, y, y))
        y = p:op("mul", name .. "_inverse_" .. i, y, slack)
    end
    local root = p:op("mul", name, x, y)
    local lacks = p:op("copy", name .. "_lacks", x)
    p:op("fnma", lacks, root, root)
    return p:op("fma", root, p:op("mul", name .. "_half_inverse", y, p:const("one_half", 0.5)), lacks)
end

-- s = 1 / (1 + e) and e = exp(-c x); 1 - s is e s without cancellation
function math_lib.sigmoid(p, name, x, c)
    local minus = p:op("mul", name .. "_minus", x, p:const("minus_" .. (c and "c" or "one"), -(c or 1.0)))
    local e = math_lib.exp(p, name .. "e", minus)
    local one = p:const("one_f", 1.0)
    return p:op("div", name, one, p:op("add", name .. "_sum", e, one)), e
end

-- s = 1 / (1 + e) and e = exp(-x), for x in -89 .. 87. At -89: 0 and infinity.
function math_lib.sigmoid_whole(p, name, x, one)
    local e = math_lib.exp_whole(p, name .. "e", x, one, true)
    return p:op("div", name, one, p:op("add", name .. "_sum", e, one)), e
end

-- erf(x), given e = exp(-x^2) and a vector of ones: Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7:
-- 1 - (a1 t + .. + a5 t^5) e with t = 1 / (1 + p |x|).
local erf_terms = {1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592}

function math_lib.erf(p, name, x, e, one)
    local sign = p:op("bit_and", name .. "_sign", x, p:const("sign_bit", 0x80000000))
    local size = p:op("bit_xor", name .. "_size", x, sign)
    local below = p:op("copy", name .. "_below", one)
    p:op("fma", below, size, p:const("erf_p", 0.3275911))
    local t = p:op("div", name .. "_t", one, below)
    local poly = p:const_copy(name .. "_poly", "erf_5", erf_terms[1])
    for i = 2, #erf_terms do
        p:op("mul_add", poly, t, p:const("erf_" .. 6 - i, erf_terms[i]))
    end
    local scaled = p:op("mul", name .. "_scaled", poly, t)
    local result = p:op("copy", name .. "_value", one)
    p:op("fnma", result, scaled, e)
    return p:op("bit_or", name, result, sign)
end

return math_lib
