-- SPDX-License-Identifier: Apache-2.0
-- prelude: runs first in every state of the generator, so that equal requests give equal bytes and slips show:
-- `pairs` has one order, `load` takes text only, undefined names are errors.
local load_any, next, sort, type, error, pcall = load, next, table.sort, type, error, pcall

-- By type, then by value; keys that have no order of their own (tables, functions, booleans) are an error.
local function before(a, b)
    local ta, tb = type(a), type(b)
    if ta ~= tb then return ta < tb end
    return a < b
end

-- luacheck: globals pairs load
function pairs(t)
    local keys, n, i = {}, 0, 0
    for key in next, t do
        n = n + 1
        keys[n] = key
    end
    if not pcall(sort, keys) then   -- keys of one type need no function that tells their order
        sort(keys, before)
    end
    return function()
        local key, value
        repeat
            i = i + 1
            key = keys[i]
            if key == nil then return nil end
            value = t[key]
        until value ~= nil
        return key, value
    end
end

function load(text, name, _, env)
    if type(text) ~= "string" then error("load takes text", 2) end
    if env == nil then return load_any(text, name, "t") end
    return load_any(text, name, "t", env)
end

setmetatable(_G, {
    __index = function(_, name) error(("undefined name '%s'"):format(name), 2) end,
    __newindex = function(_, name) error(("assignment to undefined name '%s'"):format(name), 2) end,
})
