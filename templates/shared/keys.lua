-- SPDX-License-Identifier: Apache-2.0
-- keys.lua - rows of the spec language that several families share.
local t = require("schema").types
local activation = require "math.activation"
local planner = require "planner"
local plans = require "shared.plans"
local dtype = require "dtype"
local formats = require "tiles.formats"

local int, num, bool, enum, map, range, either = t.int, t.num, t.bool, t.enum, t.map, t.range, t.either

local keys = {}

keys.dtypes = {also = {}, table.unpack(formats.numbers)}
for name, row in pairs(dtype) do
    for _, other in ipairs(row.also) do
        keys.dtypes.also[other] = name
    end
end

local function target_names()
    local names = {"auto", "scalar"}
    for _, isa in ipairs(planner.targets()) do
        names[#names + 1] = isa.name
    end
    return names
end

local gate_range, up_range = {"gate", range(), optional = true}, {"up", range(), optional = true}

local row = {
    dtype = {"dtype", enum(keys.dtypes), doc = "of hidden states, weights and what follows them"},
    H = {"H", int(1, 1 << 20), doc = "hidden size"},
    I_TP = {"I_TP", int(1, 1 << 20), doc = "intermediate size / tensor-parallel degree"},
    E = {"E", int(1, 65536), doc = "experts"},
    top_k = {"top_k", int(1, 65536), default = 1, doc = "experts of one token"},
    block_size = {"block_size", int(1, 1 << 20), doc = "token slots of a block"},
    T = {"T", int(1, 1 << 40), optional = true, doc = "tokens, when fixed at generation time"},
    N_blocks = {"N_blocks", int(1, 1 << 40), optional = true, doc = "blocks, when fixed at generation time"},
    activation = {"activation", enum(activation.order, {what = "activations"}), default = "silu", doc = "of the gate"},
    gated = {"gated", bool(), default = true, doc = "act(gate) * up; false: act(up)"},
    affinity = {"affinity", map{
        {"scale", enum{"post", "pre", "none"}, default = "post", doc = "where the affinity multiplies"},
        {"on", enum{"hidden", "intermediate"}, default = "hidden", doc = "which activations `post` multiplies"}}},
    bias = {"bias", either(bool(), map{{"gate_up", bool(), default = false}, {"down", bool(), default = false}}),
        default = false, doc = "biases of the projections", into = function(v)
            return type(v) == "boolean" and {gate_up = v, down = v} or v
        end},
    clamp = {"clamp", map{gate_range, up_range}, doc = "[lo, hi] of gate and up before the activation; null is open"},
    expert_clamp = {"clamp", map{gate_range, up_range,
        {"activated", num(), optional = true, doc = "what the activation gives at most; where it gives more it has no slope"}},
        doc = "[lo, hi] of gate and up before the activation; null is open"},
    up_offset = {"up_offset", num(), default = 0.0, doc = "added to up after the clamp"},
    norm = {"norm", enum{"none", "layer"}, default = "none",
        doc = "layer: an expert is a Linear, a LayerNorm over its columns, the activation and a Linear"},
    norm_eps = {"norm_eps", num(0.0), default = 1e-5, doc = "added to the variance"},
    post_norm = {"post_norm", map{{"eps", num(0.0), doc = "added to the mean of squares"}}, optional = true,
        doc = "what an expert gave times the parameter post_norm_weight counts divided by sqrt(mean of its squares + eps)"},
    affinities = {"affinities", enum{"dense", "slots"}, default = "dense",
        doc = "what there is one of: each token and expert, or each slot of token_position_to_id"},
    rounded_later = {"rounded_later", bool(), optional = true,
        doc = "rows of tokens in f32, output or gradient, are parts of sums that are rounded to dtype: they need not be better than it"},
    skip_token = {"skip_token", bool(), default = false, doc = "padding id is -1 and there is no padding row"},
    dropping = {"dropping", bool(), default = false, doc = "block n belongs to expert n, block_size is the capacity"},
    affinity_dtype = {"affinity_dtype", enum(keys.dtypes), default_of = "dtype", doc = "of the affinities and their gradients"},
    bias_dtype = {"bias_dtype", enum(keys.dtypes), default_of = "dtype", doc = "of the biases"},
    shard = {"shard", map{
        {"on", enum{"auto", "hidden", "block", "intermediate"}, default = "hidden", doc = "what the ranks of a team share out"},
        {"strategy", enum{"ping_pong", "hi_lo"}, default = "ping_pong", doc = "either: consecutive blocks, then ranks help each other"},
        {"cores", either(enum{"auto"}, int(1, 1024)), default = "auto",
            doc = "threads of a call that asks for none; with on: intermediate also parts, which the result depends on"}}},
    aux_loss = {"aux_loss", map{
        {"load_balance", num(), optional = true, doc = "coefficient of the load balancing loss"},
        {"z", num(), optional = true, doc = "coefficient of the z-loss"},
        {"per", enum{"tokens_and_choices", "tokens"}, default = "tokens_and_choices",
            doc = "what load_balance divides an expert's tokens by: T * top_k (Switch, GShard), or T (Hugging Face: top_k times larger)"}},
        doc = "auxiliary losses"},
    target = {"target", enum(target_names()), default = "auto", doc = "instruction set"},
    spelling = {"spelling", enum{"auto", "bytes", "intrinsics", "scalar"}, default = "auto", doc = "what a tile is printed as"},
}

-- Rules of several families.
local rule = {}

rule.top_k = {{"top_k", function(s) return s.top_k <= s.E end, "{top_k} is more than the number of experts, {E}"}}

rule.gated = {{"gated", function(s) return s.gated or not (s.clamp and s.clamp.gate) end, "{gated} leaves no gate to clamp"}}

rule.accumulate_grads = {{"accumulate_grads", function(s) return s.weight_grads == "all" or not s.accumulate_grads end,
    "{accumulate_grads} leaves nothing for {weight_grads}"}}

rule.aux_loss = {{"aux_loss.per", function(s) return s.aux_loss.load_balance or s.aux_loss.per == "tokens_and_choices" end,
    "{aux_loss.per} is about load_balance, which is not there"}}

-- What a spec with `norm: layer` may not have beside it.
rule.norm = plans.where(function(s) return s.norm ~= "none" end, {
    {"norm", function(s) return not s.gated end, "{norm} needs gated = false, here {gated}"},
    {"norm", function(s) return not (s.clamp and s.clamp.up) end, "{norm} leaves nothing to clamp"},
    {"clamp.activated", function(s) return not (s.clamp and s.clamp.activated) end,
        "{clamp.activated} is not supported yet beside {norm}"},
    {"norm", function(s) return s.up_offset == 0 end, "{norm} leaves no place for {up_offset}"},
    {"norm", function(s) return s.shard.on ~= "intermediate" end, "{norm} is over all columns: {shard.on} would share them out"},
})

-- What a spec with `post_norm` may not have beside it: the affinity multiplies what is normalised, and the way back needs what that was.
rule.post_norm = plans.where(function(s) return s.post_norm end, {
    {"norm", function(s) return s.norm == "none" end, "{norm} is not supported yet beside {post_norm.eps}"},
    {"affinity.scale", function(s) return s.affinity.scale == "post" end,
        "{affinity.scale} leaves nothing to multiply behind the norm, {post_norm.eps}"},
    {"affinity.on", function(s) return s.affinity.on == "hidden" end,
        "{affinity.on} comes before the norm, {post_norm.eps}, which would undo it"},
    {"shard.on", function(s) return s.shard.on ~= "intermediate" end,
        "{shard.on} adds up what an expert gives in parts: {post_norm.eps} is of all of it"},
    {"checkpoint", function(s) return s.checkpoint ~= "recompute" end,
        "{checkpoint} leaves no rows that experts gave: {post_norm.eps} needs them"},
})

-- What these names stand for in `of`; a table is one of its own, or a list of them.
local function gather(list, of)
    local out = {}
    for _, name in ipairs(list) do
        local one = type(name) == "table" and name or assert(of[name], name)
        plans.append(out, type(one[1]) == "table" and one or {one})
    end
    return out
end

-- The rows with these names; a table is a row of its own, or a list of rows.
function keys.rows(list)
    return gather(list, row)
end

-- The rules of these names; a table is a rule of its own, or a list of rules.
function keys.rules(list)
    return gather(list, rule)
end

-- Keys of several planners: a number may be what any of them takes.
function keys.of_plans(...)
    local list, known = {}, {}
    for _, rows in ipairs{...} do
        for _, one in ipairs(rows) do
            local at = known[one[1]] or #list + 1
            local before = list[at]
            known[one[1]] = at
            list[at] = before or one
            if before and one[2].kind == "int" then
                local lo, hi = math.min(before[2].lo, one[2].lo), math.max(before[2].hi, one[2].hi)
                list[at] = {one[1], int(lo, hi), optional = true, doc = before.doc}
            end
        end
    end
    return list
end

keys.types = t
return keys
