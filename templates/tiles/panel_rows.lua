-- SPDX-License-Identifier: Apache-2.0
-- panel_rows.lua - tiles that take rows of a matrix into panels, and rows of panels out of them. The layout of a panel: see
-- matrix.lua.
local dtype = require "dtype"
local ir = require "ir"
local micro = require "tiles.micro"
local over_rows = require "tiles.over_rows"
local quantise = require "tiles.quantise"
local squares = require "tiles.rows"

local panel_rows = {}

-- Rows of a panel whose columns are contracted (see matrix.lua), made vector by vector: the dtype of its elements, and how vector v
-- of the row at a pointer is stored; of pairs both vectors together, when the last one comes, which is both if it is alone.
function panel_rows.column(cfg)
    local lanes, first = cfg.isa.lanes, {}
    if cfg.product.group == 1 then
        return {dtype = dtype.f32, put = function(p, to, v, x) p:op("store", p:at(to, v * lanes), x) end}
    end
    if cfg.vectors == 1 then
        return {dtype = cfg.dtype, put = function(p, to, _, x) quantise.store(p, cfg.dtype, p:at(to, 0), x) end}
    end
    return {dtype = cfg.dtype, put = function(p, to, v, x)
        if v == 0 then
            first[to] = x
        else
            quantise.store_pair(p, cfg.dtype, p:at(to, 0), first[to] or x, x, "store_bits")
        end
    end}
end

-- Rows as panels: n panels of each of `rows` rows, in f32 or in pairs.
-- has: name; pitch (floats between a row's panels; none: a parameter); masked: and-ed with the width words at `mask`;
-- alternate: groups of 4 lanes go to the two vectors of a panel in turns, as pairs of 16-bit stores want it, see quantise.pairs
function panel_rows.copy(cfg, has)
    local lanes = cfg.isa.lanes
    local width, group = cfg.vectors * lanes, cfg.product.group
    local p = ir.program(cfg.isa, cfg.prefix .. has.name, {("Rows as n panels of each, in %s."):format(group > 1 and "pairs" or "f32")})
    local A, W = p:pointer("A", "float", "WIDTH LANES"), p:pointer("W", "const " .. cfg.dtype.c)
    local n, rows, over, back = p:integer("n"), p:integer("rows"), p:integer("over"), p:integer("back")
    local pitch = has.pitch or p:integer("pitch")
    local mask = has.masked and p:pointer("mask", "const float")
    over_rows.nested(p, rows, n, {{W, over}, {A, back}}, function()
        local x = {}
        for v = 0, cfg.vectors - 1 do
            x[v] = quantise.panel(p, cfg, p:named("w_%d", v), p:at(W, v * lanes * group))
            if mask then
                x[v] = p:op("bit_and", p:named("kept_%d", v), x[v], p:op("load", p:named("mask_%d", v), p:at(mask, v * lanes)))
            end
        end
        if has.alternate then
            x[0], x[1] = p:op("groups_even", "even", x[0], x[1]), p:op("groups_odd", "odd", x[0], x[1])
        end
        for v = 0, cfg.vectors - 1 do
            p:op("store", p:at(A, v * lanes), x[v])
        end
        p:advance(W, width * group)
        p:advance(A, pitch)
    end, "panels")
    return p
end

-- Amid a tile: so many rows (or none) of a block of weights, `ld` apart, become rows of A; others `ahead` of them are fetched.
function panel_rows.copy_amid(p, cfg, count, to, from, ld, ahead)
    local width, words = cfg.vectors * cfg.isa.lanes, cfg.isa.lanes * cfg.product.group
    p:loop(count, function()
        for i = 0, cfg.block * cfg.vectors * words - (cfg.unaligned and 0 or 1), 64 // cfg.dtype.size do
            p:op("prefetch_1", p:at(from, i, ahead))
        end
        for i = 0, cfg.block * cfg.vectors - 1 do
            local x = quantise.panel(p, cfg, p:named("w_%d", i), p:at(from, i * words))
            p:op("store", p:at(to, i // cfg.vectors * cfg.mc * width + i % cfg.vectors * cfg.isa.lanes), x)
        end
        p:advance(from, ld)
        p:advance(to, width)
    end, "rows of the next weights", true)
end

-- Likewise so many rows of the next block of packed weights are fetched from all its panels, `pitch` apart; `back` leads to the next row.
function panel_rows.fetch_amid(p, cfg, count, from, pitch, back)
    p:loop(count, function()
        for _ = 1, cfg.block do
            for i = 0, cfg.vectors * cfg.isa.lanes - 1, 16 do
                p:op("prefetch_1", p:at(from, i))
            end
            p:advance(from, pitch)
        end
        p:advance(from, back)
    end, "rows of the next weights", true)
end

-- n pairs of rows of 16-bit elements, `ld` apart, as rows of words: element c of both rows is word c.
-- across: one pair of rows, as n panels `pitch` floats apart; `over` leads from a panel of the second row to the next one of the first
-- Else the parameter `apart` leads from the first vector of words to the second one.
function panel_rows.join(cfg, name, across)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Pairs of rows as rows of words."})
    local dst, src = p:pointer("dst", "float", not across and cfg.pair_units or "WIDTH LANES"), p:pointer("src", "const " .. cfg.dtype.c)
    local ld, n = p:integer("ld"), p:integer("n")
    local over = across and p:integer("over") or ld
    local pitch, apart = across and p:integer("pitch") or cfg.pair_width, not across and cfg.vectors > 1 and p:integer("apart")
    over_rows.vectors(p, n, {{src, over}, {dst, pitch}}, function()
        local words = micro.join(p, cfg.product, cfg.dtype, "pair", cfg.vectors, src, ld, function(v)
            return p:at(src, v * lanes)
        end)
        for v = 0, cfg.vectors - 1 do
            p:op("store", apart and p:at(dst, 0, v > 0 and apart or nil) or p:at(dst, v * lanes), words[v])
        end
    end, across and "panels" or "pairs of rows")
    return p
end

-- The reverse, for rows of a panel of 2 vectors, `apart` floats from each other: n rows of words become 2 n rows of elements.
function panel_rows.split(cfg, name)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Rows of words as pairs of rows."})
    local dst, src, n = p:pointer("dst", cfg.dtype.c), p:pointer("src", "const float", cfg.pair_units), p:integer("n")
    local apart, half = p:integer("apart"), p:op("const", "low_half", 0xffff)
    over_rows.vectors(p, n, {{src, cfg.pair_width}, {dst, 4 * lanes}}, function()
        local x, y = p:op("load", "x", p:at(src, 0)), p:op("load", "y", p:at(src, 0, apart))
        local even, odd = p:op("groups_even", "even", x, y), p:op("groups_odd", "odd", x, y)   -- what packing keeps together
        p:op("store_bits", p:at(dst, 0), p:op("pack_u16", "low", p:op("bit_and", "even_low", even, half),
            p:op("bit_and", "odd_low", odd, half)))
        p:op("store_bits", p:at(dst, 2 * lanes), p:op("pack_u16", "high", p:op("shr", "even_high", even, 16),
            p:op("shr", "odd_high", odd, 16)))
    end, "rows of words")
    return p
end

-- n pairs of rows of sums of halves, see micro.in_halves: each column's two are added; they go to the upper half of its vector, 0 to the
-- lower one.
function panel_rows.fold(cfg)
    local lanes = cfg.isa.lanes
    local width = cfg.vectors * lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "fold_halves", {"Sums of halves, of n pairs of rows."})
    local S, n = p:pointer("S", "float", "WIDTH LANES"), p:integer("n")
    local zero = p:op("zero", "zero")
    p:loop(n, function()
        local x, y = p:op("load", "x", p:at(S, 0)), p:op("load", "y", p:at(S, width))
        local low, high = p:op("unpack_low", "low", x, y), p:op("unpack_high", "high", x, y)
        local sum = p:op(cfg.product.sum or "add", "sum", p:op("unpack_low", "first", low, high), p:op("unpack_high", "second", low, high))
        local even, odd = sum, sum   -- groups of two sums of x and two of y
        for level = 1, lanes > 8 and 2 or 1 do
            even, odd = p:op("groups_even", "even_" .. level, even, odd), p:op("groups_odd", "odd_" .. level, even, odd)
        end
        p:op("store", p:at(S, 0), p:op("groups_even", "x_sums", zero, p:op("halves_low", "x_upper", even, odd)))
        p:op("store", p:at(S, width), p:op("groups_even", "y_sums", zero, p:op("halves_high", "y_upper", even, odd)))
        p:advance(S, 2 * width)
    end, "pairs of rows")
    return p
end

-- A row of n panels, which are `pitch` floats apart, to C in its dtype. has: name, dtype, add
function panel_rows.collect(cfg, has)
    local p = ir.program(cfg.isa, cfg.prefix .. has.name, {("C %s a row of n panels."):format(has.add and "+=" or "=")})
    local C, S = p:pointer("C", has.dtype.c), p:pointer("S", "const float", "WIDTH LANES")
    local n, pitch = p:integer("n"), p:integer("pitch")
    over_rows.each(p, cfg, n, {C, {S, pitch}}, function(tag, at)
        local to, x = p:at(C, at), p:op("load", "c" .. tag, p:at(S, at))
        if has.add then
            x = p:op("add", "sum" .. tag, x, quantise.load(p, has.dtype, "before" .. tag, to))
        end
        quantise.store(p, has.dtype, to, x)
    end, "panels")
    return p
end

-- Two panels of sums, `pitch` floats apart, to columns of n f32 rows: row r goes to out[r] + column. has: name, add
function panel_rows.collect_rows(cfg, has)
    local lanes = cfg.isa.lanes
    local width = cfg.vectors * lanes
    local p = ir.program(cfg.isa, cfg.prefix .. has.name, {("Columns of n rows %s two panels."):format(has.add and "+=" or "=")})
    local out, column = p:pointer("out", "float *const"), p:integer("column")
    local S, n, pitch = p:pointer("S", "const float", "WIDTH LANES"), p:integer("n"), p:integer("pitch")
    over_rows.vectors(p, n, {{S, width}, {out, 1}}, function()
        local soon, row = p:op("load_pointer", "soon", p:at(out, 8)), p:op("load_pointer", "row", p:at(out, 0))
        for i = 0, 2 * width - 1, 16 do
            p:op("prefetch_0", p:at(soon, i, column))
        end
        for v = 0, 2 * cfg.vectors - 1 do
            local at = p:at(row, v * lanes, column)
            local x = p:op("load", p:named("s_%d", v), p:at(S, v % cfg.vectors * lanes, v >= cfg.vectors and pitch or nil))
            p:op("store", at, has.add and p:op("add", p:named("sum_%d", v), x, p:op("load", p:named("before_%d", v), at)) or x)
        end
    end, "rows")
    return p
end

-- Can pairs of rows of weights be transposed by cache lines? Rows of many matrices lie so far apart that L1 keeps few of them: of a line
-- that is read in halves the second one comes from L2 again.
function panel_rows.by_lines(isa)
    return isa.rows.unpack_low_words ~= nil
end

-- Transposes two squares of weights at a time, see transposed_weights of rows.lua. Pairs of two rows are those of columns 0 .. 3,
-- 8 .. 11 and so on, and of the others: rows of two squares, which lie where their columns go.
function panel_rows.transposed_lines(cfg)
    local lanes, width = cfg.isa.lanes, cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "transpose_lines",
        {("Transpose n times two squares of %d x %d pairs."):format(lanes, lanes)})
    local T, S, n = p:pointer("T", "float", "WIDTH LANES"), p:pointer("S", "const " .. cfg.dtype.c), p:integer("n")
    local ld, back, ahead = p:integer("ld"), p:integer("back"), p:integer("ahead")
    local function row(i) return i // 4 * 8 + i % 4 end
    local function read(name, step)
        p:op("prefetch_1", p:at(S, 0, ahead))
        local x = p:op("load_bits", name, p:at(S, 0))
        p:advance(S, step)
        return x
    end
    p:loop(n, function()
        for i = 0, lanes - 1 do
            local even, odd = read(p:named("even_%d", i), ld), read(p:named("odd_%d", i), i + 1 < lanes and ld or back)
            p:op("store", p:at(T, row(i) * width), p:op("unpack_low_words", p:named("first_%d", i), even, odd))
            p:op("store", p:at(T, (row(i) + 4) * width), p:op("unpack_high_words", p:named("second_%d", i), even, odd))
        end
        p:loop(p:count_from("left", 2), function()
            squares.transposed(p, function(i)
                return p:op("load", p:named("row_%d", i), p:at(T, row(i) * width))
            end, function(c, x)
                p:op("store", p:at(T, row(c) * width), x)
            end)
            p:advance(T, 4 * width)
        end, "squares")
        p:advance(T, (2 * lanes - 8) * width)
    end, "cache lines of a row")
    return p
end

-- n vectors of pairs of a row of tokens, from elements that are `quarter` apart.
function panel_rows.quarters(cfg)
    local how = cfg.product
    local p = ir.program(cfg.isa, cfg.prefix .. "quarters", {"n vectors of pairs of a row's elements that lie a quarter of it apart."})
    local to, from = p:pointer("to", "float"), p:pointer("from", "const " .. cfg.weights.c)
    local quarter, n = p:integer("quarter"), p:integer("n")
    over_rows.vectors(p, n, {from, to}, function()
        local first = how.load(p, cfg.weights, "first", p:at(from, 0))
        p:op("store", p:at(to, 0), how.join(p, "word", first, how.load(p, cfg.weights, "second", p:at(from, 0, quarter))))
    end)
    return p
end

-- The sums of n lines in the order of their columns, which may be where they were. A line's second vector lies `apart` elements from its
-- first one. back: from behind a line's last row to the next line
function panel_rows.in_order(cfg)
    local lanes, width = cfg.isa.lanes, cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "in_order", {"The sums of n lines of columns, of so many rows, in their columns' order."})
    local to, apart, back = p:pointer("to", "float", "WIDTH LANES"), p:integer("apart"), p:integer("back")
    local from = p:pointer("from", "const float", "WIDTH LANES")
    local from_apart, from_back = p:integer("from_apart"), p:integer("from_back")
    local n, rows = p:integer("n"), p:integer("rows")
    p:loop(n, function()
        local left = p:count_from("left", rows)
        p:loop(left, function()
            local a, b = p:op("load", "a_0", p:at(from, 0)), p:op("load", "b_0", p:at(from, 0, from_apart))
            local groups, times = lanes // 4, 1
            while groups > 1 do
                a, b = p:op("groups_even", "a_" .. times, a, b), p:op("groups_odd", "b_" .. times, a, b)
                groups, times = groups // 2, times + 1
            end
            p:op("store", p:at(to, 0), a)
            p:op("store", p:at(to, 0, apart), b)
            p:advance(from, width)
            p:advance(to, width)
        end, "rows")
        p:advance(from, from_back)
        p:advance(to, back)
    end, "lines")
    return p
end

return panel_rows
