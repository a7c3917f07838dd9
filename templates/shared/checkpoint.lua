-- SPDX-License-Identifier: Apache-2.0
-- checkpoint.lua - the keys `tensors` and `layer`: under which names a checkpoint holds what kernels take. Programs read tensors by
-- them; a kernel does not depend on them.
local types = require("schema").types

local checkpoint = {}

local bool, either, int, map, str = types.bool, types.either, types.int, types.map, types.str

-- each: experts may have tensors of their own
local parameters = {
    {name = "router_weight"}, {name = "router_bias"}, {name = "correction_bias"},
    {name = "gate_up_proj_weight", each = true}, {name = "gate_proj_weight", each = true}, {name = "up_proj_weight", each = true},
    {name = "down_proj_weight", each = true},
    {name = "gate_up_proj_scale", each = true}, {name = "gate_proj_scale", each = true}, {name = "up_proj_scale", each = true},
    {name = "down_proj_scale", each = true},
    {name = "gate_and_up_proj_bias", each = true}, {name = "down_proj_bias", each = true},
    {name = "norm_weight", each = true}, {name = "norm_bias", each = true},
    {name = "shared_gate_up_proj_weight"}, {name = "shared_gate_proj_weight"}, {name = "shared_up_proj_weight"},
    {name = "shared_down_proj_weight"}, {name = "shared_gate_weight"},
    {name = "shared_gate_up_proj_scale"}, {name = "shared_gate_proj_scale"}, {name = "shared_up_proj_scale"},
    {name = "shared_down_proj_scale"},
}

-- A name alone, or with what is to be done to the tensor.
local name = str("^%S+$", "a name without spaces")
local entry = either(name, map{
    {"name", name, doc = "with {layer}, and {expert} if each expert has a tensor of its own"},
    {"transposed", bool(), default = false, doc = "the checkpoint has rows for columns"}})

local function normal(v)
    return type(v) == "string" and {name = v, transposed = false} or v
end

local rows = {}
for i, one in ipairs(parameters) do
    rows[i] = {one.name, entry, optional = true, unlisted = true, into = normal, doc = "its name in a checkpoint"}
end

checkpoint.keys = {
    {"tensors", map(rows), doc = "names of parameters in a checkpoint, for programs that read one"},
    {"layer", int(0, 1 << 20), optional = true, doc = "what {layer} in these names stands for"},
}

-- How often a word stands in braces in a parameter's name; "": any word.
local function count(s, one, word)
    local found = s.tensors[one.name]
    local _, n = (found and found.name or ""):gsub(word == "" and "[{}]" or "{" .. word .. "}", "")
    return n
end

checkpoint.rules = {}
for _, one in ipairs(parameters) do
    local path = "tensors." .. one.name
    local function rule(holds, sentence)
        table.insert(checkpoint.rules, {path, holds, "{" .. path .. ".name} " .. sentence})
    end
    rule(function(s) return count(s, one, "") == 2 * (count(s, one, "layer") + count(s, one, "expert")) end,
        "has braces around another word than layer or expert")
    rule(function(s) return s.layer or count(s, one, "layer") == 0 end, "needs the key layer")
    rule(function(s) return count(s, one, "expert") <= (one.each and 1 or 0) end,
        one.each and "names the expert twice" or "names an expert, and is of none")
end

return checkpoint
