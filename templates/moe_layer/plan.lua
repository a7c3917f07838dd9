-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - the tensors and parts of moe_layer, and what its template's holes refer to.
local dtype = require "dtype"
local moe_backward = require "moe_backward.plan"
local given = require "moe_layer.given"
local keys = require "shared.keys"
local packed = require "shared.packed"
local plans = require "shared.plans"
local rows = require "tiles.rows"
local stored = require "shared.stored"
local tensors = require "shared.tensors"
local types = require("schema").types

local append = plans.append

local layer = {}

-- What backward needs of forward, by the values of `checkpoint`: activations, and what the router and the index made, which
-- pairs that the caller gives make once more.
local function activations(s)
    return (s.op == "backward" or s.checkpoint ~= "none") and s.checkpoint ~= "recompute"
end

function layer.keeps(s)
    return activations(s) or not given.is(s) and (s.op == "backward" or s.checkpoint ~= "none")
end

-- Those of packed weights in backward.
layer.rules = {}
for i, rule in ipairs(moe_backward.packed_rules) do
    layer.rules[i] = {rule[1], function(s) return s.op == "forward" or rule[2](s) end, rule[3]}
end

-- Keys of several planners in one map. Parts check their own again.
function layer.plan_keys(...)
    return types.map(keys.of_plans(...))
end

-- Tensors ----------------------------------------------------------------------------------------------------------

-- The plan of the experts, if it is known yet: it says how packed weights lie.
local function experts_plan(parts)
    for _, part in ipairs(parts or {}) do
        if part.part == "experts" then
            return part.plan
        end
    end
end

local function router(s)
    return given.is(s) and {} or tensors.router(s, s.router_bias)
end

-- What is known of tokens: their rows, and their experts if the caller gives them.
local function tokens(s)
    return append({{"hidden_states", s.dtype, "in", "T", s.H, says = "rows of tokens"}}, given.is(s) and given.args(s) or {})
end

-- Parameters: router first, then experts. plan: of the experts
local function parameters(s, plan)
    return append(router(s), tensors.parameters(s, plan))
end

-- Their gradients, of which the experts may have none.
local function gradients(s)
    local list = {}
    for i, row in ipairs(router(s)) do
        list[i] = tensors.gradient(s, row)
    end
    return append(list, tensors.gradients(s, tensors.parameters(s)))
end

-- What a forward pass leaves for the backward pass.
local function state(s, role)
    local dense = s.dispatch == "dense"
    local function blocks(times, plus)   -- a formula: times * number of blocks + plus
        times = times * (dense and s.E or 1)
        return (times > 1 and times .. "*N" or "N") .. (plus and "+" .. plus or "")
    end
    return append(given.is(s) and {} or {
        {"logits", "f32", role, "T", s.E, says = "of the router"},
        {"expert_index", "i32", role, "T", s.top_k, says = "experts of each token, best first"},
        {"expert_affinities_masked", "f32", role, ("%d*T"):format(s.E), 1, says = "of token t and expert e at t * E + e; 0 for others"},
        {"token_position_to_id", "i32", role, blocks(s.block_size), says = "token of each slot; padding is -1"},
        {"block_to_expert", "i32", role, blocks(1), says = "expert of each block"},
        {"conditions", "i32", role, blocks(1, 1), says = "1 for each block that holds a token"},
    }, plans.list(
        activations(s) and tensors.kept_gate_up(s, "gate_up_activations_T", role, blocks(1)),
        activations(s) and s.affinity.on == "hidden" and tensors.kept_down(s, "down_activations", role, blocks(1))))
end

local function forward_args(s, plan)
    return append(tokens(s), parameters(s, plan), tensors.correction(s),
        {{"output", s.output_dtype, "out", "T", s.H, says = "sum over the experts of each token"}}, tensors.losses(s),
        layer.keeps(s) and state(s, "out") or {})
end

local function backward_args(s, plan)
    local list, all = tokens(s), parameters(s, plan)
    for _, row in ipairs(all) do
        list[#list + 1] = tensors.read_again(s, row[1]) and row or nil
    end
    return append(list, state(s, "in"), {
        {"output_hidden_states_grad", s.dtype, "in", "T", s.H, says = "gradient of output"},
        {"hidden_states_grad", s.dtype, "out", "T", s.H,
            says = "gradient of hidden_states, through the experts" .. (given.is(s) and "" or " and through the router")},
        given.is(s) and given.gradient(s) or nil,
    }, gradients(s))
end

function layer.args(s, _, parts)
    local plan = experts_plan(parts)
    return s.op == "forward" and forward_args(s, plan) or backward_args(s, plan)
end

function layer.params(s, _, parts)
    return packed.params(s, experts_plan(parts), stored.matrices(s))
end

-- Parts ------------------------------------------------------------------------------------------------------------

-- Keys that a part has in common with the layer, and its own.
local function spec_of(s, names, own)
    for _, name in ipairs(names) do
        own[name] = s[name]
    end
    return own
end

function layer.parts(s)
    local backward = s.op == "backward"
    local scores = spec_of(s, {"dtype", "H", "E", "top_k", "T", "op", "method", "score", "softcap", "logit_scale", "groups", "renorm",
        "correction_bias", "routing_scale", "aux_loss", "bias_dtype"}, {bias = s.router_bias, affinity_dtype = "f32"})
    local experts = spec_of(s, {"dtype", "H", "I_TP", "E", "block_size", "T", "activation", "gated", "affinity", "bias", "clamp",
        "up_offset", "norm", "norm_eps", "weights", "bias_dtype", "output_dtype", "shard"},
        {top_k = s.dispatch == "dense" and s.E or s.top_k, skip_token = true, affinities = given.is(s) and "slots" or "dense",
            affinity_dtype = given.is(s) and s.affinity_dtype or "f32"})
    if not backward then
        experts.checkpoint = activations(s) and "save" or "none"
        experts.quantize_activations, experts.scale_rule = s.quantize_activations, s.scale_rule
        local index = spec_of(s, {"E", "top_k", "block_size", "T"}, {skip_token = true})
        local list = {{"router", "router", scores, plan = "plan.router"}, {"index", "moe_index", index},
            {"experts", "moe_forward", experts, plan = "plan.experts"}}
        return given.is(s) and {list[3]} or s.dispatch == "dense" and {list[1], list[3]} or list
    end
    experts.checkpoint = s.checkpoint == "recompute" and "recompute" or "saved"
    experts.weight_grads = s.weight_grads
    for _, part in ipairs{scores, experts} do
        part.accumulate_grads, part.output_dtype = s.accumulate_grads, s.output_dtype
        part.hidden_grad_dtype = given.is(s) and s.dtype or "f32"
    end
    experts.rounded_later = dtype[s.dtype].narrow ~= nil or nil
    experts.accumulate_grads = s.accumulate_grads and s.weight_grads == "all"
    return plans.list({"experts", "moe_backward", experts, plan = "plan.experts"},
        not given.is(s) and {"router", "router", scores, plan = "plan.router"})
end

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
    {"experts_grad", "float", "a->T * H"}, {"router_grad", "float", "a->T * H"},
}

-- What the template sees.
function layer.names(s, plan, job)
    local out = dtype[s.dtype]   -- of the gradient of hidden states
    local cfg = {isa = plan.isa, prefix = job.name .. "_", vectors = 1}
    local own, used = {}, {}
    for _, arg in ipairs(job.args) do
        own[arg[1]] = "a->" .. arg[1]
    end
    if s.op == "backward" and (given.is(s) or not out.narrow) then
        own.experts_grad = "a->hidden_states_grad"   -- the router's is added in place
    end
    local names = {spec = s, plan = plan, isa = plan.isa, p = cfg.prefix, backward = s.op == "backward", keeps = layer.keeps(s),
        dense = s.dispatch == "dense", given = given.is(s), narrow_output = out.narrow ~= nil, output_c = out.c, wires = {},
        narrow_out = plans.convert(out, "narrow"),
        scalars = {s.op == "backward" and not given.is(s) and {out, "narrow"} or false},
        constants = {{"H", s.H, "hidden size"}, {"E", s.E, "experts"}, {"K", s.top_k, "experts of a token"},
            {"B", s.block_size, "slots of a block"}, {"LANES", plan.isa.lanes, "f32 lanes of a vector"}}}
    for _, part in ipairs(job.parts) do   -- C statements that give each part its tensors and sizes
        local list = {}
        for _, arg in ipairs(part.args) do
            local name = other_names[s.op][part.part][arg[1]] or arg[1]
            used[name] = true
            list[#list + 1] = ("w->%s.%s = %s;"):format(part.part, arg[1], own[name] or "w->" .. name)
        end
        for _, dim in ipairs(part.dims) do
            list[#list + 1] = ("w->%s.%s = %s;"):format(part.part, dim, dim == "N" and "blocks" or "a->" .. dim)
        end
        names.wires[part.part] = list
    end
    names.between = given.is(s) and given.between(s) or {}
    for _, row in ipairs(between) do
        if not own[row[1]] and used[row[1]] then
            names.between[#names.between + 1] = row
        end
    end
    function names.at(name)
        return own[name] or "w->" .. name
    end
    function names.tiles()
        local list = {}
        if names.backward and not names.given then
            list[1] = rows.move(cfg, "add", {add = true})
            list[2] = out.narrow and rows.move(cfg, "narrow_output", {to = out}) or nil
        end
        return list
    end
    return names
end

return layer
