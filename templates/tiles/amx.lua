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
