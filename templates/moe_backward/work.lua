-- SPDX-License-Identifier: Apache-2.0
-- work.lua - what a call of moe_backward keeps, see workspace.lua, and what its segments go through, see phases.lua.
local phases = require "product.phases"
local plans = require "shared.plans"
local space = require "product.space"
local stored = require "shared.stored"

local work = {}

-- names: what panels.lua adds; has: see plan.lua; types: C types: bias, sum of what hidden states' gradients are
function work.space(names, has)
    local io, dots, words = names.panel_c, names.dots, names.words
    return space.rows(names, {
        {"id", "int32_t", {"rows"}, "token of a row"},
        {"slot", "int64_t", {"rows"}, "its place in token_position_to_id"},
        {"X", io, {"XROWS"}, "hidden states; row H: ones", of = "columns"},
        has.pre and {"scaled", "float", {"XROWS"}, "the same times the affinities", of = "columns"},
        {"dY", io, {"HK"}, "gradients of the output", of = "columns"},
        {"GU", io, {"GK"}, "gate and up; then their gradients", of = "columns"},
        dots and {"dY_pairs", "float", {words "HK"}, "dY, each word of two rows", of = "columns"},
        dots and {"GU_pairs", "float", {words "GK"}, "GU, each word of two rows", of = "columns"},
        dots and has.again and {"X_pairs", "float", {words "HK"}, "X, each word of two rows", of = "columns"},
        dots and has.again and {"seen", "float", {"GK"}, "gate and up as the activation saw them", of = "columns"},
        {"P", io, {"PROWS"}, "what the second product saw; row I: affinities", of = "columns"},
        (has.affinity_sums or has.pre) and {"partial", "float", {"PARTIALS"}, "parts of the affinities' gradients", of = "columns",
            shape = "[PARTIALS][columns]"},
        has.norm and {"factor", "float", {1}, "1 / deviation of gate and up", of = "columns", shape = "[columns]"},
        has.norm and {"dN", "float", {"I"}, "gradients of normalised rows, times weight plus bias", of = "columns"},
        has.norm and {"back", "float", {"PARTIALS", 2}, "sums of them", of = "columns", shape = "[vectors of I][panels][2][WIDTH]"},
        has.norm and has.gradients and {"dnorm", "float", {"I", 2}, "gradients of weight and bias, over the parts of an expert"},
        {"Y", "float", {"w->columns", "H"}, "what each row adds to the gradients of hidden states", when = "apart(w)",
            shape = "[columns][H]"},
        has.gradients and {"held", "float", {names.phases.held}, "gradients of an expert's weights, over its parts",
            when = "rows > PASS_ROWS", shape = ""},
        names.narrow_dx and {"sum", "float", {"tokens(w->args->T)", "H"}, "gradients of hidden states"},
        {"at", "int64_t", {"columns"}, "row of a column, or -1", own = true},
        {"out", "float *", {"columns"}, "where the gradient of its hidden state is summed", own = true},
        {"a", "float", {"columns"}, "affinity", own = true},
        {"nowhere", "float", {"H"}, "where columns without a token are added", own = true},
        has.norm and {"norm", "float", {"I", 2}, "weight and bias of the expert's normalisation", own = true},
        has.norm and {"row_sums", "float", {"SLAB", 2, "WIDTH"}, "of what `through` sums over columns", own = true},
    }, {pairs = words "HK", row = "most(HK, GK)"})
end

-- Gradients of weights, and of biases: what a row of ones, or of affinities, gives. It follows the rows that are A of a product, or
-- is one itself. Gate and up have gradients of their own if they have tensors of their own.
local function gradients(has, X, spec)
    local P, dY, list = {"w->P", "PROWS"}, {"w->dY", "HK"}, {}
    local reads = {has.norm and "NORM_BACK" or "DOWN"}
    local function row(panel, i)
        return {("%s + %s * WIDTH"):format(panel[1], i), panel[2]}
    end
    local function add(name, k, columns, of, one, by, to, bias, bias_at)
        if has.transposed then
            list[#list + 1] = {name .. "_GRADIENT", gradient = {columns, k}, of = by, by = of, to = to, reads = reads}
            list[#list + 1] = bias and {name .. "_BIAS", gradient = {"1", columns}, of = row(of, one), by = by, to = bias, at = bias_at,
                reads = reads}
        else
            list[#list + 1] = {name .. "_GRADIENT", gradient = {k, columns}, of = of, by = by, to = to, bias = bias, bias_at = bias_at,
                reads = reads}
        end
    end
    if not has.gradients then
        return list
    end
    local first, second = stored.gate_up(spec)
    local bias_up, bias_down = has.bias_up and "gate_and_up_proj_bias_grad", has.bias_down and "down_proj_bias_grad"
    if second then
        add("GATE", "H", "I", X, "H", {"w->GU", "GK"}, first .. "_grad", bias_up, "w->expert * GATES * I")
        add("UP", "H", "I", X, "H", {"w->GU + UP * WIDTH", "GK"}, second .. "_grad", bias_up, "w->expert * GATES * I + I")
    else
        add("UP", "H", "GATES * I", X, "H", {"w->GU", "GK"}, first .. "_grad", bias_up)
    end
    add("DOWN", "I", "H", P, "I", dY, "down_proj_weight_grad", bias_down)
    return list
end

-- The first products again.
local function again(names, has, X, spec, layout)
    local by, first, second = names.dots and {"w->X_pairs", "HK / 2"} or X, stored.gate_up(spec)
    if not has.again then
        return {}
    elseif not second then
        return {{"GATE_UP", rows = "GATES * I", k = "H", weights = first, layout = layout, by = by, run = "gate_up_again"}}
    end
    return {{"GATE_AGAIN", rows = "I", k = "H", weights = first, layout = layout, by = by, run = "gate_again"},
        {"UP_AGAIN", rows = "I", k = "H", weights = second, layout = layout, by = by, run = "up_again", reads = {"GATHER"}}}
end

function work.phases(names, has, spec)
    local X = has.pre and {"w->scaled", "XROWS"} or {"w->X", "XROWS"}
    local forth, back = has.transposed and "k" or "n", has.transposed and "n" or "k"   -- as the products of the two ways see weights
    local first, second = stored.gate_up(spec)
    phases.add(names, plans.append({{"GATHER", parts = ("HK / %s"):format(names.dots and "DEPTH" or "LANES"), run = "gather_part"}},
        again(names, has, X, spec, forth), plans.list(
        has.norm and {"NORM", panels = true, run = "normalise"},
        {"DOWN", rows = "I", k = "H", weights = "down_proj_weight", layout = back,
            by = {names.pairs_of "w->dY", names.words "HK"}, run = "through_down",
            reads = second and has.again and {"GATE_AGAIN", "UP_AGAIN"} or nil},
        has.norm and {"NORM_BACK", panels = true, run = "through_norm"},
        {"TOKENS", rows = "H", k = second and "I" or "GATES * I", weights = first, layout = back,
            also = second and {second, ("%s + %s * WIDTH"):format(names.pairs_of "w->GU", names.words "UP")} or nil,
            by = {names.pairs_of "w->GU", names.words "GK"}, run = "token_gradients"},
        (has.post or has.pre) and {"AFFINITIES", panels = true, run = "affinity_gradients",
            reads = {has.pre and "TOKENS" or has.norm and "NORM_BACK" or "DOWN"}}),
        gradients(has, X, spec)))
end

return work
