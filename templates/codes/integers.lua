-- SPDX-License-Identifier: Apache-2.0
-- integers.lua - products of integers: tokens' rows, and those of what the second product sees, are quantised to 8 bits, and multiplied
-- as such by weights that are integers too (`quantize_activations: int8`): plan, names and tiles of integers.c.in.
--
-- Panels of weights hold their codes, those of tokens words of codes, then a row of scales and one of what an instruction's sums have too
-- much. Sums of 32 bits are exact, so the bits do not depend on the target; times a column's and a row's scale they are what the
-- epilogues take. See micro.integers for words, tiles/integers.lua for the tiles.
--
-- Weights whose runs along K share a scale become panels of integers when they are wanted: runs.c.in, tiles/runs.lua.
local amx = require "tiles.amx"
local formats = require "tiles.formats"
local integer_tiles = require "tiles.integers"
local micro = require "tiles.micro"
local plans = require "shared.plans"
local run_tiles = require "tiles.runs"
local runs = require "codes.runs"
local schema = require "schema"
local stored = require "shared.stored"

local integers = {}

local LONGEST <const> = (1 << 31) // (128 * 127)   -- products that 32 bits hold the sum of

function integers.are(spec)
    return spec.quantize_activations == "int8"
end

-- Elements along K that share a scale, or nil: all.
function integers.run(spec)
    return stored.scale(spec) == "group" and stored.group(spec) or nil
end

-- ...: keys of the lengths of contractions
function integers.rules(...)
    local list = {
        {"quantize_activations", function(s) return (stored.format(s) or {}).integers end,
            "{quantize_activations} needs weights that are integers, here {weights.dtype}"},
        {"quantize_activations", function(s)
            return not (stored.format(s) or {}).integers or integers.run(s) or not stored.by_columns(s)
        end, "{quantize_activations} needs weights.layout = transposed, whose rows are contracted, here {weights.layout}"},
    }
    for _, key in ipairs{...} do
        list[#list + 1] = {key, function(s) return not stored.format(s) or integers.run(s) or s[key] < LONGEST end,
            ("{%s} products of 8-bit integers are more than sums of 32 bits hold: %d"):format(key, LONGEST - 1)}
    end
    return plans.where(integers.are, list)
end

-- How they are multiplied, best first: what a target needs for it, and why it is chosen.
local ways = {
    {"tiles", op = "tile_dot_i8", why = "matrix tiles multiply 16 x 16 x 64 integers at once; sums are exact"},
    {"dot", op = "dot_bytes", why = "an instruction adds 4 products of integers a lane; sums are exact"},
    {"widen", op = "dot_words", why = "integers are widened to 16 bits, of which an instruction adds 2 products a lane; sums are exact"},
}

-- Has a target something for them that the one it extends has not? And why.
function integers.uses(isa, spec)
    local given = spec.plan and spec.plan.product
    for _, kind in ipairs(ways) do
        if isa.rows[kind.op] and (given or kind[1]) == kind[1] then
            return true, kind.why
        end
    end
    return false, ("target %s has no product %s of integers"):format(isa.name, given)
end

function integers.choose(plan, spec, info)
    local given = spec.plan and spec.plan.product
    local best
    for _, kind in ipairs(ways) do
        if plan.isa.rows[kind.op] and (not best or kind[1] == given) then
            best = kind
        end
    end
    if given and best[1] ~= given then
        schema.complain(info, "plan.product", ("target %s has no product %s of integers"):format(plan.isa.name, given))
    end
    plan:choose("product", best[1], best.why)
    plan.integers = micro.integers[plan.product] and plan.product or best[1]
    plan.group, plan.tiled = micro.integers[plan.integers].group, plan.integers == "tiles"
end

-- The op of the products, when it is one.
function integers.params(plan)
    for _, kind in ipairs(ways) do
        if kind[1] == plan.integers and plan.group > 2 then
            return {"product.op " .. kind.op}
        end
    end
    return {}
end

-- Elements of K that panels have a multiple of: whole runs, and panels of `depth`.
function integers.rows(spec, depth)
    return integers.are(spec) and math.max(integers.run(spec) or 0, depth) or depth
end

-- Words of a matrix tile that a run leaves free, or false.
local function gap_of(spec, plan)
    local words = (integers.run(spec) or 0) // plan.group
    return plan.tiled and words > 0 and words < amx.unit and amx.unit - words or false
end

-- Words of K that a block has, or nil: as elsewhere. With gaps panels of tokens take more of L1, and so do sums of runs.
function integers.block(spec, plan)
    return integers.are(spec) and gap_of(spec, plan) and amx.kc // 2 or nil
end

-- How they are multiplied: micro.integers, and of runs what tiles/runs.lua says.
local function how_of(spec, plan)
    local how, run = micro.integers[plan.integers], integers.run(spec)
    if not run then
        return how
    end
    local in_runs = runs.how(how, plan, run, gap_of(spec, plan), formats.rows[spec.weights.dtype].bits or 8)
    in_runs.offset = how.offset and formats.rows[spec.weights.dtype].offset or false
    return in_runs
end

-- cfg of products of weights; that of everything else is cfg.
function integers.cfg(cfg, spec, plan)
    return plans.with(cfg, {product = how_of(spec, plan), dtype = {name = "int8", c = "uint8_t", size = 1}})
end

-- kinds: {constant, rows, over}: of panels before they are quantised
function integers.constants(spec, plan, kinds)
    local how, width, run = how_of(spec, plan), plan.vectors * plan.isa.lanes, integers.run(spec)
    local function rows(n)
        return n // (width * plan.group) * (how.panel_rows or width) + 1 + (run and how.offset and n // run or run and 0 or 1)
    end
    local list = {{"GROUP", plan.group, "integers of a word"}}
    for i, of in ipairs(kinds) do
        local says = i == 1 and "rows of a panel over %s: words, scales, and what sums have too much" or "the same over %s"
        list[i + 1] = {of[1], rows(of[2]), says:format(of[3])}
    end
    return plans.append(list, run and runs.constants(plan, how, run) or {})
end

-- Adds the names, once panels.products has been there. how: of cfg
function integers.names(names, spec, how)
    names.integers, names.runs = how, how.run and how
    -- The scales of an expert's matrix of so many rows: C
    function how.scales(weights, expert, all)
        return stored.factors(spec, weights, "_scale", expert, all)
    end
end

-- The tiles. cfg: of products
function integers.tiles(names, cfg, spec)
    local how = names.integers
    if not how.run then
        return {integer_tiles.encode(cfg, how), integer_tiles.scaled(cfg, how)}
    end
    local depth = cfg.vectors * cfg.isa.lanes * how.group
    return {integer_tiles.encode(cfg, how), run_tiles.scaled(cfg),
        run_tiles.decode(cfg, names.coded.format, integers.rows(spec, depth))}
end

return integers
