-- SPDX-License-Identifier: Apache-2.0
-- integers.lua - columns of a panel quantised to signed integers of 8 bits, and sums of their products scaled back to f32.
--
-- Of a column the number of largest magnitude becomes 127 or -127: its scale is that divided by 127, but a normal number, so that its
-- inverse is finite. A column with a NaN or an infinity has the scale NaN, and any integers.
local ir = require "ir"
local over_rows = require "tiles.over_rows"

local integers = {}

-- Largest magnitude of n * group rows of a vector of columns; src moves on.
local function largest(p, src, n, how, width)
    local magnitude = p:op("const", "magnitude", 0x7fffffff)
    local peak = p:op("zero", "peak")
    p:loop(p:count_from("first", n), function()
        for g = 0, how.group - 1 do
            local size = p:op("bit_and", p:named("size_%d", g), p:op("load", p:named("x_%d", g), p:at(src, g * width)), magnitude)
            p:op("move", peak, p:op("int_max", p:named("peak_%d", g), peak, size))   -- NaNs are larger than any number
        end
        p:advance(src, how.group * width)
    end, "words")
    return peak
end

-- What sums of products have too much: 2^how.offset times the sum of the integers, negated.
local function store_too_much(p, at, sum, how)
    local flipped = p:op("bit_xor", sum.name .. "_flipped", sum, p:op("const", sum.name .. "_ones", 0xffffffff))
    local less = p:op("int_add", sum.name .. "_less", flipped, p:op("const", sum.name .. "_last", 1))
    p:op("store", at, p:op("shl", sum.name .. "_too_much", less, how.offset))
end

-- A vector of columns, n words down: dst = words of integers, then the row of scales and that of what the sums of their products have too
-- much. src and `again` are the same numbers, f32. how: of micro.integers; if it has `run`, there are `runs` runs (pairs, with a gap), each
-- with a row of what is too much, from `sums` on: see runs.lua
function integers.encode(cfg, how)
    local width = cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "encode", {"Words of integers from columns of numbers, and their scales."})
    p.hoists = 0
    local dst, src = p:pointer("dst", "float", "WIDTH"), p:pointer("src", "const float", "WIDTH")
    local again, n = p:pointer("again", "const float", "WIDTH"), p:integer("n")
    local runs, sums = how.run and p:integer("runs"), how.run and how.offset and p:pointer("sums", "float", "WIDTH")
    local peak = largest(p, src, n, how, width)
    local scale = p:op("max", "scale", p:op("const", "least", 2.0 ^ -126), p:op("div", "quotient", peak, p:op("const", "most", 127.0)))
    local inverse = p:op("div", "inverse", p:op("const", "one", 1.0), scale)
    local mask = p:op("const", "element", (1 << how.bits) - 1)
    -- So many words; returns their sum.
    local function words(count, name)
        local sum = how.offset and p:op("zero", name)
        p:loop(count, function()
            local word
            for g = 0, how.group - 1 do
                local x = p:op("mul", p:named("y_%d", g) .. "_scaled", p:op("load", p:named("y_%d", g), p:at(again, g * width)), inverse)
                local q = p:op("to_int", p:named("q_%d", g), x)
                if sum then
                    p:op("move", sum, p:op("int_add", p:named("sum_%d", g), sum, q))
                end
                local tag = p:named("code_%d", g)
                q = p:op("bit_and", tag, q, mask)
                word = word and p:op("bit_or", p:named("word_%d", g), word, p:op("shl", tag .. "_up", q, g * how.bits)) or q
            end
            p:op("store", p:at(dst, 0), word)
            p:advance(again, how.group * width)
            p:advance(dst, width)
        end, "words")
        return sum
    end
    local sum = not how.run and words(n, "sum")
    if how.run then
        p:loop(runs, function()
            local of_run = words(p:count_from("left", how.run), "sum")
            if sums then
                store_too_much(p, p:at(sums, 0), of_run, how)
                p:advance(sums, width)
            end
            if how.gap then
                p:loop(p:count_from("empty", how.gap), function()
                    p:op("store", p:at(dst, 0), p:op("zero", "nothing"))
                    p:advance(dst, width)
                end, "rows of zeros")
                words(p:count_from("second", how.run), "sum_2")
            end
        end, "runs")
    end
    p:op("store", p:at(dst, 0), p:op("add", "scale_or_nan", scale, p:op("sub", "none", scale, scale)))
    if sum then
        store_too_much(p, p:at(dst, width), sum, how)
    end
    return p
end

-- Rows of integer sums of a panel as numbers: times the scales of their columns, then each row's. of: the columns' scales and what sums
-- have too much, as encode gives them
function integers.scaled(cfg, how)
    local p = ir.program(cfg.isa, cfg.prefix .. "scale_sums", {"Rows of integer sums as numbers."})
    local S, scale = p:pointer("S", "float", "WIDTH LANES"), p:pointer("scale", "const float")
    local of, n = p:pointer("of", "const float", "WIDTH LANES"), p:integer("n")
    local columns = over_rows.load(p, cfg, "column_", of)
    local too_much = how.offset and over_rows.load(p, cfg, "too_much_", of, 1)
    over_rows.each(p, cfg, n, {S, {scale, 1}}, function(tag, at, v)
        local sum = p:op("load", "sum" .. tag, p:at(S, at))
        sum = too_much and p:op("int_add", "exact" .. tag, sum, too_much[v]) or sum
        local x = p:op("mul", "of_column" .. tag, p:op("to_float", "number" .. tag, sum), columns[v])
        p:op("store", p:at(S, at), p:op("mul", "scaled" .. tag, x, p:op("bcast", "scale" .. tag, p:at(scale, 0))))
    end)
    return p
end

return integers
