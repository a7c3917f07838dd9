-- SPDX-License-Identifier: Apache-2.0
-- activation.lua - what a MoE's activation computes, as programs over IR vectors.
--
-- A NEW ACTIVATION takes 2 files: a row here, and one in runtime/ref_activation.c (the float64 function and its derivative).
-- The schema accepts the name, `moegen list` shows it, and the kernel tests run it, because they read this table.
--
-- forward   function(program, name, x) -> vector; names of temporaries start with name
-- both      function(program, name, x) -> vector, derivative
-- Order of the list is the order in help texts.
local math_lib = require "lib.math"

local exp, sigmoid, erf = math_lib.exp, math_lib.sigmoid, math_lib.erf

-- s + y * rest
local function slope_of(p, name, s, y, rest)
    local slope = p:op("copy", name .. "_slope", s)
    return p:op("fma", slope, y, rest)
end

local function times_sigmoid(c)
    return function(p, name, x)
        local s = sigmoid(p, name .. "_s", x, c)
        return p:op("mul", name, x, s)
    end
end

-- x s(x) with s = sigmoid(c x) has the derivative s (1 + c x (1 - s))
local function times_sigmoid_both(c)
    return function(p, name, x)
        local s, e = sigmoid(p, name .. "_s", x, c)
        local rest = p:op("mul", name .. "_rest", e, s)
        local y = p:op("mul", name, x, s)
        if c then
            rest = p:op("mul", name .. "_c_rest", rest, p:const("act_c", c))
        end
        return y, slope_of(p, name, s, y, rest)
    end
end

return {
    order = {"silu", "gelu", "gelu_tanh", "swish", "relu", "squared_relu"},

    silu = {says = "x * sigmoid(x)", forward = times_sigmoid(nil), both = times_sigmoid_both(nil)},

    swish = {says = "x * sigmoid(1.702 x)", forward = times_sigmoid(1.702), both = times_sigmoid_both(1.702)},

    gelu = {says = "x / 2 * (1 + erf(x / sqrt(2)))", forward = function(p, name, x)
        local z = p:op("mul", name .. "_z", x, p:const("sqrt_half", 0.70710678118654752))
        local half = p:op("mul", name .. "_half", x, p:const("half_f", 0.5))
        local plus = p:op("add", name .. "_plus", erf(p, name .. "_erf", z), p:const("one_f", 1.0))
        return p:op("mul", name, half, plus)
    end, both = function(p, name, x)   -- F + x exp(-x^2 / 2) / sqrt(2 pi) with F = (1 + erf(x / sqrt(2))) / 2
        local half = p:const("half_f", 0.5)
        local z = p:op("mul", name .. "_z", x, p:const("sqrt_half", 0.70710678118654752))
        local plus = p:op("add", name .. "_plus", erf(p, name .. "_erf", z), p:const("one_f", 1.0))
        local share = p:op("mul", name .. "_share", plus, half)
        local y = p:op("mul", name, x, share)
        local scaled = p:op("mul", name .. "_scaled", x, p:const("minus_half", -0.5))
        local e = exp(p, name .. "_e", p:op("mul", name .. "_square", x, scaled))
        local bell = p:op("mul", name .. "_bell", e, p:const("bell", 0.39894228040143268))
        return y, slope_of(p, name, share, x, bell)
    end},

    -- (1 + tanh(y)) / 2 = sigmoid(2 y)
    gelu_tanh = {says = "x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))", forward = function(p, name, x)
        local square = p:op("mul", name .. "_square", x, x)
        local inner = p:const_copy(name .. "_inner", "one_f", 1.0)
        p:op("fma", inner, square, p:const("gelu_cubic", 0.044715))
        local y = p:op("mul", name .. "_y", x, inner)
        local s = sigmoid(p, name .. "_s", y, 1.59576912160573)
        return p:op("mul", name, x, s)
    end, both = function(p, name, x)   -- s + x s (1 - s) c (1 + 3 * 0.044715 x^2), c = 2 sqrt(2 / pi)
        local square = p:op("mul", name .. "_square", x, x)
        local inner = p:const_copy(name .. "_inner", "one_f", 1.0)
        p:op("fma", inner, square, p:const("gelu_cubic", 0.044715))
        local s, e = sigmoid(p, name .. "_s", p:op("mul", name .. "_y", x, inner), 1.59576912160573)
        local rest = p:op("mul", name .. "_rest", e, s)
        local steep = p:const_copy(name .. "_steep", "gelu_c", 1.59576912160573)
        p:op("fma", steep, square, p:const("gelu_slope", 3 * 0.044715 * 1.59576912160573))
        local y = p:op("mul", name, x, s)
        return y, slope_of(p, name, s, y, p:op("mul", name .. "_rise", rest, steep))
    end},

    relu = {says = "max(x, 0)", forward = function(p, name, x)
        return p:op("max", name, p:op("zero", name .. "_zero"), x)   -- NaN stays
    end, both = function(p, name, x)
        local zero = p:op("zero", name .. "_zero")
        local positive = p:op("is_less", name .. "_positive", zero, x)
        return p:op("max", name, zero, x), p:op("blend", name .. "_slope", positive, zero, p:const("one_f", 1.0))
    end},

    squared_relu = {says = "max(x, 0)^2", forward = function(p, name, x)
        local positive = p:op("max", name .. "_positive", p:op("zero", name .. "_zero"), x)
        return p:op("mul", name, positive, positive)
    end, both = function(p, name, x)
        local positive = p:op("max", name .. "_positive", p:op("zero", name .. "_zero"), x)
        return p:op("mul", name, positive, positive), p:op("add", name .. "_slope", positive, positive)
    end},
}
