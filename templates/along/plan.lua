-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - products of few tokens in which K lies in lanes: their plan, names and what they keep.
local along_rows = require "along.rows"
local along_scales = require "along.scales"
local along_words = require "along.words"
local decoded = require "along.decoded"
local digits = require "along.digits"
local dtype = require "dtype"
local formats = require "tiles.formats"
local heights = require "tiles.heights"
local in_words = require "codes.words"
local limits = require "shared.limits"
local packed = require "packed.form"
local plans = require "shared.plans"
local rows = require "tiles.rows"
local schema = require "schema"
local stored = require "shared.stored"
local tiles = require "along.tiles"
local units = require "along.units"

local along = {}

-- Rows of a chunk of codes, about: after each one streams begin anew, and scales of the next one are read.
local CHUNK <const> = 256
local STREAMED <const> = 2   -- tokens at most for which four streams are faster: sums of more would not fit into 16 registers

along.key = {"along", schema.types.int(0, 128), optional = true,
    doc = "tokens (of an expert) up to which products with rows of weights have K in lanes; 0: never"}

function along.choose(plan, spec)
    local lanes, format = plan.isa.lanes, spec.weights and stored.format(spec)
    -- Matrix tiles multiply more than a few tokens as fast as memory gives weights. Other tiles leave lanes idle if tokens lie there, and
    -- rows are copied for few panels: on Zen 4, in f32 and bf16, K in lanes takes 0.7 of the time with 20 and 32 tokens of an expert, 0.97
    -- with 40 and 48, 1.06 with 56; of words of codes 0.78 to 0.88 with 24, about 1 with 32; of other codes of 4 bits in pairs 0.63 to 0.77
    -- with 20, 0.92 to 1.02 with 32, 0.86 to 0.98 with 40, 1.03 to 1.11 with 48
    local many, numbers = plan.isa.registers.v >= 32, plan.tiled and 4 or 3 * lanes
    local in_pairs = format and plan.group == 2 and not plan.tiled   -- then decoding costs less, and so do products
    local few = in_pairs and (in_words.are(spec) and lanes * 3 // 2 or format.bits == 4 and lanes * 5 // 2 or lanes * 3 // 4)
    if format and plan.group == 1 and lanes < 16 then
        -- of words that become numbers: on Zen 3 codes of 4 bits take 0.36 of the time with 4, 0.63 with 16 tokens of an expert, those of 8
        -- bits 0.62 with 4, 0.75 with 6, 1.1 with 8; of other codes, which are decoded once, 0.45 to 0.7 with 8, 0.7 to 1.0 with 16, about
        -- 1 with 24
        few = in_words.are(spec) and format.bits == 8 and lanes * 3 // 4 or 2 * lanes
    end
    plan:choose("along", format and (few or (many and 2 or 4) * lanes // format.bits) or numbers,
        "tokens up to which weights of contiguous K are multiplied where they lie, K in lanes: more of them fill lanes",
        limits.useful(128, "more tokens fill lanes"))
    if format and plan.along > 0 and not packed.are(spec) then
        plan.chunk_rows = plan.mc * math.max(1, CHUNK // plan.mc)
    end
end

-- Those of codes in words, if there are tiles for them.
local function names_in_words(names, cfg, plan, deep)
    local coded = names.coded
    local unit = along_words.unit(cfg, coded)
    if not unit then
        return
    end
    local line = plans.odd_lines(plans.round_up(deep, unit.elements) // unit.elements * unit.words)
    names.along = {unit = unit, in_words = true, tokens = unit.tokens, tall = 0, turns = 0, line = line, coded = coded,
        c = "uint8_t", streams = false, streamed = false, later = false, longer = false, decoded = false,
        tables = along_words.tables(cfg, coded, unit)}
    plans.append(names.constants, {
        {"ALONG", plan.along, "tokens for which columns of words lie in lanes,"},
        {"ALONG_SLOTS", plans.round_up(plan.along, cfg.isa.lanes), "as whole vectors;"},
        {"ALONG_TOKENS", unit.tokens, "tokens of a tile at most;"},
        {"LINE", line, "words between tokens' rows: an odd number of cache lines"}})
end

-- Is every K whole units? Also where two products add up a half each.
local function whole_units(unit, contractions)
    local whole = true
    for _, k in ipairs(contractions) do
        whole = whole and k % (2 * unit.elements) == 0
    end
    return whole
end

-- Adds the names. along: false, or what units.of says of units and
--     c, line              C type of weights; words between tokens' rows
--     in_words             weights are words of codes, see words.lua; run: elements that lie together in a row of packed ones
--     whole                every K is whole units
--     rows, tokens, tall   of a tile: rows; tokens at most; tokens at most of one of twice as many rows, or 0
--     turns                tokens at most whose rows of codes are multiplied in turn
--     streams, streamed    tokens at most of a tile of streams, or false; tokens at most that such tiles multiply in turn
--     far                  function: streams of a tile for so many tokens
--     scales, pitch        floats from a unit's scales to the next one's, if a unit has some; from a row's to the next one's
--     decoded              tokens at most of a tile of rows that are decoded before, or false
--     later                rows of sums are scaled in the end
--     longer               chunks of few tokens have more rows than a block
-- contractions: their elements, of rows. narrow: does what follows products, of tokens that fit into a vector, look at no other one? A
-- family may say so.
function along.names(names, cfg, plan, contractions)
    local coded, deep = names.coded, math.max(table.unpack(contractions))
    names.along, names.narrow = false, false
    if not plan.along or plan.along == 0 or coded and (coded.by_columns or names.transposes
        or not formats.scale_rows[coded.scale]) then
        return
    elseif coded and coded.words then
        names_in_words(names, cfg, plan, deep)
        return
    end
    local lanes, has = cfg.isa.lanes, units.of(cfg, coded, contractions)
    local unit, slots = has.unit, plans.round_up(plan.along, lanes)
    local words = plans.round_up(deep, unit.elements) // unit.elements * unit.words
    local height, tokens, tall = units.shape(cfg, has)
    local each, passed = units.scales(has)
    local room = coded and plans.round_up(math.max(coded.run and (deep + coded.run - 1) // coded.run or 1,
        (deep + unit.elements - 1) // unit.elements), lanes) + lanes
    if has.halves then   -- and a float more: the last unit's are read two floats at a time
        room = plans.round_up((deep + unit.elements - 1) // unit.elements * passed + 1, lanes)
    end
    -- on CPUs with matrix tiles fetching numbers ahead is as fast, and with many cores at work faster
    local few = not (names.packed or cfg.tiled and not unit.digits) and math.min(STREAMED, plan.along)
    local whole, turns = whole_units(unit, contractions), coded and math.min(tall, plan.along) or 0
    names.along = setmetatable({c = coded and "uint8_t" or names.io, line = plans.odd_lines(words), whole = whole,
        run = names.packed and names.packed.run, rows = height, tokens = tokens, turns = turns,
        tall = whole and few and turns <= few and 0 or turns,   -- streams leave fewer rows than it has
        streams = few, streamed = few and (coded and plan.along or few),
        scales = passed, pitch = coded and (coded.share == "group" and room or coded.share == "block" and 0 or 1),
        later = coded and not each, longer = few and (plan.chunk_rows or 0) > plan.mc}, {__index = has})
    names.along.decoded = math.min(decoded.tokens(cfg, has), plan.along)
    if names.along.decoded <= 2 * tokens then
        names.along.decoded = false
    end
    -- streams of a tile for so many tokens
    function names.along.far(of)
        return units.streams(cfg, has, of)
    end
    plans.append(names.constants, plans.list(
        {"ALONG", plan.along, "tokens for which K lies in lanes,"},
        {"ALONG_SLOTS", slots, "as whole vectors;"},
        {"ALONG_ROWS", height, "rows of a tile,"},
        {"ALONG_TOKENS", tokens, "and its tokens at most;"},
        names.along.tall > 0 and {"TALL_ROWS", 2 * height, "rows of a tall one,"},
        names.along.tall > 0 and {"TALL_TOKENS", names.along.tall, "and its tokens at most;"},
        names.along.decoded and {"DECODED_ROWS", decoded.ROWS, "rows that are decoded for more tokens,"},
        names.along.decoded and {"DECODED_UNITS", decoded.WORDS // unit.words, "units of K,"},
        names.along.decoded and {"DECODED_TOKENS", names.along.decoded, "and their tiles' tokens at most;"},
        names.packed and {"ALONG_PANELS", 4, "and the panels of packed weights that it passes over"},
        {"LINE", names.along.line, "words between tokens' rows: an odd number of cache lines"},
        coded and {"ALONG_SCALES", room, "between rows of scales"}))
end

-- Are pairs of tokens widened on their way to rows? The dtype's scalar function, or false.
function along.scalar(names, cfg)
    return names.along and names.coded and names.dots and not names.along.unit.pairs and {cfg.dtype, "widen"}
end

-- What it keeps: rows of workspace.lua.
function along.space(names, add)
    local also = names.phases.also
    if not names.along then
        return
    end
    add("lines", "float", {also and "2 * ALONG_SLOTS" or "ALONG_SLOTS", "LINE"}, "tokens as rows,")
    for _, which in ipairs(also and {"", "_last"} or {""}) do
        add("lines_of" .. which, "const float *", nil, "of these panels").starts = "0"
        add("lines_in" .. which, "int64_t", nil, "of this segment").starts = "-1"
    end
    add("parts", "float", {"ALONG_SLOTS", "CHUNK_ROWS", "LANES"}, "sums in lanes")
    add("sums", "float", {"ALONG_SLOTS", "CHUNK_ROWS"}, "of tokens")
    if names.along.coded and not names.along.in_words then
        add("scales", "float", {"CHUNK_ROWS", "ALONG_SCALES"}, "of the rows at work")
    end
    if names.along.decoded then
        add("decoded", "float", {"DECODED_ROWS", "LINE"}, "of these, as f32")
    end
    if not (names.packed or names.along.in_words or names.along.whole) then
        add("ends", names.along.c, {"CHUNK_ROWS", names.along.unit.wide}, "of rows of weights, zeros behind them")
    end
end

-- Do tiles for so many tokens, and streams, take the same steps for each of them?
local function alike(cfg, has, a, b)
    return units.unit(has, a) == units.unit(has, b) and tiles.in_turn(has, a) == tiles.in_turn(has, b)
        and units.streams(cfg, has, a) == units.streams(cfg, has, b)
end

function along.tiles(names, cfg)
    local has, lanes, list = names.along, cfg.isa.lanes, {}
    if not has then
        return list
    end
    local width = cfg.vectors * lanes
    local function for_tokens(most, build, ...)
        local more = {...}
        plans.append(list, heights.all(function(_, tokens) return build(cfg, tokens, has, table.unpack(more)) end, cfg, most, "tokens",
            function(a, b) return alike(cfg, has, a, b) end))
    end
    for_tokens(has.tokens, (has.in_words and along_words or tiles).tile)
    for_tokens(has.streams or 0, tiles.streams)
    for_tokens(has.tall, tiles.tile, true)
    for_tokens(has.decoded or 0, decoded.tile)
    return plans.append(list, plans.list(
        has.decoded and decoded.rows(cfg, has), has.halves and along_scales.rows(cfg, has.coded), along_rows.lines(cfg, has),
        has.one and along_rows.lines(cfg, has, has.one), has.unit.digits and digits.rows(cfg, has),
        not has.in_words and along_rows.fold(cfg),
        rows.squares(cfg, "to_panels", {dtype = dtype.f32, stride = cfg.chunk_rows, s_units = "CHUNK_ROWS", pitch = width,
            step = lanes * width, along = lanes})))
end

return along
