-- SPDX-License-Identifier: Apache-2.0
-- coded.lua - the tiles that make numbers of rows of codes, see formats.lua: times their scales, which they share along the row or of which
-- each column has one, or without, if scales multiply sums.
local formats = require "tiles.formats"
local ir = require "ir"
local over_rows = require "tiles.over_rows"
local quantise = require "tiles.quantise"

local coded = {}

-- Elements of two vectors of words, which become of codes that are read together.
function coded.step(plan)
    return 2 * plan.isa.lanes * plan.group
end

-- Codes of a row that the tile takes at a time: whole steps, of elements of two vectors, and whole runs of a scale.
function coded.unit(run, step)
    return math.max(run or step, step)
end

-- ---- as pairs, without scales or times powers of two: exact ----

-- Have codes of 4 bits of the row f tables of words on target isa?
function coded.in_words(isa, f)
    return f.bits == 4 and isa.rows.lookup_words ~= nil and isa.lanes >= 16
end

-- Their table, as words of a vector: the number of a code, whatever the bit above it is.
function coded.word_table(f)
    local words = {}
    for i = 0, 30, 2 do
        words[#words + 1] = formats.word(f, i % 16) >> 16 | formats.word(f, i % 16 + 1) & 0xffff0000
    end
    return words
end

-- Words that look up both codes of a byte, each in the low bits of a half.
local function nibble_words(p, name, at)
    local codes = p:op("load_u8", name .. "_codes", at)
    return p:op("bit_or", name .. "_both", codes, p:op("shl", name .. "_up", codes, 12))
end

local function is_power(x)
    return x == 0 or math.log(math.abs(x), 2) % 1 == 0
end

-- Two numbers that add up to x, each zero or a power of two, or nil.
local function summands(x)
    local power = x == 0 and 0 or 2.0 ^ (math.log(math.abs(x), 2) // 1) * (x < 0 and -1 or 1)   -- no larger than x
    power = is_power(x - power) and power or 2 * power
    if is_power(x - power) then
        return power, x - power
    end
end

-- Lists of those of the codes of a format, by its name, if all have some: scales times them have no more digits than scales.
local summands_of = {}
for name, f in pairs(formats.rows) do
    local first, second = {}, {}
    for i, x in ipairs(f.numbers or {}) do
        first[i], second[i] = summands(x)
    end
    summands_of[name] = f.numbers and #first == #f.numbers and {first, second} or nil
end

-- Vectors that words of 16 codes of f, times a scale, are made of: numbers in f32, and where the upper half of each of them goes, twice.
-- Of two scales: numbers that are positive, for the one and for the other one in turn, where these go, signs, and what leads words of the
-- second half of codes to the second half of words. parts: two lists, and there are two vectors of numbers
local function scaled_tables(f, two, parts)
    local list, halves = {}, {}
    for i = 0, 31 do
        local from = two and i % 8 * 2 + i // 16 or i % 16   -- a number's lane
        halves[i] = 2 * from + 1
        list[i % 16 + 1] = parts and ir.bits(parts[1][i % 16 + 1]) or formats.word(f, two and i % 16 // 2 or i % 16)
    end
    for i = 0, 30, 2 do
        list[#list + 1] = halves[i] | halves[i + 1] << 16
    end
    for i = 0, two and 15 or -1 do
        list[32 + i + 1], list[48 + i + 1] = i // 4 % 2 * 0x80008000, i // 8 * 0x00100010
    end
    for _, x in ipairs(parts and parts[2] or {}) do
        list[#list + 1] = ir.bits(x)
    end
    return list
end

local NIBBLES <const> = 32   -- codes of 4 bits that become a vector of words

-- Where the words of a vector of codes come from, so that those of 128 bits, which are unpacked together, follow each other in the end.
local UNPACKED <const> = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15}

-- How codes of f become pairs on a target: tables, as words, and codes that are read at a time.
function coded.unscaled_by(isa, f)
    if coded.in_words(isa, f) then
        return {tables = coded.word_table(f), codes = NIBBLES, nibbles = true}
    elseif f.bits ~= 4 and formats.in_pairs(isa, f) then
        local tables = {table.unpack(UNPACKED)}
        return {tables = table.move(formats.byte_tables(f), 1, 64, 17, tables), codes = 64, bytes = true}
    end
    return {tables = f.number and formats.tables(isa.lanes, f), codes = 2 * isa.lanes}
end

-- f(name, place) -> list of vectors of pairs, in the order of codes; place(i): i bytes on. Or it stores them itself, at `to`.
local function pairs_of(p, cfg, f, by, tables)
    local lanes = cfg.isa.lanes
    local function table_at(i) return p:at(tables, i * lanes) end
    if by.nibbles then
        local words = p:op("load", "words", table_at(0))
        return function(name, place)
            return {p:op("lookup_words", name, nibble_words(p, name, place(0)), words)}
        end
    elseif by.bytes then
        local order = p:op("load", "unpacked", table_at(0))
        local read = formats.pairs_of(p, f, function(i) return table_at(i + 1) end, function(name, place)
            return p:op("lookup", name, order, p:op("load_bits", name .. "_raw", place))
        end)
        return function(name, place)
            local x = read(name, place(0))
            return {x[0], x[1]}
        end
    end
    local read = formats.pairs(p, f, tables)
    return function(name, place, to)
        local x = read(name, place)
        quantise.store_pair(p, cfg.dtype, to, x[0], x[1], "store_bits")
        return {}
    end
end

-- Can they be two parts that add up to them, times scales that have as many digits as a word's elements, each of `run` codes?
function coded.has_parts(isa, f, run)
    return summands_of[f.name] ~= nil and coded.in_words(isa, f) and run % NIBBLES == 0
end

function coded.in_parts(f)
    return {tables = scaled_tables(f, false, summands_of[f.name]), codes = NIBBLES, nibbles = true, parts = true}
end

-- The same times scales that are powers of two, each of `run` codes, or nil.
function coded.scaled_by(isa, f, run)
    local by = coded.unscaled_by(isa, f)
    local two = by.nibbles and 2 * run == by.codes   -- runs to a vector
    if two or by.nibbles and run % by.codes == 0 then
        return {tables = scaled_tables(f, two), codes = by.codes, nibbles = true, two = two}
    end
    return by.bytes and run == by.codes // 2 and by or nil
end

-- f(name, place, scales, from) -> list of vectors of pairs times scales, from number `from` on; by.parts: and what is to be added to them.
local function scaled_pairs(p, cfg, f, by, tables)
    local function table_at(i) return p:op("load", p:named("table_%d", i), p:at(tables, i * p.isa.lanes)) end
    if by.nibbles then   -- words are of values times the scale
        local values, halves, rest = table_at(0), table_at(1), by.parts and table_at(2)
        local signs, second, nibbles = by.two and table_at(2), by.two and table_at(3), by.two and p:const("nibbles", 0x000f000f)
        local function words(name, x, scale)
            return p:op("lookup_words", name .. "_words", halves, p:op("mul", name .. "_values", x, scale))
        end
        return function(name, place, scales, from)
            local codes, list = nibble_words(p, name, place(0)), words(name, values, scales[from])
            if by.two then
                list = p:op("bit_or", name .. "_signed", list, signs)
                codes = p:op("bit_or", name .. "_halves", p:op("bit_and", name .. "_nibbles", codes, nibbles), second)
            end
            return {p:op("lookup_words", name, codes, list)},
                rest and {p:op("lookup_words", name .. "_rest", codes, words(name .. "_rest", rest, scales[from]))}
        end
    end
    local mask = p:const("high_half", 0xffff0000)
    local read = pairs_of(p, cfg, f, by, tables)
    return function(name, place, scales, from)
        local list = read(name, place)
        for v, x in ipairs(list) do
            local tag, scale = p:named("%s_%d", name, v), scales[from + v - 1]
            local high = p:op("mul", tag .. "_high", p:op("bit_and", tag .. "_upper", x, mask), scale)
            local low = p:op("mul", tag .. "_low", p:op("shl", tag .. "_lower", x, 16), scale)
            list[v] = p:op("bit_or", tag, p:op("bit_and", tag .. "_top", high, mask), p:op("shr", tag .. "_down", low, 16))
        end
        return list
    end
end

-- Stores vectors of words, the first of element `from` on, to panels of `depth` elements; of so many codes, if they are stored already.
-- rest: what is left of them, for panels that lie `to_rest` after these
local function store_words(p, A, pitch, depth, from, list, codes, rest, to_rest)
    local each = 2 * p.isa.lanes
    for at = from, from + math.max(#list * each, codes or 0) - 1, each do
        local i = (at - from) // each + 1
        if list[1] then
            p:op("store_bits", p:at(A, at % depth), list[i])
        end
        if rest then
            p:op("store_bits", p:at(A, at % depth + to_rest), rest[i])
        end
        if (at + each) % depth == 0 then
            p:advance(A, pitch)
        end
    end
end

-- Some rows of n units, as panels that are `pitch` elements apart, in f32 or in pairs of cfg.dtype; `over`, `back` and `s_over` lead
-- from the end of a row to the next one, of codes, of panels and of scales; codes `ahead` are fetched. has: format (row of
-- formats.lua), read (scale: key of formats.scales; c: its C type), by_columns (each column has one). run: codes that share one; nil: a
-- row's
function coded.rows(cfg, name, has, run)
    local isa, lanes, group = cfg.isa, cfg.isa.lanes, cfg.product.group
    local depth, f = cfg.vectors * lanes * group, has.format
    local unit, bits = coded.unit(run, 2 * lanes * group), f.bits or 8
    local p = ir.program(isa, cfg.prefix .. name, {("Rows of codes as n * %d numbers of each, in %s."):format(unit,
        group > 1 and "pairs" or "f32")})
    local to_dtype = group > 1 and cfg.dtype or nil
    local A = p:pointer("A", to_dtype and to_dtype.c or "float", "K_PANELS*MC*WIDTH")
    local W, scale = p:pointer("W", "const uint8_t"), p:pointer("scale", "const " .. has.read.c)
    local n, rows, pitch = p:integer("n"), p:integer("rows"), p:integer("pitch")
    local over, back, s_over, ahead = p:integer("over"), p:integer("back"), p:integer("s_over"), p:integer("ahead")
    local by = run and has.scaled
    local load_scale = by and by.two and function(_, x, at) return p:op("bcast_two", x, at) end or formats.scales[has.read.scale]
    local tables = (f.number or by) and p:pointer("tables", "const float")
    local scaled, read = by and scaled_pairs(p, cfg, f, by, tables), not by and formats.pairs(p, f, tables)
    local function store(at, x)
        if to_dtype then
            quantise.store_pair(p, to_dtype, p:at(A, at), x[0], x[1], "store_bits")
        else
            p:op("store", p:at(A, at), x[0])
            p:op("store", p:at(A, at + lanes), x[1])
        end
    end
    local function body(whole)
        for i = 0, unit * bits // 8 - 1, 64 do
            p:op("prefetch_1", p:at(W, i, ahead))
        end
        local scales = {}
        for i = 0, run and unit // run - 1 or -1, by and by.two and 2 or 1 do
            scales[i] = load_scale(p, p:named("scale_%d", i), p:at(scale, i))
        end
        for from = 0, unit - 1, by and by.codes or 2 * lanes do
            local function place(i) return p:at(W, from * bits // 8 + i) end
            if by then
                local words, rest = scaled("w_" .. from, place, scales, from // run)
                store_words(p, A, pitch, depth, from, words, nil, rest, cfg.block * cfg.mc * depth)
            else
                local x = read("w_" .. from, place)
                for v = 0, 1 do
                    local i = from + v * lanes
                    local factor = has.by_columns and p:op("load", p:named("scale_%d", i), p:at(scale, i)) or whole or scales[i // run]
                    x[v] = p:op("mul", p:named("x_%d", i), x[v], factor)
                end
                store(from % depth, x)
                if (from + 2 * lanes) % depth == 0 then
                    p:advance(A, pitch)
                end
            end
        end
        p:advance(W, unit * bits // 8)
        if run or has.by_columns then
            p:advance(scale, has.by_columns and unit or unit // run)
        end
    end
    p:loop(rows, function()
        local whole = not run and not has.by_columns and load_scale(p, "whole", p:at(scale, 0))
        p:loop(p:count_from("left", n), function() body(whole) end, "units")
        p:advance(W, over)
        p:advance(A, back)
        p:advance(scale, s_over)
    end, "rows")
    return p
end

-- Some rows of n units of codes as pairs in panels of A, `pitch` elements apart; `over` and `back` lead to the next row, of codes and of A;
-- codes `ahead` are fetched. has: format, unit, unscaled (coded.unscaled_by)
function coded.unscaled(cfg, name, has)
    local f, unit, by = has.format, has.unit, has.unscaled
    local lanes, bits = cfg.isa.lanes, f.bits or 8
    local depth = cfg.vectors * lanes * 2
    local p = ir.program(cfg.isa, cfg.prefix .. name, {("Rows of codes as n * %d pairs of each, without scales."):format(unit // 2)})
    local A, W = p:pointer("A", cfg.dtype.c, ""), p:pointer("W", "const uint8_t")
    local n, rows, pitch = p:integer("n"), p:integer("rows"), p:integer("pitch")
    local over, back, ahead = p:integer("over"), p:integer("back"), p:integer("ahead")
    local read = pairs_of(p, cfg, f, by, by.tables and p:pointer("tables", "const float"))
    over_rows.nested(p, rows, n, {{W, over}, {A, back}}, function()
        for i = 0, unit * bits // 8 - 1, 64 do
            p:op("prefetch_1", p:at(W, i, ahead))
        end
        for from = 0, unit - 1, by.codes do
            store_words(p, A, pitch, depth, from, read("w_" .. from, function(i) return p:at(W, from * bits // 8 + i) end,
                p:at(A, from % depth)), by.codes)
        end
        p:advance(W, unit * bits // 8)
    end, "units")
    return p
end

return coded
