-- SPDX-License-Identifier: Apache-2.0
-- amx.lua - products on matrix tiles (16 rows of 64 bytes): S += A * B, A and B bf16, S f32.
--
-- A   16 rows for each tile of rows, 32 elements of each in one step of K
-- B   16 columns for each tile of columns; two rows of K interleaved: element 2 n + k % 2 of row k / 2
-- Strides are the bytes between rows of a tile; a step is what leads to the next 32 of K, in elements.
--
-- A thread calls tiles.on before its first product and tiles.off after its last; loading shapes is slow, so it is not
-- part of the product. Between them every tile has its full size: pad A and S to whole tiles.
local ir = require "ir"
local matrix = require "tiles.matrix"

local tiles = {}

-- cfg: isa, prefix, rows and columns (in tiles; rows * columns + rows + columns <= registers), add (to S, else S is set)
-- Parameters: S_<r>, A_<r> for each row of tiles; B_<c> for each column; steps >= 1; strides and steps of A and B; stride of S.
-- Tiles of a row of S are adjacent.
function tiles.product(cfg)
    local p = ir.program(cfg.isa, ("%stiles_%dx%d"):format(cfg.prefix, cfg.rows, cfg.columns),
        {("S[%d rows][%d columns] %s A * B over steps * 32 of K."):format(16 * cfg.rows, 16 * cfg.columns, cfg.add and "+=" or "=")})
    local S, A, B, acc = {}, {}, {}, {}
    for r = 0, cfg.rows - 1 do
        S[r], A[r] = p:pointer("S_" .. r, "float"), p:pointer("A_" .. r, "const uint16_t")
    end
    for c = 0, cfg.columns - 1 do
        B[c] = p:pointer("B_" .. c, "const uint16_t")
    end
    local steps = p:integer("steps")
    local a_stride, a_step = p:integer("a_stride"), p:integer("a_step")
    local b_stride, b_step = p:integer("b_stride"), p:integer("b_step")
    local s_stride = p:integer("s_stride")
    local function each(body)
        for r = 0, cfg.rows - 1 do
            for c = 0, cfg.columns - 1 do
                body(r, c, ("acc_%d_%d"):format(r, c), p:at(S[r], 16 * c))
            end
        end
    end
    each(function(r, c, name, mem)
        acc[r] = acc[r] or {}
        acc[r][c] = cfg.add and p:op("tile_load", name, mem, s_stride) or p:op("tile_zero", name)
    end)
    p:loop(steps, function()
        local a, b = {}, {}
        for r = 0, cfg.rows - 1 do
            a[r] = p:op("tile_load", "a_" .. r, p:at(A[r], 0), a_stride)
        end
        for c = 0, cfg.columns - 1 do
            b[c] = p:op("tile_load", "b_" .. c, p:at(B[c], 0), b_stride)
        end
        each(function(r, c) p:op("tile_dot", acc[r][c], a[r], b[c]) end)
        for r = 0, cfg.rows - 1 do
            p:advance(A[r], a_step)
        end
        for c = 0, cfg.columns - 1 do
            p:advance(B[c], b_step)
        end
    end, "over K")
    each(function(r, c, _, mem) p:op("tile_store", mem, s_stride, acc[r][c]) end)
    return p
end

-- ---- what matrix.lua makes, on tiles ----

tiles.unit = 16      -- rows of a tile
tiles.tallest = 32   -- rows of a product, 2 x 2 tiles of sums
tiles.k_block = 256  -- words of K that a block has: its columns of B stay in L1 while A passes

local UNIT <const> = tiles.unit

-- A group of rows * columns tiles of sums: acc[r][c] from `make`.
local function sums(rows, columns, make)
    local acc = {}
    for r = 0, rows - 1 do
        acc[r] = {}
        for c = 0, columns - 1 do
            acc[r][c] = make(r, c, ("acc_%d_%d"):format(r, c))
        end
    end
    return acc
end

-- acc += A * B for 32 elements of K: a(r) and b(c) give the places of tiles, rows of both are `pitch` bytes apart (A: a_pitch).
-- Tiles of A pass, those of B are read again by the next rows. op: of words that are no pairs of bf16
local function step(p, acc, a, b, a_pitch, pitch, tag, op)
    local x, y = {}, {}
    for r = 0, #acc do
        x[r] = p:op("tile_stream", ("a_%d%s"):format(r, tag), a(r), a_pitch)
        for c = 0, #acc[r] do
            y[c] = y[c] or p:op("tile_load", ("b_%d%s"):format(c, tag), b(c), pitch)
            p:op(op or "tile_dot", acc[r][c], x[r], y[c])
        end
    end
end

-- See matrix.product; rows: a multiple of 16.
function tiles.blocks(cfg, rows, vectors)
    local lanes = cfg.isa.lanes
    local width = cfg.vectors * lanes
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, vectors == cfg.vectors and "product" or "narrow", rows),
        {("S[%d rows] += A * B, groups times, on tiles; copies `count` rows of the next weights after each panel."):format(rows)})
    local S = p:pointer("S", "float", "WIDTH LANES")
    local A, B = p:pointer("A", "const float", "WIDTH"), p:pointer("B", "const float", "WIDTH LANES")
    local panels = p:integer("panels")
    local to, from = p:pointer("to", "float", "SLAB*WIDTH WIDTH LANES"), p:pointer("from", "const " .. cfg.dtype.c)
    local count, ld, ahead = p:integer("count"), p:integer("ld"), p:integer("ahead")
    local groups, over, back = p:integer("groups"), p:integer("over"), p:integer("back")
    local pitch = p:count_from("pitch", 4 * width)
    p:loop(groups, function()
        local function place(r, c)
            return p:at(S, r * UNIT * width + c * lanes)
        end
        local acc = sums(rows // UNIT, vectors, function(r, c, name) return p:op("tile_stream", name, place(r, c), pitch) end)
        p:loop(p:count_from("down", panels), function()
            for k = 0, width - 1, UNIT do
                step(p, acc, function(r) return p:at(A, r * UNIT * width + k) end, function(c) return p:at(B, k * width + c * lanes) end,
                    pitch, pitch, "_" .. k, cfg.product.tile)
            end
            p:advance(A, cfg.slab * width)
            p:advance(B, width * width)
            matrix.copy_rows(p, cfg, p:count_from("more", count), to, from, ld, ahead)
        end, "panels")
        for r = 0, #acc do
            for c = 0, vectors - 1 do
                p:op("tile_store", place(r, c), pitch, acc[r][c])
            end
        end
        p:advance(S, rows * width)
        p:advance(A, over)
        p:advance(B, back)
    end, "groups of rows")
    return p
end

-- See matrix.gradient; the sums pass through `sums`, rows * WIDTH floats. Panels have 32 tokens, all of which count.
function tiles.gradient(cfg, rows, has)
    local lanes = cfg.isa.lanes
    local width = cfg.vectors * lanes
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, has.name, rows),
        {("C[%d rows] %s A * B for n panels of columns, on tiles: rows `ld` apart."):format(rows, has.add and "+=" or "=")})
    local C = p:pointer("C", has.dtype.c)
    local A, B = p:pointer("A", "const uint16_t", "WIDTH"), p:pointer("B", "const float", "WIDTH LANES")
    local panels = p:integer("panels")
    local jump, n, again, skip = p:integer("jump"), p:integer("n"), p:integer("again"), p:integer("skip")
    local ld, up, S = p:integer("ld"), p:integer("up"), p:pointer("sums", "float", "WIDTH LANES")
    local tall = (rows + UNIT - 1) // UNIT
    local pitch, a_pitch = p:count_from("pitch", 4 * width), p:count_from("a_pitch", 2 * width)
    p:loop(n, function()
        local acc = sums(tall, cfg.vectors, function(_, _, name) return p:op("tile_zero", name) end)
        p:loop(p:count_from("down", panels), function()
            step(p, acc, function(r) return p:at(A, r * UNIT * width) end, function(c) return p:at(B, c * lanes) end, a_pitch, pitch, "")
            p:advance(A, width)
            p:advance(A, jump)
            p:advance(B, UNIT * width)
        end, "panels of tokens")
        for r = 0, #acc do
            for c = 0, cfg.vectors - 1 do
                p:op("tile_store", p:at(S, r * UNIT * width + c * lanes), pitch, acc[r][c])
            end
        end
        for r = 0, rows - 1 do
            matrix.put_row(p, cfg, C, has, "c_" .. r, function(v)
                return p:op("load", ("sum_%d_%d"):format(r, v), p:at(S, r * width + v * lanes))
            end)
            p:advance(C, ld)
        end
        p:advance(C, up)
        p:advance(A, again)
        p:advance(B, skip)
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
