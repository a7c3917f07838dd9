-- SPDX-License-Identifier: Apache-2.0
-- micro.lua - the step that all micro-kernels have in common: sums of a tile += a column of A times a row of B, which is in lanes.
--
-- A word is what a lane multiplies in a step: an f32, or a pair of 16-bit elements whose two products a dot instruction adds.
-- Everything around a step (panels, strides, blocks of k) counts in words.
local dtype = require "dtype"
local quantise = require "tiles.quantise"

local micro = {}

-- How a tile multiplies: op that broadcasts a word of A, op that multiplies and adds, op that does both (if the target has it),
-- and elements to a word; words of K in a step, if more than one. load, join: how `group` rows of weights become a row of words; of rows
-- that are decoded, lower is the first one's part of it.
micro.widened = {
    bcast = "bcast", multiply = "fma", both = "fma_bcast", group = 1,
    load = quantise.load,
    join = function(_, _, x) return x end,
}

function micro.pairs(dt)
    return {
        bcast = "bcast_pair", multiply = dt.dot, both = dt.dot .. "_bcast", group = 2,
        load = function(p, _, name, at)
            return p:op("load_u16", name, at)
        end,
        join = function(p, name, low, high)
            return p:op("bit_or", name, low, p:op("shl", name .. "_up", high, 16))
        end,
    }
end

-- Words of integers, whose products are added up as such. load: of weights, from signed bytes in memory; element: C type of one in a
-- word, which element_of(x) makes of a byte: C; bits: of it. offset: 2^offset is added to weights, so sums hold as many times those of
-- tokens too. sum: op that adds sums; tile: that of matrix tiles; step: multiplies and adds, where no op does both. run: words that
-- share a scale, see runs.lua.
micro.integers = {
    tiles = {group = 4, bits = 8, element = "uint8_t", tile = "tile_dot_i8",
        load = function(p, name, at) return p:op("load_bits", name, at) end,
        element_of = function(x) return x end},
    dot = {group = 4, bits = 8, element = "uint8_t", offset = 7, bcast = "bcast", multiply = "dot_bytes", sum = "int_add",
        load = function(p, name, at)
            return p:op("bit_xor", name, p:op("load_bits", name .. "_signed", at), p:const("offset", 0x80808080))
        end,
        element_of = function(x) return ("(uint8_t)(%s ^ 0x80)"):format(x) end},
    widen = {group = 2, bits = 16, element = "uint16_t", bcast = "bcast", sum = "int_add",
        step = function(p, sum, y, x)
            p:op("move", sum, p:op("int_add", sum.name .. "_more", sum, p:op("dot_words", sum.name .. "_both", y, x)))
        end,
        load = function(p, name, at) return p:op("load_i8_words", name, at) end,
        element_of = function(x) return ("(uint16_t)(int8_t)%s"):format(x) end},
}

-- The same of weights whose numbers type dt has: it is the upper half of f32.
function micro.decoded_pairs(dt)
    local how = micro.pairs(dt)
    how.load = quantise.load
    how.lower = function(p, name, x)
        return p:op("shr", name .. "_down", x, 16)
    end
    how.join = function(p, name, low, high)
        return p:op("bit_or", name, how.lower(p, name, low), high)
    end
    return how
end

-- Of a plan: `group` elements to a word. weights: their row, if they are not of the same type
function micro.of(plan, dtype_name, weights)
    local dt = dtype[dtype_name]
    return (plan.group == 1 or plan.integers) and micro.widened or weights and weights ~= dt and micro.decoded_pairs(dt) or micro.pairs(dt)
end

-- acc[r][v] += a(r) * x[v], for all rows and so many vectors; a gives places in memory.
function micro.multiply(p, how, acc, vectors, a, x)
    for r = 0, #acc do
        p:row(r)
        if vectors == 1 and p:has(how.both) then
            p:op(how.both, acc[r][0], x[0], a(r))
        else
            local y = p:op(how.bcast, p:named("a_%d", r), a(r))
            for v = 0, vectors - 1 do
                if how.step then
                    how.step(p, acc[r][v], y, x[v])
                else
                    p:op(how.multiply, acc[r][v], y, x[v])
                end
            end
        end
    end
    p:row(nil)
end

-- The same for few columns, which lie in the upper half of a vector of B: each has two lanes, for a word and the next one of K.
-- Its two sums are added in the end, see panel_rows.fold.
function micro.in_halves(how)
    return setmetatable({words = 2, bcast = "bcast_two", both = ""}, {__index = how})
end

-- The upper half of x and y, lanes in turn; groups of 4 lanes come in the order that panel_rows.fold expects.
local function in_turn(p, name, x, y)
    return p:op("groups_upper", name, p:op("unpack_low", name .. "_low", x, y), p:op("unpack_high", name .. "_high", x, y))
end

-- acc[r][v] += a(r) * b(v): b gives places too, b(v, 1) of the next word of K.
function micro.step(p, how, acc, vectors, a, b)
    local x = {}
    for v = 0, vectors - 1 do
        x[v] = p:op("load", p:named("b_%d", v), b(v))
        if how.words == 2 then
            x[v] = in_turn(p, p:named("b_%d_both", v), x[v], p:op("load", p:named("b_%d_next", v), b(v, 1)))
        end
    end
    micro.multiply(p, how, acc, vectors, a, x)
end

-- acc += A * B over t.unroll steps of K. t: A, B; vectors; a_row, a_k: elements of A from a row to the next one, and from a step to the
-- next one; b_row: of B likewise. Rows of A are those from `row` (0) on.
function micro.unrolled(p, how, acc, t, row)
    for k = 0, t.unroll - 1, how.words or 1 do
        p:block(p:named("k = %d", k), function()
            micro.step(p, how, acc, t.vectors, function(r)
                return p:at(t.A, (r + (row or 0)) * t.a_row + k * t.a_k)
            end, function(v, further)
                return p:at(t.B, (k + (further or 0)) * t.b_row + v * p.isa.lanes)
            end)
        end)
    end
end

-- A and B go on by as many steps.
function micro.pass(p, t)
    p:advance(t.A, t.unroll * t.a_k)
    p:advance(t.B, t.unroll * t.b_row)
end

function micro.steps(p, how, acc, t)
    micro.unrolled(p, how, acc, t)
    micro.pass(p, t)
end

-- body(row, vector, tag) for each of a tile's sums; tag: for names.
function micro.each(p, rows, vectors, body)
    for r = 0, rows - 1 do
        p:row(r)
        for v = 0, vectors - 1 do
            body(r, v, p:named("_%d_%d", r, v))
        end
    end
    p:row(nil)
end

-- The sums of so many rows and vectors: zero, or what start(name, vector, row) gives.
function micro.zeros(p, rows, vectors, name, start)
    local acc = {}
    micro.each(p, rows, vectors, function(r, v, tag)
        acc[r] = acc[r] or {}
        acc[r][v] = start and start(name .. tag, v, r) or p:op("zero", name .. tag)
    end)
    return acc
end

-- Stores the sums of all rows at place(row, vector), added to what is there or not.
function micro.put(p, acc, vectors, place, adds)
    micro.each(p, #acc + 1, vectors, function(r, v, tag)
        local at, x, name = place(r, v), acc[r][v], "sum" .. tag
        p:op("store", at, adds and p:op("add", name, x, p:op("load", name .. "_before", at)) or x)
    end)
end

-- Vectors of words of `group` rows of weights, which are ld apart (nil: group is 1): at(v) gives the places in the first one, before
-- src advances. On the way to each row, `meanwhile` is done.
function micro.join(p, how, dt, name, vectors, src, ld, at, meanwhile)
    local low, high = {}, {}
    for g = 1, how.group do
        if meanwhile then
            meanwhile()
        end
        for v = 0, vectors - 1 do
            local x = how.load(p, dt, how.group > 1 and p:named("%s_%d_%d", name, v, g) or p:named("%s_%d", name, v), at(v))
            low[v], high[v] = low[v] or x, x
        end
        if g < how.group then
            p:advance(src, ld)
        end
    end
    local words = {}
    for v = 0, vectors - 1 do
        words[v] = how.join(p, p:named("%s_%d", name, v), low[v], high[v])
    end
    return words
end

-- C text of a table: the order in which 16-bit elements of two rounded vectors are words of one of each.
function micro.word_order(name, lanes)
    local list = {}
    for l = 0, lanes - 1 do
        list[l + 1] = ("0x%08xu"):format(l | lanes + l << 16)
    end
    return ("static const uint32_t %s[LANES] = {%s};"):format(name, table.concat(list, ", "))
end

-- Rows of a panel of words, each made of two rows, x and y, vector by vector: how vector v of the row at a pointer is stored. order: see
-- word_order
function micro.words(cfg)
    return {dtype = dtype.f32, put = function(p, to, v, x, y, order)
        local both = p:op(cfg.dtype.pair, x.name .. "_both", y, x)
        p:op("store", p:at(to, v * cfg.isa.lanes), p:op("lookup_words", x.name .. "_words", order, both))
    end}
end

return micro
