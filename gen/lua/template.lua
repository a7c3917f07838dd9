-- SPDX-License-Identifier: Apache-2.0
-- template.lua - C text with Lua control lines, as in templates/*.c.in.
--
--     @ for r = 0, rows - 1 do            a line that starts with @ is Lua
--         acc[$(r)] = 0;                  elsewhere $(expression) is a hole
--     @ end
--     $(text)                             a hole alone on its line takes text of many lines, or vanishes when it is ""
--
-- Above the line `@ ----` stands the family's header: Lua that returns the family table (schema, contract, plan).
-- One template line is one line of Lua, so messages point at the template.
local template = {}

local function split(text)
    local lines, stop = {}, nil
    for line in text:gmatch("([^\n]*)\n") do
        lines[#lines + 1] = line
        if not stop and line:find("^@ %-%-%-%-") then
            stop = #lines
        end
    end
    return lines, assert(stop, "template without `@ ----`")
end

-- The family table of a template.
function template.family(text, name)
    local lines, stop = split(text)
    local head = {}
    for i = 1, stop - 1 do
        head[i] = lines[i]:find("^@") and lines[i]:sub(2) or "--" .. lines[i]
    end
    local chunk = assert(load(table.concat(head, "\n"), "@" .. name, "t"))
    return chunk()
end

local function quoted(text)
    return ("%q"):format(text)
end

-- One line of text as a Lua statement that appends it.
local function statement(line)
    local alone = line:match("^%s*%$(%b())%s*$")
    if alone then
        return "__all(" .. alone .. ")"
    end
    local parts, at = {}, 1
    while true do
        local from, to, hole = line:find("%$(%b())", at)
        if not from then
            break
        end
        if from > at then
            parts[#parts + 1] = quoted(line:sub(at, from - 1))
        end
        parts[#parts + 1] = "__text" .. hole
        at = to + 1
    end
    parts[#parts + 1] = quoted(line:sub(at) .. "\n"):gsub("\\\n", "\\n")
    return "__put(" .. table.concat(parts, " .. ") .. ")"
end

local function text_of(x)
    if math.type(x) == "float" then
        assert(x == math.floor(x), "a hole holds a float")
        return ("%d"):format(x)
    end
    return tostring(x)
end

-- The C text of a template's body; names is what its Lua sees beside the standard library.
function template.render(text, name, names)
    local lines, stop = split(text)
    local code = {}
    for i = 1, #lines do
        local line = lines[i]
        if i <= stop then
            code[i] = ""
        elseif line:find("^@") then
            code[i] = line:sub(2)
        else
            code[i] = statement(line)
        end
    end
    local out = {}
    local env = setmetatable({
        __put = function(s) out[#out + 1] = s end,
        __all = function(s)
            assert(s, "a hole holds nothing")
            if s ~= "" then
                out[#out + 1] = s:sub(-1) == "\n" and s or s .. "\n"
            end
        end,
        __text = text_of,
    }, {__index = function(_, key)
        local value = names[key]
        if value == nil then
            value = _G[key]
        end
        return value
    end})
    assert(load(table.concat(code, "\n"), "@" .. name, "t", env))()
    return table.concat(out)
end

return template
