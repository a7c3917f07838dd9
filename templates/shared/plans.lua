-- SPDX-License-Identifier: Apache-2.0
-- plans.lua - small things that the plans of all families need.
local plans = {}

function plans.round_up(x, n)
    return (x + n - 1) // n * n
end

-- The multiple of 16 floats (a cache line) from n on that is odd: rows so far apart fall into different sets of the caches.
function plans.odd_lines(n)
    return (plans.round_up(n, 16) // 16 | 1) * 16
end

-- The constant of rows of n f32 sums.
function plans.sum_ld(n)
    return {"SUM_LD", plans.odd_lines(n), "floats between rows of sums: an odd number of cache lines"}
end

-- What f32 sums become in combine.c.in: the tensor `output` of dtype dt, by the tile of a name, so many rows (C); nil: its numbers are f32.
function plans.rounded(output, dt, tile, rows)
    return dt.narrow and {output = output, c = dt.c, tile = tile, narrow = plans.convert(dt, "narrow"), rows = rows}
end

-- A number as C text, a float.
function plans.number(x)
    return (("%.9gf"):format(x):gsub("^(-?%d+)f$", "%1.0f"))
end

-- f(expression) that widens or narrows one element in C.
function plans.convert(dt, how)
    return function(x)
        return dt[how] and ("%s(%s)"):format(dt[how], x) or x
    end
end

-- A list of the arguments that are neither nil nor false.
function plans.list(...)
    local list = {}
    for i = 1, select("#", ...) do
        list[#list + 1] = (select(i, ...)) or nil
    end
    return list
end

-- Adds the elements of other lists to a list.
function plans.append(list, ...)
    for _, more in ipairs{...} do
        table.move(more, 1, #more, #list + 1, list)
    end
    return list
end

-- cfg, or another table, with some fields that it has otherwise.
function plans.with(cfg, fields)
    return setmetatable(fields, {__index = cfg})
end

-- Rules {path, holds, sentence} of specs for which `is` holds: others need not obey them.
function plans.where(is, rules)
    local list = {}
    for i, rule in ipairs(rules) do
        list[i] = {rule[1], function(s) return not is(s) or rule[2](s) end, rule[3]}
    end
    return list
end

-- The numbers 1 .. n that are keys of a set.
function plans.members(set, n)
    local list = {}
    for i = 1, n do
        list[#list + 1] = set[i] and i or nil
    end
    return list
end

return plans
