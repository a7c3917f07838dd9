-- SPDX-License-Identifier: Apache-2.0
-- quantise.lua - widening loads and narrowing stores of the types of dtype.lua, for targets with and without instructions; loads of
-- formats.lua too.
local quantise = {}

-- Widenings of dtypes without an op that loads them: (program, name, memory) -> f32 vector.
local widen = {
    bf16_to_f32 = function(p, name, mem)
        return p:op("shl", name, p:op("load_u16", name .. "_bits", mem), 16)
    end,
}

-- Vector registers that a widening takes at once, if more than one: by its name.
local registers = {}

-- Vectors whose 32-bit lanes hold two elements, the first one in the low half: program -> f(name, vector) -> two f32 vectors.
local halves = {
    bf16_to_f32 = function(p)
        local high = p:op("const", "high_half", 0xffff0000)
        return function(name, x)
            return p:op("shl", name .. "_low", x, 16), p:op("bit_and", name .. "_high", x, high)
        end
    end,
}

-- Bits of a narrowed vector in the low half of every 32-bit lane: (program, f32 vector) -> vector. Round to nearest even; NaN
-- becomes a quiet NaN.
local bits = {
    f32_to_bf16 = function(p, x)
        local name = x.name
        local high = p:op("shr", name .. "_high", x, 16)
        local odd = p:op("bit_and", name .. "_odd", high, p:const("one", 1))
        local bias = p:op("int_add", name .. "_bias", odd, p:const("half", 0x7fff))
        local sum = p:op("int_add", name .. "_sum", x, bias)
        local rounded = p:op("shr", name .. "_rounded", sum, 16)
        local quiet = p:op("bit_or", name .. "_quiet", high, p:const("quiet", 0x40))
        local nan = p:op("is_nan", name .. "_nan", x, x)
        return p:op("blend", name .. "_bits", nan, rounded, quiet)
    end,
}

-- Store the low 16 bits of every 32-bit lane.
local function store_u16(p, mem, x)
    if p:has("store_u16") then
        return p:op("store_u16", mem, x)
    end
    local packed = p:op("pack_u16", x.name .. "_packed", x, x)
    p:op("store_half", mem, p:op("swap_middle", x.name .. "_low", packed))
end

-- Narrowings of those without an op that stores them: (program, memory, f32 vector).
local narrow = {
    f32_to_bf16 = function(p, mem, x)
        store_u16(p, mem, bits.f32_to_bf16(p, x))
    end,
}

-- The same for numbers that the dtype has.
local exact = {
    f32_to_bf16 = function(p, mem, x)
        store_u16(p, mem, p:op("shr", x.name .. "_bits", x, 16))
    end,
}

-- f32 vectors rounded to numbers of a dtype: (program, vector) -> vector.
local round = {
    f32_to_bf16 = function(p, x)
        local name = x.name .. "_near"
        local odd = p:op("bit_and", name .. "_odd", p:op("shr", name .. "_high", x, 16), p:const("one", 1))
        local sum = p:op("int_add", name .. "_sum", x, p:op("int_add", name .. "_bias", odd, p:const("half", 0x7fff)))
        return p:op("bit_and", name, sum, p:const("high_half", 0xffff0000))   -- the NaNs of arithmetic stay
    end,
    -- Adding and subtracting 1.5 times the power of two that has its last digit leaves the digits; what is too large becomes infinite.
    f32_to_f16 = function(p, x)
        local name, most = x.name .. "_half", 131072.0
        x = p:op("max", name .. "_floored", p:const("smallest_f16", -most), x)
        x = p:op("min", name .. "_capped", p:const("largest_f16", most), x)
        local power = p:op("int_max", name .. "_power", p:op("bit_and", name .. "_field", x, p:const("field", 0x7f800000)),
            p:const("least_f16", 2.0 ^ -14))
        local shift = p:op("mul", name .. "_shift", power, p:const("digit_f16", 1.5 * 2.0 ^ 13))
        local near = p:op("sub", name .. "_near", p:op("add", name .. "_shifted", x, shift), shift)
        local size = p:op("bit_and", name .. "_size", near, p:const("magnitude", 0x7fffffff))
        local over = p:op("is_less", name .. "_over", p:const("top_f16", 65504.0), size)
        return p:op("blend", name .. "_or_infinite", over, near, p:op("mul", name .. "_infinite", near, p:const("huge", 2.0 ^ 127)))
    end,
}

-- f32 vector of consecutive elements of dtype dt.
function quantise.load(p, dt, name, mem)
    if dt.decode then
        return dt.decode(p, name, mem)
    elseif dt.load or not dt.widen then
        return p:op(dt.load or "load", name, mem)
    end
    return widen[dt.widen](p, name, mem)
end

-- Vector registers that loading a vector of dtype dt takes, the result among them.
function quantise.registers(dt)
    return dt.registers or registers[dt.widen] or 1
end

-- For programs whose sums fill the registers: a widening that takes more than one loads its constants where they are used.
function quantise.crowded(p, dt)
    p.hoists = quantise.registers(dt) > 1 and 0 or p.hoists
end

-- For programs that leave registers for it: constants of a decoder are loaded once.
function quantise.hoist(p, dt)
    p.hoists = math.max(p.hoists, dt.registers or 0)
end

-- Elements of dtype dt in a 32-bit lane, as transposes move them.
function quantise.per_lane(dt)
    return halves[dt.widen] and 2 or 1
end

-- f(name, vector) -> the f32 vectors in a vector of so many elements to a lane
function quantise.split(p, dt)
    return quantise.per_lane(dt) > 1 and halves[dt.widen](p) or function(_, x) return x end
end

-- The vectors that become of one of memory, of f32 or of pairs as they are: (name, mem) -> list. cfg: as of quantise.panel
function quantise.vectors(p, cfg)
    local split = cfg.product.group == 1 and quantise.split(p, cfg.dtype)
    return function(name, mem)
        if cfg.product.group > 1 then
            return {p:op("load_bits", name, mem)}
        elseif quantise.per_lane(cfg.dtype) > 1 then
            return {split(name, p:op("load_bits", name .. "_pairs", mem))}
        end
        return {quantise.load(p, cfg.dtype, name, mem)}
    end
end

-- A vector of a panel that products read: f32, or pairs of elements as they are. cfg: dtype, product (see micro.lua)
function quantise.panel(p, cfg, name, mem)
    if cfg.product.element then
        return cfg.product.load(p, name, mem)
    end
    return cfg.product.group > 1 and p:op("load_bits", name, mem) or quantise.load(p, cfg.dtype, name, mem)
end

-- C type of elements of panels whose columns are contracted.
function quantise.column_type(cfg)
    return cfg.product.element or cfg.product.group > 1 and cfg.dtype.c or "float"
end

function quantise.store(p, dt, mem, x)
    if dt.store or not dt.narrow then
        return p:op(dt.store or "store", mem, x)
    elseif dt.round and p:has(dt.round) then
        return p:op("store_half", mem, p:op(dt.round, x.name .. "_rounded", x))
    end
    narrow[dt.narrow](p, mem, x)
end

function quantise.store_exact(p, dt, mem, x)
    if dt.store or not dt.narrow then
        return p:op(dt.store or "store", mem, x)
    end
    exact[dt.narrow](p, mem, x)
end

-- x as a number of dtype dt, in f32.
function quantise.round(p, dt, x)
    return dt.narrow and round[dt.narrow](p, x) or x
end

-- Can two vectors be narrowed into one? adds: to what memory holds, in its order. The second answer: do the groups of 4 lanes
-- of both alternate in it? An instruction that rounds two vectors keeps their order.
function quantise.pairs(dt, isa, adds)
    local alternate = not isa.rows[dt.pair]
    local pairs = bits[dt.narrow] ~= nil and not (adds and alternate)
    return pairs, pairs and alternate
end

function quantise.store_pair(p, dt, mem, x, y, op)
    if p:has(dt.pair) then
        return p:op(op, mem, p:op(dt.pair, x.name .. "_pair", y, x))
    end
    local narrowed = bits[dt.narrow]
    local low = narrowed(p, x)
    p:op(op, mem, p:op("pack_u16", x.name .. "_pair", low, narrowed(p, y)))
end

return quantise
