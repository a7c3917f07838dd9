-- SPDX-License-Identifier: Apache-2.0
-- args.lua - what grouped_gemm takes and gives: how W is stored, and the arguments.
local activations = require "codes.activations"
local codes = require "codes.plan"
local packed = require "packed.form"
local plans = require "shared.plans"
local stored = require "shared.stored"
local stored_rules = require "shared.stored_rules"

local args = {}

args.weights = stored.key_of_rows("how W is stored; plain: [E, N, K], rows of K")

-- key: what only Y = X W^T has
local function of_forward(key, is)
    return {key, function(s) return s.op == "forward" or not is(s) end, "{" .. key .. "} is of the product of op = forward, here {op}"}
end

args.weight_rules = plans.append({
    of_forward("weights.layout", packed.are),
    of_forward("quantize_activations", function(s) return s.quantize_activations ~= "none" end),
    {"weights.dtype", function(s) return s.op ~= "dW" or not codes.are(s) end,
        "{weights.dtype} is a format of frozen weights, which have no gradient: only op = forward and dX take it, here {op}"},
    {"weights.dtype", function(s) return s.op ~= "dW" or codes.are(s) or s.weights.dtype == s.dtype end,
        "{weights.dtype} is of W, which {op} does not read; {output_dtype} is that of its gradient"}},
    stored_rules.of(plans.with(codes.takes_numbers{"transposed", "contiguous", "packed"}, {shared = true})),
    activations.rules("K"), {activations.scale_rule})

-- As stored.matrices has those of experts; rows: see packed/form.lua.
function args.matrices(s)
    return {{name = "W", K = s.K, C = s.N, width = s.N, parts = 1, rows = true, says = "of each expert"}}
end

-- How the rows of an expert are multiplied: as columns of panels by "rows" of W, or by its columns, transposed on their way (dX of
-- codes, whose scales lie along rows); as rows by "columns"; or with each other, to a "gradient".
function args.way(s)
    return s.op == "dW" and "gradient" or (s.op == "forward" or codes.are(s)) and "rows" or "columns"
end

-- Of a product: what it multiplies and what it gives: a tensor, the length of its rows, the function that says which of these a sorted row
-- is; and how W lies for it, see phases.lua.
local X, Y = {row = "K", at = "x_row"}, {row = "N", at = "y_row"}

args.products = {
    forward = {from = plans.with(X, {tensor = "X"}), to = plans.with(Y, {tensor = "Y"}), layout = "k"},
    dX = {from = plans.with(Y, {tensor = "dY"}), to = plans.with(X, {tensor = "dX"}), layout = "n"},
}

-- Is dX summed over the rows of a token?
function args.reduces(s)
    return s.op == "dX" and s.permute == "x" and s.reduce_topk
end

function args.list(s, plan)
    local x_rows = s.permute == "x" and (s.op ~= "dX" or args.reduces(s)) and "T" or "M"
    local sorted, flat = "in the order of the experts", "in the order of the flat index"
    local y_order = s.permute == "y" and flat or sorted
    local out = {
        forward = {"Y", s.output_dtype, "out", "M", s.N, says = "rows " .. y_order},
        dX = {"dX", s.output_dtype, "out", x_rows, s.K,
            says = "gradient of X, " .. (args.reduces(s) and "summed over the rows of a token" or s.permute == "x" and flat or sorted)},
        dW = {"dW", s.output_dtype, s.accumulate_grads and "inout" or "out", s.E, s.N, s.K,
            says = "gradient of W" .. (s.accumulate_grads and ", added to what is there" or "; 0 for an expert without rows")},
    }
    return plans.append({
        {"m_sizes", s.index_dtype, "in", s.E, says = "rows of each expert"},
        {"gather_indices", s.index_dtype, s.permute == "none" and "in?" or "in", "M",
            says = s.permute == "none" and "not used" or "flat index token * top_k + choice of each sorted row"},
    }, plans.list(
        s.op ~= "dX" and {"X", s.dtype, "in", x_rows, s.K, says = "rows " .. (x_rows == "T" and "of tokens" or sorted)},
        s.op ~= "forward" and {"dY", s.dtype, "in", "M", s.N, says = "gradient of Y, " .. y_order}),
    s.op ~= "dW" and stored.tensors(s, plan, args.matrices(s)) or {}, plans.list(
        s.fuse_mul == "post" and {"topk_weights", s.affinity_dtype, "in", "M", says = "factor of each flat index"},
        out[s.op]))
end

return args
