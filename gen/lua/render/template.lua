-- SPDX-License-Identifier: Apache-2.0
-- template.lua - C text with Lua control lines, as in templates/*.c.in.
--
--     @ for r = 0, rows - 1 do            a line that starts with @ is Lua
--         acc[$(r)] = 0;                  elsewhere $(expression) is a hole
--     @ end
--     $(text)                             a hole alone on its line takes text of many lines, or vanishes when it is ""
--     $(include "routing")                the text of a fragment, templates/ROOM/routing.c.in, which sees the same names
--
-- Above the line `@ ----` stands the family's header: Lua that returns the family table (schema, contract, plan, and the
-- `algorithm` in some sentences, for who reads the generated C). That of a fragment returns what it gives and needs, which only
-- the build reads, see fragments.lua. A fragment lies in the family's room, templates/FAMILY/, in a room that the header names
-- (rooms = {"product"}), or in templates/shared/; not in two of them.
-- Translated to Lua by translate.lua, as a rule when moegen is built.
local source = require "source"

local template = {}

-- A part of a family's template, or of a fragment ("shared.team"), see translate.lua.
local function chunk(name, part)
    local built = source.chunk(name, part)
    if built then
        return built
    end
    local text, path = source.text(name)
    local code = require("render.translate")(text)[part]
    return assert(load(assert(code, path .. " has no line `@ ----`"), "@" .. path, "t"))
end

local families = {}   -- by name; nobody changes one

-- The family table of a template. Of those that builds have asked for it is part of the image of gen/host/image.c.
function template.family(family)
    families[family] = families[family] or chunk(family, "head")()
    return families[family]
end

-- The full name of a fragment of the family, "shared.team"; nil and a sentence if there is none, or more than one.
function template.find(family, fragment)
    local rooms = {family.family, table.unpack(family.rooms or {})}
    rooms[#rooms + 1] = "shared"
    local found = source.holders(fragment, rooms)
    if #found == 1 then
        return found[1] .. "." .. fragment
    end
    return nil, #found == 0 and ("no fragment '%s' in the rooms %s"):format(fragment, table.concat(rooms, ", "))
        or ("fragment '%s' is in more than one room: %s"):format(fragment, table.concat(found, ", "))
end

local type <const>, tostring <const> = type, tostring

local function text_of(x)
    if type(x) == "string" then
        return x
    elseif math.type(x) == "float" then
        assert(x == math.floor(x), "a hole holds a float")
        return ("%d"):format(x)
    end
    return tostring(x)
end

-- The C text of a family, which is its table; names is what its Lua sees beside the standard library, and `bare`: without comments.
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
        local found, why = template.find(family, fragment)
        return found and render(found) or error(why, 2)
    end
    names.bare = bare or false
    setmetatable(names, {__index = _G})
    return render(family.family)
end

return template
