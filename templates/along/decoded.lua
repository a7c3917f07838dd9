-- SPDX-License-Identifier: Apache-2.0
-- decoded.lua - codes times more tokens than tiles.lua has sums for: blocks of some rows are decoded once, to f32 in L1, and multiplied by
-- all tokens, K in lanes.
local along_rows = require "along.rows"
local along_units = require "along.units"
local ir = require "ir"

local decoded = {}

-- Rows that wait in L1, and their words at most: tokens' rows stay there, too. Vectors of a step, which all units are multiples of
local ROWS <const>, WORDS <const>, STEPS <const> = 2, 512, 4

-- Rows of n units of codes as f32 in the order of a unit's words, [LINE] each, times scales of runs; codes `ahead` are fetched. over,
-- s_over: from the end of a row to the next one, of codes and of scales.
function decoded.rows(cfg, has)
    local lanes, unit = cfg.isa.lanes, has.unit
    local each, passed = along_units.scales(has)
    local p = ir.program(cfg.isa, cfg.prefix .. "decode_along", {"Rows of n units of codes as f32, for decoded_N."})
    local T, W, n, rows = p:pointer("T", "float", "LINE LANES"), p:pointer("W", "const uint8_t"), p:amount("n"), p:integer("rows")
    local over, T_over, ahead = p:integer("over"), p:integer("T_over"), p:integer("ahead")
    local scales, s_over = each and p:pointer("scales", "const float"), each and p:integer("s_over")
    local tables = has.tables and p:pointer("tables", "const float")
    local t = {unit = unit, at = function(_, i) return p:at(W, i) end}
    local read, _, nan = along_units.read(p, cfg, t, has.coded.format, tables)
    local scale = along_units.read_scales(p, has, nil, function() return p:at(scales, 0) end, tables)
    p:loop(rows, function()
        if nan then
            nan.start(0)
        end
        p:loop(p:count_from("left", n), function()
            p:op("prefetch_1", p:at(W, 0, ahead))
            local factor = scale and scale(0)
            for i = 0, unit.vectors - 1 do
                local x = read(0, i)
                p:op("store", p:at(T, i * lanes), factor and p:op("mul", p:named("x_%d", i), x, factor) or x)
            end
            p:advance(W, unit.wide)
            p:advance(T, unit.words)
            if each then
                p:advance(scales, passed)
            end
        end, "units of K")
        if nan then   -- what makes of all products of a row NaN
            local last = p:at(T, -lanes)
            p:op("store", last, p:op("add", "last_or_nan", p:op("load", "last", last), nan.found(0)))
        end
        p:advance(W, over)
        p:advance(T, T_over)
        if each then
            p:advance(scales, s_over)
        end
    end, "rows")
    return p
end

-- parts[tokens][2 rows] = W * X of two rows that are decoded, n steps of K, in lanes.
function decoded.tile(cfg, tokens, has)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, ("%sdecoded_%d"):format(cfg.prefix, tokens),
        {("parts[%d tokens][rows] %s W * X over n steps, K in lanes, of decoded rows."):format(tokens, along_rows.becomes(has))})
    local t = {tokens = tokens, rows = ROWS, later = has.later}
    local parts, X = p:pointer("parts", "float", "CHUNK_ROWS*LANES LANES"), p:pointer("X", "const float", "LINE LANES")
    local W, n = p:pointer("W", "const float", "LINE LANES"), p:integer("n")
    t.again = not t.later and p:amount("again")
    local scales = t.later and p:pointer("scales", "const float")
    local function sum(r, token) return p:at(parts, (token * cfg.chunk_rows + r) * lanes) end
    along_rows.begin(p, t, sum)
    p:loop(n, function()
        for i = 0, STEPS - 1 do
            local w = {}
            for r = 0, t.rows - 1 do
                w[r] = p:op("load", p:named("w_%d_%d", r, i), p:at(W, r * has.line + i * lanes))
            end
            for token = 0, tokens - 1 do
                p:row(token)
                local x = p:op("load", p:named("x_%d_%d", token, i), p:at(X, token * has.line + i * lanes))
                for r = 0, t.rows - 1 do
                    p:op("fma", t.acc[r][token], w[r], x)
                end
            end
            p:row(nil)
        end
        p:advance(W, STEPS * lanes)
        p:advance(X, STEPS * lanes)
    end, "steps of K")
    along_rows.finish(p, t, sum, function(r) return p:at(scales, r) end)
    return p
end

-- Tokens of its tile at most: two sums of each, two vectors of weights and one of a token fill the registers. Or 0: codes become f32 in
-- other ways, or registers hold the sums of more tokens, for which codes are decoded anew.
function decoded.tokens(cfg, has)
    local unit = has.unit
    return has.coded and not unit.pairs and not unit.digits and cfg.isa.registers.v < 32 and (cfg.isa.registers.v - 3) // ROWS or 0
end

decoded.ROWS, decoded.WORDS = ROWS, WORDS

return decoded
