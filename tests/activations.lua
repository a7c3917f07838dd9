-- SPDX-License-Identifier: Apache-2.0
-- activations.lua ROOT - for each target, into the current directory: every activation of templates/math/activation.lua, alone and
-- with its derivative, in the three spellings, for activations/driver.c. Run by tests/meanings.sh.
local root = arg[1]
dofile(root .. "/tests/generator.lua")(root)
local activation = require "math.activation"
local ir = require "ir"
local spellings = dofile(root .. "/tests/spellings.lua")
local target = require "target"

-- void (float *y, float *slope, const float *x, int64_t n): n vectors
local function program(isa, name, symbol, both)
    local p = ir.program(isa, symbol, {name})
    local y, slope, x, n = p:pointer("y", "float"), p:pointer("slope", "float"), p:pointer("x", "const float"), p:integer("n")
    p:loop(n, function()
        local a, b = activation[name][both and "both" or "forward"](p, "act", p:op("load", "given", p:at(x, 0)))
        p:op("store", p:at(y, 0), a)
        p:op("store", p:at(slope, 0), b or a)
        for _, pointer in ipairs{y, slope, x} do
            p:advance(pointer, isa.lanes)
        end
    end)
    return p
end

for _, isa in ipairs(target.all()) do
    local list, facts = {}, {}
    for _, name in ipairs(activation.order) do
        for both = 0, 1 do
            list[#list + 1] = {name, both == 1}
            facts[#list] = ("\"%s\", %d"):format(name, both)
        end
    end
    spellings.write(isa, #list, function(i, prefix)
        local name, both = table.unpack(list[i])
        return program(isa, name, ("%s%s_%s%s"):format(prefix, isa.name, name, both and "_both" or ""), both)
    end, "struct op {\n    const char *name;\n    int both;\n}", facts)
end
