-- SPDX-License-Identifier: Apache-2.0
-- target.lua - the instruction sets: isa/<name>.lua, each merged over the one that it extends.
--
-- A long table has a part of its rows in another file, isa/<more>.lua: a Lua function has room for some 200 constants.
-- A table that extends another has all of its rows, registers and properties; its own add to them or replace them. Features
-- and compiler flags add up. What says which table this is (the names below) is never inherited.
local source = require "source"

local target = {}

local own = {name = true, summary = true, rank = true, extends = true, more = true, portable = true}
local loaded = {}

local function merge(base, top)
    if top == nil or type(base) ~= "table" then
        return top == nil and base or top
    end
    local both = table.move(base, 1, #base, 1, {})
    table.move(top, 1, #top, #both + 1, both)       -- lists add up
    for _, part in ipairs{base, top} do
        for key, value in next, part do             -- in any order
            if type(key) == "string" then
                both[key] = value
            end
        end
    end
    return both
end

-- The table called name, not that which it extends: its rows are in one file or two.
function target.own(name)
    local isa = require("isa." .. name)
    return isa.more and merge(isa, {rows = merge(isa.rows, require("isa." .. isa.more).rows)}) or isa
end

-- What all targets of a machine share, module by module as it is asked for: isa.arch.text is arch/<isa.arch>/text.lua.
--   instructions   rows of ops that every target has, and the instructions of the frame
--   registers      which there are, by number and name, and what the calling convention makes of them
--   code, text     an instruction as machine code, and as the comment beside it
--   c              what a C file over intrinsics begins with, and the default floating-point mode
local function machine(name)
    return setmetatable({name = name}, {__index = function(self, part)
        self[part] = require("arch." .. name .. "." .. part)
        return self[part]
    end})
end

-- The instruction set called name; its arch is a table, see above.
function target.load(name)
    if loaded[name] then
        return loaded[name]
    end
    local isa = target.own(name)
    if isa.extends then
        local base, all = target.load(isa.extends), {}
        for key, value in next, base do
            all[key] = not own[key] and merge(value, isa[key]) or isa[key]
        end
        for key, value in next, isa do
            all[key] = all[key] or value
        end
        all.gcc = base.gcc .. " " .. isa.gcc
        isa = all
    else
        isa = merge(isa, {})   -- the table itself is data
        isa.arch = machine(isa.arch)
    end
    loaded[name] = isa
    return isa
end

-- All that programs can be written for, best first.
function target.all()
    local list = {}
    for _, name in ipairs(source.isas()) do
        if require("isa." .. name).rank then
            list[#list + 1] = target.load(name)
        end
    end
    table.sort(list, function(a, b) return a.rank > b.rank end)
    return list
end

-- What products are of, and the ops that multiply it, best first.
local multipliers = {{"f32", "fma"}, {"bf16", "tile_dot", "dot_bf16"}, {"int8", "tile_dot_i8", "dot_bytes", "dot_words"}}

-- The best op of each that a target has: "f32 fma, int8 dot_words".
function target.multipliers(isa)
    local list = {}
    for _, row in ipairs(multipliers) do
        for i = 2, #row do
            if isa.rows[row[i]] then
                list[#list + 1] = row[1] .. " " .. row[i]
                break
            end
        end
    end
    return table.concat(list, ", ")
end

-- The one whose programs any CPU runs, in the scalar spelling: plain C.
function target.portable()
    local found
    for _, name in ipairs(source.isas()) do
        if require("isa." .. name).portable then
            assert(not found, "two tables of isa/ are portable")
            found = name
        end
    end
    return target.load(found)
end

return target
