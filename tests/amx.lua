-- SPDX-License-Identifier: Apache-2.0
-- amx.lua ROOT - the products of templates/tiles/amx.lua in the three spellings, as C files in the current directory for
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
    local list = {tiles.product(cfg(prefix .. "set_", 2, 2, false)), tiles.product(cfg(prefix .. "add_", 2, 2, true)),
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
    local ok = print_bytes.print(tiles.product(cfg("x_", shape[1], shape[2])))
    assert((ok ~= nil) == shape[3], ("%dx%d tiles"):format(shape[1], shape[2]))
end
print(isa.gcc)
