-- SPDX-License-Identifier: Apache-2.0
-- rows.lua - tiles over one row of n vectors: widen, narrow, scale, add, zero.
local ir = require "ir"
local quantise = require "lib.quantise"

local rows = {}

-- dst = a * src (a only with `scaled`), from dtype dt to f32.
function rows.widen(cfg, dt, name, scaled)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. name, {scaled and "f32 row = a * row." or "f32 row = row."})
    local dst, src, n = p:pointer("dst", "float"), p:pointer("src", "const " .. dt.c), p:integer("n")
    local a = scaled and p:op("bcast", "scale", p:at(p:pointer("a", "const float"), 0))
    p:loop(n, function()
        local x = quantise.load(p, dt, "x", p:at(src, 0))
        if scaled then
            x = p:op("mul", "x_scaled", x, a)
        end
        p:op("store", p:at(dst, 0), x)
        p:advance(src, lanes)
        p:advance(dst, lanes)
    end, "vectors")
    return p
end

-- dst = src, rounded from f32 to dtype dt.
function rows.narrow(cfg, dt, name)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Round a row of f32 to " .. dt.name .. "."})
    local dst, src, n = p:pointer("dst", dt.c), p:pointer("src", "const float"), p:integer("n")
    p:loop(n, function()
        quantise.store(p, dt, p:at(dst, 0), p:op("load", "x", p:at(src, 0)))
        p:advance(src, lanes)
        p:advance(dst, lanes)
    end, "vectors")
    return p
end

-- dst = [dst +] [a *] src, all f32. has: add, scaled
function rows.add(cfg, name, has)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. name,
        {("Row %s= %srow."):format(has.add and "+" or "", has.scaled and "a * " or "")})
    local dst, src, n = p:pointer("dst", "float"), p:pointer("src", "const float"), p:integer("n")
    local a = has.scaled and p:op("bcast", "scale", p:at(p:pointer("a", "const float"), 0))
    p:loop(n, function()
        local x = p:op("load", "x", p:at(src, 0))
        if has.scaled then
            x = p:op("mul", "x_scaled", x, a)
        end
        if has.add then
            x = p:op("add", "sum", x, p:op("load", "before", p:at(dst, 0)))
        end
        p:op("store", p:at(dst, 0), x)
        p:advance(src, lanes)
        p:advance(dst, lanes)
    end, "vectors")
    return p
end

-- n vectors of zeros.
function rows.zero(cfg, name)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Zero n vectors."})
    local dst, n = p:pointer("dst", "float"), p:integer("n")
    local zero = p:op("zero", "zero")
    p:loop(n, function()
        p:op("store", p:at(dst, 0), zero)
        p:advance(dst, cfg.isa.lanes)
    end, "vectors")
    return p
end

-- A square of lanes x lanes: column c of S (rows `width` apart) becomes the run T[c * pitch ..], in dtype dt.
function rows.transpose(cfg, dt, name, pitch)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. name, {("Transpose %d x %d sums."):format(lanes, lanes)})
    local T, S = p:pointer("T", dt.c), p:pointer("S", "const float")
    local quads = {}   -- quads[s][j]: in group g, column 4 g + j of rows 4 s .. 4 s + 3
    for s = 0, lanes // 4 - 1 do
        local r = {}
        for i = 0, 3 do
            r[i] = p:op("load", "row_" .. 4 * s + i, p:at(S, (4 * s + i) * cfg.vectors * lanes))
        end
        local a, b = p:op("unpack_low", "low_01_" .. s, r[0], r[1]), p:op("unpack_low", "low_23_" .. s, r[2], r[3])
        local c, d = p:op("unpack_high", "high_01_" .. s, r[0], r[1]), p:op("unpack_high", "high_23_" .. s, r[2], r[3])
        quads[s] = {[0] = p:op("halves_low", "quad_0_" .. s, a, b), p:op("halves_high", "quad_1_" .. s, a, b),
                    p:op("halves_low", "quad_2_" .. s, c, d), p:op("halves_high", "quad_3_" .. s, c, d)}
    end
    -- list: vectors whose groups are columns first, first + step, ... of ever more rows
    local function join(list, first, step, j)
        if #list == 1 then
            return quantise.store(p, dt, p:at(T, (4 * first + j) * pitch), list[1])
        end
        for _, half in ipairs{"even", "odd"} do
            local joined = {}
            for i = 1, #list, 2 do
                local named = ("%s_%d_%d_%d_%d"):format(half:sub(1, 1), j, first, step, i)
                joined[#joined + 1] = p:op("groups_" .. half, named, list[i], list[i + 1])
            end
            join(joined, first + (half == "odd" and step or 0), 2 * step, j)
        end
    end
    for j = 0, 3 do
        local list = {}
        for s = 0, lanes // 4 - 1 do
            list[s + 1] = quads[s][j]
        end
        join(list, 0, 1, j)
    end
    return p
end

return rows
