-- SPDX-License-Identifier: Apache-2.0
-- rules.lua - keys of moe_backward that other families have otherwise, and which of its values go together.
local codes = require "codes.plan"
local packed = require "packed.form"
local plans = require "shared.plans"
local prequantised = require "codes.prequantised"
local quantised = require "codes.quantised"

local rules = {}

-- What moe_backward takes of the key `weights` beside those of tokens' dtype, see stored.lua: codes, which have no gradients.
rules.weights = plans.with(codes.takes{"transposed", "contiguous", "nki", "packed"},
    {shared = true, gate_up_order = {"interleaved"}, gate_up = {"separate"}, experts = {"separate"}})

rules.frozen = codes.rules.frozen

-- What is packed for the way back holds for its products alone.
rules.packed = plans.where(packed.are, {
    {"weights.layout", function(s) return s.weight_grads == "none" end,
        "{weights.layout} is of weights that stay as they are: it needs weight_grads = none, here {weight_grads}"},
    {"weights.layout", function(s) return s.checkpoint == "saved" end,
        "{weights.layout} is for the way back alone: {checkpoint} multiplies the same weights forward"},
})

-- Products are quantised as they are made: scale `post` multiplies the sums of dY Wd^T and, before it is rounded, p in the gradient of Wd;
-- `pre` X, which is f32 then. What is between two products is rounded to the dtype first, as if it had been stored; biases' gradients
-- are sums of that.
local quantize = quantised.keys[1]

rules.quantize = {quantize[1], quantize[2], default = quantize.default,
    doc = quantize.doc .. "; along an expert's tokens from its first one on, over blocks of block_size, padding left out"}

-- What a caller may have as codes already.
rules.prequantised = prequantised.key{"hidden_states", "gate_up_proj_weight", "down_proj_weight", "output_hidden_states_grad"}

rules.quantised = plans.append({codes.rules.numbers, codes.rules.unpacked, codes.rules.apart(quantised.is)}, plans.where(quantised.is, {
    {"clamp.activated", function(s) return not s.clamp.activated end, "{clamp.activated} is not supported yet beside {quantize}"},
    {"post_norm.eps", function(s) return not s.post_norm end, "{post_norm.eps} is not supported yet beside {quantize}"},
    {"norm", function(s) return s.norm == "none" end, "{norm} is not supported yet beside {quantize}"},
}))

return rules
