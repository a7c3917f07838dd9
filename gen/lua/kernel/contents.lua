-- SPDX-License-Identifier: Apache-2.0
-- contents.lua - what a generated file holds, in its order, for its banner: its sections, as "// ---- title ----" names them (or, of a
-- part of a composed kernel, "// ==== title"), each with what the other sections use of it.
local contents = {}

local function words_of(text)
    local set = {}
    for word in text:gsub("//[^\n]*", ""):gmatch("[%a_][%w_]*") do
        set[word] = true
    end
    return set
end

-- The function that starts on a line of C, and whether the file alone sees it; nil if none does, or it is only declared.
local function definition(line, next)
    local tile = line:match("^extern void ([%w_]+)%(.*MOEGEN_HIDDEN;$")
    if tile then
        return tile, true
    elseif next == "{" and line:find("^%l[^=]*%)$") then
        return line:match("([%w_]+)%("), line:find("^static ") ~= nil
    end
end

-- Sections of a text: title; part: it is a part's head; names: its structures and functions, in order; words: all that it says.
local function sections(text)
    local list, lines = {{title = "arguments, constants", names = {}}}, {}
    local function close()
        list[#list].words = words_of(table.concat(lines, "\n"))
        lines = {}
    end
    local before = ""
    for line in text:gmatch("([^\n]*)\n") do
        local heading = line:find("^// ")
        local title = heading and line:match("^// %-%-%-%- (.*) %-%-%-%-$")
        local part = heading and line:match("^// ==== ([^:=]*[^:= ])")
        if title or part then
            close()
            list[#list + 1] = {title = title or part, part = part ~= nil, names = {}}
        elseif not line:find("^ ") or before:find("^extern") then
            local names = list[#list].names
            local tag = line:match("^struct ([%w_]+) {")
            names[#names + 1] = tag and {tag, "struct " .. tag, true}
            local name, hidden = definition(before, line)
            if line:find("^extern") then
                name, hidden = definition(line)
            end
            names[#names + 1] = name and {name, name, hidden}
        end
        lines[#lines + 1] = line
        before = line
    end
    close()
    return list
end

-- Names that differ in a number at their end, together: "gemm_12..1".
local function folded(names)
    local out, stems = {}, {}
    for _, name in ipairs(names) do
        local stem = name:match("^(.*_)%d+$")
        local known = stem and stems[stem]
        if known then
            known.last = name
        else
            out[#out + 1] = {first = name}
            stems[stem or name] = out[#out]
        end
    end
    for i, one in ipairs(out) do
        out[i] = one.last and one.first .. ".." .. one.last:match("%d+$") or one.first
    end
    return out
end

-- Of section i, the names that others use: those of one more section at least, or of the file's callers.
local function shared(list, i)
    local out = {}
    for _, row in ipairs(list[i].names) do
        local used = not row[3]
        for k, other in ipairs(list) do
            used = used or k ~= i and other.words[row[1]] == true
        end
        out[#out + 1] = used and row[2] or nil
    end
    return folded(out)
end

-- {title, part, text} of each section of a C text.
function contents.of(text)
    local list, out = sections(text), {}
    for i, section in ipairs(list) do
        out[i] = {title = section.title, part = section.part, text = table.concat(shared(list, i), ", ")}
    end
    return out
end

return contents
