-- SPDX-License-Identifier: Apache-2.0
-- runs.lua - products of codes that share scales in runs along K, and whose scales multiply the sums of a run: what tiles/runs.lua and
-- runs.c.in want to know, of integers (integers.lua) and of numbers (plan.lua).
local amx = require "tiles.amx"
local limits = require "shared.limits"
local plans = require "shared.plans"
local tiles = require "tiles.runs"

local runs = {}

-- How they are multiplied: `how`, see micro.lua, and what tiles/runs.lua says. run: elements that share a scale; gap: words that a matrix
-- tile has beside them, or false; scale_ld: floats between rows of scales; panel_rows: words of a panel of K in panels of tokens; kept:
-- sums of all runs have registers, too; bytes: of a row of a block, of codes of so many bits
function runs.how(how, plan, run, gap, bits)
    local words, width = run // plan.group, plan.vectors * plan.isa.lanes
    local panels = math.max(1, plan.kc // (width * plan.group))   -- of a block
    local kept = not plan.tiled and plan.tile_rows <= limits.tile(plan.isa, 2 * plan.vectors, plan.vectors).most
    return setmetatable({run = words, gap = gap, kept = kept, bytes = panels * width * plan.group * bits // 8,
        panel_rows = width + (gap and width // (2 * words) * gap or 0),
        scale_ld = plans.round_up((panels * width + words - 1) // words, plan.isa.lanes)}, {__index = how})
end

function runs.constants(plan, how, run)
    return plans.list({"SCALE_RUN", run, "elements along K that share a scale"},
        plan.tiled and {"RUN_PANELS", math.max(1, tiles.words(how) // (plan.vectors * plan.isa.lanes)),
            "panels of K whose runs tiles take at a time"},
        {"PANEL_ROWS", how.panel_rows, "rows of a panel of tokens for a panel of K"},
        {"BLOCK_SCALES", how.scale_ld, "scales of a row of a block, at most"})
end

-- What a rank keeps: rows of workspace.lua.
function runs.space(plan)
    return plans.list({"block_scales", "float", {"MC", "BLOCK_SCALES"}, "of a block of codes, in f32", own = true},
        plan.tiled and {"run_sums", "float", {tiles.together, amx.tallest, "LANES"}, "sums of some runs, before their scales multiply them",
            own = true},
        not plan.tiled and {"codes", "const uint8_t *", nil, "the next block's rows of codes that tiles are still to fetch,"},
        not plan.tiled and {"codes_ld", "int64_t", nil, "so many bytes apart,"},
        not plan.tiled and {"codes_rows", "int64_t", nil, "so many,"},
        not plan.tiled and {"codes_each", "int64_t", nil, "and how many at a time"})
end

return runs
