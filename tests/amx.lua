-- SPDX-License-Identifier: Apache-2.0
-- amx.lua ROOT - products of matrix tiles in the three spellings, as C files in the current directory for
-- amx/driver.c. Prints the compiler flags of the intrinsics.
local root = arg[1]
dofile(root .. "/tests/generator.lua")(root)
local ir = require "ir"
local print_bytes = require "vector.print_bytes"
local print_c = require "vector.print_c"
local target = require "target"
local tiles = require "tiles.amx"

local isa = target.load("amx")
local accumulators, dots = 6, 24   -- of the loop that only computes; dots: PEAK_DOTS of amx/tiles.h

local function peak(prefix)
    local p = ir.program(isa, prefix .. "peak", {"Independent dots from registers."})
    local out, stride, n = p:pointer("out", "float"), p:integer("stride"), p:integer("n")
    local acc = {}
    for i = 0, accumulators - 1 do
        acc[i] = p:op("tile_zero", "acc_" .. i)
    end
    local a, b = p:op("tile_zero", "a"), p:op("tile_zero", "b")
    p:loop(n, function()
        for i = 0, dots - 1 do
            p:op("tile_dot", acc[i % accumulators], a, b)
        end
    end, "rounds")
    for i = 0, accumulators - 1 do
        p:op("tile_store", p:at(out, 0), stride, acc[i])
    end
    return p
end

-- cfg: isa, prefix, rows and columns (in tiles; rows * columns + rows + columns <= registers), add (to S, else S is set)
-- Strides are the bytes between rows of a tile; a step is what leads to the next 32 of K, in elements.
-- Parameters: S_<r>, A_<r> for each row of tiles; B_<c> for each column; steps >= 1; strides and steps of A and B; stride of S.
-- Tiles of a row of S are adjacent.
local function product(cfg)
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

local function cfg(prefix, rows, columns, add)
    return {isa = isa, prefix = prefix, rows = rows, columns = columns, add = add}
end

local spellings = {
    bytes = {print = function(p) return print_bytes.print(p) end},
    intrinsics = {head = "#include <immintrin.h>\n", print = print_c.intrinsics},
    scalar = {print = print_c.scalar},
}

for spelling, how in pairs(spellings) do
    local prefix, text, used, seen = spelling .. "_", {}, {}, {}
    local list = {product(cfg(prefix .. "set_", 2, 2, false)), product(cfg(prefix .. "add_", 2, 2, true)),
                  tiles.on(cfg(prefix)), tiles.off(cfg(prefix)), peak(prefix)}
    local names = {}
    for i, p in ipairs(list) do
        text[i] = assert(how.print(p))
        names[i] = p.name
        for _, name in ipairs(p.used_list) do
            if not seen[name] then
                seen[name], used[#used + 1] = true, name
            end
        end
    end
    local f = assert(io.open(spelling .. ".c", "w"))
    f:write("/* SPDX-License-Identifier: Apache-2.0 */\n#include \"tiles.h\"\n", how.head or "")
    if spelling == "scalar" then
        f:write(tiles.shapes("shapes"), "const uint8_t *const tile_shapes = shapes;\n\n", print_c.scalar_preamble(used), "\n")
    end
    f:write(table.concat(text, "\n"), ("\nconst struct tile_programs %sprograms = {\"%s\", %s};\n"):format(prefix, spelling,
        table.concat(names, ", ")))
    f:close()
end

-- Eight tiles are what there is: shapes that need more are refused.
for _, shape in ipairs{{1, 1, true}, {1, 3, true}, {3, 1, true}, {2, 2, true}, {2, 3, false}} do
    local ok = print_bytes.print(product(cfg("x_", shape[1], shape[2])))
    assert((ok ~= nil) == shape[3], ("%dx%d tiles"):format(shape[1], shape[2]))
end
print(isa.gcc)
