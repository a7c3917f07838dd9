-- SPDX-License-Identifier: Apache-2.0
-- amx_columns.lua - products of columns on matrix tiles, see gemm.packed: S = or += A * B, A pairs of rows of tokens, B a packed panel of
-- pairs of rows of weights. As these lie they are tiles: 16 rows of A, `stride` words apart, have 16 words of K each; 16 rows of B have
-- a word of each of 16 columns, which is the order in which products take pairs.
--
-- Rows of A pass once for each panel and tiles of B are read again by the next rows: a block of B stays in L1 (see amx.kc).
local amx = require "tiles.amx"
local gemm = require "tiles.gemm"
local ir = require "ir"

local columns = {}

local UNIT <const> = amx.unit

columns.unroll = UNIT    -- words of K that a step takes
columns.fetch = 16       -- pairs of rows of weights on their way from memory: what a core's line buffers have room for

-- S[groups * rows] of as many rows of A, one group after the other. Beside each step the tile packs `each` rows (of pairs, or none) of
-- the next panels: from src_0 and src_1 on, see gemm.packed for these and for what is fetched, into dst. a_next leads to the next
-- group's rows from where K ends, b_back to the first row of B; rows: a multiple of 16; set: S is not added to.
function columns.packed(cfg, rows, set)
    local lanes = cfg.isa.lanes
    local width, io = cfg.vectors * lanes, "const " .. cfg.weights.c
    local p = ir.program(cfg.isa, ("%sgemm_%d%s"):format(cfg.prefix, rows, set and "_set" or ""),
        {("S[groups][%d rows] %s A * B over n * %d rows of B, on tiles; packs `each` rows of the next panels beside each."):format(
            rows, set and "=" or "+=", UNIT)})
    local S, A = p:pointer("S", "float", "WIDTH LANES"), p:pointer("A", "const float", "STRIDE LANES")
    local B, groups = p:pointer("B", "const float", "WIDTH LANES"), p:integer("groups")
    local t = {dst = p:pointer("dst", "float", "PANEL WIDTH LANES")}
    t.src = {[0] = p:pointer("src_0", io), p:pointer("src_1", io)}
    t.step, t.ld = p:integer("step"), p:integer("ld")
    local ahead = {[0] = p:integer("ahead_0"), p:integer("ahead_1")}
    local n, a_next, b_back, each = p:amount("n"), p:amount("a_next"), p:amount("b_back"), p:amount("each")
    local pitch, a_pitch = p:count_from("pitch", 4 * width), p:count_from("a_pitch", 4 * cfg.stride)
    function t.fetch(i, at)
        p:op("prefetch_1", p:at(t.src[i], at, ahead[i]))
    end
    local function place(r, c)
        return p:at(S, r * UNIT * width + c * lanes)
    end
    p:loop(groups, function()
        local acc = amx.sums(rows // UNIT, cfg.vectors, function(r, c, name)
            return set and p:op("tile_zero", name) or p:op("tile_stream", name, place(r, c), pitch)
        end)
        p:loop(p:count_from("down", n), function()
            local b = {}
            for r = 0, #acc do
                local a = p:op("tile_stream", "a_" .. r, p:at(A, r * UNIT * cfg.stride), a_pitch)
                for c = 0, cfg.vectors - 1 do
                    b[c] = b[c] or p:op("tile_load", "b_" .. c, p:at(B, c * lanes), pitch)
                    p:op("tile_dot", acc[r][c], a, b[c])
                end
            end
            p:advance(A, UNIT)
            p:advance(B, UNIT * width)
            p:loop(p:count_from("more", each), function() gemm.pack_row(p, cfg, t) end, "rows of the next panels", true)
        end, "over K")
        for r = 0, #acc do
            for c = 0, cfg.vectors - 1 do
                p:op("tile_store", place(r, c), pitch, acc[r][c])
            end
        end
        p:advance(S, rows * width)
        p:advance(A, p:count_from("next", a_next))
        p:advance(B, p:count_from("back", b_back))
    end, "groups of rows")
    return p
end

-- Tiles of all these heights.
function columns.heights(cfg, heights)
    local list = {}
    for i = #heights, 1, -1 do
        list[#list + 1] = columns.packed(cfg, heights[i], true)
        list[#list + 1] = columns.packed(cfg, heights[i])
    end
    return list
end

return columns
