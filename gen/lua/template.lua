-- SPDX-License-Identifier: Apache-2.0
-- template.lua - C text with Lua control lines, as in templates/*.c.in.
--
--     @ for r = 0, rows - 1 do            a line that starts with @ is Lua
--         acc[$(r)] = 0;                  elsewhere $(expression) is a hole
--     @ end
--     $(text)                             a hole alone on its line takes text of many lines, or vanishes when it is ""
--     $(include "routing")                the text of a fragment, templates/lib/routing.c.in, which sees the same names
--
-- Above the line `@ ----` stands the family's header: Lua that returns the family table (schema, contract, plan). A fragment
-- has none. What a fragment wants from its surroundings and what it defines is said at its head.
-- Translated to Lua by translate.lua, as a rule when moegen is built.
local source = require "source"

local template = {}

-- A part of a family's template, or of a fragment ("lib.routing"), see translate.lua.
local function chunk(name, part)
    local built = source.chunk(name, part)
    if built then
        return built
    end
    local text, path = source.text(name)
    local code = require("translate")(text)[part]
    return assert(load(assert(code, path .. " has no line `@ ----`"), "@" .. path, "t"))
end

-- The family table of a template.
function template.family(family)
    return chunk(family, "head")()
end

local function text_of(x)
    if math.type(x) == "float" then
        assert(x == math.floor(x), "a hole holds a float")
        return ("%d"):format(x)
    end
    return tostring(x)
end

-- The C text of a family's template; names is what its Lua sees beside the standard library. bare: without comments.
function template.render(family, names, bare)
    local part = bare and "bare" or "body"
    local function render(name)
        local out = {}
        local function all(s)
            assert(s, "a hole holds nothing")
            if s ~= "" then
                out[#out + 1] = s:sub(-1) == "\n" and s or s .. "\n"
            end
        end
        chunk(name, part)(names, out, all, text_of)
        return table.concat(out)
    end
    names.include = function(fragment)
        return render("lib." .. fragment)
    end
    setmetatable(names, {__index = _G})
    return render(family)
end

return template
