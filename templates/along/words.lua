-- SPDX-License-Identifier: Apache-2.0
-- words.lua - tiles of few tokens beside weights in words of 4 codes (layout `nki`, see codes/words.lua): words are read where they
-- lie, a column in each lane, or in two, and tokens' words of K are broadcast. They take the place of those of tiles.lua.
--
-- A unit is a vector of memory, words of neighbouring columns, which becomes pairs in vectors of two kinds: those of a kind have the same
-- columns in their lanes, and a sum for each token. Sums are of a run of words that share their scales, which multiply them; sums of all
-- of K wait in L1, so that runs of many columns follow each other as memory has them.
local formats = require "tiles.formats"
local ir = require "ir"
local micro = require "tiles.micro"
local plans = require "shared.plans"

local along_words = {}

local TOKENS <const> = 6   -- of a tile of pairs: sums of both kinds, tables and what codes become are in registers

-- Codes of 8 bits: 4 lanes are words of two columns, two pairs each. kinds: of vectors; sum: C, the sum of column c of a unit from those of
-- its lanes, p; tokens: of a tile at most; ahead: words between those at work and those that are fetched.
local function bytes(lanes)
    return {elements = 2 * lanes, vectors = 1, words = lanes, wide = 4 * lanes, pairs = true, looked_up = true, times = 1, columns = lanes,
        of_vector = function() return 0 end, of_lane = function(l) return 2 * l end, place = "i", kinds = 2, tokens = TOKENS, ahead = 32,
        size = 4, step = 2, start = "2 * k", x = "bcast_two", place_of = function() return 0 end,
        scale_of = function(l, kind) return l // 4 * 4 + l % 4 // 2 + 2 * kind end,
        sum = "p[c % 4 / 2 * LANES + c / 4 * 4 + c % 2 * 2] + p[c % 4 / 2 * LANES + c / 4 * 4 + c % 2 * 2 + 1]"}
end

-- Codes of 4 bits: each lane has two pairs of a column, of the even codes of its word and of the odd ones, and so have tokens' words, those
-- of LANES words of K after each other.
local function nibbles(lanes)
    return {elements = 4 * lanes, vectors = 2, words = 2 * lanes, wide = 4 * lanes, pairs = true, looked_up = true, times = 2, apart = 1,
        columns = 2 * lanes, of_vector = function() return 0 end, of_lane = function(l) return 4 * l end,
        kinds = 2, tokens = TOKENS, ahead = 32,
        place = "(i % 2 * LANES + i / 4) * 2 + i / 2 % 2",
        size = 2, step = 1, start = "k / LANES * (2 * LANES) + k % LANES", x = "bcast",
        place_of = function(v) return v // 2 * lanes end, sum = "p[c / 4 % 2 * LANES + c / 8 * 4 + c % 4]"}
end

-- As f32, where tokens' rows have elements as they come. Of codes of 8 bits a vector is words of two columns, decoded one by one; of codes
-- of 4 bits it is one code of a word of each column. chains: sums of a kind side by side, so that few tokens' do not wait for each other.
-- Rows of words that are a power of two apart, as those of H and I 2048, fall into the same sets of L2: on Zen 3 a token takes 0.63 to 0.70
-- of the time with 16 of them ahead, of H and I 1536 as much time as with 32.
local function numbers(lanes, bits)
    local unit = {elements = 4 * lanes, vectors = 4, words = 4 * lanes, wide = 4 * lanes, times = 1, place = "i", step = 4, start = "4 * k",
        ahead = 16, of_vector = function(v) return v * lanes end, of_lane = function(l) return l end}
    local function also(more)
        return setmetatable(more, {__index = unit})
    end
    return bits == 4 and also{looked_up = true, columns = 2 * lanes, size = 2, x = "bcast", kinds = 2, tokens = lanes // 2,
            chains = function(tokens) return tokens <= 2 and 2 or 1 end, sum = "p[c / 4 % 2 * LANES + c / 8 * 4 + c % 4]"}
        or also{columns = lanes, size = 4, x = "bcast_four", kinds = 4, tokens = lanes // 4,
            groups = true, sum = "(p[c / 2 * LANES + c % 2 * 4] + p[c / 2 * LANES + c % 2 * 4 + 1])"
                .. " + (p[c / 2 * LANES + c % 2 * 4 + 2] + p[c / 2 * LANES + c % 2 * 4 + 3])"}
end

-- The unit, or nil: other tiles multiply these codes.
function along_words.unit(cfg, coded)
    local lanes = cfg.isa.lanes
    if not coded.words then
        return nil
    elseif cfg.product.group == 1 and lanes < 16 then
        local can = coded.bits == 4 and formats.in_pairs(cfg.isa, coded.format) or coded.bits == 8 and cfg.isa.rows.bcast_four
        return can and numbers(lanes, coded.bits) or nil
    elseif lanes ~= 16 or cfg.product.multiply ~= cfg.dtype.dot or not formats.in_pairs(cfg.isa, coded.format) then
        return nil
    end
    return coded.bits == 4 and nibbles(lanes) or bytes(lanes)
end

-- Tables, or nil: which scale a lane has, of codes of 8 bits; what codes are.
function along_words.tables(cfg, coded, unit)
    local lanes, list = cfg.isa.lanes, {}
    if unit.groups then
        return nil
    end
    for kind = 0, unit.scale_of and unit.kinds - 1 or -1 do
        for l = 0, lanes - 1 do
            list[#list + 1] = unit.scale_of(l, kind)
        end
    end
    return plans.append(list, formats.byte_tables(coded.format, lanes))
end

-- Scales of 8 columns, as those of two neighbours each in groups of 4 lanes.
local function by_groups(p, each)
    local function groups(name, op)
        local twice = p:op(op, name .. "_twice", each, each)
        local first, second = p:op("halves_low", name .. "_first", twice, twice), p:op("halves_high", name .. "_second", twice, twice)
        return p:op("groups_even", name .. "_even", first, second), p:op("groups_odd", name .. "_odd", first, second)
    end
    local out = {}
    out[0], out[2] = groups("scales_low", "unpack_low")
    out[1], out[3] = groups("scales_high", "unpack_high")
    return out
end

-- A function that gives the scales of a unit's lanes, of each kind.
local function scales_of(p, unit, scales, tables)
    local lanes, read = p.isa.lanes, formats.scale_rows.u8
    if unit.groups then
        return function() return by_groups(p, read(p, "scales_each", p:at(scales, 0))) end
    elseif not unit.scale_of then
        return function()
            local low, high = read(p, "scales_low", p:at(scales, 0)), read(p, "scales_high", p:at(scales, lanes))
            return {[0] = p:op("groups_even", "scale_0", low, high), p:op("groups_odd", "scale_1", low, high)}
        end
    end
    local spread = {}
    for kind = 0, unit.kinds - 1 do
        spread[kind] = p:op("load", "spread_" .. kind, p:at(tables, kind * lanes))
    end
    return function()
        local each, out = read(p, "scales_each", p:at(scales, 0)), {}
        for kind = 0, unit.kinds - 1 do
            out[kind] = p:op("lookup", "scale_" .. kind, spread[kind], each)
        end
        return out
    end
end

-- What multiplies a vector of memory: (sum, place). sum(token, kind, i): the one for elements i of words; X: tokens' words; table_at: see
-- formats.pairs_of. Pairs are multiplied as they are decoded.
local function pairs_step(p, cfg, t, table_at)
    local unit, read = t.unit, formats.pairs_of(p, t.format, table_at)
    return function(sum, place)
        local w = read("w", place(0))
        for v = 0, unit.kinds * unit.vectors - 1 do
            for token = 0, t.tokens - 1 do
                p:row(token)
                local name = p:named("x_%d_%d", token, v)
                local x = p:op(unit.x, name, p:at(t.X, token * t.line + unit.place_of(v)))
                p:op(cfg.product.multiply, sum(token, v % unit.kinds, 0), w[v], x)
            end
        end
        p:row(nil)
    end
end

-- The same of numbers: of codes of 4 bits even ones of a word first, then odd ones.
local function numbers_step(p, t, table_at)
    local unit = t.unit
    local function multiply(sum, w, i)   -- w: of each kind
        for token = 0, t.tokens - 1 do
            p:row(token)
            local x = p:op(unit.x, p:named("x_%d_%d", token, i), p:at(t.X, token * t.line + i))
            for kind = 0, unit.kinds - 1 do
                p:op("fma", sum(token, kind, i), w[kind], x)
            end
        end
        p:row(nil)
    end
    if not unit.looked_up then
        return function(sum, place)
            local x = {}
            for token = 0, t.tokens - 1 do
                p:row(token)
                x[token] = p:op(unit.x, p:named("x_%d", token), p:at(t.X, token * t.line))
            end
            for kind = 0, unit.kinds - 1 do
                p:row(nil)
                local w = t.format.decode(p, p:named("w_%d", kind), place(kind * p.isa.lanes))
                for token = 0, t.tokens - 1 do
                    p:row(token)
                    p:op("fma", sum(token, kind, 0), w, x[token])
                end
            end
            p:row(nil)
        end
    end
    local read = formats.pairs_of(p, t.format, table_at)
    return function(sum, place)
        for half = 0, 1 do
            local w, upper = read(p:named("w_%d", half), place(0), half), p:const("upper_half", 0xffff0000)
            local low, high = {}, {}
            for kind = 0, unit.kinds - 1 do
                local pairs_of = w[2 * half + kind]
                low[kind] = p:op("shl", pairs_of.name .. "_low", pairs_of, 16)
                high[kind] = p:op("bit_and", pairs_of.name .. "_high", pairs_of, upper)
            end
            multiply(sum, low, half)
            multiply(sum, high, half + 2)
        end
    end
end

-- parts[units][tokens][kinds] += scales * (W * X over a run of words), for n units of columns side by side. Its rows lie ld bytes apart;
-- those `ahead` are fetched. over: from a unit's sums to the next one's; back, x_back: from the end of its words to the next ones.
-- Likewise for some strips of as many units each: W_leap and s_leap lead from the end of one to the next.
function along_words.tile(cfg, tokens, has)
    local lanes, unit, line, f = cfg.isa.lanes, has.unit, has.line, has.coded.format
    local p = ir.program(cfg.isa, ("%swords_%d"):format(cfg.prefix, tokens),
        {("parts[n units][%d tokens] += scales * (W * X) of a run of words, columns in lanes; fetches those `ahead`."):format(tokens)})
    local parts, X = p:pointer("parts", "float", "LANES"), p:pointer("X", "const float", "LINE LANES")
    local W, scales = p:pointer("W", "const uint8_t"), p:pointer("scales", "const uint8_t")
    local tables = has.tables and p:pointer("tables", "const float")
    local n, run, ld, ahead = p:amount("n"), p:amount("run"), p:integer("ld"), p:integer("ahead")
    local over, back, x_back = p:integer("over"), p:integer("back"), p:integer("x_back")
    local strips, W_leap = p:integer("strips"), unit.groups and p:amount("W_leap") or p:integer("W_leap")
    local s_leap = p:integer("s_leap")
    local first, kinds = unit.scale_of and unit.kinds or 0, unit.kinds
    local t = {unit = unit, tokens = tokens, line = line, format = f, X = X}
    local function table_at(i) return p:at(tables, (first + i) * lanes) end
    local multiply = unit.pairs and pairs_step(p, cfg, t, table_at) or numbers_step(p, t, table_at)
    local scale = scales_of(p, unit, scales, tables)
    local function units()
        local sums = {}   -- of chains
        for i = 1, unit.chains and unit.chains(tokens) or 1 do
            sums[i] = micro.zeros(p, tokens, kinds, i > 1 and "sum_" .. i or "sum")
        end
        p:loop(p:count_from("words", run), function()
            p:op("prefetch_1", p:at(W, 0, ahead))
            multiply(function(token, kind, i) return sums[i % #sums + 1][token][kind] end, function(at) return p:at(W, at) end)
            p:advance(W, ld)
            p:advance(X, unit.step)
        end, "words of a run")
        local factor = scale()
        for token = 0, tokens - 1 do
            p:row(token)
            for kind = 0, kinds - 1 do
                local at, tag, sum = p:at(parts, (token * kinds + kind) * lanes), p:named("%d_%d", token, kind), sums[1][token][kind]
                for i = 2, #sums do
                    sum = p:op("add", "sum_" .. tag .. "_all", sum, sums[i][token][kind])
                end
                if not unit.looked_up and f.unit then
                    sum = p:op("mul", "exact_" .. tag, sum, p:const("unit", f.unit))
                end
                local all = p:op("load", "all_" .. tag, at)
                p:op("fma", all, factor[kind], sum)
                p:op("store", at, all)
            end
        end
        p:row(nil)
        p:advance(parts, over)
        p:advance(W, back)
        p:advance(X, x_back)
        p:advance(scales, unit.columns)
    end
    p:loop(strips, function()
        p:loop(p:count_from("left", n), units, "units of columns")
        p:advance(W, unit.groups and p:count_from("to_next", W_leap) or W_leap)   -- without tables more parameters are in registers
        p:advance(scales, s_leap)
    end, "strips")
    return p
end

return along_words
