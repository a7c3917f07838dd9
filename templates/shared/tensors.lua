-- SPDX-License-Identifier: Apache-2.0
-- tensors.lua - tensors that several families take or give, as rows of `args`. s: the spec
local packed = require "packed.form"
local plans = require "shared.plans"
local stored = require "shared.stored"

local tensors = {}

local list, append = plans.list, plans.append

-- Rows of tokens of the families over blocks: with one more for padding, unless there is none.
function tensors.tokens(s)
    return s.skip_token and "T" or "T+1"
end

-- The affinities, or what is shaped like them: of each token and expert, or of each slot.
function tensors.affinities(s, role)
    if s.affinities == "slots" then
        return {"slot_affinities", s.affinity_dtype, role, ("%d*N"):format(s.block_size), says = "of each slot of token_position_to_id"}
    end
    return {"expert_affinities_masked", s.affinity_dtype, role, s.skip_token and ("%d*T"):format(s.E) or ("%d*T+%d"):format(s.E, s.E), 1,
        says = "of token id and expert e at id * E + e"}
end

function tensors.affinity_gradients(s)
    local row = tensors.affinities(s, "out")
    row.says = ("gradient of %s; 0 %s"):format(row[1], s.affinities == "slots" and "at padding" or "where no block holds the pair")
    row[1] = row[1] .. "_grad"
    return row
end

function tensors.biases(s)
    local norm = s.norm == "layer"
    return list(
        s.bias.gate_up and append({"gate_and_up_proj_bias", s.bias_dtype, "in", s.E, says = "added to what the first product gives"},
            {stored.bias(s)}),
        s.bias.down and {"down_proj_bias", s.bias_dtype, "in", s.E, s.H, says = "added to what the second product gives"},
        norm and {"norm_weight", s.bias_dtype, "in", s.E, s.I_TP, says = "factor after the normalisation"},
        norm and {"norm_bias", s.bias_dtype, "in", s.E, s.I_TP, says = "added after the normalisation"},
        s.post_norm and {"post_norm_weight", s.bias_dtype, "in", s.H, says = "factor of what every expert gives, before its norm"})
end

-- Parameters of the experts: weights, and what else there is. plan: of packed weights
function tensors.parameters(s, plan)
    return append(stored.tensors(s, plan), tensors.biases(s))
end

-- Those of a list of parameters that the way back reads: not biases, but where they enter a gradient.
function tensors.read_again(s, parameters)
    local out, again = {}, s.checkpoint == "recompute"
    local biases = {router_bias = false, gate_and_up_proj_bias = again,
        down_proj_bias = s.affinity and s.affinity.scale == "post" and (again or s.affinity.on == "intermediate")}
    for _, row in ipairs(parameters) do
        out[#out + 1] = biases[row[1]] ~= false and row or nil
    end
    return out
end

-- Constants of the families over blocks.
function tensors.constants(s)
    return {{"H", s.H, "hidden size"}, {"I", s.I_TP, "intermediate size"}, {"E", s.E, "experts"},
        {"B", s.block_size, "slots of a block"}, {"GATES", stored.gates(s), "gate and up, or up alone"}, plans.sum_ld(s.H)}
end

-- What they take first.
function tensors.inputs(s, plan)
    return append({
        {"hidden_states", s.dtype, "in", tensors.tokens(s), s.H, says = "rows of tokens" .. (s.skip_token and "" or "; row T is padding")},
        tensors.affinities(s, "in"),
    }, stored.tensors(s, plan))
end

function tensors.blocks(s)
    return {
        {"token_position_to_id", "i32", "in", ("%d*N"):format(s.block_size),
            says = "token of each slot; padding is " .. (s.skip_token and "-1" or "T")},
        {"block_to_expert", "i32", s.dropping and "in?" or "in", "N",
            says = "expert of each block" .. (s.dropping and "; absent: block n is of expert n" or "")},
        {"conditions", "i32", "in?", "N+1", says = "1 for each block that runs, a prefix; absent: all run"},
    }
end

-- What these are refused for.
function tensors.statuses(s)
    return plans.list("block_to_expert names an expert outside 0..E-1", "token_position_to_id names a token outside 0..T-1",
        "dropping needs as many blocks as experts", "T or N is not what the spec fixes", packed.status(s))
end

-- What the forward pass keeps, of so many blocks: a formula.
local function kept(says, role)
    return says .. (role == "out" and "; 0 at padding slots" or "")
end

function tensors.kept_gate_up(s, name, role, blocks)
    return {name, s.dtype, role, blocks, stored.gates(s), s.I_TP, s.block_size,
        says = kept(s.norm == "layer" and "as the normalisation saw it" or "gate and up as the activation saw them", role)}
end

function tensors.kept_down(s, name, role, blocks)
    return {name, s.dtype, role, blocks, s.block_size, s.H, says = kept("what the expert gave, before the affinity", role)}
end

-- The gradient of a parameter.
function tensors.gradient(s, of, name)
    local row = append({}, of)
    row[1], row[2], row[3] = name or of[1] .. "_grad", s.output_dtype, s.accumulate_grads and "inout" or "out"
    row.says = "gradient of " .. of[1] .. (s.accumulate_grads and ", added to what is there" or "")
    return row
end

-- Those of a list, but of scales. Frozen weights: none.
function tensors.gradients(s, parameters)
    local out = {}
    for _, row in ipairs(s.weight_grads ~= "none" and parameters or {}) do
        out[#out + 1] = not row.scale and tensors.gradient(s, row) or nil
    end
    return out
end

-- Of routers.
function tensors.router(s, bias)
    return list(
        {"router_weight", s.dtype, "in", s.H, s.E, says = "logits are hidden_states times it"},
        bias and {"router_bias", s.bias_dtype, "in", s.E, says = "added to the logits"},
        s.router_norm and {"router_norm_weight", s.bias_dtype, "in", s.H, says = "factor of hidden_states behind their norm"},
        s.router_scale ~= "none" and {"router_scale", s.bias_dtype, "in", s.router_scale == "one" and 1 or s.E,
            says = "factor of the weights"})
end

function tensors.correction(s)
    return list(s.correction_bias and {"correction_bias", s.bias_dtype, "in", s.E - s.always,
        says = "added to the scores for choosing only"})
end

function tensors.losses(s)
    return list(
        s.aux_loss.load_balance and {"load_balance_loss", "f32", "out", 1, says = "auxiliary loss, with its coefficient"},
        s.aux_loss.z and {"z_loss", "f32", "out", 1, says = "auxiliary loss, with its coefficient"})
end

return tensors
