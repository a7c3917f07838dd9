-- SPDX-License-Identifier: Apache-2.0
-- prequantised.lua - operands of quantised products that the caller gives as codes with scales (`prequantised`): keys, arguments, names
-- and tiles of prequantised.c.in.
--
-- An operand [R, C] has scales along one of its extents, K of them in a contraction, of which there are F. A product along K takes the
-- numbers as they are; one along F has them quantised again, as it has others. Tokens are decoded on their way into panels, weights on
-- theirs to a chunk's product.
--     form       plain: codes [R, C]; swizzled: [steps * 8, 4 F], steps = ceil(K / 32): 4 elements of a contraction side by side
--     scales     dense: [steps, F]; oversized: [steps * 8, F]; packed: [ceil(steps / 64) * 128, F]; what is between them is not read
local dtype = require "dtype"
local formats = require "tiles.formats"
local ir = require "ir"
local plans = require "shared.plans"
local quantise = require "tiles.quantise"
local schema = require "schema"

local prequantised = {}

local enum, map = schema.types.enum, schema.types.map

local BLOCK <const> = 32   -- elements that share a scale

-- Rows of scales, of so many blocks.
local shapes = {
    dense = function(steps) return steps end,
    oversized = function(steps) return 8 * steps end,
    packed = function(steps) return (steps + 63) // 64 * 128 end,
}

-- Operands: extents [R, C], and which of them their scales may be along, the usual one first. usual: by family, if that differs;
-- gates: those along R are of the gate's matrix, then of up's
local operands = {
    {"hidden_states", R = "S", C = "H", along = {"H"}, doc = "along H"},
    {"gate_up_weights", R = "I_TP", C = "H", along = {"H", "I"}, gates = true, doc = "of gate, then of up: along I, each has its own"},
    {"down_proj_weight", R = "H", C = "I_TP", along = {"I", "H"}, usual = {mlp_backward = "H"},
        doc = "mlp_forward contracts I, mlp_backward H"},
    {"output_hidden_states_grad", R = "S", C = "H", along = {"H"}, backward = true, doc = "along H"},
}

-- The key. backward: for mlp_backward
function prequantised.key(backward)
    local rows = {}
    for _, row in ipairs(operands) do
        local own = {
            {"form", enum{"plain", "swizzled"}, default = "plain",
                doc = "plain: codes (u8) lie as numbers would; swizzled: [K/4, 4 F], 4 elements of a contraction side by side"},
            {"scales", enum{"dense", "oversized", "packed"}, default = "dense",
                doc = "u8; dense: [K/32, F]; oversized: [K/4, F], row i at i/4*32 + i%4; packed: 128 rows for 2048 elements"}}
        if #row.along > 1 then
            own[3] = {"along", enum(row.along), optional = true,
                doc = "the extent that scales are along; if none is given, the contraction of the first product that reads it"}
        end
        if backward or not row.backward then
            rows[#rows + 1] = {row[1], map(own), optional = true, doc = row.doc}
        end
    end
    return {"prequantised", map(rows), doc = "operands given as codes of quantize, and <operand>_scales: "
        .. "of K elements of a contraction and F contractions; a product along the other extent quantises their values again"}
end

prequantised.rules = {{"prequantised", function(s) return s.quantize ~= "none" or not next(s.prequantised) end,
    "operands are codes of a format, which {quantize} does not name"}}

-- How an operand is given, or nil. axis: "C" or "R", along which it has scales; parts: matrices in it; K, F: extents of each;
-- steps: rows of dense scales
function prequantised.of(s, tensor)
    local given = s.prequantised[tensor]
    for _, row in ipairs(given and operands or {}) do
        if row[1] == tensor then
            local along = given.along or row.usual and row.usual[s.kernel] or row.along[1]
            local axis = row.C:sub(1, 1) == along and "C" or "R"
            local parts = row.gates and s.gated and 2 or 1
            local K, F = s[axis == "C" and row.C or row.R], axis == "C" and row.R or row.C
            F = F == "S" and F or s[F] * (axis == "C" and parts or 1)
            return {tensor = tensor, axis = axis, parts = axis == "R" and parts or 1, K = K, F = F, swizzled = given.form == "swizzled",
                scales = given.scales, steps = (K + BLOCK - 1) // BLOCK, all = F == "S" and "w->args->S" or ("%d"):format(F)}
        end
    end
end

local function times(n, F)
    return F == "S" and (n > 1 and ("%d*S"):format(n) or F) or n * F
end

-- The arguments of an operand whose row of numbers is given: that, or codes and scales.
function prequantised.args(s, row)
    local given = prequantised.of(s, row[1])
    if not given then
        return {row}
    end
    local codes = given.swizzled and {8 * given.steps * given.parts, times(4, given.F)} or {row[4], row[5]}
    return {
        {row[1], "u8", "in", codes[1], codes[2], says = row.says .. (given.swizzled and "; swizzled codes" or "; codes")},
        {row[1] .. "_scales", "u8", "in", shapes[given.scales](given.steps) * given.parts, times(1, given.F), says = "of " .. row[1]},
    }
end

-- Bytes of an element of an operand.
function prequantised.size(s, tensor)
    return prequantised.of(s, tensor) and 1 + 1 / BLOCK or dtype[s.dtype].size
end

-- Adds the names; returns the cfg of weights at work, which are f32 where the dtype has not all exponents of scales. tokens, weights:
-- tensors
function prequantised.names(names, cfg, spec, tokens, weights)
    local list, needs, image = {}, {}, cfg.dtype
    names.given, names.operands, names.decoders, names.gathers = {}, list, {}, {}
    for _, tensor in ipairs(weights) do
        image = prequantised.of(spec, tensor) and cfg.dtype.least > dtype.f32.least and dtype.f32 or image
    end
    local function add(tensor, to, is_token)
        local given = prequantised.of(spec, tensor)
        if given then
            given.decode = "decode_" .. tensor
            given.to, given.is_token, given.rows = to, is_token, shapes[given.scales](given.steps)
            list[#list + 1], names.given[tensor], needs[to.name] = given, given, to
            list.lines = list.lines or given.axis == "C" or given.swizzled
            list.runs = list.runs or given.axis == "C"
            names.given_weights = names.given_weights or not is_token
        end
    end
    names.given_weights, names.weights_given, list.lines, list.runs = false, "", false, false
    for _, tensor in ipairs(tokens) do
        add(tensor, names.dots and cfg.dtype or dtype.f32, true)
        names.gathers[#names.gathers + 1] = names.given[tensor] and tensor
    end
    if #names.gathers < #tokens or spec.checkpoint == "saved" then   -- numbers
        names.gathers[#names.gathers + 1] = ""
    end
    for _, tensor in ipairs(weights) do
        add(tensor, image, false)
        names.weights_given = names.weights_given .. (names.given[tensor] and ", " .. tensor:upper() or "")
    end
    for _, name in ipairs(formats.numbers) do
        names.decoders[#names.decoders + 1] = needs[name]
    end
    names.widens = names.gathers[#names.gathers] == ""
    if image == cfg.dtype then
        return cfg
    end
    names.widens = names.widens or not (names.given[weights[1]] and names.given[weights[2]])
    names.scalars[1] = names.widens and names.scalars[1]
    names.tensor, names.io, names.widen_tensor = cfg.dtype, image.c, names.widen_io
    names.widen_io, names.keep_io = plans.convert(image, "widen"), plans.convert(image, "widen")
    return setmetatable({dtype = image}, {__index = cfg})
end

-- n vectors of codes, each with a scale of its own, as numbers.
local function decode(cfg, name, format, to)
    local lanes, f = cfg.isa.lanes, formats.rows[format]
    local p = ir.program(cfg.isa, cfg.prefix .. name, {("%s = codes of %s, times scales."):format(to.name, format)})
    local dst, code, scale = p:pointer("dst", to.c), p:pointer("code", "const uint8_t"), p:pointer("scale", "const uint8_t")
    local n = p:integer("n")
    local unit = f.unit and p:op("const", "unit", f.unit)
    local least = p:op("const", "least_scale", 0x00400000)
    p:loop(n, function()
        local x = f.decode(p, "x", p:at(code, 0))
        x = unit and p:op("mul", "x_exact", x, unit) or x
        -- 2^(byte - 127), as formats.scales has it
        local power = p:op("max", "power", p:op("shl", "exponent", p:op("load_u8", "byte", p:at(scale, 0)), 23), least)
        power = p:op("add", "scale_or_nan", power, p:op("sub", "none", power, power))
        quantise.store_exact(p, to, p:at(dst, 0), p:op("mul", "value", x, power))
        p:advance(code, lanes)
        p:advance(scale, lanes)
        p:advance(dst, lanes)
    end, "vectors")
    return p
end

function prequantised.tiles(names, cfg, spec)
    local list = {}
    for _, one in ipairs(names.decoders) do
        list[#list + 1] = decode(cfg, "decode_" .. one.name, spec.quantize, one)
    end
    return list
end

return prequantised
