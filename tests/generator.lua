-- SPDX-License-Identifier: Apache-2.0
-- generator.lua - the generator's modules in plain lua5.4, for tests that look inside: dofile(root .. "/tests/generator.lua")(root)
-- Module "encode" is C: the build's tests/encode.so, which must be on the path $LUA_CPATH.
return function(root)
    package.path = root .. "/gen/lua/?.lua;" .. root .. "/templates/?.lua"
    require "prelude"
    package.preload.source = function()
        return {isas = function()
            local names = {}
            local ls = io.popen("ls '" .. root .. "/gen/lua/isa'")
            for line in ls:lines() do
                names[#names + 1] = line:match("^(.*)%.lua$")
            end
            ls:close()
            return names
        end}
    end
    local function hex(code)
        return (code:gsub(".", function(c) return (",0x%02x"):format(c:byte()) end):sub(2))
    end
    package.preload.native = function() return {hex = hex} end
end
