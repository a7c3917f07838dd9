-- SPDX-License-Identifier: Apache-2.0
-- units.lua - what tiles of tiles.lua take of a row of weights at a time, how much of it registers hold, and its tables.
local along_scales = require "along.scales"
local coded_tiles = require "tiles.coded"
local digits = require "along.digits"
local dtype = require "dtype"
local formats = require "tiles.formats"
local joined = require "along.joined"
local nibbles = require "along.nibbles"
local quantise = require "tiles.quantise"

local along_units = {}

-- ---- codes of 8 bits by their nibbles ----

-- Of codes of 3 bits of fraction below 4 of exponent the low nibble is what bf16 has above its last 4 bits, and the high one says what
-- comes before, but of numbers below 16 steps, whose words the low nibble says alone. So 3 tables of 16 bytes do, if a vector has no room
-- for those of all codes and only codes of all ones are NaN.
local function by_nibbles(isa, f)
    return f.specials and f.digits == 4 and next(f.specials) == 0x7f and next(f.specials, 0x7f) == nil
        and isa.rows.shuffle_bytes and isa.lanes < 16
end

-- High bytes by high nibbles; high bytes, and low ones but for the nibble, of numbers below 16 steps. As words of vectors.
local function nibble_tables(f, lanes)
    local function byte(which, i)
        local code = which == 1 and (i & 7) << 4 or i
        local word = which == 1 and code == 0 and 0 or formats.word(f, code)
        return which == 3 and word >> 16 & 0xff ~ (i & 15) << 4 or word >> 24 | (which == 1 and (i & 8) << 4 or 0)
    end
    local words = {}
    for which = 1, 3 do
        for i = 0, lanes - 1 do
            local word = 0
            for j = 0, 3 do
                word = word | byte(which, i % 4 * 4 + j) << 8 * j
            end
            words[#words + 1] = word
        end
    end
    return words
end

-- As formats.pairs_of, of codes that have been read: (name, codes) -> list from 0 on.
local function nibble_pairs(p, tables)
    local high, first_high, first_low = p:op("load", "high_bytes", tables(0)), p:op("load", "first_high", tables(1)),
        p:op("load", "first_low", tables(2))
    return function(name, codes)
        local size = p:op("bit_and", name .. "_size", codes, p:const("no_signs", 0x7f7f7f7f))
        local first = p:op("int_add", name .. "_first", size, p:const("sixteen", 0x70707070))   -- its sign: no number below 16 steps
        local low = p:op("bit_and", name .. "_nibble", codes, p:const("nibbles", 0x0f0f0f0f))
        local up = p:op("shr", name .. "_up", p:op("bit_xor", name .. "_rest", codes, low), 4)
        local above = p:op("bit_or", name .. "_above", p:op("shuffle_bytes", name .. "_high", high, up),
            p:op("shuffle_bytes", name .. "_first_high", first_high, first))
        local below = p:op("bit_xor", name .. "_below", p:op("shl", name .. "_low", low, 4),
            p:op("shuffle_bytes", name .. "_first_low", first_low, first))
        return {[0] = p:op("unpack_low_bytes", name .. "_pairs_1", below, above),
            p:op("unpack_high_bytes", name .. "_pairs_2", below, above)}
    end
end

-- As quantise.split of bf16, where registers are too few to keep a constant.
local function parted(p)
    return function(name, x)
        return p:op("shl", name .. "_low", x, 16), p:op("bit_and", name .. "_high", x, p:const("upper_half", 0xffff0000))
    end
end

-- ---- units ----

-- A unit of codes that become pairs, c of them of 128 bits of memory: see formats.pairs_of. apart: every other element makes a pair.
local function unit_of_pairs(lanes, c)
    local halves = c == 32   -- codes of 4 bits: even ones, then odd ones
    local unit = {elements = lanes // 4 * c, vectors = c // 8, wide = 4 * lanes, words = lanes // 8 * c, pairs = true, looked_up = true,
        apart = halves and 1 or nil, times = halves and 2 or 1}
    unit.of_vector = function(v) return halves and v % 2 * 16 or v * 8 end
    unit.of_lane = function(l) return l // 4 * c + l % 4 * (halves and 4 or 2) end
    unit.place = halves and "((i % 2 * 2 + i / 16 % 2) * LANES + i / 32 * 4 + i / 4 % 4) * 2 + i / 2 % 2"
        or "(i / 8 % 2 * LANES + i / 16 * 4 + i / 2 % 4) * 2 + i % 2"
    return unit
end

-- A unit of codes of 8 bits that become pairs, and these two vectors each.
local function unit_of_parted(lanes)
    return {elements = 4 * lanes, vectors = 4, wide = 4 * lanes, words = 4 * lanes, looked_up = true, times = 2,
        of_vector = function(v) return v // 2 * 8 + v % 2 end, of_lane = function(l) return l // 4 * 16 + l % 4 * 2 end,
        place = "(i / 8 % 2 * 2 + i % 2) * LANES + i / 16 * 4 + i / 2 % 4"}
end

-- A unit of codes of 4 bits that become pairs, and these two vectors each: in fewer ops than codes one by one do, if a vector does not hold
-- the numbers of all codes.
local function unit_of_parted_nibbles(lanes)
    return {elements = 8 * lanes, vectors = 8, wide = 4 * lanes, words = 8 * lanes, looked_up = true, times = 4, in_halves = true,
        of_vector = function(v) return v // 4 + v // 2 % 2 * 16 + v % 2 * 2 end, of_lane = function(l) return l // 4 * 32 + l % 4 * 4 end,
        place = "(i % 2 * 4 + i / 16 % 2 * 2 + i / 2 % 2) * LANES + i / 32 * 4 + i / 4 % 4"}
end

-- What tiles take at a time. elements: of K; vectors: of words; wide: elements of the type that W points to; looked_up:
-- by bytes of codes; in_words: by words of codes; pairs: these become words; apart: of elements that are so many words from each other;
-- times: so many vectors after each other begin equally far apart, and then as many again; in_halves: even codes are decoded first, then
-- odd ones; count: vectors of codes side by side, if they are looked up by words, see nibbles.lua; alone: each vector is decoded by itself;
-- joined: see joined.lua; by_nibbles: of codes of 8 bits
local function unit_of(cfg, coded, count)
    local lanes = cfg.isa.lanes
    -- run: neighbours of a lane of memory, of which vector i holds those numbered i
    local function unit(run, vectors, wide)
        return {elements = lanes * vectors, vectors = vectors, wide = wide, words = lanes * vectors, run = run, times = 1,
            of_vector = function(v) return run > 1 and v or v * lanes end, of_lane = function(l) return l * run end,
            place = ("i %% %d * LANES + i / %d"):format(run, run)}
    end
    local pairs_of = cfg.product.multiply == cfg.dtype.dot
    local in_words = coded and pairs_of and coded_tiles.in_words(cfg.isa, coded.format) and (coded.run or 8) % 8 == 0
    if digits.are(cfg, coded, in_words) then
        return digits.unit(lanes, in_words and nibbles.unit(lanes, 1) or unit(8, 8, 4 * lanes))
    elseif in_words then
        return nibbles.unit(lanes, count)
    end
    local c = coded and formats.in_pairs(cfg.isa, coded.format)
    if c and coded.run and coded.run % c > 0 then   -- 4 lanes share a scale
        c = nil
    end
    if c and pairs_of then
        return unit_of_pairs(lanes, c)
    elseif c and coded.bits == 8 and cfg.product.group == 1 then
        return unit_of_parted(lanes)
    elseif c and coded.bits == 4 and cfg.product.group == 1 and lanes < 16 then
        return unit_of_parted_nibbles(lanes)
    elseif coded and cfg.product.group == 1 and by_nibbles(cfg.isa, coded.format) and (coded.run or 32) % 32 == 0 then
        local bytes = unit_of_parted(lanes)
        bytes.by_nibbles = true
        return bytes
    elseif coded and coded.bits == 4 then
        return unit(8, 8, 4 * lanes)
    elseif coded and joined.are(cfg, coded, pairs_of) then
        return joined.unit(lanes)
    elseif coded then
        return setmetatable({alone = true}, {__index = unit(1, 32 // lanes, 32)})
    elseif cfg.product.group > 1 then
        local words = unit(1, 1, cfg.product.group * lanes)
        words.elements = words.wide
        return words
    end
    local run = quantise.per_lane(cfg.dtype)
    return unit(run, run, run * lanes)
end

-- Scales of a unit, if a run of a row shares one: tiles have one for each at least.
local function scales_of(coded, unit)
    return coded and coded.run and math.max(1, unit.elements // coded.run)
end

-- Tables of tiles for codes, or nil: which scale a lane has, what codes are, and which scale a lane has of a single token.
local function tables_of(cfg, has)
    local lanes, coded, unit, one = cfg.isa.lanes, has.coded, has.unit, has.one
    local f, looked_up = coded.format, unit.looked_up or unit.in_words or unit.digits or unit.joined
    local each = scales_of(coded, unit) or 1
    if not (looked_up or f.number and formats.reads_values(f, lanes) or each > 1) then
        return nil
    end
    local list = unit.joined and joined.table(lanes) or unit.digits and digits.table(f) or unit.by_nibbles and nibble_tables(f, lanes)
        or unit.in_words and coded_tiles.word_table(f) or looked_up and formats.byte_tables(f, lanes)
        or f.number and formats.tables(lanes, f) or {}
    local all = table.move(list, looked_up and 1 or 3 * lanes + 1, #list, lanes + 1, along_scales.spread(lanes, unit, each, has.halves))
    if one then
        table.move(along_scales.spread(lanes, one, scales_of(coded, one), has.halves), 1, lanes, #all + 1, all)
    end
    return all
end

-- What all of this file, and tiles.lua, ask: coded (see codes/plan.lua), or nil; unit; one: that of a single token, if it is another one;
-- halves: are scales bf16? tables: of tiles for codes, or nil. contractions: their elements
function along_units.of(cfg, coded, contractions)
    local count = coded and nibbles.side_by_side(cfg.isa.lanes, coded.share == "group" and coded.run, contractions)
    local has = {coded = coded, unit = unit_of(cfg, coded, count)}
    has.one = coded and (has.unit.count or 1) > 1 and unit_of(cfg, coded, 1)
    local each = scales_of(coded, has.one or has.unit)
    has.halves = each and along_scales.halves(cfg.isa, coded, each)
    has.tables = coded and tables_of(cfg, has)
    return has
end

-- The unit of tiles for so many tokens.
function along_units.unit(has, tokens)
    return tokens == 1 and has.one or has.unit
end

-- Scales of a unit, if a run of a row shares one, and floats from these to the next unit's.
function along_units.scales(has, tokens)
    local each = scales_of(has.coded, along_units.unit(has, tokens))
    return each, each and (has.halves and each // 2 or each)
end

-- Codes of which only those of all ones are NaN are looked at as bytes, a vector at a time: twice the largest one is 254 or more. Returns
-- what along_units.read says of NaN; see: (row, codes).
local function nan_codes(p)
    local peak, nan = {}, {}
    function nan.start(r)
        peak[r] = p:op("zero", p:named("peak_%d", r))
    end
    function nan.see(r, codes)
        local twice = p:op("int_add", p:named("twice_%d", r), codes, codes)
        p:op("move", peak[r], p:op("max_bytes", p:named("larger_%d", r), peak[r], twice))
    end
    function nan.found(r)
        local name = p:named("peak_%d", r)
        local code = p:op("bit_and", name .. "_codes", p:op("shr", name .. "_half", peak[r], 1), p:const("all_ones", 0x7f7f7f7f))
        local over = p:op("int_add", name .. "_over", code, p:const("one_more", 0x01010101))
        local some = p:op("to_float", name .. "_some", p:op("bit_and", name .. "_signs", over, p:const("signs", 0x80808080)))
        local huge = p:op("mul", name .. "_huge", some, p:const("huge", 0x1p127))
        return p:op("sub", name .. "_nan", huge, huge)
    end
    return nan
end

-- Vectors of a unit of codes of a row: f(row, i) -> vector, and what comes before that, a step that all rows are better taken through
-- together: f(row, i), or nil; and what sees NaN, or nil: start(row), found(row) -> vector that is added to the row's sums
function along_units.read(p, cfg, t, f, tables)
    local lanes = cfg.isa.lanes
    if t.unit.digits then
        return nil   -- see digits.step
    elseif t.unit.in_words then
        return nibbles.read(p, t, p:at(tables, lanes))
    elseif t.unit.looked_up then
        local function table_at(i) return p:at(tables, (i + 1) * lanes) end
        local nan, x = t.unit.by_nibbles and nan_codes(p) or nil, {}
        local read = nan and nibble_pairs(p, table_at) or formats.pairs_of(p, f, table_at)
        local part = not t.unit.pairs and (nan and parted(p) or quantise.split(p, dtype.bf16))
        local two
        return function(r, i)
            if t.unit.in_halves and i % 4 == 0 then
                x[r] = read(p:named("w_%d_%d", r, i), t.at(r, 0), i // 4)
            elseif i == 0 and nan then
                local codes = p:op("load_bits", p:named("codes_%d", r), t.at(r, 0))
                nan.see(r, codes)
                x[r] = read(p:named("w_%d", r), codes)
            elseif i == 0 then
                x[r] = read(p:named("w_%d", r), t.at(r, 0))
            end
            if not part then
                return x[r][i]
            end
            two = i % 2 == 0 and {part(p:named("w_%d_%d", r, i), x[r][i // 2])} or two
            return two[i % 2 + 1]
        end, nil, nan
    elseif f.number then
        local values = {values = formats.reads_values(f, lanes) and p:op("load", "values", p:at(tables, lanes))}
        local raw
        return function(r, i)
            raw = i == 0 and p:op("load_bits", p:named("codes_%d", r), t.at(r, 0)) or p:op("shr", p:named("codes_%d_%d", r, i), raw, 4)
            return f.number(p, p:named("w_%d_%d", r, i), raw, values)
        end
    end
    local exact = f.unit and p:const("unit", f.unit)
    local function number(name, place)
        local x = f.decode(p, exact and name .. "_small" or name, place)
        return exact and p:op("mul", name, x, exact) or x
    end
    return t.unit.joined and joined.read(p, p:at(tables, lanes), number, t.at) or function(r, i)
        return number(p:named("w_%d_%d", r, i), t.at(r, i * lanes))
    end
end

-- Rows of a tile, and its tokens at most: sums, vectors of each row and of a token are in registers, of codes sums of a unit too; tokens of
-- tiles of twice as many rows, which hide how long each sum takes: 0 at least.
function along_units.shape(cfg, has)
    local registers, unit, coded = cfg.isa.registers.v, has.unit, has.coded
    if coded then
        if unit.digits then
            return digits.shape(registers)
        end
        local tall = unit.in_words and ((registers - 10) // 4 - 1) // (coded.run and 2 or 1) or 0   -- rows of 8 bits: no faster
        return 2, registers // 8 * 3 // 2 - 1, tall
    end
    local height = registers // 8
    return height, (registers - height * unit.vectors - 1 - quantise.registers(cfg.dtype)) // height
end

-- Streams of rows far apart that a tile for so many tokens reads: as many as registers hold the sums of.
function along_units.streams(cfg, has, tokens)
    local unit, coded = has.unit, has.coded
    return (tokens == 1 and not unit.by_nibbles or not coded or cfg.isa.registers.v >= 32 or unit.alone and not coded.run) and 4 or 2
end

-- A function that gives a row's scales of a unit of tiles for so many tokens, or nil: see along_scales.read.
function along_units.read_scales(p, has, tokens, at, tables)
    local each = along_units.scales(has, tokens)
    local last = tokens == 1 and has.one
    return each and along_scales.read(p, each, has.halves, at, tables and p:at(tables, last and 2 * p.isa.lanes or 0))
end

return along_units
