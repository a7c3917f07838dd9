-- SPDX-License-Identifier: Apache-2.0
-- joined.lua - codes of 8 bits that no table makes numbers of, as pairs: they are decoded to f32 one by one, exactly, and the upper halves
-- of two vectors are joined.
local joined = {}

-- Are codes multiplied this way? in_pairs: products are of pairs
function joined.are(cfg, coded, in_pairs)
    return in_pairs and cfg.isa.rows.lookup_bytes and coded.bits == 8 and not coded.run and coded.format.digits <= cfg.dtype.digits
end

-- See unit_of in units.lua.
function joined.unit(lanes)
    return {elements = 2 * lanes, vectors = 1, wide = 2 * lanes, words = lanes, pairs = true, joined = true, alone = true, times = 1,
        of_vector = function(v) return 2 * v * lanes end, of_lane = function(l) return 2 * l end, place = "i"}
end

-- Where the bytes of the upper halves lie in two vectors, as words of a vector.
function joined.table(lanes)
    local words = {}
    for i = 0, lanes - 1 do
        words[i + 1] = 0x07060302 + 8 * i * 0x01010101
    end
    return words
end

-- number: (name, place) -> vector of f32; at: (row, element) -> place. Returns (row, vector) -> pairs.
function joined.read(p, place_of_table, number, at)
    local order = p:op("load", "upper_halves", place_of_table)
    return function(r, i)
        local lanes, name = p.isa.lanes, p:named("w_%d_%d", r, i)
        local first, second = number(name .. "_first", at(r, 2 * i * lanes)), number(name .. "_second", at(r, (2 * i + 1) * lanes))
        local pairs_of = p:op("copy", name, order)
        p:op("lookup_bytes", pairs_of, first, second)
        return pairs_of
    end
end

return joined
