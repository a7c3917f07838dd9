-- SPDX-License-Identifier: Apache-2.0
-- stored_rules.lua - what of the key `weights` a family takes, and which of its values go together.
local formats = require "tiles.formats"
local packed = require "packed.form"
local stored = require "shared.stored"

local stored_rules = {}

-- Rules of what a family takes: for each key of `weights`, a list of values (dtype: in addition to what tokens are of). widened: its
-- products of rows take numbers of another dtype. never: why it cannot have what it does not take of a key
function stored_rules.of(takes)
    local list, never = {}, takes.never or {}
    local function only(key, default)
        local values = {table.unpack(takes[key] or {})}
        values[#values + 1] = default
        local path = "weights." .. key
        list[#list + 1] = {path, function(s)
            local value = s.weights[key]
            for _, one in ipairs(values) do
                if value == one then
                    return true
                end
            end
            return value == nil or key == "dtype" and value == s.dtype
        end, "{" .. path .. "} " .. (never[key] or "is not supported yet"
            .. (values[1] and "; only " .. table.concat(values, ", ") or ": weights are of {dtype}"))}
    end
    only("dtype")
    only("scale", "row")
    only("layout", "plain")
    only("gate_up_order", "split")
    only("gate_up", "joined")
    only("experts", "joined")
    list[#list + 1] = {"weights.gate_up_order", function(s)
        return s.weights.gate_up_order == "split" or s.weights.gate_up == "joined"
    end, "{weights.gate_up_order} is about one tensor of gate and up, here {weights.gate_up}"}
    list[#list + 1] = {"weights.group", function(s) return takes.group or not s.weights.group end,
        "{weights.group} is not supported yet"}
    list[#list + 1] = {"weights.shared", function(s) return takes.shared or not s.weights.shared end,
        "{weights.shared} " .. (never.shared or "is not supported yet")}
    list[#list + 1] = {"weights.shared", function(s) return stored.format(s) or not s.weights.shared end,
        "{weights.shared} is about scales: {weights.dtype} has none"}
    list[#list + 1] = {"weights.scale", function(s)
        local scale, format = s.weights.scale, stored.format(s) or {}
        return scale == nil or scale == format.scale or (format.other or {})[scale]
    end, "{weights.scale} is not a scale of {weights.dtype}"}
    local function layout(wrong, sentence)
        list[#list + 1] = {"weights.layout", function(s) return not wrong(s.weights, stored.format(s), stored.scale(s)) end, sentence}
    end
    list[#list + 1] = {"weights.layout", function(s)
        local widens = stored.by_columns(s) or takes.widened and not packed.are(s)
        return widens or stored.format(s) or s.weights.dtype == s.dtype
    end, "{weights.layout} of {weights.dtype} is not supported yet beside {dtype}"}
    local grouped = {contiguous = true, nki = true}
    layout(function(w, format) return grouped[w.layout] and not (format and format.scale == "group") end,
        "{weights.layout} is of codes that share scales along the contraction, which {weights.dtype} has not")
    for _, one in ipairs{{"contiguous", true}, {"transposed or plain", false}} do
        layout(function(w, format) return w.layout == "packed" and format and (format.scale == "group") == one[2] end,
            ("{weights.layout} is of numbers (%s), not of {weights.dtype}: products decode its codes where they lie, in layout %s"):format(
                table.concat(formats.numbers, ", "), one[1]))
    end
    list[#list + 1] = {"weights.experts", function(s) return not packed.are(s) or s.weights.experts == "joined" end,
        "{weights.experts} is not for weights.layout = packed, which is one tensor"}
    layout(function(w, format)
        return format and format.scale == "group" and not (grouped[w.layout] or w.layout == "packed" or w.rows and w.layout == "plain")
    end,
        "{weights.layout} is not for {weights.dtype}, whose codes share scales along the contraction: contiguous or nki")
    layout(function(w, _, scale) return scale == "block" and w.layout == "plain" and not w.rows end,
        "{weights.layout} has no scales of blocks; transposed has")
    layout(function(w, format) return w.layout == "nki" and format and not format.blocked end,
        "{weights.layout} is of MX formats, not of {weights.dtype}")
    layout(function(w) return w.layout == "nki" and w.gate_up_order ~= "split" end,
        "{weights.layout} holds gate and up apart, here {weights.gate_up_order}")
    local function of_nki(key, by)
        list[#list + 1] = {key, function(s) return s.weights.layout ~= "nki" or not s[key] or s[key] % by == 0 end,
            ("{%s} is no multiple of %d, as weights.layout = nki needs"):format(key, by)}
    end
    of_nki("H", stored.nki_multiples.H)
    of_nki("I_TP", stored.nki_multiples.I_TP)
    list[#list + 1] = {"weights.group", function(s)
        local format, given = stored.format(s) or {}, s.weights.group
        for _, group in ipairs(format.groups or {}) do
            if group == given then
                return true
            end
        end
        return not given
    end, "{weights.group} is no group of {weights.dtype}: " .. stored.choices}
    return list
end

return stored_rules
