-- SPDX-License-Identifier: Apache-2.0
-- along_rows.lua - tiles around those of along.lua: tokens as rows, scales of rows in f32, and sums of what lanes hold.
local along = require "tiles.along"
local ir = require "ir"
local quantise = require "tiles.quantise"
local rows = require "tiles.rows"

local along_rows = {}

-- The sums of the lanes of each of LANES vectors, get(i), as a vector.
local function folded(p, get)
    local function pair(name, even, odd, a, b)
        return p:op("add", name, p:op(even, name .. "_" .. even, a, b), p:op(odd, name .. "_" .. odd, a, b))
    end
    local function fold(first, n)
        if n == 1 then
            return get(first)
        end
        local a, b, name = fold(first, n // 2), fold(first + n // 2, n // 2), ("sum_%d_%d"):format(first, n)
        if n == 2 then
            return pair(name, "unpack_low", "unpack_high", a, b)
        elseif n == 4 then
            return pair(name, "halves_low", "halves_high", a, b)
        end
        return pair(name, "groups_even", "groups_odd", a, b)
    end
    return fold(0, p.isa.lanes)
end

function along_rows.fold(cfg)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "fold", {"sums = lanes of parts, for n vectors of a token's rows."})
    local sums, parts, n = p:pointer("sums", "float", "SLAB LANES"), p:pointer("parts", "const float"), p:integer("n")
    p:loop(n, function()
        local x = folded(p, function(i) return p:op("load", "part_" .. i, p:at(parts, i * lanes)) end)
        p:op("store", p:at(sums, 0), x)
        p:advance(sums, lanes)
        p:advance(parts, lanes * lanes)
    end, "vectors of rows")
    return p
end

-- n units of LANES columns of a panel, as words of their rows; of pairs that codes are multiplied by, both elements in f32.
function along_rows.lines(cfg, has)
    local lanes, width = cfg.isa.lanes, cfg.vectors * cfg.isa.lanes
    local unit, splits = along.unit(cfg, has.coded), has.coded and cfg.product.group > 1
    local p = ir.program(cfg.isa, cfg.prefix .. "lines", {("n * %d rows of columns of a panel, as rows."):format(unit.elements)})
    local T, S, n = p:pointer("T", "float", "LINE LANES"), p:pointer("S", "const float", "WIDTH LANES"), p:integer("n")
    local split = splits and quantise.split(p, cfg.dtype)
    local in_turn = splits and unit.run == 1   -- pairs become neighbours again
    local each = splits and 2 or 1             -- elements of a word, and vectors that become of a square
    local function word(l)
        return in_turn and l // 4 * 2 + l % 2 + (l % 4 >= 2 and lanes // 2 or 0) or unit.of_lane(l) // each
    end
    local function square()
        rows.transposed(p, function(i)
            return p:op("load", "row_" .. i, p:at(S, word(i) * width))
        end, function(c, x)
            if not splits then
                return p:op("store", p:at(T, c * has.line), x)
            end
            local low, high = split("x_" .. c, x)
            if in_turn then
                low, high = p:op("unpack_low", "x_low_" .. c, low, high), p:op("unpack_high", "x_up_" .. c, low, high)
            end
            p:op("store", p:at(T, c * has.line), low)
            p:op("store", p:at(T, c * has.line + lanes), high)
        end)
    end
    -- Squares of a unit, some at a time, which are equally far from each other.
    local function row_of(s)
        return unit.of_vector(s * each) // each
    end
    local squares, some, step = unit.vectors // each, 1, row_of(1)
    while some < squares and row_of(some) == some * step do
        some = some + 1
    end
    local function few(count)
        p:loop(p:count_from("left", count), function()
            square()
            p:advance(S, step * width)
            p:advance(T, each * lanes)
        end, "squares")
    end
    local times = squares // some
    local over = times > 1 and row_of(some) - some * step or 0
    p:loop(n, function()
        if times > 1 then
            p:loop(p:count_from("times", times), function()
                few(some)
                p:advance(S, over * width)
            end, "groups of squares")
        else
            few(some)
        end
        local rest = unit.words // each - times * (some * step + over)
        if rest > 0 then
            p:advance(S, rest * width)
        end
    end, "units of K")
    return p
end

return along_rows
