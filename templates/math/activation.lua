-- SPDX-License-Identifier: Apache-2.0
-- activation.lua - what a MoE's activation computes, as programs over IR vectors.
--
-- A NEW ACTIVATION takes 2 files: a row here, and one in runtime/reference/ref_activation.c (the float64 function and its derivative).
-- The schema accepts the name, `moegen list` shows it, and the kernel tests run it, because they read this table.
--
-- forward   function(program, name, x) -> vector; names of temporaries start with name
-- both      function(program, name, x, slope_only) -> vector (maybe not, with slope_only), derivative
-- Order of the list is the order in help texts.
local math_lib = require "math.functions"

local erf, exp_whole, sigmoid = math_lib.erf, math_lib.exp_whole, math_lib.sigmoid_whole

-- Ends are exact. A factor that is 0 far out meets an x that is clamped: a finite one.
-- low      where x may be clamped from below: the activation is -0 from there on
-- high     where the derivative is 1 from there on

-- x, at least low; the same, at most high. NaN stays.
local function clamped(p, name, x, low, high)
    local floored = p:op("max", name .. "_floored", p:const("act_low", low), x)
    return floored, p:op("min", name .. "_capped", p:const("act_high", high), floored)
end

-- x s, s = sigmoid(z(x)), for x clamped to low .. high.
local function gated(low, high, z)
    return function(p, name, x)
        local floored, capped = clamped(p, name, x, low, high)
        local s = sigmoid(p, name .. "_s", (z(p, name, capped)), p:const("one_f", 1.0))
        return p:op("mul", name, floored, s)
    end
end

-- Its derivative s + s x z'(x) (1 - s), 1 - s = e s without cancellation; where e is infinite: 1. z gives z(x) and x z'(x).
local function gated_both(low, high, z)
    return function(p, name, x, slope_only)
        local floored, capped = clamped(p, name, x, low, high)
        local inner, rise = z(p, name, capped, true)
        local one = p:const("one_f", 1.0)
        local s, e = sigmoid(p, name .. "_s", inner, one)
        local rest = p:op("min", name .. "_rest", p:op("mul", name .. "_es", e, s), one)   -- NaN: 1
        local bend = p:op("mul", name .. "_bend", rest, rise)
        local slope = p:op("copy", name .. "_slope", s)
        return not slope_only and p:op("mul", name, floored, s), p:op("fma", slope, s, bend)
    end
end

local function same(_, _, x)
    return x, x
end

local swish_factor <const> = 1.702

local function times_factor(p, name, x)
    local z = p:op("mul", name .. "_z", x, p:const("act_c", swish_factor))
    return z, z
end

-- (1 + tanh(y)) / 2 = sigmoid(2 y): z = c x + d x^3, x z'(x) = c x + 3 d x^3, c = 2 sqrt(2 / pi)
local cubic_c <const>, cubic_d <const> = 1.59576912160573, 0.044715 * 1.59576912160573

local function cubic(p, name, x, both)
    local square = p:op("mul", name .. "_square", x, x)
    local inner = p:const_copy(name .. "_inner", "gelu_c", cubic_c)
    p:op("fma", inner, square, p:const("gelu_cubic", cubic_d))
    local z = p:op("mul", name .. "_z", x, inner)
    if not both then
        return z
    end
    local steep = p:const_copy(name .. "_steep", "gelu_c", cubic_c)
    p:op("fma", steep, square, p:const("gelu_slope", 3 * cubic_d))
    return z, p:op("mul", name .. "_rise", x, steep)
end

-- Of gelu, for x clamped to -most .. most: x, at least -most; the clamped one; exp(-x^2 / 2); and 1 + erf(x / sqrt(2)).
local function normal(p, name, x, most)
    local floored, inner = clamped(p, name, x, -most, most)
    local z = p:op("mul", name .. "_z", inner, p:const("sqrt_half", 0.70710678118654752))
    local one = p:const("one_f", 1.0)
    local square = p:op("mul", name .. "_square", inner, p:op("mul", name .. "_scaled", inner, p:const("minus_half", -0.5)))
    local e = exp_whole(p, name .. "_e", square, one)
    return floored, inner, e, p:op("add", name .. "_plus", erf(p, name .. "_erf", z, e, one), one)
end

return {
    order = {"silu", "gelu", "gelu_tanh", "swish", "relu", "squared_relu"},

    silu = {says = "x * sigmoid(x)", forward = gated(-89.0, 87.0, same), both = gated_both(-89.0, 87.0, same)},

    swish = {says = "x * sigmoid(1.702 x)", forward = gated(-89.0 / swish_factor, 87.0 / swish_factor, times_factor),
        both = gated_both(-89.0 / swish_factor, 87.0 / swish_factor, times_factor)},

    -- z(-10.07) = -88.94, z(10) = 87.3
    gelu_tanh = {says = "x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))", forward = gated(-10.07, 9.98, cubic),
        both = gated_both(-10.07, 9.98, cubic)},

    gelu = {says = "x / 2 * (1 + erf(x / sqrt(2)))", forward = function(p, name, x)
        local floored, _, _, plus = normal(p, name, x, math.sqrt(2 * 87.0))   -- erf is 1 from 6 on
        return p:op("mul", name, p:op("mul", name .. "_half", floored, p:const("half_f", 0.5)), plus)
    end, both = function(p, name, x, slope_only)   -- F + x exp(-x^2 / 2) / sqrt(2 pi) with F = (1 + erf(x / sqrt(2))) / 2
        local floored, inner, e, plus = normal(p, name, x, math.sqrt(2 * math_lib.exp_end(p)))   -- the density is 0 there
        local share = p:op("mul", name .. "_share", plus, p:const("half_f", 0.5))
        local bell = p:op("mul", name .. "_bell", e, p:const("bell", 0.39894228040143268))
        local slope = p:op("copy", name .. "_slope", share)
        return not slope_only and p:op("mul", name, floored, share), p:op("fma", slope, inner, bell)
    end},

    relu = {says = "max(x, 0)", forward = function(p, name, x)
        return p:op("max", name, p:op("zero", name .. "_zero"), x)   -- NaN stays
    end, both = function(p, name, x)
        local zero = p:op("zero", name .. "_zero")
        local positive = p:op("is_less", name .. "_positive", zero, x)
        local y = p:op("max", name, zero, x)
        return y, p:op("blend", name .. "_slope", positive, y, p:const("one_f", 1.0))   -- not positive: 0 or NaN, as y
    end},

    squared_relu = {says = "max(x, 0)^2", forward = function(p, name, x)
        local positive = p:op("max", name .. "_positive", p:op("zero", name .. "_zero"), x)
        return p:op("mul", name, positive, positive)
    end, both = function(p, name, x, slope_only)
        local positive = p:op("max", name .. "_positive", p:op("zero", name .. "_zero"), x)
        return not slope_only and p:op("mul", name, positive, positive), p:op("add", name .. "_slope", positive, positive)
    end},
}
