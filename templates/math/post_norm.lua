-- SPDX-License-Identifier: Apache-2.0
-- post_norm.lua - tiles of the norm behind an expert, over rows of n vectors of H: of d, what an expert gave, and the weight w,
-- z = w * d and y = z / sqrt(mean(z * z) + eps).
local ir = require "ir"
local over_rows = require "tiles.over_rows"
local quantise = require "tiles.quantise"

local post_norm = {}

-- In program p: body(load) for each of n vectors, where load(name) is of the row at the pointer rows[name], {pointer, dtype}.
local function each(p, n, rows, body)
    local pointers = {}
    for i, name in ipairs(rows) do
        pointers[i] = rows[name][1]
    end
    over_rows.vectors(p, n, pointers, function()
        body(function(name)
            return quantise.load(p, rows[name][2], name .. "_here", p:at(rows[name][1], 0))
        end)
    end)
end

-- x = x * w, in place, and sums of its squares, lane by lane. dt: of the weight
function post_norm.weigh(cfg, dt)
    local p = ir.program(cfg.isa, cfg.prefix .. "weigh", {"A row times the weight, and partial sums of its squares."})
    local sums, x = p:pointer("sums", "float"), p:pointer("x", "float")
    local weight, n, acc = p:pointer("weight", "const " .. dt.c), p:integer("n"), p:op("zero", "acc")
    over_rows.vectors(p, n, {x, weight}, function()
        local z = p:op("mul", "z", p:op("load", "d", p:at(x, 0)), quantise.load(p, dt, "w", p:at(weight, 0)))
        p:op("store", p:at(x, 0), z)
        p:op("fma", acc, z, z)
    end)
    p:op("store", p:at(sums, 0), acc)
    return p
end

-- What the programs of the way back read: gradients of the output, what an expert gave, the weight.
local function inputs(p, io, dt)
    local rows = {"dy", "d", "w"}
    for _, name in ipairs(rows) do
        local of = name == "w" and dt or io
        rows[name] = {p:pointer(name, "const " .. of.c), of}
    end
    return rows
end

-- sums[2][lanes]: of z * z, and of dy * z.
function post_norm.squares(cfg, io, dt)
    local p = ir.program(cfg.isa, cfg.prefix .. "weighed_squares", {"Partial sums of z * z and dy * z, where z = w * d."})
    local sums, rows, n = p:pointer("sums", "float"), inputs(p, io, dt), p:integer("n")
    local squares, along = p:op("zero", "squares"), p:op("zero", "along")
    each(p, n, rows, function(load)
        local z = p:op("mul", "z", load "w", load "d")
        p:op("fma", squares, z, z)
        p:op("fma", along, load "dy", z)
    end)
    p:op("store", p:at(sums, 0), squares)
    p:op("store", p:at(sums, cfg.isa.lanes), along)
    return p
end

-- The gradient of z, dy * stat[0] - z * stat[1], of rows whose norm has these. Returns w and d too.
local function through(p, load, factor, part)
    local w, d = load "w", load "d"
    local z = p:op("mul", "z", w, d)
    return p:op("sub", "dz", p:op("mul", "scaled", load "dy", factor), p:op("mul", "along", z, part)), w, d
end

local function stats(p)
    local stat = p:pointer("stat", "const float")
    return p:op("bcast", "factor", p:at(stat, 0)), p:op("bcast", "part", p:at(stat, 1))
end

-- The gradient of d, of dtype `to`.
function post_norm.back(cfg, to, io, dt)
    local p = ir.program(cfg.isa, cfg.prefix .. "before_norm", {"The gradient of what an expert gave: w * (dy * factor - z * part)."})
    local dd, rows, n = p:pointer("dd", to.c), inputs(p, io, dt), p:integer("n")
    local factor, part = stats(p)
    each(p, n, rows, function(load)
        local dz, w = through(p, load, factor, part)
        quantise.store(p, to, p:at(dd, 0), p:op("mul", "back", dz, w))
        p:advance(dd, cfg.isa.lanes)
    end)
    return p
end

-- Adds to sums[n][lanes] the gradient of the weight.
function post_norm.weight(cfg, io, dt)
    local p = ir.program(cfg.isa, cfg.prefix .. "add_weight", {"Sums += d * (dy * factor - z * part)."})
    local sums, rows, n = p:pointer("sums", "float"), inputs(p, io, dt), p:integer("n")
    local factor, part = stats(p)
    each(p, n, rows, function(load)
        local dz, _, d = through(p, load, factor, part)
        local sum = p:op("load", "sum", p:at(sums, 0))
        p:op("fma", sum, dz, d)
        p:op("store", p:at(sums, 0), sum)
        p:advance(sums, cfg.isa.lanes)
    end)
    return p
end

return post_norm
