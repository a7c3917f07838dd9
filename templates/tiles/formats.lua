-- SPDX-License-Identifier: Apache-2.0
-- formats.lua - element types that only weights have: codes, which tiles decode to f32 on their way into panels or products. Their
-- tensors and scales: shared/stored.lua.
--
-- A NEW FORMAT of codes of 8 or 4 bits takes 3 files: a row here, one in shared/stored.lua, and one in the runtime's format.c; of codes
-- that no other format has, tests/runtime_format.c wants a statement of what they are worth.
--
-- size, c     bytes a code, its C type; bits: of one, if they are fewer than a byte: two to a byte, the low ones first
-- digits      bits of the significand; least: exponent of the smallest normal number
-- unit        what a decoded value is to be multiplied by: the one that multiplies sums by scales does (nil: 1)
-- registers   vector registers that decoding takes at once, the result among them
-- specials    of codes of 8 bits that are sign and number, with gradual underflow: what is no number, by code without its sign
-- decode      (program, name, memory) -> f32 vector: every code's value / unit, exact, infinities and NaNs too
-- number      of codes of 4 bits: (program, name, integer lanes whose low bits are a code, tables) -> f32 vector likewise
-- offset      of integers: codes are 2^offset too large
-- numbers     the value of each code, of those of 4 bits; zero: a byte of codes of zero
-- values      from so many lanes on `number` reads tables.values, of the first ones
local dtype = require "dtype"
local ir = require "ir"

local formats = {}

-- Codes 0 .. 127 are positive, and with the sign bit the same negative. A half has room for all of them: sign, 5 bits of exponent.
local function halves(p, name, mem, shift)
    return p:op("shl_words", name .. "_half", p:op("load_i8_half", name .. "_code", mem), shift)
end

-- Of codes of 4 bits that are sign and number: looked up with the sign, or without, if a vector has no room for all of them.
local function signed(p, name, x, tables)
    local value = p:op("lookup", name .. "_value", x, tables.values)
    if p.isa.lanes >= 16 then
        return value
    end
    local sign = p:op("shl", name .. "_sign", p:op("shr", name .. "_minus", x, 3), 31)
    return p:op("bit_or", name .. "_signed", value, sign)
end

local rows = {
    -- OCP e4m3fn: no infinities; codes of all ones are NaN
    fp8_e4m3 = {
        size = 1, c = "uint8_t", digits = 4, least = -6, unit = 0x1p8, registers = 3, specials = {[0x7f] = 0 / 0},
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
        specials = {[0x7c] = math.huge, [0x7d] = 0 / 0, [0x7e] = 0 / 0, [0x7f] = 0 / 0},
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
    mxfp4 = {
        bits = 4, c = "uint8_t", digits = 2, least = 0, zero = 0x00, values = 8,
        numbers = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0},
        number = signed,
    },
    int4 = {
        bits = 4, c = "uint8_t", digits = 4, least = 0, zero = 0x88, values = 16, offset = 3,
        numbers = {-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0},
        number = function(p, name, x, tables)
            if p.isa.lanes >= 16 then
                return p:op("lookup", name .. "_value", x, tables.values)
            end
            local code = p:op("bit_and", name .. "_code", x, p:const("nibble", 0xf))
            return p:op("to_float", name .. "_value", p:op("int_add", name .. "_less", code, p:const("minus_8", -8 & 0xffffffff)))
        end,
    },
}
rows.mxfp8_e4m3 = setmetatable({}, {__index = rows.fp8_e4m3})
rows.mxfp8_e5m2 = setmetatable({}, {__index = rows.fp8_e5m2})
rows.nvfp4 = setmetatable({}, {__index = rows.mxfp4})

formats.rows, formats.names = rows, {}
for name, row in pairs(rows) do
    row.name = name
    formats.names[#formats.names + 1] = name
end
table.sort(formats.names)

-- What weights of numbers are of: all dtypes, the widest first.
formats.numbers = {}
for name in pairs(dtype) do
    formats.numbers[#formats.numbers + 1] = name
end
table.sort(formats.numbers, function(a, b)
    return dtype[a].size > dtype[b].size or dtype[a].size == dtype[b].size and a < b
end)

-- The tables of decoding codes of the row f, for tiles: vectors, as words. Bytes are spread over two vectors of lanes, each one twice,
-- and every other lane is shifted to the high code.
function formats.tables(lanes, f)
    local list = {}
    for i = 0, 2 * lanes - 1 do
        list[#list + 1] = i // 2
    end
    for i = 0, lanes - 1 do
        list[#list + 1] = i % 2 * 4
    end
    for i = 0, lanes - 1 do
        list[#list + 1] = ir.bits(f.numbers[i + 1])
    end
    return list
end

function formats.reads_values(f, lanes)
    return f.values ~= nil and lanes >= f.values
end

-- Two f32 vectors of neighbours of the row f: `at` gives places, bytes from the first code on; tables: pointer, or nil.
-- Returns a function of (name, at).
function formats.pairs(p, f, tables)
    local lanes = p.isa.lanes
    if not f.number then
        local unit = f.unit and p:const("unit", f.unit)
        return function(name, at)
            local x = {}
            for v = 0, 1 do
                x[v] = f.decode(p, name .. "_" .. v, at(v * lanes))
                x[v] = unit and p:op("mul", name .. "_exact_" .. v, x[v], unit) or x[v]
            end
            return x
        end
    end
    local function vector(name, i)
        return p:op("load", name, p:at(tables, i * lanes))
    end
    local t = {[0] = vector("spread_0", 0), vector("spread_1", 1), shift = vector("shift", 2),
        values = formats.reads_values(f, lanes) and vector("values", 3)}
    return function(name, at)
        local bytes, x = p:op("load_u8", name .. "_codes", at(0)), {}
        for v = 0, 1 do
            local tag = name .. "_" .. v
            local both = p:op("lookup", tag .. "_both", t[v], bytes)
            x[v] = f.number(p, tag, p:op("shr_by", tag .. "_one", both, t.shift), t)
        end
        return x
    end
end

-- ---- codes as pairs of bf16: bytes of these are looked up by codes ----

-- The op that looks bytes up by codes of the row f, if these have no more digits than bf16, or nil.
local function lookup_of(f)
    return f.bits == 4 and "shuffle_bytes" or f.specials and "lookup_bytes" or nil
end

-- Codes of 128 bits of memory, if f can be decoded this way on target isa, or nil.
function formats.in_pairs(isa, f)
    local op = lookup_of(f)
    return op and isa.rows[op] and isa.rows.unpack_low_bytes and 128 // (f.bits or 8) or nil
end

-- The number of a code of the row f, without its sign if they have 8 bits.
local function number_of(f, code)
    if f.bits == 4 then
        return f.numbers[code + 1]
    end
    local fraction = f.digits - 1
    local low, exponent = code & (1 << fraction) - 1, code >> fraction
    if exponent == 0 then
        return low * 2.0 ^ (f.least - fraction)
    end
    return f.specials[code] or (1 + low / (1 << fraction)) * 2.0 ^ (f.least + exponent - 1)
end

local words_of = setmetatable({}, {__index = function(all, f) all[f] = {} return all[f] end})   -- of a format: by code

-- The number of a code as f32, bit for bit; none of its bits are lost in bf16.
function formats.word(f, code)
    local words = words_of[f]
    words[code] = words[code] or ir.bits(number_of(f, code))
    return words[code]
end

-- Their tables, as words of vectors of so many lanes (nil: 16): the high bytes of all codes, and the low ones; of 4 bits in each 128
-- bits of a vector.
function formats.byte_tables(f, lanes)
    local words, count, sign = {}, f.bits == 4 and (lanes or 16) or 32, f.bits == 4 and 0x80 or 0
    for i = 1, count do
        local high, low = 0, 0
        for j = 0, 3 do
            local bits = formats.word(f, f.bits == 4 and (i - 1) % 4 * 4 + j or (i - 1) * 4 + j)
            high = high | (bits >> 24 & (0x7f | sign)) << 8 * j
            low = low | (bits >> 16 & 0xff) << 8 * j
        end
        words[i], words[count + i] = high, low
    end
    return words
end

-- Decodes a vector of codes that lie at a place to vectors of pairs: (name, place) -> list from 0 on. tables: i -> place of a vector of
-- byte_tables. Codes of 8 bits: of each 16 codes the first 8 become 4 lanes of the first vector, the others of the second one. Of 4 bits:
-- of each 32 codes the even ones of the first 16 become 4 lanes of the first vector, those of the others of the second one, and then
-- the odd ones; half: only the even ones, 0, or the odd ones, 1. load: (name, place) -> vector of codes of 8 bits, if they do not simply
-- lie there
function formats.pairs_of(p, f, tables, load)
    local t = {}
    for i = 0, f.bits == 4 and 1 or 3 do
        t[i] = p:op("load", "bytes_" .. i, tables(i))
    end
    local function words(x, first, name, low, high)
        for i, half in ipairs{"unpack_low_bytes", "unpack_high_bytes"} do
            x[first + i - 1] = p:op(half, p:named("%s_pairs_%d", name, i), low, high)
        end
    end
    if f.bits == 4 then
        local nibble = p:const("nibbles", 0x0f0f0f0f)
        return function(name, place, half)
            local raw, x = p:op("load_bits", name .. "_raw", place), {}
            for n = half or 0, half or 1 do
                local tag = p:named("%s_%d", name, n)
                local code = p:op("bit_and", tag .. "_codes", n == 0 and raw or p:op("shr", tag .. "_down", raw, 4), nibble)
                words(x, 2 * n, tag, p:op("shuffle_bytes", tag .. "_low", t[1], code), p:op("shuffle_bytes", tag .. "_high", t[0], code))
            end
            return x
        end
    end
    local signs = p:const("signs", 0x80808080)
    load = load or function(name, place) return p:op("load_bits", name, place) end
    return function(name, place)
        local high = load(name .. "_high", place)
        local low, minus, x = p:op("copy", name .. "_low", high), p:op("bit_and", name .. "_minus", high, signs), {}
        p:op("lookup_bytes", high, t[0], t[1])
        p:op("lookup_bytes", low, t[2], t[3])
        words(x, 0, name, low, p:op("bit_or", name .. "_signed", high, minus))
        return x
    end
end

-- Scales as all lanes of a vector: (program, name, memory).
formats.scales = {
    f32 = function(p, name, mem)
        return p:op("bcast", name, mem)
    end,
    bf16 = function(p, name, mem)
        return p:op("bit_and", name, p:op("bcast_u16", name .. "_twice", mem), p:const("high_half", 0xffff0000))
    end,
    -- e8m0: 2^(x - 127), as a float's exponent; 0 is 2^-127, 255 is NaN, which infinity - infinity gives
    u8 = function(p, name, mem)
        local bits = p:op("shr", name .. "_byte", p:op("bcast_u8", name .. "_bytes", mem), 1)
        local x = p:op("bit_and", name .. "_exponent", bits, p:const("exponent", 0x7f800000))
        x = p:op("max", name .. "_power", x, p:const("least_scale", 0x00400000))
        return p:op("add", name, x, p:op("sub", name .. "_nothing", x, x))
    end,
}

-- Scales as a vector: (program, name, memory).
formats.scale_rows = {
    f32 = function(p, name, mem)
        return p:op("load", name, mem)
    end,
    bf16 = function(p, name, mem)
        return p:op("shl", name, p:op("load_u16", name .. "_bits", mem), 16)
    end,
    u8 = function(p, name, mem)
        local x = p:op("shl", name .. "_power", p:op("load_u8", name .. "_byte", mem), 23)
        x = p:op("max", name .. "_least", x, p:const("least_scale", 0x00400000))
        return p:op("add", name, x, p:op("sub", name .. "_nothing", x, x))
    end,
}

-- Scales that are codes of these formats are decoded as these are.
for name, f in pairs(rows) do
    formats.scale_rows[name] = f.decode and function(p, x, mem)
        local value = f.decode(p, f.unit and x .. "_small" or x, mem)
        return f.unit and p:op("mul", x, value, p:const("unit", f.unit)) or value
    end or nil
end

-- Are the weights of a spec codes? Those that have the name of the tokens' dtype, which a format may have too, only with scales.
function formats.coded(spec)
    local w = spec.weights or {}
    return rows[w.dtype] ~= nil and (w.dtype ~= spec.dtype or w.scale ~= nil)
end

-- The row of a spec's weights: one of these, or of dtype.lua.
function formats.of(spec)
    local name = spec.weights and spec.weights.dtype or spec.dtype
    return formats.coded(spec) and rows[name] or dtype[name]
end

-- Is each number of type `of` one of type `to`?
function formats.fits(of, to)
    return of.digits <= to.digits and of.least >= to.least
end

return formats
