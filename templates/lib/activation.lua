-- SPDX-License-Identifier: Apache-2.0
-- activation.lua - what a MoE's activation computes, as programs over IR vectors.
--
-- A NEW ACTIVATION takes 2 files: a row here, and one in runtime/ref_activation.c (the float64 function and its derivative).
-- The schema accepts the name, `moegen list` shows it, and the kernel tests run it, because they read this table.
--
-- forward   function(program, name, x) -> vector; names of temporaries start with name
-- Order of the list is the order in help texts.
local math_lib = require "lib.math"

local sigmoid, erf = math_lib.sigmoid, math_lib.erf

local function times_sigmoid(c)
    return function(p, name, x)
        return p:op("mul", name, x, sigmoid(p, name .. "_s", x, c))
    end
end

return {
    order = {"silu", "gelu", "gelu_tanh", "swish", "relu", "squared_relu"},

    silu = {says = "x * sigmoid(x)", forward = times_sigmoid(nil)},

    swish = {says = "x * sigmoid(1.702 x)", forward = times_sigmoid(1.702)},

    gelu = {says = "x / 2 * (1 + erf(x / sqrt(2)))", forward = function(p, name, x)
        local z = p:op("mul", name .. "_z", x, p:const("sqrt_half", 0.70710678118654752))
        local half = p:op("mul", name .. "_half", x, p:const("half_f", 0.5))
        local plus = p:op("add", name .. "_plus", erf(p, name .. "_erf", z), p:const("one_f", 1.0))
        return p:op("mul", name, half, plus)
    end},

    -- (1 + tanh(y)) / 2 = sigmoid(2 y)
    gelu_tanh = {says = "x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))", forward = function(p, name, x)
        local square = p:op("mul", name .. "_square", x, x)
        local inner = p:const_copy(name .. "_inner", "one_f", 1.0)
        p:op("fma", inner, square, p:const("gelu_cubic", 0.044715))
        local y = p:op("mul", name .. "_y", x, inner)
        return p:op("mul", name, x, sigmoid(p, name .. "_s", y, 1.59576912160573))
    end},

    relu = {says = "max(x, 0)", forward = function(p, name, x)
        return p:op("max", name, p:op("zero", name .. "_zero"), x)   -- NaN stays
    end},

    squared_relu = {says = "max(x, 0)^2", forward = function(p, name, x)
        local positive = p:op("max", name .. "_positive", p:op("zero", name .. "_zero"), x)
        return p:op("mul", name, positive, positive)
    end},
}
