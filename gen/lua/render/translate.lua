-- SPDX-License-Identifier: Apache-2.0
-- translate.lua - a template or fragment (see template.lua) as the text of Lua chunks. The build runs this and embeds the compiled
-- chunks; a source tree in $MOEGEN_TEMPLATE_DIR is translated on use.
--
--     head   the header: returns the family table; of a family's template or, for the build only, of a fragment
--     body   called with (environment, list, all, text): appends the C to the list
--     bare   body without comments and indentation, for text that only libtcc reads
--
-- One template line is one line of each chunk, so messages point at the template.

-- Lines, and which of them ends the header; nil: there is none.
local function split(text)
    local lines, stop = {}, nil
    for line in text:gmatch("([^\n]*)\n") do
        lines[#lines + 1] = line
        if not stop and line:find("^@ %-%-%-%-") then
            stop = #lines
        end
    end
    return lines, stop
end

local function head(lines, stop)
    local code = {}
    if not stop then
        return nil
    end
    for i = 1, stop - 1 do
        if not lines[i]:find("^@") then   -- the chunk fails at this line: the build has said so before, see fragments.lua
            return ("\n"):rep(i - 1) .. 'error("a line above `@ ----` that does not start with @")'
        end
        code[i] = lines[i]:sub(2)
    end
    return table.concat(code, "\n")
end

-- A line as a list of texts and {hole}s.
local function parts(line)
    local list, at = {}, 1
    while true do
        local from, to, hole = line:find("%$(%b())", at)
        if not from then
            break
        end
        if from > at then
            list[#list + 1] = line:sub(at, from - 1)
        end
        list[#list + 1] = {hole}
        at = to + 1
    end
    list[#list + 1] = line:sub(at) .. "\n"
    return list
end

-- The same without indentation and comment; an empty list when nothing is left.
local function stripped(list)
    for _, part in ipairs(list) do
        if type(part) == "string" and part:find('"', 1, true) then
            return list   -- two slashes may be part of a string
        end
    end
    local out = {}
    for i, part in ipairs(list) do
        if type(part) == "table" then
            out[i] = part
        else
            part = i == 1 and part:gsub("^%s+", "") or part
            local comment = part:find("//", 1, true)
            out[i] = comment and part:sub(1, comment - 1):gsub("%s+$", "") .. "\n" or part
            if comment then
                break
            end
        end
    end
    if #out == 1 and not out[1]:find("%S") then
        return {}
    end
    return out
end

-- Lua for some text: one string, without a line break of its own.
local function quoted(text)
    return (("%q"):format(text):gsub("\\\n", "\\n"))
end

local function append(expression)
    return "__list[#__list + 1] = " .. expression
end

local function statement(list)
    local code = {}
    for i, part in ipairs(list) do
        code[i] = type(part) == "table" and "__text" .. part[1] or quoted(part)
    end
    return append(table.concat(code, " .. "))
end

-- Lines of plain text that follow each other are one string, at the place of the first.
local function body(lines, stop, bare)
    local code, text, first = {}, {}, nil
    local function flush()
        if first then
            code[first] = append(quoted(table.concat(text)))
        end
        text, first = {}, nil
    end
    for i = 1, #lines do
        local line = lines[i]
        local alone = line:match("^%s*%$(%b())%s*$")
        code[i] = ""
        if i > stop and (line:find("^@") or alone) then
            flush()
            code[i] = alone and "__all(" .. alone .. ")" or line:sub(2)
        elseif i > stop then
            local list = parts(line)
            if bare then
                list = stripped(list)
            end
            if #list == 1 and type(list[1]) == "string" then
                first = first or i
                text[#text + 1] = list[1]
            elseif #list > 0 then
                flush()
                code[i] = statement(list)
            end
        end
    end
    flush()
    return "local _ENV <const>, __list <const>, __all <const>, __text <const> = ...; " .. table.concat(code, "\n")
end

return function(text)
    local lines, stop = split(text)
    return {head = head(lines, stop), body = body(lines, stop or 0, false), bare = body(lines, stop or 0, true)}
end
