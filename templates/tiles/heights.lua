-- SPDX-License-Identifier: Apache-2.0
-- heights.lua - of which heights tiles are needed, and tiles of several heights.
local ir = require "ir"
local plans = require "shared.plans"

local heights = {}

-- Tiles of all these heights (ascending), the tallest first: that is built, the others are it without its last rows. what: of which they
-- have so many, if not rows; what is of one of them follows p:row(number) there
function heights.tiles(build, cfg, list, what)
    local out, most = {}, list[#list]
    what = what or "rows"
    out[1] = most and build(cfg, most)
    for i = #list - 1, 1, -1 do
        local tallest, rows = out[1], list[i]
        local note = tallest.note[1]:gsub("%d+ " .. what, rows .. " " .. what, 1)
        out[#out + 1] = ir.shorter(tallest, rows, (tallest.name:gsub("%d+$", rows)), {note})
    end
    return out
end

-- The same for 1 .. most, of which those are built for whom more of them take other steps: alike(a, b), a < b.
function heights.all(build, cfg, most, what, alike)
    local out, first = {}, 1
    for n = 1, most do
        if n == most or not alike(n, n + 1) then
            local list = {}
            for i = first, n do
                list[#list + 1] = i
            end
            table.move(heights.tiles(build, cfg, list, what), 1, #list, #out + 1, out)
            first = n + 1
        end
    end
    return out
end

-- Rows of both whole tiles and whole vectors: blocks of rows that start at multiples of it need tiles of few heights.
function heights.group(tile_rows, lanes)
    local group = tile_rows
    while group % lanes ~= 0 do
        group = group + tile_rows
    end
    return group
end

-- Heights, ascending, of the tiles that cut more than `few` rows as evenly as pairs of rows can be, see packing.c.in. Of longer cuts
-- come no others.
function heights.packed(most, few)
    local set, list, seen, least <const> = {}, {}, {}, math.min
    for rows = few + 1, few + most * (most + 1) do
        local left, tiles = rows, (rows + most - 1) // most
        local rest = left << 16 | tiles   -- what is left to cut, and into how many: once is enough
        while tiles > 0 and not seen[rest] do
            local m = least(((left + 1) // 2 + tiles - 1) // tiles * 2, most)
            seen[rest], set[m] = true, true
            left, tiles = left - m, tiles - 1
            rest = left << 16 | tiles
        end
    end
    for m = 1, most do
        list[#list + 1] = set[m] and m or nil
    end
    return list
end

-- The heights of tiles that cut n rows, at most `most`, as evenly as possible.
local function cut(n, most, into)
    local tiles = (n + most - 1) // most
    if n > 0 then
        into[n // tiles], into[(n + tiles - 1) // tiles] = true, true
    end
end

-- The same as a list, ascending.
function heights.even(n, most)
    local set = {}
    cut(n, most, set)
    return plans.members(set, most)
end

-- Multiples of `unit` up to `most`.
function heights.steps(most, unit)
    local list = {}
    for m = unit, most, unit do
        list[#list + 1] = m
    end
    return list
end

-- Heights, ascending, of the tiles that blocks of rows need: multiples of `lanes` up to `mc`, and what is left of each of
-- the totals.
function heights.blocks(most, lanes, mc, totals)
    local set = {}
    for n = lanes, mc, lanes do
        for _, total in ipairs(totals) do
            if n <= total then
                cut(n, most, set)
            end
            local rest = total % lanes
            if rest > 0 and n - lanes + rest <= total and n - lanes + rest > 0 then
                cut(n - lanes + rest, most, set)
            end
        end
    end
    return plans.members(set, most)
end

return heights
