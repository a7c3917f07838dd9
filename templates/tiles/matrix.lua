-- SPDX-License-Identifier: Apache-2.0
-- matrix.lua - products of matrices in panels, for families that need a matrix and its transpose.
--
-- A panel holds WIDTH columns of a matrix of `rows` rows: P[q][row][WIDTH], f32. It is the B of a product over its rows, or the
-- A of a product over its columns (each row's WIDTH values are consecutive k). Columns are tokens, as a rule; the first panel
-- is the one that need not be full: its tokens stand at its end.
--
-- With products of pairs (micro.lua) these are two kinds of panels: in the A of a product over columns, elements keep their 16 bits,
-- and neighbours of a row are a pair; in a B, each word is a pair of two rows: P[q][row / 2][WIDTH], see panel_plan.pair_width.
--
-- product(rows)    S[rows][WIDTH] += A * B, on its way copying the next weights; narrow: only one vector of columns, halves: half of one
-- gradient(rows)   C = A * B for some panels of columns, straight to memory, in its dtype
local heights = require "tiles.heights"
local ir = require "ir"
local micro = require "tiles.micro"
local over_rows = require "tiles.over_rows"
local panel_rows = require "tiles.panel_rows"
local quantise = require "tiles.quantise"
local row_tiles = require "tiles.rows"

local matrix = {}

-- Rows of f32 that a tile may store one after the other. On Zen 3 a tile of 5 or 6 rows takes 27 cycles longer, a quarter of its time where
-- an expert has 16 tokens, as if products that come next did not begin while more stores wait for their sums.
matrix.at_once = 4
-- Rows of the tallest tile of halves: so many sums hide how long it takes to add to one, and vectors of rows are of as many.
matrix.halved_rows = 8

local LATE <const> = 2   -- rows that are stored together in the others, see put_late

-- t.acc += A * B over `panels` panels of A; the first has `first` steps of t.unroll k (or none, if it `begun`), the others `full`;
-- `jump` leads from the end of a panel's rows to the start of the next one's. t: see micro.unrolled
local function sum(p, cfg, t, begun)
    local current = p:count_from("current", t.first)
    p:loop(t.panels, function()
        p:loop(p:count_from("left", current), function()
            micro.steps(p, cfg.product, t.acc, t)
        end, "over the columns of a panel", begun)
        p:advance(t.A, t.jump)
        p:set(current, t.full)
    end, "panels")
end

-- t.acc = 0; what it will be added to, rows at S, is fetched.
local function clear(p, cfg, t, S)
    t.acc = micro.zeros(p, t.rows, t.vectors, "acc", S and function(name, v, r)
        for i = 0, v == 0 and t.vectors * cfg.isa.lanes - 1 or -1, 16 do   -- a row's first vector
            p:op("prefetch_0", p:at(S, r * cfg.vectors * cfg.isa.lanes + i))
        end
        return p:op("zero", name)
    end)
end

-- Rows at S += t.acc; S moves on.
local function add_to(p, cfg, S, t)
    for r = 0, t.rows - 1 do
        p:row(r)
        for v = 0, t.vectors - 1 do
            local at, name = p:at(S, v * cfg.isa.lanes), p:named("sum_%d_%d", r, v)
            p:op("store", at, p:op(cfg.product.sum or "add", name, t.acc[r][v], p:op("load", name .. "_before", at)))
        end
        p:advance(S, cfg.vectors * cfg.isa.lanes)
    end
    p:row(nil)
end

-- The vectors of a row of sums to memory, with what is there; 16-bit pairs share a store (see quantise.pairs).
-- value(v) gives vector v; has: dtype, add, stream
function matrix.put_row(p, cfg, C, has, name, value)
    local lanes, dt, x = cfg.isa.lanes, has.dtype, {}
    for v = 0, cfg.vectors - 1 do
        x[v] = value(v)
        if has.add then
            local before = quantise.load(p, dt, p:named("%s_%d_before", name, v), p:at(C, v * lanes))
            x[v] = p:op("add", p:named("%s_%d", name, v), x[v], before)
        end
    end
    if cfg.pairs and dt.narrow then
        quantise.store_pair(p, dt, p:at(C, 0), x[0], x[1], has.stream and "stream_bits" or "store_bits")
        return
    end
    for v = 0, cfg.vectors - 1 do
        if has.stream then
            p:op("store_stream", p:at(C, v * lanes), x[v])
        else
            quantise.store(p, dt, p:at(C, v * lanes), x[v])
        end
    end
end

-- cfg: isa, prefix, dtype (of the weights), vectors, unroll, product (see micro.lua); block: panels of a row of weights, mc: rows
-- of a panel of A, unaligned (rows of weights start anywhere in a cache line).
-- After each panel the tile copies `count` rows (or none) of a block of the next weights, `ld` apart, as rows of A, and fetches others
-- `ahead` of them: while the multiplier works, the next weights come in at an even pace. in_place: A is packed weights in memory, panels
-- `jump` from the end of one's rows to the next one's; of the next block `count` rows are fetched. how: see micro.lua
local function product(cfg, rows, name, vectors, how)
    local width = cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, name, rows),
        {("S[%d rows] += A * B, groups times; fetches lines at `near`, copies `count` rows of the next weights after each panel."):format(
            rows)})
    p.hoists = 0   -- as in gradient
    local t = {rows = rows, vectors = vectors, unroll = how.words or cfg.unroll, a_row = width, a_k = 1, b_row = width}
    local S = p:pointer("S", "float", "WIDTH LANES")
    t.A, t.B = p:pointer("A", "const float", "WIDTH"), p:pointer("B", "const float", "WIDTH LANES")
    local panels = p:integer("panels")
    local near = p:pointer("near", "const float", "")
    local to = not cfg.in_place and p:pointer("to", "float", "MC*WIDTH WIDTH LANES")
    local from = p:pointer("from", cfg.in_place and "const float" or "const " .. cfg.dtype.c)
    local count = p:integer("count")
    local ld, ahead = p:integer(cfg.in_place and "pitch" or "ld"), p:integer(cfg.in_place and "row_back" or "ahead")
    local groups, over, back = p:integer("groups"), p:integer("over"), p:integer("back")
    local jump = cfg.in_place and p:integer("jump")
    p:loop(groups, function()
        clear(p, cfg, t, S)
        p:loop(p:count_from("down", panels), function()
            p:loop(p:count_from("left", width // t.unroll), function()
                p:op("prefetch_1", p:at(near, 0))
                p:advance(near, 16)
                micro.steps(p, how, t.acc, t)
            end, "over the columns of a panel")
            p:advance(t.A, jump or (cfg.mc - 1) * width)
            if cfg.in_place then
                panel_rows.fetch_amid(p, cfg, p:count_from("more", count), from, ld, ahead)
            else
                panel_rows.copy_amid(p, cfg, p:count_from("more", count), to, from, ld, ahead)
            end
        end, "panels")
        add_to(p, cfg, S, t)
        p:advance(t.A, over)
        p:advance(t.B, back)
    end, "groups of rows")
    return p
end

-- Rows of sums go to C, which moves on: all, or `count` from `row` on.
local function put_rows(p, cfg, C, ld, has, acc, row, count)
    for r = row or 0, row and row + count - 1 or #acc do
        p:row(r)
        matrix.put_row(p, cfg, C, has, p:named("c_%d", r), function(v) return acc[r][v] end)
        p:advance(C, ld)
    end
    p:row(nil)
end

-- The sums of the panel before go to C, some rows at a time, amid the first products of the next ones.
local function put_late(p, cfg, t, C, ld, has)
    for row = 0, t.rows - 1, LATE do
        local count, own = math.min(LATE, t.rows - row), {}
        p:block(("rows from %d on: before, and now"):format(row), function()
            put_rows(p, cfg, C, ld, has, t.acc, row, count)
            for r = row, row + count - 1 do
                own[r - row] = t.acc[r]
                for v = 0, t.vectors - 1 do
                    p:op("move", t.acc[r][v], p:op("zero", p:named("zero_%d_%d", r, v)))
                end
            end
            micro.unrolled(p, cfg.product, own, t, row)
        end)
    end
    micro.pass(p, t)
end

-- What moves `count` cache lines on from `from` to `to`, past the caches, if has.lines: parameters of its own.
function matrix.streamer(p, has)
    if not has.lines then
        return function() end
    end
    local to, from, count = p:pointer("to", has.dtype.c), p:pointer("from", "const " .. has.dtype.c), p:integer("count")
    return function()
        p:loop(p:count_from("lines", count), function()
            row_tiles.stream_on(p, has.dtype, to, from)
        end, "cache lines", true)
    end
end

-- Rows of C for n panels of columns, one after the other; A is the same for all, rows of B are `skip` further from the end of a
-- panel's to the next one's. has: name; dtype (of C), add (to what C holds), stream (stores that pass the caches by), ld and
-- jump (unless parameters); lines: after each panel, see streamer; late: see put_late; first are steps after the first one, and what is
-- stored amid the first panel goes where sums will come, `back` from its end
function matrix.gradient(cfg, rows, has)
    local width, group = cfg.vectors * cfg.isa.lanes, cfg.product.group
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, has.name, rows),
        {("C[%d rows] %s A * B for n panels of columns: rows `ld` apart, C `up` and A `again` to the start of the next panel."):format(
            rows, has.add and "+=" or "=")})
    p.hoists = 0   -- the sums need the registers; constants are loaded where they are used
    local t = {rows = rows, vectors = cfg.vectors, unroll = cfg.t_unroll // group, a_row = width, a_k = group, b_row = width}
    local C = p:pointer("C", has.dtype.c)
    t.A = p:pointer("A", "const " .. quantise.column_type(cfg), "WIDTH")
    t.B = p:pointer("B", "const float", "WIDTH LANES")
    local panels, first = p:integer("panels"), p:integer("first")
    t.full, t.jump, t.first = p:integer("full"), has.jump or p:integer("jump"), first
    local n = p:integer("n")
    local again, skip = has.late and p:amount("again") or p:integer("again"), has.late and p:amount("skip") or p:integer("skip")
    local ld = has.ld or p:integer("ld")
    local up = has.ld and width - rows * ld or p:integer("up")
    local next_C = has.late and p:count_from("next_C", p:amount("back"))
    local stream_lines = matrix.streamer(p, has)
    if has.late then
        clear(p, cfg, t)
    end
    p:loop(n, function()
        if has.late then
            put_late(p, cfg, t, C, ld, has)
            p:advance(C, next_C)
            p:set(next_C, up)
        else
            clear(p, cfg, t)
        end
        t.panels = p:count_from("down", panels)
        sum(p, cfg, t, has.late)
        if not has.late then
            put_rows(p, cfg, C, ld, has, t.acc)
            p:advance(C, up)
        end
        p:advance(t.A, has.late and p:count_from("A_again", again) or again)
        p:advance(t.B, has.late and p:count_from("B_skip", skip) or skip)
        stream_lines()
    end, "panels of columns")
    if has.late then
        put_rows(p, cfg, C, ld, has, t.acc)
    end
    return p
end

-- One row of sums to C, in its dtype. has: name, dtype, add
function matrix.put(cfg, has)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. has.name,
        {("C[n rows of %d] %s S."):format(cfg.vectors * lanes, has.add and "+=" or "=")})
    local C, S = p:pointer("C", has.dtype.c), p:pointer("S", "const float")
    local n, ld = p:integer("n"), p:integer("ld")
    over_rows.vectors(p, n, {{C, ld}, {S, cfg.vectors * lanes}}, function()
        matrix.put_row(p, cfg, C, has, "c", function(v) return p:op("load", p:named("s_%d", v), p:at(S, v * lanes)) end)
    end, "rows")
    return p
end

-- The products of a kind: {name, heights, vectors; halves: of half a vector}.
function matrix.products(cfg, kind)
    local how = kind.halves and micro.in_halves(cfg.product) or cfg.product
    return heights.tiles(function(_, rows) return product(cfg, rows, kind.name, kind.vectors, how) end, cfg, kind.heights)
end

return matrix
