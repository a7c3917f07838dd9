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

return rows
