-- SPDX-License-Identifier: Apache-2.0
-- column_blocks.lua - what families with products of columns share, see phases.lua: constants, names and rows of the workspace that the
-- fragments column_blocks.c.in, packing.c.in and columns.c.in refer to.
local amx = require "tiles.amx"
local columns = require "tiles.amx_columns"
local dtype = require "dtype"
local formats = require "tiles.formats"
local gemm = require "tiles.gemm"
local heights = require "tiles.heights"
local limits = require "shared.limits"
local micro = require "tiles.micro"
local panels = require "product.panels"
local plans = require "shared.plans"

local column_blocks = {}

-- Rows of a packed panel of so many rows of weights.
function column_blocks.panel_rows(plan, rows)
    return plans.round_up((rows + plan.group - 1) // plan.group, plan.unroll)
end

-- Floats from a packed panel to the next one. Beside matrix tiles, whose factors fill L1, it is an odd number of KB: rows of panels side by
-- side, which are packed at a time, are in sets of L1 of their own. On Emerald Rapids moe_forward takes 0.96 of the time.
-- deep: rows of the tallest matrix
local function panel(plan, deep)
    local floats = column_blocks.panel_rows(plan, math.min(deep, plan.pack_k)) * plan.vectors * plan.isa.lanes
    return plan.tiled and (plans.round_up(floats, 256) // 256 | 1) * 256 or floats
end

function column_blocks.constants(plan, deep)
    local floats, width = panel(plan, deep), plan.vectors * plan.isa.lanes
    return plans.list(
        {"UNROLL", plan.unroll, "k steps of a tile's loop"},
        plan.tiled and {"UNIT_ROWS", amx.unit, "rows of a matrix tile"},
        {"NC", plan.nc, "panels packed together"}, {"PACK_K", plan.pack_k, "rows of weights packed at a time"},
        {"PANEL", floats, "floats of a packed panel"},
        {"KC", plan.kc // plan.group, (plan.group > 1 and "pairs of " or "") .. "products of a partial sum"},
        {"SCRATCH", (plan.nc - 1) * floats + width, "floats that tiles which pack nothing may store to"},
        {"STRIDE", plan.stride, "floats between rows of tokens: an odd number of cache lines"},
        {"PREFETCH", plan.prefetch, "rows of weights fetched ahead"},
        {"T_UNROLL", 1, "rows that segments are filled up to"})
end

-- The tiles that multiply packed panels.
function column_blocks.packed(names, cfg)
    return cfg.tiled and plans.append(columns.heights(cfg, names.packed_rows), panels.switches(cfg))
        or heights.tiles(gemm.packed, cfg, names.packed_rows)
end

-- Steps of a loop over K.
function column_blocks.choose_steps(plan, why)
    if plan.tiled then
        plan:choose("unroll", columns.unroll, "words of K that a matrix tile has",
            {useful = columns.unroll, of = "a tile has no more", step = columns.unroll})
    else
        plan:choose("unroll", 4, why)
    end
end

-- Rows of weights that are packed at a time for matrix tiles: those of a sum.
function column_blocks.pack_k(plan)
    return plan.tiled and amx.kc * plan.group
end

-- Products of a sum. deep: rows of the tallest matrix
function column_blocks.choose_sums(plan, spec, deep)
    local step, narrow = plan.group * plan.unroll, dtype[spec.dtype].narrow
    plan:choose("kc", column_blocks.pack_k(plan) or narrow and 4096 or 256,
        plan.tiled and "products per partial sum: a block of packed weights stays in L1"
            or narrow and "products per partial sum: inputs are rounded more coarsely than sums"
            or "products per partial sum: keeps f32 sums of long K accurate",
        limits.sum(spec, plans.round_up(deep, step), ("sums are of %d products"):format(deep), step))
end

-- rows: that are packed at a time, of what
function column_blocks.choose_fetch(plan, rows, of)
    local pairs = plan.group > 1 and not plan.tiled
    plan:choose("prefetch", plan.tiled and columns.fetch or pairs and 12 or 6, pairs
        and "pairs of rows of weights on their way from memory while one is packed: tiles of dot products are done sooner"
        or "rows of weights on their way from memory while one is packed", limits.useful(rows, of:format(rows)))
end

-- cfg of the tiles.
function column_blocks.cfg(spec, plan, job, deep)
    local cfg = panels.cfg(spec, plan, job)
    cfg.stride, cfg.nc, cfg.panel = plan.stride, plan.nc, panel(plan, deep)
    cfg.weights = formats.of(spec)
    cfg.product = micro.of(plan, spec.dtype, cfg.weights)
    return cfg
end

-- Adds the names of rows of panels, which hold pairs of rows of weights if these are multiplied. cfg: see above
function column_blocks.names(names, plan, cfg)
    local dots = plan.group > 1
    names.weights_c = cfg.weights and cfg.weights.c   -- of products of columns
    names.dots, names.nc, names.times_group = dots, plan.nc, dots and "2 * " or ""
    names.whole = function(x) return dots and x .. " / 2" or x end                    -- from rows of weights, of all
    names.steps = function(x) return dots and ("(%s + 1) / 2"):format(x) or x end     -- of all and a half
end

-- Rows of workspace.lua. deep: rows of the tallest matrix, C
function column_blocks.work(names, deep)
    return {
        {"sums", "int64_t", nil, "floats of the sums of a panel", starts = "(columns + 2 * TILE_ROWS) * WIDTH"},
        {"S", "float", {("NC * w->sums + %s * DIRECT_SUMS%s"):format(names.most_nc,
            names.line and not names.line_rows and " + DIRECT_NC * LINE_SUMS" or "")}, "sums", own = true,
            shape = "[panels of a block of columns]"},
        {"scratch", "float", {"SCRATCH"}, "where tiles that pack nothing store", own = true},
        {"panel", "float", {"NC", "PANEL"}, "packed weights: in use,", own = true},
        {"coming", "float", {"NC", "PANEL"}, "and coming", own = true},
        {"packed", ("const %s *"):format(names.weights_c), nil, "what is in `panel`: from here,", starts = "0"},
        {"packed_panels", "int64_t", nil, "so many panels"},
        names.phases.beside and {"packed_second", "int64_t", nil, "whose second vectors lie there", starts = "0"},
        names.line_rows and {"quarters", "float", {"STRIDE + LANES"}, "a row's words of elements a quarter of K apart", own = true},
        names.line_rows and {"line_sums", "float", {"IN_STEPS", "WIDTH"}, "sums of few rows", own = true,
            shape = "[lines][VECTORS][LANES]"},
        names.line and names.line.keep and {"kept", "float", {"KEPT", "DIRECT_K", "WIDTH"}, "lines of weights", own = true},
        (names.edges or names.lone) and {"edge", names.weights_c, {deep, "WIDTH"}, "columns of a panel that is not full", own = true},
    }
end

return column_blocks
