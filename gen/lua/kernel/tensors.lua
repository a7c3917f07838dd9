-- SPDX-License-Identifier: Apache-2.0
-- tensors.lua - a kernel's tensors in words. A row of job.args: name, dtype, role ("in", "out", "inout"; "?": may be absent),
-- extents; `says`: what it is, in one line; listed = true: the argument is a list of addresses, one for each index of the first extent.
local tensors = {}

-- "[64][128 * N]"
function tensors.shape_text(arg)
    local out = {}
    for i = arg.listed and 5 or 4, #arg do
        out[#out + 1] = "[" .. tostring(arg[i]):gsub("%*", " * "):gsub("%+", " + ") .. "]"
    end
    return (arg.listed and ("%d addresses of "):format(arg[4]) or "") .. table.concat(out)
end

-- A type's asterisks: to an address, or to a list of these.
function tensors.pointer(arg)
    return arg.listed and "*const *" or "*"
end

-- Lines for `moegen explain`.
function tensors.explain(args)
    local types, widest = {}, 0
    for i, arg in ipairs(args) do
        types[i] = arg.listed and tensors.shape_text(arg) .. " " .. arg[2] or arg[2] .. " " .. tensors.shape_text(arg)
        widest = math.max(widest, #types[i])
    end
    local out = {}
    for i, arg in ipairs(args) do
        local role = arg[3]:gsub("?", ", optional"):gsub("inout", "in, out")
        out[i] = ("  %-30s %-" .. widest .. "s  %s: %s\n"):format(arg[1], types[i], role, arg.says)
    end
    return table.concat(out)
end

return tensors
