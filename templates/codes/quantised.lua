-- SPDX-License-Identifier: Apache-2.0
-- quantised.lua - products whose operands are quantised online (`quantize`, `block_order`, `scale_rule`): keys, names and tiles of
-- quantised.c.in.
--
-- Panels and weights are rounded to the numbers that their codes would have, so products, panels and schedules are the same as
-- without: tokens once they are in panels, in phases of the family's; weights on their way to a chunk's product, as many as it multiplies,
-- into memory of the rank. A family declares
--     names.quantised, and a row {"quantised", io, {"MC", "Q_COLUMNS"}} of its own; constants of this file
--     of phases: whole = n    blocks of K do not reach over multiples of n
-- A number of the largest exponent that rule `wide` rounds up is infinite.
-- Blocks of tokens begin with the first token of all, or of an expert. So that they are whole vectors of panels, tokens are rounded up
-- to blocks, and passes to the longest tile; those that are too many are zeros.
local dtype = require "dtype"
local mx = require "tiles.mx"
local plans = require "shared.plans"
local schema = require "schema"

local quantised = {}

local enum = schema.types.enum

local BLOCK <const>, TILE <const> = 32, 512   -- elements of a block, and of the longest tile of blocks

quantised.keys = {
    {"quantize", enum{"none", "mxfp8_e4m3", "mxfp8_e5m2"}, default = "none",
        doc = "of the operands of every product, along its contraction: 32 elements share a scale"},
    {"block_order", enum{"contiguous", "wrapx"}, default = "contiguous",
        doc = "which elements share a scale: neighbours; 4 runs of 8 in tiles of 512, 256 and 128, and neighbours in what is left"},
    {"scale_rule", enum{"ocp", "wide"}, default = "ocp", doc = "of quantised operands; wide: twice the scale, no element saturates"},
}

local function asks(key, usual, also)
    return {key, function(s) return s.quantize ~= "none" or also and s.quantize_activations == also or s[key] == usual end,
        "{" .. key .. "} is about quantised operands: {quantize}"}
end

quantised.rules = {asks("block_order", "contiguous"), asks("scale_rule", "ocp", "mxfp8")}

function quantised.is(spec)
    return spec.quantize ~= "none"
end

-- Passes have multiples of so many tokens, or nil.
function quantised.rows(spec)
    return quantised.is(spec) and (spec.block_order == "wrapx" and TILE or BLOCK) or nil
end

-- longest: elements of the longest contraction
function quantised.constants(longest)
    return {{"MX_BLOCK", BLOCK, "elements that share a scale"},
        {"Q_COLUMNS", plans.round_up(longest, BLOCK) + BLOCK, "between rows of weights that are quantised"}}
end

-- C of a number of tokens, rounded up to blocks.
function quantised.padded(count)
    return ("steps_of(%s, MX_BLOCK) * MX_BLOCK"):format(count)
end

-- Adds the names of quantised.c.in. tokens: blocks along them are wanted, too
function quantised.names(names, cfg, spec, tokens)
    local lanes = cfg.isa.lanes
    names.wrapped, names.along_tokens = spec.block_order == "wrapx", tokens
    local same = names.panel_c == names.io   -- panels are of the dtype of weights
    names.token_line, names.token_runs = same and "line" or "tokens_line", same and "runs" or "tokens_runs"
    names.side = cfg.vectors   -- vectors of a block at each place
    -- C: more arguments of a tile, of places so far apart
    names.further = function(apart)
        local list = {}
        for i = 1, 32 // lanes // cfg.vectors - 1 do
            list[i] = (", %s%s"):format(i > 1 and i .. " * " or "", apart)
        end
        return table.concat(list)
    end
end

-- The tiles. transposes: weights may be columns
function quantised.tiles(names, cfg, spec)
    local lanes, io = cfg.isa.lanes, cfg.dtype
    local width = cfg.vectors * lanes
    local how = {name = spec.quantize, format = mx.formats[spec.quantize], wide = spec.scale_rule == "wide"}
    local apart = names.along_tokens and names.panel_c ~= names.io
    local runs = names.wrapped
    return plans.list(
        mx.down(cfg, "quantise_panel", how, names.dots and mx.words or mx.elements(dtype.f32),
            {ld = names.dots and cfg.pair_width or width}),
        mx.along(cfg, "quantise_line", how, io, false),
        runs and mx.along(cfg, "quantise_runs", how, io, true),
        apart and mx.along(cfg, "quantise_tokens_line", how, dtype.f32, false),
        apart and runs and mx.along(cfg, "quantise_tokens_runs", how, dtype.f32, true),
        names.transposes and mx.down(cfg, "quantise_columns", how, mx.elements(io), {ld_to = cfg.mc, apart = true}))
end

return quantised
