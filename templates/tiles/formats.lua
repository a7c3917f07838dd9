-- SPDX-License-Identifier: Apache-2.0
-- formats.lua - element types that only weights have: codes, which tiles decode to f32 on their way into panels or products. Their
-- tensors and scales: shared/stored.lua.
--
-- A NEW FORMAT takes 3 files: a row here, one in shared/stored.lua, and one in the runtime's format.c.
--
-- size, c     bytes a code, its C type
-- digits      bits of the significand; least: exponent of the smallest normal number
-- unit        what a decoded value is to be multiplied by: the one that multiplies sums by scales does (nil: 1)
-- registers   vector registers that decoding takes at once, the result among them
-- decode      (program, name, memory) -> f32 vector: every code's value / unit, exact, infinities and NaNs too
local dtype = require "dtype"

local formats = {}

-- Codes 0 .. 127 are positive, and with the sign bit the same negative. A half has room for all of them: sign, 5 bits of exponent.
local function halves(p, name, mem, shift)
    return p:op("shl_words", name .. "_half", p:op("load_i8_half", name .. "_code", mem), shift)
end

local rows = {
    -- OCP e4m3fn: no infinities; codes of all ones are NaN
    fp8_e4m3 = {
        size = 1, c = "uint8_t", digits = 4, least = -6, unit = 0x1p8, registers = 3,
        -- As halves, of exponent bias 15 for 7, all ones are 1.875, and the next smaller number 1.75: times 1.125 * 2^127 only the
        -- former is infinite, of which 0 * it makes NaN.
        decode = function(p, name, mem)
            local half = p:op("bit_and", name .. "_signed", halves(p, name, mem, 7), p:const("no_bit_14", 0xbf80bf80))
            local x = p:op("widen_f16", name, half)
            local huge = p:op("mul", name .. "_huge", x, p:const("limit", 0x1.2p127))
            return p:op("fma", x, huge, p:const("nothing", 0.0))
        end,
    },
    -- a half without its low byte
    fp8_e5m2 = {
        size = 1, c = "uint8_t", digits = 3, least = -14,
        decode = function(p, name, mem)
            return p:op("widen_f16", name, halves(p, name, mem, 8))
        end,
    },
    int8 = {
        size = 1, c = "uint8_t", digits = 8, least = 0,
        decode = function(p, name, mem)
            return p:op("to_float", name, p:op("load_i8", name .. "_code", mem))
        end,
    },
}

for name, row in pairs(rows) do
    row.name = name
end

formats.rows = rows

-- The row of a spec's weights: one of these, or of dtype.lua.
function formats.of(spec)
    local name = spec.weights and spec.weights.dtype or spec.dtype
    return rows[name] or dtype[name]
end

-- Is each number of type `of` one of type `to`?
function formats.fits(of, to)
    return of.digits <= to.digits and of.least >= to.least
end

return formats
