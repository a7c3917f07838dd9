-- SPDX-License-Identifier: Apache-2.0
-- tiles.lua - tiles of products of few tokens in which K lies in lanes: weights are read once where they lie, in memory's order, and
-- sums are added up across lanes in the end.
--
-- Tokens are rows, [LINE] words of each, zeros past K. A unit is what tiles take of a row of weights at a time: as many vectors of
-- words as become of a vector of memory, or two of codes. The unit that K ends in is multiplied from a copy, with zeros.
-- Words of a unit are in the order in which decoding leaves them, and so are the tokens' rows: the word of lane l of vector v begins
-- with element of_vector(v) + of_lane(l), and where element i is, `place` says in C.
--
-- Units: units.lua, and how a lane gets its scale: scales.lua; what is around these tiles, rows of tokens and sums of lanes: rows.lua.
local along_rows = require "along.rows"
local along_units = require "along.units"
local digits = require "along.digits"
local ir = require "ir"
local quantise = require "tiles.quantise"

local along = {}

-- Bytes of a row between codes that streams multiply and those that are fetched: from memory, and then to L1 if they take few ops to
-- decode. Codes on their way from L2 wait beside all of these, and a core's queues hold those of few lines.
local AHEAD <const>, SOON <const> = 4096, 1024

-- acc += W * X over a unit of numbers.
local function number_step(p, cfg, t, read)
    local lanes, w = cfg.isa.lanes, {}
    for r = 0, t.rows - 1 do
        t.fetch(r)
        w[r] = read(p:named("w_%d", r), t.at(r, 0))
    end
    for i = 1, t.unit.vectors do
        for token = 0, t.tokens - 1 do
            p:row(token)
            local x = p:op("load", p:named("x_%d_%d", token, i), p:at(t.X, token * t.line + (i - 1) * lanes))
            for r = 0, t.rows - 1 do
                p:op(cfg.product.multiply, t.acc[r][token], w[r][i], x)
            end
        end
    end
    p:row(nil)
end

-- The same for rows far apart, which are not fetched ahead.
local function far_step(p, cfg, t, read)
    local w, x = {}, {}
    for i = 1, t.unit.vectors do
        for token = 0, t.tokens - 1 do
            p:row(token)
            x[token] = p:op("load", p:named("x_%d_%d", token, i), p:at(t.X, token * t.line + (i - 1) * cfg.isa.lanes))
        end
        for r = 0, t.rows - 1 do
            p:row(nil)
            w[r] = w[r] or read(p:named("w_%d", r), t.at(r, 0))
            for token = 0, t.tokens - 1 do
                p:row(token)
                p:op(cfg.product.multiply, t.acc[r][token], w[r][i], x[token])
            end
        end
        p:row(nil)
    end
end

-- The same of codes: sums of a unit are scaled, if scales are of runs. Of few tokens all rows are multiplied in turn, because each sum
-- waits for what was added to it before, and so that ops of a kind follow each other: CPUs deal these out to their ports more evenly.
local function code_step(p, cfg, t, read, before, scale)
    local lanes, multiply = cfg.isa.lanes, t.unit.pairs and cfg.product.multiply or "fma"
    local sum, x, w = {}, {}, {}
    local fused = not t.in_turn and multiply == "fma" and p.isa.rows.fma_load
    local from_zero = t.unit.pairs or fused and t.unit.in_halves   -- of codes of 4 bits 0.9 of the cycles of a sum that a product begins
    local function token_at(r, token, i, place)
        if not place and (r == 0 or not t.in_turn) then
            x[token] = p:op("load", p:named("x_%d_%d_%d", r, token, i), p:at(t.X, token * t.line + i * lanes))
        end
        return place and p:at(t.X, token * t.line + i * lanes) or x[token]
    end
    local function add(r, i, token)
        local name = scale and i == 0 and p:named("sum_%d_%d", r, token)   -- of a sum that begins
        local reads = fused and (from_zero or not name)   -- the op reads a token's vector
        local y = token_at(r, token, i, reads)
        if name and not from_zero then
            sum[r][token] = p:op("mul", name, w[r], y)
            return
        end
        sum[r][token] = name and p:op("zero", name) or sum[r][token]
        p:op(reads and "fma_load" or multiply, scale and sum[r][token] or t.acc[r][token], w[r], y)
    end
    -- Rows from .. to, vector i
    local function part(from, to, i)
        for r = from, i % t.per_line == 0 and to or from - 1 do
            t.fetch(r, i // t.per_line)
        end
        for r = from, before and to or from - 1 do
            before(r, i)
        end
        for r = from, to do
            w[r] = read(r, i)
        end
        for token = 0, t.tokens - 1 do
            p:row(token)
            for r = from, to do
                add(r, i, token)
            end
        end
        p:row(nil)
    end
    local function scaled(from, to)
        local factors = {}
        for r = from, scale and to or from - 1 do factors[r] = scale(r) end
        for r = from, scale and to or from - 1 do
            for token = 0, t.tokens - 1 do
                p:row(token)
                p:op("fma", t.acc[r][token], factors[r], sum[r][token])
            end
        end
        p:row(nil)
    end
    local last, by_row = t.unit.vectors - 1, t.by_row or t.unit.in_halves   -- by_row: the next row needs the registers of this one's sums
    for r = 0, t.rows - 1 do
        sum[r] = {}
        for i = 0, t.in_turn and -1 or last do
            part(r, r, i)
        end
        if by_row then
            scaled(r, r)
        end
    end
    for i = 0, t.in_turn and last or -1 do
        part(0, t.rows - 1, i)
    end
    if not by_row then
        scaled(0, t.rows - 1)
    end
end

-- A function that multiplies a unit. tables: pointer, or nil; scale_at(r): place of the scales of row r
local function steps(p, cfg, t, has, tables, scale_at)
    if not has.coded then
        local read, step = quantise.vectors(p, cfg), t.fetch and number_step or far_step
        return function() step(p, cfg, t, read) end
    end
    local read, first
    read, first, t.nan = along_units.read(p, cfg, t, has.coded.format, tables)
    local scale = along_units.read_scales(p, has, t.tokens, scale_at, tables)
    return t.unit.digits and digits.step(p, t, p:at(tables, cfg.isa.lanes), scale)
        or function() code_step(p, cfg, t, read, first, scale) end
end

-- Are all rows of codes multiplied in turn? See code_step.
function along.in_turn(has, tokens)
    return has.coded and (tokens <= has.turns or (along_units.unit(has, tokens).count or 1) > 1)
end

-- The tile for so many tokens; tall: of twice as many rows. has: names.along, see plan.lua. Rows of a group lie ld apart, two of them from
-- W on and, ld_2 apart, two from W_2 on; `over`, `back` and `s_over` lead from the end of a group's rows to the next one's, of W, of X and
-- of scales. Fetches lines at `near`, which moves on by `step`, at each unit.
-- has.run: W is packed, `panels` of runs of this length; a row's n units of a panel follow each other, `leap` leads to those in the next
-- one. What lies `ahead` of them is fetched.
function along.tile(cfg, tokens, has, tall)
    local lanes, coded, unit = cfg.isa.lanes, has.coded, along_units.unit(has, tokens)
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, tall and "tall" or "along", tokens),
        {("parts[%d tokens][rows] %s W * X over n units, K in lanes, for groups of rows; fetches weights at `near`."):format(tokens,
            along_rows.becomes(has))})
    local each, passed = along_units.scales(has, tokens)
    local t = {tokens = tokens, rows = has.rows * (tall and 2 or 1), unit = unit, line = has.line,
        in_turn = along.in_turn(has, tokens), later = has.later}
    local c = coded and "const uint8_t" or "const " .. cfg.dtype.c
    local parts = p:pointer("parts", "float", "CHUNK_ROWS*LANES LANES")
    t.X = p:pointer("X", "const float", "LINE LANES")
    local run = has.run
    local W, W_2 = p:pointer("W", c), not run and t.rows > 2 and p:pointer("W_2", c)
    local near, step = not run and p:pointer("near", c), p:integer(run and "ahead" or "step")
    local n, groups = p:amount("n"), p:integer("groups")
    local panels, leap = run and p:integer("panels"), run and p:integer("leap")
    local ld, ld_2 = not run and p:integer("ld"), W_2 and not tall and p:integer("ld_2")
    local over, back = p:integer("over"), p:integer("back")
    t.again = not t.later and p:amount("again")
    local line, lines = 64 // (coded and 1 or cfg.dtype.size), unit.count or 1
    t.per_line = unit.vectors // lines
    t.fetch = function(r, i)
        p:op("prefetch_1", run and p:at(W, r * run, step) or p:at(near, (r * lines + (i or 0)) * line))
    end
    t.at = function(r, i)
        return run and p:at(W, r * run + i) or p:at(r >= 2 and W_2 or W, i, r == 1 and ld or r == 3 and (ld_2 or ld) or nil)
    end
    local scales, s_over = coded and p:pointer("scales", "const float"), each and p:integer("s_over")
    local tables = has.tables and p:pointer("tables", "const float")
    if not coded then
        quantise.crowded(p, cfg.dtype)
    end
    local multiply = steps(p, cfg, t, has, tables, function(r) return p:at(scales, r * has.pitch) end)
    local function next_codes(by)
        p:advance(W, by)
        if W_2 then
            p:advance(W_2, by)
        end
    end
    local function units()
        p:loop(p:count_from("left", n), function()
            multiply()
            next_codes(unit.wide)
            if near then
                p:advance(near, step)
            end
            p:advance(t.X, unit.words)
            if each then
                p:advance(scales, passed)
            end
        end, "units of K")
    end
    local function sum(r, token) return p:at(parts, (token * cfg.chunk_rows + r) * lanes) end
    p:loop(groups, function()
        along_rows.begin(p, t, sum)
        if run then
            p:loop(p:count_from("panels_left", panels), function()
                units()
                p:advance(W, leap)
            end, "panels")
        else
            units()
        end
        along_rows.finish(p, t, sum, function(r) return p:at(scales, r) end)
        p:advance(parts, t.rows * lanes)
        next_codes(over)
        p:advance(t.X, back)
        if coded then
            p:advance(scales, s_over or t.rows)
        end
    end, "groups of rows")
    return p
end

-- Rows 0 and 1 lie at the first of these pointers and so far `apart`, rows 2 and 3 likewise at a second one. Returns a function of
-- (r, i) that gives places, and one that moves on.
local function far_apart(p, rows, name, c, apart, units)
    local first, second = p:pointer(name, c, units), rows > 2 and p:pointer(name .. "_far", c, units)
    local between = p:integer(apart)
    return function(r, i)
        return p:at(r > 1 and second or first, i, r % 2 == 1 and between or nil)
    end, function(by)
        p:advance(first, by)
        if second then
            p:advance(second, by)
        end
    end
end

-- parts[tokens][rows] += W * X over n units, K in lanes, for a row of each quarter of the rows at a time, or of each half. Memory gives
-- long streams faster than a single one that is fetched ahead; codes, which keep a core busy between loads, are fetched ahead of each.
-- `over`, `back` and `s_over` lead from the end of a row to the next one.
function along.streams(cfg, tokens, has)
    local coded, lanes, unit = has.coded, cfg.isa.lanes, along_units.unit(has, tokens)
    local each, passed = along_units.scales(has, tokens)
    local t = {tokens = tokens, rows = along_units.streams(cfg, has, tokens), unit = unit, line = has.line,
        in_turn = unit.in_words or unit.alone and not each, by_row = not unit.in_words, later = has.later}
    local p = ir.program(cfg.isa, ("%squarters_%d"):format(cfg.prefix, tokens),
        {("parts[%d tokens][rows] %s W * X over n units, K in lanes, for a row of %d parts of the rows at a time."):format(tokens,
            along_rows.becomes(has), t.rows)})
    local part, next_parts = far_apart(p, t.rows, "parts", "float", "apart", "CHUNK_ROWS*LANES LANES")
    t.X = p:pointer("X", "const float", "LINE LANES")
    local at, next_codes = far_apart(p, t.rows, "W", coded and "const uint8_t" or "const " .. cfg.dtype.c, "ld")
    t.per_line = unit.vectors // (unit.count or 1)
    t.at, t.fetch = at, coded and function(r, i)
        local on = 64 * (i or 0)
        p:op("prefetch_1", at(r, AHEAD + on))
        if unit.in_words then
            p:op("prefetch_0", at(r, SOON + on))
        end
    end
    local n, rows, over, back = p:amount("n"), p:integer("rows"), p:integer("over"), p:integer("back")
    t.again = not t.later and p:amount("again")
    local scale_at, next_scales, s_over, tables
    if coded then
        scale_at, next_scales = far_apart(p, t.rows, "scales", "const float", "s_apart")
        s_over = each and p:integer("s_over")
        tables = has.tables and p:pointer("tables", "const float")
    end
    local multiply = steps(p, cfg, t, has, tables, scale_at and function(r) return scale_at(r, 0) end)
    local function sum(r, token) return part(r, token * cfg.chunk_rows * lanes) end
    p:loop(rows, function()
        along_rows.begin(p, t, sum)
        p:loop(p:count_from("left", n), function()
            multiply()
            next_codes(unit.wide)
            p:advance(t.X, unit.words)
            if each then
                next_scales(passed)
            end
        end, "units of K")
        along_rows.finish(p, t, sum, scale_at and function(r) return scale_at(r, 0) end)
        next_parts(lanes)
        next_codes(over)
        p:advance(t.X, back)
        if coded then
            next_scales(s_over or 1)
        end
    end, "rows of a part")
    return p
end

return along
