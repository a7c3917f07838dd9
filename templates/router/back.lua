-- SPDX-License-Identifier: Apache-2.0
-- back.lua - what becomes of the gradients of weights, for as many tokens as a vector has lanes; rows as in lanes.lua.
local lanes = require "router.lanes"

local back = {}

local IN <const>, OUT <const>, COUNT <const> = lanes.IN, lanes.OUT, lanes.COUNT
local row = lanes.row

-- What becomes of the sum of the chosen, W, when it has a floor (see methods.lua); rest: sum of the other rows, or nil. Gives
-- sum    what W is divided by
-- beside what of it is not of W, and has d = 0
-- times  factor of the weights
-- others factor of what the other rows get
-- on     0 where the sum is a constant: there is no mean of d
local function with_floor(p, chosen, rest, floor)
    local x = floor.eps or floor.min
    if floor.eps then   -- W + eps (W + rest)
        x = p:op("const", "eps", rest and x / (1 + x) or x)
        local beside = rest and p:op("mul", "beside", x, rest) or x
        return {sum = p:op("add", "sum_with_eps", chosen, beside), beside = beside, others = x,
            times = rest and p:op("const", "times", 1 / (1 + floor.eps))}
    end
    local none, one = p:op("zero", "none"), p:const("one_f", 1.0)
    local least = p:op("const", "min", x)
    if not rest then
        local on = p:op("blend", "on", p:op("is_less", "enough", least, chosen), none, one)
        return {sum = p:op("max", "sum_or_min", least, chosen), on = on}
    end
    local all = p:op("mul", "least", least, p:op("add", "all", chosen, rest))
    local enough = p:op("is_less", "enough", all, chosen)   -- else weights are shares of all, over min
    local beside = p:op("blend", "beside", enough, rest, none)
    return {sum = p:op("add", "sum_or_all", chosen, beside), beside = beside, others = p:op("blend", "others_on", enough, one, none),
        times = p:op("blend", "times", enough, p:op("const", "per_min", 1 / x), one)}
end

-- The gradient of factor * W / sum(W) by the logarithms of the rows W: out = factor * W / sum * (d - mean of d). Where one row
-- outweighs all others together, d - mean of d would cancel: there d is taken relative to the d of that row.
-- has: of_rows (d has one number for each row), alone (a row of scores.lua: W are of X, by which the gradient is), rest (there
-- are more rows, which sum to stat[2] and have d = 0: what they get is their W times stat[3]), floor (of the sum)
function back.gradient(cfg, name, has)
    local list = {{"out", OUT}, {"W", IN}, {"d", IN}, {"factor", IN}, {"n", COUNT}, {"back", COUNT}}
    list[#list + 1] = has.of_rows and {"back_d", COUNT} or nil
    list[#list + 1] = has.alone and {"X", IN} or has.rest and {"stat", OUT} or nil
    local p, a = lanes.tile(cfg, name, "Gradient of rows over their sum.", list)
    local d_rows = {a.d, has.of_rows and 1 or cfg.isa.lanes, a.back_d or a.back}
    local second, third = p:count_from("second", a.n), p:count_from("third", a.n)
    local function d(where)
        return p:op(has.of_rows and "bcast" or "load", "d_" .. where, p:at(a.d, 0))
    end
    local function rest(title)
        return has.rest and p:op("load", title, p:at(a.stat, row(cfg, 2)))
    end
    local most, of_most = p:op("zero", "most"), p:op("zero", "of_most")
    local sum = lanes.total(p, "sum", cfg.many, false, not has.floor and rest("sum"))
    lanes.pass(p, a.n, {a.W, d_rows}, function()
        local w = p:op("load", "w_1", p:at(a.W, 0))
        local more = p:op("is_less", "more", most, w)
        p:op("move", most, p:op("blend", "most_now", more, most, w))
        p:op("move", of_most, p:op("blend", "of_most_now", more, of_most, d(1)))
        sum.add(w)
    end, a.back)
    local f = has.floor and with_floor(p, sum.value, rest("rest"), has.floor) or {sum = sum.value}
    local half = p:op("mul", "half_sum", f.sum, p:op("const", "half_f", 0.5))
    local base = p:op("blend", "base", p:op("is_less", "outweighs", half, most), p:op("zero", "no_base"), of_most)
    base = f.on and p:op("mul", "base_on", base, f.on) or base
    local weighed = lanes.total(p, "weighed", cfg.many, true)
    if f.beside or has.rest then
        p:op("fnma", weighed.value, f.beside or rest("rest"), base)
    end
    lanes.pass(p, second, {a.W, d_rows}, function()
        weighed.add(p:op("load", "w_2", p:at(a.W, 0)), p:op("sub", "beyond_2", d(2), base))
    end, a.back)
    local mean = p:op("div", "mean", weighed.value, f.sum)
    mean = f.on and p:op("mul", "mean_on", mean, f.on) or mean
    local by = p:op("div", "by", p:op("bcast", "f", p:at(a.factor, 0)), f.sum)
    by = f.times and p:op("mul", "by_floor", by, f.times) or by
    if has.rest then
        local all = p:op("bit_xor", "minus_mean", p:op("add", "mean_of_d", base, mean), p:const("sign_bit", 0x80000000))
        local others = p:op("mul", "others", by, all)
        p:op("store", p:at(a.stat, row(cfg, 3)), f.others and p:op("mul", "others_floor", others, f.others) or others)
    end
    lanes.pass(p, third, {a.out, a.W, d_rows, has.alone and a.X or nil}, function()
        local w = p:op("mul", "share", p:op("load", "w_3", p:at(a.W, 0)), by)
        if has.alone then
            w = p:op("mul", "slope", w, has.alone.log_slope(p, p:op("load", "x", p:at(a.X, 0))))
        end
        local beyond = p:op("sub", "beyond", p:op("sub", "beyond_3", d(3), base), mean)
        p:op("store", p:at(a.out, 0), p:op("mul", "g", w, beyond))
    end)
    return p
end

-- The gradient of factor * W of lanes.near: out += by the rows X, g by m. d: of the weight.
function back.near(cfg, near)
    local p, a = lanes.tile(cfg, "near", "Gradient of weights among the rows that are near.",
        {{"out", OUT}, {"g", OUT}, {"X", IN}, {"m", IN}, {"d", IN}, {"factor", IN}, {"n", COUNT}, {"back", COUNT}})
    local again = p:count_from("again", a.n)
    local most, sum = p:op("load", "most", p:at(a.m, 0)), lanes.total(p, "sum", cfg.many)
    lanes.pass(p, a.n, {a.X}, function() sum.add(lanes.of_near(p, p:op("load", "x", p:at(a.X, 0)), most, near)) end, a.back)
    local all = p:op("add", "all", sum.value, p:const("one_f", 1.0))
    local d = p:op("mul", "dw", p:op("load", "d_weight", p:at(a.d, 0)), p:op("bcast", "f", p:at(a.factor, 0)))
    local by = p:op("div", "by", d, p:op("mul", "square", all, all))
    p:op("store", p:at(a.g, 0), p:op("mul", "g_chosen", by, sum.value))
    lanes.pass(p, again, {a.out, a.X}, function()
        local g = p:op("load", "g_of_row", p:at(a.out, 0))
        p:op("fnma", g, lanes.of_near(p, p:op("load", "x", p:at(a.X, 0)), most, near), by)
        p:op("store", p:at(a.out, 0), g)
    end)
    return p
end

-- out *= W.
function back.times(cfg)
    local p, a = lanes.tile(cfg, "times", "Products of rows.", {{"out", OUT}, {"W", IN}, {"n", COUNT}})
    lanes.pass(p, a.n, {a.out, a.W}, function()
        p:op("store", p:at(a.out, 0), p:op("mul", "product", p:op("load", "x", p:at(a.out, 0)), p:op("load", "w", p:at(a.W, 0))))
    end)
    return p
end

-- out = W * c, add: out += W * c; c is a row.
function back.spread(cfg, name, add)
    local p, a = lanes.tile(cfg, name, "Rows times a factor of each lane.", {{"out", OUT}, {"W", IN}, {"c", IN}, {"n", COUNT}})
    local c = p:op("load", "factor", p:at(a.c, 0))
    lanes.pass(p, a.n, {a.out, a.W}, function()
        local g = add and p:op("load", "g", p:at(a.out, 0)) or p:op("zero", "g")
        p:op("fma", g, p:op("load", "w", p:at(a.W, 0)), c)
        p:op("store", p:at(a.out, 0), g)
    end)
    return p
end

return back
