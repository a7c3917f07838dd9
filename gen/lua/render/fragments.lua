-- SPDX-License-Identifier: Apache-2.0
-- fragments.lua - checks what fragments of templates say at their heads, above the line `@ ----`, against what they and their
-- users do. Run by the build, see index.lua.
--
--     return {
--         gives = {"struct_or_function", "ENUMERATOR"},   -- what others may use; all else that it defines is its own
--         called = {"function"},                          -- what a table of the family names, see templates/product/phases.lua
--         needs = {"fragment", "name"},                   -- included, or defined by who includes it, before it
--         may = {"fragment", "name"},                     -- the same, of use where it is there
--         later = {"name"},                               -- declared here, defined after it
--     }
--
-- Every line of a head starts with @, of families' templates too.
--
-- Definitions are what starts in column 0: functions, structs, enumerators. Control lines are not followed: what stands in any
-- branch counts. A fragment without definitions is a part of a struct or of a function; its `gives` are members or variables.

-- C of a line: holes are the texts that they may hold, or a word.
local function plain(line)
    return (line:gsub("%$(%b())", function(hole)
        local list = {}
        for text in hole:gmatch('"([^"]*)"') do
            list[#list + 1] = text
        end
        return hole == "(name)" and "NAME" or #list > 0 and table.concat(list, "( ") or "hole"
    end):gsub("//.*", ""))
end

-- Calls fn with each name that a line starting in column 0 defines; and whether it is only declared.
local function defined(line, fn)
    local struct, enum = line:match("^struct ([%w_]+) {"), line:match("^enum [%w_]*%s*{(.*)}")
    for constant in (enum or ""):gmatch("[^,]+") do
        fn(constant:match("[%a_][%w_]*") or "", false)
    end
    local name = not enum and (struct or line:match("^[%a_].-([%a_][%w_]*)%("))
    if name then
        fn(name, not struct and line:find(";%s*$") ~= nil)
    end
end

-- What a template or fragment defines, declares and uses, each with its line, and its steps in order.
local function parse(path, text)
    local file = {path = path, stem = path:match("([%w_]+)%.c%.in$"), defines = {}, declares = {}, uses = {}, includes = {}, steps = {}}
    local n, head, start = 0, {}, (text:find("\n@ ----", 1, true) or 0) + 1
    local at = 1
    for line in text:gmatch("([^\n]*)\n") do
        n = n + 1
        local fragment = line:match('%$%(include "([%w_]+)"%)')
        if at <= start then
            head[n] = line:find("^@ %-%-%-%-") and "" or line:sub(2)
            file.stray = file.stray or start > 1 and not line:find("^@") and n or nil
        elseif fragment then
            file.includes[fragment] = true
            file.steps[#file.steps + 1] = {line = n, include = fragment}
        elseif not line:find("^@") then
            line = plain(line)
            defined(line, function(name, only)
                if name == "hole" then
                    return
                end
                local set = only and file.declares or file.defines
                set[name] = n
                file.steps[#file.steps + 1] = not only and {define = name} or nil
            end)
            for _, pattern in ipairs{"([%a_][%w_]*)%(", "struct ([%w_]+)", "%f[%w_](%u[%u%d_]*)%f[^%w_]"} do
                for name in line:gmatch(pattern) do
                    file.uses[name] = file.uses[name] or n
                end
            end
        end
        at = at + #line + 1
    end
    file.head, file.text = start > 1 and table.concat(head, "\n"), text
    file.is_part = next(file.defines) == nil
    return file
end

local function set_of(list)
    local set = {}
    for _, name in ipairs(list or {}) do
        set[name] = true
    end
    return set
end

-- Reads the head of a fragment; complains of what itself does not define or declare.
local function read_head(file, complain)
    local ok, head = pcall(assert(load(file.head or "return {}", "@" .. file.path)))
    if not file.head or not ok or type(head) ~= "table" then
        complain(file, 1, "no table of what the fragment gives and needs above `@ ----`")
        head = {}
    end
    file.gives, file.needs, file.may, file.later = set_of(head.gives), set_of(head.needs), set_of(head.may), set_of(head.later)
    for _, name in ipairs(head.called or {}) do
        if not file.defines[name] then
            complain(file, name, "says '%s' is called, but does not define it", name)
        end
    end
    file.used, file.needed = {}, {}
    for name in pairs(file.gives) do
        local word = file.is_part and select(2, file.text:gsub("%f[%w_]" .. name .. "%f[^%w_]", "")) > 1
        if not file.defines[name] and not word then
            complain(file, name, "gives '%s', but does not define it", name)
        end
    end
    for name in pairs(file.later) do
        if not file.declares[name] then
            complain(file, name, "says '%s' comes later, but does not declare it", name)
        end
    end
    for name, line in pairs(file.declares) do
        if not file.later[name] and not file.defines[name] then
            complain(file, line, "declares '%s', which `later` does not name", name)
        end
    end
end

-- Includes what a family's template includes, in order; returns the files, and the definers of each name.
local function walk(template, files, find, complain)
    local seen, open, makers, visited = {}, {}, {}, {}
    local function enter(file)
        for name in pairs(file.needs or {}) do
            if seen[name] and (seen[name].is_part or file.is_part) then
                file.needed[name] = true   -- a part's names are not followed
            elseif not seen[name] and not makers[name] then
                complain(file, name, "needs '%s', which %s neither includes nor defines before it", name, template.path)
            end
        end
        seen[file.stem], open[file] = file, true
        visited[#visited + 1] = file
        for _, step in ipairs(file.steps) do
            if step.define then
                makers[step.define] = makers[step.define] or {}
                table.insert(makers[step.define], file)
            else
                local name, why = find(step.include)
                if name and not open[files[name]] then
                    enter(files[name])
                else
                    complain(file, step.line, "%s", why or "includes itself")
                end
            end
        end
        open[file] = nil
    end
    enter(template)
    return visited, makers
end

-- May the file use a name that one of its makers gives? Notes on both sides that it does.
local function check_use(file, line, name, makers, complain)
    local giver, allowed
    for _, maker in ipairs(makers) do
        if not maker.gives or maker.gives[name] then
            giver = maker
            if maker.used then
                maker.used[name] = true
            end
            local says = file.needs and (file.needs[maker.stem] or file.needs[name] or file.may[maker.stem] or file.may[name])
            allowed = allowed or not file.needs or says or file.later[name] or file.includes[maker.stem]
            if says then
                file.needed[maker.stem], file.needed[name] = true, true
            end
        end
    end
    if not giver then
        complain(file, line, "uses '%s', which %s does not give", name, makers[1].path)
    elseif not allowed then
        complain(file, line, "uses '%s' of %s, which its head does not say it needs", name, giver.path)
    end
end

local function check_family(template, files, find, complain)
    local visited, makers = walk(template, files, find, complain)
    for _, file in ipairs(visited) do
        file.is_included = true
        for name, line in pairs(file.uses) do
            if makers[name] and not file.defines[name] then
                check_use(file, line, name, makers[name], complain)
            end
        end
        for name in pairs(file.later or {}) do
            if not makers[name] then
                complain(file, name, "says '%s' comes later, but %s neither includes nor defines it", name, template.path)
            end
        end
    end
end

-- What nobody uses.
local function check_rest(file, complain)
    if not file.is_included then
        return complain(file, 1, "no family includes it")
    end
    for name in pairs(file.gives) do
        if not file.used[name] and not file.is_part and not name:find("^NAME_") then
            complain(file, name, "gives '%s', which nobody uses", name)
        end
    end
    for _, key in ipairs{"needs", "may"} do
        for name in pairs(file[key]) do
            if not file.needed[name] then
                complain(file, name, "%s names '%s', but nothing of it is used", key, name)
            end
        end
    end
end

-- paths: of all files; read(path): the text; find(family, fragment): as template.find. Returns sentences.
return function(paths, read, find)
    local files, names, sentences = {}, {}, {}
    local function complain(file, place, text, ...)
        local line = type(place) == "number" and place or 1
        if place ~= line then   -- where the head names it
            local at = file.head:find('"' .. place .. '"', 1, true) or 1
            line = select(2, file.head:sub(1, at):gsub("\n", "")) + 1
        end
        local sentence = ("%s:%d: error: %s"):format(file.path, line, text:format(...))
        if not sentences[sentence] then
            sentences[sentence] = true
            sentences[#sentences + 1] = sentence
        end
    end
    for _, path in ipairs(paths) do
        local name = path:match("^templates/(.*)%.c%.in$")
        if name then
            name = name:gsub("/", ".")
            files[name], names[#names + 1] = parse(path, read(path)), name
        end
    end
    table.sort(names)
    for _, name in ipairs(names) do
        if files[name].stray then
            complain(files[name], files[name].stray, "a line above `@ ----` that does not start with @")
        end
    end
    if #sentences > 0 then   -- heads are not what they seem
        return sentences
    end
    for _, name in ipairs(names) do
        if name:find(".", 1, true) then
            read_head(files[name], complain)
        end
    end
    for _, name in ipairs(names) do
        if not name:find(".", 1, true) then
            check_family(files[name], files, function(fragment) return find(name, fragment) end, complain)
        end
    end
    for _, name in ipairs(names) do
        if files[name].gives then
            check_rest(files[name], complain)
        end
    end
    return sentences
end
