-- SPDX-License-Identifier: Apache-2.0
-- amx.lua - products on matrix tiles (16 rows of 64 bytes): S += A * B, A and B bf16, S f32.
--
-- A   16 rows for each tile of rows, 32 elements of each in one step of K
-- B   16 columns for each tile of columns; two rows of K interleaved: element 2 n + k % 2 of row k / 2
--
-- A thread calls tiles.on before its first product and tiles.off after its last; loading shapes is slow, so it is not
-- part of the product. Between them every tile has its full size: pad A and S to whole tiles.
--
-- There are times when tiles in use decide how fast a core is, as if registers that tiles are renamed to were shared out (most
-- likely another guest works on its other thread): each tile that holds something takes one. Cycles per product (Emerald Rapids,
-- operands in L1, 16 at best, loads included) of 1 x 2 tiles of sums with 4 in use: 34, of 2 x 2 with 7: 53, with 8: 75; at other
-- times each of them takes 16. A tile that was cleared takes none, a tile that a program before left behind does. So products have
-- two tiles of sums, a row or a column of them, and one for each factor.
--
-- What a tile reads should be lines in a row, in all sets of L1. ns per product of 2 x 1 sums (6 at best, 2.7 GHz), B from L2, A in L1:
-- lines of B 128 bytes apart 7.9, 64 bytes 7.6, those of A too 7.1; beside copies of the next A 11.6 and 10.6; A of 32 KB in every other
-- 2 KB, that is in half of L1's sets, 12.9.
local ir = require "ir"
local matrix = require "tiles.matrix"
local quantise = require "tiles.quantise"
local row_tiles = require "tiles.rows"

local tiles = {}

tiles.unit = 16      -- rows of a tile
tiles.tallest = 32   -- rows of a product, 2 x 1 tiles of sums
tiles.kc = 256  -- words of K that a block has: its columns of B stay in L1 while A passes

local UNIT <const> = tiles.unit

-- A group of rows * columns tiles of sums: acc[r][c] from `make`.
function tiles.sums(rows, columns, make)
    local acc = {}
    for r = 0, rows - 1 do
        acc[r] = {}
        for c = 0, columns - 1 do
            acc[r][c] = make(r, c, ("acc_%d_%d"):format(r, c))
        end
    end
    return acc
end

local sums = tiles.sums

-- acc += A * B for 32 elements of K: a(r) and b(c) give the places of tiles, rows of both are `pitch` bytes apart (A: a_pitch).
-- Tiles of A are read again by the next columns, and those of B by the next rows if the step `holds` them; else they pass.
-- op: of words that are no pairs of bf16
local function step(p, acc, a, b, a_pitch, pitch, tag, holds, op)
    local x, y = {}, {}
    for c = 0, #acc[0] do
        y[c] = p:op(holds and "tile_load" or "tile_stream", ("b_%d%s"):format(c, tag), b(c), pitch)
        for r = 0, #acc do
            x[r] = x[r] or p:op("tile_load", ("a_%d%s"):format(r, tag), a(r), a_pitch)
            p:op(op or "tile_dot", acc[r][c], x[r], y[c])
        end
    end
end

-- A line of `count` rows of the next weights, `ld` apart, becomes a line of as many rows of A; others `ahead` of them are fetched. Both
-- pointers go back to the first row, then on by what leads to the next line.
local function copy_line(p, cfg, t, line, from_step, to_step)
    p:loop(p:count_from("more_" .. line, t.count), function()
        p:op("prefetch_1", p:at(t.from, 0, t.ahead))
        p:op("store", p:at(t.to, 0), quantise.panel(p, cfg, "w_" .. line, p:at(t.from, 0)))
        p:advance(t.from, t.ld)
        p:advance(t.to, cfg.vectors * cfg.isa.lanes)
    end, "rows of the next weights", true)
    p:advance(t.from, p:count_from("from_first_" .. line, t.from_first))
    p:advance(t.to, p:count_from("to_first_" .. line, t.to_first))
    p:advance(t.from, from_step)
    p:advance(t.to, to_step)
end

-- The same line of rows of packed weights in memory is fetched; `to_next` leads to the next line, or to the next panel.
local function fetch_line(p, cfg, t, line, to_next)
    local width = cfg.vectors * cfg.isa.lanes
    p:loop(p:count_from("more_" .. line, t.count), function()
        p:op("prefetch_1", p:at(t.from, 0))
        p:advance(t.from, width)
    end, "rows of the next weights", true)
    p:advance(t.from, p:count_from("from_first_" .. line, t.from_first))
    p:advance(t.from, to_next)
end

-- S[rows][WIDTH] += A * B for `groups` panels of B, one after the other; rows: a multiple of 16; set: instead of adding. A panel
-- takes a pass for each vector of its rows: tiles in use are as few as can be, see the head of this file. In each pass the tile
-- copies `panels` panels of `count` rows of the next weights; this goes along K beside the products, so that memory's lines come a
-- few at a time and in order. cfg.in_place: A is packed weights in memory, panels `a_pitch` apart; those of the next block,
-- `from_pitch` apart, are fetched.
function tiles.blocks(cfg, rows, vectors, set)
    local lanes = cfg.isa.lanes
    local width, words = cfg.vectors * lanes, lanes * cfg.product.group
    local kind = vectors == cfg.vectors and "product" or "narrow"
    local p = ir.program(cfg.isa, ("%s%s_%d%s"):format(cfg.prefix, kind, rows, set and "_set" or ""),
        {("S[%d rows] %s A * B for groups of columns, on tiles; copies `count` rows of the next weights in each pass."):format(
            rows, set and "=" or "+=")})
    local S = p:pointer("S", "float", "MC*WIDTH WIDTH LANES")
    local A, B = p:pointer("A", "const float", "MC*WIDTH WIDTH"), p:pointer("B", "const float", "WIDTH LANES")
    local panels, groups = p:integer("panels"), p:integer("groups")
    local a_first, b_first, b_next = p:amount("a_first"), vectors > 1 and p:amount("b_first"), p:amount("b_next")
    local held = not cfg.in_place
    local t = {to = held and p:pointer("to", "float", "MC*WIDTH WIDTH LANES"),
        from = p:pointer("from", held and "const " .. cfg.dtype.c or "const float")}
    t.count, t.ld, t.ahead = p:amount("count"), held and p:integer("ld"), held and p:integer("ahead")
    t.from_first, t.to_first = p:amount("from_first"), held and p:amount("to_first")
    local from_next, to_next = p:amount("from_next"), held and p:amount("to_next")
    local a_next, from_pitch = not held and p:integer("a_pitch"), not held and p:integer("from_pitch")
    local pitch = p:count_from("pitch", 4 * width)
    local function pass(v)
        local function place(r)
            return p:at(S, r * UNIT * width + v * lanes)
        end
        local acc = sums(rows // UNIT, 1, function(r, _, name)
            name = ("%s_%d"):format(name, v)
            return set and p:op("tile_zero", name) or p:op("tile_stream", name, place(r), pitch)
        end)
        p:loop(p:count_from("down_" .. v, panels), function()
            for k = 0, width - 1, UNIT do
                local line = ("%d_%d"):format(k // lanes, v)
                step(p, acc, function(r) return p:at(A, r * UNIT * width + k) end, function() return p:at(B, k * width + v * lanes) end,
                    pitch, pitch, "_" .. line, false, cfg.product.tile)
                if held then
                    copy_line(p, cfg, t, line, words, k + UNIT < width and lanes or cfg.mc * width - (width - lanes))
                else
                    fetch_line(p, cfg, t, line, k + UNIT < width and lanes or lanes - width)
                end
            end
            p:advance(A, a_next or cfg.mc * width)
            if from_pitch then
                p:advance(t.from, from_pitch)
            end
            p:advance(B, width * width)
        end, "panels of K")
        for r = 0, #acc do
            p:op("tile_store", place(r), pitch, acc[r][0])
        end
        p:advance(A, p:count_from("again_" .. v, a_first))
        p:advance(B, p:count_from("next_" .. v, v < vectors - 1 and b_first or b_next))
        p:advance(t.from, p:count_from("next_from_" .. v, from_next))
        if held then
            p:advance(t.to, p:count_from("next_to_" .. v, to_next))
        end
    end
    p:loop(groups, function()
        for v = 0, vectors - 1 do
            pass(v)
        end
        p:advance(S, cfg.mc * width)
    end, "panels of columns")
    return p
end

-- Sums of 16 rows of a gradient: t.A times t.B, over t.panels panels of 32 tokens, all of which count; beside: makes what comes after each
-- of these, or nil; adds: to sums that are at t.S. Returns a function that stores them there.
local function over_tokens(p, cfg, t, beside, adds)
    local lanes, width = cfg.isa.lanes, cfg.vectors * cfg.isa.lanes
    local acc = sums(1, cfg.vectors, function(_, c, name)
        return adds and p:op("tile_stream", name, p:at(t.S, c * lanes), t.pitch) or p:op("tile_zero", name)
    end)
    p:loop(p:count_from("down", t.panels), function()
        step(p, acc, function() return p:at(t.A, 0) end, function(c) return p:at(t.B, c * lanes) end, t.a_pitch, t.pitch, "", true)
        p:advance(t.A, width)
        p:advance(t.A, t.jump)
        p:advance(t.B, UNIT * width)
        if beside then
            beside()
        end
    end, "panels of tokens")
    return function()
        for c = 0, cfg.vectors - 1 do
            p:op("tile_store", p:at(t.S, c * lanes), t.pitch, acc[0][c])
        end
    end
end

-- A row of sums, so many rows on from t.S, to C.
local function put_row(p, cfg, C, has, t, r, tag)
    local lanes = cfg.isa.lanes
    matrix.put_row(p, cfg, C, has, "c_" .. tag, function(v)
        return p:op("load", ("sum_%s_%d"):format(tag, v), p:at(t.S, (r * cfg.vectors + v) * lanes))
    end)
end

-- See matrix.gradient; of 16 rows at most, whose sums pass through `sums`, [16][WIDTH].
function tiles.gradient(cfg, rows, has)
    local width = cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, has.name, rows),
        {("C[%d rows] %s A * B for n panels of columns, on tiles: rows `ld` apart."):format(rows, has.add and "+=" or "=")})
    local C = p:pointer("C", has.dtype.c)
    local t = {A = p:pointer("A", "const uint16_t", "WIDTH"), B = p:pointer("B", "const float", "WIDTH LANES"),
        panels = p:integer("panels"), jump = has.jump or p:integer("jump")}
    local n, again, skip = p:integer("n"), p:integer("again"), p:integer("skip")
    local ld = has.ld or p:integer("ld")
    local up = has.ld and width - rows * ld or p:integer("up")
    t.S = p:pointer("sums", "float", "WIDTH LANES")
    local to, from = has.gives and p:pointer("to", has.dtype.c), has.gives and p:pointer("from", "const " .. has.dtype.c)
    local count = has.gives and p:integer("count")
    t.pitch, t.a_pitch = p:count_from("pitch", 4 * width), p:count_from("a_pitch", 2 * width)
    p:loop(n, function()
        over_tokens(p, cfg, t)()
        for r = 0, rows - 1 do
            put_row(p, cfg, C, has, t, r, r)
            p:advance(C, ld)
        end
        p:advance(C, up)
        p:advance(t.A, again)
        p:advance(t.B, skip)
        if has.gives then
            p:loop(p:count_from("lines", count), function()
                row_tiles.give(p, has.dtype, to, from, 16 // cfg.isa.lanes)
            end, "cache lines", true)
        end
    end, "panels of columns")
    return p
end

-- The same of sums that are in memory, S[rows][WIDTH], for one panel of columns and `groups` groups of 16 rows.
function tiles.part(cfg)
    local width = cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, ("%spart_%d"):format(cfg.prefix, UNIT),
        {"S[groups of 16 rows] += A * B for a panel of columns, on tiles."})
    local t = {S = p:pointer("S", "float", "WIDTH LANES"), A = p:pointer("A", "const uint16_t", "WIDTH"),
        B = p:pointer("B", "const float", "WIDTH LANES"), panels = p:integer("panels"), jump = p:integer("jump")}
    local groups = p:integer("groups")
    local again, back = p:amount("again"), p:amount("back")
    t.pitch, t.a_pitch = p:count_from("pitch", 4 * width), p:count_from("a_pitch", 2 * width)
    p:loop(groups, function()
        over_tokens(p, cfg, t, nil, true)()
        p:advance(t.S, UNIT * width)
        p:advance(t.A, p:count_from("a_again", again))
        p:advance(t.B, p:count_from("b_back", back))
    end, "groups of rows")
    return p
end

-- The same for 16 rows whose stores pass the caches by, in which a core gets rid of a line now and then: so the sums of a panel are stored
-- beside the products of the next one, `each` rows beside each panel of tokens and `rest` after them. First those go that are in `sums`, to
-- `before` on, from whose end `over` leads to the first panel of C; the last ones stay there.
function tiles.stream(cfg, rows, has)
    local width = cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, has.name, rows),
        {("C[%d rows] = A * B for n panels of columns, on tiles; beside a panel the sums of the one before are stored."):format(rows)})
    local C = p:pointer("before", has.dtype.c)
    local t = {A = p:pointer("A", "const uint16_t", "WIDTH"), B = p:pointer("B", "const float", "WIDTH LANES"),
        panels = p:integer("panels"), jump = p:integer("jump")}
    local n = p:integer("n")
    local again, skip, ld = p:amount("again"), p:amount("skip"), p:integer("ld")
    local up = p:integer("up")
    t.S = p:pointer("sums", "float", "WIDTH LANES")
    local each, rest, over = p:amount("each"), p:amount("rest"), p:integer("over")
    t.pitch, t.a_pitch = p:count_from("pitch", 4 * width), p:count_from("a_pitch", 2 * width)
    local function store_rows(tag, count)
        p:loop(p:count_from("rows_" .. tag, count), function()
            put_row(p, cfg, C, has, t, 0, tag)
            p:advance(C, ld)
            p:advance(t.S, width)
        end, "rows of the panel before", true)
    end
    p:loop(n, function()
        local store = over_tokens(p, cfg, t, function() store_rows("beside", each) end)
        store_rows("after", rest)
        p:advance(t.S, -rows * width)
        store()
        p:advance(C, over)
        p:set(over, up)
        p:advance(t.A, p:count_from("a_again", again))
        p:advance(t.B, p:count_from("b_skip", skip))
    end, "panels of columns")
    return p
end

-- Gives all tiles the shapes of the block at `shapes` (64 bytes): tiles.shapes.
function tiles.on(cfg)
    local p = ir.program(cfg.isa, cfg.prefix .. "tiles_on", {"Tiles of 16 rows of 64 bytes, for this thread."})
    p:op("tile_config", p:at(p:pointer("shapes", "const uint8_t"), 0))
    return p
end

function tiles.off(cfg)
    local p = ir.program(cfg.isa, cfg.prefix .. "tiles_off", {"No tiles any more: vectors run at full speed, switches are cheap."})
    p:op("tile_release")
    return p
end

-- C text of the block: palette 1; from byte 16 on 8 * 64 (bytes of a row, 16 bits), from byte 48 on 8 * 16 (rows).
function tiles.shapes(name)
    local bytes = {1}
    for i = 1, 63 do
        bytes[i + 1] = i >= 48 and i < 56 and 16 or i >= 16 and i < 32 and i % 2 == 0 and 64 or 0
    end
    return ("static const uint8_t %s[64] = {%s};\n"):format(name, table.concat(bytes, ", "))
end

return tiles
