-- SPDX-License-Identifier: Apache-2.0
-- scales.lua - scales of runs along K for tiles of tiles.lua, which have K in lanes: each lane has that of its run.
--
-- Rows of them are f32, or where a unit has 2 or 4 and nothing is lost, bf16 (`halves`): these rows are half as long, as much as L1 has
-- room for beside codes, and a unit's scales are read alone, not a vector of which most are those of the next units.
local code_scales = require "tiles.code_scales"

local along_scales = {}

local HALF <const> = 2       -- bytes
local SHUFFLED <const> = 4   -- halves of a unit at most that each lane finds by their bytes

-- Two vectors of scales as bf16: (program) -> function of name and memory.
local as_halves = {
    bf16 = function(p)
        return function(name, mem) return p:op("load_bits", name, mem) end
    end,
    -- e8m0: 2^(x - 127), as a float's exponent; 0 is 2^-127, which is subnormal, and 255 is NaN: only these two have bit 6. Without its
    -- carry the exponent after 255 is 0, that after 0 is 1, and all others are larger.
    u8 = function(p)
        local no_signs, bit_6 = p:const("no_signs", 0x7fff7fff), p:const("bit_6", 0x00400040)
        local one, most = p:const("exponent_1", 0x00800080), p:const("less_than_2", 0x7f007f00)
        return function(name, mem)
            local byte = p:op("load_i8_words", name .. "_byte", mem)
            local x = p:op("bit_and", name .. "_power", p:op("shl_words", name .. "_up", byte, 7), no_signs)
            local after = p:op("bit_and", name .. "_after", p:op("int_add", name .. "_more", x, one), no_signs)
            local larger = p:op("int_add", name .. "_larger", after, most)   -- than exponent 1: has bit 15
            local usual = p:op("bit_and", name .. "_usual", p:op("shr", name .. "_down", larger, 9), bit_6)
            return p:op("bit_xor", name, p:op("bit_xor", name .. "_both", x, usual), bit_6)
        end
    end,
}

-- Are scales bf16? each: of a unit of a single token
function along_scales.halves(isa, coded, each)
    return (each == 2 or each == 4) and as_halves[coded.scale] and not coded.second and isa.rows.shuffle_bytes and true or false
end

-- Which of a unit's scales, so many, a lane has, as words of a vector: its number, or, of few halves, its two bytes above zeros.
function along_scales.spread(lanes, unit, each, halves)
    local out = {}
    for l = 0, lanes - 1 do
        local number = unit.of_lane(l) * each // unit.elements
        local byte = number * HALF
        out[l + 1] = halves and each <= SHUFFLED and 0x8080 | byte << 16 | byte + 1 << 24 or number
    end
    return out
end

-- A function that gives a row's scales of a unit, so many, a lane each. at: (row) -> place; table: place of `spread`, if they are several
function along_scales.read(p, each, halves, at, table)
    local spread = each > 1 and p:op("load", "spread", table)
    return function(r)
        local name = p:named("scale_%d", r)
        if halves and each > SHUFFLED then
            return p:op("lookup", name, spread, p:op("shl", name .. "_wide", p:op("load_u16", name .. "_halves", at(r)), 16))
        elseif halves then
            return p:op("shuffle_bytes", name, p:op("bcast_two", name .. "_halves", at(r)), spread)
        end
        return spread and p:op("lookup", name, spread, p:op("load", p:named("scales_%d", r), at(r))) or p:op("bcast", name, at(r))
    end
end

-- The tile that makes rows of halves.
function along_scales.rows(cfg, has)
    return code_scales.rows(cfg, has, {name = "scale_halves", c = "uint16_t", load = as_halves[has.scale], store = "store_bits",
        each = 2 * cfg.isa.lanes})
end

return along_scales
