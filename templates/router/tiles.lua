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
    local list = gemm.heights(product.add, with(cfg, {name = "product", a_row = s.x_pitch, a_k = 1, pitch = s.pitch,
        a_units = "X_PITCH", s_units = "PITCH LANES"}), names.tile_rows)
    local function put(p)
        list[#list + 1] = p
    end
    put(product.pack(with(cfg, {name = "pack", dtype = names.io_type, strip = 1, panel = 0, ld = spec.E})))
    put(spec.H >= cfg.isa.lanes and product.gather(with(cfg, {name = "gather", dtype = names.io_type})) or nil)
    put(rows.move(cfg, "copy", {}))
    put(rows.turn(cfg, "turn", to_lanes(cfg, s)))
    put(has.softmax and lanes.softmax(cfg) or nil)
    if has.correction then
        put(has.ranked_by_sigmoid and lanes.sigmoid(cfg) or nil)
        put(lanes.rank(cfg, has.ranked_by_share))
    end
    put(lanes.choose(cfg))
    if has.over_chosen then
        put(not has.sigmoid and not has.softmax and lanes.softmax(cfg) or nil)
        put(has.sigmoid and lanes.sigmoid_sum(cfg) or nil)
    elseif has.sigmoid then
        put(not (has.correction and has.ranked_by_sigmoid) and lanes.sigmoid(cfg) or nil)
        put(has.balance and lanes.sigmoid_sum(cfg) or nil)
    end
    put(lanes.scale(cfg, spec.routing_scale, has.divided))
    put(has.z and lanes.log_sum(cfg) or nil)
    put(has.balance and lanes.mean(cfg) or nil)
    put(names.narrow_weights and rows.move(cfg, "narrow", {to = dtype[spec.affinity_dtype]}) or nil)
    put(rows.zero(cfg, "zero"))
    return list
end

function tiles.backward(spec, has, cfg, s, names)
    local set = with(cfg, {name = "product", dtype = names.dx_type, a_row = s.pitch, a_k = 1, pitch = spec.H, K = spec.E,
        a_units = "PITCH", s_units = "H LANES",
        skip = s.rows_e - spec.E, folds = s.folds})
    local list = gemm.heights(product.set, set, names.tile_rows)
    local outer = with(cfg, {name = "outer", a_row = 1, a_k = s.pitch, pitch = s.width, a_units = "PITCH", s_units = "WIDTH LANES"})
    plans.append(list, gemm.heights(product.add, outer, names.outer_rows))
    local function put(p)
        list[#list + 1] = p
    end
    local panel, wide = cfg.k_block * s.width, cfg.isa.lanes
    put(product.pack(with(cfg, {name = "pack", dtype = names.io_type, strip = 1, panel = panel, ld = spec.H})))
    put(s.full >= cfg.strip and product.pack(with(cfg, {name = "pack_strip", dtype = names.io_type, strip = cfg.strip,
        panel = panel, ld = spec.H})) or nil)
    put(rows.turn(cfg, "turn_weights", {dtype = names.io_type, stride = spec.E, s_units = "E", pitch = s.width,
        along = wide, step = wide * s.width}))
    put(rows.move(cfg, "copy", {}))
    put((has.softmax or has.balance) and rows.turn(cfg, "turn", to_lanes(cfg, s)) or nil)
    put(rows.turn(cfg, "turn_back", {dtype = dtype.f32, stride = wide, pitch = s.pitch, t_units = "PITCH",
        along = wide * wide, step = wide}))
    put(spec.E >= wide and rows.turn(cfg, "turn_sums", {dtype = dtype.f32, stride = s.width, pitch = spec.E, t_units = "E",
        along = wide * s.width, step = wide}) or nil)
    put((has.softmax or has.over_chosen and not has.sigmoid) and lanes.softmax(cfg) or nil)
    put(has.sigmoid and (has.over_chosen or has.balance) and lanes.sigmoid_sum(cfg) or nil)
    put(has.over_all and lanes.rest(cfg) or nil)
    put(has.divided and lanes.gradient(cfg, "gradient", {sigmoid = has.sigmoid, rest = has.over_all})
        or lanes.sigmoid_gradient(cfg, "gradient"))
    put(has.balance and lanes.gradient(cfg, "balance", {of_rows = true, sigmoid = has.sigmoid}) or nil)
    put(has.z and lanes.log_sum(cfg, true) or nil)
    put(has.z and lanes.spread(cfg, "spread_z", has.balance) or nil)
    put(has.over_all and lanes.spread(cfg, "spread", not has.first) or nil)
    put(rows.move(cfg, "finish", {to = names.grad_type, add = has.accumulate}))
    put(has.bias and lanes.columns(cfg, s.pitch) or nil)
    put(rows.zero(cfg, "zero"))
    return list
end

return tiles
