-- SPDX-License-Identifier: Apache-2.0
-- words.lua - weights in words of 4 codes (layout `nki`): constants, names and tiles of words.c.in and gather_words.c.in.
--
-- A matrix [K][parts][width] is stored as words [row][parts][run][column] of 4 codes, elements of K one in each quarter of what they are
-- drawn from: of K for gate and up, of a run of 512 for down (see SEMANTICS 1.2, where word `row` of a run is p, a run t, and the code q).
-- In the order (t, p, q), which is that of memory along K, a column is a row of codes as layout `contiguous` has it: words that are
-- neighbours share a scale, 8 by 8. So products contract in this order. Columns of words become rows of codes when a product begins;
-- hidden states are gathered in this order; gate's and up's columns are multiplied in it, so that their sums are.
-- On the way back columns are contracted, and K is the sums' rows, in this order: a block of so many columns and words becomes rows of
-- codes, which are decoded and transposed as other columns are (image.c.in).
local dtype = require "dtype"
local ir = require "ir"
local micro = require "tiles.micro"
local over_rows = require "tiles.over_rows"
local plans = require "shared.plans"
local rows = require "tiles.rows"
local stored = require "shared.stored"

local words = {}

local WORD <const>, RUN <const>, SCALE <const> = 4, 512, 8   -- codes of a word, elements of a run, words that share a scale

-- Are the weights of a spec words?
function words.are(spec)
    return spec.weights.layout == "nki"
end

-- Words between rows of so many codes.
local function pitch(elements, bits)
    local per_float = 32 // (WORD * bits)
    return per_float * plans.odd_lines((elements // WORD + per_float - 1) // per_float)
end

words.WORD = WORD

-- Rows of a panel between neighbours of a quarter.
function words.apart(plan)
    return WORD // plan.group
end

-- By the bits of a code: C type of a word, and dtype of elements of its size; joined: two of them are transposed as one float.
local kinds = {[8] = {c = "uint32_t", dtype = dtype.f32, joined = false}, [4] = {c = "uint16_t", dtype = dtype.bf16, joined = true}}

-- Do products of a layout ("k", "n") have columns in the order of words, and others as they come?
local function orders(phases, layout)
    local ordered, plain = false, false
    for _, phase in ipairs(phases) do
        ordered = ordered or phase.layout == layout and phase.ordered
        plain = plain or phase.layout == layout and not phase.ordered
    end
    return {ordered = ordered, plain = plain}
end

-- Elements of a column whose words are transposed together.
function words.square(spec, lanes)
    return WORD * lanes * (kinds[stored.format(spec).bits].joined and 2 or 1)
end

-- Columns in the order of words whose quarters are whole cache lines, two of them.
function words.columns(spec)
    return WORD * 2 * 64 // kinds[stored.format(spec).bits].dtype.size
end

-- Adds the names of words. bits: of a code; unit: elements that are decoded together, of blocks of columns
function words.names(names, spec, plan, bits, unit)
    local kind, lanes, list, transposes = kinds[bits], plan.isa.lanes, names.constants, {}
    -- name of a function, pitch and its C, names of tiles, and what of these is wanted
    local function transpose(name, layout, elements, constant, says)
        local words_apart = pitch(elements, bits)
        list[#list + 1] = {constant, words_apart, says}
        transposes[#transposes + 1] = {name = "transpose_word_" .. name, pitch = words_apart * WORD * bits // 32, constant = constant,
            tile = "transpose_word_" .. name .. "_squares", apart = "transpose_word_" .. name .. "_apart",
            has = orders(names.phases, layout),
            scale_pitch = layout == "k" and plan.isa.rows.store_u8 and words_apart // SCALE or false}
    end
    plans.append(list, {
        {"WORD", WORD, "codes of a word,"}, {"WORD_RUN", RUN, "elements along a contraction whose words lie side by side,"},
        {"WORD_SCALE", SCALE, "words that share a scale"},
    })
    if names.phases.contiguous then
        transpose("columns", "k", math.max(spec.H, spec.I_TP), "WORDS", "words between columns that have become rows")
    end
    if names.transposes then
        transpose("block", "n", plans.round_up(plan.mc, unit) + unit, "BLOCK_WORDS", "the same of a block of columns, which are contracted")
        list[#list + 1] = {"BLOCK_UNIT", unit, "elements that such a block starts at a multiple of"}
    end
    names.coded.words = {c = kind.c, kind = kind, square = kind.joined and 2 * lanes or lanes, transposes = transposes}
    local matrix = names.matrix
    names.matrix = function(...) return ("(const uint8_t *)(%s)"):format(matrix(...)) end
end

-- What a rank keeps: rows of workspace.lua.
function words.space(names)
    local c, contiguous, transposes = names.coded.words.c, names.phases.contiguous, names.transposes
    return plans.list(
        contiguous and {"words", c, {"MC", "WORDS"}, "columns of weights at work, as rows,", own = true},
        contiguous and {"word_scales", "uint8_t", {"MC", "WORDS / WORD_SCALE"}, "and their scales", own = true},
        transposes and {"block_words", c, {"K_PANELS", names.depth, "BLOCK_WORDS"}, "a block of columns, as rows,", own = true},
        transposes and {"block_word_scales", "uint8_t", {"K_PANELS", names.depth, "BLOCK_WORDS / WORD_SCALE"}, "and their scales",
            own = true})
end

-- n vectors of pairs: of each quarter of a row of H elements and the next one.
local function join_quarters(cfg, H)
    local p = ir.program(cfg.isa, cfg.prefix .. "join_quarters", {"Pairs of two quarters of a row, n vectors."})
    local dst, src, n = p:pointer("dst", "float"), p:pointer("src", "const " .. cfg.dtype.c), p:integer("n")
    local how = micro.pairs(cfg.dtype)
    over_rows.vectors(p, n, {src, dst}, function()
        local low = how.load(p, cfg.dtype, "low", p:at(src, 0))
        p:op("store", p:at(dst, 0), how.join(p, "pair", low, how.load(p, cfg.dtype, "high", p:at(src, H // WORD))))
    end)
    return p
end

-- Transposes n squares of bytes: column c of a square becomes the run T[c * apart ..].
local function byte_squares(cfg, name, apart)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. name, {("Transpose n squares of %d x %d bytes."):format(lanes, lanes)})
    local T, S, n = p:pointer("T", "uint8_t", ""), p:pointer("S", "const uint8_t"), p:integer("n")
    local ld, back = p:integer("ld"), p:integer("back")
    p:loop(n, function()
        rows.transposed(p, function(i)
            local x = p:op("load_u8", p:named("row_%d", i), p:at(S, 0))
            p:advance(S, i + 1 < lanes and ld or back)
            return x
        end, function(c, x)
            p:op("store_u8", p:at(T, c * apart), x)
        end)
        p:advance(T, lanes * apart)
    end, "squares")
    return p
end

-- The tiles.
function words.tiles(names, cfg, spec)
    local kind, list = names.coded.words.kind, {}
    local function transpose(name, apart)
        list[#list + 1] = rows.squares(cfg, name, {dtype = kind.dtype, joined = kind.joined, fetch = true, pitch = apart,
            step = apart * cfg.isa.lanes})
    end
    for _, how in ipairs(names.coded.words.transposes) do
        if how.has.plain then
            transpose(how.tile, how.pitch)
        end
        if how.has.ordered then
            transpose(how.apart, WORD * how.pitch)
        end
        if how.scale_pitch then
            plans.append(list, plans.list(how.has.plain and byte_squares(cfg, how.tile .. "_scales", how.scale_pitch),
                how.has.ordered and byte_squares(cfg, how.apart .. "_scales", WORD * how.scale_pitch)))
        end
    end
    list[#list + 1] = names.dots and names.gathers_words and join_quarters(cfg, spec.H) or nil
    return list
end

return words
