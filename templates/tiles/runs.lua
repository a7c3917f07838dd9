-- SPDX-License-Identifier: Apache-2.0
-- runs.lua - products whose weights share a scale in runs along K that multiplies sums: a tile's sums of a run, times each row's scale, are
-- added to S in f32. Of integers codes of 4 bits become integers in panels of A, and sums of a run are exact.
--
-- Tiles take n panels of K; rows of scales are `scale_ld` apart. cfg.product: see micro.lua, and `run`, words of one.
--     offset   codes are multiplied as they lie, 2^offset too large: sums start at what they have too much, a row for each run at `less`
--     gap      a matrix tile has room for two runs of so many words: in panels of B as many rows of zeros lie between the first and the
--              second one. The tile of A serves both: 16 rows of B are the first run and zeros, or zeros and the second one
local amx = require "tiles.amx"
local ir = require "ir"
local micro = require "tiles.micro"
local over_rows = require "tiles.over_rows"

local runs = {}

local ROWS <const> = 4   -- of sums of matrix tiles, in a step of a loop

-- `count` copies of the number x, one after the other, in `span` bits each.
local function repeated(x, span, count)
    local bits = 0
    for i = 0, count - 1 do
        bits = bits | x << i * span
    end
    return bits
end

-- Words of the codes at a place: each code is `bits` wide, the first one low. f: row of formats.lua
local function word(p, how, f, name, at)
    local x = p:op(how.group * f.bits == 16 and "load_u16" or "load_u8", name .. "_codes", at)
    local codes, span = how.group, 32
    while codes > 1 do   -- the upper half of them moves up
        codes, span = codes // 2, span // 2
        local up = p:op("shl", ("%s_up_%d"):format(name, codes), x, span - codes * f.bits)
        local mask = p:const("codes_" .. codes, repeated((1 << codes * f.bits) - 1, span, 32 // span))
        x = p:op("bit_and", ("%s_%d"):format(name, codes), p:op("bit_or", ("%s_both_%d"):format(name, codes), x, up), mask)
    end
    if how.offset then
        return x
    end
    local sign = 1 << how.bits - 1   -- less 2^offset, without a borrow from the next one
    local high = p:op("int_add", name .. "_high", x, p:const("less", repeated(sign - (1 << f.offset), how.bits, how.group)))
    return p:op("bit_xor", name .. "_signed", high, p:const("sign", repeated(sign, how.bits, how.group)))
end

-- Some rows of n units of codes (`unit` of a row: whole runs and panels) as words in panels of A, `pitch` elements apart; `over` and
-- `back` lead to the next row, of codes and of A; codes `ahead` are fetched.
function runs.decode(cfg, f, unit)
    local how, lanes = cfg.product, cfg.isa.lanes
    local depth = cfg.vectors * lanes * how.group
    local p = ir.program(cfg.isa, cfg.prefix .. "decode", {("Rows of codes as n * %d integers of each, in words."):format(unit)})
    local A, W = p:pointer("A", how.element, ""), p:pointer("W", "const uint8_t")
    local n, rows, pitch = p:integer("n"), p:integer("rows"), p:integer("pitch")
    local over, back, ahead = p:integer("over"), p:integer("back"), p:integer("ahead")
    over_rows.nested(p, rows, n, {{W, over}, {A, back}}, function()
        for i = 0, unit * f.bits // 8 - 1, 64 do
            p:op("prefetch_1", p:at(W, i, ahead))
        end
        for from = 0, unit - 1, lanes * how.group do
            p:op("store_bits", p:at(A, from % depth), word(p, how, f, "w_" .. from, p:at(W, from * f.bits // 8)))
            if (from + lanes * how.group) % depth == 0 then
                p:advance(A, pitch)
            end
        end
        p:advance(W, unit * f.bits // 8)
    end, "units")
    return p
end

runs.together = 4   -- whose sums leave matrix tiles before they are added up

-- Words of them.
function runs.words(how)
    return how.gap and runs.together // 2 * amx.unit or runs.together * how.run
end

-- A sum as a number.
local function number(p, how, name, sum)
    return how.element and p:op("to_float", name, sum) or sum
end

-- Steps over `count` * cfg.unroll words; lines at `near` are fetched.
local function steps(p, cfg, t, acc, count)
    p:loop(p:count_from("steps", count), function()
        p:op("prefetch_1", p:at(t.near, 0))
        p:advance(t.near, 16)
        micro.steps(p, cfg.product, acc, t)
    end, "over the words of a run")
end

-- The sums of a run, to which `multiply` adds, times scales: to t.kept, or to S.
local function run(p, cfg, t, multiply)
    local how, lanes, width = cfg.product, cfg.isa.lanes, cfg.vectors * cfg.isa.lanes
    local function start(name, v) return p:op("load", name, p:at(t.less, v * lanes)) end
    local acc = micro.zeros(p, t.rows, t.vectors, "acc", t.less and start)
    multiply(acc)
    for r = 0, t.rows - 1 do
        p:row(r)
        local by = p:op("bcast", p:named("scale_%d", r), p:at(t.scale, r * how.scale_ld))
        for v = 0, t.vectors - 1 do
            local name = ("%d_%d"):format(r, v)
            local sum = t.kept and t.kept[r][v] or p:op("load", "sum_" .. name, p:at(t.S, r * width + v * lanes))
            p:op("fma", sum, number(p, how, "number_" .. name, acc[r][v]), by)
            if not t.kept then
                p:op("store", p:at(t.S, r * width + v * lanes), sum)
            end
        end
    end
    p:row(nil)
    p:advance(t.scale, 1)
    if t.less then
        p:advance(t.less, width)
    end
end

-- t.count rows of codes are fetched.
local function fetch_codes(p, cfg, t)
    p:loop(p:count_from("more", t.count), function()
        for i = 0, cfg.product.bytes - 1, 64 do
            p:op("prefetch_1", p:at(t.codes, i))
        end
        p:advance(t.codes, p:count_from("codes_ld", t.ld))
    end, "rows of codes", true)
end

-- All runs of a group of rows: t.n panels, or runs of several panels.
local function all_runs(p, cfg, t)
    local length, width = cfg.product.run, cfg.vectors * cfg.isa.lanes
    local to_next = (cfg.mc - 1) * width   -- panel of A
    p:loop(p:count_from("down", t.n), function()
        if length < width then
            p:loop(p:count_from("some", width // length), function()
                run(p, cfg, t, function(acc) steps(p, cfg, t, acc, length // cfg.unroll) end)
            end, "runs")
            p:advance(t.A, to_next)
        else
            run(p, cfg, t, function(acc)
                p:loop(p:count_from("panels", length // width), function()
                    steps(p, cfg, t, acc, width // cfg.unroll)
                    p:advance(t.A, to_next)
                end, "panels")
            end)
        end
        fetch_codes(p, cfg, t)
    end, length < width and "panels" or "runs")
end

-- S[rows][WIDTH] += sums of runs times scales, for groups of rows, one after the other: n panels of K, or n runs where these are longer.
-- Lines at `near` are fetched, and after each panel or run `count` rows of codes, `ld` bytes apart: memory is slower than decoding, which
-- would wait for what it fetches. over, up: to the next group's A and scales; back: to B, and to less. Sums that have registers start at
-- zero: where they were loaded from S, a tile took some 30 cycles longer on Zen 4.
function runs.product(cfg, rows, vectors)
    local how, lanes, width = cfg.product, cfg.isa.lanes, cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, vectors == cfg.vectors and "product" or "narrow", rows),
        {("S[%d rows] += A * B, a run at a time, each times its row's scale; fetches lines at `near`, and codes."):format(rows)})
    local t = {rows = rows, vectors = vectors, unroll = cfg.unroll, a_row = width, a_k = 1, b_row = width}
    t.S, t.A = p:pointer("S", "float", "WIDTH LANES"), p:pointer("A", "const float", "WIDTH")
    t.B, t.near = p:pointer("B", "const float", "WIDTH LANES"), p:pointer("near", "const float", "")
    t.scale, t.codes = p:pointer("scale", "const float", ""), p:pointer("codes", "const uint8_t")
    t.less = how.offset and p:pointer("less", "const float", "WIDTH LANES")
    local groups = p:integer("groups")
    t.n, t.count, t.ld = p:amount("n"), p:amount("count"), p:amount("ld")
    local over, back, up = p:amount("over"), p:amount("back"), p:amount("up")
    local less_back = t.less and p:amount("less_back")
    p:loop(groups, function()
        t.kept = how.kept and micro.zeros(p, rows, vectors, "all")
        all_runs(p, cfg, t)
        if t.kept then
            micro.put(p, t.kept, vectors, function(r, v) return p:at(t.S, r * width + v * lanes) end, true)
        end
        for r = 0, rows - 1 do   -- a shorter tile has fewer of them
            p:row(r)
            p:advance(t.S, width)
        end
        p:row(nil)
        p:advance(t.A, p:count_from("A_over", over))
        p:advance(t.B, p:count_from("B_back", back))
        p:advance(t.scale, p:count_from("scale_up", up))
        if t.less then
            p:advance(t.less, p:count_from("less_by", less_back))
        end
    end, "groups of rows")
    return p
end

-- S += sums at Z, of `parts` runs, times scales. Pointers come back.
local function add_scaled(p, cfg, c, parts, tag)
    local width, lanes, ld = cfg.vectors * cfg.isa.lanes, cfg.isa.lanes, cfg.product.scale_ld
    p:loop(p:count_from("rows" .. tag, c.rows // ROWS), function()
        for r = 0, ROWS - 1 do
            local sum = p:op("load", p:named("sum_%d", r), p:at(c.S, r * width))
            for i = 0, parts - 1 do
                local name = ("%d_%d"):format(r, i)
                local exact = p:op("load", "exact_" .. name, p:at(c.Z, (i * amx.tallest + r) * lanes))
                local by = p:op("bcast", "scale_" .. name, p:at(c.scale, r * ld + i))
                p:op("fma", sum, number(p, cfg.product, "number_" .. name, exact), by)
            end
            p:op("store", p:at(c.S, r * width), sum)
        end
        p:advance(c.S, ROWS * width)
        p:advance(c.Z, ROWS * lanes)
        p:advance(c.scale, ROWS * ld)
    end, "rows of sums")
    p:advance(c.S, -c.rows * width)
    p:advance(c.Z, -c.rows * lanes)
    p:advance(c.scale, -c.rows * ld)
end

-- `parts` runs from word `at` on: their sums to Z, and from there to S.
local function some_runs(p, cfg, c, at, parts, tag)
    local how, lanes, unit = cfg.product, cfg.isa.lanes, amx.unit
    local width, gap, x = cfg.vectors * lanes, how.gap, {}
    for part = 0, parts - 1 do
        local acc = amx.sums(c.rows // unit, 1, function(_, _, name) return p:op("tile_zero", ("%s_%d%s"):format(name, part, tag)) end)
        local from = at + (gap and part // 2 * unit or part * how.run)
        for k = from, from + (gap and 0 or how.run - 1), unit do
            local b_at = gap and k // unit * (unit + gap) + part % 2 * gap or k
            local y = p:op("tile_stream", ("b_%d_%d%s"):format(k, part, tag), p:at(c.B, b_at * width), c.pitch)
            for r = 0, #acc do
                local name, a_at = ("a_%d_%d%s"):format(r, k, tag), k // width * cfg.mc * width + k % width
                x[name] = x[name] or p:op("tile_load", name, p:at(c.A, r * unit * width + a_at), c.pitch)
                p:op(how.tile, acc[r][0], x[name], y)
            end
        end
        for r = 0, #acc do
            p:op("tile_store", p:at(c.Z, (part * amx.tallest + r * unit) * lanes), c.line, acc[r][0])
        end
    end
    add_scaled(p, cfg, c, parts, tag)
    p:advance(c.scale, parts)
end

-- The same on matrix tiles, for columns of a vector: sums of some runs pass through Z [runs][tallest][LANES], and are added to S together,
-- which is read and written that more rarely: fp8 with scales of blocks takes 0.86 of the time. n loops over these, and more of a run
-- that is left, which are whole panels, or shorter than a tile's row. Few tiles are in use, see amx.lua.
function runs.blocks(cfg, rows)
    local how, lanes = cfg.product, cfg.isa.lanes
    local width, each = cfg.vectors * lanes, runs.words(how)
    local p = ir.program(cfg.isa, ("%sproduct_%d"):format(cfg.prefix, rows),
        {("S[%d rows] += A * B for a vector of columns, runs each times its row's scale, on tiles."):format(rows)})
    local c = {rows = rows, S = p:pointer("S", "float", "WIDTH LANES"), A = p:pointer("A", "const float", "MC*WIDTH WIDTH"),
        B = p:pointer("B", "const float", "WIDTH LANES")}
    local n, more = p:integer("n"), p:integer("more")
    c.scale, c.Z = p:pointer("scale", "const float", ""), p:pointer("Z", "float", "LANES")
    c.pitch, c.line = p:count_from("pitch", 4 * width), p:count_from("line", 4 * lanes)
    local panels = math.max(1, each // width)   -- of a loop
    assert(how.gap or how.run % width == 0, "a run is no whole panels")
    p:loop(n, function()
        for at = 0, panels * width - 1, each do
            some_runs(p, cfg, c, at, runs.together, "_" .. at)
        end
        p:advance(c.A, panels * cfg.mc * width)
        p:advance(c.B, panels * how.panel_rows * width)
    end, "runs", true)
    if not how.gap then
        p:loop(more, function()
            some_runs(p, cfg, c, 0, 1, "")
            p:advance(c.A, how.run // width * cfg.mc * width)
            p:advance(c.B, how.run // width * how.panel_rows * width)
        end, "the last runs", true)
    end
    return p
end

-- Columns of a panel times their scales.
function runs.scaled(cfg)
    local p = ir.program(cfg.isa, cfg.prefix .. "scale_sums", {"Rows of sums times the scales of their columns."})
    local S, of, n = p:pointer("S", "float", "WIDTH LANES"), p:pointer("of", "const float", "WIDTH LANES"), p:integer("n")
    local columns = over_rows.load(p, cfg, "column_", of)
    over_rows.each(p, cfg, n, {S}, function(tag, at, v)
        p:op("store", p:at(S, at), p:op("mul", "scaled" .. tag, p:op("load", "sum" .. tag, p:at(S, at)), columns[v]))
    end)
    return p
end

return runs
