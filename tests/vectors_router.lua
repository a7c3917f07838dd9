-- SPDX-License-Identifier: Apache-2.0
-- vectors_router.lua FOLDER - writes the router's cases of tests/vectors: what random inputs do not reach. Exact ties, logits
-- that are NaN or infinite, weights that one expert has almost alone. Computed here in float64, from SEMANTICS 5.
local folder = assert(arg[1], "usage: vectors_router.lua FOLDER")
local nan <const> = 0.0 / 0.0

-- Multiples of 1/64 in -scale .. scale: products of them are exact in f32.
local state = 7
local function random(scale)
    state = state * 16807 % 2147483647
    return (state * 2 * scale * 64 // 2147483647 - scale * 64) / 64
end

local function matrix(rows, columns, value)
    local m = {rows = rows, columns = columns}
    for i = 1, rows do
        m[i] = {}
        for j = 1, columns do
            m[i][j] = value(i, j)
        end
    end
    return m
end

-- tensors: {name, "F32" or "I32", matrix or list}
local function save(path, tensors)
    local head, data, at = {}, {}, 0
    for _, t in ipairs(tensors) do
        local x, first = t[3], at
        local shape = x.rows and ("%d,%d"):format(x.rows, x.columns) or ("%d"):format(#x)
        for _, row in ipairs(x.rows and x or {x}) do
            for _, v in ipairs(row) do
                data[#data + 1] = t[2] == "F32" and ("<f"):pack(v) or ("<i4"):pack(v)
                at = at + 4
            end
        end
        head[#head + 1] = ('"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}'):format(t[1], t[2], shape, first, at)
    end
    local text = "{" .. table.concat(head, ",") .. "}"
    text = text .. (" "):rep(-#text % 8)
    local f = assert(io.open(path, "wb"))
    f:write(("<I8"):pack(#text), text, table.concat(data))
    f:close()
end

local function write_case(name, spec, given, expected)
    local where = folder .. "/router-" .. name
    assert(os.execute("mkdir -p '" .. where .. "'"))
    local f = assert(io.open(where .. "/spec.yaml", "w"))
    f:write("kernel: router\n", spec)
    f:close()
    save(where .. "/in.safetensors", given)
    save(where .. "/expect.safetensors", expected)
end

-- ---- one token ----

local function sigmoid(x)
    return 1 / (1 + math.exp(-x))
end

-- By expert: weights before they are divided by their sum, of all experts (softmax_topk) or of the chosen; and that sum.
local function weights(method, logits, chosen)
    local over, most, sum, w = {}, -math.huge, 0, {}
    for i = 1, method == "softmax_topk" and #logits or #chosen do
        over[i] = method == "softmax_topk" and i or chosen[i]
        most = math.max(most, logits[over[i]])
    end
    for _, e in ipairs(over) do
        w[e] = method:find("sigmoid") and sigmoid(logits[e]) or math.exp(logits[e] - most)
        sum = sum + w[e]
    end
    return w, (method == "sigmoid_topk" or method == "topk_sigmoid") and 1 or sum
end

-- Experts (from 1) in falling order of logits, the lower first; NaN first, -infinity last.
local function best(logits, k)
    local order = {}
    for e, x in ipairs(logits) do
        order[e] = {e, x ~= x and math.huge or x > -3.4e38 and x or -3.4e38}
    end
    table.sort(order, function(a, b) return a[2] > b[2] or a[2] == b[2] and a[1] < b[1] end)
    local chosen = {}
    for j = 1, k do
        chosen[j] = order[j][1]
    end
    return chosen
end

-- What remains of logits (with what is `added`) where only the best groups' experts can be chosen: others are filled. groups: count,
-- keep, of_two, fill
local function of_groups(logits, added, groups)
    local ranks, scores, size = {}, {}, #logits // groups.count
    for e, x in ipairs(logits) do
        ranks[e] = x + added[e]
    end
    for g = 1, groups.count do
        local own = table.move(ranks, (g - 1) * size + 1, g * size, 1, {})
        local order = best(own, groups.of_two and 2 or 1)
        scores[g] = own[order[1]] + (groups.of_two and own[order[2]] or 0)
    end
    local stays = {}
    for _, g in ipairs(best(scores, groups.keep)) do
        stays[g] = true
    end
    for e = 1, #ranks do
        ranks[e] = stays[(e - 1) // size + 1] and ranks[e] or groups.fill
    end
    return ranks
end

-- ---- forward ----

-- has: H, E, k, T, method, x and weight (functions of the place), bias (list), logits (whether they are compared); groups, added
-- (list, a correction bias) and more (of the spec), or none of the three
local function forward(name, has)
    local x, g = matrix(has.T, has.H, has.x), matrix(has.H, has.E, has.weight)
    local logits = matrix(has.T, has.E, function(t, e)
        local sum = has.bias[e]
        for h = 1, has.H do
            sum = sum + x[t][h] * g[h][e]
        end
        return sum
    end)
    local index, top = matrix(has.T, has.k, function() return 0 end), matrix(has.T, has.k, function() return 0 end)
    local all = matrix(has.T, has.E, function() return 0 end)
    for t = 1, has.T do
        local chosen = best(has.groups and of_groups(logits[t], has.added, has.groups) or logits[t], has.k)
        local w, sum = weights(has.method, logits[t], chosen)
        local sound = true   -- no NaN, no infinity: the weights are defined
        for e = 1, has.E do
            sound = sound and logits[t][e] < math.huge
        end
        for j, e in ipairs(chosen) do
            index[t][j], top[t][j] = e - 1, sound and w[e] / sum or nan
            all[t][e] = top[t][j]
        end
    end
    local expected = {{"expert_index", "I32", index}, {"expert_affinities", "F32", all}, {"topk_weights", "F32", top}}
    if has.logits then
        expected[4] = {"logits", "F32", logits}
    end
    write_case(name, ("op: forward\ndtype: f32\nH: %d\nE: %d\ntop_k: %d\nmethod: %s\nbias: true\n%s"):format(has.H, has.E, has.k,
        has.method, has.more or ""), {{"hidden_states", "F32", x}, {"router_weight", "F32", g}, {"router_bias", "F32", has.bias},
            has.added and {"correction_bias", "F32", has.added}}, expected)
end

-- Experts 4, 8 and 12 are alike, as are 2 and 3; all logits are negative.
local same <const> = {[8] = 4, [12] = 4, [3] = 2}
for _, method in ipairs{"topk_softmax", "sigmoid_topk"} do
    local columns = matrix(12, 24, function() return random(0.5) end)
    local bias = {}
    for e = 1, 12 do
        bias[e] = -6 - (same[e] or e) / 64
    end
    forward("ties-" .. method, {H = 24, E = 12, k = 5, T = 19, method = method, logits = true, bias = bias,
        x = function() return random(0.5) end, weight = function(h, e) return columns[same[e] or e][h] end})
end

-- Two experts are masked, and more are chosen than are left; a token holds NaN, another infinity.
for _, method in ipairs{"softmax_topk", "softmax_topk_renorm", "sigmoid_topk_renorm"} do
    local bias = {0.5, -math.huge, 0.25, -math.huge, 0}
    forward("masked-" .. method, {H = 16, E = 5, k = 4, T = 11, method = method, bias = bias,
        x = function(t, h) return t == 3 and h == 5 and nan or t == 6 and h == 2 and math.huge or random(1) end,
        weight = function(h, e) return h == 2 and (e % 2 == 0 and -1 or 1) or random(1) end})
end

-- ---- backward ----

-- has: H, E, k, T, method (one that divides by a sum), logits (function of the place)
local function backward(name, has)
    local x, g = matrix(has.T, has.H, function() return random(1) end), matrix(has.H, has.E, function() return random(1) end)
    local logits, dy = matrix(has.T, has.E, has.logits), matrix(has.T, has.E, function() return random(1) end)
    local index = matrix(has.T, has.k, function() return 0 end)
    local dL = matrix(has.T, has.E, function() return 0 end)
    for t = 1, has.T do
        local chosen = best(logits[t], has.k)
        local w, sum = weights(has.method, logits[t], chosen)
        local d = {}
        for j, e in ipairs(chosen) do
            index[t][j], d[e] = e - 1, dy[t][e]
        end
        for e = 1, has.E do
            local beyond = 0   -- d - mean of d, term by term: nothing cancels
            for i = 1, has.E do
                beyond = beyond + (i ~= e and w[i] or 0) * ((d[e] or 0) - (d[i] or 0)) / sum
            end
            local slope = has.method:find("sigmoid") and 1 - sigmoid(logits[t][e]) or 1
            dL[t][e] = (w[e] or 0) / sum * slope * beyond
        end
    end
    local dx = matrix(has.T, has.H, function(t, h)
        local total = 0
        for e = 1, has.E do
            total = total + dL[t][e] * g[h][e]
        end
        return total
    end)
    local dg = matrix(has.H, has.E, function(h, e)
        local total = 0
        for t = 1, has.T do
            total = total + x[t][h] * dL[t][e]
        end
        return total
    end)
    write_case(name, ("op: backward\ndtype: f32\nH: %d\nE: %d\ntop_k: %d\nmethod: %s\n"):format(has.H, has.E, has.k, has.method),
        {{"hidden_states", "F32", x}, {"router_weight", "F32", g}, {"logits", "F32", logits}, {"expert_index", "I32", index},
            {"expert_affinities_grad", "F32", dy}}, {{"hidden_states_grad", "F32", dx}, {"router_weight_grad", "F32", dg}})
end

-- One expert has almost all of the weight.
local function alone(t, e)
    return e == t % 6 + 1 and 12 or random(2)
end
for _, method in ipairs{"softmax_topk", "softmax_topk_renorm", "topk_softmax"} do
    state = 11   -- the last two are one function: the same inputs, the same results
    backward("alone-" .. method, {H = 16, E = 6, k = 3, T = 9, method = method, logits = alone})
end
-- Sigmoids that are less than any f32.
backward("far-sigmoid_topk_renorm", {H = 16, E = 6, k = 3, T = 9, method = "sigmoid_topk_renorm",
    logits = function() return random(2) - 120 end})

-- ---- forward, of groups ----

-- Groups of four: the third is like the first, of the second all but one are masked; a token holds NaN. One group's experts fill the
-- others' places if there are no better ones.
state = 13
for _, fill in ipairs{"minus_infinity", "zero"} do
    local columns = matrix(16, 8, function() return random(0.5) end)
    local like = {[9] = 1, [10] = 2, [11] = 3, [12] = 4}
    local bias, added = {}, {}
    for e = 1, 16 do
        bias[e] = e > 4 and e < 8 and -math.huge or (fill == "zero" and -2 or 0.25)
        added[e] = ((like[e] or e) * 5 % 7) / 64
    end
    forward("groups-" .. fill, {H = 8, E = 16, k = 5, T = 37, method = "topk_softmax", logits = true, bias = bias, added = added,
        groups = {count = 4, keep = 2, of_two = fill == "zero", fill = fill == "zero" and 0 or -math.huge},
        more = ("correction_bias: true\ngroups: {count: 4, keep: 2, score: %s, fill: %s}\n"):format(fill == "zero" and "top2_sum" or "max",
            fill),
        x = function(t, h) return t == 3 and h == 5 and nan or random(0.5) end,
        weight = function(h, e) return columns[like[e] or e][h] end})
end
