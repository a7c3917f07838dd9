-- SPDX-License-Identifier: Apache-2.0
-- names.lua - what the holes of moe_layer's template refer to.
local dtype = require "dtype"
local given = require "moe_layer.given"
local plans = require "shared.plans"
local rows = require "tiles.rows"
local shared = require "moe_layer.shared"

local append = plans.append

-- What a part calls otherwise than the layer, or shares with no user.
local other_names = {
    forward = {router = {expert_affinities = "expert_affinities_masked"}, index = {}, experts = {}},
    backward = {
        experts = {gate_up_proj_act_checkpoint_T = "gate_up_activations_T", down_proj_act_checkpoint = "down_activations",
            hidden_states_grad = "experts_grad"},
        router = {expert_affinities_grad = "expert_affinities_masked_grad", hidden_states_grad = "router_grad"},
    },
}

-- Tensors between the parts: name, C type, elements. Only those that are no tensor of the layer take memory.
local between = {
    {"logits", "float", "a->T * E"}, {"expert_index", "int32_t", "a->T * K"}, {"expert_affinities_masked", "float", "a->T * E"},
    {"topk_weights", "float", "a->T * K"}, {"token_position_to_id", "int32_t", "blocks * B"}, {"block_to_expert", "int32_t", "blocks"},
    {"conditions", "int32_t", "blocks + 1"}, {"expert_affinities_masked_grad", "float", "a->T * E"},
    {"experts_grad", "float", "a->T * H"}, {"router_grad", "float", "a->T * H"}, {"experts_output", "float", "a->T * H"},
}

-- What the layer calls a tensor of a part; nil: there is none.
local function name_of(s, part, name)
    if part == "shared" then
        return shared.name(name)
    elseif part == "experts" and name == "output" and s.shared then
        return "experts_output"
    end
    return other_names[s.op][part][name] or name
end

-- Rows of tokens that several parts give, or nil: what is added, and to what tensor of the layer.
local function sum_of(s)
    if s.op == "forward" then
        return s.shared and {to = "output", first = "experts_output", others = {"shared_output"}, says = "experts' and the shared one's"}
    end
    local others = plans.list(not given.is(s) and "router_grad", s.shared and "shared_grad")
    return {to = "hidden_states_grad", first = "experts_grad", others = others, says = not s.shared and "experts' and router's"
        or given.is(s) and "experts' and the shared one's" or "experts', router's and the shared one's"}
end

-- C statements that give a part its tensors and sizes; used: a set of names, added to.
local function wires(s, part, own, used)
    local list, blocks = {}, part.part == "shared" and "token_blocks" or "blocks"
    for _, arg in ipairs(part.args) do
        local name = name_of(s, part.part, arg[1])
        used[name or ""] = true
        list[#list + 1] = ("w->%s.%s = %s;"):format(part.part, arg[1], name and (own[name] or "w->" .. name) or "0")
    end
    for _, dim in ipairs(part.dims) do
        list[#list + 1] = ("w->%s.%s = %s;"):format(part.part, dim, dim == "N" and blocks or "a->" .. dim)
    end
    return list
end

-- keeps: the layer has tensors of blocks; keeps_shared: of blocks of all tokens
return function(s, plan, job, keeps, keeps_shared)
    local backward, cfg = s.op == "backward", {isa = plan.isa, prefix = job.name .. "_", vectors = 1}
    local sum, out = sum_of(s) or false, dtype[backward and s.dtype or s.output_dtype]
    sum = sum and #sum.others > 0 and sum
    local own, used = {}, {}
    for _, arg in ipairs(job.args) do
        own[arg[1]] = "a->" .. arg[1]
    end
    if backward and not sum or sum and not out.narrow then   -- others are added in place
        own[sum and sum.first or "experts_grad"] = "a->" .. (sum and sum.to or "hidden_states_grad")
    end
    local names = {spec = s, plan = plan, isa = plan.isa, p = cfg.prefix, backward = backward, keeps = keeps, keeps_shared = keeps_shared,
        dense = s.dispatch == "dense", given = given.is(s), sum = sum, narrow_output = out.narrow ~= nil, wires = {},
        narrow_out = plans.convert(out, "narrow"), scalars = {sum and {out, "narrow"} or false},
        between = append(given.between(s), shared.between(s)),
        constants = {{"H", s.H, "hidden size"}, {"E", s.E, "experts"}, {"K", s.top_k, "experts of a token"},
            {"B", s.block_size, "slots of a block"}, {"LANES", plan.isa.lanes, "f32 lanes of a vector"}}}
    shared.names(s, names)
    for _, part in ipairs(job.parts) do
        names.wires[part.part] = wires(s, part, own, used)
    end
    for _, row in ipairs(between) do
        names.between[#names.between + 1] = not own[row[1]] and used[row[1]] and row or nil
    end
    function names.at(name)
        return own[name] or "w->" .. name
    end
    function names.tiles()
        return append(plans.list(sum and rows.move(cfg, "add", {add = true}),
            sum and out.narrow and rows.move(cfg, "narrow_output", {to = out})), shared.tiles(s, cfg))
    end
    return names
end
