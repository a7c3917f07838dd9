-- SPDX-License-Identifier: Apache-2.0
-- tiles.lua - the tiles of the router's two passes.
-- has, s (shape) and names: see plan.lua; cfg: isa, prefix, vectors, unroll, kc, nc, many, method
local back = require "router.back"
local dtype = require "dtype"
local heights = require "tiles.heights"
local groups = require "router.groups"
local lanes = require "router.lanes"
local product = require "tiles.narrow"
local plans = require "shared.plans"
local rows = require "tiles.rows"
local scores = require "router.scores"

local tiles, with = {}, plans.with

-- Rows of logits to a row for each expert.
local function to_lanes(cfg, s)
    local wide = cfg.isa.lanes
    return {dtype = dtype.f32, stride = s.pitch, s_units = "PITCH", pitch = wide, along = wide, step = wide * wide}
end

-- Of both passes: exponentials of rows, scores with their sum, and these again for shares of all experts.
local function of_scores(has, cfg)
    local score = cfg.method.weigh
    local sum = has.alone and has.over_chosen and scores.sum(cfg, score, has.floor)
    local same = sum and (scores.sum_name(score)) == scores.sum_name(score, has.floor)
    return (has.softmax or has.over_chosen and not has.alone) and lanes.softmax(cfg), sum,
        has.alone and has.balance and not same and scores.sum(cfg, score)
end

-- Of what a norm takes.
local function of_norm(has, cfg, names)
    local list = plans.list(has.norm and rows.move(cfg, "by", {scaled = true}))
    for _, dot in ipairs(names.dots) do
        list[#list + 1] = rows.dot(cfg, dot.tile, dot.of_a, dot.of_b)
    end
    return list
end

function tiles.forward(spec, has, cfg, s, names)
    local products = heights.tiles(product.add, with(cfg, {name = "product", a_row = s.x_pitch, a_k = 1, pitch = s.pitch,
        a_units = "X_PITCH", s_units = "PITCH LANES"}), names.tile_rows)
    local method, of = cfg.method, spec.groups
    local size = of and spec.E // of.count
    local softmax, sum, shares = of_scores(has, cfg)
    return plans.append(products, of_norm(has, cfg, names), plans.list(
        product.pack(with(cfg, {name = "pack", dtype = names.io_type, nc = 1, panel = 0, ld = spec.E})),
        spec.H >= cfg.isa.lanes and product.gather(with(cfg, {name = "gather", dtype = names.io_type})),
        rows.move(cfg, "copy", {}),
        rows.squares(cfg, "transpose", to_lanes(cfg, s)),
        has.cap and scores.cap(cfg, spec.softcap, spec.logit_scale),
        softmax,
        ((has.correction or has.groups) and has.ranked_alone or has.alone and not has.over_chosen) and scores.all(cfg, method.weigh),
        has.ranks and lanes.rank(cfg, has.ranked_by_share, has.correction),
        has.groups and groups.scores(cfg, of.score, size),
        has.groups and groups.fill(cfg, of.fill, size),
        lanes.choose(cfg),
        has.near and lanes.near(cfg, method.near),
        sum, shares,
        has.over_all and has.floor and lanes.rest(cfg),
        lanes.scale(cfg, method.factor, has.divided, method.floor, has.over_all),
        has.z and lanes.log_sum(cfg),
        has.balance and lanes.mean(cfg),
        names.narrow_weights and rows.move(cfg, "narrow", {to = dtype[spec.affinity_dtype]}),
        rows.zero(cfg)))
end

function tiles.backward(spec, has, cfg, s, names)
    local set = with(cfg, {name = "product", dtype = names.dx_type, a_row = s.pitch, a_k = 1, pitch = spec.H, K = spec.E,
        a_units = "PITCH", s_units = "H LANES",
        skip = s.rows_e - spec.E, folds = s.folds})
    local outer = with(cfg, {name = "outer", a_row = 1, a_k = s.pitch, pitch = s.width, a_units = "PITCH", s_units = "WIDTH LANES"})
    local panel, wide = cfg.kc * s.width, cfg.isa.lanes
    local alone = scores.rows[cfg.method.weigh]
    local softmax, sum, shares = of_scores(has, cfg)
    local function pack(name, nc)
        return product.pack(with(cfg, {name = name, dtype = names.io_type, nc = nc, panel = panel, ld = spec.H}))
    end
    return plans.append(of_norm(has, cfg, names), heights.tiles(product.set, set, names.tile_rows),
        heights.tiles(product.add, outer, names.outer_rows), plans.list(
        pack("pack", 1),
        s.full >= cfg.nc and pack("pack_side_by_side", cfg.nc),
        rows.squares(cfg, "transpose_weights", {dtype = names.io_type, stride = spec.E, s_units = "E", pitch = s.width,
            along = wide, step = wide * s.width}),
        rows.move(cfg, "copy", {}),
        has.rows_of_experts and rows.squares(cfg, "transpose", to_lanes(cfg, s)),
        rows.squares(cfg, "transpose_back", {dtype = dtype.f32, stride = wide, pitch = s.pitch, t_units = "PITCH",
            along = wide * wide, step = wide}),
        spec.E >= wide and rows.squares(cfg, "transpose_sums", {dtype = dtype.f32, stride = s.width, pitch = spec.E, t_units = "E",
            along = wide * s.width, step = wide}),
        has.cap and scores.cap(cfg, spec.softcap, spec.logit_scale, true),
        softmax, sum, shares,
        (has.cap or has.norm and spec.H >= wide) and back.times(cfg),
        has.norm and spec.H >= wide and rows.move(cfg, "add_scaled", {from = names.io_type, add = true, scaled = true}),
        has.norm and spec.H >= wide and rows.move(cfg, "store_dx", {to = names.given_dx_type}),
        has.over_all and lanes.rest(cfg),
        has.scaled and has.alone and not has.over_chosen and scores.all(cfg, cfg.method.weigh),
        has.scaled and lanes.scale(cfg, cfg.method.factor, has.divided, cfg.method.floor, has.over_all),
        has.near and back.near(cfg, cfg.method.near)
            or has.divided and back.gradient(cfg, "gradient", {alone = alone, rest = has.over_all, floor = cfg.method.floor})
            or scores.gradient(cfg, "gradient", cfg.method.weigh),
        has.balance and back.gradient(cfg, "balance", {of_rows = true, alone = alone}),
        has.z and lanes.log_sum(cfg, true),
        has.z and back.spread(cfg, "spread_z", has.balance),
        has.over_all and back.spread(cfg, "spread", not has.first),
        rows.move(cfg, "finish", {to = names.grad_type, add = has.accumulate}),
        has.bias and lanes.columns(cfg, s.pitch),
        rows.zero(cfg)))
end

return tiles
