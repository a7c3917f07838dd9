-- SPDX-License-Identifier: Apache-2.0
-- work.lua - what a call of an MLP family keeps, see workspace.lua, and what its tokens go through, see phases.lua.
local activations = require "codes.activations"
local args = require "mlp.args"
local phases = require "product.phases"
local plans = require "shared.plans"
local space = require "product.space"
local stored = require "shared.stored"

local work = {}

-- Parts of the rows of panels over H.
local function gather(names)
    return {"GATHER", parts = "H_DEEP / " .. names.gathered, run = "gather_part"}
end

-- Room of a rank for the weights of a chunk, quantised.
local function quantised_weights(names)
    return {"quantised", names.io, {"MC", "Q_COLUMNS"}, "weights at work", own = true}
end

function work.forward(names, spec)
    local words, q = names.words, names.quantised
    local x, p = activations.factor(names, "X", words "HK", "H_ROWS"), activations.factor(names, "P", words "IK", "I_ROWS")
    local quantises, quantises_hidden = activations.phases(names)
    names.token_rows_too = q and not names.given.hidden_states
    phases.add(names, {
        gather(names),
        names.token_rows_too and {"TOKEN_ROWS", panels = true, run = "token_rows"},
        quantises,
        stored.gate_up_product(spec, {"HIDDEN", by = x, run = "hidden_rows"}),
        q and {"HIDDEN_ROWS", panels = true, run = "product_rows"},
        quantises_hidden,
        {"OUTPUT", rows = "H", k = "I", weights = "down_proj_weight", layout = "k", by = p, run = "output_columns"},
    })
end

function work.forward_space(names, spec, save)
    local by_block = "[panels][MC][WIDTH]"
    space.rows(names, plans.append(activations.space(names, names.panel_c, "HK", "what the second product sees"), plans.list(
        spec.gated and (save or not names.in_turn) and {"G", "float", {"columns", "MC"}, "sums of the gate", own = true, shape = by_block},
        save and spec.gated and {"act", "float", {"columns", "MC"}, "act(gate)", own = true, shape = by_block},
        save and names.dots and names.hidden == "P" and {"kept", "float", {"columns", "MC"}, "P in f32", own = true, shape = by_block},
        names.quantised and quantised_weights(names))), {})
end

-- Gate and up that the caller did not keep; in turn both, if there is one that he did not.
local function again(names, first, second, by, tokens)
    local function product(name, rows, from, weights, run)
        return {name, rows = rows, all = second and "I" or "GATES * I", from = from, k = "H", weights = weights, layout = "k", by = by,
            run = run, reads = {tokens}}
    end
    if second then
        return {product("GATE_AGAIN", "gate_rows(w)", nil, first, "gate_again"), product("UP_AGAIN", "up_rows(w)", nil, second, "up_again")}
    end
    return {product("GATE_UP", "rows_again(w)", not names.in_turn and "first_again(w)" or nil, first, "gate_up_again")}
end

-- Of weights, which lie as these do.
local function gradients(names, first, second, reads)
    local X, P, dY = {"w->X", "HK"}, {"w->P", "IK"}, {"w->dY", "HK"}
    local function row(name, rows, columns, of, by, tensor)
        return {name .. "_GRADIENT", gradient = {rows, columns}, of = of, by = by, to = args.gradient(tensor), reads = reads}
    end
    if not names.weight_gradients then
        return {}
    end
    local list = second and {row("GATE", "I", "H", {"w->GU", "GK"}, X, first),
        row("UP", "I", "H", {"w->GU + UP * WIDTH", "GK"}, X, second)} or {row("UP", "GATES * I", "H", {"w->GU", "GK"}, X, first)}
    return plans.append(list, {row("DOWN", "H", "I", dY, P, "down_proj_weight")})
end

-- The factors of products over rows and over tokens are the same panels, unless they are quantised: these are rounded along tokens, and
-- their copies along rows, in a phase before each product that reads them.
function work.backward(names, spec)
    local dots, words, all, q = names.dots, names.words, names.weight_gradients, names.quantised
    names.factor = q and not dots and function(panel) return panel .. "_rows" end or names.pairs_of
    local factor = names.factor
    local rows_too = q and not (dots and names.given.hidden_states and names.given.output_hidden_states_grad)
    local tokens = rows_too and "TOKEN_ROWS" or "GATHER"   -- from here on products may read them
    names.token_rows_too = rows_too
    local first, second = stored.gate_up(spec)
    local before = again(names, first, second, {factor "w->X", words "HK"}, tokens)
    local all_of_both = {tokens}   -- all of gate and up may have been kept
    for _, row in ipairs(before) do
        all_of_both[#all_of_both + 1] = row[1]
    end
    phases.add(names, plans.append(plans.list(
        gather(names),
        rows_too and {"TOKEN_ROWS", panels = true, run = "token_rows"},
        q and all and {"TOKEN_COLUMNS", parts = "H", run = "token_columns"}), before, plans.list(
        {"DOWN", rows = "I", k = "H", weights = "down_proj_weight", layout = "n", by = {factor "w->dY", words "HK"},
            run = "through_down", reads = all_of_both},
        q and {"PRODUCT_ROWS", panels = true, run = "product_rows"},
        q and all and {"PRODUCT_COLUMNS", parts = "I", run = "product_columns"},
        {"TOKENS", rows = "H", k = second and "I" or "GATES * I", weights = first, layout = "n", whole = "I",
            by = {factor "w->GU", words "GK"}, run = "token_gradients", reads = {q and "PRODUCT_ROWS" or "DOWN"},
            also = second and {second, ("%s + %s * %s"):format(factor "w->GU", words "UP", names.nr)} or nil}),
        gradients(names, first, second, q and {"TOKEN_COLUMNS", "PRODUCT_COLUMNS"} or {"DOWN"})))
end

function work.backward_space(names)
    local io, dots, copied = names.panel_c, names.dots, names.quantised and not names.dots
    space.rows(names, {
        {"X", io, {"HK"}, "hidden states", of = "columns"},
        {"P", io, {"IK"}, "what the second product sees", of = "columns"},
        {"dY", io, {"HK"}, "gradients of the output", of = "columns"},
        {"GU", io, {"GK"}, "gate and up; then their gradients", of = "columns"},
        dots and space.pairs(names, "X", "HK"),
        dots and space.pairs(names, "dY", "HK"),
        dots and space.pairs(names, "GU", "GK"),
        copied and {"X_rows", "float", {"HK"}, "X, quantised along rows", of = "columns"},
        copied and {"dY_rows", "float", {"HK"}, "dY, quantised along rows", of = "columns"},
        copied and {"GU_rows", "float", {"GK"}, "GU, quantised along rows", of = "columns"},
        names.quantised and quantised_weights(names),
        dots and {"seen", "float", {"GK"}, "gate and up as the activation saw them", of = "columns"},
        names.weight_gradients and {"held", "float", {names.phases.held}, "gradients of weights, over the segments",
            when = "rows > PASS_ROWS", shape = ""},
    }, {pairs = names.crosses and "(HK + CHUNK_ROWS) / 2" or "CHUNK_ROWS / 2", row = "most(HK, IK)"})
end

return work
