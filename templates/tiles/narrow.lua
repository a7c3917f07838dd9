-- SPDX-License-Identifier: Apache-2.0
-- narrow.lua - register tiles of S = A B for matrices of which one is narrow. A is f32 at any strides; B is a packed panel of
-- f32, `vectors` vectors to a row.
local ir = require "ir"
local micro = require "tiles.micro"
local over_rows = require "tiles.over_rows"
local quantise = require "tiles.quantise"

local product = {}

-- What steps over K pass, see micro.unrolled: so many at a time.
local function factors(cfg, A, B, unroll)
    return {A = A, B = B, vectors = cfg.vectors, unroll = unroll, a_row = cfg.a_row, a_k = cfg.a_k, b_row = cfg.vectors * cfg.isa.lanes}
end

local function steps(p, cfg, acc, A, B, n)
    p:loop(n, function() micro.steps(p, micro.widened, acc, factors(cfg, A, B, cfg.unroll)) end, "over K")
end

-- S += A B over n * unroll of K.
-- cfg: isa, prefix, name, vectors, unroll, a_row and a_k (elements between rows and columns of A), pitch (between rows of S),
-- a_units and s_units (of these, see coordinate.lua)
function product.add(cfg, rows)
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, cfg.name, rows),
        {("S[%d rows] += A * B over n * %d of K."):format(rows, cfg.unroll)})
    local S, A = p:pointer("S", "float", cfg.s_units), p:pointer("A", "const float", cfg.a_units)
    local B, n = p:pointer("B", "const float", "WIDTH LANES"), p:integer("n")
    local acc = micro.zeros(p, rows, cfg.vectors, "acc")
    steps(p, cfg, acc, A, B, n)
    micro.each(p, rows, cfg.vectors, function(r, v, at)
        local mem = p:at(S, r * cfg.pitch + v * cfg.isa.lanes)
        p:op("store", mem, p:op("add", "sum" .. at, acc[r][v], p:op("load", "before" .. at, mem)))
    end)
    return p
end

-- S = A B over all of K = cfg.K, rounded once to cfg.dtype, for panels of B with cfg.skip unused rows behind each. What K leaves when it is
-- divided by `unroll` is unrolled; n = K / unroll. With cfg.folds sums are built from parts: n steps of K at a time, `folds`
-- times, then `rest` steps.
function product.set(cfg, rows)
    local width, tail = cfg.vectors * cfg.isa.lanes, cfg.K % cfg.unroll
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, cfg.name, rows),
        {("S[%d rows] = A * B over all of K, for some panels of B."):format(rows)})
    p.hoists = 0   -- all registers are taken
    local S, A = p:pointer("S", cfg.dtype.c, cfg.s_units), p:pointer("A", "const float", cfg.a_units)
    local B = p:pointer("B", "const float", "WIDTH LANES")
    local panels, n = p:integer("panels"), cfg.K >= cfg.unroll and p:integer("n")
    local folds, rest = cfg.folds and p:integer("folds"), cfg.folds and p:integer("rest")
    p:loop(panels, function()
        local sum = cfg.folds and micro.zeros(p, rows, cfg.vectors, "sum")
        local one = cfg.folds and p:op("const", "unit", 1.0)
        local acc
        local function fold()
            micro.each(p, rows, cfg.vectors, function(r, v) p:op("fma", sum[r][v], acc[r][v], one) end)
        end
        if cfg.folds then
            p:loop(p:count_from("folds_left", folds), function()
                acc = micro.zeros(p, rows, cfg.vectors, "acc")
                steps(p, cfg, acc, A, B, p:count_from("left", n))
                fold()
            end, "parts of K")
        end
        acc = micro.zeros(p, rows, cfg.vectors, cfg.folds and "last" or "acc")
        if n then
            steps(p, cfg, acc, A, B, p:count_from("last_left", rest or n))
        end
        micro.unrolled(p, micro.widened, acc, factors(cfg, A, B, tail))
        if cfg.folds then
            fold()
        end
        micro.each(p, rows, cfg.vectors, function(r, v)
            quantise.store(p, cfg.dtype, p:at(S, r * cfg.pitch + v * cfg.isa.lanes), (sum or acc)[r][v])
        end)
        p:advance(S, width)
        p:advance(A, tail * cfg.a_k - cfg.K * cfg.a_k)
        p:advance(B, (tail + cfg.skip) * width)
    end, "panels")
    return p
end

-- Panels of f32 from a matrix of dtype cfg.dtype: n rows, `cfg.ld` elements apart, of cfg.nc panels, `cfg.panel` apart.
function product.pack(cfg)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. cfg.name, {("Rows of %d panels from rows of a matrix."):format(cfg.nc)})
    local dst, src, n = p:pointer("dst", "float", "KC*WIDTH WIDTH LANES"), p:pointer("src", "const " .. cfg.dtype.c), p:integer("n")
    over_rows.vectors(p, n, {{src, cfg.ld}, {dst, cfg.vectors * lanes}}, function()
        for q = 0, cfg.nc - 1 do
            for v = 0, cfg.vectors - 1 do
                local x = quantise.load(p, cfg.dtype, ("x_%d_%d"):format(q, v), p:at(src, (q * cfg.vectors + v) * lanes))
                p:op("store", p:at(dst, q * cfg.panel + v * lanes), x)
            end
        end
    end, "rows")
    return p
end

-- f32 rows of n vectors from rows of dtype cfg.dtype; to_next and from_next lead from the end of a row to the next row.
function product.gather(cfg)
    local p = ir.program(cfg.isa, cfg.prefix .. cfg.name, {"Some rows in f32."})
    local dst, src = p:pointer("dst", "float"), p:pointer("src", "const " .. cfg.dtype.c)
    local rows, n, to_next, from_next = p:integer("rows"), p:integer("n"), p:integer("to_next"), p:integer("from_next")
    over_rows.nested(p, rows, n, {{dst, to_next}, {src, from_next}}, function()
        p:op("store", p:at(dst, 0), quantise.load(p, cfg.dtype, "x", p:at(src, 0)))
        p:advance(src, cfg.isa.lanes)
        p:advance(dst, cfg.isa.lanes)
    end, "vectors")
    return p
end

return product
