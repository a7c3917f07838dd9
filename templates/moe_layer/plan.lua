-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - the tensors and parts of moe_layer, and what its template's holes refer to.
local dtype = require "dtype"
local plans = require "shared.plans"
local rows = require "tiles.rows"
local types = require("schema").types

local append = plans.append

local layer = {}

-- What backward needs of forward, by the values of `checkpoint`.
function layer.keeps(s)
    return s.op == "backward" or s.checkpoint ~= "none"
end

local function activations(s)
    return layer.keeps(s) and s.checkpoint ~= "recompute"
end

-- Keys of several planners in one map: a number may be what any of them takes. Parts check their own again.
function layer.plan_keys(...)
    local list, known = {}, {}
    for _, keys in ipairs{...} do
        for _, row in ipairs(keys) do
            local at = known[row[1]] or #list + 1
            local before = list[at]
            known[row[1]] = at
            list[at] = before or row
            if before and row[2].kind == "int" then
                local lo, hi = math.min(before[2].lo, row[2].lo), math.max(before[2].hi, row[2].hi)
                list[at] = {row[1], types.int(lo, hi), optional = true, doc = before.doc}
            end
        end
    end
    return types.map(list)
end

-- Tensors ----------------------------------------------------------------------------------------------------------

-- Parameters: router first, then experts.
local function parameters(s)
    local gates = s.gated and 2 or 1
    local list = {{"router_weight", s.dtype, "in", s.H, s.E, says = "logits are hidden_states times it"}}
    local function add(row)
        list[#list + 1] = row or nil
    end
    add(s.router_bias and {"router_bias", s.bias_dtype, "in", s.E, says = "added to the logits"})
    add{"gate_up_proj_weight", s.dtype, "in", s.E, s.H, gates, s.I_TP,
        says = "of each expert: " .. (s.gated and "0 = gate, 1 = up" or "up")}
    add{"down_proj_weight", s.dtype, "in", s.E, s.I_TP, s.H, says = "of each expert"}
    add(s.bias.gate_up and {"gate_and_up_proj_bias", s.bias_dtype, "in", s.E, gates, s.I_TP,
        says = "added to what the first product gives"})
    add(s.bias.down and {"down_proj_bias", s.bias_dtype, "in", s.E, s.H, says = "added to what the second product gives"})
    add(s.norm == "layer" and {"norm_weight", s.bias_dtype, "in", s.E, s.I_TP, says = "factor after the normalisation"})
    add(s.norm == "layer" and {"norm_bias", s.bias_dtype, "in", s.E, s.I_TP, says = "added after the normalisation"})
    return list
end

-- What a forward pass leaves for the backward pass.
local function state(s, role)
    local dense = s.dispatch == "dense"
    local function blocks(times, plus)   -- a formula: times * number of blocks + plus
        times = times * (dense and s.E or 1)
        return (times > 1 and times .. "*N" or "N") .. (plus and "+" .. plus or "")
    end
    local list = {
        {"logits", "f32", role, "T", s.E, says = "of the router"},
        {"expert_index", "i32", role, "T", s.top_k, says = "experts of each token, best first"},
        {"expert_affinities_masked", "f32", role, ("%d*T"):format(s.E), 1, says = "of token t and expert e at t * E + e; 0 for others"},
        {"token_position_to_id", "i32", role, blocks(s.block_size), says = "token of each slot; padding is -1"},
        {"block_to_expert", "i32", role, blocks(1), says = "expert of each block"},
        {"conditions", "i32", role, blocks(1, 1), says = "1 for each block that holds a token"},
    }
    if activations(s) then
        list[#list + 1] = {"gate_up_activations_T", s.dtype, role, blocks(1), s.gated and 2 or 1, s.I_TP, s.block_size,
            says = "what the first product gave; 0 at padding slots"}
        if s.affinity.on == "hidden" then
            list[#list + 1] = {"down_activations", s.dtype, role, blocks(1), s.block_size, s.H,
                says = "before the affinity; 0 at padding slots"}
        end
    end
    return list
end

local function forward_args(s)
    local list = append({{"hidden_states", s.dtype, "in", "T", s.H, says = "rows of tokens"}}, parameters(s))
    if s.correction_bias then
        list[#list + 1] = {"correction_bias", s.bias_dtype, "in", s.E, says = "added to the scores for choosing only"}
    end
    list[#list + 1] = {"output", s.output_dtype, "out", "T", s.H, says = "sum over the experts of each token"}
    if s.aux_loss.load_balance then
        list[#list + 1] = {"load_balance_loss", "f32", "out", 1, says = "auxiliary loss, with its coefficient"}
    end
    if s.aux_loss.z then
        list[#list + 1] = {"z_loss", "f32", "out", 1, says = "auxiliary loss, with its coefficient"}
    end
    return layer.keeps(s) and append(list, state(s, "out")) or list
end

-- Parameters that backward reads: not the biases, but where they enter a gradient.
local function read_again(s, name)
    if name == "gate_and_up_proj_bias" then
        return s.checkpoint == "recompute"
    elseif name == "down_proj_bias" then
        return s.affinity.scale == "post" and (s.checkpoint == "recompute" or s.affinity.on == "intermediate")
    end
    return name ~= "router_bias"
end

local function backward_args(s)
    local list, grads = {{"hidden_states", s.dtype, "in", "T", s.H, says = "rows of tokens"}}, {}
    for _, p in ipairs(parameters(s)) do
        if read_again(s, p[1]) then
            list[#list + 1] = p
        end
        local g = append({}, p)
        g[1], g[2], g[3] = p[1] .. "_grad", s.output_dtype, s.accumulate_grads and "inout" or "out"
        g.says = "gradient of " .. p[1] .. (s.accumulate_grads and ", added to what is there" or "")
        grads[#grads + 1] = g
    end
    append(list, state(s, "in"))
    list[#list + 1] = {"output_hidden_states_grad", s.dtype, "in", "T", s.H, says = "gradient of output"}
    list[#list + 1] = {"hidden_states_grad", s.dtype, "out", "T", s.H,
        says = "gradient of hidden_states, through the experts and through the router"}
    return append(list, grads)
end

function layer.args(s)
    return s.op == "forward" and forward_args(s) or backward_args(s)
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
    local router = spec_of(s, {"dtype", "H", "E", "top_k", "T", "op", "method", "correction_bias", "routing_scale", "aux_loss",
        "bias_dtype"}, {bias = s.router_bias, affinity_dtype = "f32"})
    local experts = spec_of(s, {"dtype", "H", "I_TP", "E", "block_size", "T", "activation", "gated", "affinity", "bias", "clamp",
        "up_offset", "norm", "norm_eps", "bias_dtype", "output_dtype", "shard"},
        {top_k = s.dispatch == "dense" and s.E or s.top_k, skip_token = true, affinity_dtype = "f32"})
    if not backward then
        experts.checkpoint = activations(s) and "save" or "none"
        local index = spec_of(s, {"E", "top_k", "block_size", "T"}, {skip_token = true})
        local list = {{"router", "router", router, plan = "plan.router"}, {"index", "moe_index", index},
            {"experts", "moe_forward", experts, plan = "plan.experts"}}
        if s.dispatch == "dense" then
            table.remove(list, 2)
        end
        return list
    end
    experts.checkpoint = s.checkpoint == "recompute" and "recompute" or "saved"
    for _, part in ipairs{router, experts} do
        part.accumulate_grads, part.output_dtype, part.hidden_grad_dtype = s.accumulate_grads, s.output_dtype, "f32"
    end
    return {{"experts", "moe_backward", experts, plan = "plan.experts"}, {"router", "router", router, plan = "plan.router"}}
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
    if s.op == "backward" and not out.narrow then
        own.experts_grad = "a->hidden_states_grad"   -- the router's is added in place
    end
    local names = {spec = s, plan = plan, isa = plan.isa, p = cfg.prefix, backward = s.op == "backward", keeps = layer.keeps(s),
        dense = s.dispatch == "dense", narrow_output = out.narrow ~= nil, output_c = out.c, between = {}, wires = {},
        narrow_out = plans.convert(out, "narrow"),
        scalars = {s.op == "backward" and {out, "narrow"} or false},
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
        if names.backward then
            list[1] = rows.move(cfg, "add", {add = true})
            list[2] = out.narrow and rows.move(cfg, "narrow_output", {to = out}) or nil
        end
        return list
    end
    return names
end

return layer
