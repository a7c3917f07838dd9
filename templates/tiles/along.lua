-- SPDX-License-Identifier: Apache-2.0
-- along.lua - tiles of products of few tokens in which K lies in lanes: weights are read once where they lie, in memory's order, and
-- sums are added up across lanes in the end.
--
-- Tokens are rows, [LINE] words of each, zeros past K. A unit is what tiles take of a row of weights at a time: as many vectors of
-- words as become of a vector of memory, or two of codes. The unit that K ends in is multiplied from a copy, with zeros.
-- Words of a unit are in the order in which decoding leaves them, and so are the tokens' rows: the word of lane l of vector v begins
-- with element of_vector(v) + of_lane(l), and where element i is, `place` says in C.
--
-- Tiles around it, which make rows of tokens and of scales, and sums of lanes: along_rows.lua.
local dtype = require "dtype"
local formats = require "tiles.formats"
local ir = require "ir"
local micro = require "tiles.micro"
local quantise = require "tiles.quantise"

local along = {}

-- A unit of codes that become pairs, c of them of 128 bits of memory: see formats.pairs_of. apart: every other element makes a pair.
local function unit_of_pairs(lanes, c)
    local nibbles = c == 32
    local unit = {elements = lanes // 4 * c, vectors = c // 8, wide = 4 * lanes, words = lanes // 8 * c, pairs = true, looked_up = true,
        apart = nibbles and 1 or nil, times = nibbles and 2 or 1}
    unit.of_vector = function(v) return nibbles and v % 2 * 16 or v * 8 end
    unit.of_lane = function(l) return l // 4 * c + l % 4 * (nibbles and 4 or 2) end
    unit.place = nibbles and "((i % 2 * 2 + i / 16 % 2) * LANES + i / 32 * 4 + i / 4 % 4) * 2 + i / 2 % 2"
        or "(i / 8 % 2 * LANES + i / 16 * 4 + i / 2 % 4) * 2 + i % 2"
    return unit
end

-- A unit of codes of 4 bits that are looked up as words: see formats.words_of.
local function unit_of_words(lanes)
    return {elements = 8 * lanes, vectors = 4, wide = 4 * lanes, words = 4 * lanes, pairs = true, in_words = true, apart = 2, times = 2,
        of_vector = function(v) return v % 2 * 2 end, of_lane = function(l) return l * 8 end,
        place = "((i % 2 * 2 + i / 2 % 2) * LANES + i / 8) * 2 + i / 4 % 2"}
end

-- A unit of codes of 8 bits that become pairs, and these two vectors each.
local function unit_of_parted(lanes)
    return {elements = 4 * lanes, vectors = 4, wide = 4 * lanes, words = 4 * lanes, looked_up = true, times = 2,
        of_vector = function(v) return v // 2 * 8 + v % 2 end, of_lane = function(l) return l // 4 * 16 + l % 4 * 2 end,
        place = "(i / 8 % 2 * 2 + i % 2) * LANES + i / 16 * 4 + i / 2 % 4"}
end

-- What tiles take at a time. elements: of K; vectors: of words; wide: elements of the type that W points to; looked_up: by bytes of
-- codes; in_words: by words of codes; pairs: these become words; apart: of elements that are so many words from each other; times: so many vectors after each other begin equally far apart, and then as many again
function along.unit(cfg, coded)
    local lanes = cfg.isa.lanes
    -- run: neighbours of a lane of memory, of which vector i holds those numbered i
    local function unit(run, vectors, wide)
        return {elements = lanes * vectors, vectors = vectors, wide = wide, words = lanes * vectors, run = run, times = 1,
            of_vector = function(v) return run > 1 and v or v * lanes end, of_lane = function(l) return l * run end,
            place = ("i %% %d * LANES + i / %d"):format(run, run)}
    end
    local pairs_of = cfg.product.multiply == cfg.dtype.dot
    if coded and pairs_of and formats.in_words(cfg.isa, coded.format) and (coded.run or 8) % 8 == 0 then
        return unit_of_words(lanes)
    end
    local c = coded and formats.in_pairs(cfg.isa, coded.format)
    if c and coded.run and coded.run % c > 0 then   -- 4 lanes share a scale
        c = nil
    end
    if c and pairs_of then
        return unit_of_pairs(lanes, c)
    elseif c and coded.bits == 8 and cfg.product.group == 1 then
        return unit_of_parted(lanes)
    elseif coded and coded.bits == 4 then
        return unit(8, 8, 4 * lanes)
    elseif coded then
        return unit(1, 32 // lanes, 32)
    elseif cfg.product.group > 1 then
        local words = unit(1, 1, cfg.product.group * lanes)
        words.elements = words.wide
        return words
    end
    local run = quantise.per_lane(cfg.dtype)
    return unit(run, run, run * lanes)
end

-- Rows of a tile, and its tokens at most: sums, vectors of each row and of a token are in registers, of codes sums of a unit too; tokens of
-- tiles of twice as many rows, which hide how long each sum takes: 0 at least.
function along.shape(cfg, coded)
    local registers = cfg.isa.registers.v
    if coded then
        local unit = along.unit(cfg, coded)
        local tall = unit.in_words and ((registers - 10) // 4 - 1) // (coded.run and 2 or 1) or 0   -- rows of 8 bits: no faster
        return 2, registers // 8 * 3 // 2 - 1, tall
    end
    local height = registers // 8
    return height, (registers - height * along.unit(cfg).vectors - 2) // height
end

-- Scales of a unit, if a run of a row shares one: tiles have one for each at least.
function along.scales(cfg, coded)
    return coded and coded.run and math.max(1, along.unit(cfg, coded).elements // coded.run)
end

-- Tables of tiles for codes, or nil: which scale a lane has, and what codes are.
function along.tables(cfg, coded)
    local lanes, f, unit = cfg.isa.lanes, coded.format, along.unit(cfg, coded)
    local looked_up, of_unit = unit.looked_up or unit.in_words, along.scales(cfg, coded) or 1
    if not (looked_up or f.number and (formats.reads_values(f, lanes) or of_unit > 1)) then
        return nil
    end
    local list = unit.in_words and formats.word_table(f) or looked_up and formats.byte_tables(f) or formats.tables(lanes, f)
    local each = lanes // of_unit
    local out = {}
    for l = 0, lanes - 1 do
        out[l + 1] = l // each
    end
    return table.move(list, looked_up and 1 or 3 * lanes + 1, #list, lanes + 1, out)
end

-- f(row, place) -> vectors of a unit of weights, one by one
local function of_numbers(p, cfg)
    local split = cfg.product.group == 1 and quantise.split(p, cfg.dtype)
    return function(r, at)
        local name = "w_" .. r
        if cfg.product.group > 1 then
            return {p:op("load_bits", name, at(0))}
        elseif quantise.per_lane(cfg.dtype) > 1 then
            return {split(name, p:op("load_bits", name .. "_pairs", at(0)))}
        end
        return {quantise.load(p, cfg.dtype, name, at(0))}
    end
end

-- acc += W * X over a unit of numbers.
local function number_step(p, cfg, t, read)
    local lanes, w = cfg.isa.lanes, {}
    for r = 0, t.rows - 1 do
        p:op("prefetch_1", t.near(r))
        w[r] = read(r, function(i) return t.at(r, i) end)
    end
    for i = 1, t.unit.vectors do
        for token = 0, t.tokens - 1 do
            local x = p:op("load", ("x_%d_%d"):format(token, i), p:at(t.X, token * t.line + (i - 1) * lanes))
            for r = 0, t.rows - 1 do
                p:op(cfg.product.multiply, t.acc[r][token], w[r][i], x)
            end
        end
    end
end

-- Vectors of a unit of codes of a row: f(row, i, before) -> vector; before: of i - 1
local function of_codes(p, cfg, t, f, tables)
    local lanes = cfg.isa.lanes
    if t.unit.in_words then
        local read, codes = formats.words_of(p, p:at(tables, lanes)), {}
        return function(r, i)
            codes[r] = i == 0 and p:op("load_bits", "codes_" .. r, t.at(r, 0)) or codes[r]
            return read(("w_%d_%d"):format(r, i), codes[r], i)
        end
    elseif t.unit.looked_up then
        local read, x = formats.pairs_of(p, f, function(i) return p:at(tables, (i + 1) * lanes) end), {}
        local part = not t.unit.pairs and quantise.split(p, dtype.bf16)
        local two
        return function(r, i)
            x[r] = i == 0 and read("w_" .. r, t.at(r, 0)) or x[r]
            if not part then
                return x[r][i]
            end
            two = i % 2 == 0 and {part(("w_%d_%d"):format(r, i), x[r][i // 2])} or two
            return two[i % 2 + 1]
        end
    elseif f.number then
        local values = {values = formats.reads_values(f, lanes) and p:op("load", "values", p:at(tables, lanes))}
        local raw
        return function(r, i)
            raw = i == 0 and p:op("load_bits", "codes_" .. r, t.at(r, 0)) or p:op("shr", ("codes_%d_%d"):format(r, i), raw, 4)
            return f.number(p, ("w_%d_%d"):format(r, i), raw, values)
        end
    end
    local read, pair = formats.pairs(p, f), nil
    return function(r, i)
        pair = i % 2 == 0 and read(("w_%d_%d"):format(r, i), function(k) return t.at(r, i * lanes + k) end) or pair
        return pair[i % 2]
    end
end

-- The same of codes: sums of a unit are scaled, if scales are of runs. Of few tokens pairs of all rows are multiplied in turn, because each
-- sum waits for what was added to it before.
local function code_step(p, cfg, t, read, scale)
    local lanes, multiply = cfg.isa.lanes, t.unit.pairs and cfg.product.multiply or "fma"
    local sum, x = {}, {}
    local function token_at(r, token, i)
        if r == 0 or not t.in_turn then
            x[token] = p:op("load", ("x_%d_%d_%d"):format(r, token, i), p:at(t.X, token * t.line + i * lanes))
        end
        return x[token]
    end
    local function part(r, i)
        local w = read(r, i)
        for token = 0, t.tokens - 1 do
            local first, name, y = scale and i == 0, ("sum_%d_%d"):format(r, token), token_at(r, token, i)
            if first and not t.unit.pairs then
                sum[r][token] = p:op("mul", name, w, y)
            else
                sum[r][token] = first and p:op("zero", name) or sum[r][token]
                p:op(multiply, scale and sum[r][token] or t.acc[r][token], w, y)
            end
        end
    end
    local last = t.unit.vectors - 1
    for r = 0, t.rows - 1 do
        p:op("prefetch_1", t.near(r))
        sum[r] = {}
        for i = 0, t.in_turn and -1 or last do
            part(r, i)
        end
    end
    for i = 0, t.in_turn and last or -1 do
        for r = 0, t.rows - 1 do
            part(r, i)
        end
    end
    for r = 0, scale and t.rows - 1 or -1 do
        local factor = scale(r)
        for token = 0, t.tokens - 1 do
            p:op("fma", t.acc[r][token], factor, sum[r][token])
        end
    end
end

-- What parts hold: sums of numbers go on from there, so that their bits do not depend on how K is cut.
local function before(p, cfg, t, parts)
    local acc = {}
    for r = 0, t.rows - 1 do
        acc[r] = {}
        for token = 0, t.tokens - 1 do
            acc[r][token] = p:op("load", ("acc_%d_%d"):format(r, token), p:at(parts, (token * cfg.mc + r) * cfg.isa.lanes))
        end
    end
    return acc
end

-- The tile for so many tokens; tall: of twice as many rows. has: line (words of a token's row), coded (see codes/plan.lua) and pitch (between rows' scales, f32), or
-- nil. Rows of a group lie ld apart, two of them from W on and, ld_2 apart, two from W_2 on; `over`, `back` and `s_over` lead from the
-- end of a group's rows to the next one's, of W, of X and of scales. Fetches lines at `near`, which moves on by `step`, at each unit.
-- has.run: W is packed, `panels` of runs of this length; a row's n units of a panel follow each other, `leap` leads to those in the next
-- one. What lies `ahead` of them is fetched.
function along.tile(cfg, tokens, has, tall)
    local lanes, coded, unit = cfg.isa.lanes, has.coded, along.unit(cfg, has.coded)
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, tall and "tall" or "along", tokens),
        {("parts[%d tokens][rows] += W * X over n units, K in lanes, for groups of rows; fetches weights at `near`."):format(tokens)})
    local t = {tokens = tokens, rows = has.rows * (tall and 2 or 1), unit = unit, line = has.line,
        in_turn = coded and tokens <= has.tall}
    local c = coded and "const uint8_t" or "const " .. cfg.dtype.c
    local parts = p:pointer("parts", "float", "MC*LANES LANES")
    t.X = p:pointer("X", "const float", "LINE LANES")
    local run = has.run
    local W, W_2 = p:pointer("W", c), not run and t.rows > 2 and p:pointer("W_2", c)
    local near, step = not run and p:pointer("near", c), p:integer(run and "ahead" or "step")
    local n, groups = p:amount("n"), p:integer("groups")
    local panels, leap = run and p:integer("panels"), run and p:integer("leap")
    local ld, ld_2 = not run and p:integer("ld"), W_2 and not tall and p:integer("ld_2")
    local over, back = p:integer("over"), p:integer("back")
    local line = 64 // (coded and 1 or cfg.dtype.size)
    t.near = function(r) return run and p:at(W, r * run, step) or p:at(near, r * line) end
    t.at = function(r, i)
        return run and p:at(W, r * run + i) or p:at(r >= 2 and W_2 or W, i, r == 1 and ld or r == 3 and (ld_2 or ld) or nil)
    end
    local scales, s_over = coded and p:pointer("scales", "const float"), coded and along.scales(cfg, coded) and p:integer("s_over")
    local tables = coded and along.tables(cfg, coded) and p:pointer("tables", "const float")
    local each, scale = along.scales(cfg, coded), nil
    local read
    if coded then
        read = of_codes(p, cfg, t, coded.format, tables)
        local spread = each and each > 1 and p:op("load", "spread", p:at(tables, 0))
        scale = each and function(r)
            local at = p:at(scales, r * has.pitch)
            return spread and p:op("lookup", "scale_" .. r, spread, p:op("load", "scales_" .. r, at))
                or p:op("bcast", "scale_" .. r, at)
        end
    else
        read = of_numbers(p, cfg)
    end
    local function units()
        p:loop(p:count_from("left", n), function()
            if coded then
                code_step(p, cfg, t, read, scale)
            else
                number_step(p, cfg, t, read)
            end
            p:advance(W, unit.wide)
            if W_2 then
                p:advance(W_2, unit.wide)
            end
            if near then
                p:advance(near, step)
            end
            p:advance(t.X, unit.words)
            if each then
                p:advance(scales, each)
            end
        end, "units of K")
    end
    p:loop(groups, function()
        t.acc = coded and micro.zeros(p, t.rows, tokens, "acc") or before(p, cfg, t, parts)
        if run then
            p:loop(p:count_from("panels_left", panels), function()
                units()
                p:advance(W, leap)
            end, "panels")
        else
            units()
        end
        for token = 0, tokens - 1 do
            for r = 0, t.rows - 1 do
                local at, name = p:at(parts, (token * cfg.mc + r) * lanes), ("_%d_%d"):format(r, token)
                local so_far = coded and p:op("load", "before" .. name, at)
                if coded and not each then
                    p:op("fma", so_far, p:op("bcast", "scale" .. name, p:at(scales, r)), t.acc[r][token])
                    p:op("store", at, so_far)
                else
                    p:op("store", at, coded and p:op("add", "part" .. name, so_far, t.acc[r][token]) or t.acc[r][token])
                end
            end
        end
        p:advance(parts, t.rows * lanes)
        p:advance(W, over)
        if W_2 then
            p:advance(W_2, over)
        end
        p:advance(t.X, back)
        if coded then
            p:advance(scales, s_over or t.rows)
        end
    end, "groups of rows")
    return p
end

return along
