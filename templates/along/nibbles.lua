-- SPDX-License-Identifier: Apache-2.0
-- nibbles.lua - codes of 4 bits that are looked up as words, for tiles of tiles.lua: a lane of a vector of codes has 8 neighbours, of which
-- words are made of the first one and that 4 after it, then of the third, second and fourth one and those 4 after them.
--
-- What a lane adds up is of one run of a scale, which multiplies it: that is an op for 4 products, unless a unit has some vectors of codes,
-- side by side in memory. Transposed, 2 or 4 at a time, a lane has as many groups of 8 codes of a run, and an op will do for all of them.
local plans = require "shared.plans"

local nibbles = {}

local CODES <const> = 8   -- of a lane

-- Time that tiles take with so many vectors side by side: of 4 tokens on Zen 4
local times <const> = {{1, 1.0}, {2, 0.91}, {4, 0.87}}

-- Vectors of codes of a unit: those with which products take the least time. run: codes that share a scale, or nil; contractions: elements,
-- which are whole units
function nibbles.side_by_side(lanes, run, contractions)
    local best, least = 1, math.huge
    for _, row in ipairs(run and times or {}) do
        local count, time = row[1], 0
        local elements = count * lanes * CODES
        for _, K in ipairs(contractions) do
            time = time + row[2] * plans.round_up(K, elements)
        end
        if run % (count * CODES) == 0 and time < least then
            best, least = count, time
        end
    end
    return best
end

-- What tiles take at a time, see units.lua, of so many vectors of codes side by side. Vector 4 j + i has the codes of step i of words
-- of group j of lanes' runs. Transposed, `count` lanes that begin at a multiple of it have those of one vector of memory each, group j
-- that of its lane j there.
function nibbles.unit(lanes, count)
    local per_vector, words = CODES * lanes, 4 * count * lanes
    local lane, group = ("i / %d"):format(CODES), "0"   -- of element i: C
    if count > 1 then
        lane = ("(i %% %d / %d * %d + i / %d)"):format(per_vector, count * CODES, count, per_vector)
        group = ("i / %d %% %d"):format(CODES, count)
    end
    local step, half = "i % 2 * 2 + i / 2 % 2", "i / 4 % 2"   -- its word in that lane, and which half of that it is
    return {elements = count * per_vector, vectors = 4 * count, wide = words, words = words, pairs = true, in_words = true, count = count,
        apart = 2, times = 2,
        of_vector = function(v) return v // 4 * CODES + v % 2 * 2 end,
        of_lane = function(l) return l % count * per_vector + l // count * count * CODES end,
        place = ("((%s * 4 + %s) * LANES + %s) * 2 + %s"):format(group, step, lane, half)}
end

-- Decodes a vector of codes in two steps: (name, codes, i) -> words to be looked up, and (name, words) -> pairs. table: place of
-- coded.word_table
local function words_of(p, table)
    local t = p:op("load", "words", table)
    local multiplies, by = p.isa.down == "high_words", {}   -- down: what moves words down beside all the rest, see isa/amx.lua
    for i, bits in ipairs{8, 4, 12} do
        by[i] = multiplies and p:op("const", "up_" .. 16 - bits, 1 << 16 - bits | 1 << 32 - bits) or bits
    end
    return function(name, codes, i)
        return i > 0 and p:op(multiplies and "high_words" or "shr", name .. "_codes", codes, by[i]) or codes
    end, function(name, words)
        return p:op("lookup_words", name, words, t)
    end
end

-- Groups 2 h and 2 h + 1 of a row's runs, of vectors of codes that load(i) gives.
local function two_groups(p, count, name, h, load)
    local function pair(i, high)
        local tag = p:named("%s_%d_%s", name, i, high and "high" or "low")
        return p:op(high and "unpack_high" or "unpack_low", tag, load(i, tag .. "_first"), load(i + 1, tag .. "_second"))
    end
    local a, b = pair(0, count == 4 and h == 1), pair(count == 4 and 2 or 0, count == 2 or h == 1)
    return {[0] = p:op("halves_low", name .. "_even", a, b), p:op("halves_high", name .. "_odd", a, b)}
end

-- See units.read.
function nibbles.read(p, t, table)
    local down, look_up = words_of(p, table)
    local count, per_vector, groups, words = t.unit.count, t.unit.wide // t.unit.count, {}, {}
    local function group(r, j)
        local function load(i, name) return p:op("load_bits", name, t.at(r, i * per_vector)) end
        if count == 1 then
            return load(0, p:named("codes_%d", r))
        end
        groups[r] = j % 2 == 0 and two_groups(p, count, p:named("codes_%d_%d", r, j), j // 2, load) or groups[r]
        return groups[r][j % 2]
    end
    local codes = {}
    return function(r, i)
        return look_up(p:named("w_%d_%d", r, i), words[r])
    end, function(r, i)
        codes[r] = i % 4 == 0 and group(r, i // 4) or codes[r]
        words[r] = down(p:named("w_%d_%d", r, i), codes[r], i % 4)
    end
end

return nibbles
