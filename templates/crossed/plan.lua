-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - crossed products: tokens are A of matrix tiles, columns of weights B. Two rows of weights are joined to words as they lie, so
-- that no weight is transposed; sums come out with tokens as rows, and are transposed when all of K is done. On Emerald Rapids the way back
-- through `transposed` weights of 2048 columns takes 0.88 to 0.91 of the time that it took when they were transposed, 256 tokens each;
-- moe_backward of layer A 0.92 to 0.95 of it since two lines of a row are fetched together. Four lines, or more rows of K than half a
-- block, gain nothing: rows lie 4 KB apart, and their lines fall into few sets of L2.
local dtype = require "dtype"
local ir = require "ir"
local over_rows = require "tiles.over_rows"
local panel_rows = require "tiles.panel_rows"
local plans = require "shared.plans"
local rows = require "tiles.rows"

local crossed = {}

-- May products be crossed? Their factor holds squares of words whose rows are tokens, which chunks of so many rows are to fill.
function crossed.may(plan, n)
    local square = plan.isa.lanes * plan.group
    local whole = plan.mc % square == 0 and plan.few_rows % square == 0 and n % square == 0
    return plan.tiled and plan.group == 2 and plan.vectors == 2 and not plan.integers and panel_rows.by_lines(plan.isa) and whole
end

-- Adds the names. names.crosses: there may be some; `crossed`, C, tells of a layout whether they are. block: panels of rows of weights
function crossed.names(names, block)
    local crosses = rawget(names, "crosses")
    plans.append(names.constants, crosses and {
        {"JOINED", math.max(1, block // 2), "panels of K whose words stay in L1"},
    } or {})
    names.crossed = function(layout)
        return layout == "n" and crosses and (names.across and "w->rows > ACROSS" or "1") or "0"
    end
    -- arguments of functions that make words of two rows of a panel, the second factor of a product
    names.to_pairs = function(panel, n, layout)
        return ("%s, %s, %s"):format(names.pairs_of(panel), n, crosses and names.crossed(layout) .. ", " or "")
    end
end

-- Columns of weights as B of matrix tiles: the words of 2 * lanes pairs of rows for each of n panels of K, of two tiles of columns, which
-- take groups of 4 of them in turns: so two cache lines are joined by two operations, as they lie. A panel is `pitch` floats from where
-- the one before ends; tiles lie below each other, words 0 to 15 and 16 to 31 beside each other.
local function joined_columns(cfg)
    local lanes, width = cfg.isa.lanes, cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "join_columns",
        {"Pairs of rows as rows of words: groups of 4 columns go to two tiles in turns."})
    local A, W = p:pointer("A", "float", "WIDTH LANES"), p:pointer("W", "const " .. cfg.dtype.c)
    local n, ld, pitch = p:integer("n"), p:integer("ld"), p:integer("pitch")
    p:loop(n, function()
        p:loop(p:count_from("left", cfg.vectors), function()
            for i = 0, lanes - 1 do
                local even = p:op("load_bits", "even_" .. i, p:at(W, 0))
                p:advance(W, ld)
                local odd = p:op("load_bits", "odd_" .. i, p:at(W, 0))
                p:advance(W, ld)
                p:op("store", p:at(A, i * width), p:op("unpack_low_words", "first_" .. i, even, odd))
                p:op("store", p:at(A, (lanes + i) * width), p:op("unpack_high_words", "second_" .. i, even, odd))
            end
            p:advance(A, lanes)
        end, "tiles beside each other")
        p:advance(A, pitch)
    end, "panels")
    return p
end

-- A square of sums whose columns are those of one of these tiles: they become rows of C, groups of 4 of them in every other place.
local function uncrossed(cfg)
    local width = cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "uncross", {"Columns of a square of sums as rows, in every other group of 4."})
    local C, S = p:pointer("C", "float", "WIDTH LANES"), p:pointer("S", "const float", "WIDTH LANES")
    rows.transposed(p, function(i)
        return p:op("load", "row_" .. i, p:at(S, i * width))
    end, function(c, x)
        p:op("store", p:at(C, (c // 4 * 8 + c % 4) * width), x)
    end)
    return p
end

-- n vectors of words of a token, as a row of as many squares below each other.
local function spread(cfg)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "spread", {"Words of a token as rows of squares."})
    local to, from, n = p:pointer("to", "float", cfg.pair_units), p:pointer("from", "const float"), p:integer("n")
    over_rows.vectors(p, n, {from, {to, lanes * cfg.pair_width}}, function()
        p:op("store", p:at(to, 0), p:op("load", "words", p:at(from, 0)))
    end, "squares")
    return p
end

function crossed.tiles(cfg)
    local lanes, width = cfg.isa.lanes, cfg.pair_width
    return {joined_columns(cfg), uncrossed(cfg), rows.move(cfg, "put_back", {}), spread(cfg),
        rows.squares(cfg, "cross", {dtype = dtype.f32, stride = width, pitch = width, step = lanes * width, along = lanes * width,
            t_units = cfg.pair_units, s_units = cfg.pair_units})}
end

return crossed
