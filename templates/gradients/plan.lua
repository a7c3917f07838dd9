-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - gradients of weights, which are products over tokens, stored once: their plan, and the constants, names and tiles that
-- matrix_sums.c.in and matrix_gradient.c.in refer to. The panels of both factors: product/panels.lua.
local amx = require "tiles.amx"
local dtype = require "dtype"
local heights = require "tiles.heights"
local limits = require "shared.limits"
local matrix = require "tiles.matrix"
local on_tiles = require "gradients.on_tiles"
local plans = require "shared.plans"
local quantise = require "tiles.quantise"
local row_tiles = require "tiles.rows"
local schema = require "schema"

local gradients = {}

local int, round_up = schema.types.int, plans.round_up

local NEAR <const> = 8   -- panels of tokens of which a panel of columns stays in L1 beside what matrix tiles multiply it by

gradients.keys = {
    {"t_block", int(16, 65536), optional = true, doc = "tokens whose products are summed in a register, in gradients of weights"},
    {"block_bytes", int(1, 1 << 30), optional = true, doc = "of tokens' rows that a pass over a weight gradient's columns reads"},
    {"t_unroll", int(1, 8), optional = true, doc = "tokens of a step of a weight gradient's loop"},
    {"row_bytes", int(1, limits.BLOCK_BYTES), optional = true, doc = "of columns' rows that groups of a weight gradient's rows pass over"},
    {"run_bytes", int(1, 65536), optional = true, doc = "of a weight gradient's row that are stored together, at least"},
}

-- Why the steps that a spec gives are no pairs, or nil.
function gradients.odd_steps(spec)
    local given = spec.plan and spec.plan.t_unroll or 2
    return given % 2 == 1 and ("steps of %d tokens are no pairs"):format(given) or nil
end

-- Are stores of a vector parts of cache lines, so that groups of rows of a gradient are put together before they are stored?
local function stores_bursts(isa)
    return isa.lanes * 4 < 64
end

-- Sums of gradients of weights.
function gradients.choose_sums(plan, info)
    local width = plan.vectors * plan.isa.lanes
    plan:choose("t_block", 512, "tokens per partial sum of a weight's gradient: keeps f32 sums over many tokens accurate",
        limits.useful(round_up(plan.pass_rows, width), ("a pass has %d tokens"):format(plan.pass_rows), width))
    if plan.tiled then
        plan:choose("t_unroll", width, "tokens of a matrix tile", {useful = width, of = "a tile has no more", step = width})
        return
    end
    plan:choose("t_unroll", stores_bursts(plan.isa) and 2 or 4,
        "tokens of a step of a weight gradient's loop: the shorter a tile, the fewer may be wasted")
    limits.check_steps(plan, info, "t_unroll")
end

-- How gradients of weights are cut. block_bytes: of A; rows, columns: of the largest gradients; size: bytes of an element
function gradients.choose_cuts(plan, block_bytes, rows, columns, size)
    local width = plan.vectors * plan.isa.lanes
    local all, pass = round_up(columns, width), round_up(plan.pass_rows, width) * 4
    plan:choose("block_bytes", block_bytes, "of the tokens' rows stay in L2 while the columns of a weight gradient pass",
        limits.useful(rows * pass, ("a pass has %d rows of %d tokens"):format(rows, plan.pass_rows)))
    plan:choose("row_bytes", 1 << 14, "of the columns' rows stay in L1 while groups of a weight gradient's rows pass",
        limits.useful(all * pass, ("a pass has %d columns of %d tokens"):format(columns, plan.pass_rows)))
    plan:choose("run_bytes", stores_bursts(plan.isa) and 256 or 128,
        "of a weight gradient's row at least are stored together: runs of lines are faster",
        limits.useful(all * size, ("rows of gradients have %d columns"):format(columns)))
    plan.columns = all
end

-- Constants of those whose elements have `size` bytes.
function gradients.constants(plan, size)
    local width = plan.vectors * plan.isa.lanes
    local once = math.max(1, plan.t_block // width)
    local list = {
        {"T_STEPS", width // plan.t_unroll, "loops of a weight gradient over a full panel of tokens"},
        {"SUM_ROWS", plan.sum_rows, "rows of the tallest tile of a gradient"},
        {"PART_ROWS", math.max(1, plan.mc // plan.tile_rows) * plan.tile_rows, "rows of a gradient whose sums pass through memory"},
        {"GROUP", heights.group(plan.tile_rows, plan.isa.lanes), "rows of whole tiles and whole vectors"},
        {"T_PANELS", once, "panels of tokens that are summed in a register"},
        {"PART_PANELS", plan.tiled and math.min(once, NEAR) or once, "of each part, if there are more: they stay in L1"},
    }
    if not plan.run_bytes then   -- put together otherwise
        return list
    end
    local line = math.max(1, 64 // (width * size))
    local run = round_up((plan.run_bytes + width * size - 1) // (width * size), line)
    local most = math.max(math.min(plan.row_bytes // 4 // plan.isa.lanes, plan.columns), run * width)   -- columns at a time
    return plans.append(list, {
        {"BLOCK", plan.block_bytes // 4, "floats of A that a pass over a weight gradient's columns reads"},
        {"ROW_FLOATS", plan.row_bytes // 4, "floats of B that groups of a weight gradient's rows pass over"},
        {"ROW_PANELS", run, "panels of columns that they pass over at least"},
        {"LINE_PANELS", line, "panels of columns of a cache line"},
        {"BURST", plan.sum_rows * most, "elements of a group of rows that are put together, then stored"},
    })
end

-- How gradients of dtype `out` go to memory, unless they are added to: past the caches if rows of `columns` (one of them at
-- least) allow it. streams: stores of tiles, which are whole cache lines; bursts: the tiles' stores would be shorter, so a
-- group of rows is put together first.
local function ways(isa, width, out, adds, columns, paired)
    local whole = not stores_bursts(isa)
    local aligned = not whole and 64 // out.size or paired and width or isa.lanes   -- elements
    local some = false
    for _, total in ipairs(columns) do
        some = some or total % aligned == 0
    end
    return {
        streams = whole and some and (paired or not out.narrow) and not adds,
        bursts = not whole and some and not adds,
        aligned = aligned, aligned_bytes = aligned * out.size,
    }
end

-- Are rows of gradients (accumulated or not), of so many columns, put together before they are stored, as groups of tiles' rows
-- that neither pass the caches by nor burst are?
function gradients.stages(isa, width, out, adds, columns)
    local how = ways(isa, width, out, adds, {columns}, (quantise.pairs(out, isa, adds)))
    return not (adds or how.streams or how.bursts)
end

-- Adds the names of gradients, dtype `out`, and their scalars. how: add (to what is there), rows and columns: totals of both
function gradients.names(names, cfg, plan, out, how)
    cfg.pairs, cfg.alternate = quantise.pairs(out, cfg.isa, how.add)
    local width = plan.vectors * cfg.isa.lanes
    if not cfg.alternate and cfg.product.group == 1 then
        names.transpose_sums = "transpose_back"   -- of panels.tiles, the same program
    end
    names.gradient, names.adds, names.alternate = out, how.add, cfg.alternate
    names.out_c, names.widen_out, names.narrow_o = out.c, plans.convert(out, "widen"), plans.convert(out, "narrow")
    names.part = how.add and not out.narrow and "gradient" or "part"   -- tiles that add to f32 sums
    names.edges, names.staged = false, false
    for key, value in pairs(ways(cfg.isa, width, out, how.add, how.columns, cfg.pairs)) do
        names[key] = value
    end
    for _, total in ipairs(how.columns) do
        names.edges = names.edges or total % width ~= 0
    end
    names.scalars[#names.scalars + 1] = names.edges and {out, "narrow"} or false
    names.scalars[#names.scalars + 1] = names.edges and how.add and {out, "widen"} or false
    local set = {[plan.sum_rows] = true}
    for _, total in ipairs(how.rows) do
        set[total % plan.sum_rows] = true
    end
    names.gradient_rows = plans.members(set, plan.sum_rows)
    names.late = function(m) return names.bursts and not out.narrow and m > matrix.at_once end
end

-- Their tiles. ld, jump: of those that are staged
function gradients.tiles(names, cfg, ld, jump)
    local list, out = {}, names.gradient
    for _, m in ipairs(names.gradient_rows) do
        local gradient = cfg.tiled and m > 1 and on_tiles.gradient or matrix.gradient   -- one row is of vectors
        plans.append(list, plans.list(
            gradient(cfg, m, {name = "gradient", dtype = out, add = names.adds, lines = names.staged, ld = ld, jump = jump,
                late = names.late(m)}),
            names.part == "part" and (m == amx.unit and cfg.tiled and on_tiles.part or gradient)(
                cfg, m, {name = "part", dtype = dtype.f32, add = true}),
            names.streams and m > 1 and (m == amx.unit and cfg.tiled and on_tiles.stream or gradient)(
                cfg, m, {name = "stream", dtype = out, stream = true})))
    end
    return plans.append(list, plans.list(
        (names.bursts or names.staged) and row_tiles.lines(cfg, out, "stream_rows"),
        matrix.put(cfg, {name = "put", dtype = out, add = names.adds}),
        names.streams and matrix.put(cfg, {name = "put_stream", dtype = out, stream = true})))
end

return gradients
