-- SPDX-License-Identifier: Apache-2.0
-- work.lua - what a call of the router keeps, see workspace.lua.
local workspace = require "shared.workspace"

local work = {}

local function own(...)
    local row = {...}
    row.own = true
    return row
end

-- Of both passes: what is made of the logits of a group of tokens. last: what comes before
local function of_group(list, rows)
    for _, row in ipairs{
        own("S", "float", {rows, "PITCH"}, "logits"),
        own("L", "float", {"ROWS_E", "LANES"}, "logits of the group"),
        own("P", "float", {"E", "LANES"}, "weights of all experts before they are divided by their sum"),
        own("C", "float", {"K", "LANES"}, "logits of the chosen,"),
        own("W", "float", {"K", "LANES"}, "and weights"),
        own("stat", "float", {4, "LANES"}, "maximum, sum and what comes of them"),
    } do
        list[#list + 1] = row
    end
    return list
end

local function counts(has)
    return has.balance and {"counts", "int64_t", {"w->size", "E"}, "tokens that chose an expert, of each rank"},
        has.balance and own("count", "float", {"E"}, "tokens of all that chose an expert"),
        has.balance and {"is_counted", "int64_t", nil, "are they known?", starts = "0"}
end

function work.forward(names, has)
    local a, b, c = counts(has)
    workspace.fill(names, of_group({
        {"weight", "float", {"PANELS", "DEPTH", "WIDTH"}, "router_weight"},
        a, b, c,
        has.balance and {"shares", "float", {"w->groups", "E", "LANES"},
            "weights that the loss is about, before they are divided by their sum"},
        has.balance and {"share_stat", "float", {"w->groups", 4, "LANES"}, "of them"},
        has.balance and {"mean", "float", {"w->groups", "LANES"}, "of the experts' counts, weighed by shares"},
        has.z and {"log_sum", "float", {"w->groups", "LANES"}, "log of the sum of exponentials"},
        has.norm and own("norm", "float", {"H"}, "router_norm_weight"),
        own("X", "float", {"rows", "X_PITCH"}, "hidden states, KC columns of them"),
        has.bias and own("bias", "float", {"PITCH"}, "of the logits"),
        has.correction and own("correction", "float", {"E"}, "of what experts are chosen by"),
        has.scaled and own("scale", "float", {has.one_scale and 1 or "E"}, "router_scale"),
        (has.ranks or has.groups) and own("R", "float", {"E", "LANES"}, "what experts are chosen by"),
        has.groups and own("group_score", "float", {"GROUPS", "LANES"}, "of groups of experts,"),
        has.groups and own("kept_score", "float", {"KEPT", "LANES"}, "of those that stay,"),
        has.groups and own("kept", "float", {"KEPT", "LANES"}, "and their indices, integers"),
        own("V", "float", {"K", "LANES"}, "ranks of the chosen,"),
        own("I", "float", {"K", "LANES"}, "their indices, integers,"),
        own("Q", "float", {"K", "LANES"}, "and weights"),
        names.narrow_weights and own("Qn", names.affinity, {"K", "LANES"}, "the same, rounded"),
    }, "rows"))
end

function work.backward(names, has)
    local a, b, c = counts(has)
    workspace.fill(names, of_group({
        {"status", "int64_t", {"w->groups"}, "of each chunk of CHECK"},
        {"weight", "float", {"PANELS", "ROWS_E", "WIDTH"}, "router_weight, transposed"},
        a, b, c,
        {"dL", "float", {"w->groups", "LANES", "PITCH"}, "the logits' gradient"},
        {"step", "int64_t", nil, "panels of a chunk of COLUMNS", starts = "even(w->size, PANELS, NC)"},
        has.scaled and {"products", "float", {"w->groups", "LANES", "K"}, "weights before their scale times their gradients"},
        has.scaled and {"scale_sums", "double", {has.one_scale and 1 or "E"}, "of these"},
        has.scaled and own("scale", "float", {has.one_scale and 1 or "E"}, "router_scale"),
        has.scaled and own("Q", "float", {"K", "LANES"}, "weights before their scale"),
        has.norm and {"pull", "float", {"w->groups", "LANES"}, "of hidden states on their gradient, through the norm"},
        has.norm and own("norm", "float", {"H"}, "router_norm_weight"),
        has.norm and own("dX", "float", {"w->block", "H"}, "gradient of what the weights multiply"),
        own("seen", "int64_t", {"E"}, "last token that named an expert"),
        own("factor", "float", {3}, "of the weights' gradient, of the losses' gradients"),
        own("X", "float", {"NC", "KC", "WIDTH"}, "panels of hidden states"),
        own("sums", "float", {"NC", "E", "WIDTH"}, "of dG, transposed"),
        own("transposed", "float", {"WIDTH", "E"}, "of dG"),
        own("edge", names.dx, {"(OUT_ROWS - 1) * (int64_t)H + WIDTH"}, "rows of the panel of dX that lacks columns"),
        own("D", "float", {"K", "LANES"}, "gradients of weights,"),
        own("G", "float", {"K", "LANES"}, "and what comes of them"),
        has.cap and own("slope", "float", {"E", "LANES"}, "of what caps the logits"),
        own("dLt", "float", {"ROWS_E", "LANES"}, "gradient of the group's logits"),
    }, "LANES"))
end

return work
