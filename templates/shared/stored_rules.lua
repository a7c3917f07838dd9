-- SPDX-License-Identifier: Apache-2.0
-- stored_rules.lua - what of the key `weights` a family takes, and which of its values go together.
local formats = require "tiles.formats"
local packed = require "packed.form"
local plans = require "shared.plans"
local stored = require "shared.stored"

local stored_rules = {}

-- Values of keys, see stored_rules.of. rule: adds one, of a key of `weights`
local function taken(rule, takes, never)
    local function only(key, default)
        local values = {table.unpack(takes[key] or {})}
        values[#values + 1] = default
        rule(key, function(s)
            local value = s.weights[key]
            for _, one in ipairs(values) do
                if value == one then
                    return true
                end
            end
            return value == nil or key == "dtype" and value == s.dtype
        end, never[key] or "is not supported yet"
            .. (values[1] and "; only " .. table.concat(values, ", ") or ": weights are of {dtype}"))
    end
    only("dtype")
    only("scale", "row")
    only("layout", "plain")
    only("gate_up_order", "split")
    only("gate_up", "joined")
    only("experts", "joined")
end

-- Which of these go together.
local function together(rule, takes, never)
    rule("gate_up_order", function(s) return s.weights.gate_up_order == "split" or s.weights.gate_up == "joined" end,
        "is about one tensor of gate and up, here {weights.gate_up}")
    rule("group", function(s) return takes.group or not s.weights.group end, "is not supported yet")
    rule("shared", function(s) return takes.shared or not s.weights.shared end, never.shared or "is not supported yet")
    rule("shared", function(s) return stored.format(s) or not s.weights.shared end, "is about scales: {weights.dtype} has none")
    rule("scale", function(s)
        local scale, format = s.weights.scale, stored.format(s) or {}
        return scale == nil or scale == format.scale or (format.other or {})[scale]
    end, "is not a scale of {weights.dtype}")
    rule("layout", function(s)
        local widens = stored.by_columns(s) or takes.widened and not packed.are(s)
        return widens or stored.format(s) or s.weights.dtype == s.dtype
    end, "of {weights.dtype} is not supported yet beside {dtype}")
    local function layout(wrong, sentence)
        rule("layout", function(s) return not wrong(s.weights, stored.format(s), stored.scale(s)) end, sentence)
    end
    local grouped = {contiguous = true, nki = true}
    layout(function(w, format) return grouped[w.layout] and not (format and format.scale == "group") end,
        "is of codes that share scales along the contraction, which {weights.dtype} has not")
    for _, one in ipairs{{"contiguous", true}, {"transposed or plain", false}} do
        layout(function(w, format) return w.layout == "packed" and format and (format.scale == "group") == one[2] end,
            ("is of numbers (%s), not of {weights.dtype}: products decode its codes where they lie, in layout %s"):format(
                table.concat(formats.numbers, ", "), one[1]))
    end
    rule("experts", function(s) return not packed.are(s) or s.weights.experts == "joined" end,
        "is not for weights.layout = packed, which is one tensor")
    layout(function(w, format)
        return format and format.scale == "group" and not (grouped[w.layout] or w.layout == "packed" or w.rows and w.layout == "plain")
    end, "is not for {weights.dtype}, whose codes share scales along the contraction: contiguous or nki")
    layout(function(w, _, scale) return scale == "block" and w.layout == "plain" and not w.rows end,
        "has no scales of blocks; transposed has")
    layout(function(w, format) return w.layout == "nki" and format and not format.blocked end,
        "is of MX formats, not of {weights.dtype}")
    layout(function(w) return w.layout == "nki" and w.gate_up_order ~= "split" end,
        "holds gate and up apart, here {weights.gate_up_order}")
end

-- An extent that is in whole tiles of layout nki.
local function of_nki(key)
    local by = stored.nki_multiples[key]
    return {key, function(s) return s.weights.layout ~= "nki" or not s[key] or s[key] % by == 0 end,
        ("{%s} is no multiple of %d, as weights.layout = nki needs"):format(key, by)}
end

local function is_group(s)
    local format, given = stored.format(s) or {}, s.weights.group
    for _, group in ipairs(format.groups or {}) do
        if group == given then
            return true
        end
    end
    return not given
end

-- Rules of what a family takes: for each key of `weights`, a list of values (dtype: in addition to what tokens are of). widened: its
-- products of rows take numbers of another dtype. never: why it cannot have what it does not take of a key
function stored_rules.of(takes)
    local list, never = {}, takes.never or {}
    local function rule(key, holds, sentence)
        list[#list + 1] = {"weights." .. key, holds, "{weights." .. key .. "} " .. sentence}
    end
    taken(rule, takes, never)
    together(rule, takes, never)
    plans.append(list, {of_nki "H", of_nki "I_TP"})
    rule("group", is_group, "is no group of {weights.dtype}: " .. stored.choices)
    return list
end

return stored_rules
