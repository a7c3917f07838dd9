-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - the plan of grouped_gemm, and the names that its template's holes refer to.
local dtype = require "dtype"
local types = require("schema").types
local activations = require "codes.activations"
local along = require "along.plan"
local amx = require "tiles.amx"
local args = require "grouped_gemm.args"
local codes = require "codes.plan"
local dot = require "product.dot"
local formats = require "tiles.formats"
local gemm = require "tiles.gemm"
local gradients = require "gradients.plan"
local in_place = require "product.in_place"
local limits = require "shared.limits"
local packed = require "packed.form"
local packed_plan = require "packed.plan"
local panel_rows = require "tiles.panel_rows"
local panel_plan = require "product.panel_plan"
local panels = require "product.panels"
local plans = require "shared.plans"
local rows = require "tiles.rows"
local stored = require "shared.stored"
local column_blocks = require "product.column_blocks"
local work = require "grouped_gemm.work"

local grouped = {}

local round_up, convert = plans.round_up, plans.convert

local int = types.int

grouped.plan_keys = {
    dot.key,
    {"prefetch", int(1, 1024), optional = true, doc = "rows of weights fetched ahead of those that are packed (dX)"},
    {"stage_bytes", int(1, limits.BLOCK_BYTES), optional = true, doc = "of rows of an unaligned gradient that are put together first (dW)"},
    table.unpack(panel_plan.forward_keys),
}
plans.append(grouped.plan_keys, gradients.keys)
table.move(in_place.keys, 1, #in_place.keys, #grouped.plan_keys + 1, grouped.plan_keys)

-- Why products may not be of pairs, or nil.
local function no_pairs(spec)
    return spec.op == "dX" and codes.no_pairs(spec) or gradients.odd_steps(spec)
end

function grouped.uses(isa, spec, props)
    return activations.uses(isa, spec, props, no_pairs(spec), true, true)
end

grouped.weights, grouped.weight_rules, grouped.args, grouped.way = args.weights, args.weight_rules, args.list, args.way

local matrices, reduces, way = args.matrices, args.reduces, args.way

function grouped.params(spec, plan)
    return plans.append(activations.params(spec, plan), packed.params(spec, plan, matrices(spec)))
end

local PASS <const> = "rows of an expert per pass: bounds the workspace"

local choose = {}

function choose.rows(plan, spec, info)
    local product = args.products[spec.op]
    local unit = product.layout == "k" and codes.are(spec) and codes.unit(spec, plan)
    local block = codes.block(spec, plan) or plan.tiled and amx.kc or dtype[spec.dtype].narrow and 128 or 64
    local lies = not (codes.are(spec) or packed.are(spec))   -- what chunks of fewer rows give are short runs of rows of Y
    panel_plan.choose_block(plan, spec, info, panel_plan.whole(plan, block, unit), spec[product.to.row], spec[product.from.row], lies and 4)
    panel_plan.check_units(plan, info, unit)
    if product.layout == "k" and not plan.integers then
        along.choose(plan, spec)
    end
    plan:choose("pass_rows", 1024, PASS)
    packed_plan.choose(plan, spec)
end

function choose.columns(plan, spec, info)
    column_blocks.choose_sums(plan, spec, spec.N)
    column_blocks.choose_fetch(plan, spec.N, "matrices have %d rows")
    plan:choose("pass_rows", 1024, PASS)
    panel_plan.check(plan, info)
    local width = plan.vectors * plan.isa.lanes
    in_place.choose(plan, spec, spec.N, (spec.K + width - 1) // width)
    local deep = column_blocks.panel_rows(plan, spec.N) * plan.group
    plan.nc, plan.pack_k = gemm.nc(plan.isa, formats.of(spec), plan.tiled), column_blocks.pack_k(plan) or deep
    plan.stride = plans.odd_lines(deep)   -- few rows are f32
end

-- Bytes from a row of a gradient to the next one where rows are put together: an odd number of cache lines.
local function staged_row(plan, spec)
    return ((round_up(spec.K, plan.vectors * plan.isa.lanes) * dtype[spec.output_dtype].size + 63) // 64 | 1) * 64
end

function choose.gradient(plan, spec, info)
    local out = dtype[spec.output_dtype]
    panel_plan.choose_mc(plan, spec.N, "rows of a gradient whose sums pass through memory together", 2)
    plan:choose("pass_rows", panel_plan.long_pass(plan), PASS)
    panel_plan.check(plan, info)
    gradients.choose_sums(plan, info)
    plan.staged = gradients.stages(plan.isa, plan.vectors * plan.isa.lanes, out, spec.accumulate_grads, spec.K)
    if plan.staged then
        plan:choose("stage_bytes", 1 << 17, "of rows of an unaligned gradient, put together while as many are stored",
            limits.useful(staged_row(plan, spec) * round_up(spec.N, plan.sum_rows), ("an expert's gradient has %d rows"):format(spec.N)))
    else
        gradients.choose_cuts(plan, 1 << 18, spec.N, spec.K, out.size)
    end
end

function grouped.plan(plan, spec, _, info)
    activations.choose(plan, spec, info, no_pairs(spec), true, true)
    local only_products = way(spec) == "rows" and args.products[spec.op].layout == "k"
    plan.vectors = panel_plan.vectors(plan, only_products and codes.may_be_narrow(spec))
    panel_plan.choose_tile(plan, way(spec) == "columns", codes.run(spec, plan))
    if way(spec) == "columns" then
        column_blocks.choose_steps(plan, "k steps of a loop body")
    elseif way(spec) == "rows" then
        plan:choose("unroll", 4, "k steps of a loop body")
    end
    choose[way(spec)](plan, spec, info)
end

function grouped.work(s)
    local size = s.op == "dW" and dtype[s.output_dtype].size * (s.accumulate_grads and 2 or 1) or stored.size(s)
    return {flops_per_row = 2 * s.N * s.K, weight_bytes_per_expert = math.ceil(s.N * s.K * size)}
end

-- Constants of a gradient of weights whose rows are put together before they are stored.
local function staged_constants(plan, spec)
    local width, size, row = plan.vectors * plan.isa.lanes, dtype[spec.output_dtype].size, staged_row(plan, spec)
    return {
        {"APART_STAGED", row // size, "elements between rows that are put together: an odd number of cache lines"},
        {"STAGED", math.max(1, plan.stage_bytes // (row * plan.sum_rows)) * plan.sum_rows,
            "rows of an unaligned gradient that are put together before they are stored"},
        {"CALL_PANELS", math.max(1, math.min(4, round_up(spec.K, width) // width // plan.sum_rows)),
            "panels of columns that a tile works on: it is called as often at least as there are rows to store"},
        {"GIVEN", plan.sum_rows * width * size // 32, "cache lines at most that go to memory beside each of them"},
    }
end

-- Rows of a panel of X or of dY: full panels of k, and whole runs of scales.
local function across(spec, plan)
    return round_up(spec.op == "forward" and spec.K or spec.N, activations.rows(spec, plan))
end

-- Rows from a panel to the next one.
local function apart(spec, plan)
    local deep = across(spec, plan)
    return way(spec) == "rows" and deep // plan.group + 1 or panels.apart(plan, deep)
end

-- Floats between rows on their way into panels.
local function stage(spec, plan)
    return plans.odd_lines(across(spec, plan) // (plan.integers and 1 or plan.group) // 16 * 16 + 16)
end

local function constants(spec, plan)
    local width, by_rows = plan.vectors * plan.isa.lanes, way(spec) == "rows"
    local list = plans.append(plans.list(
        {"N", spec.N, "rows of an expert's matrix"}, {"K", spec.K, "its columns"}, {"E", spec.E, "experts"},
        {"K_SLICES", round_up(spec.K, width) // width, "panels over K"},
        spec.permute == "x" and (spec.op ~= "dX" or spec.reduce_topk) and {"TOP_K", spec.top_k, "rows of a token"},
        reduces(spec) and plans.sum_ld(spec.K)
    ), panels.shape(plan))
    if way(spec) == "columns" then
        return plans.append(list, in_place.constants(plan, spec), column_blocks.constants(plan, spec.N))
    end
    local deep = across(spec, plan)
    return plans.append(list, {
        {"ROWS", deep, "rows of a panel, full panels of k"},
        {"APART", apart(spec, plan), "rows from a panel to the next one: its lines are in other sets of the caches"},
    }, activations.constants(spec, plan, {{"X_ROWS", deep, "K"}}), by_rows and panels.product_constants(plan) or {},
    plan.staged and staged_constants(plan, spec) or {},
    panels.token_constants(plan, stage(spec, plan), not by_rows and dtype[spec.output_dtype].size))
end

local tiles = {}

-- Of sums of a token's rows, which are f32.
local function sums(names, cfg, out, adds)
    local long = names.reduces and names.sums.is_long
    return (adds or long) and rows.move(cfg, "add", {add = true}), long and out.narrow and rows.move(cfg, "narrow", {to = out})
end

function tiles.columns(spec, _, names, cfg)
    local out = dtype[spec.output_dtype]
    return plans.append({rows.zero(cfg)}, column_blocks.packed(names, cfg), in_place.tiles(names, cfg), plans.list(
        gemm.pack(cfg),
        names.dots and spec.N >= 2 * cfg.isa.lanes and rows.words(cfg, cfg.dtype, "words"),
        (names.mixed or not names.dots) and spec.N >= cfg.isa.lanes and rows.move(cfg, "widen", {from = cfg.dtype}),
        names.enters and panel_rows.collect_rows(cfg, {name = "collect_rows"}),
        panel_rows.collect(cfg, {name = "collect", dtype = names.reduces and dtype.f32 or out}),
        names.reduces and panel_rows.collect_rows(cfg, {name = "collect_rows_add", add = true}),
        names.reduces and panel_rows.collect(cfg, {name = "collect_add", dtype = dtype.f32, add = true}),
        sums(names, cfg, out, names.compensated)))
end

-- Rows of tokens into panels.
local function entering(spec, plan, names, cfg)
    return {
        rows.zero(cfg),
        names.dots and rows.words(cfg, cfg.dtype, "words") or rows.move(cfg, "widen", {from = cfg.dtype}),
        panels.transposes(cfg, "transpose", stage(spec, plan)),
    }
end

function tiles.rows(spec, plan, names, cfg, of_weights)
    local lanes, width = cfg.isa.lanes, plan.vectors * cfg.isa.lanes
    local products = panels.product_tiles(names, of_weights)
    plans.append(products, panels.switches(cfg), codes.tiles(names, cfg, spec), activations.tiles(names, spec, cfg, of_weights))
    return plans.append(products, entering(spec, plan, names, cfg), panels.copies(names, of_weights), {
        rows.squares(cfg, "transpose_back", {dtype = dtype.f32, stride = width, pitch = cfg.chunk_rows, t_units = "CHUNK_ROWS",
            along = lanes * width, step = lanes})}, names.transposes and panels.transposed(names, cfg) or {}, plans.list(
        rows.move(cfg, "put", {to = names.reduces and dtype.f32 or dtype[spec.output_dtype], scaled = names.factor}),
        sums(names, cfg, dtype[spec.output_dtype])))
end

function tiles.gradient(spec, plan, names, cfg)
    local staged, out = names.staged, dtype[spec.output_dtype]
    return plans.append(entering(spec, plan, names, cfg), panels.switches(cfg),
        gradients.tiles(names, cfg, staged and staged_row(plan, spec) // out.size,
            staged and (apart(spec, plan) - 1) * plan.vectors * cfg.isa.lanes),
        names.dots and {panel_rows.split(cfg, "split"), panel_rows.join(cfg, "join_rows", true)}
            or {panel_rows.copy(cfg, {name = "copy_rows", alternate = cfg.alternate})})
end

function grouped.names(spec, plan, job)
    local isa, io, out = plan.isa, dtype[spec.dtype], dtype[spec.output_dtype]
    local lanes = isa.lanes
    local width = plan.vectors * lanes
    local by_rows, by_columns, dw = way(spec) == "rows", way(spec) == "columns", spec.op == "dW"
    local factor = spec.fuse_mul == "post" and dtype[spec.affinity_dtype]
    local edges, dots = spec.K % width ~= 0, plan.group > 1 and not plan.integers
    local adds = dw and spec.accumulate_grads
    local cfg = by_columns and column_blocks.cfg(spec, plan, job, spec.N) or panels.cfg(spec, plan, job)
    local of_weights = by_rows and activations.cfg(cfg, spec, plan) or cfg
    local names = {
        spec = spec, plan = plan, isa = isa, p = cfg.prefix, by_rows = by_rows, by_columns = by_columns, reduces = reduces(spec),
        product = args.products[spec.op] or false, from_y = spec.op ~= "forward",
        out_c = out.c, index = spec.index_dtype == "i64" and "int64_t" or "int32_t", factor = factor,
        narrow_out = out.narrow ~= nil, out_size = out.size, staged = false, bursts = false,
        clears = reduces(spec) or dw and not adds, routed_rows = "w->args->M", edges = edges, lone = false,
        parts_add = dw, reads_past = true, scaled = false, long = spec.N, enters = dw or by_columns and (reduces(spec) or not out.narrow),
        tile_sums = "w->tile",
        -- a flat index names a row of the output
        once = spec.permute == "y" and spec.op == "forward" or spec.permute == "x" and spec.op == "dX" and not reduces(spec),
        narrow_o = convert(out, "narrow"),
        widen_factor = factor and convert(factor, "widen"),
        constants = constants(spec, plan),
        scalars = {not dots and {io, "widen"} or false,
            (by_rows or by_columns and edges or reduces(spec)) and {out, "narrow"} or false,
            factor and {factor, "widen"} or false},
    }
    if by_rows then
        panels.products(names, of_weights, plan, {spec[names.product.to.row]})
    else
        panels.words(names, cfg, plan)
        panels.tiled(names, plan)
    end
    names.copies_edges, of_weights.unaligned = spec.K % panels.depth(plan) ~= 0, spec.K * stored.size(spec) % 64 ~= 0
    activations.names(names, spec, plan, cfg, of_weights, {"X_ROWS", "ROWS"}, false)
    names.splits = dots and dw
    names.sums = names.reduces and {apart = true, row = "K", is_long = spec.K >= lanes,
        rounded = plans.rounded("dX", out, "narrow", "w->args->T")}
    if dw then
        gradients.names(names, cfg, plan, out, {add = adds, rows = {spec.N}, columns = {spec.K}})
        names.staged = plan.staged
    elseif by_rows then
        packed_plan.names(names, cfg, spec, plan, matrices(spec))
        work.row_phases(names)
        codes.names(names, spec, plan, matrices(spec), of_weights.product)
        along.names(names, stored.format(spec) and cfg or of_weights, plan, {spec.K})
        names.scalars[1] = names.scalars[1] or along.scalar(names, cfg)
    else
        column_blocks.names(names, plan, cfg)
        in_place.names(names, cfg, plan, spec, {spec.N})
        names.scalars[1] = (names.mixed and by_columns or not dots) and {io, "widen"} or false   -- of rows in f32
    end
    work[way(spec)](names)
    names.tiles = function()
        return tiles[way(spec)](spec, plan, names, cfg, of_weights)
    end
    return names
end

return grouped
