-- SPDX-License-Identifier: Apache-2.0
-- activations.lua - hidden states, and what the second product sees, quantised online beside MX weights (`quantize_activations`,
-- `scale_rule`): keys, names and tiles of activations.c.in.
--
-- Rows of panels are rounded, in blocks down the contraction as the weights have them, to the numbers that their codes would have: see
-- quantised.lua. The order of rows is that of the weights' codes (words.lua), so that blocks are neighbours in every layout.
local dtype = require "dtype"
local integers = require "codes.integers"
local mx = require "tiles.mx"
local plans = require "shared.plans"
local schema = require "schema"
local stored = require "shared.stored"

local activations = {}

local enum = schema.types.enum

local BLOCK <const> = 32   -- elements of a block

activations.keys = {
    {"quantize_activations", enum{"none", "mxfp8", "int8"}, default = "none",
        doc = "of what products multiply weights by; mxfp8: to e4m3 in blocks as MX weights have them; int8: beside int8 and int4 weights, "
            .. "each row to round(x * (1 / s)), s = amax / 127 in f32; integer sums of a row, or of a group of int4, are exact, times the "
            .. "weights' scale and s; costs accuracy"},
    {"scale_rule", enum{"ocp", "wide"}, default = "ocp", doc = "of quantised activations; wide: twice the scale, no element saturates"},
}

local function is(spec)
    return spec.quantize_activations == "mxfp8"
end

activations.rules = {
    {"quantize_activations", function(s) return not is(s) or (stored.format(s) or {}).blocked end,
        "{quantize_activations} needs weights of an MX format, here {weights.dtype}"},
    {"scale_rule", function(s) return is(s) or s.scale_rule == "ocp" end,
        "{scale_rule} is about quantised activations, here {quantize_activations}"},
    table.unpack(integers.rules)
}

activations.are = is

-- Rows of panels, of which there are multiples of so many.
function activations.rows(spec, depth)
    return is(spec) and math.max(BLOCK, depth) or integers.rows(spec, depth)
end

function activations.constants(spec)
    return is(spec) and {{"MX_BLOCK", BLOCK, "elements that share a scale"}} or {}
end

-- The tiles.
function activations.tiles(names, cfg, spec)
    if not is(spec) then
        return {}
    end
    local how = {name = "mxfp8_e4m3", format = mx.formats.mxfp8_e4m3, wide = spec.scale_rule == "wide"}
    local ld = {ld = cfg.vectors * cfg.isa.lanes}
    local floats = mx.elements(dtype.f32)
    return plans.list(
        mx.down(cfg, "quantise_panel", how, names.dots and mx.words or floats, ld),
        names.dots and mx.down(cfg, "quantise_hidden", how, floats, {ld = ld.ld, to = mx.elements(cfg.dtype)}))
end

return activations
