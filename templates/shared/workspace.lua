-- SPDX-License-Identifier: Apache-2.0
-- workspace.lua - what a call keeps, as a table: each row is a member of struct work and, if it has sizes, an array in the workspace.
--
-- {name, type, sizes, says}: C; the product of the sizes is the number of elements. A row may also have
--     own = true       each rank has its own
--     of = "columns"   elements for each column of a batch; name is where those of the segment at work start, name_of_batch where
--     of = "rows"      all do; of routed rows likewise
--     shape            what the comment says of the layout, instead of the sizes
--     when             a C condition: otherwise there is none
--     starts           of a member without sizes: its value when a call starts
-- Sizes may name what layout.c.in knows: rows, columns, most_rows.
local plans = require "shared.plans"

local workspace = {}

-- Of arrays that have parts for segments: who a batch has, who comes before a segment, and the dimensions of the comment.
local of = {
    columns = {all = "w->columns", before = "column", shape = "[panels]%s[WIDTH]"},
    rows = {all = "w->columns", before = "column", shape = "[rows]%s"},
}

local function shape(row)
    local dims = {}
    for i, size in ipairs(row[3] or {}) do
        dims[i] = ("[%s]"):format(size)
    end
    local text = table.concat(dims)
    return row.shape or row.of and of[row.of].shape:format(text) or text
end

local function member(row, bare)
    local names = row.of and ("*%s_of_batch, *%s"):format(row[1], row[1]) or (row[3] and "*" or "") .. row[1]
    local text = ("    %s%s%s;"):format(row[2], row[2]:find("%*$") and "" or " ", names)
    if bare then
        return text .. "\n"
    end
    local dims = shape(row)
    return ("%-34s // %s%s%s\n"):format(text, dims, dims ~= "" and " " or "", row[4])
end

-- The members of struct work: those of the team, then each rank's. bare: without comments
local function members(list, bare)
    local team, own = {}, {}
    for _, row in ipairs(list) do
        local to = (row.own or not row[3]) and own or team
        to[#to + 1] = member(row, bare)
    end
    return table.concat(team) .. (bare and "" or "    // of this rank\n") .. table.concat(own)
end

local function product(first, sizes)
    for _, size in ipairs(sizes) do
        first[#first + 1] = tostring(size):find("^[%w_>-]+$") and size or ("(%s)"):format(size)
    end
    return table.concat(first, " * ")
end

-- Where arrays lie: statements of layout.c.in.
local function places(list)
    local lines = {}
    for _, row in ipairs(list) do
        if row[3] then
            local bytes = product({("(int64_t)sizeof(%s)"):format(row[2]), row.of and of[row.of].all or nil}, row[3])
            lines[#lines + 1] = ("    w->%s = %s(base, &at, %s%s%s);\n"):format(row.of and row[1] .. "_of_batch" or row[1],
                row.own and "own" or "shared", row.when and row.when .. " ? " or "", bytes .. (row.when and " : 0" or ""),
                row.own and ", w" or "")
        elseif row.starts then
            lines[#lines + 1] = ("    w->%s = %s;\n"):format(row[1], row.starts)
        end
    end
    return table.concat(lines)
end

-- Where those of the segment g start: statements.
local function segments(list)
    local lines = {}
    for _, row in ipairs(list) do
        if row.of then
            lines[#lines + 1] = ("    w->%s = w->%s_of_batch + %s;\n"):format(row[1], row[1],
                product({"g->" .. of[row.of].before}, row[3]))
        end
    end
    return table.concat(lines)
end

-- Adds what a template says of the rows of a table, without those that are false: members(bare), places, segments.
function workspace.fill(names, rows)
    local list = plans.list(table.unpack(rows))
    names.members = function(bare) return members(list, bare) end
    names.places, names.segments = places(list), segments(list)
end

return workspace
