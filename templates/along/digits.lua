-- SPDX-License-Identifier: Apache-2.0
-- digits.lua - codes of 4 bits times few tokens as integers, for tiles of tiles.lua on CPUs where dot products of pairs are slow.
--
-- A lane has 8 neighbours along K. Of a token these share a power of two, that of the largest one, and are integers of 22 bits beside
-- their sign: exact, unless one is 2^14 times as small as another one. An integer is COUNT digits of 8 bits, which have signs. Codes
-- become bytes: their numbers as integers, 2^less too large, as bytes of weights have no sign. So sums of products are exact, and 32
-- bits hold them: 8 * 2^5 * 2^22 at most.
--
--     8 codes * 8 elements = (((start * 2^8 + W * highest digits) * 2^8 + W * ...) * 2^8 ... - more) * unit
--
-- start takes from sums what they have too much, a multiple of the weight of the highest digit, and `more` is what is left of that,
-- so that sums become f32 as small as they are. Where an element is infinite or NaN, so is unit.
--
-- A unit of a token's row: a vector of start, of unit, of -more * unit, then the digits, the highest ones first: of each a vector for
-- codes with low bits of a byte and one for the others.
local ir = require "ir"

local digits = {}

local COUNT <const>, BITS <const> = 3, 21   -- digits; the largest element of a lane is 2^BITS .. 2^(BITS + 1)
local HEAD <const> = 3                      -- vectors of a unit before its digits

-- Are codes multiplied this way? pairs: otherwise they would be in dot products of pairs. f32 has more digits.
function digits.are(cfg, coded, pairs)
    local isa = cfg.isa
    return coded and coded.bits == 4 and (coded.run or 1) % 8 == 0 and isa.rows.permute_bytes and isa.rows.dot_bytes
        and (pairs and isa.few == "digits" or cfg.product.group == 1 and cfg.dtype.narrow) and true or false
end

-- Numbers of codes of 4 bits as integers: {unit: what one is; less}
local function integers(f)
    local unit, least = 1.0, 0.0
    for _, x in ipairs(f.numbers) do
        while x % unit ~= 0 do
            unit = unit / 2
        end
        least = math.min(least, x)
    end
    local less = 0
    while 1 << less < -least / unit do
        less = less + 1
    end
    return {unit = unit, less = less}
end

-- The bytes of all codes, whatever the two bits above one are, as words of a vector.
function digits.table(f)
    local of, words = integers(f), {}
    for i = 0, 60, 4 do
        local word = 0
        for j = 0, 3 do
            word = word | math.tointeger(f.numbers[(i + j) % 16 + 1] / of.unit) + (1 << of.less) << 8 * j
        end
        words[#words + 1] = word
    end
    return words
end

-- See unit_of in units.lua: another unit, of pairs or numbers, whose words (given) become digits.
function digits.unit(lanes, other)
    return setmetatable({in_words = false, digits = true, words = (HEAD + 2 * COUNT) * lanes, given = other.words}, {__index = other})
end

-- ---- rows of tokens ----

-- The element of a pair, as f32.
local function element(p, name, pair, high)
    return high and p:op("bit_and", name, pair, p:const("high_half", 0xffff0000)) or p:op("shl", name, pair, 16)
end

-- The 8 elements that lanes have of a unit, as they are asked for: (name, i) -> f32 vector. Pairs are an element and that 4 after it.
local function elements(p, unit, place)
    local x = {}
    for i = 0, unit.vectors - 1 do
        x[i] = p:op(unit.pairs and "load_bits" or "load", "given_" .. i, place(i))
    end
    return function(name, i)
        return unit.pairs and element(p, name, x[i % 2 * 2 + i // 2 % 2], i > 3) or x[i]
    end
end

-- What 8 elements share: their largest power of two, or 1 if there is none, and what makes of it infinity or NaN where some element is.
local function shared(p, x)
    local peak = p:op("zero", "peak")
    for i = 0, 7 do
        local size = p:op("bit_and", "size_" .. i, x("y_" .. i, i), p:const("no_sign", 0x7fffffff))
        peak = p:op("int_max", "peak_" .. i, peak, size)
    end
    local power = p:op("bit_and", "field", peak, p:const("exponent", 0x7f800000))
    local none = p:op("is_less", "none", power, p:const("least", 2.0 ^ -126))
    power = p:op("blend", "power", none, p:op("min", "number", power, p:const("most", 2.0 ^ 127)), p:const("one", 1.0))
    return power, p:op("sub", "no_number", peak, p:op("min", "finite", peak, p:const("largest", 0x7f7fffff)))
end

-- Integers of every other element, as bytes are in a lane; also adds them to sum.
local function integers_of(p, get, half, inverse, sum)
    local list, limit = {}, 2.0 ^ (BITS + 1)
    for j = 0, 3 do
        local name = p:named("x_%d_%d", half, j)
        local x = p:op("mul", name .. "_scaled", get(name, 2 * j + half), inverse)
        x = p:op("mul", name .. "_in_bits", x, p:const("bits", 2.0 ^ BITS))
        x = p:op("max", name .. "_above", x, p:const("lowest", -limit))
        local n = p:op("to_int", name .. "_integer", p:op("min", name .. "_below", x, p:const("highest", limit)))
        p:op("move", sum, p:op("int_add", name .. "_sum", sum, n))
        list[j] = n
    end
    return list
end

-- Stores the digits of these: of a number that is 128 in each digit too large, its bytes are digits without sign, less 128 with one.
local function store_digits(p, list, half, at)
    local byte, signs, raised = p:const("byte", 0xff), p:const("signs", 0x80808080), {}
    local raise = p:const("raise", 0x80808080 & (1 << 8 * COUNT) - 1)
    for j = 0, 3 do
        raised[j] = p:op("int_add", list[j].name .. "_raised", list[j], raise)
    end
    for d = COUNT - 1, 0, -1 do
        local word
        for j = 0, 3 do
            local name = p:named("digit_%d_%d_%d", half, d, j)
            local x = d > 0 and p:op("shr", name .. "_down", raised[j], 8 * d) or raised[j]
            x = p:op("bit_and", name, x, byte)
            word = word and p:op("bit_or", name .. "_word", word, p:op("shl", name .. "_up", x, 8 * j)) or x
        end
        p:op("store", at(HEAD + 2 * (COUNT - 1 - d) + half), p:op("bit_xor", p:named("digits_%d_%d", half, d), word, signs))
    end
end

-- A token's n units become units of digits, in their place: from the last one on.
function digits.rows(cfg, has)
    local lanes, of = cfg.isa.lanes, integers(has.coded.format)
    local p = ir.program(cfg.isa, cfg.prefix .. "digits", {"n units of a token's row become digits, from the last one on."})
    local T, S, n = p:pointer("T", "float", "LANES"), p:pointer("S", "const float", "LANES"), p:integer("n")
    local function at(i) return p:at(T, i * lanes) end
    p:loop(n, function()
        local x = elements(p, has.unit, function(i) return p:at(S, i * lanes) end)
        local power, no_number = shared(p, x)
        local inverse = p:op("div", "inverse", p:const("one", 1.0), power)
        local sum = p:op("zero", "sum")
        for half = 0, 1 do
            store_digits(p, integers_of(p, x, half, inverse, sum), half, at)
        end
        local more = p:op("shl", "too_much", sum, of.less)
        local top = 8 * (COUNT - 1)
        local parts = p:op("mul", "parts", p:op("to_float", "number_more", more), p:const("top", -2.0 ^ -top))
        local start = p:op("to_int", "start", parts)
        local left = p:op("to_float", "more", p:op("int_add", "left", more, p:op("shl", "taken", start, top)))
        local unit = p:op("mul", "unit", power, p:const("step", 2.0 ^ -BITS * of.unit))
        p:op("store", at(0), start)
        p:op("store", at(1), p:op("add", "unit_or_nan", unit, no_number))
        p:op("store", at(2), p:op("mul", "less", left, p:op("mul", "minus_unit", unit, p:const("minus_one", -1.0))))
        p:advance(T, -has.unit.words)
        p:advance(S, -has.unit.given)
    end, "units of K")
    return p
end

-- ---- tiles ----

-- Returns a function that multiplies a unit: acc += sums of lanes, times scale(r). t: see tiles.lua; table: place of digits.table
function digits.step(p, t, table, scale)
    local lanes = p.isa.lanes
    local bytes = p:op("load", "bytes", table)
    local function decoded(r)
        local codes = p:op("load_bits", "codes_" .. r, t.at(r, 0))
        local low = p:op("permute_bytes", "low_" .. r, codes, bytes)
        return {[0] = low, p:op("permute_bytes", "high_" .. r, p:op("shr", "codes_up_" .. r, codes, 4), bytes)}
    end
    local function multiply(token, w, by)
        local sum = {}
        local function x(i, name) return p:op("load", p:named("%s_%d", name, token), p:at(t.X, token * t.line + i * lanes)) end
        for r = 0, t.rows - 1 do
            sum[r] = x(0, "sum_" .. r)
        end
        for i = 0, 2 * COUNT - 1 do
            local of_token = x(HEAD + i, "x_" .. i)
            for r = 0, t.rows - 1 do
                sum[r] = i > 0 and i % 2 == 0 and p:op("shl", p:named("sum_%d_%d_up_%d", r, token, i), sum[r], 8) or sum[r]
                p:op("dot_bytes", sum[r], w[r][i % 2], of_token)
            end
        end
        local unit, less = x(1, "unit"), x(2, "less")
        for r = 0, t.rows - 1 do
            local number = p:op("to_float", p:named("number_%d_%d", r, token), sum[r])
            p:op("mul_add", number, unit, less)
            p:op("fma", t.acc[r][token], by[r], number)
        end
    end
    return function()
        local w, by = {}, {}
        for r = 0, t.rows - 1 do
            t.fetch(r)
            w[r] = decoded(r)
        end
        for r = 0, t.rows - 1 do
            by[r] = scale(r)
        end
        for token = 0, t.tokens - 1 do
            p:row(token)
            multiply(token, w, by)
        end
        p:row(nil)
    end
end

-- Rows of a tile, its tokens at most, and tokens of one of twice as many rows: codes as bytes of each row, sums and scales are in
-- registers.
function digits.shape(registers)
    return 2, registers // 4, (registers - 8) // 4 // 2 - 1
end

return digits
