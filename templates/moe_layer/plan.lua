-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - the tensors and parts of moe_layer, and what its template's holes refer to.
local dot = require "product.dot"
local dtype = require "dtype"
local integers = require "codes.integers"
local backward_rules = require "moe_backward.rules"
local layer_names = require "moe_layer.names"
local given = require "moe_layer.given"
local keys = require "shared.keys"
local packed = require "packed.form"
local plans = require "shared.plans"
local shared = require "moe_layer.shared"
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
layer.rules = plans.where(function(s) return s.op == "backward" end, backward_rules.packed)

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

-- Parameters: router first, then experts, then the shared one. plan: of the experts
local function parameters(s, plan)
    return append(router(s), tensors.parameters(s, plan), shared.parameters(s))
end

-- Their gradients, of which the experts may have none.
local function gradients(s)
    local list = {}
    for i, row in ipairs(router(s)) do
        list[i] = tensors.gradient(s, row)
    end
    return append(list, tensors.gradients(s, tensors.parameters(s)), shared.gradients(s))
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
        activations(s) and s.affinity.on == "hidden" and tensors.kept_down(s, "down_activations", role, blocks(1))),
        activations(s) and shared.state(s, role) or {})
end

local function forward_args(s, plan)
    return append(tokens(s), parameters(s, plan), tensors.correction(s),
        {{"output", s.output_dtype, "out", "T", s.H,
            says = "sum over the experts of each token" .. (s.shared and ", and the shared one" or "")}}, tensors.losses(s),
        layer.keeps(s) and state(s, "out") or {})
end

local function backward_args(s, plan)
    return append(tokens(s), tensors.read_again(s, parameters(s, plan)), state(s, "in"), {
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
    local plan = experts_plan(parts)
    local op = plan and (plan.integers and integers.params(plan) or dot.params(s, plan)) or {}
    return append(op, packed.params(s, plan, stored.matrices(s)))
end

-- Parts ------------------------------------------------------------------------------------------------------------

-- Keys that a part has in common with the layer, and its own.
local function spec_of(s, names, own)
    for _, name in ipairs(names) do
        own[name] = s[name]
    end
    return own
end

-- Keys of moe_forward and moe_backward, of the experts that a token has and of the one that is shared.
local function experts_spec(s)
    local spec = spec_of(s, {"dtype", "H", "I_TP", "E", "block_size", "T", "activation", "gated", "affinity", "bias", "clamp",
        "up_offset", "norm", "norm_eps", "post_norm", "weights", "bias_dtype", "output_dtype", "shard"},
        {top_k = s.dispatch == "dense" and s.E or s.top_k, skip_token = true, affinities = given.is(s) and "slots" or "dense",
            affinity_dtype = given.is(s) and s.affinity_dtype or "f32"})
    if s.op == "forward" then
        spec.checkpoint = activations(s) and "save" or "none"
        spec.quantize_activations, spec.scale_rule = s.quantize_activations, s.scale_rule
        if s.shared then   -- rows that are added to others, and then rounded
            spec.output_dtype = "f32"
            spec.rounded_later = s.output_dtype == s.dtype and dtype[s.dtype].narrow ~= nil or nil
        end
        return spec
    end
    spec.checkpoint = s.checkpoint == "recompute" and "recompute" or "saved"
    spec.weight_grads, spec.accumulate_grads = s.weight_grads, s.accumulate_grads and s.weight_grads == "all"
    spec.hidden_grad_dtype = given.is(s) and not s.shared and s.dtype or "f32"
    spec.rounded_later = dtype[s.dtype].narrow ~= nil or nil
    return spec
end

function layer.parts(s)
    local backward = s.op == "backward"
    local scores = spec_of(s, {"dtype", "H", "E", "top_k", "T", "op", "method", "score", "softcap", "logit_scale", "groups", "renorm",
        "jitter", "always", "router_scale", "router_norm",
        "correction_bias", "routing_scale", "aux_loss", "bias_dtype"}, {bias = s.router_bias, affinity_dtype = "f32"})
    if backward then
        scores.accumulate_grads, scores.output_dtype, scores.hidden_grad_dtype = s.accumulate_grads, s.output_dtype, "f32"
    end
    local router_part = not given.is(s) and {"router", "router", scores, plan = "plan.router"}
    local index = router_part and s.dispatch == "sparse" and {"index", "moe_index",
        spec_of(s, {"E", "top_k", "block_size", "T"}, {skip_token = true})}
    local experts = {"experts", backward and "moe_backward" or "moe_forward", experts_spec(s), plan = "plan.experts"}
    local beside = s.shared and shared.part(s, experts_spec(s))
    if backward then
        return plans.list(experts, router_part, beside)
    end
    return plans.list(router_part, index, experts, beside)
end

-- What the contract says --------------------------------------------------------------------------------------------

local function keeps_shared(s)
    return s.shared ~= nil and activations(s)
end

function layer.dims(s)
    return plans.list("T", layer.keeps(s) and "N", keeps_shared(s) and "M")
end

-- Blocks, as in moe_index; dense: of one expert; and of all tokens.
function layer.derived(s)
    return plans.list(layer.keeps(s) and (s.dispatch == "dense" and {"N", "T", 1, 0, s.block_size, 0}
        or {"N", "T", s.top_k, s.E - 1, s.block_size, 1}), keeps_shared(s) and {"M", "T", 1, 0, s.block_size, 0})
end

function layer.statuses(s)
    return {"T is not what the spec fixes", ("%s is not the number of blocks that T tokens need"):format(s.shared and "N or M" or "N"),
        given.is(s) and "top_k_index names an expert twice for one token"
            or "expert_index names an expert outside 0..E-1, or twice for one token"}
end

function layer.algorithm(s)
    local backward = s.op == "backward"
    local beside = s.shared and ", then the expert that all share, which is one of these kernels with a single expert" or ""
    local family = backward and "moe_backward" or "moe_forward"
    local parts = given.is(s) and ("experts (%s), over blocks of the pairs whose index names one"):format(family)
        or backward and "experts (moe_backward), then router: the gradients of affinities are what the second begins with"
        or s.dispatch == "dense" and "router, then experts (moe_forward) over lists of all tokens"
        or "router, index (moe_index), then experts (moe_forward)"
    return {"The layer is kernels of other families, which stand here as they would alone, with what their algorithms are: "
            .. parts .. beside .. ".",
        "Each part's tensors are the caller's or lie in the workspace, behind which all parts have theirs in turn; "
            .. "ranks meet between two parts.",
        given.is(s) and "Rank 0 puts the pairs in order, by counting; in backward once more, so that blocks need not be kept."
            or backward and ("At the end the %s gradients of hidden states are added."):format(s.shared and "three" or "two")
            or s.shared and "At the end the two sums over experts are added, and rounded once."
            or "What a part refuses the layer refuses, before the later parts start."}
end

function layer.names(s, plan, job)
    return layer_names(s, plan, job, layer.keeps(s), keeps_shared(s))
end

return layer
