-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - plans of mlp_forward and mlp_backward, and the names that their templates' holes refer to.
local activations = require "codes.activations"
local along = require "along.plan"
local dtype = require "dtype"
local back = require "tiles.back"
local clamp = require "math.clamp"
local codes = require "codes.plan"
local epilogue = require "tiles.epilogue"
local gradients = require "gradients.plan"
local packed = require "packed.form"
local packed_plan = require "packed.plan"
local panel_plan = require "product.panel_plan"
local panel_rows = require "tiles.panel_rows"
local panels = require "product.panels"
local plans = require "shared.plans"
local prequantised = require "codes.prequantised"
local quantised = require "codes.quantised"
local rows = require "tiles.rows"
local stored = require "shared.stored"
local work = require "mlp.work"

local mlp = {}

local round_up, gates = plans.round_up, stored.gates

-- Plans and targets of a family: which plan of products it has, and what forbids pairs.
local function planned(products, why_not)
    return function(plan, spec, shape, info)
        activations.choose(plan, spec, info, why_not(spec), activations.are(spec), true)
        products(plan, spec, shape, info)
        packed_plan.choose(plan, spec)
    end, function(isa, spec, props)
        return activations.uses(isa, spec, props, why_not(spec), activations.are(spec), true)
    end
end

local function unit_of(spec)
    return codes.are(spec) and codes.unit
end

mlp.forward_plan, mlp.forward_uses = planned(function(plan, spec, shape, info)
    panel_plan.forward(plan, spec, shape, info,
        {only_products = codes.may_be_narrow(spec), unit = unit_of(spec), run = codes.run, block = codes.block(spec, plan)})
end, function() end)
mlp.backward_plan, mlp.backward_uses = planned(function(plan, spec, shape, info)
    local products = spec.weight_grads == "all" and panel_plan.both or panel_plan.forward
    products(plan, spec, shape, info, {pairs = true, step = quantised.rows(spec), unit = unit_of(spec), columns = not codes.are(spec),
        crosses = not (quantised.is(spec) or codes.are(spec) or packed.are(spec))})
end, function(spec)
    return codes.no_pairs(spec) or panel_plan.no_pairs(spec)
end)

function mlp.params(spec, plan)
    return plans.append(activations.params(spec, plan), packed.params(spec, plan, stored.matrices(spec)))
end

-- written: bytes of gradients of an element
local function work_of(s, products, written)
    local size = s.H * s.I_TP
    local read = gates(s) * prequantised.size(s, (stored.gate_up(s))) + prequantised.size(s, "down_proj_weight")
    local bytes = read + (gates(s) + 1) * written
    return {flops_per_token = 2 * products * size, weight_bytes = size * bytes // 1 | 0}
end

function mlp.forward_work(s)
    return work_of(s, gates(s) + 1, 0)
end

-- As much as a call does that gets no intermediates.
function mlp.backward_work(s)
    local all = s.weight_grads == "all"
    return work_of(s, gates(s) + (all and 2 or 1) * (gates(s) + 1), all and dtype[s.output_dtype].size or 0)
end

-- Words of the widest rows of tokens.
local function widest(spec, plan)
    return math.max(spec.H, spec.I_TP) // (plan.integers and 1 or plan.group)
end

local function constants(spec, plan)
    local depth = activations.rows(spec, plan)
    local hk, ik, apart_up = round_up(spec.H, depth), round_up(spec.I_TP, depth), stored.of(spec).separate
    local gk = apart_up and 2 * ik or round_up(gates(spec) * spec.I_TP, depth)
    local function apart(deep)   -- the way back has many tokens at work
        return spec.weight_grads and panels.apart(plan, deep) or deep
    end
    return plans.append({
        {"H", spec.H, "hidden size"}, {"I", spec.I_TP, "intermediate size"}, {"E", 1, "expert"},
        {"GATES", gates(spec), "gate and up, or up alone"},
        {"H_DEEP", hk, "rows of a panel over H, full panels of k"}, {"G_DEEP", gk, "rows of a panel over gate and up"},
        {"HK", apart(hk), "rows from a panel over H to the next one"}, {"IK", apart(ik), "from one over I"},
        {"GK", apart(gk), "from one over gate and up"},
        {"UP", apart_up and ik or (gates(spec) - 1) * spec.I_TP, "row of up in it, unless it follows its gate"},
    }, panels.constants(plan, widest(spec, plan), plan.block_bytes and dtype[spec.output_dtype].size),
        activations.constants(spec, plan, {{"H_ROWS", hk, "H"}, {"I_ROWS", ik, "I"}}),
        quantised.is(spec) and quantised.constants(math.max(spec.H, (spec.weight_grads and gates(spec) or 1) * spec.I_TP)) or {})
end

-- What both families' templates refer to. stores: tensors of tokens that rows of panels become: name of the function, dtype,
-- columns (a constant and its value); tokens: those that panels are of. Phases come next, then what `decode` adds.
local function names_of(spec, plan, job, totals, stores, tokens)
    local cfg = panels.cfg(spec, plan, job)
    local of_weights = activations.cfg(cfg, spec, plan)
    local lanes, io = plan.isa.lanes, dtype[spec.dtype]
    local first, second = stored.gate_up(spec)
    local names = {spec = spec, plan = plan, isa = plan.isa, p = cfg.prefix, constants = constants(spec, plan), stores = {},
        in_turn = stored.of(spec).interleaved, separate = stored.of(spec).separate,
        quantised = quantised.is(spec),
        routed_rows = "w->args->S > 0 ? w->args->S : 0", transposes_whole = false,
        scalars = {(plan.group == 1 or plan.integers) and {io, "widen"} or false}}
    names.crosses = plan.crosses or false
    panels.products(names, of_weights, plan, totals)
    activations.names(names, spec, plan, cfg, of_weights, {"H_ROWS", "HK"}, true)
    packed_plan.names(names, cfg, spec, plan, stored.matrices(spec))
    of_weights = prequantised.names(names, of_weights, spec, tokens, plans.list(first, "down_proj_weight", second),
        spec.checkpoint == "saved")
    local function decode()
        codes.names(names, spec, plan, stored.matrices(spec), of_weights.product)
        along.names(names, stored.format(spec) and cfg or of_weights, plan, {spec.H, gates(spec) * spec.I_TP})
        names.scalars[1] = names.scalars[1] or along.scalar(names, cfg)
    end
    if names.quantised then
        quantised.names(names, cfg, spec, plan.block_bytes ~= nil)
    end
    for _, store in ipairs(stores) do
        local dt = dtype[store[2]]
        names.stores[#names.stores + 1] = {name = store[1], c = dt.c, narrow = plans.convert(dt, "narrow"), columns = store[3],
            whole = spec[store[4]] >= lanes}
        names.scalars[#names.scalars + 1] = {dt, "narrow"}
    end
    local function tiles()
        local list = plans.append(panels.tiles(names, of_weights, plan), codes.tiles(names, cfg, spec), plans.list(
            panels.transposes(cfg, "transpose", panels.stage(widest(spec, plan)), names.splits and plan.pair_width),
            names.dots and names.widens and rows.words(cfg, io, "words"),
            names.splits and panel_rows.split(cfg, "split")), activations.tiles(names, spec, cfg, of_weights))
        plans.append(list, names.quantised and quantised.tiles(names, of_weights, spec) or {},
            prequantised.tiles(names, cfg, spec))
        for _, store in ipairs(stores) do
            if spec[store[4]] >= lanes then
                list[#list + 1] = rows.transpose(cfg, dtype[store[2]], store[1] .. "_square", spec[store[4]])
            end
        end
        return list
    end
    return names, cfg, tiles, decode
end

-- What the epilogue of panel q takes, as C.
local function hidden_arguments(names, spec)
    local P, q, words = ("w->%s + (q * IK + i) * WIDTH"):format(names.hidden), " + q * MC * WIDTH", names.hidden_order
    return table.concat(plans.list(names.hidden_sums.up .. q, words and names.as_floats(P) or P, words and "(rows + 1) / 2" or "rows",
        spec.gated and names.hidden_sums.gate .. q, names.save and spec.gated and "w->act" .. q, names.save and words and "w->kept" .. q,
        words and "(const float *)(const void *)hidden_order"), ", ")
end

function mlp.forward_names(spec, plan, job)
    local save = spec.checkpoint == "save"
    local stores = {{"store_output", spec.output_dtype, "H", "H"}, save and {"store_kept", spec.dtype, "I", "I_TP"} or nil}
    local totals = {spec.I_TP, spec.H, stored.of(spec).interleaved and 2 * spec.I_TP or nil}
    local names, cfg, tiles, decode = names_of(spec, plan, job, totals, stores, {"hidden_states"})
    names.save, names.splits = save, false
    activations.sums_of_hidden(names, cfg, names.in_turn and not save and 2 or 1)
    names.hidden_arguments = hidden_arguments(names, spec)
    names.parts_rows = names.in_turn and save   -- what is given of each is rows that follow each other
    work.forward(names, spec)
    decode()
    work.forward_space(names, spec, save)
    names.tiles = function()
        local wide = activations.wide(names, cfg)
        return plans.append(tiles(), plans.list(names.parts_rows and rows.move(cfg, "move", {}), epilogue.hidden(wide, spec,
            {intermediates = save, stores = names.quantised, step = names.hidden_sums.step, words = names.hidden_order})))
    end
    return names
end

-- A limit as C, or 0 where there is none.
local function limit(x)
    return plans.number(x or 0)
end

-- What `through` gets, as C: limits as the values that were clamped hold them, given or computed again; false: nothing.
local function bounds(spec)
    local ranges = spec.clamp or {}
    if not next(ranges.gate or {}) and not next(ranges.up or {}) and spec.up_offset == 0 then
        return false
    end
    local given = clamp.limits(spec, dtype[spec.dtype])
    -- what is computed again stays in f32, or is rounded as if it had been stored
    local again = quantised.is(spec) and given or clamp.limits(spec, dtype.f32)
    return {given = given, again = again, offset = limit(clamp.rounded(spec.up_offset, dtype.f32)), limit = limit}
end

function mlp.backward_names(spec, plan, job)
    local lanes, out = plan.isa.lanes, dtype[spec.output_dtype]
    local both = gates(spec) * spec.I_TP
    local names, cfg, tiles, decode = names_of(spec, plan, job, {spec.I_TP, both, spec.H}, {{"store_gradient", spec.dtype, "H", "H"}},
        {"hidden_states", "output_hidden_states_grad"})
    names.weight_gradients = spec.weight_grads == "all"
    names.clears = names.weight_gradients and not spec.accumulate_grads
    if names.weight_gradients then
        gradients.names(names, cfg, plan, out, {add = spec.accumulate_grads, columns = {spec.H, spec.I_TP},
            rows = {names.separate and spec.I_TP or both, spec.H}})
    end
    if names.quantised then
        names.routed_rows, names.block_rows = quantised.padded("(" .. names.routed_rows .. ")"), quantised.rows(spec)
    end
    names.transposes_whole = spec.H >= lanes and (spec.I_TP >= lanes or both >= lanes)
    work.backward(names, spec)
    decode()
    work.backward_space(names)
    names.saved = spec.checkpoint == "saved"
    -- gate and up as rows of a panel: from one to the other, that of up of column i, and its gate
    names.one_of_both = names.separate and "UP" or "I"
    names.up_of = function(i) return names.in_turn and ("2 * %s + 1"):format(i) or "UP + " .. i end
    names.gate_of = function(up) return up .. (names.in_turn and " - WIDTH" or " - UP * WIDTH") end
    names.bounds = bounds(spec)
    names.tiles = function()
        local limits = clamp.limits(spec, dtype.f32)
        local function through(given)
            return back.through(cfg, spec, limits, {apart = names.dots, bounds = names.bounds, given = given,
                stores = names.quantised, step = names.in_turn and 2 or 1})
        end
        return plans.append(tiles(), plans.list(
            rows.move(cfg, "move", {}),
            names.dots and names.saved and rows.move(cfg, "widen", {from = dtype[spec.dtype]}),
            through(false),
            names.saved and spec.gated and through(true)))
    end
    return names
end

return mlp
