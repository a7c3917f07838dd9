-- SPDX-License-Identifier: Apache-2.0
-- lanes.lua - what a router does with the scores of as many tokens as a vector has lanes: lane l of every row belongs to token
-- l, row i to expert i, or to the i-th expert that was chosen. All rows are f32 and `lanes` apart.
--
-- A tile that passes over its rows more than once takes `back`, which leads from the end of n rows to their start.
-- stat[0] largest, [1] sum, [2] sum of what was not chosen, [3] factor of what was not chosen; each a row.
local ir = require "ir"
local math_lib = require "math.functions"

local lanes = {}

local LOWEST <const> = 0xff7fffff   -- -FLT_MAX

local function row(cfg, i)
    return i * cfg.isa.lanes
end

local IN <const>, OUT <const>, COUNT <const> = "const float", "float", "count"

-- A program, and its parameters by name. params: {name, IN, OUT or COUNT}
local function tile(cfg, name, note, params)
    local p, arg = ir.program(cfg.isa, cfg.prefix .. name, {note}), {}
    for _, param in ipairs(params) do
        arg[param[1]] = param[2] == COUNT and p:integer(param[1]) or p:pointer(param[1], param[2])
    end
    return p, arg
end

-- The body for each of `count` rows. Pointers (those in a table by an amount of their own) advance from row to row, and
-- go back afterwards by `back`, if that is given.
local function pass(p, count, pointers, body, back)
    p:loop(count, function()
        body()
        for _, at in ipairs(pointers) do
            p:advance(at[1] or at, at[2] or p.isa.lanes)
        end
    end, "rows")
    for _, at in ipairs(back and pointers or {}) do
        p:advance(at[1] or at, at[3] or back)
    end
end

-- A sum over rows: value, add(a) or, of products, add(a, b). With many rows it carries along what its rounding lost (Kahan).
local function total(p, name, many, of_products, start)
    local sum = start or p:op("zero", name)
    local one = not of_products and p:op("const", name .. "_one", 1.0)
    local kept = many and p:op("zero", name .. "_kept")
    return {value = sum, add = function(a, b)
        if not many then
            return p:op("fma", sum, a, b or one)
        end
        local x = p:op("copy", name .. "_x", kept)
        p:op("fma", x, a, b or one)
        local now = p:op("add", name .. "_now", sum, x)
        p:op("move", kept, p:op("sub", name .. "_left", x, p:op("sub", name .. "_added", now, sum)))
        p:op("move", sum, now)
    end}
end

-- The largest of the rows X, at least -FLT_MAX and no NaN.
local function largest(p, X, count, back)
    local most = p:const_copy("most", "lowest", LOWEST)
    pass(p, count, {X}, function()
        p:op("move", most, p:op("max", "larger", p:op("load", "x_seen", p:at(X, 0)), most))
    end, back)
    return most
end

-- W = exp(X - largest), and their sum: a softmax before it is divided.
function lanes.softmax(cfg)
    local p, a = tile(cfg, "softmax", "Exponentials of rows relative to the largest, and their sum.",
        {{"X", IN}, {"W", OUT}, {"stat", OUT}, {"n", COUNT}, {"back", COUNT}})
    local again = p:count_from("again", a.n)
    local most = largest(p, a.X, a.n, a.back)
    local sum = total(p, "sum", cfg.many)
    pass(p, again, {a.X, a.W}, function()
        local e = math_lib.exp_or_zero(p, "e", p:op("sub", "below", p:op("load", "x", p:at(a.X, 0)), most))
        p:op("store", p:at(a.W, 0), e)
        sum.add(e)
    end)
    p:op("store", p:at(a.stat, 0), most)
    p:op("store", p:at(a.stat, row(cfg, 1)), sum.value)
    return p
end

-- sigmoid(x) * exp(-shift), for a shift <= 0 that is not below min(x, 0): exp(min(x, 0) - shift) / (1 + exp(-|x|)).
local function shifted_sigmoid(p, x, shift)
    local low = p:op("min", "low", p:op("zero", "nought"), x)   -- NaN stays
    local above = math_lib.exp_or_zero(p, "e", shift and p:op("sub", "low_shifted", low, shift) or low)
    local minus = p:op("bit_or", "minus", x, p:const("sign_bit", 0x80000000))
    return p:op("div", "w", above, p:op("add", "under", math_lib.exp(p, "f", minus), p:const("one_f", 1.0)))
end

-- W = sigmoid(X).
function lanes.sigmoid(cfg)
    local p, a = tile(cfg, "sigmoid", "Sigmoids of rows.", {{"X", IN}, {"W", OUT}, {"n", COUNT}})
    pass(p, a.n, {a.X, a.W}, function()
        p:op("store", p:at(a.W, 0), shifted_sigmoid(p, p:op("load", "x", p:at(a.X, 0))))
    end)
    return p
end

-- W = sigmoid(X) times what keeps the largest from being tiny, and their sum.
function lanes.sigmoid_sum(cfg)
    local p, a = tile(cfg, "sigmoid_sum", "Sigmoids of rows on a common scale, and their sum.",
        {{"X", IN}, {"W", OUT}, {"stat", OUT}, {"n", COUNT}, {"back", COUNT}})
    local again = p:count_from("again", a.n)
    local shift = p:op("min", "shift", p:op("zero", "none"), largest(p, a.X, a.n, a.back))
    local sum = total(p, "sum", cfg.many)
    pass(p, again, {a.X, a.W}, function()
        local w = shifted_sigmoid(p, p:op("load", "x", p:at(a.X, 0)), shift)
        p:op("store", p:at(a.W, 0), w)
        sum.add(w)
    end)
    p:op("store", p:at(a.stat, row(cfg, 1)), sum.value)
    return p
end

-- R = X + c, divided: X / sum + c; c has one number for each row.
function lanes.rank(cfg, divided)
    local p, a = tile(cfg, "rank", "What experts are chosen by.", {{"R", OUT}, {"X", IN}, {"c", IN}, {"n", COUNT},
        divided and {"stat", IN} or nil})
    local sum = divided and p:op("load", "sum", p:at(a.stat, row(cfg, 1)))
    pass(p, a.n, {a.R, a.X, {a.c, 1}}, function()
        local x = p:op("load", "x", p:at(a.X, 0))
        x = divided and p:op("div", "share", x, sum) or x
        p:op("store", p:at(a.R, 0), p:op("add", "rank", x, p:op("bcast", "correction", p:at(a.c, 0))))
    end)
    return p
end

-- The k largest of n rows in falling order, of equals the lower row first: V values, I rows as integers. NaN and -infinity
-- come last, as -FLT_MAX. Rows are inserted one by one into the list of the best so far.
function lanes.choose(cfg)
    local p, a = tile(cfg, "choose", "The k largest of n rows, and which they are.",
        {{"V", OUT}, {"I", OUT}, {"X", IN}, {"n", COUNT}, {"k", COUNT}, {"back", COUNT}})
    local nothing = p:op("const", "nothing", 0xff800000)   -- -infinity: less than any that comes
    pass(p, p:count_from("slots", a.k), {a.V, a.I}, function()
        p:op("store", p:at(a.V, 0), nothing)
        p:op("store", p:at(a.I, 0), nothing)
    end, a.back)
    local e, one, lowest = p:op("zero", "e"), p:op("const", "unit", 1.0), p:op("const", "lowest", LOWEST)
    pass(p, a.n, {a.X}, function()
        local x = p:op("max", "x", p:op("load", "rank", p:at(a.X, 0)), lowest)
        local value, at = p:op("copy", "value", x), p:op("copy", "at", e)   -- what goes where x has pushed something out
        pass(p, p:count_from("left", a.k), {a.V, a.I}, function()
            local old, old_at = p:op("load", "old", p:at(a.V, 0)), p:op("load", "old_at", p:at(a.I, 0))
            local better = p:op("is_less", "better", old, x)
            p:op("store", p:at(a.V, 0), p:op("blend", "new", better, old, value))
            p:op("store", p:at(a.I, 0), p:op("blend", "new_at", better, old_at, at))
            p:op("move", value, p:op("min", "next", old, x))
            p:op("move", at, p:op("blend", "next_at", better, e, old_at))
        end, a.back)
        p:op("fma", e, one, one)
    end)
    pass(p, a.k, {a.I}, function()
        p:op("store", p:at(a.I, 0), p:op("to_int", "row", p:op("load", "row_f", p:at(a.I, 0))))
    end)
    return p
end

-- Q = factor * W, divided: factor * W / sum.
function lanes.scale(cfg, factor, divided)
    local p, a = tile(cfg, "scale", "Weights of the chosen experts.", {{"Q", OUT}, {"W", IN}, {"n", COUNT},
        divided and {"stat", IN} or nil})
    local by = p:op("const", "factor", factor + 0.0)
    by = divided and p:op("div", "by", by, p:op("load", "sum", p:at(a.stat, row(cfg, 1)))) or by
    pass(p, a.n, {a.Q, a.W}, function()
        p:op("store", p:at(a.Q, 0), p:op("mul", "q", p:op("load", "w", p:at(a.W, 0)), by))
    end)
    return p
end

-- out = log of the sum of exponentials, from what softmax() found; scaled: times factor / sum.
function lanes.log_sum(cfg, scaled)
    local p, a = tile(cfg, "log_sum", scaled and "factor * log(sum of exp) / sum." or "log(sum of exp).",
        {{"out", OUT}, {"stat", IN}, scaled and {"factor", IN} or nil})
    local sum = p:op("load", "sum", p:at(a.stat, row(cfg, 1)))
    local x = p:op("add", "whole", math_lib.log(p, "log", sum), p:op("load", "most", p:at(a.stat, 0)))
    if scaled then
        x = p:op("mul", "scaled", x, p:op("div", "by", p:op("bcast", "f", p:at(a.factor, 0)), sum))
    end
    p:op("store", p:at(a.out, 0), x)
    return p
end

-- out = sum of W * c / sum of W; c has one number for each row.
function lanes.mean(cfg)
    local p, a = tile(cfg, "mean", "Mean of c, weighed by rows.", {{"out", OUT}, {"W", IN}, {"c", IN}, {"n", COUNT}, {"stat", IN}})
    local weighed = total(p, "weighed", cfg.many, true)
    pass(p, a.n, {a.W, {a.c, 1}}, function()
        weighed.add(p:op("load", "w", p:at(a.W, 0)), p:op("bcast", "count", p:at(a.c, 0)))
    end)
    p:op("store", p:at(a.out, 0), p:op("div", "mean", weighed.value, p:op("load", "sum", p:at(a.stat, row(cfg, 1)))))
    return p
end

-- stat[2] = sum of n rows.
function lanes.rest(cfg)
    local p, a = tile(cfg, "rest", "Sum of rows.", {{"W", IN}, {"stat", OUT}, {"n", COUNT}})
    local sum = total(p, "sum", cfg.many)
    pass(p, a.n, {a.W}, function() sum.add(p:op("load", "w", p:at(a.W, 0))) end)
    p:op("store", p:at(a.stat, row(cfg, 2)), sum.value)
    return p
end

-- The gradient of factor * W / sum(W) by the logarithms of the rows W: out = factor * W / sum * (d - mean of d). Where one row
-- outweighs all others together, d - mean of d would cancel: there d is taken relative to the d of that row.
-- has: of_rows (d has one number for each row), sigmoid (times 1 - sigmoid(X)), rest (there are more rows, which sum to
-- stat[2] and have d = 0: what they get is their W times stat[3])
function lanes.gradient(cfg, name, has)
    local list = {{"out", OUT}, {"W", IN}, {"d", IN}, {"factor", IN}, {"n", COUNT}, {"back", COUNT}}
    list[#list + 1] = has.of_rows and {"back_d", COUNT} or nil
    list[#list + 1] = has.sigmoid and {"X", IN} or has.rest and {"stat", OUT} or nil
    local p, a = tile(cfg, name, "Gradient of rows over their sum.", list)
    local d_rows = {a.d, has.of_rows and 1 or cfg.isa.lanes, a.back_d or a.back}
    local second, third = p:count_from("second", a.n), p:count_from("third", a.n)
    local function d(where)
        return p:op(has.of_rows and "bcast" or "load", "d_" .. where, p:at(a.d, 0))
    end
    local most, of_most = p:op("zero", "most"), p:op("zero", "of_most")
    local sum = total(p, "sum", cfg.many, false, has.rest and p:op("load", "sum", p:at(a.stat, row(cfg, 2))))
    pass(p, a.n, {a.W, d_rows}, function()
        local w = p:op("load", "w_1", p:at(a.W, 0))
        local more = p:op("is_less", "more", most, w)
        p:op("move", most, p:op("blend", "most_now", more, most, w))
        p:op("move", of_most, p:op("blend", "of_most_now", more, of_most, d(1)))
        sum.add(w)
    end, a.back)
    local half = p:op("mul", "half_sum", sum.value, p:op("const", "half_f", 0.5))
    local base = p:op("blend", "base", p:op("is_less", "outweighs", half, most), p:op("zero", "no_base"), of_most)
    local weighed = total(p, "weighed", cfg.many, true)
    if has.rest then
        p:op("fnma", weighed.value, p:op("load", "rest", p:at(a.stat, row(cfg, 2))), base)
    end
    pass(p, second, {a.W, d_rows}, function()
        weighed.add(p:op("load", "w_2", p:at(a.W, 0)), p:op("sub", "beyond_2", d(2), base))
    end, a.back)
    local mean = p:op("div", "mean", weighed.value, sum.value)
    local by = p:op("div", "by", p:op("bcast", "f", p:at(a.factor, 0)), sum.value)
    if has.rest then
        local all = p:op("bit_xor", "minus_mean", p:op("add", "mean_of_d", base, mean), p:const("sign_bit", 0x80000000))
        p:op("store", p:at(a.stat, row(cfg, 3)), p:op("mul", "others", by, all))
    end
    pass(p, third, {a.out, a.W, d_rows, has.sigmoid and a.X or nil}, function()
        local w = p:op("mul", "share", p:op("load", "w_3", p:at(a.W, 0)), by)
        if has.sigmoid then
            local other = math_lib.sigmoid(p, "other", p:op("load", "x", p:at(a.X, 0)), -1.0)
            w = p:op("mul", "slope", w, other)
        end
        local beyond = p:op("sub", "beyond", p:op("sub", "beyond_3", d(3), base), mean)
        p:op("store", p:at(a.out, 0), p:op("mul", "g", w, beyond))
    end)
    return p
end

-- out = factor * d * s (1 - s), s = sigmoid(X).
function lanes.sigmoid_gradient(cfg, name)
    local p, a = tile(cfg, name, "Gradient of sigmoids.", {{"out", OUT}, {"X", IN}, {"d", IN}, {"factor", IN}, {"n", COUNT}})
    local f = p:op("bcast", "f", p:at(a.factor, 0))
    pass(p, a.n, {a.out, a.X, a.d}, function()
        local x = p:op("load", "x", p:at(a.X, 0))
        local s, e = math_lib.sigmoid(p, "s", x)
        local slope = p:op("mul", "slope", s, p:op("mul", "other", s, e))
        p:op("store", p:at(a.out, 0), p:op("mul", "g", slope, p:op("mul", "dy", p:op("load", "dy_plain", p:at(a.d, 0)), f)))
    end)
    return p
end

-- out = W * c, add: out += W * c; c is a row.
function lanes.spread(cfg, name, add)
    local p, a = tile(cfg, name, "Rows times a factor of each lane.", {{"out", OUT}, {"W", IN}, {"c", IN}, {"n", COUNT}})
    local c = p:op("load", "factor", p:at(a.c, 0))
    pass(p, a.n, {a.out, a.W}, function()
        local g = add and p:op("load", "g", p:at(a.out, 0)) or p:op("zero", "g")
        p:op("fma", g, p:op("load", "w", p:at(a.W, 0)), c)
        p:op("store", p:at(a.out, 0), g)
    end)
    return p
end

-- out = the sum of n rows of one vector, `pitch` apart.
function lanes.columns(cfg, pitch)
    local p, a = tile(cfg, "columns", "Sum of rows of one vector.", {{"out", OUT}, {"A", IN}, {"n", COUNT}})
    local sum = total(p, "sum", true)
    pass(p, a.n, {{a.A, pitch}}, function() sum.add(p:op("load", "a", p:at(a.A, 0))) end)
    p:op("store", p:at(a.out, 0), sum.value)
    return p
end

return lanes
