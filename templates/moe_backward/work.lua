-- SPDX-License-Identifier: Apache-2.0
-- work.lua - what a call of moe_backward keeps, see workspace.lua, and what its segments go through, see phases.lua.
local phases = require "product.phases"
local plans = require "shared.plans"
local space = require "product.space"
local stored = require "shared.stored"

local work = {}

-- names: what panels.lua adds; has: see plan.lua; types: C types: bias, sum of what hidden states' gradients are
function work.space(names, has)
    local io, dots = names.panel_c, names.dots
    return space.rows(names, {
        {"id", "int32_t", {"rows"}, "token of a row"},
        {"slot", "int64_t", {"rows"}, "its place in token_position_to_id"},
        {"X", io, {"XROWS"}, "hidden states; row H: ones", of = "columns"},
        has.pre and {"scaled", "float", {"XROWS"}, "the same times the affinities", of = "columns"},
        {"dY", io, {"HK"}, "gradients of the output", of = "columns"},
        {"GU", io, {"GK"}, "gate and up; then their gradients", of = "columns"},
        dots and space.pairs(names, "dY", "HK"),
        dots and space.pairs(names, "GU", "GK"),
        dots and has.again and space.pairs(names, "X", "HK"),
        dots and has.again and {"seen", "float", {"GK"}, "gate and up as the activation saw them", of = "columns"},
        {"P", io, {"PROWS"}, "what the second product saw; row I: affinities", of = "columns"},
        (has.affinity_sums or has.pre) and {"partial", "float", {"PARTIALS"}, "parts of the affinities' gradients", of = "columns",
            shape = "[PARTIALS][columns]"},
        has.norm and {"factor", "float", {1}, "1 / deviation of gate and up", of = "columns", shape = "[columns]"},
        has.norm and {"dN", "float", {"I"}, "gradients of normalised rows, times weight plus bias", of = "columns"},
        has.norm and {"back", "float", {"PARTIALS", 2}, "sums of them", of = "columns", shape = "[vectors of I][panels][2][WIDTH]"},
        has.norm and has.gradients and {"dnorm", "float", {"I", 2}, "gradients of weight and bias, over the parts of an expert"},
        {"Y", "float", {"w->columns", "SUM_LD"}, "what each row adds to the gradients of hidden states", when = "apart(w)",
            shape = "[columns][SUM_LD]"},
        has.gradients and {"held", "float", {names.phases.held}, "gradients of an expert's weights, over its parts",
            when = "rows > PASS_ROWS", shape = ""},
        has.post_norm and {"stat", "float", {"rows", 4}, "of a row's norm: f, f * f * da / H, a, da"},
        has.post_norm and has.gradients and {"weight_sums", "float", {2, "H"}, "gradients of the norm's weight", own = true},
        names.dy.decode and {"dy", names.dy.to.c, {"H"}, "gradients of a token's output", own = true},
        names.narrow_dx and {"sum", "float", {"tokens(w->args->T)", "SUM_LD"}, "gradients of hidden states"},
        {"at", "int64_t", {"columns"}, "row of a column, or -1", own = true},
        {"out", "float *", {"columns + LANES"}, "where the gradient of its hidden state is summed", own = true},
        {"a", "float", {"columns"}, "affinity", own = true},
        {"nowhere", "float", {"H"}, "where columns without a token are added", own = true},
        has.norm and {"norm", "float", {"I", 2}, "weight and bias of the expert's normalisation", own = true},
        has.norm and {"row_sums", "float", {"CHUNK_ROWS", 2, "WIDTH"}, "of what `through` sums over columns", own = true},
        names.copies and has.again and {"X_rows", "float", {"HK"}, "what the experts saw, quantised along rows", of = "columns"},
        names.copies and {"dY_rows", "float", {"HK"}, "dY, quantised along rows", of = "columns"},
        names.copies and {"GU_rows", "float", {"GK"}, "GU, quantised along rows", of = "columns"},
        names.quantised and {"quantised", names.io, {"MC", "Q_COLUMNS"}, "weights at work", own = true},
    }, {pairs = names.words "HK", row = "most(HK, GK)"})
end

-- Gradients of weights, and of biases: what a row of ones, or of affinities, gives. It follows the rows that are A of a product, or
-- is one itself. Gate and up have gradients of their own if they have tensors of their own. Second result: phases of biases alone, which
-- read panels before they are quantised along tokens.
local function gradients(names, has, X, spec)
    local P, dY, list, biases = {"w->P", "PROWS"}, {"w->dY", "HK"}, {}, {}
    local done = {has.norm and "NORM_BACK" or "DOWN"}
    local reads = names.padded and {"TOKEN_COLUMNS", "PRODUCT_COLUMNS"} or done
    local function row(panel, i)
        return {("%s + %s * WIDTH"):format(panel[1], i), panel[2]}
    end
    local function add(name, k, columns, of, one, by, to, bias, bias_at)
        local apart = has.transposed or names.padded
        list[#list + 1] = {name .. "_GRADIENT", gradient = has.transposed and {columns, k} or {k, columns},
            of = has.transposed and by or of, by = has.transposed and of or by, to = to, reads = reads,
            bias = not apart and bias or nil, bias_at = not apart and bias_at or nil}
        if apart and bias then
            local to_list = names.padded and biases or list
            to_list[#to_list + 1] = {name .. "_BIAS", gradient = {"1", columns}, of = row(of, one), by = by, to = bias, at = bias_at,
                reads = done}
        end
    end
    if not has.gradients then
        return list, biases
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
    return list, biases
end

-- The first products again, of the panels `by`; `tokens` is the phase after which products may read tokens.
local function again(has, by, spec, layout, tokens)
    local first, second = stored.gate_up(spec)
    local function product(name, rows, weights, run, reads)
        return {name, rows = rows, k = "H", weights = weights, layout = layout, by = by, ordered = has.in_words, run = run, reads = reads}
    end
    return not has.again and {} or not second and {product("GATE_UP", "GATES * I", first, "gate_up_again")}
        or {product("GATE_AGAIN", "I", first, "gate_again"), product("UP_AGAIN", "I", second, "up_again", {tokens})}
end

-- Adds the names of rounded.c.in, and of copies that products over rows read because their panels are quantised along tokens. Returns
-- the panels of what the experts saw, as these products read them.
local function rounded(names, has, X)
    local q, dots, words = names.quantised, names.dots, names.words
    names.copies = names.padded and not dots
    names.factor = names.copies and function(panel) return panel .. "_rows" end or names.pairs_of
    local by = dots and {"w->X_pairs", words "HK"} or names.copies and {"w->X_rows", "HK"} or X
    local dY = {names.pairs_of "w->dY", words "HK"}
    local x, dy = names.given.hidden_states and not has.pre, names.given.output_hidden_states_grad ~= nil
    names.operands_of = plans.list(
        has.again and (names.copies or not x) and {by[1], by[2], dots and by[1] or X[1], dots and by[2] or X[2], given = x},
        (names.copies or not dy) and {names.factor "w->dY", dY[2], dY[1], dY[2], given = dy})
    names.moves = names.copies and (has.again and x or dy)
    local separate = has.separate
    names.copied = not names.copies and {} or plans.list(
        has.again and {name = "X_rows", rows = "HK", parts = {"0"}, deep = "H_DEEP", used = "H"},
        {name = "dY_rows", rows = "HK", parts = {"0"}, deep = "H_DEEP", used = "H"},
        {name = "GU_rows", rows = "GK", parts = separate and {"0", "UP"} or {"0"}, deep = separate and "UP" or "G_DEEP",
            used = separate and "I" or "GATES * I"})
    return by, q and #names.operands_of > 0 and "TOKEN_ROWS" or "GATHER"
end

function work.phases(names, has, spec)
    local X = has.pre and {"w->scaled", "XROWS"} or {"w->X", "XROWS"}
    local first, second = stored.gate_up(spec)
    local by, tokens = rounded(names, has, X)
    local q, factor, columns = names.quantised, names.factor, names.padded
    local weights, biases = gradients(names, has, X, spec)
    local before = {"DOWN"}   -- columns are quantised
    for i, row in ipairs(biases) do
        before[i] = row[1]
    end
    phases.add(names, plans.append({{"GATHER", parts = "H_DEEP / " .. names.gathered, run = "gather_part"},
        tokens == "TOKEN_ROWS" and {tokens, panels = true, run = "token_rows"} or nil},
        again(has, by, spec, names.forth, tokens), plans.list(
        has.norm and {"NORM", panels = true, run = "normalise"},
        {"DOWN", rows = "I", k = "H", weights = "down_proj_weight", layout = names.back,
            by = {factor "w->dY", names.words "HK"}, run = "through_down",
            reads = second and has.again and {"GATE_AGAIN", "UP_AGAIN"} or nil},
        has.norm and {"NORM_BACK", panels = true, run = "through_norm"}), biases, plans.list(
        q and {"PRODUCT_ROWS", panels = true, run = "product_rows", reads = {"DOWN"}},
        columns and {"TOKEN_COLUMNS", parts = "H", run = "token_columns", reads = before},
        columns and {"PRODUCT_COLUMNS", parts = "I", run = "product_columns", reads = plans.append({"PRODUCT_ROWS"}, before)},
        {"TOKENS", rows = "H", k = second and "I" or "GATES * I", weights = first, layout = names.back, whole = "I", ordered = has.in_words,
            also = second and {second, ("%s + %s * %s"):format(factor "w->GU", names.words "UP", names.nr)} or nil,
            by = {factor "w->GU", names.words "GK"}, run = "token_gradients", reads = q and {"PRODUCT_ROWS"} or nil},
        (has.post or has.pre) and {"AFFINITIES", panels = true, run = "affinity_gradients",
            reads = {has.pre and "TOKENS" or has.norm and "NORM_BACK" or "DOWN"}}),
        weights))
end

return work
