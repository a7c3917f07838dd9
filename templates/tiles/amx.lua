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
-- lines of B 128 bytes apart 7.9, 64 bytes 7.6, those of A too 7.1; A of 32 KB in every other 2 KB, in half of L1's sets, 12.9.
-- Whatever else misses L1 costs as much wherever it comes from, some 10 cycles a line, so weights pass through L1 once: copied beside
-- products, to L2 and back, they took 20 of the 115 ms of a backward pass; read by tiles where they lie, and left in L1 for the next, 10.
local ir = require "ir"

local tiles = {}

tiles.unit = 16      -- rows of a tile
tiles.tallest = 32   -- rows of a product, 2 x 1 tiles of sums
tiles.kc = 256       -- words of K that a block has: rows of A, 32 KB, stay in L1 while columns pass

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

-- acc += A * B for 32 elements of K: a(r) and b(c) give the places of tiles, whose rows are a_pitch and b_pitch bytes apart.
-- Tiles of A are read again by the next columns. how: holds: those of B are, by the next rows; else they pass;
-- op: of words that are no pairs of bf16; crossed: the places of A hold what is B, and the other way round; terms: tiles of A that add up
-- to one, a(r, term)
function tiles.step(p, acc, a, b, a_pitch, b_pitch, tag, how)
    local x, y, rows = {}, {}, #acc + 1
    for c = 0, #acc[0] do
        y[c] = p:op(how.holds and "tile_load" or "tile_stream", ("b_%d%s"):format(c, tag), b(c), b_pitch)
        for i = 0, rows * (how.terms or 1) - 1 do
            local r = i % rows
            x[i] = x[i] or p:op("tile_load", ("a_%d%s"):format(i, tag), a(r, i // rows), a_pitch)
            p:op(how.op or "tile_dot", acc[r][c], how.crossed and y[c] or x[i], how.crossed and x[i] or y[c])
        end
    end
end

-- A line of `count` rows of the weights that come next is fetched, of columns of weights two; `to_next` leads to the next line, or to the
-- next panel.
local function fetch_line(p, t, line, to_next)
    p:loop(p:count_from("more_" .. line, t.count), function()
        for at = 0, t.further or 0, math.max(1, t.further or 0) do
            p:op("prefetch_1", p:at(t.next, at))
        end
        p:advance(t.next, t.ld)
    end, "rows of the next weights", true)
    p:advance(t.next, p:count_from("next_first_" .. line, t.first))
    p:advance(t.next, to_next)
end

-- Are rows of weights in memory what tiles multiply? Else they are decoded, or panels of packed ones.
function tiles.places(cfg)
    return not (cfg.decodes or cfg.in_place)
end

-- Parameters: what comes next, of which `count` rows are fetched in each pass over K. Coded weights are not: t.next is nil.
local function ahead(p, cfg)
    if cfg.decodes then
        return {}
    end
    local t = {next = p:pointer("next", cfg.in_place and "const float" or "const " .. cfg.dtype.c), count = p:amount("count")}
    t.ld = cfg.in_place and cfg.vectors * cfg.isa.lanes or p:integer("ld")
    t.first = p:amount("next_first")
    return t
end

-- A pass over `panels` panels of K: makes in each step the products of 32 elements of K, of the line `k` of a panel, and fetches. Packed
-- weights that come next are `t.pitch` apart. beside: what else follows each line, or nil
local function over_k(p, cfg, panels, t, tag, make, advance, beside)
    local lanes, width, words = cfg.isa.lanes, cfg.vectors * cfg.isa.lanes, cfg.isa.lanes * cfg.product.group
    p:loop(panels, function()
        for k = 0, width - 1, UNIT do
            local line = ("%d%s"):format(k // lanes, tag)
            make(k, line)
            if t.next then
                fetch_line(p, t, line, not cfg.in_place and words or k + UNIT < width and lanes or lanes - width)
            end
            if beside then
                beside(line)
            end
        end
        advance()
        if t.pitch then
            p:advance(t.next, t.pitch)
        end
    end, "panels of K")
end

-- Sums of 16 columns of S, from vector v on: those there, or zero.
local function begin(p, cfg, rows, S, set, v, pitch)
    local width = cfg.vectors * cfg.isa.lanes
    return sums(rows // UNIT, 1, function(r, _, name)
        name = ("%s_%d"):format(name, v)
        return set and p:op("tile_zero", name) or p:op("tile_stream", name, p:at(S, r * UNIT * width + v * cfg.isa.lanes), pitch)
    end)
end

local function finish(p, cfg, S, acc, v, pitch)
    for r = 0, #acc do
        p:op("tile_store", p:at(S, r * UNIT * cfg.vectors * cfg.isa.lanes + v * cfg.isa.lanes), pitch, acc[r][0])
    end
end

-- Bytes from a row of a panel of pairs to the next one, and from one of `pitch` if that is as many: a count of program p.
local function pair_pitch(p, cfg, pitch)
    return cfg.pair_width == cfg.vectors * cfg.isa.lanes and pitch or p:count_from("b_pitch", 4 * cfg.pair_width)
end

-- S[rows][WIDTH] += A * B for `groups` panels of B, one after the other; rows: a multiple of 16; set: instead of adding. Panels of A are
-- `a_pitch` apart. A panel of B takes a pass for each vector of its rows: tiles in use are as few as can be, see the head of this file.
-- Beside the products of a pass `count` rows of the weights that come next are fetched, so that memory's lines come a few at a time.
-- crossed: nil, or panels hold rows of tokens, A words of columns of weights, see crossed.c.in; squares of sums have tokens as rows.
-- Its second: floats from the words of a tile of columns to those of the other one; beside: (p, cfg) -> what joins the next ones after
-- each line, or nil
function tiles.blocks(cfg, rows, vectors, set, crossed)
    local lanes, width = cfg.isa.lanes, cfg.vectors * cfg.isa.lanes
    local kind = (crossed and "crossed_" or "") .. (vectors == cfg.vectors and "product" or "narrow")
    local step, next_term = {op = cfg.product.tile, crossed = crossed, terms = cfg.terms}, cfg.block * cfg.mc * width
    local p = ir.program(cfg.isa, ("%s%s_%d%s"):format(cfg.prefix, kind, rows, set and "_set" or ""),
        {("S[%d rows] %s %s for groups of columns, on tiles%s."):format(rows, set and "=" or "+=", crossed and "B * A" or "A * B",
            cfg.decodes and "" or "; fetches `count` rows of the next weights in each pass")})
    local S = p:pointer("S", "float", "MC*WIDTH WIDTH LANES")
    local A = p:pointer("A", "const float", crossed and "SECOND LANES" or "K_PANELS*MC*WIDTH WIDTH")
    local B = p:pointer("B", "const float", cfg.pair_units)
    local panels, a_pitch, groups = p:integer("panels"), p:integer("a_pitch"), p:integer("groups")
    local a_first, b_first, b_next = p:amount("a_first"), vectors > 1 and p:amount("b_first"), p:amount("b_next")
    local t = ahead(p, cfg)
    local next_pass = t.next and p:amount("next_pass")
    t.pitch = t.next and cfg.in_place and p:integer("next_pitch")
    t.further = crossed and lanes * cfg.product.group
    local beside = crossed and crossed.beside and crossed.beside(p, cfg)
    local pitch = p:count_from("pitch", 4 * width)
    local b_pitch, b_side = pair_pitch(p, cfg, pitch), cfg.pair_width == width and lanes or 0   -- from a vector of a row to the next one
    local a_row = not crossed and pitch or cfg.pair_width == lanes and b_pitch or p:count_from("a_row", 4 * lanes)
    p:loop(groups, function()
        for v = 0, vectors - 1 do
            local acc = begin(p, cfg, rows, S, set, v, pitch)
            over_k(p, cfg, p:count_from("down_" .. v, panels), t, "_" .. v, function(k, line)
                local function a(r, term)
                    return p:at(A, crossed and r * crossed.second + k * lanes or term * next_term + r * UNIT * width + k)
                end
                local function b() return p:at(B, k * cfg.pair_width + v * b_side) end
                tiles.step(p, acc, a, b, a_row, b_pitch, "_" .. line, step)
            end, function()
                p:advance(A, a_pitch)
                p:advance(B, width * cfg.pair_width)
            end, beside)
            finish(p, cfg, S, acc, v, pitch)
            p:advance(A, p:count_from("again_" .. v, a_first))
            p:advance(B, p:count_from("next_" .. v, v < vectors - 1 and b_first or b_next))
            if next_pass then
                p:advance(t.next, p:count_from("next_pass_" .. v, next_pass))
            end
        end
        p:advance(S, cfg.mc * width)
    end, "panels of columns")
    return p
end

-- The first pass of such rows: A are rows where they lie in memory, W, `w_pitch` bytes apart, and become panels `a_pitch` apart, for the
-- passes that come after. So weights come from memory into L1, and nowhere else.
function tiles.place(cfg, rows, set)
    local width = cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, ("%splace_%d%s"):format(cfg.prefix, rows, set and "_set" or ""),
        {("S[%d rows] %s W * B for 16 columns, on tiles; W, in memory, become A."):format(rows, set and "=" or "+=")})
    local S, W = p:pointer("S", "float", "WIDTH LANES"), {}
    for r = 0, rows // UNIT - 1 do
        W[r] = p:pointer("W_" .. r, "const " .. cfg.dtype.c)
    end
    local w_pitch, A, B = p:integer("w_pitch"), p:pointer("A", "float", "WIDTH"), p:pointer("B", "const float", cfg.pair_units)
    local panels, a_pitch = p:integer("panels"), p:integer("a_pitch")
    local t = ahead(p, cfg)
    local pitch = p:count_from("pitch", 4 * width)
    local b_pitch = pair_pitch(p, cfg, pitch)
    local acc = begin(p, cfg, rows, S, set, 0, pitch)
    over_k(p, cfg, panels, t, "", function(k, line)
        local y = p:op("tile_stream", "b_" .. line, p:at(B, k * cfg.pair_width), b_pitch)
        for r = 0, #acc do
            local x = p:op("tile_stream", ("a_%d_%s"):format(r, line), p:at(W[r], k * cfg.product.group), w_pitch)
            p:op(cfg.product.tile or "tile_dot", acc[r][0], x, y)
            p:op("tile_store", p:at(A, r * UNIT * width + k), pitch, x)
        end
    end, function()
        for r = 0, #W do
            p:advance(W[r], width * cfg.product.group)
        end
        p:advance(A, a_pitch)
        p:advance(B, width * cfg.pair_width)
    end)
    finish(p, cfg, S, acc, 0, pitch)
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
