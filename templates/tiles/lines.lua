-- SPDX-License-Identifier: Apache-2.0
-- lines.lua - register tiles of S += A B for few rows, of weights that are read where they lie, a line of two vectors of columns at a time.
--
-- A line holds 2 * lanes columns: of 16 bits, a cache line. Where pairs are multiplied, those of two rows of weights, unpacked, are two
-- vectors of pairs: of columns 0 .. 3, 8 .. 11, .., and of columns 4 .. 7, 12 .. 15, ... Sums stay in that order until all of K is in them:
-- see panel_rows.in_order.
--
-- Of numbers that are multiplied in f32, a line is two vectors of columns in their order: half as many loads for each product as a tile
-- of one vector has, where no op multiplies by a broadcast word in memory. Rows of weights are often so far apart that lines of a column
-- share a set of L1: where rows of tokens take several tiles, the first one keeps what it decodes of some lines, side by side.
--
-- A single row of tokens waits for memory alone, which is fastest in a few long streams: `streams` reads a row of each quarter of K at a
-- time, and pairs are of rows a quarter of K apart. For a few rows, whose sums and lines L1 cannot hold, `eights` reads 8 rows that follow
-- each other at a time: as many lines as a set of L1 holds, where rows are a power of two long.
--
-- A NEW KIND OF TILE for few tokens takes 2 files: here, its builder, in `tiles`, and when it multiplies and why, in `kinds`; its call, in
-- product/in_lines.c.in. Of single vectors likewise: gemm.lua, product/in_place.c.in.
local dtype = require "dtype"
local heights = require "tiles.heights"
local ir = require "ir"
local micro = require "tiles.micro"
local panel_rows = require "tiles.panel_rows"
local plans = require "shared.plans"

local lines = {}

local EIGHT <const> = 8   -- rows of weights of a step of eights
local FEW <const> = 4     -- rows of tokens of those: sums and the words of a step are in registers

-- Heights of the tiles for up to `most` rows, ascending.
function lines.heights(most)
    local list = {}
    for m = 1, most do
        if m == 1 or m % 2 == 0 or m == most then
            list[#list + 1] = m
        end
    end
    return list
end

-- The two vectors of words of a line of a row, or of a pair of rows.
local function line_of(p, how, dt, B, ld)
    if how.group == 1 then
        return {[0] = how.load(p, dt, "low", p:at(B, 0)), how.load(p, dt, "high", p:at(B, p.isa.lanes))}
    end
    local first, second = p:op("load_bits", "first", p:at(B, 0)), p:op("load_bits", "second", p:at(B, 0, ld))
    return {[0] = p:op("unpack_low_words", "low", first, second), p:op("unpack_high_words", "high", first, second)}
end

-- For some lines of columns, over steps * inner words of K of B; A is words, `row` elements from a token to the next one and `word` from
-- one to the next. The sums of a line are two vectors, `apart` elements apart, those of the next line `along` elements on. Each step
-- fetches as much as it reads from `ahead` on, which goes `pace` elements on, and after `inner` steps `jump` more. A goes `back` and B
-- `over` elements on after a line.
-- Where several tiles multiply what is there, each fetches a part of what comes next: few lines can be on their way from memory at a
-- time, so one tile would wait for them, and memory would be idle while the others multiply.
-- has: name; weights: dtype of what comes next; row, word; units: of S and A, see coordinate.lua; adds: sums of K start at zero, and are
-- added to S
-- kind: name; dtype of B; keeps: what is decoded of B is stored on the way, for tiles `kept`: other rows of tokens need not go to memory's
-- rows again
function lines.tile(cfg, rows, has, kind)
    local lanes, how, dt = cfg.isa.lanes, cfg.product, kind.dtype
    local width, io, soon = cfg.vectors * lanes, "const " .. dt.c, has.weights
    local step = how.group * 2 * lanes   -- elements that it reads
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, kind.name, rows), {
        ("S[%d rows] += A * B for some lines of columns, over steps * inner %s of B as they lie."):format(rows,
            how.group > 1 and "pairs of rows" or "rows")})
    p.hoists = 0   -- the sums need the registers
    local S, A = p:pointer("S", "float", has.units[1]), p:pointer("A", "const float", has.units[2])
    local B, ld = p:pointer("B", io), p:integer("ld")
    local columns, steps, inner = p:integer("columns"), p:amount("steps"), p:amount("inner")
    local ahead, pace, jump = p:pointer("ahead", "const " .. soon.c), p:integer("pace"), p:integer("jump")
    local back, over = p:integer("back"), p:integer("over")
    local apart, along = p:integer("apart"), p:amount("along")
    local to = kind.keeps and p:pointer("to", "float", "WIDTH LANES")
    p:loop(columns, function()
        local function sum(r, v)
            return p:at(S, r * width, v > 0 and apart or nil)
        end
        local acc = micro.zeros(p, rows, 2, "acc", not has.adds and function(it, v, r) return p:op("load", it, sum(r, v)) end or nil)
        local down = p:count_from("down", steps)
        p:loop(down, function()
            local left = p:count_from("left", inner)
            p:loop(left, function()
                for i = 0, step - 1, 64 // soon.size do
                    p:op("prefetch_1", p:at(ahead, i))
                end
                local b = line_of(p, how, dt, B, ld)
                for v = 0, to and 1 or -1 do
                    p:op("store", p:at(to, v * lanes), b[v])
                end
                micro.multiply(p, how, acc, 2, function(r) return p:at(A, r * has.row) end, b)
                if to then
                    p:advance(to, 2 * lanes)
                end
                p:advance(A, has.word)
                for _ = 1, how.group do
                    p:advance(B, ld)
                end
                p:advance(ahead, pace)
            end, "over K")
            p:advance(ahead, jump)
        end)
        micro.put(p, acc, 2, sum, has.adds)
        p:advance(S, p:count_from("next", along))
        p:advance(A, back)
        p:advance(B, over)
    end, "lines")
    return p
end

-- n lines of columns, whose sums S go `along` elements on after each line, for some rows of A, of which a step takes has.words words (1).
-- has: parameters of the tiles below; pairs: of rows of B, {first: number of the first one's pointer; index: what is added to it; ahead:
-- the same, of what is fetched; word: of row r, its place}; soon: elements from what is read to what is fetched to L1, or nil
local function in_steps(p, cfg, rows, has)
    local how, lanes, width = cfg.product, cfg.isa.lanes, cfg.vectors * cfg.isa.lanes
    local function each_row(f)
        for r = 0, rows - 1 do
            p:row(r)
            f(r, r * width)
        end
        p:row(nil)
    end
    local function advance(by)
        for _, b in ipairs(has.B) do
            p:advance(b, by)
        end
    end
    p:loop(has.steps, function()
        local words, acc = {}, {}
        each_row(function(r)
            words[r] = {}
            for i, pair in ipairs(has.pairs) do
                words[r][i] = p:op(how.bcast, p:named("a_%d_%d", i, r), pair.word(r))
            end
        end)
        local left = p:count_from("left", has.n)
        p:loop(left, function()
            each_row(function(r, at)
                acc[r] = {p:op("load", p:named("sum_low_%d", r), p:at(has.S, at)),
                    p:op("load", p:named("sum_high_%d", r), p:at(has.S, at + lanes))}
            end)
            for i, pair in ipairs(has.pairs) do
                local one, other = has.B[pair.first], has.B[pair.first + 1]
                p:op("prefetch_1", p:at(one, 0, pair.ahead))
                p:op("prefetch_1", p:at(other, 0, pair.ahead))
                if has.soon then
                    p:op("prefetch_0", p:at(one, has.soon, pair.index))
                    p:op("prefetch_0", p:at(other, has.soon, pair.index))
                end
                local x = p:op("load_bits", p:named("x_%d", i), p:at(one, 0, pair.index))
                local y = p:op("load_bits", p:named("y_%d", i), p:at(other, 0, pair.index))
                local both = {p:op("unpack_low_words", p:named("low_%d", i), x, y), p:op("unpack_high_words", p:named("high_%d", i), x, y)}
                each_row(function(r)
                    p:op(how.multiply, acc[r][1], words[r][i], both[1])
                    p:op(how.multiply, acc[r][2], words[r][i], both[2])
                end)
            end
            each_row(function(r, at)
                p:op("store", p:at(has.S, at), acc[r][1])
                p:op("store", p:at(has.S, at + lanes), acc[r][2])
            end)
            p:advance(has.S, has.along)
            advance(2 * lanes)
        end, "lines")
        p:advance(has.S, has.back)
        p:advance(has.A, has.words or 1)
        advance(has.over)
    end, "steps")
    return p
end

local function four_pointers(p, cfg)
    local list = {}
    for i = 0, 3 do
        list[i + 1] = p:pointer("B_" .. i, "const " .. cfg.weights.c)
    end
    return list
end

-- For a row of A and n lines of columns, over so many rows of each quarter of B; A is words, those of the second half of K `half` on.
-- Each step reads a line of each quarter, and fetches what lies `ahead` elements on; after n lines B goes `over` elements on, S `back`.
function lines.streams(cfg)
    local p = ir.program(cfg.isa, cfg.prefix .. "streams_1", {"S += A * B for n lines of columns: a row of each quarter of B at a time."})
    local S, A, half = p:pointer("S", "float", "WIDTH LANES"), p:pointer("A", "const float"), p:integer("half")
    local B = four_pointers(p, cfg)
    local rows, n, ahead, over, back = p:integer("rows"), p:amount("n"), p:integer("ahead"), p:integer("over"), p:integer("back")
    local both = {{first = 1, ahead = ahead, word = function() return p:at(A, 0) end},
        {first = 3, ahead = ahead, word = function() return p:at(A, 0, half) end}}
    return in_steps(p, cfg, 1, {S = S, A = A, B = B, steps = rows, n = n, along = cfg.vectors * cfg.isa.lanes, over = over, back = back,
        pairs = both})
end

-- For some tokens, rows of A, and n lines of columns, over so many times 8 rows of B: B_0 .. B_3, and those `four` elements on. The next
-- 8 are fetched, which lie `near` elements on, and `far`. After n lines B goes `over` elements on, S `back`.
local function of_eights(cfg, tokens)
    local p = ir.program(cfg.isa, ("%seights_%d"):format(cfg.prefix, tokens), {
        ("S[%d rows] += A * B for n lines of columns: 8 rows of B at a time."):format(tokens)})
    local S, A = p:pointer("S", "float", "WIDTH LANES"), p:pointer("A", "const float", "STRIDE")
    local B = four_pointers(p, cfg)
    local steps, n, four, near, far = p:integer("steps"), p:amount("n"), p:integer("four"), p:integer("near"), p:integer("far")
    local over, along, back = p:integer("over"), p:integer("along"), p:integer("back")
    local both = {}
    for i = 0, EIGHT // cfg.product.group - 1 do
        both[i + 1] = {first = i % 2 * 2 + 1, index = i > 1 and four or nil, ahead = i > 1 and far or near,
            word = function(r) return p:at(A, r * cfg.stride + i) end}
    end
    return in_steps(p, cfg, tokens, {S = S, A = A, B = B, steps = steps, n = n, along = along, over = over, back = back,
        pairs = both, words = #both, soon = 4 * cfg.isa.lanes})
end

function lines.eights(plan) return plan.direct_rows > FEW and FEW or nil end   -- so many rows of tokens have these

-- The kinds that multiply few tokens, for kinds.lua: rows {tokens at most, kind, why}.
function lines.many(plan)
    return {plan.direct_rows, "lines", "weights are read where they lie: packing them would cost more"}
end

function lines.kinds(plan)
    local few = lines.eights(plan)
    return plans.list({1, "streams", "weights are read once where they lie, in four streams, at memory's speed"},
        few and {few, "eights", "weights are read once where they lie, 8 rows at a time"}, lines.many(plan))
end

-- Heights of tiles that keep what they decode: of the first of several tiles of rows.
function lines.first(all)
    local list = {}
    for _, m in ipairs(all) do
        list[#list + 1] = 2 * m > all[#all] and m or nil
    end
    return list
end

-- Do tiles of so many elements to a word keep what they decode?
function lines.keep(isa, group)
    return group == 1 and not isa.rows.fma_bcast
end

-- The tiles that multiply what those called `name` have kept, in f32: these themselves if weights are f32. c: type of weights
function lines.kept(name, c)
    return c == dtype.f32.c and name or "kept"
end

-- Those that multiply so many rows; has: see lines.tile; first: heights of those that keep lines for the others, or none
function lines.rows(cfg, wanted, has, first)
    local function all(of, name, dt, keeps)
        return heights.tiles(function(_, rows) return lines.tile(cfg, rows, has, {name = name, dtype = dt, keeps = keeps}) end, cfg, of)
    end
    local kept = first and lines.kept(has.name, has.weights.c)
    return plans.append(all(wanted, has.name, has.weights), first and all(first, "keep", has.weights, true) or {},
        kept and kept ~= has.name and all(wanted, kept, dtype.f32) or {})
end

-- What those of rows of tokens have; adds: see lines.tile
function lines.of_rows(cfg, adds)
    return {name = "lines", weights = cfg.weights, row = cfg.stride, word = 1, units = {"DIRECT_SUMS WIDTH LANES", "STRIDE"}, adds = adds}
end

-- The tiles of in_lines.c.in: those that multiply so many rows, and what a single row, or few, are multiplied by.
function lines.tiles(cfg, wanted, few)
    return plans.append(lines.rows(cfg, wanted, lines.of_rows(cfg)), few and heights.tiles(of_eights, cfg, {2, 3, few}) or {},
        {lines.streams(cfg), panel_rows.quarters(cfg), panel_rows.in_order(cfg)})
end

return lines
