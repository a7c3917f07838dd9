-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - the plan of moe_forward, and the names that its template's holes refer to.
local dtype = require "dtype"
local schema = require "schema"
local activation = require "math.activation"
local activations = require "codes.activations"
local by_rows = require "moe_forward.by_rows"
local dot = require "product.dot"
local epilogue = require "tiles.epilogue"
local formats = require "tiles.formats"
local gemm = require "tiles.gemm"
local in_place = require "product.in_place"
local keys = require "shared.keys"
local limits = require "shared.limits"
local norm = require "math.norm"
local packed = require "packed.form"
local panel_plan = require "product.panel_plan"
local post_norm = require "math.post_norm"
local panels = require "product.panels"
local plans = require "shared.plans"
local rows = require "tiles.rows"
local saved = require "moe_forward.saved"
local stored = require "shared.stored"
local column_blocks = require "product.column_blocks"
local tensors = require "shared.tensors"
local work = require "moe_forward.work"

local forward = {}

local int = schema.types.int
local round_up, convert = plans.round_up, plans.convert

local column_keys = {
    dot.key,
    {"tile_rows", int(1, 64), optional = true, doc = "rows of a register tile"},
    {"unroll", int(1, 16), optional = true, doc = "k steps of a tile's loop body"},
    {"nc", int(1, 8), optional = true, doc = "panels packed together"},
    {"pack_k", int(16, 1 << 20), optional = true, doc = "rows of weights that are packed at a time, at most"},
    {"kc", int(16, 1 << 20), optional = true, doc = "products summed in a register before they are added to the sum"},
    {"prefetch", int(0, 4096), optional = true, doc = "rows of weights fetched ahead of packing"},
    {"segment_rows", int(16, 65536), optional = true, doc = "rows of an expert that share packed weights"},
    {"batch_rows", int(16, 65536), optional = true, doc = "rows between two meetings of the team, for each rank"},
    {"streamed", int(0, 1 << 30), optional = true, doc = "bytes from which on a checkpoint passes the caches by"},
    table.unpack(in_place.keys),
}

forward.plan_keys = keys.of_plans(column_keys, by_rows.keys)

-- Have matrix tiles a use? Parts of the intermediate columns end amid what a tile takes of K.
local function may_tile(spec)
    return by_rows.takes(spec) or spec.shard.on ~= "intermediate"
end

function forward.uses(isa, spec, props)
    return activations.uses(isa, spec, props, nil, activations.are(spec), may_tile(spec))
end

-- Rows of weights: how many are packed, and how many make a sum. step: rows that a tile takes at least
local function choose_depth(plan, spec, step)
    local deep = math.max(spec.H, spec.I_TP)
    local bytes = formats.of(spec).size   -- if this is one, blocks of columns are wide
    plan:choose("pack_k", column_blocks.pack_k(plan) or bytes > 1 and 2048 or 1024, plan.tiled
        and "most rows of weights packed at a time: those of a sum, so that blocks leave L2 to what comes from memory; fewer of few tokens"
        or "rows of weights packed at a time: what two blocks take of the caches",
        limits.useful(round_up(deep, step), ("matrices have %d rows"):format(deep), plan.tiled and step))
    column_blocks.choose_sums(plan, spec, deep)
end

function forward.plan(plan, spec, shape, info)
    if by_rows.takes(spec) then
        return by_rows.plan(plan, spec, shape, info)
    end
    local isa = plan.isa
    plan:choose("shard", spec.shard.on == "auto" and "hidden" or spec.shard.on,
        spec.shard.on == "auto" and "columns of both projections: no sums across ranks" or "spec")
    dot.choose(plan, spec, info, nil, nil, may_tile(spec))
    plan.vectors = 2
    panel_plan.choose_tile(plan, true)
    column_blocks.choose_steps(plan, "k steps per row of the next panel that is packed on the way")
    local columns = spec.gated and isa.lanes or 2 * isa.lanes
    local slices = math.max(round_up(spec.I_TP, columns) // columns, round_up(spec.H, 2 * isa.lanes) // (2 * isa.lanes))
    local lines = plan.tiled and "pairs of cache lines" or "full cache lines"
    plan:choose("nc", gemm.nc(isa, formats.of(spec), plan.tiled), ("panels packed side by side: %s of weights"):format(lines),
        limits.useful(slices, ("matrices have %d panels of columns"):format(slices)))
    local step = plan.group * plan.unroll
    choose_depth(plan, spec, step)
    if spec.shard.on == "intermediate" then
        plan:choose("parts", spec.shard.cores == "auto" and 4 or spec.shard.cores, "of the intermediate columns, added in order")
    else
        plan.parts = 1
    end
    column_blocks.choose_fetch(plan, plan.pack_k, "a packed block has %d rows")
    plan:choose("segment_rows", 512, "rows of an expert per pass over its weights")
    plan:choose("batch_rows", 512, "rows between barriers, for each rank")
    in_place.choose(plan, spec, math.max(spec.H, spec.I_TP), slices)
    saved.choose(plan, spec)
    if not plan.tiled and columns % step ~= 0 then   -- a step of K may end past I, but not past the columns of the last panel
        schema.complain(info, "plan.unroll", ("steps of %d do not divide the %d columns of a panel"):format(step, columns))
    end
    if plan.pack_k % step ~= 0 then
        schema.complain(info, "plan.pack_k", ("steps of %d do not divide %d rows"):format(step, plan.pack_k))
    end
    if plan.group > 1 and not plan.tiled and plan.nc > 2 and not formats.of(spec).decode then
        schema.complain(info, "plan.nc", "pairs of rows leave registers for 2 panels at a time")
    end
    local longest = math.max(round_up(spec.H, step), round_up(spec.I_TP, math.max(columns, step)))
    plan.stride = plans.odd_lines(longest)
end

function forward.params(spec, plan)
    return plans.append(activations.params(spec, plan), packed.params(spec, plan, stored.matrices(spec)))
end

function forward.args(s, plan)
    local save = s.checkpoint == "save"
    return plans.append(tensors.inputs(s, plan), tensors.blocks(s), tensors.biases(s), plans.list(
        {"output", s.output_dtype, "out", tensors.tokens(s), s.H,
            says = "sum over the experts of each token; rows that no block names are zero"},
        save and tensors.kept_gate_up(s, "gate_up_activations_T", "out", "N"),
        save and s.affinity.on == "hidden" and tensors.kept_down(s, "down_activations", "out", "N")))
end

-- Which steps of the semantics this spec has.
local function steps(spec, shard)
    local scale, on = spec.affinity.scale, spec.affinity.on
    local on_p = on == "intermediate" and scale == "post"   -- `pre` multiplies hidden states, wherever `post` would
    local behind = spec.post_norm ~= nil   -- of whole rows, which are kept apart until all of them are there
    local whole = shard ~= "intermediate" and not behind
    return {
        norm = spec.norm == "layer", post_norm = behind, scale = stored.scale(spec) or false,
        bias_up = spec.bias.gate_up, bias_down = spec.bias.down,
        affinity_on_x = scale == "pre", affinity_on_p = on_p,
        bias_scaled = on_p and spec.bias.down,
        affinity_in_finish = scale == "post" and not on_p and whole, affinity_in_combine = scale == "post" and not on_p and not whole,
        add = spec.accumulate and whole,
        checkpoint_up = spec.checkpoint == "save", checkpoint_down = spec.checkpoint == "save" and on == "hidden",
    }
end

local function constants(spec, plan)
    local lanes = plan.isa.lanes
    local width = plan.vectors * lanes
    local up = spec.gated and lanes or width
    local deep = math.max(spec.H, spec.I_TP)
    local list = plans.append(tensors.constants(spec), {
        {"STATIC_BLOCKS", type(spec.loop) == "table" and spec.loop.static_blocks or 0, "run whatever conditions say"}})
    if by_rows.takes(spec) then
        return plans.append(list, by_rows.constants(spec, plan))
    end
    plans.append(list, {
        {"UP_COLUMNS", up, "columns of I that a panel holds"},
        {"UP_PANELS", (spec.I_TP + up - 1) // up, "over I"},
        {"PARTS", plan.parts, "of I, summed apart"},
        {"DEEP", deep, "rows of the taller matrix"},
    }, saved.constants(spec, plan))
    return plans.append(list, in_place.constants(plan, spec), panels.shape(plan, plan.segment_rows, plan.batch_rows),
        column_blocks.constants(plan, deep))
end

local function tiles(spec, names, cfg)
    local has, io, out, lanes = names.has, dtype[spec.dtype], dtype[spec.output_dtype], cfg.isa.lanes
    local between = {scale = has.scale, bias = has.bias_up, affinity = has.affinity_on_p and not has.norm,
        checkpoint = has.checkpoint_up, raw = has.norm, interleaved = stored.of(spec).interleaved}
    local function finish(add)
        return epilogue.output(cfg, {scale = has.scale, bias = has.bias_down, bias_scaled = has.bias_scaled,
            affinity = has.affinity_in_finish, checkpoint = has.checkpoint_down and not names.by_part, add = add})
    end
    return plans.append(column_blocks.packed(names, cfg), in_place.tiles(names, cfg), saved.tiles(names, cfg, spec), plans.list(
        gemm.pack(cfg),
        (names.mixed or not names.dots) and epilogue.intermediate(cfg, spec, between),
        names.dots and epilogue.intermediate(cfg, spec, between, io),
        has.norm and norm.sum(cfg, "row_sum"),
        has.norm and norm.squares(cfg, "row_squares"),
        has.norm and norm.normalise(cfg, "normalise", activation[spec.activation].forward, has.affinity_on_p),
        finish(false),
        has.add and finish(true),
        names.dots and spec.H >= 2 * lanes and rows.words(cfg, io, "words"),
        (names.mixed or not names.dots) and spec.H >= lanes and rows.move(cfg, "widen", {from = io, scaled = has.affinity_on_x}),
        spec.H >= lanes and out.narrow and rows.move(cfg, "narrow_output", {to = out}),
        (names.compensated or names.by_part and spec.H >= lanes) and rows.move(cfg, "add", {add = true}),
        has.post_norm and spec.H >= lanes and post_norm.weigh(cfg, dtype[spec.bias_dtype]),
        (has.add or names.by_part or has.post_norm) and spec.H >= lanes
            and rows.move(cfg, "combine", {scaled = has.affinity_in_combine, add = spec.accumulate}),
        rows.zero(cfg)))
end

-- Where the scales of gate, of up and of the second product start, in C. in_turn: gate and up are columns in turn that share a scale each
local function scales_of(spec, by_row, unit)
    local weights, beside = stored.gate_up(spec)
    local interleaved = stored.of(spec).interleaved
    local function at(tensor, each)
        local set = spec.weights.shared and "" or stored.of(spec).listed and "[w->expert]" or " + w->expert" .. each
        return ("w->args->%s%s"):format((tensor:gsub("weight$", "scale")), set)
    end
    local each = by_row and (beside and " * I" or " * GATES * I") or beside and "" or " * GATES"
    local gate = at(weights, each)
    local up = beside and at(beside, each) or gate .. (not spec.gated and "" or not by_row and " + 1" or interleaved and "" or " + I")
    return {gate = gate, up = up, down = at("down_proj_weight", by_row and " * H" or ""), in_turn = interleaved and not by_row,
        unit = unit and " * " .. plans.number(unit) or ""}
end

-- Adds to the names what products of columns need.
local function column_names(names, spec, plan, job)
    local isa, has = plan.isa, names.has
    local cfg = column_blocks.cfg(spec, plan, job, math.max(spec.H, spec.I_TP))
    cfg.unaligned = spec.H * cfg.weights.size % 64 ~= 0 or spec.I_TP * cfg.weights.size % 64 ~= 0
    local up, width = spec.gated and isa.lanes or plan.vectors * isa.lanes, plan.vectors * isa.lanes
    names.scale = scales_of(spec, has.scale == "row", cfg.weights.unit)
    names.reads_past, names.scaled, names.long = false, has.affinity_on_x, spec.H
    names.by_block, names.whole_segments = plan.shard == "block", plan.shard == "block"
    names.padding = plan.group > 1 and round_up(spec.I_TP, plan.group * plan.unroll) - spec.I_TP   -- of a row of P: pairs and steps
    saved.names(names, spec, isa, width)
    names.edges, names.edge_down = spec.I_TP % up ~= 0 or spec.H % width ~= 0, spec.H % width ~= 0
    panels.tiled(names, plan)
    column_blocks.names(names, plan, cfg)
    in_place.names(names, cfg, plan, spec, {spec.H, spec.I_TP})
    names.lone = names.line and spec.gated and not stored.of(spec).interleaved
        and (spec.I_TP // isa.lanes | plan.direct_nc) % 2 > 0
    work.phases(names, spec, has)
    work.space(names, has)
    names.tiles = function()
        return tiles(spec, names, cfg)
    end
end

-- What the template sees.
function forward.names(spec, plan, job)
    local isa, io, out = plan.isa, dtype[spec.dtype], dtype[spec.output_dtype]
    local has = steps(spec, plan.shard)
    local names = {
        spec = spec, plan = plan, isa = isa, has = has, p = job.name .. "_",
        io = io.c, bias_c = dtype[spec.bias_dtype].c,
        narrow_output = out.narrow ~= nil,
        eps = plans.number(has.post_norm and spec.post_norm.eps or spec.norm_eps),
        listed = stored.of(spec).listed, clears = true, parts_add = false, routed_rows = "w->args->N * B",
        groups = {most = "w->args->N", count = "w->groups", expert = "w->group_expert[e]"},
        by_block = false, by_part = plan.shard == "intermediate",
        widen_io = convert(io, "widen"), narrow_io = convert(io, "narrow"),
        widen_bias = convert(dtype[spec.bias_dtype], "widen"), widen_affinity = convert(dtype[spec.affinity_dtype], "widen"),
        sums = {apart = has.add or has.affinity_in_combine or plan.shard == "intermediate", otherwise = true,
            when = (has.post_norm or plan.shard == "intermediate") and "1" or not has.add and "0" or nil, row = "H",
            is_long = spec.H >= isa.lanes, rounded = plans.rounded("output", out, "narrow_output", "tokens(w->args->T)")},
        constants = constants(spec, plan),
        scalars = {{dtype[spec.dtype], "widen"}, {dtype[spec.affinity_dtype], "widen"},
            (has.bias_up or has.bias_down or has.norm or has.post_norm) and {dtype[spec.bias_dtype], "widen"} or false,
            has.checkpoint_up and {io, "narrow"} or false, {out, "narrow"}},
    }
    if by_rows.takes(spec) then
        saved.rows(names, spec)
        by_rows.names(names, spec, plan, job, work.common(names))
    else
        column_names(names, spec, plan, job)
    end
    return names
end

return forward
