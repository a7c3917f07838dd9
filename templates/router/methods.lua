-- SPDX-License-Identifier: Apache-2.0
-- methods.lua - how logits become weights, and which are chosen: the keys that say so, and what a spec makes of them.
local plans = require "shared.plans"
local types = require("schema").types

local enum, int, map, num = types.enum, types.int, types.map, types.num

local methods = {
    order = {"softmax_topk", "softmax_topk_renorm", "topk_softmax", "sigmoid_topk", "sigmoid_topk_renorm", "topk_sigmoid", "sparsemixer"},
}

-- score   what makes weights of logits, unless the key `score` says otherwise
-- after   experts are chosen by their logits, and only theirs become weights
-- renorm  the weights of the chosen are divided by their sum
-- near    the weight of each is a softmax over the experts near it, see the key `jitter`
local rows = {
    softmax_topk        = {score = "softmax"},
    softmax_topk_renorm = {score = "softmax", renorm = true},
    topk_softmax        = {score = "softmax", after = true},
    sigmoid_topk        = {score = "sigmoid"},
    sigmoid_topk_renorm = {score = "sigmoid", renorm = true},
    topk_sigmoid        = {score = "sigmoid", after = true},
    sparsemixer         = {score = "softmax", after = true, near = true},
}

local most <const> = 1e30   -- of numbers that kernels hold in f32
local least <const> = 2.0 ^ -126

methods.key = {"method", enum(methods.order), doc = "how logits become weights, and which are chosen: of equals the lower index"}

-- Further keys of the families that have a router.
methods.keys = {
    {"score", enum{"softmax", "sigmoid", "sqrt_softplus"}, optional = true,
        doc = "what makes weights of logits, in the place of the one that method names; sqrt_softplus: sqrt(log(1 + exp(z)))"},
    {"softcap", num(1 / most, most), optional = true,
        doc = "c: all that follows is of z = c tanh(logit / c); the tensor logits is not"},
    {"logit_scale", num(-most, most), default = 1.0, doc = "factor of the logits before all that follows; the tensor logits is without it"},
    {"groups", map{
        {"count", int(1, 65536), doc = "groups of consecutive experts, all of one size"},
        {"keep", int(1, 65536), doc = "those with the best scores, whose experts can be chosen"},
        {"score", enum{"top2_sum", "max"}, default = "top2_sum",
            doc = "of a group: the sum of what its two best experts are chosen by, or its best"},
        {"fill", enum{"minus_infinity", "zero"}, default = "minus_infinity", doc = "what experts of other groups are chosen by"}},
        optional = true, doc = "experts are chosen from the best groups only: of equals those of the lower index"},
    {"renorm", map{
        {"eps", num(0.0, most), optional = true, doc = "w / (sum + eps)"},
        {"min", num(0.0, most), optional = true, doc = "w / max(sum, min)"}},
        doc = "weights of the chosen are divided by their sum, whether method says so or not"},
    {"jitter", num(0.0, 0.5), default = 0.01,
        doc = "of sparsemixer, where a chosen expert's weight is its softmax over those not chosen before it whose logits z have "
            .. "max - z <= 2 jitter max(|z|, max), max: its own logit"},
    {"always", int(0, 65536), default = 0,
        doc = "so many experts, the last ones, are chosen by every token: they count in top_k, come last in expert_index, "
            .. "and correction_bias has nothing for them"},
    {"router_scale", enum{"none", "one", "each"}, default = "none",
        doc = "a parameter that multiplies the weights: one number, or each expert its own"},
    {"router_norm", map{{"eps", num(0.0, most), doc = "added to the mean of squares"}}, optional = true,
        doc = "logits are of hidden_states / sqrt(mean of their squares + eps) times the parameter router_norm_weight"},
}

local function of_group(s)
    return s.E // s.groups.count
end

local function near(s)
    return rows[s.method].near
end

methods.rules = plans.append(plans.where(function(s) return s.always > 0 end, {
    {"always", function(s) return s.always < s.top_k end, "{always} leaves nothing of {top_k} to be chosen"},
    {"always", function(s) return not s.groups end, "{always} is not supported yet beside {groups.count}"},
    {"always", function(s) return not s.aux_loss.load_balance end, "{always} is not supported yet beside {aux_loss.load_balance}"},
    {"always", function(s) return not near(s) end, "{always} is not supported yet with {method}"},
}), {
    {"jitter", function(s) return near(s) or s.jitter == 0.01 end, "{jitter} is of method = sparsemixer, here {method}"},
}, plans.where(near, {
    {"router_scale", function(s) return s.router_scale == "none" end, "{router_scale} is not supported yet with {method}"},
    {"score", function(s) return not s.score end, "{score} is not of {method}: its weights are a softmax"},
    {"groups", function(s) return not s.groups end, "{groups.count}: {method} has no groups"},
    {"renorm.eps", function(s) return not s.renorm.eps end, "{renorm.eps}: weights of {method} are not divided by their sum"},
    {"renorm.min", function(s) return not s.renorm.min end, "{renorm.min}: weights of {method} are not divided by their sum"},
    {"correction_bias", function(s) return not s.correction_bias end, "{correction_bias}: {method} chooses by logits alone"},
}), plans.where(function(s) return s.groups end, {
    {"groups.count", function(s) return s.E % s.groups.count == 0 end, "{groups.count} does not cut {E} into groups of one size"},
    {"groups.keep", function(s) return s.groups.keep <= s.groups.count end, "{groups.keep} is more than {groups.count}"},
    {"groups.score", function(s) return s.groups.score ~= "top2_sum" or of_group(s) ~= 1 end,
        "{groups.score} is of two experts, and {groups.count} leaves a group but one of {E}"},
    {"top_k", function(s) return s.top_k <= s.groups.keep * of_group(s) or s.top_k > s.E end,
        "{top_k} is more than the experts of the groups that stay: {groups.keep}, {groups.count}, {E}"},
}), {
    {"renorm", function(s) return not (s.renorm.eps and s.renorm.min) end, "{renorm.eps} and {renorm.min}: one of them"},
})

-- What a spec makes of its method:
-- rank    what a correction bias is added to before the best are chosen: logits, or scores by their name
-- weigh   what makes weights of logits
-- over    whose sum the weights are divided by: all, chosen, or nil: no sum
-- floor   of that sum of the chosen: {eps = x} or {min = x}, of weights that sum to 1 over all if over is all
-- factor  of the weights
-- near    weights are softmaxes over what is near, in this measure
function methods.of(s)
    local row, floor = rows[s.method], s.renorm
    local renorm, x = row.renorm or floor.eps or floor.min, floor.eps or floor.min or 0
    local m = {weigh = s.score or row.score, factor = s.routing_scale}
    m.rank = row.after and "logits" or m.weigh
    if m.weigh ~= "softmax" then
        m.over = renorm and "chosen"
        m.floor = x >= least and floor or nil
    elseif row.near then
        m.near = 2 * s.jitter
    elseif row.after then   -- they sum to 1
        m.over = "chosen"
        m.factor = m.factor / (floor.eps and 1 + x or math.max(x, 1.0))
    else
        m.floor = x >= least and floor or nil
        m.over = renorm and not m.floor and "chosen" or "all"
    end
    return m
end

return methods
