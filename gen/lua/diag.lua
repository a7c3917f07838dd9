-- SPDX-License-Identifier: Apache-2.0
-- diag: complaints with their place, and near misses.
--
-- A complaint is { file=, line=, col=, len=, message=, hint=, source="spec"|"set", status="unsupported"|nil }.
-- The message is one sentence with the value and the rule, no final period. C adds the source line and the caret.
local diag = {}

-- Appends a complaint about a node of the spec. A node that came from an override carries `set`, the label of that
-- override; every other node belongs to `file`. node may be nil (no place).
function diag.add(errors, file, node, message, hint, status)
    node = node or {}
    errors[#errors + 1] = {
        file = node.set or file, line = node.line or 0, col = node.col or 0, len = node.len or 1,
        message = message, hint = hint, source = node.set and "set" or "spec", status = status,
    }
end

-- Puts complaints in the order of the text they are about; those without a place (overrides) come last.
function diag.sort(errors)
    local at = {}
    for i, e in ipairs(errors) do at[e] = i end
    table.sort(errors, function(a, b)
        if (a.line == 0) ~= (b.line == 0) then return b.line == 0 end
        if a.line ~= b.line then return a.line < b.line end
        if a.col ~= b.col then return a.col < b.col end
        return at[a] < at[b]
    end)
end

-- Text of a user's value for a message: quoted, printable, at most 40 bytes.
function diag.quote(value)
    local s = tostring(value)
    if #s > 40 then
        local cut = utf8.offset(s, 0, 38) or 38
        s = s:sub(1, cut - 1) .. ".."
    end
    return "'" .. s:gsub("%c", "?") .. "'"
end

-- Damerau-Levenshtein distance (adjacent transpositions count one), byte-wise; may stop early above `limit`.
local function distance(a, b, limit)
    if math.abs(#a - #b) > limit then return limit + 1 end
    local before, prev = nil, {}
    for j = 0, #b do prev[j] = j end
    for i = 1, #a do
        local row, best = { [0] = i }, i
        for j = 1, #b do
            local same = a:byte(i) == b:byte(j)
            local d = math.min(prev[j] + 1, row[j - 1] + 1, prev[j - 1] + (same and 0 or 1))
            if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
                d = math.min(d, before[j - 2] + 1)
            end
            row[j] = d
            best = math.min(best, d)
        end
        if best > limit then return limit + 1 end
        before, prev = prev, row
    end
    return prev[#b]
end

-- The one name near enough to `word` to be meant, or nil: distance at most max(1, #word // 3), and unique.
local function nearest(word, names)
    if #word > 64 then return nil end
    local limit = math.max(1, #word // 3)
    local found, least, tied = nil, limit + 1, false
    local folded = word:lower()
    for _, name in ipairs(names) do
        local d = distance(folded, name:lower(), limit)
        if d < least then
            found, least, tied = name, d, false
        elseif d == least and d <= limit and name ~= found then
            tied = true
        end
    end
    return not tied and found or nil
end

-- "did you mean 'x'?", or nil.
function diag.near(word, names)
    local near = nearest(word, names)
    return near and "did you mean '" .. near .. "'?"
end

-- Hint for a word that is none of `names`: the near miss, else the list when short, else `elsewhere` (may be nil).
function diag.hint(word, names, elsewhere)
    local near = diag.near(word, names)
    if near then return near end
    if #names > 0 and #names <= 12 then return "legal: " .. table.concat(names, ", ") end
    return elsewhere
end

return diag
