-- SPDX-License-Identifier: Apache-2.0
-- over_rows.lua - loops of programs over vectors side by side, or over rows of a panel's width, cfg.vectors vectors each.
local over_rows = {}

-- body() n times. The pointers (those in a table by an amount of their own) go on by `step` each time, a vector.
function over_rows.vectors(p, n, pointers, body, title, step)
    p:loop(n, function()
        body()
        for _, pointer in ipairs(pointers) do
            p:advance(pointer[1] or pointer, pointer[2] or step or p.isa.lanes)
        end
    end, title or "vectors")
end

-- body() n times for each of some rows. The pointers go on by an amount of their own from the end of a row to the next one.
function over_rows.nested(p, rows, n, pointers, body, title)
    p:loop(rows, function()
        p:loop(p:count_from("left", n), body, title)
        for _, pointer in ipairs(pointers) do
            p:advance(pointer[1], pointer[2])
        end
    end, "rows")
end

-- body(tag, at, v) for each vector v of n rows, from number `first` (0) on: `_v` for names, and where in a row it is. The pointers (those
-- in a table by an amount of their own) follow the rows.
function over_rows.each(p, cfg, n, pointers, body, title, first)
    local lanes = cfg.isa.lanes
    over_rows.vectors(p, n, pointers, function()
        for v = first or 0, cfg.vectors - 1 do
            body("_" .. v, v * lanes, v)
        end
    end, title or "rows", cfg.vectors * lanes)
end

-- The vectors of row i, from 0 on.
function over_rows.load(p, cfg, name, from, i)
    local row, lanes = {}, cfg.isa.lanes
    for v = 0, cfg.vectors - 1 do
        row[v] = p:op("load", name .. v, p:at(from, ((i or 0) * cfg.vectors + v) * lanes))
    end
    return row
end

-- A row `sums` of sums over n rows, of products whose factors term(tag, at, v) gives. add: to what it holds
function over_rows.sum(p, cfg, sums, n, pointers, term, add)
    local acc = add and over_rows.load(p, cfg, "sum_", sums) or {}
    for v = 0, cfg.vectors - 1 do
        acc[v] = acc[v] or p:op("zero", p:named("sum_%d", v))
    end
    over_rows.each(p, cfg, n, pointers, function(tag, at, v)
        p:op("fma", acc[v], term(tag, at, v))
    end)
    for v = 0, cfg.vectors - 1 do
        p:op("store", p:at(sums, v * cfg.isa.lanes), acc[v])
    end
end

return over_rows
