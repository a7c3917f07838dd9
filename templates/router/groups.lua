-- SPDX-License-Identifier: Apache-2.0
-- groups.lua - choosing groups of consecutive experts before their experts: tiles over rows as in lanes.lua.
local lanes = require "router.lanes"

local groups = {}

local IN <const>, OUT <const>, COUNT <const> = lanes.IN, lanes.OUT, lanes.COUNT

-- What experts are chosen by who are in no group that stays.
local fills = {minus_infinity = 0xff800000, zero = 0.0}

-- S = of each of n groups of `size` rows X the sum of the two largest, or the largest: see lanes.key().
function groups.scores(cfg, how, size)
    local p, a = lanes.tile(cfg, "group_scores", "Scores of groups.", {{"S", OUT}, {"X", IN}, {"n", COUNT}})
    local key, lowest = lanes.key(p)
    lanes.pass(p, a.n, {a.S}, function()
        local best, second = p:op("copy", "best", lowest), how == "top2_sum" and p:op("copy", "second", lowest)
        lanes.pass(p, p:count_from("members", size), {a.X}, function()
            local x = key(p:op("load", "rank", p:at(a.X, 0)))
            if second then
                p:op("move", second, p:op("max", "second_now", second, p:op("min", "less", best, x)))
            end
            p:op("move", best, p:op("max", "best_now", best, x))
        end)
        local score = second and p:op("max", "score", p:op("add", "sum", best, second), lowest) or best
        p:op("store", p:at(a.S, 0), score)
    end)
    return p
end

-- R = X, but `fill` in groups after the last that stays: of those with scores less than V, or the same and an index above I.
function groups.fill(cfg, fill, size)
    local p, a = lanes.tile(cfg, "fill_groups", "Rows of groups that stay, and what the others are filled with.",
        {{"R", OUT}, {"X", IN}, {"S", IN}, {"V", IN}, {"I", IN}, {"n", COUNT}})
    local v, i = p:op("load", "last", p:at(a.V, 0)), p:op("to_float", "last_at", p:op("load", "last_int", p:at(a.I, 0)))
    local g, one, none = p:op("zero", "g"), p:op("const", "unit", 1.0), p:op("zero", "none")
    local other = p:op("const", "fill", fills[fill])
    lanes.pass(p, a.n, {a.S}, function()
        local s = p:op("load", "score", p:at(a.S, 0))
        local same = p:op("blend", "among_same", p:op("is_less", "after", i, g), one, none)
        local above = p:op("blend", "not_below", p:op("is_less", "better", v, s), same, one)
        local stays = p:op("blend", "stays", p:op("is_less", "worse", s, v), above, none)
        lanes.pass(p, p:count_from("members", size), {a.X, a.R}, function()
            local mask = p:op("is_less", "is_kept", none, stays)
            p:op("store", p:at(a.R, 0), p:op("blend", "rank", mask, other, p:op("load", "x", p:at(a.X, 0))))
        end)
        p:op("fma", g, one, one)
    end)
    return p
end

return groups
