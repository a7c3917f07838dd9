-- SPDX-License-Identifier: Apache-2.0
-- args.lua - keys of mlp_forward and mlp_backward, which of their values go together, and the arguments.
local activations = require "codes.activations"
local codes = require "codes.plan"
local dot = require "product.dot"
local keys = require "shared.keys"
local plans = require "shared.plans"
local prequantised = require "codes.prequantised"
local quantised = require "codes.quantised"
local stored = require "shared.stored"
local stored_rules = require "shared.stored_rules"
local tensors = require "shared.tensors"

local args = {}

local types = keys.types

local BOTH <const> = "gate_up_weights"   -- the tensor of gate and up

-- The output that is the gradient of a matrix.
function args.gradient(tensor)
    return (tensor:gsub("weights$", "weight")) .. "_grad"
end

-- What a caller may have as codes already.
local operands = {"hidden_states", BOTH, "down_proj_weight"}

-- Keys of both families, with the family's own between them, and those of its plan. backward: of mlp_backward
function args.keys(own, plan, backward)
    local list = {"dtype", "H", "I_TP",
        {"S", types.int(1, 1 << 40), optional = true, doc = "tokens, when fixed at generation time"},
        "activation", "gated", "clamp", "up_offset"}
    plans.append(list, own)
    for _, row in ipairs(plans.list(
        stored.key_of_rows("how the matrices are stored; plain: rows of gate_up_weights and down_proj_weight are contracted", BOTH),
        quantised.keys[1], quantised.keys[2], quantised.keys[3], not backward and activations.keys[1],
        prequantised.key(plans.append({}, operands, backward and {"output_hidden_states_grad"} or {})),
        "shard", "target", "spelling",
        {"plan", types.map{dot.key, table.unpack(plan)}, doc = "overrides of the planner, see moegen explain"})) do
        list[#list + 1] = row
    end
    return keys.rows(list)
end

-- takes: of the key `weights`, beside what both families take; blocks: see codes.rules.apart
local function rules(takes, blocks)
    takes.gate_up_order, takes.gate_up = {"interleaved"}, {"separate"}
    takes.never = {shared = "is of experts: one MLP has nothing to share its scales with",
        experts = "is of experts: the tensors of one MLP are at addresses of their own"}
    return plans.append(keys.rules{"gated", quantised.rules, prequantised.rules, codes.rules.numbers,
        codes.rules.unpacked, codes.rules.apart(blocks)}, stored_rules.of(takes))
end

args.forward_rules = plans.append(rules(codes.takes_numbers{"transposed", "contiguous", "packed"},
    function(s) return s.prequantised[BOTH] ~= nil end), {codes.rules.same}, activations.rules("H", "I_TP"))
args.backward_rules = plans.append(keys.rules{"accumulate_grads", codes.rules.frozen},
    rules(codes.takes{"transposed", "contiguous"}, quantised.is))

-- The intermediates, in the order of arguments: name, what it is; those of a gate only if there is one, and what the second product sees
-- unless only its weights' gradient does.
local function kept(s)
    return plans.list(
        s.gated and {"gate_pre", "gate as the activation saw it"}, s.gated and {"gate_act", "act(gate)"},
        {"up", "up, clamped and with its offset"},
        s.weight_grads ~= "none" and {"hidden", "what the second product sees"})
end

-- What both take, and of intermediates those that are wanted, in a role.
local function inputs(s, plan)
    return plans.append({{"hidden_states", s.dtype, "in", "S", s.H, says = "rows of tokens"}}, stored.tensors(s, plan))
end

local function intermediates(s, wanted, role, note)
    local list = {}
    for _, row in ipairs(s.checkpoint == wanted and kept(s) or {}) do
        list[#list + 1] = {row[1], s.dtype, role, "S", s.I_TP, says = row[2] .. note}
    end
    return list
end

function args.forward_args(s, plan)
    return plans.append(prequantised.all_args(s, inputs(s, plan)), {{"output", s.output_dtype, "out", "S", s.H, says = "rows of tokens"}},
        intermediates(s, "save", "out", ""))
end

function args.backward_args(s)
    local list, gradients = inputs(s), {}
    for _, row in ipairs(s.weight_grads == "all" and stored.tensors(s) or {}) do
        gradients[#gradients + 1] = tensors.gradient(s, row, args.gradient(row[1]))
    end
    list[#list + 1] = {"output_hidden_states_grad", s.dtype, "in", "S", s.H, says = "gradient of output"}
    return plans.append(prequantised.all_args(s, list), intermediates(s, "saved", "in?", "; absent: computed again"), {
        {"hidden_states_grad", s.dtype, "out", "S", s.H, says = "gradient of hidden_states"}}, gradients)
end

return args
