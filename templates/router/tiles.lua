-- SPDX-License-Identifier: Apache-2.0
-- tiles.lua - the tiles of the router's two passes.
-- has, s (shape) and names: see plan.lua; cfg: isa, prefix, vectors, unroll, k_block, strip, many
local dtype = require "dtype"
local gemm = require "tiles.gemm"
local lanes = require "router.lanes"
local product = require "tiles.narrow"
local plans = require "shared.plans"
local rows = require "tiles.rows"

local tiles = {}

local function with(cfg, more)
    return setmetatable(more, {__index = cfg})
end

-- Rows of logits to a row for each expert.
local function to_lanes(cfg, s)
    local wide = cfg.isa.lanes
    return {dtype = dtype.f32, stride = s.pitch, s_units = "PITCH", pitch = wide, along = wide, step = wide * wide}
end

function tiles.forward(spec, has, cfg, s, names)
    local products = gemm.heights(product.add, with(cfg, {name = "product", a_row = s.x_pitch, a_k = 1, pitch = s.pitch,
        a_units = "X_PITCH", s_units = "PITCH LANES"}), names.tile_rows)
    local ranks_sigmoids = has.correction and has.ranked_by_sigmoid
    return plans.append(products, plans.list(
        product.pack(with(cfg, {name = "pack", dtype = names.io_type, strip = 1, panel = 0, ld = spec.E})),
        spec.H >= cfg.isa.lanes and product.gather(with(cfg, {name = "gather", dtype = names.io_type})),
        rows.move(cfg, "copy", {}),
        rows.squares(cfg, "transpose", to_lanes(cfg, s)),
        (has.softmax or has.over_chosen and not has.sigmoid) and lanes.softmax(cfg),
        (ranks_sigmoids or has.sigmoid and not has.over_chosen) and lanes.sigmoid(cfg),
        has.correction and lanes.rank(cfg, has.ranked_by_share),
        lanes.choose(cfg),
        has.sigmoid and (has.over_chosen or has.balance) and lanes.sigmoid_sum(cfg),
        lanes.scale(cfg, spec.routing_scale, has.divided),
        has.z and lanes.log_sum(cfg),
        has.balance and lanes.mean(cfg),
        names.narrow_weights and rows.move(cfg, "narrow", {to = dtype[spec.affinity_dtype]}),
        rows.zero(cfg, "zero")))
end

function tiles.backward(spec, has, cfg, s, names)
    local set = with(cfg, {name = "product", dtype = names.dx_type, a_row = s.pitch, a_k = 1, pitch = spec.H, K = spec.E,
        a_units = "PITCH", s_units = "H LANES",
        skip = s.rows_e - spec.E, folds = s.folds})
    local outer = with(cfg, {name = "outer", a_row = 1, a_k = s.pitch, pitch = s.width, a_units = "PITCH", s_units = "WIDTH LANES"})
    local panel, wide = cfg.k_block * s.width, cfg.isa.lanes
    local function pack(name, strip)
        return product.pack(with(cfg, {name = name, dtype = names.io_type, strip = strip, panel = panel, ld = spec.H}))
    end
    return plans.append(gemm.heights(product.set, set, names.tile_rows), gemm.heights(product.add, outer, names.outer_rows), plans.list(
        pack("pack", 1),
        s.full >= cfg.strip and pack("pack_strip", cfg.strip),
        rows.squares(cfg, "transpose_weights", {dtype = names.io_type, stride = spec.E, s_units = "E", pitch = s.width,
            along = wide, step = wide * s.width}),
        rows.move(cfg, "copy", {}),
        (has.softmax or has.balance) and rows.squares(cfg, "transpose", to_lanes(cfg, s)),
        rows.squares(cfg, "transpose_back", {dtype = dtype.f32, stride = wide, pitch = s.pitch, t_units = "PITCH",
            along = wide * wide, step = wide}),
        spec.E >= wide and rows.squares(cfg, "transpose_sums", {dtype = dtype.f32, stride = s.width, pitch = spec.E, t_units = "E",
            along = wide * s.width, step = wide}),
        (has.softmax or has.over_chosen and not has.sigmoid) and lanes.softmax(cfg),
        has.sigmoid and (has.over_chosen or has.balance) and lanes.sigmoid_sum(cfg),
        has.over_all and lanes.rest(cfg),
        has.divided and lanes.gradient(cfg, "gradient", {sigmoid = has.sigmoid, rest = has.over_all})
            or lanes.sigmoid_gradient(cfg, "gradient"),
        has.balance and lanes.gradient(cfg, "balance", {of_rows = true, sigmoid = has.sigmoid}),
        has.z and lanes.log_sum(cfg, true),
        has.z and lanes.spread(cfg, "spread_z", has.balance),
        has.over_all and lanes.spread(cfg, "spread", not has.first),
        rows.move(cfg, "finish", {to = names.grad_type, add = has.accumulate}),
        has.bias and lanes.columns(cfg, s.pitch),
        rows.zero(cfg, "zero")))
end

return tiles
