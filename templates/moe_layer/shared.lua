-- SPDX-License-Identifier: Apache-2.0
-- shared.lua - the key `shared`: an expert that sees every token, beside those that a token has of its own. It is moe_forward and
-- moe_backward with one expert, whose affinities are the gate.
local dtype = require "dtype"
local plans = require "shared.plans"
local rows = require "tiles.rows"
local scores = require "router.scores"
local stored = require "shared.stored"
local tensors = require "shared.tensors"
local types = require("schema").types

local shared = {}

shared.key = {"shared", types.map{
    {"I", types.int(1, 1 << 20), doc = "intermediate columns"},
    {"gate", types.enum{"none", "sigmoid"}, default = "none",
        doc = "sigmoid: the output counts by sigmoid(hidden_states shared_gate_weight)"}}, optional = true,
    doc = "an expert that sees every token, whose output is added: activation, clamp and weights as those of the others, no bias"}

function shared.gated(s)
    return s.shared ~= nil and s.shared.gate == "sigmoid"
end

shared.rules = plans.where(function(s) return s.shared end, {
    {"norm", function(s) return s.norm == "none" end, "{norm} is not supported yet beside {shared}"},
    {"weights.layout", function(s) return s.weights.layout ~= "packed" end, "{weights.layout} is not supported yet beside {shared}"},
    {"shared.I", function(s) return s.weights.layout ~= "nki" or s.shared.I % 4 == 0 end,
        "{shared.I} is no multiple of 4, as weights.layout = nki needs"},
})

-- The spec as the expert's tensors see it.
local function view(s)
    return plans.with(s, {E = 1, I_TP = s.shared.I, weights = plans.with(s.weights, {experts = "joined"})})
end

-- Tensors ----------------------------------------------------------------------------------------------------------

local function is_matrix(row)
    return row[1] ~= "shared_gate_weight"
end

-- Parameters, without the extent of experts.
function shared.parameters(s)
    local list = {}
    for i, row in ipairs(s.shared and stored.tensors(view(s)) or {}) do
        local says = row.says:gsub("of each expert", "of the shared expert"):gsub("of ([%w_]+_proj)", "of shared_%1")
        list[i] = plans.append({"shared_" .. row[1], row[2], row[3], says = says, scale = row.scale},
            {select(#row > 4 and 5 or 4, table.unpack(row))})
    end
    list[#list + 1] = shared.gated(s) and {"shared_gate_weight", s.dtype, "in", s.H,
        says = "the shared expert counts by the sigmoid of hidden_states times it"} or nil
    return list
end

-- Frozen weights have none, the gate has, like a router.
function shared.gradients(s)
    local list = {}
    for _, row in ipairs(shared.parameters(s)) do
        local has = not row.scale and (s.weight_grads == "all" or not is_matrix(row))
        list[#list + 1] = has and tensors.gradient(s, row) or nil
    end
    return list
end

-- What forward keeps; M: blocks of all tokens.
function shared.state(s, role)
    return s.shared and {tensors.kept_gate_up(view(s), "shared_gate_up_activations_T", role, "M")} or {}
end

-- The part ---------------------------------------------------------------------------------------------------------

-- The gate is on the intermediate columns: then backward needs nothing of what the expert gave.
function shared.part(s, spec)
    spec.E, spec.top_k, spec.I_TP, spec.affinities, spec.affinity_dtype = 1, 1, s.shared.I, "dense", "f32"
    spec.affinity, spec.bias = {scale = shared.gated(s) and "post" or "none", on = "intermediate"}, {gate_up = false, down = false}
    spec.weights, spec.post_norm = {}, nil
    for key, value in pairs(s.weights) do
        spec.weights[key] = value
    end
    spec.weights.experts = "joined"
    return {"shared", s.op == "backward" and "moe_backward" or "moe_forward", spec, plan = "plan.shared", of_tokens = true}
end

local same = {hidden_states = "hidden_states", output_hidden_states_grad = "output_hidden_states_grad", hidden_states_grad = "shared_grad",
    gate_up_proj_act_checkpoint_T = "shared_gate_up_activations_T", expert_affinities_masked = "shared_affinities",
    expert_affinities_masked_grad = "shared_affinities_grad"}

-- What the layer calls a tensor of the part; nil: there is none.
function shared.name(name)
    return name ~= "conditions" and (same[name] or "shared_" .. name) or nil
end

-- Tensors between the parts: name, C type, elements.
function shared.between(s)
    local back, gated, lanes = s.op == "backward", shared.gated(s), "(a->T + LANES - 1) / LANES * LANES"
    return s.shared and plans.list(
        {"shared_token_position_to_id", "int32_t", "token_blocks * B"}, {"shared_block_to_expert", "int32_t", "token_blocks"},
        {"shared_affinities", "float", lanes}, back and {"shared_affinities_grad", "float", lanes},
        not back and {"shared_output", "float", "a->T * H"}, back and {"shared_grad", "float", "a->T * H"},
        back and gated and {"gate_logits", "float", lanes}, back and gated and {"gate_slopes", "float", lanes},
        back and gated and {"gate_sums", "float", "2 * H"}) or {}
end

-- What the fragment's holes refer to.
function shared.names(s, names)
    local grad = dtype[s.output_dtype]
    names.shared, names.gated_shared = s.shared ~= nil, shared.gated(s)
    names.widen_io, names.widen_grad, names.narrow_grad = plans.convert(dtype[s.dtype], "widen"), plans.convert(grad, "widen"),
        plans.convert(grad, "narrow")
    if names.gated_shared then
        names.io, names.adds_gradients = dtype[s.dtype].c, s.accumulate_grads
        plans.append(names.scalars, {{dtype[s.dtype], "widen"}},
            names.backward and {{grad, "narrow"}, s.accumulate_grads and {grad, "widen"} or false} or {})
    end
end

function shared.tiles(s, cfg)
    local io, back, whole = dtype[s.dtype], s.op == "backward", s.H >= cfg.isa.lanes
    return shared.gated(s) and plans.list(
        whole and rows.dot(cfg, "dot", io, io),
        scores.all(cfg, "sigmoid"),
        back and scores.gradient(cfg, "gate_slope", "sigmoid"),
        back and whole and rows.move(cfg, "add_scaled", {from = io, add = true, scaled = true})) or {}
end

return shared
