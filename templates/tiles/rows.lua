-- SPDX-License-Identifier: Apache-2.0
-- rows.lua - tiles over rows of n vectors: move, transpose, sum, zero.
local dtype = require "dtype"
local ir = require "ir"
local over_rows = require "tiles.over_rows"
local quantise = require "tiles.quantise"

local rows = {}

-- dst = [dst +] [a *] src for a row of n vectors of lanes, rounded once. how: from, to (dtypes; none: f32), add, scaled
function rows.move(cfg, name, how)
    local from, to = how.from or dtype.f32, how.to or dtype.f32
    local p = ir.program(cfg.isa, cfg.prefix .. name,
        {("%s row %s= %s%s row."):format(to.name, how.add and "+" or "", how.scaled and "a * " or "", from.name)})
    local dst, src, n = p:pointer("dst", to.c), p:pointer("src", "const " .. from.c), p:integer("n")
    local a = how.scaled and p:op("bcast", "scale", p:at(p:pointer("a", "const float"), 0))
    over_rows.vectors(p, n, {src, dst}, function()
        local x = quantise.load(p, from, "x", p:at(src, 0))
        if how.scaled then
            x = p:op("mul", "x_scaled", x, a)
        end
        if how.add then
            x = p:op("add", "sum", x, quantise.load(p, to, "before", p:at(dst, 0)))
        end
        quantise.store(p, to, p:at(dst, 0), x)
    end)
    return p
end

-- In program p: a cache line of dtype dt, which passes the caches by. to, from: {pointer, offset}
function rows.stream(p, dt, to, from)
    local elements = p.isa.lanes * 4 // dt.size   -- of a vector
    for i = 0, 16 // p.isa.lanes - 1 do
        local x = p:op(dt.narrow and "load_bits" or "load", p:named("x_%d", i), p:at(from[1], from[2] + i * elements))
        p:op(dt.narrow and "stream_bits" or "store_stream", p:at(to[1], to[2] + i * elements), x)
    end
end

-- The same from src to dst; both pointers move on.
function rows.stream_on(p, dt, dst, src)
    rows.stream(p, dt, {dst, 0}, {src, 0})
    p:advance(dst, 64 // dt.size)
    p:advance(src, 64 // dt.size)
end

-- Some rows of n cache lines of dtype dt, which lie side by side, to memory: `over` from the end of a row there to the next one.
function rows.lines(cfg, dt, name)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Rows of n cache lines to memory."})
    local dst, src, n = p:pointer("dst", dt.c), p:pointer("src", "const " .. dt.c), p:integer("n")
    local rows_left, over = p:integer("rows"), p:integer("over")
    over_rows.nested(p, rows_left, n, {{dst, over}}, function() rows.stream_on(p, dt, dst, src) end, "lines")
    return p
end

-- dst = src, n vectors of words, each some elements of dtype dt.
function rows.words(cfg, dt, name)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Row of words = row, " .. dt.name .. "."})
    local dst, src, n = p:pointer("dst", "float"), p:pointer("src", "const " .. dt.c), p:integer("n")
    over_rows.vectors(p, n, {{src, cfg.isa.lanes * 4 // dt.size}, dst}, function()
        p:op("store", p:at(dst, 0), p:op("load_bits", "x", p:at(src, 0)))
    end)
    return p
end

-- n vectors of zeros.
function rows.zero(cfg)
    local p = ir.program(cfg.isa, cfg.prefix .. "zero", {"Zero n vectors."})
    local dst, n = p:pointer("dst", "float"), p:integer("n")
    local zero = p:op("zero", "zero")
    over_rows.vectors(p, n, {dst}, function() p:op("store", p:at(dst, 0), zero) end)
    return p
end

local halves <const> = {{"groups_even", "e"}, {"groups_odd", "o"}}   -- of vectors that are joined

-- Transpose lanes x lanes: row(i) gives row i as a vector, column(c, vector) takes column c.
local function transposed(p, row, column)
    local lanes = p.isa.lanes
    local quads = {}   -- quads[s][j]: in group g, column 4 g + j of rows 4 s .. 4 s + 3
    for s = 0, lanes // 4 - 1 do
        local r = {}
        for i = 0, 3 do
            r[i] = row(4 * s + i)
        end
        local a, b = p:op("unpack_low", p:named("low_01_%d", s), r[0], r[1]), p:op("unpack_low", p:named("low_23_%d", s), r[2], r[3])
        local c, d = p:op("unpack_high", p:named("high_01_%d", s), r[0], r[1]), p:op("unpack_high", p:named("high_23_%d", s), r[2], r[3])
        quads[s] = {[0] = p:op("halves_low", p:named("quad_0_%d", s), a, b), p:op("halves_high", p:named("quad_1_%d", s), a, b),
                    p:op("halves_low", p:named("quad_2_%d", s), c, d), p:op("halves_high", p:named("quad_3_%d", s), c, d)}
    end
    -- list: vectors whose groups are columns first, first + step, ... of ever more rows
    local function join(list, first, step, j)
        if #list == 1 then
            return column(4 * first + j, list[1])
        end
        for half, how in ipairs(halves) do
            local op, letter, joined = how[1], how[2], {}
            for i = 1, #list, 2 do
                joined[i // 2 + 1] = p:op(op, p:named("%s_%d_%d_%d_%d", letter, j, first, step, i), list[i], list[i + 1])
            end
            join(joined, first + (half - 1) * step, 2 * step, j)
        end
    end
    for j = 0, 3 do
        local list = {}
        for s = 0, lanes // 4 - 1 do
            list[s + 1] = quads[s][j]
        end
        join(list, 0, 1, j)
    end
end

rows.transposed = transposed

-- A square of lanes x lanes: column c of S (rows `width` apart) becomes the run T[c * pitch ..], in dtype dt.
-- units: of T, see coordinate.lua
function rows.transpose(cfg, dt, name, pitch, units)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. name, {("Transpose %d x %d sums."):format(lanes, lanes)})
    local T, S = p:pointer("T", dt.c, units), p:pointer("S", "const float", "WIDTH")
    transposed(p, function(i)
        return p:op("load", p:named("row_%d", i), p:at(S, i * cfg.vectors * lanes))
    end, function(c, x)
        quantise.store(p, dt, p:at(T, c * pitch), x)
    end)
    return p
end

-- Transposes n squares of lanes x lanes: column c of a square becomes the run T[c * pitch ..], in f32.
-- how: dtype (of S), stride (between rows of S, elements; nil: the parameter ld, and `back` leads from a square's last row to the
-- next square), pitch, along (from a square of S to the next), step (of T); apart: a square takes every other group of 4 rows
-- of S; pairs: a square has as many columns as fit into the lanes, see quantise.per_lane; words: lanes stay what they are, pairs of
-- dtype; joined: so they are, of two rows each; fetch: the parameter `ahead` leads from a row of S to one that comes later;
-- s_units, t_units: see coordinate.lua
function rows.squares(cfg, name, how)
    local lanes, per_lane = cfg.isa.lanes, how.pairs and quantise.per_lane(how.dtype) or 1
    local p = ir.program(cfg.isa, cfg.prefix .. name, {("Transpose n squares of %d x %d."):format(lanes, per_lane * lanes)})
    local width = cfg.vectors * lanes
    local T = p:pointer("T", "float", how.t_units or how.pitch == width and "WIDTH LANES" or nil)
    local S = p:pointer("S", "const " .. how.dtype.c, how.s_units or how.stride == width and "WIDTH LANES" or nil)
    local n = p:integer("n")
    local ld = not how.stride and p:integer("ld")
    local back = ld and p:integer("back")
    local ahead = how.fetch and p:integer("ahead")
    local split = how.pairs and quantise.split(p, how.dtype) or function(_, x) return x end
    local function load(i, at)
        if ahead then
            p:op("prefetch_1", p:at(S, 0, ahead))
        end
        if how.joined then
            local low = p:op("load_u16", p:named("low_%d", i), at)
            p:advance(S, ld)
            if ahead then
                p:op("prefetch_1", p:at(S, 0, ahead))
            end
            local high = p:op("load_u16", p:named("high_%d", i), p:at(S, 0))
            return p:op("bit_or", p:named("row_%d", i), low, p:op("shl", p:named("up_%d", i), high, 16))
        elseif how.words then
            return p:op("load_bits", p:named("row_%d", i), at)
        end
        return per_lane > 1 and p:op("load_bits", p:named("row_%d", i), at) or quantise.load(p, how.dtype, p:named("row_%d", i), at)
    end
    p:loop(n, function()
        transposed(p, function(i)
            if ld then
                local x = load(i, p:at(S, 0))
                p:advance(S, i + 1 < lanes and ld or back)
                return x
            end
            local row = how.apart and i + i // 4 * 4 or i
            return load(i, p:at(S, row * how.stride))
        end, function(c, x)
            for i, column in ipairs{split(p:named("column_%d", c), x)} do
                p:op("store", p:at(T, (c * per_lane + i - 1) * how.pitch), column)
            end
        end)
        if not ld then
            p:advance(S, how.along)
        end
        p:advance(T, how.step)
    end, "squares")
    return p
end

-- Squares of weights whose columns are wanted: of numbers in memory, or of what codes are decoded to; joined: of pairs of rows.
function rows.transposed_weights(cfg, joined, coded)
    local width = cfg.vectors * cfg.isa.lanes
    return rows.squares(cfg, "transpose_weights", {dtype = coded and not joined and dtype.f32 or cfg.dtype, joined = joined, pitch = width,
        fetch = not coded, step = cfg.isa.lanes * width})
end

-- A square of lanes x lanes sums (rows `width` apart) to the rows out[c][column ..]; those of the next square are fetched.
-- has: scaled (column c times a[c]), add (to what the rows hold), step (of S, from a row to the next one)
function rows.scatter(cfg, name, has)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. name,
        {("Column c of %d x %d sums is %s row out[c]."):format(lanes, lanes, has.add and "added to" or "put into")})
    local out, column, S = p:pointer("out", "float *const"), p:integer("column"), p:pointer("S", "const float", "WIDTH")
    local a = has.scaled and p:op("load", "scale", p:at(p:pointer("a", "const float"), 0))
    transposed(p, function(i)
        local x = p:op("load", p:named("row_%d", i), p:at(S, i * (has.step or 1) * cfg.vectors * lanes))
        return a and p:op("mul", p:named("row_%d_scaled", i), x, a) or x
    end, function(c, x)
        local row = p:op("load_pointer", p:named("out_%d", c), p:at(out, c))
        local at = p:at(row, 0, column)
        p:op("prefetch_0", p:at(p:op("load_pointer", p:named("soon_%d", c), p:at(out, lanes + c)), 0, column))
        p:op("store", at, has.add and p:op("add", p:named("sum_%d", c), x, p:op("load", p:named("before_%d", c), at)) or x)
    end)
    return p
end

-- sums[lanes] = a * b, lane by lane, over n vectors; both are widened.
function rows.dot(cfg, name, of_a, of_b)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Partial sums of a product of two rows."})
    local sums, a, b = p:pointer("sums", "float"), p:pointer("a", "const " .. of_a.c), p:pointer("b", "const " .. of_b.c)
    local n, acc = p:integer("n"), p:op("zero", "acc")
    over_rows.vectors(p, n, {a, b}, function()
        p:op("fma", acc, quantise.load(p, of_a, "x", p:at(a, 0)), quantise.load(p, of_b, "y", p:at(b, 0)))
    end)
    p:op("store", p:at(sums, 0), acc)
    return p
end

-- n rows of a panel of width floats: dst = a * src, column by column.
function rows.scale(cfg, name)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Columns of a panel times a."})
    local dst, src, a = p:pointer("dst", "float"), p:pointer("src", "const float"), p:pointer("a", "const float")
    local n, scale = p:integer("n"), over_rows.load(p, cfg, "a_", a)
    over_rows.each(p, cfg, n, {src, dst}, function(tag, at, v)
        p:op("store", p:at(dst, at), p:op("mul", "x" .. tag, p:op("load", "s" .. tag, p:at(src, at)), scale[v]))
    end)
    return p
end

-- n rows of LANES elements each: dst rows `pitch` apart, src rows `ld`; in f32, or as they are.
function rows.column(cfg, dt, name, pitch, as_is)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"LANES elements of each of n rows" .. (as_is and "." or ", in f32.")})
    local dst, src = p:pointer("dst", as_is and dt.c or "float"), p:pointer("src", "const " .. dt.c)
    local n, ld = p:integer("n"), p:integer("ld")
    over_rows.vectors(p, n, {{src, ld}, {dst, pitch}}, function()
        if as_is then
            p:op("store_u16", p:at(dst, 0), p:op("load_u16", "x", p:at(src, 0)))
        else
            p:op("store", p:at(dst, 0), quantise.load(p, dt, "x", p:at(src, 0)))
        end
    end, "rows")
    return p
end

-- The reverse: n rows of LANES floats, `pitch` apart, to rows of dtype dt that are `ld` apart.
function rows.store_column(cfg, dt, name, pitch)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {("LANES elements of each of n rows, to %s."):format(dt.name)})
    local dst, src = p:pointer("dst", dt.c), p:pointer("src", "const float", "WIDTH")
    local n, ld = p:integer("n"), p:integer("ld")
    over_rows.vectors(p, n, {{src, pitch}, {dst, ld}}, function()
        quantise.store(p, dt, p:at(dst, 0), p:op("load", "x", p:at(src, 0)))
    end, "rows")
    return p
end

return rows
