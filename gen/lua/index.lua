-- SPDX-License-Identifier: Apache-2.0
-- index.lua - what the build finds out about all families, so that a generation need not load them: the text of a chunk that
-- returns the set of their keys. An error if fragments of templates are not what they say. Run by embed.c, with the standard
-- library, on a source tree.

-- Stems of the files of a folder among the paths, sorted.
local function stems(paths, folder, suffix)
    local list = {}
    for _, path in ipairs(paths) do
        local stem = path:match("^" .. folder .. "/([%w_]+)" .. suffix .. "$")
        list[#list + 1] = stem
    end
    table.sort(list)
    return list
end

local function read(path)
    local file <close> = assert(io.open(path))
    return file:read("a")
end

-- root: of the source tree; paths: of its modules and templates
return function(root, paths)
    package.path = ("%s/gen/lua/?.lua;%s/templates/?.lua"):format(root, root)
    local held = {}
    for _, path in ipairs(paths) do
        held[path] = true
    end
    package.preload.source = function()
        return {
            families = function() return stems(paths, "templates", "%.c%.in") end,
            isas = function() return stems(paths, "gen/lua/isa", "%.lua") end,
            chunk = function() return nil end,
            holders = function(fragment, rooms)
                local list = {}
                for _, room in ipairs(rooms) do
                    list[#list + 1] = held[("templates/%s/%s.c.in"):format(room, fragment)] and room or nil
                end
                return list
            end,
            text = function(name)
                local path = "templates/" .. name .. ".c.in"
                return read(root .. "/" .. path), path
            end,
        }
    end
    package.preload.words = function() return {} end   -- nothing is rendered here
    require "prelude"
    local template, families = require "render.template", {}
    local wrong = require "render.fragments"(paths, function(path) return read(root .. "/" .. path) end, function(name, fragment)
        families[name] = families[name] or template.family(name)
        return template.find(families[name], fragment)
    end)
    if #wrong > 0 then
        error(table.concat(wrong, "\n"), 0)
    end
    local out = {}
    for name in pairs(require("moegen").keys()) do
        out[#out + 1] = ("[%q]=true"):format(name)
    end
    table.sort(out)   -- the same bytes from every build
    return "return {" .. table.concat(out, ",") .. "}"
end
