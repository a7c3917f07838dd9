-- SPDX-License-Identifier: Apache-2.0
-- symbols.lua - the names in generated C. Those that come of the kernel's name are the user's: NAME, NAME_workspace, NAME_args and
-- the tiles, NAME_<tile>. All others are moegen's, and give way where the two meet: whatever a kernel is called, its C compiles.
--
-- C is made with SELF in the place of the name, so that the two kinds can be told apart; named() puts the name in.
local reserved = require "c.reserved"
local c_words = require "words"   -- gen/host/words.c

local symbols = {}

symbols.SELF = "moegen_self"   -- no name of a kernel begins like this

-- ---- which names a kernel may have ----

-- Is it one of the words of a list? They have spaces or line ends around them.
local function has(list, word)
    local from, to
    repeat
        from, to = list:find(word, (to or 0) + 1, true)
    until not from or list:find("^%s", from - 1) and list:find("^%s", to + 1)
    return from ~= nil
end

-- Why the C identifier cannot be a kernel's name, as in "'malloc' belongs to the C library"; nil if it can.
function symbols.fault(name)
    for _, row in ipairs(reserved.patterns) do
        if name:find(row[1]) then
            return row[2]
        end
    end
    local plain = name:gsub("_unlocked$", ""):gsub("_[lr]$", "")
    for _, row in ipairs(reserved.words) do
        if has(row[2], name) or has(row[2], plain) then
            return row[1]
        end
    end
    for _, ending in ipairs{"", "[fl]$", "f%d+x?$"} do
        if has(reserved.math, (plain:gsub(ending, ""))) then
            return "belongs to the C library"
        end
    end
    return nil
end

-- ---- the name in a text ----

-- The words of a text that begin with `stem`, as a set.
local function words_from(text, stem)
    local set, at = {}, 1
    while true do
        local from = text:find(stem, at, true)
        if not from then
            return set
        end
        at = from + #stem
        if from == 1 or not text:find("^[%w_]", from - 1) then
            set[text:match("^[%w_]+", from)] = true
        end
    end
end

-- What is no code that names things, by how it begins: returns its last column.
local skip = {
    ['"'] = function(text, at)
        repeat
            at = text:find('["\\]', at + 1)
            local escape = text:sub(at, at) == "\\"
            at = escape and at + 1 or at
        until not escape
        return at
    end,
    ["/"] = function(text, at)
        if text:find("^//", at) then
            return text:find("\n", at, true) - 1
        end
        return text:find("^/%*", at) and select(2, text:find("*/", at + 2, true)) or at
    end,
    ["#"] = function(text, at) return text:find("\n", at, true) - 1 end,   -- a directive
}

-- The text with the words of `map` replaced in what is code.
local function renamed(text, map)
    local out, at = {}, 1
    while true do
        local from = text:find('[%w_"/#]', at)
        if not from then
            out[#out + 1] = text:sub(at)
            return table.concat(out)
        end
        local passes = skip[text:sub(from, from)]
        local _, stop = text:find("^[%w_]+", from)
        if passes then
            stop = passes(text, from)
        elseif text:find("^__attribute__%s*%(", from) then
            _, stop = text:find("^__attribute__%s*%b()", from)
        end
        local word = text:sub(from, stop)
        out[#out + 1] = text:sub(at, from - 1)
        out[#out + 1] = map[word] or word
        at = stop + 1
    end
end

-- C text with the kernel's name for SELF. members: a set of names that are the structure's, or the runtime's, and stay.
function symbols.named(text, name, members)
    local others, map = words_from(text, name), {}
    for word in pairs(next(others) and words_from(text, symbols.SELF) or {}) do
        word = name .. word:sub(#symbols.SELF + 1)
        if others[word] and not members[word] then
            local other = word
            repeat
                other = other .. "_"
            until not others[other]
            map[word] = other
        end
    end
    return c_words.replaced(next(map) and renamed(text, map) or text, symbols.SELF, name)
end

return symbols
