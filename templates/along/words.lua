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

local KINDS <const> = 2
local TOKENS <const> = 6   -- of a tile: sums of both kinds, tables and what codes become are in registers

-- Codes of 8 bits: 4 lanes are words of two columns, two pairs each. sum: C, the sum of column c of a unit from those of its lanes, p.
local function bytes(lanes)
    return {elements = 2 * lanes, vectors = 1, words = lanes, wide = 4 * lanes, pairs = true, looked_up = true, times = 1, columns = lanes,
        of_vector = function() return 0 end, of_lane = function(l) return 2 * l end, place = "i",
        size = 4, step = 2, start = "2 * k", x = "bcast_two", place_of = function() return 0 end,
        scale_of = function(l, kind) return l // 4 * 4 + l % 4 // 2 + 2 * kind end,
        sum = "p[c % 4 / 2 * LANES + c / 4 * 4 + c % 2 * 2] + p[c % 4 / 2 * LANES + c / 4 * 4 + c % 2 * 2 + 1]"}
end

-- Codes of 4 bits: each lane has two pairs of a column, of the even codes of its word and of the odd ones, and so have tokens' words, those
-- of LANES words of K after each other.
local function nibbles(lanes)
    return {elements = 4 * lanes, vectors = 2, words = 2 * lanes, wide = 4 * lanes, pairs = true, looked_up = true, times = 2, apart = 1,
        columns = 2 * lanes, of_vector = function() return 0 end, of_lane = function(l) return 4 * l end,
        place = "(i % 2 * LANES + i / 4) * 2 + i / 2 % 2",
        size = 2, step = 1, start = "k / LANES * (2 * LANES) + k % LANES", x = "bcast",
        place_of = function(v) return v // 2 * lanes end, sum = "p[c / 4 % 2 * LANES + c / 8 * 4 + c % 4]"}
end

-- The unit, or nil: other tiles multiply these codes.
function along_words.unit(cfg, coded)
    local lanes = cfg.isa.lanes
    if not coded.words or lanes ~= 16 or cfg.product.multiply ~= cfg.dtype.dot or not formats.in_pairs(cfg.isa, coded.format) then
        return nil
    end
    return coded.bits == 4 and nibbles(lanes) or bytes(lanes)
end

-- Tables: which scale a lane has, of codes of 8 bits; what codes are.
function along_words.tables(cfg, coded, unit)
    local lanes, list = cfg.isa.lanes, {}
    for kind = 0, unit.scale_of and KINDS - 1 or -1 do
        for l = 0, lanes - 1 do
            list[#list + 1] = unit.scale_of(l, kind)
        end
    end
    return plans.append(list, formats.byte_tables(coded.format, lanes))
end

-- A function that gives the scales of a unit's lanes, of each kind.
local function scales_of(p, unit, scales, tables)
    local lanes, read = p.isa.lanes, formats.scale_rows.u8
    if not unit.scale_of then
        return function()
            local low, high = read(p, "scales_low", p:at(scales, 0)), read(p, "scales_high", p:at(scales, lanes))
            return {[0] = p:op("groups_even", "scale_0", low, high), p:op("groups_odd", "scale_1", low, high)}
        end
    end
    local spread = {}
    for kind = 0, KINDS - 1 do
        spread[kind] = p:op("load", "spread_" .. kind, p:at(tables, kind * lanes))
    end
    return function()
        local each, out = read(p, "scales_each", p:at(scales, 0)), {}
        for kind = 0, KINDS - 1 do
            out[kind] = p:op("lookup", "scale_" .. kind, spread[kind], each)
        end
        return out
    end
end

-- parts[units][tokens][kinds] += scales * (W * X over a run of words), for n units of columns side by side. Its rows lie ld bytes apart;
-- those `ahead` are fetched. over: from a unit's sums to the next one's; back, x_back: from the end of its words to the next ones.
-- Likewise for some strips of as many units each: W_leap and s_leap lead from the end of one to the next.
function along_words.tile(cfg, tokens, has)
    local lanes, unit, line = cfg.isa.lanes, has.unit, has.line
    local p = ir.program(cfg.isa, ("%swords_%d"):format(cfg.prefix, tokens),
        {("parts[n units][%d tokens] += scales * (W * X) of a run of words, columns in lanes; fetches those `ahead`."):format(tokens)})
    local parts, X = p:pointer("parts", "float", "LANES"), p:pointer("X", "const float", "LINE LANES")
    local W, scales = p:pointer("W", "const uint8_t"), p:pointer("scales", "const uint8_t")
    local tables = p:pointer("tables", "const float")
    local n, run, ld, ahead = p:amount("n"), p:amount("run"), p:integer("ld"), p:integer("ahead")
    local over, back, x_back = p:integer("over"), p:integer("back"), p:integer("x_back")
    local strips, W_leap, s_leap = p:integer("strips"), p:integer("W_leap"), p:integer("s_leap")
    local first = unit.scale_of and KINDS or 0
    local read = formats.pairs_of(p, has.coded.format, function(i) return p:at(tables, (first + i) * lanes) end)
    local scale = scales_of(p, unit, scales, tables)
    local function units()
        local sum = micro.zeros(p, tokens, KINDS, "sum")
        p:loop(p:count_from("words", run), function()
            p:op("prefetch_1", p:at(W, 0, ahead))
            local w = read("w", p:at(W, 0))
            for v = 0, KINDS * unit.vectors - 1 do
                for token = 0, tokens - 1 do
                    p:row(token)
                    local name = p:named("x_%d_%d", token, v)
                    local x = p:op(unit.x, name, p:at(X, token * line + unit.place_of(v)))
                    p:op(cfg.product.multiply, sum[token][v % KINDS], w[v], x)
                end
            end
            p:row(nil)
            p:advance(W, ld)
            p:advance(X, unit.step)
        end, "words of a run")
        local factor = scale()
        for token = 0, tokens - 1 do
            p:row(token)
            for kind = 0, KINDS - 1 do
                local at = p:at(parts, (token * KINDS + kind) * lanes)
                local all = p:op("load", p:named("all_%d_%d", token, kind), at)
                p:op("fma", all, factor[kind], sum[token][kind])
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
        p:advance(W, W_leap)
        p:advance(scales, s_leap)
    end, "strips")
    return p
end

along_words.TOKENS = TOKENS

return along_words
