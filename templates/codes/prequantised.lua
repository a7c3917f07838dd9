-- SPDX-License-Identifier: Apache-2.0
-- prequantised.lua - operands of quantised products that the caller gives as codes with scales (`prequantised`): keys, arguments, names
-- and tiles of prequantised.c.in.
--
-- An operand [R, C], of each expert if there are some, has scales along one of its extents, K of them in a contraction, of which there
-- are F. A product along K takes the numbers as they are; one along F has them quantised again, as it has others. Tokens are decoded on
-- their way into panels, weights on theirs to a chunk's product.
--     form       plain: codes lie as numbers would; swizzled: [steps * 8, 4 F], steps = ceil(K / 32): 4 elements of a contraction side
--                by side
--     scales     dense: [steps, F]; oversized: [steps * 8, F]; packed: [ceil(steps / 64) * 128, F]; what is between them is not read
-- Gate and up, which are one operand, have one after the other: in F if scales are along what both contract; else each is a part, with
-- rows of codes and scales of its own.
local dtype = require "dtype"
local formats = require "tiles.formats"
local ir = require "ir"
local over_rows = require "tiles.over_rows"
local plans = require "shared.plans"
local quantise = require "tiles.quantise"
local schema = require "schema"
local stored = require "shared.stored"
local tensors = require "shared.tensors"

local prequantised = {}

local enum, map = schema.types.enum, schema.types.map

local BLOCK <const> = 32   -- elements that share a scale

-- Rows of scales, of so many blocks.
local shapes = {
    dense = function(steps) return steps end,
    oversized = function(steps) return 8 * steps end,
    packed = function(steps) return (steps + 63) // 64 * 128 end,
}

-- Operands. Tokens have scales along H. Weights: what forward has of them in memory, `into` of each of `out`; along: what their scales
-- may be along; first: of these, what the first product that reads them contracts (ways back have weight_grads); gates: `out` is
-- gate's, then up's, or of a tensor of each
local operands = {
    {"hidden_states", doc = "along H"},
    {"gate_up_weights", out = "I_TP", into = "H", along = {"H", "I"}, first = function() return "H" end, gates = true,
        doc = "of gate, then of up, and of tensors of each: along I, each has its own"},
    {"gate_up_proj_weight", out = "I_TP", into = "H", along = {"H", "I"}, gates = true,
        first = function(s) return s.checkpoint == "recompute" and "H" or "I" end,
        doc = "of each expert's gate, then of up, and of tensors of each: along I, each has its own; H is contracted if recomputed"},
    {"down_proj_weight", out = "H", into = "I_TP", along = {"I", "H"},
        first = function(s) return s.weight_grads and "H" or "I" end, doc = "forward contracts I, backward H"},
    {"output_hidden_states_grad", doc = "along H"},
}

local by_name = {}
for _, row in ipairs(operands) do
    by_name[row[1]] = row
end

-- The operand that a tensor is, or is a part of.
local function operand_of(s, tensor)
    local first, second = stored.gate_up(s)
    return by_name[(tensor == first or tensor == second) and stored.both(s) or tensor]
end

-- The key of a family with these operands.
function prequantised.key(names)
    local rows = {}
    for _, name in ipairs(names) do
        local row = by_name[name]
        local own = {
            {"form", enum{"plain", "swizzled"}, default = "plain",
                doc = "plain: codes (u8) lie as numbers would; swizzled: [K/4, 4 F], 4 elements of a contraction side by side"},
            {"scales", enum{"dense", "oversized", "packed"}, default = "dense",
                doc = "u8; dense: [K/32, F]; oversized: [K/4, F], row i at i/4*32 + i%4; packed: 128 rows for 2048 elements"}}
        own[3] = row.along and {"along", enum(row.along), optional = true,
            doc = "the extent that scales are along; if none is given, the contraction of the first product that reads it"}
        rows[#rows + 1] = {name, map(own), optional = true, doc = row.doc}
    end
    return {"prequantised", map(rows), doc = "operands given as codes of quantize, and <operand>_scales: "
        .. "of K elements of a contraction and F contractions; a product along the other extent quantises their values again"}
end

prequantised.rules = {{"prequantised", function(s) return s.quantize ~= "none" or not next(s.prequantised) end,
    "operands are codes of a format, which {quantize} does not name"}}

-- How tokens are given: F is a formula of shapes; all: the same as C.
local function of_tokens(s)
    return {axis = "C", parts = 1, K = s.H, F = s.E and tensors.tokens(s) or "S", all = s.E and "tokens(w->args->T)" or "w->args->S"}
end

-- How weights are given, those of gate and up apart or not.
local function of_weights(s, row, given, apart)
    local gates = row.gates and s.gated and not apart and 2 or 1
    local out, into, by_columns = s[row.out], s[row.into], stored.by_columns(s)
    local inner = row.into:sub(1, 1) == (given.along or row.first(s))   -- what rows of forward contract?
    local F = inner and gates * out or into
    return {axis = inner ~= by_columns and "C" or "R", parts = inner and 1 or gates, K = inner and into or out, F = F,
        all = ("%d"):format(F), experts = s.E, columns = by_columns and gates * out or into}
end

-- How a tensor is given, or nil. axis: "C" or "R", along which it has scales; parts: matrices in it; K, F: extents of each; steps: rows
-- of dense scales; of weights also columns: C; experts: how many, if there are some
function prequantised.of(s, tensor)
    local row = operand_of(s, tensor)
    local given = row and s.prequantised[row[1]]
    if not given then
        return nil
    end
    local of = row.along and of_weights(s, row, given, tensor ~= row[1]) or of_tokens(s)
    of.columns = of.columns or of.K
    of.tensor, of.swizzled, of.scales, of.steps = tensor, given.form == "swizzled", given.scales, (of.K + BLOCK - 1) // BLOCK
    of.rows = shapes[of.scales](of.steps)
    return of
end

-- n times an extent, or a formula of such.
local function times(n, F)
    return type(F) == "number" and n * F or n == 1 and F or (F:gsub("%a", n .. "*%0"):gsub("%+1", "+" .. n))
end

-- The argument, u8, of the extents after the experts' that a row of numbers becomes.
local function argument(row, given, suffix, extents, says)
    local out = {row[1] .. suffix, "u8", "in", given.experts, says = says, listed = row.listed}
    return plans.append(out, extents)
end

-- The arguments of an operand whose row of numbers is given: that, or codes and scales.
function prequantised.args(s, row)
    local given = prequantised.of(s, row[1])
    if not given then
        return {row}
    end
    local codes = given.swizzled and {8 * given.steps * given.parts, times(4, given.F)} or {table.unpack(row, given.experts and 5 or 4)}
    return {
        argument(row, given, "", codes, row.says .. (given.swizzled and "; swizzled codes" or "; codes")),
        argument(row, given, "_scales", {given.rows * given.parts, times(1, given.F)}, "of " .. row[1]),
    }
end

-- The rows of arguments, some as codes with scales.
function prequantised.all_args(s, list)
    local out = {}
    for _, row in ipairs(list) do
        plans.append(out, prequantised.args(s, row))
    end
    return out
end

-- Bytes of an element of a matrix, its share of a scale among them.
function prequantised.size(s, tensor)
    return prequantised.of(s, tensor) and 1 + 1 / BLOCK or stored.size(s)
end

-- Adds the names; returns the cfg of weights at work, which are f32 where the dtype has not all exponents of scales. tokens, weights:
-- tensors; others: more tokens than these are gathered
function prequantised.names(names, cfg, spec, tokens, weights, others)
    local list, needs, image = {}, {}, cfg.dtype
    names.given, names.operands, names.decoders, names.gathers = {}, list, {}, {}
    for _, tensor in ipairs(weights) do
        image = prequantised.of(spec, tensor) and cfg.dtype.least > dtype.f32.least and dtype.f32 or image
    end
    local function add(tensor, to, is_token)
        local given = prequantised.of(spec, tensor)
        if given then
            given.decode = "decode_" .. tensor
            given.to, given.is_token = to, is_token
            list[#list + 1], names.given[tensor], needs[to.name] = given, given, to
            list.lines = list.lines or given.axis == "C" or given.swizzled
            list.runs = list.runs or given.axis == "C"
            given.start = function(suffix, rows)   -- C: where those of an expert start, of so many rows with F each
                return given.experts and names.matrix(tensor .. suffix, "w->expert", ("%d"):format(rows * given.parts * given.F))
                    or "w->args->" .. tensor .. suffix
            end
            names.given_weights = names.given_weights or not is_token
        end
    end
    names.given_weights, names.weights_given, list.lines, list.runs = false, "", false, false
    for _, tensor in ipairs(tokens) do
        add(tensor, names.dots and cfg.dtype or dtype.f32, true)
        names.gathers[#names.gathers + 1] = names.given[tensor] and tensor
    end
    if #names.gathers < #tokens or others then   -- numbers
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
    return plans.with(cfg, {dtype = image})
end

-- n vectors of codes, each with a scale of its own, as numbers.
local function decode(cfg, name, format, to)
    local f = formats.rows[format]
    local p = ir.program(cfg.isa, cfg.prefix .. name, {("%s = codes of %s, times scales."):format(to.name, format)})
    local dst, code, scale = p:pointer("dst", to.c), p:pointer("code", "const uint8_t"), p:pointer("scale", "const uint8_t")
    local n = p:integer("n")
    local unit = f.unit and p:op("const", "unit", f.unit)
    local least = p:op("const", "least_scale", 0x00400000)
    over_rows.vectors(p, n, {code, scale, dst}, function()
        local x = f.decode(p, "x", p:at(code, 0))
        x = unit and p:op("mul", "x_exact", x, unit) or x
        -- 2^(byte - 127), as formats.scales has it
        local power = p:op("max", "power", p:op("shl", "exponent", p:op("load_u8", "byte", p:at(scale, 0)), 23), least)
        power = p:op("add", "scale_or_nan", power, p:op("sub", "none", power, power))
        quantise.store_exact(p, to, p:at(dst, 0), p:op("mul", "value", x, power))
    end)
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
