-- SPDX-License-Identifier: Apache-2.0
-- activations.lua - hidden states, and what the second product sees, quantised online beside MX weights (`quantize_activations`,
-- `scale_rule`), or beside weights that are integers: keys, plan, names and tiles of activations.c.in and, see integers.lua, integers.c.in.
--
-- Rows of panels are rounded, in blocks down the contraction as the weights have them, to the numbers that their codes would have: see
-- quantised.lua. The order of rows is that of the weights' codes (words.lua), so that blocks are neighbours in every layout.
local codes = require "codes.plan"
local dot = require "product.dot"
local dtype = require "dtype"
local integers = require "codes.integers"
local micro = require "tiles.micro"
local mx = require "tiles.mx"
local panels = require "product.panels"
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

-- ...: keys of the lengths of contractions
function activations.rules(...)
    return plans.append({{"quantize_activations", function(s) return not is(s) or (stored.format(s) or {}).blocked end,
        "{quantize_activations} needs weights of an MX format, here {weights.dtype}"}}, integers.rules(...))
end

-- Of families that quantise nothing else.
activations.scale_rule = {"scale_rule", function(s) return is(s) or s.scale_rule == "ocp" end,
    "{scale_rule} is about quantised activations, here {quantize_activations}"}

activations.are = is

-- How products multiply: as dot.uses, dot.choose and dot.params say, unless they are of integers.

function activations.uses(isa, spec, props, why_not, exact, tiled)
    if integers.are(spec) then
        return integers.uses(isa, spec)
    end
    return dot.uses(isa, spec, props, why_not, exact, tiled)
end

function activations.choose(plan, spec, info, why_not, exact, tiled)
    if integers.are(spec) then
        return integers.choose(plan, spec, info)
    end
    return dot.choose(plan, spec, info, why_not, exact, tiled)
end

function activations.params(spec, plan)
    return plan.integers and integers.params(plan) or dot.params(spec, plan)
end

-- cfg of products of weights; that of everything else is cfg. Numbers of another dtype than tokens' are widened as these are.
function activations.cfg(cfg, spec, plan)
    if not stored.format(spec) and spec.weights.dtype ~= spec.dtype then
        return plans.with(cfg, {dtype = dtype[spec.weights.dtype]})
    end
    return plan.integers and integers.cfg(cfg, spec, plan) or codes.cfg(cfg, spec, plan)
end

-- Rows of panels, of which there are multiples of so many.
function activations.rows(spec, plan)
    local depth = panels.depth(plan)
    return math.max(is(spec) and math.max(BLOCK, depth) or integers.rows(spec, depth), codes.rows(spec, plan))
end

-- kinds: see integers.constants
function activations.constants(spec, plan, kinds)
    return is(spec) and {{"MX_BLOCK", BLOCK, "elements that share a scale"}}
        or plan.integers and integers.constants(spec, plan, kinds) or {}
end

-- Adds the names, once panels.products has been there. cfg: of everything, and of products of weights; token_rows: constants, of a panel of
-- tokens as integers and as numbers; second: is there a second product, whose factor is quantised, too?
function activations.names(names, spec, plan, cfg, of_weights, token_rows, second)
    names.integers, names.rounds, names.token_rows = false, is(spec), token_rows
    names.entered_at = plan.integers and "tokens" or "X"
    if plan.integers then
        integers.names(names, spec, of_weights.product)
    end
    if of_weights.dtype ~= cfg.dtype then
        local tokens, weights = cfg.dtype, of_weights.dtype
        names.tensor, names.tensor_c, names.keep_tensor = tokens, tokens.c, plans.convert(tokens, "widen")
        names.scalars[#names.scalars + 1] = {tokens, "widen"}
        names.scalars[#names.scalars + 1] = not plan.integers and {weights, "widen"}
    end
    names.hidden = second and ((plan.integers or names.rounds and names.dots) and "hidden" or "P")
    names.gathered = names.dots and "DEPTH" or names.rounds and "MX_BLOCK" or "LANES"   -- rows that are gathered together
end

-- What a product multiplies, see phases.lua: a panel of so many words, or of integers, which has `rows`.
function activations.factor(names, panel, words, rows)
    return names.integers and {"w->" .. panel, rows} or {names.as_floats("w->" .. panel), words}
end

-- Phases that quantise tokens, and what the second product multiplies: false where nothing is.
function activations.phases(names)
    local vectors = "w->panels * VECTORS"
    return names.integers and {"ENCODE", parts = vectors, run = "encode_tokens"},
        names.rounds and {"ROUND", parts = "IK / MX_BLOCK", run = "round_part"}
            or names.integers and {"ENCODE_HIDDEN", parts = vectors, run = "encode_hidden"}
end

-- What tokens and the second product's factor, `says`, take: rows of workspace.lua. c: type of the tokens' panels unless they are integers,
-- of so many rows
function activations.space(names, c, rows, says)
    local words = names.integers
    local kind = words and ", in words with scales" or names.dots and ", in pairs" or ""
    return plans.list(
        words and {"tokens", "float", {"HK"}, "hidden states", of = "columns"},
        {"X", words and "float" or c, {words and "H_ROWS" or rows}, "hidden states" .. kind, of = "columns"},
        {"P", words and "float" or names.panel_c, {words and "I_ROWS" or "IK"}, says .. kind, of = "columns"},
        names.hidden == "hidden" and {"hidden", "float", {"IK"}, "and before it is quantised", of = "columns"})
end

-- cfg of what makes the second product's factor: it is quantised from f32.
function activations.wide(names, cfg)
    return names.rounds and plans.with(cfg, {product = micro.widened}) or cfg
end

-- Sums of gate and up before they are rows of P. step: 2 where rows of both come in turn
--     hidden_sums     where they lie, of panel 0, and rows from one to the next
--     hidden_order    C text of the table by which they become words on their way to memory, if they do: pairs that are not rounded again
function activations.sums_of_hidden(names, cfg, step)
    names.hidden_sums = {up = step == 2 and "w->S + WIDTH" or "w->S", gate = step == 2 and "w->S" or "w->G", step = step}
    names.hidden_order = names.dots and names.hidden == "P" and micro.word_order("hidden_order", cfg.isa.lanes)
end

-- The tiles.
function activations.tiles(names, spec, cfg, of_weights)
    if not is(spec) then
        return names.integers and integers.tiles(names, of_weights, spec) or {}
    end
    local how = {name = "mxfp8_e4m3", format = mx.formats.mxfp8_e4m3, wide = spec.scale_rule == "wide"}
    local ld = {ld = cfg.vectors * cfg.isa.lanes}
    local floats = mx.elements(dtype.f32)
    return plans.list(
        mx.down(cfg, "quantise_panel", how, names.dots and mx.words or floats, ld),
        names.dots and names.hidden and mx.down(cfg, "quantise_hidden", how, floats, {ld = ld.ld, to = mx.elements(cfg.dtype)}))
end

return activations
