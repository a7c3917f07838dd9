-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - crossed products: tokens are A of matrix tiles, columns of weights B. Two rows of weights are joined to words as they lie, so
-- that no weight is transposed; sums come out with tokens as rows, and are transposed when all of K is done. On Emerald Rapids the way back
-- through `transposed` weights of 2048 columns takes 0.88 to 0.91 of the time that it took when they were transposed, 256 tokens each;
-- moe_backward of layer A 0.92 to 0.95 of it since two lines of a row are fetched together. Since tiles join the next words beside their
-- products it takes 0.95 to 0.98 of that with one core, and that of OLMoE 0.93; these are fetched before the block that joins them starts.
-- Four lines, or more rows of K than half a block, gain nothing: rows lie 4 KB apart, and their lines fall into few sets of L2; 16 lines,
-- which memory gives in streams, are gone from there before they are joined.
local dtype = require "dtype"
local ir = require "ir"
local over_rows = require "tiles.over_rows"
local panel_rows = require "tiles.panel_rows"
local plans = require "shared.plans"
local rows = require "tiles.rows"

local crossed = {}

-- Panels of K whose words stay in L1, those at work and the next ones. block: that rows of weights have
local function most_panels(block)
    return math.max(1, block // 2)
end

-- May products be crossed? Their factor holds squares of words whose rows are tokens, which chunks of so many rows are to fill.
function crossed.may(plan, n)
    local square = plan.isa.lanes * plan.group
    local whole = plan.mc % square == 0 and plan.few_rows % square == 0 and n % square == 0
    return plan.tiled and plan.group == 2 and plan.vectors == 2 and not plan.integers and panel_rows.by_lines(plan.isa) and whole
end

-- Floats from the words of a block's first tiles of columns to those of the second ones: each pair of rows of K is a row of either, one
-- after the other.
function crossed.second(cfg)
    return most_panels(cfg.block) * cfg.vectors * cfg.isa.lanes * cfg.isa.lanes
end

-- Adds the names. names.crosses: there may be some; `crossed`, C, tells of a layout whether they are; crossed_rows: their only height,
-- since squares of sums are transposed as a whole.
function crossed.names(names, cfg)
    local crosses = rawget(names, "crosses")
    plans.append(names.constants, crosses and {
        {"JOINED", most_panels(cfg.block), "panels of K whose words stay in L1"},
        {"SECOND", crossed.second(cfg), "floats from words of a first tile of columns to those of the second one"},
    } or {})
    names.crossed_rows = crosses and cfg.vectors * cfg.isa.lanes
    names.crossed = function(layout)
        return layout == "n" and crosses and (names.across and "w->rows > ACROSS" or "1") or "0"
    end
    -- arguments of functions that make words of two rows of a panel, the second factor of a product
    names.to_pairs = function(panel, n, layout)
        return ("%s, %s, %s"):format(names.pairs_of(panel), n, crosses and names.crossed(layout) .. ", " or "")
    end
end

-- Two rows of weights, from W on, ld apart, as rows of words of two tiles: so two cache lines are joined by two operations, as they lie,
-- and the tiles take groups of 4 columns in turns. at: offset of the first tile's row; tag: of names
local function join_pair(p, cfg, words, at, W, ld, tag)
    local even = p:op("load_bits", "even_" .. tag, p:at(W, 0))
    p:advance(W, ld)
    local odd = p:op("load_bits", "odd_" .. tag, p:at(W, 0))
    p:advance(W, ld)
    p:op("store", p:at(words, at), p:op("unpack_low_words", "first_" .. tag, even, odd))
    p:op("store", p:at(words, crossed.second(cfg) + at), p:op("unpack_high_words", "second_" .. tag, even, odd))
end

-- Columns of weights as B of matrix tiles: the words of `lanes` pairs of rows for each of n tiles.
local function joined_columns(cfg)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "join_columns",
        {"Pairs of rows as rows of words: groups of 4 columns go to two tiles in turns."})
    local words, W = p:pointer("words", "float", "SECOND LANES"), p:pointer("W", "const " .. cfg.dtype.c)
    local n, ld = p:integer("n"), p:integer("ld")
    p:loop(n, function()
        for i = 0, lanes - 1 do
            join_pair(p, cfg, words, i * lanes, W, ld, i)
        end
        p:advance(words, lanes * lanes)
    end, "tiles")
    return p
end

-- What tiles join beside their products: `joins` pairs of rows of the columns that come next, at a time. Adds the parameters to a program,
-- and returns what does it.
function crossed.beside(p, cfg)
    local words, from = p:pointer("words", "float", "SECOND LANES"), p:pointer("from", "const " .. cfg.dtype.c)
    local ld, joins = p:integer("from_ld"), p:amount("joins")
    return function(tag)
        p:loop(p:count_from("joins_" .. tag, joins), function()
            join_pair(p, cfg, words, 0, from, ld, tag)
            p:advance(words, cfg.isa.lanes)
        end, "rows of the next words", true)
    end
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
