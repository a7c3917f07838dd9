-- SPDX-License-Identifier: Apache-2.0
-- in_place.lua - products of columns for few rows of tokens, whose weights are read where they lie: plan, constants, names and tiles of
-- in_place.c.in. Up to 4 rows sweep, those of up to direct_rows have direct tiles, the others packed weights. Of 16-bit weights whose
-- pairs a dot product multiplies, whole cache lines are read: in_lines.c.in. Where a tile's broadcasts are loads of their own, direct tiles
-- would load as often as they multiply: those of lines, of two vectors of columns, take their place.
local amx = require "tiles.amx"
local dtype = require "dtype"
local formats = require "tiles.formats"
local gemm = require "tiles.gemm"
local int = require("schema").types.int
local limits = require "shared.limits"
local lines = require "tiles.lines"
local plans = require "shared.plans"
local quantise = require "tiles.quantise"
local sweep = require "tiles.sweep"
local tile_heights = require "tiles.heights"

local in_place, heights = {}, {}

local KEPT <const> = 4   -- lines: calls of tiles are long enough, and L1 holds them

in_place.keys = {
    {"direct_rows", int(1, 64), optional = true, doc = "up to so many rows, weights are read where they lie"},
    {"direct_nc", int(1, 4096), optional = true, doc = "panels that such a pass covers"},
    {"run", int(1, 1024), optional = true, doc = "vectors, or lines, of a row that direct tiles fetch ahead before the next row"},
    {"direct_k", int(2, 65536), optional = true, doc = "rows of weights that direct tiles pass over at a time"},
    {"stream_ahead", int(0, 65536), optional = true, doc = "bytes that the streams of a single row fetch ahead"},
    {"stream_rows", int(0, 1024), optional = true, doc = "the same where they read parts of columns: rows"},
}

-- Rows of the tiles that sweep; what rounding lost of compensated sums is kept in as many rows behind them.
function heights.sweep(plan, compensated)
    local list = {}
    for _, m in ipairs{1, 2, 4} do
        if m <= (compensated and not plan.by_two and plan.direct_rows // 2 or plan.direct_rows) then
            list[#list + 1] = m
        end
    end
    return list[1] and list or false
end

-- With products of pairs: up to so many rows sweep, in f32.
function heights.swept(plan)
    local list = heights.sweep(plan)
    return list[#list]
end

-- Direct tiles. rows, pairs: heights of those that multiply in f32, and pairs: the former finish what was swept; tiles: {rows, name}
-- of both, ascending, each for segments of up to so many rows.
function heights.direct(plan)
    local set = {rows = {}, pairs = {}, tiles = {}}
    local swept = (plan.group > 1 or plan.by_two) and heights.swept(plan) or plan.direct_rows
    local before = 0
    local function add(list, name, m, rows)
        list[#list + 1] = m
        set.tiles[#set.tiles + 1] = {rows = rows, name = ("%s_%d"):format(name, m)}
    end
    for m = 1, plan.direct_rows do
        if m % 4 == 0 or m % 2 == 0 and m > 4 and m < 20 or m == plan.direct_rows then
            if before < swept then
                add(set.rows, "direct", m, math.min(m, swept))
            end
            if m > swept and plan.group > 1 then
                add(set.pairs, "direct_pairs", m, m)
            end
            before = m
        end
    end
    return set
end

-- Floats of a panel's sums of so many rows: an odd number of cache lines.
local function sums(plan, rows)
    return (rows * plan.vectors * plan.isa.lanes // 16 | 1) * 16
end

-- The row of a panel's sums from where what rounding lost of the first rows is kept.
local function lost_from(plan)
    return plan.by_two and heights.swept(plan) or plan.direct_rows // 2
end

-- Are weights read by lines?
local function in_lines(plan, weights)
    return plan.group > 1 and not plan.tiled and not weights.decode and plan.isa.rows.unpack_low_words ~= nil
end

-- The largest one that is not more than n.
local function power_of_two(n)
    local p = 1
    while 2 * p <= n do
        p = 2 * p
    end
    return p
end

-- Rows of the tallest tile of lines.
local function line_rows(plan)
    return math.min(plan.direct_rows, plan.isa.tile.rows)
end

-- The choices of products by lines; deep, slices: see in_place.choose
local function choose_lines(plan, spec, deep, slices)
    plan:choose("direct_rows", 2 * plan.isa.tile.rows, "up to so many rows, packing weights costs more than reading them once more")
    plan:choose("direct_k", 64, "rows of weights that stay in L2 while a block's lines pass",
        limits.sum(spec, deep, ("matrices have %d rows"):format(deep), 2))
    plan:choose("direct_nc", math.min(slices, 2048 // plan.isa.lanes), "panels that share a pass over rows of weights: 4096 columns",
        limits.useful(slices, ("matrices have %d panels of columns"):format(slices)))
    plan:choose("run", 64, "lines of a row fetched before the next row: a page")
    plan:choose("stream_ahead", 1024, "what a single row reads is on its way from memory: 16 lines of each of 4 streams")
    plan:choose("stream_rows", 8, "parts of columns lie apart: as many rows of each of 4 streams are on their way from memory")
    plan.direct_sums = sums(plan, plan.direct_rows + 1)   -- the last tile may have a row more
    local held = plan.direct_nc * plan.direct_sums // (plan.vectors * plan.isa.lanes) // 2 * 2   -- panels of sums of a single row
    plan.single_nc = math.max(plan.direct_nc, math.min(slices, held))
end

-- How weights are read where they lie. deep: rows of the tallest matrix; slices: panels of columns of the widest one
function in_place.choose(plan, spec, deep, slices)
    local isa, weights = plan.isa, formats.of(spec)
    plan.lines = in_lines(plan, weights)
    plan.by_two = not weights.decode and lines.keep(isa, plan.group)
    if plan.lines then
        return choose_lines(plan, spec, deep, slices)
    end
    local across = ("matrices have %d panels of columns"):format(slices)
    local held = math.max(2, quantise.registers(weights) + plan.group - 1)   -- registers of weights; weights and a row's value
    plan:choose("direct_rows", plan.tiled and 4 or (plan.by_two and 6 or 2) * isa.tile.rows, plan.tiled
        and "so many rows wait for memory; matrix tiles multiply more of them faster than vectors do"
        or plan.by_two and "up to so many rows, packing weights costs more than reading them once more"
        or "up to so many accumulators fit beside one vector of weights",
        not plan.by_two and {most = isa.registers.v - held,
         because = ("more sums do not fit into the %d registers of %s"):format(isa.registers.v, isa.name)} or nil)
    plan:choose("direct_k", plan.by_two and math.min(64 // weights.size, 32) or 32,
        plan.by_two and "rows of weights that pass, and as many that come next, share L2 with sums: 64 bytes of a column"
        or "rows of weights that stay in L1 and L2 while a block's vectors pass",
        limits.sum(spec, deep, ("matrices have %d rows"):format(deep)))
    plan:choose("direct_nc", (plan.by_two and 2048 or 1024) // isa.lanes, plan.by_two
        and "panels that share a pass over rows of weights: 4096 columns, which are whole rows of many models"
        or "panels that share a pass over rows of weights: 2048 columns", limits.useful(slices, across))
    -- Vectors of less than a cache line: those of narrow weights are so few bytes that panels for f32 are short parts of rows
    plan.sweep_nc = isa.bytes < 64 and math.max(plan.direct_nc, math.min(slices, plan.direct_nc * 4 // weights.size)) or plan.direct_nc
    local run = math.max(1, 256 // (isa.lanes * weights.size))
    plan:choose("run", math.min(run, plan.direct_k), "vectors of a row fetched before the next row: 4 cache lines",
        {useful = slices, of = across, most = plan.direct_k,
         because = ("a direct tile passes over %d rows of weights at a time (direct_k)"):format(plan.direct_k)})
    plan.direct_sums = sums(plan, plan.by_two and 2 * heights.swept(plan) or plan.direct_rows)
end

function in_place.constants(plan, spec)
    if plan.lines then
        return plans.list(
            {"DIRECT_ROWS", plan.direct_rows, "up to so many rows read weights in place"},
            {"DIRECT_NC", plan.direct_nc, "panels of a block whose weights are read in place"},
            {"DIRECT_SUMS", plan.direct_sums, "floats of such a panel's sums: an odd number of cache lines"},
            {"RUN", power_of_two(plan.run), "lines of a row that direct tiles fetch ahead before they go to the next row"},
            {"DIRECT_K", plan.direct_k // 2 * 2, "rows of weights per pass of direct tiles"},
            {"SINGLE_NC", plan.single_nc, "panels of a block for a single row, all of a matrix if they are not too many"},
            {"IN_STEPS", math.max(plan.single_nc, plan.direct_nc * (lines.eights(plan) or 1)), "panels of sums of a single row, or of few"},
            {"STREAM_AHEAD", plan.stream_ahead // formats.of(spec).size, "elements that the streams of a single row fetch ahead"},
            {"STREAM_ROWS", plan.stream_rows, "rows that they fetch ahead where these are parts of columns"})
    end
    local run = plan.by_two and power_of_two(plan.run) or math.max(plan.run // plan.group, 1) * plan.group
    return plans.list(
        {"DIRECT_ROWS", plan.direct_rows, "up to so many rows read weights in place"},
        {"DIRECT_NC", plan.direct_nc, "panels of a block whose weights are read in place"},
        plan.by_two and {"KEPT", KEPT, "lines that are kept in L1 while several tiles of rows of tokens pass"},
        plan.sweep_nc > plan.direct_nc and {"SWEEP_NC", plan.sweep_nc, "the same, of rows that sweep: long parts of rows of weights"},
        {"DIRECT_SUMS", plan.direct_sums, "floats of such a panel's sums: an odd number of cache lines"},
        plan.by_two and {"LINE_SUMS", sums(plan, plan.direct_rows + 1), "the same of the most rows, and one that a tile may have more"},
        {"COMPENSATION", lost_from(plan), "row of a panel's sums from where what rounding lost of the first rows is kept"},
        {"RUN", run, "vectors of a row that a direct tile fetches ahead before it goes to the next row"},
        {"DIRECT_K", plan.direct_k // plan.group * plan.group, "rows of weights per pass of direct tiles"},
        {"FETCHED", (16 << 10) // formats.of(spec).size, "elements of weights fetched ahead where few rows stream them"},
        plan.group > 1 and {"SWEPT_ROWS", heights.swept(plan), "up to so many rows are multiplied in f32: they wait for memory"})
end

-- Adds the names, and what tiles ask of cfg. depths: rows of all matrices
function in_place.names(names, cfg, plan, spec, depths)
    local compensated, dots = not dtype[spec.dtype].narrow, plan.group > 1
    cfg.compensated, cfg.compensation, cfg.direct_sums = compensated, lost_from(plan), plan.direct_sums
    names.line_rows = plan.lines and lines.heights(line_rows(plan))
    local above = plan.by_two and heights.swept(plan) or 0   -- more rows than these
    names.line = (plan.lines or plan.by_two and plan.direct_rows > above) and {tile = "lines", c = cfg.weights.c,
        heights = lines.heights(line_rows(plan)), eights = plan.lines and lines.eights(plan),
        row = "STRIDE", group = plan.group, in_columns = true, above = above,
        keep = plan.by_two and plan.direct_rows > line_rows(plan) and lines.first(lines.heights(line_rows(plan))),
        kept = lines.kept}
    names.mixed = dots and not plan.lines   -- are a few rows of A in f32, others pairs?
    names.direct, names.sweep_rows = plan.lines and {} or heights.direct(plan), not plan.lines and heights.sweep(plan, compensated)
    local wide = names.sweep_rows and plan.sweep_nc > plan.direct_nc
    names.most_nc = wide and "SWEEP_NC" or "DIRECT_NC"
    names.rows_nc = plan.lines and "(g->rows == 1 ? SINGLE_NC : DIRECT_NC)"   -- panels of a block of a segment's rows
        or wide and ("(g->rows <= %d ? SWEEP_NC : DIRECT_NC)"):format(names.sweep_rows[#names.sweep_rows]) or "DIRECT_NC"
    names.direct_tiles, names.packed_rows = names.direct.tiles, plan.tiled and tile_heights.steps(plan.tile_rows, amx.unit)
        or tile_heights.packed(plan.tile_rows, plan.direct_rows)
    names.compensated = compensated and names.sweep_rows ~= false   -- there is a tile `add`
    names.times = dots and "group * " or ""                         -- rows of weights from steps of direct tiles
    names.unpaired = false                                          -- is there a last row of weights without partner?
    for _, deep in ipairs(depths) do
        names.unpaired = names.unpaired or dots and deep % plan.group > 0
    end
end

function in_place.tiles(names, cfg)
    if names.line_rows then
        return lines.tiles(cfg, names.line_rows, names.line.eights)
    end
    return plans.append(names.line and lines.rows(cfg, names.line.heights, lines.of_rows(cfg, true), names.line.keep) or {},
        gemm.tiles(cfg, names.direct), sweep.tiles(cfg, names.sweep_rows))
end

return in_place
