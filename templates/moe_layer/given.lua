-- SPDX-License-Identifier: Apache-2.0
-- given.lua - `router: given`: the caller says which experts a token has, and their weights.
local dtype = require "dtype"
local plans = require "shared.plans"
local types = require("schema").types

local given = {}

given.keys = {
    {"router", types.enum{"own", "given"}, default = "own",
        doc = "given: experts of each token and their weights come in as top_k_index and top_k_weights, not as a router's parameters"},
    {"index_dtype", types.enum{"i32", "i64"}, default = "i32", doc = "of top_k_index"},
}

function given.is(s)
    return s.router == "given"
end

-- Keys of a router, with what they are if nobody gives them.
local of_routers = {
    {"method", "softmax_topk"}, {"score"}, {"softcap"}, {"logit_scale", 1.0}, {"groups.count"}, {"renorm.eps"}, {"renorm.min"},
    {"jitter", 0.01}, {"always", 0}, {"router_scale", "none"}, {"router_norm.eps"},
    {"router_bias", false}, {"correction_bias", false}, {"routing_scale", 1.0}, {"aux_loss.load_balance"}, {"aux_loss.z"},
}

local function value(s, path)
    for name in path:gmatch("[^.]+") do
        s = s and s[name]
    end
    return s
end

local where_given = {
    {"dispatch", function(s) return s.dispatch == "sparse" end,
        "{dispatch} is of all pairs of a token and an expert: {router} says which there are"},
    {"plan.router", function(s) return next(s.plan.router) == nil end, "{plan.router} plans a router: {router} leaves none"},
}
for _, row in ipairs(of_routers) do
    local path, otherwise = row[1], row[2]
    where_given[#where_given + 1] = {path, function(s) return value(s, path) == otherwise end,
        "{" .. path .. "} is of a router: {router} leaves none"}
end

given.rules = plans.append(plans.where(given.is, where_given), {
    {"index_dtype", function(s) return given.is(s) or s.index_dtype == "i32" end,
        "{index_dtype} is of top_k_index, which needs router = given"},
    {"affinity_dtype", function(s) return given.is(s) or s.affinity_dtype == s.dtype end,
        "{affinity_dtype} is of top_k_weights, which needs router = given: affinities of a router are f32"},
})

-- Tensors of the pairs.
function given.args(s)
    return {
        {"top_k_index", s.index_dtype, "in", "T", s.top_k,
            says = "experts of each token, none twice; a pair with another number than 0..E-1 counts for nothing"},
        {"top_k_weights", s.affinity_dtype, "in", "T", s.top_k, says = "weights of these experts: their affinities"},
    }
end

function given.gradient(s)
    return {"top_k_weights_grad", s.affinity_dtype, "out", "T", s.top_k,
        says = "gradient of top_k_weights; 0 where a pair counts for nothing"}
end

-- What lies between the caller's pairs and the experts: name, C type, elements.
function given.between(s)
    local affinity, back = dtype[s.affinity_dtype].c, s.op == "backward"
    return given.is(s) and plans.list({"status", "int32_t", "1"}, {"next", "int64_t", "E"}, {"seen", "int64_t", "E"},
        {"slot_affinities", affinity, "blocks * B"},
        back and {"slot_affinities_grad", affinity, "blocks * B"}, back and {"place", "int64_t", "a->T * K"}) or {}
end

return given
