-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - the plan of products of rows of weights that are stored as codes, and the names that coded.c.in refers to.
local coded = require "tiles.coded"
local formats = require "tiles.formats"
local panels = require "product.panels"
local stored = require "shared.stored"

local codes = {}

local BLOCK <const> = 128   -- rows and elements of a row that share a scale
local c_types = {f32 = "float", u8 = "uint8_t", bf16 = "uint16_t"}

-- Are the weights of a spec codes?
function codes.are(spec)
    return stored.format(spec) ~= nil
end

-- Elements of a row that share a scale, or nil: all.
local function run_of(spec)
    local share = stored.scale(spec)
    return share == "group" and stored.group(spec) or share == "block" and BLOCK or nil
end

-- Elements that are decoded at a time.
function codes.unit(spec, plan)
    return coded.unit(run_of(spec), panels.depth(plan))
end

-- Why products of a spec's weights may not be of pairs, or nil.
function codes.no_pairs(spec)
    local format = stored.format(spec)
    return format and format.scales ~= "u8" and ("scales of %s make numbers that 16 bits do not hold"):format(spec.weights.dtype) or nil
end

-- Adds the names of decoding.
function codes.names(names, spec, plan)
    names.coded, names.weights_c = codes.are(spec) and {}, names.io
    if not names.coded then
        return
    end
    local format, f = stored.format(spec), formats.rows[spec.weights.dtype]
    local set = {group = "%s * ((M.ld + %d) / %d)", block = "(%s + %d) / %d * ((M.ld + 127) / 128)", row = "%s", static = "M.parts"}
    local share, run = stored.scale(spec), run_of(spec)
    names.weights_c, names.few, names.token_rows = "uint8_t", false, {}
    names.coded = {format = f, scale = format.scales, scale_c = c_types[format.scales], share = share, run = run, bits = format.bits,
        unit = codes.unit(spec, plan), blocked = format.blocked, zero = f.zero or 0, interleaved = stored.of(spec).interleaved,
        tables = f.number and table.concat(formats.tables(plan.isa.lanes), ", ")}
    -- Where the scales of an expert's matrix start, which has so many rows: C. member: of the matrix: "m->" or "matrix."
    function names.coded.scales(weights, expert, all, member)
        local tensor = "w->args->" .. weights:gsub("_weight$", "_scale")
        local each = set[share]:format(all, (run or 1) - 1, run or 1):gsub("M%.", member)
        return spec.weights.shared and tensor or names.listed and ("%s[%s]"):format(tensor, expert)
            or ("%s + %s * (%s)"):format(tensor, expert, each)
    end
end

-- The tile.
function codes.tiles(names, cfg)
    return names.coded and coded.rows(cfg, names.coded)
end

return codes
