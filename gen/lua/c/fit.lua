-- SPDX-License-Identifier: Apache-2.0
-- fit.lua - generated C that is read by people has lines of at most 100 columns. Templates and printers write as long as they
-- like; this breaks what is longer: comments at words, code after commas and before operators, aligned to the open parenthesis.
local fit = {}

local WIDTH <const> = 100

-- Break text at spaces into lines that start with `first`, then `rest`.
function fit.words(text, first, rest)
    local out, line, fresh = {}, first, true
    for word in text:gmatch("%S+") do
        if not fresh and #line + 1 + #word > WIDTH then
            out[#out + 1] = line
            line, fresh = rest, true
        end
        line = line .. (fresh and "" or " ") .. word
        fresh = false
    end
    out[#out + 1] = line
    return table.concat(out, "\n")
end

local words = fit.words

local opens <const>, closes <const> = {["("] = true, ["{"] = true, ["["] = true}, {[")"] = true, ["}"] = true, ["]"] = true}
local MARKS <const> = '[ ",(){}%[%]]'

-- Places where a line of code may be broken: {at = last column kept, depth = open parentheses, column = of the innermost}; those that
-- keep more than a line's width are left out.
local function places(line)
    local list, open, text = {}, {}, false
    local at = line:find(MARKS)
    while at and at <= WIDTH + 1 do
        local c = line:sub(at, at)
        if c == '"' and line:sub(at - 1, at - 1) ~= "\\" then
            text = not text
        elseif not text and opens[c] then
            open[#open + 1] = at
            if c == "(" then
                list[#list + 1] = {at = at, depth = #open, rank = 2}   -- when nothing else is left
            end
        elseif not text and closes[c] then
            open[#open] = nil
        elseif not text and c == "," and line:sub(at + 1, at + 1) == " " then
            list[#list + 1] = {at = at, depth = #open, column = open[#open], rank = 0}
        elseif not text and c == " " and line:find("^ [%+%-%*&|%?:=]+ ", at) then
            list[#list + 1] = {at = at - 1, depth = #open, column = open[#open], rank = 1}
        end
        at = line:find(MARKS, at + 1)
    end
    return list
end

-- The best of them: the outermost, a comma rather than an operator, the rightmost.
local function best(line, indent)
    local chosen
    for _, p in ipairs(places(line)) do
        if p.at <= WIDTH and p.at > indent + 20 then
            local score = p.depth * 4 + p.rank * p.rank * 2 - (p.at > 60 and 3 or 0)
            if p.rank == 1 and p.depth > 1 and p.column + #line - p.at > WIDTH then
                score = score + 16   -- what is left would not fit behind the parenthesis
            end
            if not chosen or score <= chosen.score then
                p.score = score
                chosen = p
            end
        end
    end
    return chosen
end

local function code(line)
    local out = {}
    local hang = #line:match("^ *") + 4
    while #line > WIDTH do
        local indent = #line:match("^ *")
        local p = best(line, indent)
        if not p then
            break
        end
        out[#out + 1] = line:sub(1, p.at)
        hang = p.column or hang   -- within the same parenthesis as before?
        line = (" "):rep(hang) .. line:sub(p.at + 1):gsub("^ +", "")
    end
    out[#out + 1] = line
    return table.concat(out, "\n")
end

-- A line of assembly: bytes, mnemonic, meaning.
local function assembly(line)
    local bytes, comment = line:match("^(%s*\"[^\"]*\")%s*// (.*)$")
    if not bytes then
        return nil
    end
    local mnemonic, meaning = comment:match("^(.-)%s%s+(.*)$")
    comment = mnemonic and ("%-27s %s"):format(mnemonic, meaning) or comment
    bytes = bytes:gsub("^%s+", "    ")
    local short = ("%-48s // %s"):format(bytes, comment)
    if #short <= WIDTH then
        return short
    end
    short = ("%s // %s"):format(bytes, comment:gsub("  +", "  "))
    return #short <= WIDTH and short or words(comment, "    // ", "    //     ") .. "\n" .. bytes
end

local function line_of(line)
    if line:find("^%s*\"") then
        local text = assembly(line)
        if text then
            return text
        end
    end
    if #line <= WIDTH then
        return line
    end
    local lead, text = line:match("^(%s*// )(.*)$")
    if lead then
        return words(text, lead, lead)
    end
    if line:find("^ %*     %S") then
        return line   -- a command is run as it stands
    end
    local star, key, rest = line:match("^( %* )(.-= %S+%s+)(%(.*)$")
    if star then
        return words(rest, star .. key, star .. (" "):rep(#key + 1))
    elseif line:find("^ %* ") then
        return words(line:sub(4), " * ", " *     ")
    end
    local body, comment = line:match("^(.-%S)%s+// (.*)$")
    if body and not body:find('"', 1, true) then
        local indent = body:match("^%s*")
        return words(comment, indent .. "// ", indent .. "// ") .. "\n" .. code(body)
    end
    return code(line)
end

-- The text with every line fitted and no blanks at line ends.
function fit.text(text)
    local out = {}
    for line in text:gmatch("([^\n]*)\n") do
        out[#out + 1] = line_of(line:find("^%s", -1) and line:gsub("%s+$", "") or line)
    end
    return table.concat(out, "\n") .. "\n"
end

return fit
