-- SPDX-License-Identifier: Apache-2.0
-- comment.lua - the door through which text that is not the generator's own enters C: every line of a banner passes here. What
-- comes out is one line that ends no comment, starts none, joins no lines, and shows everything that it holds.
local comment = {}

-- Characters that show nothing, or change the order of others: first, last.
local hidden <const> = {
    {0x00, 0x1f}, {0x7f, 0x9f}, {0xad, 0xad}, {0x34f, 0x34f}, {0x61c, 0x61c}, {0x115f, 0x1160}, {0x17b4, 0x17b5}, {0x180b, 0x180f},
    {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f}, {0x3164, 0x3164}, {0xfe00, 0xfe0f}, {0xfeff, 0xfeff}, {0xffa0, 0xffa0},
    {0xfff0, 0xfffb}, {0xe0000, 0xe0fff},
}

-- Bytes as \xHH.
local function escaped(bytes)
    return (bytes:gsub(".", function(c) return ("\\x%02x"):format(c:byte()) end))
end

local function shown(char)
    local code = utf8.codepoint(char)
    for _, range in ipairs(hidden) do
        if code >= range[1] and code <= range[2] then
            return escaped(char)
        end
    end
    return char
end

-- Characters as they are or escaped; bytes that are none, escaped.
local function visible(text)
    local out, at = {}, 1
    while at <= #text do
        local whole, bad = utf8.len(text, at)
        local stop = whole and #text or bad - 1
        out[#out + 1] = text:sub(at, stop):gsub(utf8.charpattern, shown)
        out[#out + 1] = bad and escaped(text:sub(bad, bad)) or nil
        at = stop + 2
    end
    return table.concat(out)
end

-- Text as a line of a comment.
function comment.line(text)
    if text:find("[^ -~]") then
        text = visible(text)
    end
    text = text:gsub("%*/", "*\\x2f"):gsub("/%*", "/\\x2a"):gsub("%?%?", "?\\x3f"):gsub("\\$", "\\x5c"):gsub("\\ ", "\\x5c ")
    return text
end

return comment
