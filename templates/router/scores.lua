-- SPDX-License-Identifier: Apache-2.0
-- scores.lua - scores of one logit each, as rows of a table and their tiles; and the cap of logits. Rows of tiles: see lanes.lua.
local lanes = require "router.lanes"
local math_lib = require "math.functions"

local scores = {}

local IN <const>, OUT <const>, COUNT <const> = lanes.IN, lanes.OUT, lanes.COUNT

-- sigmoid(x) * exp(-shift), for a shift <= 0 that is not below min(x, 0): exp(min(x, 0) - shift) / (1 + exp(-|x|)).
local function shifted_sigmoid(p, x, shift)
    local low = p:op("min", "low", p:op("zero", "nought"), x)   -- NaN stays
    local above = math_lib.exp_or_zero(p, "e", shift and p:op("sub", "low_shifted", low, shift) or low)
    local minus = p:op("bit_or", "minus", x, p:const("sign_bit", 0x80000000))
    return p:op("div", "w", above, p:op("add", "under", math_lib.exp(p, "f", minus), p:const("one_f", 1.0)))
end

-- log(1 + e) / e for 0 <= e <= 1: 2 artanh(s) / e with s = e / (2 + e) <= 1 / 3, by its series to the 17th power (error below
-- 2^-32 there).
local function log_over(p, e)
    local below = p:op("add", "two_e", e, p:const("two", 2.0))
    local s = p:op("div", "s", e, below)
    local square = p:op("mul", "square", s, s)
    local sum = p:const_copy("series", "term_17", 2.0 / 17)
    for power = 15, 1, -2 do
        p:op("mul_add", sum, square, p:const("term_" .. power, 2.0 / power))
    end
    return p:op("div", "log_over", sum, below)
end

-- Of log(1 + exp(x)) = (exp(x) where x < 0) * q: h = exp(-|x| / 2), e = h^2, whether x < 0, and q. It is not small.
local function softplus(p, x)
    local minus = p:op("bit_or", "minus", x, p:const("sign_bit", 0x80000000))
    local h = math_lib.exp(p, "h", p:op("mul", "half_minus", minus, p:const("one_half", 0.5)))
    local e = p:op("mul", "e", h, h)
    local g = log_over(p, e)
    local q = p:op("copy", "q_above", x)
    p:op("fma", q, e, g)
    local negative = p:op("is_less", "negative", x, p:op("zero", "nought"))
    return {h = h, e = e, negative = negative, q = p:op("blend", "q", negative, q, g)}
end

local function root_of(p, f)
    return p:op("mul", "w", math_lib.root(p, "root", f.q), p:op("blend", "power", f.negative, p:const("one_f", 1.0), f.h))
end

-- The derivative of half the logarithm of log(1 + exp(x)): half / ((1 + e) q).
local function half_slope(p, f)
    return p:op("div", "rate", p:const("one_half", 0.5), p:op("mul", "under", p:op("add", "e_1", f.e, p:const("one_f", 1.0)), f.q))
end

-- of         the score of x; shift: times exp(-shift), see shifted_sigmoid (only where the row says `shifts`)
-- slope      its derivative
-- log_slope  the derivative of its logarithm
scores.rows = {
    sigmoid = {
        shifts = true,
        of = shifted_sigmoid,
        slope = function(p, x)
            local s, e = math_lib.sigmoid(p, "s", x)
            return p:op("mul", "slope", s, p:op("mul", "other", s, e))
        end,
        log_slope = function(p, x)
            return (math_lib.sigmoid(p, "other", x, -1.0))
        end,
    },
    sqrt_softplus = {
        of = function(p, x)
            return root_of(p, softplus(p, x))
        end,
        slope = function(p, x)
            local f = softplus(p, x)
            return p:op("mul", "slope", root_of(p, f), half_slope(p, f))
        end,
        log_slope = function(p, x)
            return half_slope(p, softplus(p, x))
        end,
    },
}

-- Tiles ------------------------------------------------------------------------------------------------------------

-- W = score(X).
function scores.all(cfg, score)
    local p, a = lanes.tile(cfg, score, "Scores of rows.", {{"X", IN}, {"W", OUT}, {"n", COUNT}})
    lanes.pass(p, a.n, {a.X, a.W}, function()
        p:op("store", p:at(a.W, 0), scores.rows[score].of(p, p:op("load", "x", p:at(a.X, 0))))
    end)
    return p
end

-- Name of the tile that scores.sum makes, and whether it goes over its rows twice.
function scores.sum_name(score, true_size)
    local shifts = scores.rows[score].shifts
    return score .. (true_size and shifts and "_true_sum" or "_sum"), shifts and not true_size
end

-- W = score(X) and their sum; times what keeps the largest from being tiny, unless they are wanted in their true size.
function scores.sum(cfg, score, true_size)
    local name, shifts = scores.sum_name(score, true_size)
    local p, a = lanes.tile(cfg, name, shifts and "Scores of rows on a common scale, and their sum." or "Scores of rows, and their sum.",
        {{"X", IN}, {"W", OUT}, {"stat", OUT}, {"n", COUNT}, shifts and {"back", COUNT} or nil})
    local again = p:count_from("again", a.n)
    local shift = shifts and p:op("min", "shift", p:op("zero", "none"), lanes.largest(p, a.X, a.n, a.back))
    local sum = lanes.total(p, "sum", cfg.many)
    lanes.pass(p, again, {a.X, a.W}, function()
        local w = scores.rows[score].of(p, p:op("load", "x", p:at(a.X, 0)), shift)
        p:op("store", p:at(a.W, 0), w)
        sum.add(w)
    end)
    p:op("store", p:at(a.stat, lanes.row(cfg, 1)), sum.value)
    return p
end

-- out = factor * d * score'(X).
function scores.gradient(cfg, name, score)
    local p, a = lanes.tile(cfg, name, "Gradient of scores.", {{"out", OUT}, {"X", IN}, {"d", IN}, {"factor", IN}, {"n", COUNT}})
    local f = p:op("bcast", "f", p:at(a.factor, 0))
    lanes.pass(p, a.n, {a.out, a.X, a.d}, function()
        local slope = scores.rows[score].slope(p, p:op("load", "x", p:at(a.X, 0)))
        p:op("store", p:at(a.out, 0), p:op("mul", "g", slope, p:op("mul", "dy", p:op("load", "dy_plain", p:at(a.d, 0)), f)))
    end)
    return p
end

-- X = m X.
local function scaled(p, a, m, slope)
    local factor = p:const("m", m)
    lanes.pass(p, a.n, {a.X, a.D}, function()
        p:op("store", p:at(a.X, 0), p:op("mul", "scaled", p:op("load", "x", p:at(a.X, 0)), factor))
        if slope then
            p:op("store", p:at(a.D, 0), factor)
        end
    end)
    return p
end

-- X = c tanh(m X / c), without c: m X; slope: and D = its derivative. With a = |m X / c| and e = exp(-2 a) the first is
-- c (1 - e) / (1 + e), and where a is small a continued fraction (error below 2^-30 there); the derivative is 4 m e / (1 + e)^2, and ends
-- at 0.
function scores.cap(cfg, c, m, slope)
    local p, a = lanes.tile(cfg, "cap", c and "Rows, capped." or "Rows, scaled.", {{"X", OUT}, {"n", COUNT}, slope and {"D", OUT} or nil})
    if not c then
        return scaled(p, a, m, slope)
    end
    lanes.pass(p, a.n, {a.X, a.D}, function()
        local x = p:op("mul", "ratio", p:op("load", "x", p:at(a.X, 0)), p:const("per_c", m / c))
        local sign = p:op("bit_and", "sign", x, p:const("sign_bit", 0x80000000))
        local size = p:op("bit_xor", "size", x, sign)
        local e = (slope and math_lib.exp_or_zero or math_lib.exp)(p, "e", p:op("mul", "minus_2", size, p:const("minus_two", -2.0)))
        local one = p:const("one_f", 1.0)
        local under = p:op("add", "under", e, one)
        local t = p:op("mul", "square", size, size)
        local top = p:op("add", "top", t, p:const("c_105", 105.0))
        p:op("mul_add", top, t, p:const("c_945", 945.0))
        local low = p:const_copy("low", "c_420", 420.0)
        p:op("fma", low, t, p:const("c_15", 15.0))
        p:op("mul_add", low, t, p:const("c_945", 945.0))
        local near = p:op("mul", "near", size, p:op("div", "fraction", top, low))
        local far = p:op("div", "far", p:op("sub", "over", one, e), under)
        local tanh = p:op("blend", "curve", p:op("is_less", "is_near", size, p:const("near_end", 0.6)), far, near)
        p:op("store", p:at(a.X, 0), p:op("mul", "capped", p:op("bit_or", "with_sign", tanh, sign), p:const("c", c)))
        if slope then
            local half = p:op("div", "half", e, under)
            p:op("store", p:at(a.D, 0), p:op("mul", "slope", half, p:op("div", "other_half", p:const("four", 4 * m), under)))
        end
    end)
    return p
end

return scores
