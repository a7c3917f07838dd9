-- SPDX-License-Identifier: Apache-2.0
-- mx.lua - operands rounded to a microscaling format where they are, as numbers: blocks of elements that share a scale, a power of two,
-- become what decoding their codes would give. Which elements make a block: see codes/quantised.c.in.
--
-- An element times the scale's inverse has some digits to keep, fewer below the format's least exponent: adding and subtracting 1.5
-- times the power of two whose last digit that is rounds it to nearest even. A number of such digits is exact in f32, and in the
-- dtype that it was in.
local ir = require "ir"
local quantise = require "tiles.quantise"

local mx = {}

-- Digits of an element after the first one, least exponent of a normal one, the largest number and its exponent.
mx.formats = {
    mxfp8_e4m3 = {digits = 3, least = -6, largest = 448.0, top = 8},
    mxfp8_e5m2 = {digits = 2, least = -14, largest = 57344.0, top = 15},
}

-- Exponents of a block's largest number and of its scale are so far apart. With one more bit of room (rule `wide`) no element is larger
-- than the format's largest number.
local function distance(how)
    return how.format.top - (how.wide and 1 or 0)
end

-- Constants of a program, in registers. how: format, wide
local function constants(p, how)
    local function power(e)   -- the bits of 2^e
        return 127 + e << 23
    end
    local c = {
        magnitude = p:op("const", "magnitude", 0x7fffffff), exponent = p:op("const", "exponent", 0x7f800000),
        least = p:op("const", "least", power(how.format.least)),
        last = p:op("const", "last_digit", 1.5 * 2.0 ^ (23 - how.format.digits)),
    }
    if not how.wide then
        c.largest = p:op("const", "largest", how.format.largest)
        c.smallest = p:op("const", "smallest", -how.format.largest)
    end
    return c
end

-- The scale and its inverse, of the largest magnitude of a block: 2^-127 at least. A NaN or an infinity in a block becomes NaN; the others
-- need not: what sums over the block is NaN.
local function scales(p, how, c, peak)
    local zero = p:op("zero", "zero")
    local down = p:op("const", "distance", -(distance(how) << 23) & 0xffffffff)
    local field = p:op("int_max", "field", p:op("int_add", "field_low", p:op("bit_and", "peak_field", peak, c.exponent), down), zero)
    local flipped = p:op("bit_xor", "flipped", field, c.exponent)
    local inverse = p:op("int_add", "inverse", flipped, p:op("const", "minus_1", 0xff800000))
    return p:op("int_max", "scale", field, p:op("const", "least_scale", 0x00400000)), inverse
end

-- Larger of two magnitudes: NaNs are larger than any number.
local function larger(p, name, a, b)
    return p:op("int_max", name, a, b)
end

local function rounded(p, c, x, scale, inverse)
    local name = x.name
    local v = p:op("mul", name .. "_scaled", x, inverse)
    local power = p:op("int_max", name .. "_power", p:op("bit_and", name .. "_field", v, c.exponent), c.least)
    local shift = p:op("mul", name .. "_shift", power, c.last)
    local q = p:op("sub", name .. "_near", p:op("add", name .. "_shifted", v, shift), shift)
    if c.largest then
        q = p:op("max", name .. "_floored", c.smallest, p:op("min", name .. "_capped", c.largest, q))
    end
    return p:op("mul", name .. "_back", q, scale)
end

-- What a vector in memory holds: elements of a dtype, or words, pairs of bf16 of two rows. parts(p, name, place): its numbers;
-- put(p, place, parts)
function mx.elements(dt)
    return {c = dt.c, words = false,
        parts = function(p, name, at) return {quantise.load(p, dt, name, at)} end,
        put = function(p, at, x) quantise.store_exact(p, dt, at, x[1]) end}
end

mx.words = {c = "float", words = true,
    parts = function(p, name, at, c)
        local x = p:op("load", name, at)
        return {p:op("shl", name .. "_low", x, 16), p:op("bit_and", name .. "_high", x, c.high)}
    end,
    put = function(p, at, x)
        p:op("store", at, p:op("bit_or", x[1].name .. "_word", p:op("shr", x[1].name .. "_bits", x[1], 16), x[2]))
    end}

-- Blocks down n vectors of columns: each is `runs` runs of `rows` rows, which are `ld` apart (ld_to: those at dst); `jump` leads from
-- the end of a run to the next one, `next` from the last one to the next vector. again: src. what: of mx.elements, or words
-- has: ld, ld_to (or parameters); apart: dst has jumps of its own; to: what dst holds, of mx.elements (none: the same)
function mx.down(cfg, name, how, what, has)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Blocks down n vectors of columns, rounded to " .. how.name .. "."})
    p.hoists = 0
    local to = has.to or what
    local dst, src, again = p:pointer("dst", to.c), p:pointer("src", "const " .. what.c), p:pointer("again", "const " .. what.c)
    local n, runs, rows = p:integer("n"), p:integer("runs"), p:integer("rows")
    local ld = has.ld or p:integer("ld")
    local jump, over = p:integer("jump"), p:integer("next")
    local jump_to, over_to = has.apart and p:integer("jump_to") or jump, has.apart and p:integer("next_to") or over
    local ld_to = has.ld_to or ld
    local c = constants(p, how)
    c.high = what.words and p:op("const", "high_half", 0xffff0000)
    p:loop(n, function()
        local peak = p:op("zero", "peak")
        p:loop(p:count_from("first_runs", runs), function()
            p:loop(p:count_from("first_rows", rows), function()
                for i, x in ipairs(what.parts(p, "x", p:at(src, 0), c)) do
                    p:op("move", peak, larger(p, "peak_" .. i, peak, p:op("bit_and", "size_" .. i, x, c.magnitude)))
                end
                p:advance(src, ld)
            end, "rows")
            p:advance(src, jump)
        end, "runs")
        p:advance(src, over)
        local scale, inverse = scales(p, how, c, peak)
        p:loop(p:count_from("left_runs", runs), function()
            p:loop(p:count_from("left_rows", rows), function()
                local x = what.parts(p, "y", p:at(again, 0), c)
                for i = 1, #x do
                    x[i] = rounded(p, c, x[i], scale, inverse)
                end
                to.put(p, p:at(dst, 0), x)
                p:advance(again, ld)
                p:advance(dst, ld_to)
            end, "rows")
            p:advance(again, jump)
            p:advance(dst, jump_to)
        end, "runs")
        p:advance(again, over)
        p:advance(dst, over_to)
    end, "vectors of columns")
    return p
end

-- The largest lane of every `span` lanes, in all of them.
local function across(p, x, span)
    local lanes, step = p.isa.lanes, 0
    local function fold(kind, a, b)
        step = step + 1
        local name = ("fold_%d"):format(step)
        x = larger(p, name, p:op(kind .. a, name .. a, x, x), p:op(kind .. b, name .. b, x, x))
    end
    fold("unpack", "_low", "_high")
    fold("halves", "_low", "_high")
    for _ = 1, span == lanes and lanes // 8 or 1 do   -- 1 for 8 lanes, 2 for 16
        fold("groups", "_even", "_odd")
    end
    if span < lanes then   -- pairs of groups in turns: side by side
        x = p:op("groups_even", "peak_both", p:op("groups_even", "peak_even", x, x), p:op("groups_odd", "peak_odd", x, x))
    end
    return x
end

-- n blocks along the lanes (blocks = lanes / 8 at a time, if they are of runs of 8): vectors at x, those `apart`, twice and 3 times as
-- far. runs: a vector at each of 4 places; else one block has 32 neighbours, `side` of them at each place, as many places as it takes.
function mx.along(cfg, name, how, dt, runs)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. name,
        {("Blocks of %s along n rows, rounded to %s."):format(runs and "runs" or "neighbours", how.name)})
    p.hoists = 0
    local what = mx.elements(dt)
    local dst, src = p:pointer("dst", what.c), p:pointer("src", "const " .. what.c)
    local n, step_to, step = p:integer("n"), p:integer("step_to"), p:integer("step")
    local side = runs and 1 or math.min(cfg.vectors, 32 // lanes)
    local places = runs and 4 or 32 // lanes // side
    local index = {}
    for i = 1, places - 1 do
        index[i] = p:integer("apart_" .. i)
    end
    local c = constants(p, how)
    p:loop(n, function()
        local x, peak = {}, nil
        local function at(base, v)
            return p:at(base, v % side * lanes, index[v // side])
        end
        for v = 0, places * side - 1 do
            x[v] = what.parts(p, "x_" .. v, at(src, v))[1]
            local size = p:op("bit_and", "size_" .. v, x[v], c.magnitude)
            peak = peak and larger(p, "peak_" .. v, peak, size) or size
        end
        local scale, inverse = scales(p, how, c, across(p, peak, runs and 8 or lanes))
        for v = 0, places * side - 1 do
            what.put(p, at(dst, v), {rounded(p, c, x[v], scale, inverse)})
        end
        p:advance(src, step)
        p:advance(dst, step_to)
    end, runs and "vectors of blocks" or "blocks")
    return p
end

return mx
