-- SPDX-License-Identifier: Apache-2.0
-- words.lua - weights in words of 4 codes (layout `nki`): constants, names and tiles of words.c.in and gather_words.c.in.
--
-- A matrix [K][parts][width] is stored as words [row][parts][run][column] of 4 codes, elements of K one in each quarter of what they are
-- drawn from: of K for gate and up, of a run of 512 for down (see SEMANTICS 1.2, where word `row` of a run is p, a run t, and the code q).
-- In the order (t, p, q), which is that of memory along K, a column is a row of codes as layout `contiguous` has it: words that are
-- neighbours share a scale, 8 by 8. So products contract in this order. Columns of words become rows of codes when a product begins;
-- hidden states are gathered in this order; gate's and up's columns are multiplied in it, so that their sums are.
local dtype = require "dtype"
local ir = require "ir"
local micro = require "tiles.micro"
local plans = require "shared.plans"
local rows = require "tiles.rows"

local words = {}

local WORD <const>, RUN <const>, SCALE <const> = 4, 512, 8   -- codes of a word, elements of a run, words that share a scale

-- Are the weights of a spec words?
function words.are(spec)
    return spec.weights.layout == "nki"
end

-- Words between rows of codes.
local function pitch(spec, bits)
    local per_float = 32 // (WORD * bits)
    return per_float * plans.odd_lines((math.max(spec.H, spec.I_TP) // WORD + per_float - 1) // per_float)
end

words.WORD = WORD

-- Rows of a panel between neighbours of a quarter.
function words.apart(plan)
    return WORD // plan.group
end

-- By the bits of a code: C type of a word, and dtype of elements of its size; joined: two of them are turned as one float.
local kinds = {[8] = {c = "uint32_t", dtype = dtype.f32, joined = false}, [4] = {c = "uint16_t", dtype = dtype.bf16, joined = true}}

-- Adds the names of words. bits: of a code
function words.names(names, spec, bits, lanes)
    local kind = kinds[bits]
    names.coded.words = {c = kind.c, kind = kind, square = kind.joined and 2 * lanes or lanes,
        pitch = pitch(spec, bits) * WORD * bits // 32}
    plans.append(names.constants, {
        {"WORD", WORD, "codes of a word,"}, {"WORD_RUN", RUN, "elements along a contraction whose words lie side by side,"},
        {"WORD_SCALE", SCALE, "words that share a scale"}, {"WORDS", pitch(spec, bits), "words between columns that have become rows"},
    })
    local matrix = names.matrix
    names.matrix = function(...) return ("(const uint8_t *)(%s)"):format(matrix(...)) end
end

-- What a rank keeps: rows of workspace.lua.
function words.space(names)
    return {{"words", names.coded.words.c, {"SLAB", "WORDS"}, "columns of weights at work, as rows,", own = true},
        {"word_scales", "uint8_t", {"SLAB", "WORDS / WORD_SCALE"}, "and their scales", own = true}}
end

-- n vectors of pairs: of each quarter of a row of H elements and the next one.
local function join_quarters(cfg, H)
    local p = ir.program(cfg.isa, cfg.prefix .. "join_quarters", {"Pairs of two quarters of a row, n vectors."})
    local dst, src, n = p:pointer("dst", "float"), p:pointer("src", "const " .. cfg.dtype.c), p:integer("n")
    local how = micro.pairs(cfg.dtype)
    p:loop(n, function()
        local low = how.load(p, cfg.dtype, "low", p:at(src, 0))
        p:op("store", p:at(dst, 0), how.join(p, "pair", low, how.load(p, cfg.dtype, "high", p:at(src, H // WORD))))
        p:advance(src, cfg.isa.lanes)
        p:advance(dst, cfg.isa.lanes)
    end, "vectors")
    return p
end

-- The tiles.
function words.tiles(names, cfg, spec)
    local how = names.coded.words
    local function turn(name, apart)
        return rows.squares(cfg, name, {dtype = how.kind.dtype, joined = how.kind.joined, fetch = true, pitch = apart * how.pitch,
            step = apart * how.pitch * cfg.isa.lanes})
    end
    return plans.list(turn("turn", 1), turn("turn_apart", WORD), names.dots and join_quarters(cfg, spec.H))
end

return words
