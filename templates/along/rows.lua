-- SPDX-License-Identifier: Apache-2.0
-- rows.lua - around the tiles of tiles.lua: tokens as rows, what sums start from and become, sums of lanes.
local ir = require "ir"
local over_rows = require "tiles.over_rows"
local quantise = require "tiles.quantise"
local rows = require "tiles.rows"

local along_rows = {}

-- What products do to parts: see begin().
function along_rows.becomes(has)
    return has.later and "+=" or "= (again: +=)"
end

-- What sums start from, and what becomes of them; sum(r, token): their places, of f32 vectors. `again`, for K that is cut, they go on from
-- what parts hold, so that their bits do not depend on the cut, unless they are scaled in the end, by what scale_at(r) is the place of.
function along_rows.begin(p, t, sum)
    t.acc = {}
    for r = 0, t.rows - 1 do
        t.acc[r] = {}
        for token = 0, t.tokens - 1 do
            p:row(token)
            t.acc[r][token] = p:op("zero", p:named("acc_%d_%d", r, token))
        end
    end
    p:row(nil)
    if t.again then
        p:loop(p:count_from("before", t.again), function()
            for r = 0, t.rows - 1 do
                for token = 0, t.tokens - 1 do
                    p:row(token)
                    p:op("move", t.acc[r][token], p:op("load", p:named("before_%d_%d", r, token), sum(r, token)))
                end
            end
            p:row(nil)
        end, "sums before", true)
    end
    for r = 0, t.nan and t.rows - 1 or -1 do
        t.nan.start(r)
    end
end

function along_rows.finish(p, t, sum, scale_at)
    for r = 0, t.nan and t.rows - 1 or -1 do
        local nan = t.nan.found(r)
        for token = 0, t.tokens - 1 do
            p:row(token)
            t.acc[r][token] = p:op("add", p:named("all_%d_%d", r, token), t.acc[r][token], nan)
        end
        p:row(nil)
    end
    for token = 0, t.tokens - 1 do
        p:row(token)
        for r = 0, t.rows - 1 do
            local at, name = sum(r, token), p:named("_%d_%d", r, token)
            local x = t.later and p:op("load", "before" .. name, at) or t.acc[r][token]
            if t.later then
                p:op("fma", x, p:op("bcast", "scale" .. name, scale_at(r)), t.acc[r][token])
            end
            p:op("store", at, x)
        end
    end
    p:row(nil)
end

-- The sums of the lanes of each of LANES vectors, get(i), as a vector.
local function folded(p, get)
    local function pair(name, even, odd, a, b)
        return p:op("add", name, p:op(even, name .. "_" .. even, a, b), p:op(odd, name .. "_" .. odd, a, b))
    end
    local function fold(first, n)
        if n == 1 then
            return get(first)
        end
        local a, b, name = fold(first, n // 2), fold(first + n // 2, n // 2), p:named("sum_%d_%d", first, n)
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
    local sums, parts, n = p:pointer("sums", "float", "MC LANES"), p:pointer("parts", "const float"), p:integer("n")
    over_rows.vectors(p, n, {sums, {parts, lanes * lanes}}, function()
        local x = folded(p, function(i) return p:op("load", p:named("part_%d", i), p:at(parts, i * lanes)) end)
        p:op("store", p:at(sums, 0), x)
    end, "vectors of rows")
    return p
end

-- All squares of a unit, in the order of its vectors. t: unit; each: vectors that become of a square; words: elements of a row of S;
-- width: of that; T, S: pointers, which move on; rows: of S that are a unit
local function over_unit(p, t, square)
    local unit, S = t.unit, t.S
    local groups = unit.count or 1   -- of vectors, all alike
    local squares, step, passed = unit.vectors // t.each // unit.times // groups, unit.of_vector(t.each) // t.words, 0
    local function to(row)   -- from the end of what was before
        if row ~= passed then
            p:advance(S, (row - passed) * t.width)
        end
        passed = row
    end
    local function group()
        for time = 1, unit.times do
            to(unit.of_vector((time - 1) * squares * t.each) // t.words)
            p:loop(p:count_from("left" .. (time > 1 and "_again" or "") .. (time > 2 and "_" .. time or ""), squares), function()
                square(unit.apart and time - 1)
                p:advance(S, step * t.width)
                p:advance(t.T, t.each * p.isa.lanes)
            end, "squares")
            passed = passed + squares * step
        end
    end
    if groups > 1 then
        local next_one = unit.of_vector(unit.vectors // groups) // t.words
        p:loop(p:count_from("groups", groups), function()
            group()
            to(next_one)
            passed = 0
        end, "groups of vectors")
        passed = groups * next_one
    else
        group()
    end
    to(t.rows)
end

-- n units of LANES columns of a panel, as words of their rows; pairs that codes are multiplied by one by one become both elements in f32.
-- one: unit of a single token, if that is another one
function along_rows.lines(cfg, has, one)
    local lanes, width = cfg.isa.lanes, cfg.pair_width
    local unit, joined = one or has.unit, has.coded and cfg.product.group > 1
    local splits = joined and not unit.pairs
    local p = ir.program(cfg.isa, cfg.prefix .. (one and "line" or "lines"),
        {("n * %d rows of columns of a panel, as rows."):format(unit.elements)})
    local T, S, n = p:pointer("T", "float", "LINE LANES"), p:pointer("S", "const float", cfg.pair_units), p:integer("n")
    local split = splits and quantise.split(p, cfg.dtype)
    local low, high = unit.apart and p:const("low_half", 0xffff), unit.apart and p:const("high_half", 0xffff0000)
    local in_turn = splits and unit.run == 1   -- pairs become neighbours again
    local words = joined and 2 or 1            -- elements of a row of the panel
    local each = splits and 2 or 1             -- vectors that become of a square
    local function row(l)
        return in_turn and l // 4 * 2 + l % 2 + (l % 4 >= 2 and lanes // 2 or 0) or unit.of_lane(l) // words
    end
    -- Row l of a square; of pairs apart the first elements, or the second ones, of two rows.
    local function read(l, half)
        local name = p:named("row_%d", l)
        local x = p:op("load", name, p:at(S, row(l) * width))
        if not half then
            return x
        end
        local y = p:op("load", name .. "_next", p:at(S, (row(l) + unit.apart) * width))
        if half == 0 then
            return p:op("bit_or", name .. "_pairs", p:op("bit_and", name .. "_low", x, low), p:op("shl", name .. "_up", y, 16))
        end
        return p:op("bit_or", name .. "_pairs", p:op("shr", name .. "_down", x, 16), p:op("bit_and", name .. "_high", y, high))
    end
    local function square(half)
        rows.transposed(p, function(l)
            return read(l, half)
        end, function(c, x)
            if not splits then
                return p:op("store", p:at(T, c * has.line), x)
            end
            local first, second = split(p:named("x_%d", c), x)
            if in_turn then
                first, second = p:op("unpack_low", p:named("x_low_%d", c), first, second),
                    p:op("unpack_high", p:named("x_up_%d", c), first, second)
            end
            p:op("store", p:at(T, c * has.line), first)
            p:op("store", p:at(T, c * has.line + lanes), second)
        end)
    end
    p:loop(n, function()
        over_unit(p, {unit = unit, each = each, words = words, width = width, T = T, S = S,
            rows = unit.elements // (has.coded and words or unit.elements // unit.words)}, square)
    end, "units of K")
    return p
end

return along_rows
