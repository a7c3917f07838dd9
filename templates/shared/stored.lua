-- SPDX-License-Identifier: Apache-2.0
-- stored.lua - how the experts' matrices are stored: the key `weights`, and the tensors' shapes. Rules: stored_rules.lua.
local dtype = require "dtype"
local formats = require "tiles.formats"
local packed = require "packed.form"
local schema = require "schema"
local types = schema.types

local stored = {}

local TILE <const>, LANES <const>, DEEP <const>, RUN <const> = 512, 4, 128, 8   -- of nki

stored.nki_multiples = {H = TILE, I_TP = LANES}

local enum, bool = types.enum, types.bool

-- Tensors of the formats of tiles/formats.lua.
--
-- bits of a code; codes: dtype of tensors of them; scale: what shares one, if the spec does not say, or other: what else may; scales:
-- dtype of these; powers: they are powers of two; groups: elements along the contraction that share one, the first if the spec does not
-- say; blocked: their codes are an extent of their own; second: one more scale, f32, a matrix; integers: codes are integers, whose
-- products may be summed as such
local all = {
    {"fp8_e4m3",   bits = 8, codes = "fp8_e4m3", scales = "f32",      scale = "row", other = {static = true, block = true}},
    {"fp8_e5m2",   bits = 8, codes = "fp8_e5m2", scales = "f32",      scale = "row", other = {static = true, block = true}},
    {"mxfp8_e4m3", bits = 8, codes = "u8",       scales = "u8",       scale = "group", groups = {32}, powers = true, blocked = true},
    {"mxfp8_e5m2", bits = 8, codes = "u8",       scales = "u8",       scale = "group", groups = {32}, powers = true, blocked = true},
    {"mxfp4",      bits = 4, codes = "u8",       scales = "u8",       scale = "group", groups = {32}, powers = true, blocked = true},
    {"nvfp4",      bits = 4, codes = "u8",       scales = "fp8_e4m3", scale = "group", groups = {16}, second = true},
    {"int8",       bits = 8, codes = "u8",       scales = "f32",      scale = "row", integers = true},
    {"int4",       bits = 4, codes = "u8",       scales = "bf16",     scale = "group", groups = {32, 128}, integers = true},
}

-- What weights may be: numbers, as tokens are, or codes. Which groups these have: "..., int4 has 32 or 128".
local by_name, names, choices = {}, {table.unpack(formats.numbers)}, {}
for _, row in ipairs(all) do
    by_name[row[1]], names[#names + 1] = row, row[1]
    if row.groups then
        choices[#choices + 1] = ("%s has %s"):format(row[1], table.concat(row.groups, " or "))
    end
end
stored.choices = table.concat(choices, ", ")

local PACKED <const> = "packed: as products of rows read them, made by moegen pack for a plan"

-- layouts: what they mean
local function map_of(layouts)
    return types.map{
        {"dtype", enum(names), default_of = "dtype", doc = "of the matrices"},
        {"scale", enum{"row", "static", "block", "group"}, optional = true,
            doc = "what shares a scale: an output channel, a matrix, 128 x 128 elements, a run along the contraction"},
        {"group", types.int(1, 65536), optional = true, doc = "elements along the contraction that share a scale: " .. stored.choices},
        {"shared", bool(), default = false, doc = "one set of scales for all experts"},
        {"layout", enum{"plain", "transposed", "contiguous", "nki", "packed"}, default = "plain", doc = layouts .. "; " .. PACKED},
        {"gate_up_order", enum{"split", "interleaved"}, default = "split", doc = "of the columns of gate and up, and of their bias"},
        {"gate_up", enum{"joined", "separate"}, default = "joined", doc = "one tensor, or gate_proj_weight and up_proj_weight"},
        {"experts", enum{"joined", "separate"}, default = "joined",
            doc = "one tensor, or each expert's matrices at addresses of their own"}}
end

stored.key = {"weights",
    map_of "plain: [in][out]; transposed: [out][in]; contiguous: blocks along in; nki: words of 4 codes, in tiles of 512",
    doc = "how the matrices are stored"}

-- The same for a family whose products contract rows of its matrices: `plain` means that there, see stored.by_columns. gate_up: its
-- tensor of both, if it has one of another name than the experts' have
function stored.key_of_rows(doc, gate_up)
    local of_rows = {__index = {rows = true, both = gate_up}}
    return {"weights", map_of "plain: rows are contracted, as transposed and contiguous (codes that share scales in groups) say, too",
        doc = doc, into = function(w) return setmetatable(w, of_rows) end}
end

-- Is what products contract the extent of a matrix that does not lie contiguously?
function stored.by_columns(s)
    return s.weights.layout == "plain" and not s.weights.rows
end

-- Of a spec: are matrices stored transposed, gate and up in turn, in tensors of their own?
function stored.of(s)
    local w = s.weights
    return {transposed = w.layout == "transposed", interleaved = s.gated and w.gate_up_order == "interleaved",
            separate = s.gated and w.gate_up == "separate", listed = w.experts == "separate"}
end

-- Matrices of the first product: gate and up, or up alone.
function stored.gates(s)
    return s.gated and 2 or 1
end

-- The tensor of gate and up, if there is one.
function stored.both(s)
    return s.weights.both or "gate_up_proj_weight"
end

-- The tensor of gate and up, or those of each. Without a gate there is one.
function stored.gate_up(s)
    if s.weights.gate_up == "joined" then
        return stored.both(s)
    elseif s.gated then
        return "gate_proj_weight", "up_proj_weight"
    end
    return "up_proj_weight"
end

-- A row of phases.lua becomes their product with tokens in panels: sums of gate are in w->G, or come in turn with those of up.
function stored.gate_up_product(s, row)
    local first, second = stored.gate_up(s)
    local in_turn = stored.of(s).interleaved
    row.weights, row.beside, row.k, row.layout = first, second, "H", "k"
    row.rows, row.all = in_turn and "GATES * I" or "I", second and "I" or "GATES * I"
    row.gate = s.gated and not in_turn and not second and "I" or nil
    return row
end

-- ---- tensors ----

local BLOCK <const> = 128   -- rows and columns that share a scale

local function dtype_size(name)
    return dtype[name] and dtype[name].size or 1
end

local function ceil_div(n, by)
    return (n + by - 1) // by
end

-- What is stored instead of numbers, or nil.
function stored.format(s)
    return formats.coded(s) and by_name[s.weights.dtype] or nil
end

-- Bytes of an element, its share of a scale among them.
function stored.size(s)
    local format = stored.format(s)
    local group = format and stored.scale(s) == "group" and stored.group(s)
    return format and format.bits / 8 + (group and dtype_size(format.scales) / group or 0) or dtype[s.weights.dtype].size
end

-- What shares a scale, or nil.
function stored.scale(s)
    local format = stored.format(s)
    return format and (s.weights.scale or format.scale)
end

-- Elements that share a scale; nil where the format has no groups, which a rule refuses: other rules may ask first.
function stored.group(s)
    return s.weights.group or (stored.format(s).groups or {})[1]
end

-- The tensor of scales of weights, as `moegen quantize` names it.
function stored.beside(weights, suffix)
    return weights:gsub("_weight$", "") .. suffix
end

-- The matrices [K][parts * width]. name: of the tensor of weights. axis: the parts are an extent of a tensor's shape, of scales alone if
-- rows are contracted (`rows`, see packed/form.lua). A family may have a list of its own; says: what it is.
function stored.matrices(s)
    local list, rows = {}, s.weights.rows
    local function add(name, K, width, parts, down)
        list[#list + 1] = {name = name, K = K, parts = parts, width = width, C = parts * width, down = down, rows = rows,
            axis = not down and s.weights.gate_up == "joined" and (parts > 1 or not rows)}
    end
    local first, second = stored.gate_up(s)
    add(first, s.H, s.I_TP, s.weights.gate_up == "joined" and stored.gates(s) or 1)
    if second then
        add(second, s.H, s.I_TP, 1)
    end
    add("down_proj_weight", s.I_TP, s.H, 1, true)
    return list
end

local function interleaved(s, m)
    return m.parts > 1 and s.weights.gate_up_order == "interleaved"
end

-- Extents, with one for the parts if the tensor has it.
local function with_parts(m, before, ...)
    return m.axis and {before, m.parts, ...} or {before, ...}
end

-- nki: tiles of the contraction, and rows of 4 elements in each.
local function nki(m, run)
    local rows = m.down and m.K < TILE and m.K // LANES or DEEP
    return with_parts(m, ceil_div(rows, run), ceil_div(m.K, TILE), m.width)
end

-- Extents of a tensor of codes or numbers after the experts', by layout.
local shapes
shapes = {
    plain = function(s, m)
        if s.weights.rows then
            return shapes[stored.scale(s) == "group" and "contiguous" or "transposed"](s, m)
        end
        return not interleaved(s, m) and m.axis and {m.K, m.parts, m.width} or {m.K, m.C}
    end,
    transposed = function(_, m) return {m.C, m.K} end,
    contiguous = function(s, m)
        local f, group = stored.format(s), stored.group(s)
        return f.blocked and {m.C, ceil_div(m.K, group), group * f.bits // 8} or {m.C, ceil_div(m.K * f.bits, 8)}
    end,
    nki = function(_, m) return nki(m, 1) end,
    packed = function(s, m, plan) return {packed.form(s, plan, m).each} end,
}

-- Likewise of scales, by what shares one.
local scales = {
    row = function(_, m) return {1, m.C} end,
    static = function(_, m) return m.axis and {m.parts, 1} or {1} end,
    block = function(_, m) return {ceil_div(m.C, BLOCK), ceil_div(m.K, BLOCK)} end,
    group = function(s, m) return s.weights.layout == "nki" and nki(m, RUN) or {m.C, ceil_div(m.K, stored.group(s))} end,
}

local function codes_dtype(s)
    local f = stored.format(s)
    return not f and s.weights.dtype or s.weights.layout == "nki" and ("u%d"):format(LANES * f.bits) or f.codes
end

local function says_codes(s, m)
    local format, layout = stored.format(s), s.weights.layout
    local order = m.parts > 1 and (interleaved(s, m) and "gate and up in turn"
        or (layout == "plain" or layout == "nki") and not m.rows and "0 = gate, 1 = up" or "gate, then up")
    local whose = s.E and "of each expert" or m.down and "of the second product" or "of the first product"
    local text = m.says or whose .. (order and ": " .. order or m.axis and ": up" or "")
    if layout == "nki" then
        return text .. "; 4 codes an element"
    end
    return text .. (format and format.bits == 4 and "; 2 codes a byte" or "")
end

-- The rows of `args`: all matrices, then their scales, then what else scales a whole matrix. A scale's row has scale = true; listed =
-- true: the argument is a list of addresses, one for each index of the first extent. plan: of packed weights; matrices: those of a
-- family that has others than stored.matrices, of an expert each or, without experts, alone
function stored.tensors(s, plan, matrices)
    local format, list = stored.format(s), {}
    matrices = matrices or stored.matrices(s)
    local function add(name, type, experts, extents, says, scale)
        local listed = stored.of(s).listed and not (scale and s.weights.shared)
        local row = {name, type, "in", experts, says = says, scale = scale, listed = listed}
        list[#list + 1] = table.move(extents, 1, #extents, #row + 1, row)
    end
    for _, m in ipairs(matrices) do
        add(m.name, codes_dtype(s), s.E, shapes[s.weights.layout](s, m, plan), says_codes(s, m))
    end
    local experts = s.E and s.weights.shared and 1 or s.E
    for _, m in ipairs(format and matrices or {}) do
        local name = m.name
        add(stored.beside(name, "_scale"), format.scales, experts, scales[stored.scale(s)](s, m), "factors of " .. name, true)
    end
    for _, m in ipairs(format and format.second and matrices or {}) do
        local name = m.name
        add(stored.beside(name, "_scale_2"), "f32", experts, m.axis and {m.parts} or not s.E and {1} or {},
            "factor of " .. stored.beside(name, "_scale"), true)
    end
    return list
end

-- Where an expert's factors of the matrix `weights` start, `each` of them: C. suffix: of their tensor
function stored.factors(s, weights, suffix, expert, each)
    local tensor = "w->args->" .. stored.beside(weights, suffix)
    return s.weights.shared and tensor or stored.of(s).listed and ("%s[%s]"):format(tensor, expert)
        or ("%s + %s * (%s)"):format(tensor, expert, each)
end

-- Extents of the bias of gate and up after the experts'.
function stored.bias(s)
    local gates = stored.gates(s)
    if s.weights.layout == "nki" then
        return s.I_TP < TILE and s.I_TP // LANES or DEEP, gates, ceil_div(s.I_TP, TILE), LANES
    elseif gates > 1 and s.weights.gate_up_order == "interleaved" then
        return gates * s.I_TP
    end
    return gates, s.I_TP
end

return stored
