-- SPDX-License-Identifier: Apache-2.0
-- stored.lua - how the experts' matrices are stored: the key `weights`, what of it a family takes, and the tensors' shapes.
local schema = require "schema"
local types = schema.types

local stored = {}

local enum, bool = types.enum, types.bool

-- Element types of weights beside those of tokens: 8 and 4 bits, with scales.
local formats = {"f32", "bf16", "f16", "fp8_e4m3", "fp8_e5m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4", "int8", "int4"}

stored.key = {"weights", types.map{
    {"dtype", enum(formats), default_of = "dtype", doc = "of the matrices"},
    {"scale", enum{"row", "static", "block", "group"}, optional = true,
        doc = "what shares a scale: an output channel, a matrix, 128 x 128 elements, a run along the contraction"},
    {"shared", bool(), default = false, doc = "one set of scales for all experts"},
    {"layout", enum{"plain", "transposed", "contiguous", "nki", "packed"}, default = "plain",
        doc = "plain: [in][out]; transposed: [out][in]; contiguous: blocks along in; nki: permuted, packed by 4; packed: see moegen pack"},
    {"gate_up_order", enum{"split", "interleaved"}, default = "split", doc = "of the columns of gate and up, and of their bias"},
    {"gate_up", enum{"joined", "separate"}, default = "joined", doc = "one tensor, or gate_proj_weight and up_proj_weight"}},
    doc = "how the matrices are stored"}

-- The same for a family that takes none of it as yet.
stored.later = {stored.key[1], stored.key[2], later = true, doc = stored.key.doc}

-- Of a spec: are matrices stored transposed, gate and up in turn, in tensors of their own?
function stored.of(s)
    local w = s.weights
    return {transposed = w.layout == "transposed", interleaved = s.gated and w.gate_up_order == "interleaved",
            separate = s.gated and w.gate_up == "separate"}
end

-- Rules of what a family takes: for each key of `weights`, a list of values (dtype: in addition to what tokens are of).
function stored.rules(takes)
    local list = {}
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
        end, "{" .. path .. "} is not supported yet" .. (key == "dtype" and ": weights are of {dtype}" or "; only " .. table.concat(values, ", "))}
    end
    only("dtype")
    only("scale", "row")
    only("layout", "plain")
    only("gate_up_order", "split")
    only("gate_up", "joined")
    list[#list + 1] = {"weights.shared", function(s) return takes.shared or not s.weights.shared end, "{weights.shared} is not supported yet"}
    return list
end

return stored
