-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - the plan of moe_forward, and the names that its template's holes refer to.
local dtype = require "dtype"
local schema = require "schema"
local activation = require "math.activation"
local dot = require "product.dot"
local epilogue = require "tiles.epilogue"
local gemm = require "tiles.gemm"
local heights = require "moe_forward.heights"
local limits = require "shared.limits"
local norm = require "math.norm"
local panels = require "product.panels"
local plans = require "shared.plans"
local quantise = require "tiles.quantise"
local rows = require "tiles.rows"
local strips = require "product.strips"
local sweep = require "tiles.sweep"
local tensors = require "shared.tensors"
local tile_heights = require "tiles.heights"
local work = require "moe_forward.work"

local forward = {}

local int = schema.types.int
local round_up, convert = plans.round_up, plans.convert

forward.plan_keys = {
    dot.key,
    {"tile_rows", int(1, 64), optional = true, doc = "rows of a register tile"},
    {"unroll", int(1, 16), optional = true, doc = "k steps of a tile's loop body"},
    {"strip", int(1, 8), optional = true, doc = "panels packed together"},
    {"slab", int(16, 1 << 20), optional = true, doc = "rows of weights that are packed at a time"},
    {"k_block", int(16, 1 << 20), optional = true, doc = "products summed in a register before they are added to the sum"},
    {"prefetch", int(0, 4096), optional = true, doc = "rows of weights fetched ahead of packing"},
    {"segment_rows", int(16, 65536), optional = true, doc = "rows of an expert that share packed weights"},
    {"batch_rows", int(16, 65536), optional = true, doc = "rows between two meetings of the team, for each rank"},
    {"direct_rows", int(1, 64), optional = true, doc = "up to so many rows, weights are read where they lie"},
    {"direct_strip", int(1, 4096), optional = true, doc = "panels that such a pass covers"},
    {"run", int(1, 1024), optional = true, doc = "vectors of a row that a direct tile fetches ahead before the next row"},
    {"direct_k", int(16, 65536), optional = true, doc = "rows of weights that direct tiles pass over at a time"},
}

forward.uses = dot.uses

-- Rows of weights: how many are packed, and how many make a sum. step: rows that a tile takes at least
local function choose_depth(plan, spec, step)
    local deep = math.max(spec.H, spec.I_TP)
    local whole = round_up(deep, step)
    plan:choose("slab", 2048, "rows of weights packed at a time: what two strips take of the caches",
        limits.useful(whole, ("matrices have %d rows"):format(deep)))
    local narrow = dtype[spec.dtype].narrow
    plan:choose("k_block", narrow and 4096 or 256, narrow and "products per partial sum: inputs are rounded more coarsely than sums"
        or "products per partial sum: keeps f32 sums of long K accurate",
        limits.sum(spec, whole, ("sums are of %d products"):format(deep), step))
end

-- How weights are read where they lie.
local function choose_direct(plan, spec, slices)
    local isa, deep = plan.isa, math.max(spec.H, spec.I_TP)
    local across = ("matrices have %d panels of columns"):format(slices)
    plan:choose("direct_rows", 2 * isa.tile.rows, "up to so many accumulators fit beside one vector of weights",
        {most = isa.registers.v - math.max(2, quantise.registers(dtype[spec.dtype])),   -- of weights; weights and a row's value
         because = ("more sums do not fit into the %d registers of %s"):format(isa.registers.v, isa.name)})
    plan:choose("direct_k", 32, "rows of weights that stay in L1 and L2 while a strip's vectors pass",
        limits.sum(spec, deep, ("matrices have %d rows"):format(deep)))
    plan:choose("direct_strip", 1024 // isa.lanes, "panels that share a pass over rows of weights: 2048 columns",
        limits.useful(slices, across))
    local lines = math.max(1, 256 // (isa.lanes * dtype[spec.dtype].size))
    plan:choose("run", math.min(lines, plan.direct_k), "vectors of a row fetched before the next row: 4 cache lines",
        {useful = slices, of = across, most = plan.direct_k,
         because = ("a direct tile passes over %d rows of weights at a time (direct_k)"):format(plan.direct_k)})
end

function forward.plan(plan, spec, _, info)
    local isa = plan.isa
    plan:choose("shard", spec.shard.on == "auto" and "hidden" or spec.shard.on,
        spec.shard.on == "auto" and "columns of both projections: no sums across ranks" or "spec")
    dot.choose(plan, spec, info)
    plan.vectors = 2
    plan:choose("tile_rows", isa.tile.rows, ("%d x 2 accumulators, 2 columns and a row value fill %d registers"):format(
        isa.tile.rows, isa.registers.v), limits.tile(isa, plan.vectors))
    plan:choose("unroll", 4, "k steps per row of the next panel that is packed on the way")
    local columns = spec.gated and isa.lanes or 2 * isa.lanes
    local slices = math.max(round_up(spec.I_TP, columns) // columns, round_up(spec.H, 2 * isa.lanes) // (2 * isa.lanes))
    plan:choose("strip", gemm.strip(isa, dtype[spec.dtype]), "panels packed side by side: full cache lines of weights",
        limits.useful(slices, ("matrices have %d panels of columns"):format(slices)))
    local step = plan.group * plan.unroll
    choose_depth(plan, spec, step)
    if spec.shard.on == "intermediate" then
        plan:choose("parts", spec.shard.cores == "auto" and 4 or spec.shard.cores, "of the intermediate columns, added in order")
    else
        plan.parts = 1
    end
    plan:choose("prefetch", 6, "rows of weights on their way from memory while one is packed",
        limits.useful(plan.slab, ("a slab has %d rows"):format(plan.slab)))
    plan:choose("segment_rows", 512, "rows of an expert per pass over its weights")
    plan:choose("batch_rows", 512, "rows between barriers, for each rank")
    choose_direct(plan, spec, slices)
    if columns % step ~= 0 then   -- a step of K may end past I, but not past the columns of the last panel
        schema.complain(info, "plan.unroll", ("steps of %d do not divide the %d columns of a panel"):format(step, columns))
    end
    if plan.slab % step ~= 0 then
        schema.complain(info, "plan.slab", ("steps of %d do not divide %d rows"):format(step, plan.slab))
    end
    if plan.group > 1 and plan.strip > 2 then
        schema.complain(info, "plan.strip", "pairs of rows leave registers for 2 panels at a time")
    end
    local longest = math.max(round_up(spec.H, step), round_up(spec.I_TP, columns))
    plan.stride = plans.odd_lines(longest)
    plan.direct_sums = (plan.direct_rows * plan.vectors * isa.lanes // 16 | 1) * 16
end

forward.params = dot.params

function forward.args(s)
    local save = s.checkpoint == "save"
    return plans.append(tensors.inputs(s), tensors.blocks(s), tensors.biases(s), plans.list(
        {"output", s.output_dtype, "out", tensors.tokens(s), s.H,
            says = "sum over the experts of each token; rows that no block names are zero"},
        save and tensors.kept_gate_up(s, "gate_up_activations_T", "out", "N"),
        save and s.affinity.on == "hidden" and tensors.kept_down(s, "down_activations", "out", "N")))
end

-- Which steps of the semantics this spec has.
local function steps(spec, shard)
    local scale, on = spec.affinity.scale, spec.affinity.on
    local on_p = on == "intermediate" and scale ~= "none"
    return {
        norm = spec.norm == "layer",
        bias_up = spec.bias.gate_up, bias_down = spec.bias.down,
        affinity_on_x = scale == "pre" and not on_p, affinity_on_p = on_p, affinity_on_y = scale == "post" and not on_p,
        bias_scaled = on_p and spec.bias.down,
        affinity_in_finish = scale == "post" and not on_p and shard ~= "intermediate",
        affinity_in_combine = scale == "post" and not on_p and shard == "intermediate",
        add = spec.accumulate and shard ~= "intermediate",
        checkpoint_up = spec.checkpoint == "save", checkpoint_down = spec.checkpoint == "save" and on == "hidden",
    }
end

local function constants(spec, plan)
    local lanes = plan.isa.lanes
    local width = plan.vectors * lanes
    local up = spec.gated and lanes or width
    local deep = math.max(spec.H, spec.I_TP)
    local run = math.max(plan.run // plan.group, 1) * plan.group
    local list = {
        {"H", spec.H, "hidden size"}, {"I", spec.I_TP, "intermediate size"}, {"E", spec.E, "experts"},
        {"B", spec.block_size, "slots of a block"}, {"GATES", spec.gated and 2 or 1, "gate and up, or up alone"},
        {"STATIC_BLOCKS", type(spec.loop) == "table" and spec.loop.static_blocks or 0, "run whatever conditions say"},
        {"UP_COLUMNS", up, "columns of I that a panel holds"},
        {"UP_PANELS", (spec.I_TP + up - 1) // up, "over I"}, {"DOWN_PANELS", (spec.H + width - 1) // width, "over H"},
        {"DIRECT_ROWS", plan.direct_rows, "up to so many rows read weights in place"},
        {"DIRECT_STRIP", plan.direct_strip, "panels of a strip whose weights are read in place"},
        {"DIRECT_SUMS", plan.direct_sums, "floats of such a panel's sums: an odd number of cache lines"},
        {"COMPENSATION", plan.direct_rows // 2, "row of a panel's sums from where what rounding lost of the first rows is kept"},
        {"PARTS", plan.parts, "of I, summed apart"},
        {"RUN", run, "vectors of a row that a direct tile fetches ahead before it goes to the next row"},
        {"DIRECT_K", plan.direct_k // plan.group * plan.group, "rows of weights per pass of direct tiles"},
        {"FETCHED", (16 << 10) // dtype[spec.dtype].size, "elements of weights fetched ahead where few rows stream them"},
        {"DEEP", deep, "rows of the taller matrix"},
        plan.group > 1 and {"SWEPT_ROWS", heights.swept(plan), "up to so many rows are multiplied in f32: they wait for memory"} or nil,
    }
    return plans.append(list, panels.shape(plan, plan.segment_rows, plan.batch_rows), strips.constants(plan, deep))
end

local function tiles(spec, names, cfg, direct)
    local has, io, out, lanes = names.has, dtype[spec.dtype], dtype[spec.output_dtype], cfg.isa.lanes
    local between = {bias = has.bias_up, affinity = has.affinity_on_p and not has.norm, checkpoint = has.checkpoint_up, raw = has.norm}
    local function finish(add)
        return epilogue.output(cfg, {bias = has.bias_down, bias_scaled = has.bias_scaled, affinity = has.affinity_in_finish,
            checkpoint = has.checkpoint_down and not names.by_part, add = add})
    end
    return plans.append(gemm.heights(gemm.packed, cfg, names.packed_rows), gemm.heights(gemm.direct, cfg, direct.rows),
        gemm.heights(gemm.direct_pairs, cfg, direct.pairs), gemm.heights(sweep, cfg, names.sweep_rows or {}), plans.list(
        gemm.pack(cfg),
        epilogue.intermediate(cfg, spec, between),
        names.dots and epilogue.intermediate(cfg, spec, between, io),
        has.norm and norm.sum(cfg, "row_sum"),
        has.norm and norm.squares(cfg, "row_squares"),
        has.norm and norm.normalise(cfg, "normalise", activation[spec.activation].forward, has.affinity_on_p),
        finish(false),
        has.add and finish(true),
        names.dots and spec.H >= 2 * lanes and rows.words(cfg, io, "words"),
        spec.H >= lanes and rows.move(cfg, "widen", {from = io, scaled = has.affinity_on_x}),
        spec.H >= lanes and out.narrow and rows.move(cfg, "narrow_output", {to = out}),
        has.checkpoint_down and names.down_vectors and not names.by_part and rows.move(cfg, "narrow_io", {to = io}),
        (names.compensated and names.sweep_rows or names.by_part and spec.H >= lanes) and rows.move(cfg, "add", {add = true}),
        (has.add or names.by_part) and spec.H >= lanes
            and rows.move(cfg, "combine", {scaled = has.affinity_in_combine, add = spec.accumulate}),
        names.transposes and rows.transpose(cfg, io, "transpose", spec.block_size, "B"),
        rows.zero(cfg, "zero")))
end

-- What the template sees.
function forward.names(spec, plan, job)
    local isa, io = plan.isa, dtype[spec.dtype]
    local out = dtype[spec.output_dtype]
    local has = steps(spec, plan.shard)
    local cfg = strips.cfg(spec, plan, job, math.max(spec.H, spec.I_TP))
    cfg.compensated, cfg.compensation, cfg.direct_sums = not io.narrow, plan.direct_rows // 2, plan.direct_sums
    cfg.unaligned = spec.H * io.size % 64 ~= 0 or spec.I_TP * io.size % 64 ~= 0
    local direct = heights.direct(plan)
    local up = spec.gated and isa.lanes or plan.vectors * isa.lanes
    local names = {
        spec = spec, plan = plan, isa = isa, has = has, p = cfg.prefix,
        io = io.c, bias_c = dtype[spec.bias_dtype].c,
        narrow_output = out.narrow ~= nil,
        eps = plans.number(spec.norm_eps),
        in_place = true, reads_past = false, clears = true, parts_add = false,
        scaled = has.affinity_on_x, long = spec.H, routed_rows = "w->args->N * B",
        groups = {most = "w->args->N", count = "w->groups", expert = "w->group_expert[e]"},
        by_block = plan.shard == "block", whole_segments = plan.shard == "block", by_part = plan.shard == "intermediate",
        compensated = not io.narrow,
        times = plan.group > 1 and "group * " or "",   -- rows of weights from steps of direct tiles
        unpaired = plan.group > 1 and (spec.H % plan.group > 0 or spec.I_TP % plan.group > 0),   -- a last row of weights
        padding = plan.group > 1 and round_up(spec.I_TP, plan.group * plan.unroll) - spec.I_TP,   -- of a row of P: pairs and steps
        transposes = has.checkpoint_up and spec.block_size >= isa.lanes and spec.I_TP >= isa.lanes,
        edges = spec.I_TP % up ~= 0 or spec.H % (plan.vectors * isa.lanes) ~= 0, edge_down = spec.H % (plan.vectors * isa.lanes) ~= 0,
        down_vectors = spec.H >= plan.vectors * isa.lanes,
        packed_rows = tile_heights.packed(plan.tile_rows, plan.direct_rows),
        direct_tiles = direct.tiles, sweep_rows = heights.sweep(plan, not io.narrow),
        widen_io = convert(io, "widen"), narrow_io = convert(io, "narrow"),
        widen_bias = convert(dtype[spec.bias_dtype], "widen"), widen_affinity = convert(dtype[spec.affinity_dtype], "widen"),
        sums = {apart = has.add or plan.shard == "intermediate", otherwise = true, first = "from",
            when = plan.shard == "intermediate" and "1" or not has.add and "0" or nil, row = "H",
            is_long = spec.H >= isa.lanes, rounded = out.narrow and {output = "output", c = out.c, tile = "narrow_output",
                narrow = convert(out, "narrow"), rows = "tokens(w->args->T)"}},
        constants = constants(spec, plan),
        scalars = {{dtype[spec.dtype], "widen"}, {dtype[spec.affinity_dtype], "widen"},
            (has.bias_up or has.bias_down or has.norm) and {dtype[spec.bias_dtype], "widen"} or false,
            has.checkpoint_up and {io, "narrow"} or false, {out, "narrow"}},
    }
    strips.names(names, plan)
    work.phases(names, spec, has)
    work.space(names, has)
    names.tiles = function()
        return tiles(spec, names, cfg, direct)
    end
    return names
end

return forward
