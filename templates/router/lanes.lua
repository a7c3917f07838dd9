-- SPDX-License-Identifier: Apache-2.0
-- lanes.lua - what a router does with the scores of as many tokens as a vector has lanes: lane l of every row belongs to token
-- l, row i to expert i, or to the i-th expert that was chosen. All rows are f32 and `lanes` apart.
--
-- A tile that passes over its rows more than once takes `back`, which leads from the end of n rows to their start.
-- stat[0] largest, [1] sum, [2] sum of what was not chosen, [3] factor of what was not chosen; each a row.
local ir = require "ir"
local math_lib = require "math.functions"
local over_rows = require "tiles.over_rows"
local plans = require "shared.plans"

local lanes = {}

lanes.LOWEST = 0xff7fffff   -- -FLT_MAX

-- Types of parameters.
lanes.IN, lanes.OUT, lanes.COUNT = "const float", "float", "count"
local IN <const>, OUT <const>, COUNT <const> = lanes.IN, lanes.OUT, lanes.COUNT

function lanes.row(cfg, i)
    return i * cfg.isa.lanes
end

-- A program, and its parameters by name. params: {name, IN, OUT or COUNT}
function lanes.tile(cfg, name, note, params)
    local p, arg = ir.program(cfg.isa, cfg.prefix .. name, {note}), {}
    for _, param in ipairs(params) do
        arg[param[1]] = param[2] == COUNT and p:integer(param[1]) or p:pointer(param[1], param[2])
    end
    return p, arg
end

-- The body for each of `count` rows. Pointers (those in a table by an amount of their own) advance from row to row, and
-- go back afterwards by `back`, if that is given.
function lanes.pass(p, count, pointers, body, back)
    over_rows.vectors(p, count, pointers, body, "rows")
    for _, at in ipairs(back and pointers or {}) do
        p:advance(at[1] or at, at[3] or back)
    end
end

-- A sum over rows: value, add(a) or, of products, add(a, b). With many rows it carries along what its rounding lost (Kahan).
function lanes.total(p, name, many, of_products, start)
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
function lanes.largest(p, X, count, back)
    local most = p:const_copy("most", "lowest", lanes.LOWEST)
    lanes.pass(p, count, {X}, function()
        p:op("move", most, p:op("max", "larger", p:op("load", "x_seen", p:at(X, 0)), most))
    end, back)
    return most
end

-- W = exp(X - largest), and their sum: a softmax before it is divided.
function lanes.softmax(cfg)
    local p, a = lanes.tile(cfg, "softmax", "Exponentials of rows relative to the largest, and their sum.",
        {{"X", IN}, {"W", OUT}, {"stat", OUT}, {"n", COUNT}, {"back", COUNT}})
    local again = p:count_from("again", a.n)
    local most = lanes.largest(p, a.X, a.n, a.back)
    local sum = lanes.total(p, "sum", cfg.many)
    lanes.pass(p, again, {a.X, a.W}, function()
        local e = math_lib.exp_or_zero(p, "e", p:op("sub", "below", p:op("load", "x", p:at(a.X, 0)), most))
        p:op("store", p:at(a.W, 0), e)
        sum.add(e)
    end)
    p:op("store", p:at(a.stat, 0), most)
    p:op("store", p:at(a.stat, lanes.row(cfg, 1)), sum.value)
    return p
end

-- R = X + c, divided: X / sum + c; c has one number for each row, which only are there if `corrected`.
function lanes.rank(cfg, divided, corrected)
    local p, a = lanes.tile(cfg, "rank", "What experts are chosen by.", plans.list({"R", OUT}, {"X", IN},
        corrected and {"c", IN}, {"n", COUNT}, divided and {"stat", IN}))
    local sum = divided and p:op("load", "sum", p:at(a.stat, lanes.row(cfg, 1)))
    lanes.pass(p, a.n, {a.R, a.X, corrected and {a.c, 1} or nil}, function()
        local x = p:op("load", "x", p:at(a.X, 0))
        x = divided and p:op("div", "share", x, sum) or x
        x = corrected and p:op("add", "rank", x, p:op("bcast", "correction", p:at(a.c, 0))) or x
        p:op("store", p:at(a.R, 0), x)
    end)
    return p
end

-- f(x): what x is compared as. NaN, which nobody is to miss, comes first as infinity; -infinity last as -FLT_MAX, which is given, too.
function lanes.key(p)
    local first, lowest = p:op("const", "first", 0x7f800000), p:op("const", "lowest", lanes.LOWEST)
    return function(x)
        return p:op("max", "x", p:op("min", "x_or_first", x, first), lowest)
    end, lowest
end

-- The k largest of n rows in falling order, of equals the lower row first: V values, I rows as integers. NaN comes first and
-- -infinity last. Rows are inserted one by one into the list of the best so far.
function lanes.choose(cfg)
    local p, a = lanes.tile(cfg, "choose", "The k largest of n rows, and which they are.",
        {{"V", OUT}, {"I", OUT}, {"X", IN}, {"n", COUNT}, {"k", COUNT}, {"back", COUNT}})
    local nothing = p:op("const", "nothing", 0xff800000)   -- -infinity: less than any that comes
    lanes.pass(p, p:count_from("slots", a.k), {a.V, a.I}, function()
        p:op("store", p:at(a.V, 0), nothing)
        p:op("store", p:at(a.I, 0), nothing)
    end, a.back)
    local e, one, key = p:op("zero", "e"), p:op("const", "unit", 1.0), lanes.key(p)
    lanes.pass(p, a.n, {a.X}, function()
        local x = key(p:op("load", "rank", p:at(a.X, 0)))
        local value, at = p:op("copy", "value", x), p:op("copy", "at", e)   -- what goes where x has pushed something out
        lanes.pass(p, p:count_from("left", a.k), {a.V, a.I}, function()
            local old, old_at = p:op("load", "old", p:at(a.V, 0)), p:op("load", "old_at", p:at(a.I, 0))
            local better = p:op("is_less", "better", old, x)
            p:op("store", p:at(a.V, 0), p:op("blend", "new", better, old, value))
            p:op("store", p:at(a.I, 0), p:op("blend", "new_at", better, old_at, at))
            p:op("move", value, p:op("min", "next", old, x))
            p:op("move", at, p:op("blend", "next_at", better, e, old_at))
        end, a.back)
        p:op("fma", e, one, one)
    end)
    lanes.pass(p, a.k, {a.I}, function()
        p:op("store", p:at(a.I, 0), p:op("to_int", "row", p:op("load", "row_f", p:at(a.I, 0))))
    end)
    return p
end

-- Q = factor * W, divided: factor * W / sum. floor: see methods.lua; of_all: W is rows of those that sum to stat[1], and sums to
-- stat[2].
function lanes.scale(cfg, factor, divided, floor, of_all)
    local p, a = lanes.tile(cfg, "divide", "Weights of the chosen experts.", {{"Q", OUT}, {"W", IN}, {"n", COUNT},
        divided and {"stat", IN} or nil})
    local by = p:op("const", "factor", factor + 0.0)
    local sum = divided and p:op("load", "sum", p:at(a.stat, lanes.row(cfg, 1)))
    if floor then
        local least = p:op("const", "floor", floor.eps or floor.min)
        least = of_all and p:op("mul", "least", least, sum) or least
        local chosen = of_all and p:op("load", "chosen", p:at(a.stat, lanes.row(cfg, 2))) or sum
        -- NaN stays: of_all, `least` is it where `chosen` is
        sum = p:op(floor.eps and "add" or "max", "divisor", of_all and chosen or least, of_all and least or chosen)
    end
    by = divided and p:op("div", "by", by, sum) or by
    lanes.pass(p, a.n, {a.Q, a.W}, function()
        p:op("store", p:at(a.Q, 0), p:op("mul", "q", p:op("load", "w", p:at(a.W, 0)), by))
    end)
    return p
end

-- exp(x - most) where most - x <= near * max(|x|, most), else 0.
function lanes.of_near(p, x, most, near)
    local e = math_lib.exp_or_zero(p, "e", p:op("sub", "below", x, most))
    local size = p:op("bit_xor", "size", x, p:op("bit_and", "sign", x, p:const("sign_bit", 0x80000000)))
    local reach = p:op("mul", "reach", p:op("max", "larger", size, most), p:const("near", near + 0.0))
    return p:op("blend", "counts", p:op("is_less", "is_far", reach, p:op("sub", "gap", most, x)), e, p:op("zero", "nothing"))
end

-- W = exp(m) / (exp(m) + the sum of exp(X) of the rows near m).
function lanes.near(cfg, near)
    local p, a = lanes.tile(cfg, "near", "Weights among the rows that are near.", {{"W", OUT}, {"X", IN}, {"m", IN}, {"n", COUNT}})
    local most, sum = p:op("load", "most", p:at(a.m, 0)), lanes.total(p, "sum", cfg.many)
    lanes.pass(p, a.n, {a.X}, function() sum.add(lanes.of_near(p, p:op("load", "x", p:at(a.X, 0)), most, near)) end)
    local one = p:const("one_f", 1.0)
    p:op("store", p:at(a.W, 0), p:op("div", "w", one, p:op("add", "all", sum.value, one)))
    return p
end

-- out = log of the sum of exponentials, from what softmax() found; scaled: times factor / sum.
function lanes.log_sum(cfg, scaled)
    local p, a = lanes.tile(cfg, "log_sum", scaled and "factor * log(sum of exp) / sum." or "log(sum of exp).",
        {{"out", OUT}, {"stat", IN}, scaled and {"factor", IN} or nil})
    local sum = p:op("load", "sum", p:at(a.stat, lanes.row(cfg, 1)))
    local x = p:op("add", "whole", math_lib.log(p, "log", sum), p:op("load", "most", p:at(a.stat, 0)))
    if scaled then
        x = p:op("mul", "scaled", x, p:op("div", "by", p:op("bcast", "f", p:at(a.factor, 0)), sum))
    end
    p:op("store", p:at(a.out, 0), x)
    return p
end

-- out = sum of W * c / sum of W; c has one number for each row.
function lanes.mean(cfg)
    local p, a = lanes.tile(cfg, "mean", "Mean of c, weighed by rows.", {{"out", OUT}, {"W", IN}, {"c", IN}, {"n", COUNT}, {"stat", IN}})
    local weighed = lanes.total(p, "weighed", cfg.many, true)
    lanes.pass(p, a.n, {a.W, {a.c, 1}}, function()
        weighed.add(p:op("load", "w", p:at(a.W, 0)), p:op("bcast", "count", p:at(a.c, 0)))
    end)
    p:op("store", p:at(a.out, 0), p:op("div", "mean", weighed.value, p:op("load", "sum", p:at(a.stat, lanes.row(cfg, 1)))))
    return p
end

-- stat[2] = sum of n rows.
function lanes.rest(cfg)
    local p, a = lanes.tile(cfg, "rest", "Sum of rows.", {{"W", IN}, {"stat", OUT}, {"n", COUNT}})
    local sum = lanes.total(p, "sum", cfg.many)
    lanes.pass(p, a.n, {a.W}, function() sum.add(p:op("load", "w", p:at(a.W, 0))) end)
    p:op("store", p:at(a.stat, lanes.row(cfg, 2)), sum.value)
    return p
end

-- out = the sum of n rows of one vector, `pitch` apart.
function lanes.columns(cfg, pitch)
    local p, a = lanes.tile(cfg, "columns", "Sum of rows of one vector.", {{"out", OUT}, {"A", IN}, {"n", COUNT}})
    local sum = lanes.total(p, "sum", true)
    lanes.pass(p, a.n, {{a.A, pitch}}, function() sum.add(p:op("load", "a", p:at(a.A, 0))) end)
    p:op("store", p:at(a.out, 0), sum.value)
    return p
end

return lanes
