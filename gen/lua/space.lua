-- SPDX-License-Identifier: Apache-2.0
-- space.lua - what `moegen tune` may try for a kernel: the keys that its plan chose, each with values near the one chosen, boldest
-- first, and the kernel's spec as an entry of a file of tuned plans has it; and which entries such a file has.
local schema = require "schema"
local tuned = require "tuned"

local space = {}

local MOST <const> = 8   -- values of a key
local NEAR <const> = 16  -- up to here neighbours count: rows of a tile, not bytes

-- Values beside v, within the limits of a type.
local function near(v, type)
    local list, seen = {}, {[v] = true}
    local function add(x)
        x = math.max(type.lo or x, math.min(type.hi or x, x))
        if not seen[x] and #list < MOST then
            seen[x] = true
            list[#list + 1] = x
        end
    end
    if v == 0 then
        for _, x in ipairs{1, 4, 16, 64} do
            add(x)
        end
        return list
    end
    add(2 * v)
    add(v // 2)
    if v > NEAR then
        add(v + v // 2)
        add(v - v // 4)
    else
        add(v - 1)
        add(v + 1)
        add(v - 2)
        add(v + 2)
        if type.lo == 0 then
            add(0)
        end
    end
    return list
end

local others = {
    int = near,
    enum = function(v, type)
        local list = {}
        for _, name in ipairs(type.shown) do
            list[#list + 1] = name ~= v and name or nil
        end
        return list
    end,
    bool = function(v)
        return {not v}
    end,
}

local function row_of(rows, name)
    for _, row in ipairs(rows) do
        if row[1] == name then
            return row
        end
    end
end

-- The choices of a plan that `rows`, the keys of a map of plans, let a spec make. Given ones are left alone.
local function add_choices(items, plan, rows, path, info)
    for _, choice in ipairs(plan.choices) do
        local row = row_of(rows, choice.key)
        local values = row and others[row[2].kind]
        local list = values and (info.origin[path .. choice.key] or "default") == "default" and values(choice.value, row[2]) or {}
        for i, value in ipairs(list) do
            list[i] = tostring(value)
        end
        if #list > 0 then
            items[#items + 1] = {name = path .. choice.key, text = table.concat(list, " ")}
        end
    end
end

local function quoted(text)
    return '"' .. text:gsub('[%c"\\]', function(c) return ("\\x%02X"):format(c:byte()) end) .. '"'
end

-- A node in YAML's flow style.
local function flow(node)
    if node.kind == "scalar" then
        return node.value:find("^[%w_.][%w_.+%-]*$") and node.value or quoted(node.value)
    end
    local parts = {}
    for _, entry in ipairs(node.entries or node.items or {}) do
        parts[#parts + 1] = node.kind == "map" and ("%s: %s"):format(flow(entry.key), flow(entry.value)) or flow(entry)
    end
    return node.kind == "map" and "{" .. table.concat(parts, ", ") .. "}" or "[" .. table.concat(parts, ", ") .. "]"
end

-- What an entry says of the spec: its keys that matter for plans, whole numbers in decimal.
local function spec_text(job, raw)
    local parts = {"kernel: " .. job.family.family}
    for _, pair in ipairs(raw.map.entries) do
        local key = pair.key.value
        if not tuned.apart[key] and key ~= "kernel" and schema.row(job.family, key) then
            local value = job.spec[key]
            parts[#parts + 1] = ("%s: %s"):format(key, math.type(value) == "integer" and tostring(value) or flow(pair.value))
        end
    end
    return "{" .. table.concat(parts, ", ") .. "}"
end

-- A list of {name=, text=}: spec, target, then plan.KEY with values.
function space.of(job, raw)
    local items = {
        {name = "spec", text = spec_text(job, raw)},
        {name = "target", text = job.plan.emulated and "scalar" or job.plan.isa.name},
    }
    local row = schema.row(job.family, "plan")
    if not row then
        return items
    end
    add_choices(items, job.plan, row[2].rows, "plan.", job.info)
    for _, part in ipairs(job.parts) do
        local own = row_of(row[2].rows, part.part)
        local rows = own and (own[2].rows or schema.row(part.family, "plan")[2].rows)
        if rows then
            add_choices(items, part.plan, rows, "plan." .. part.part .. ".", job.info)
        end
    end
    return items
end

-- Of the request's file: a list of {name=, text=}, the line where an entry begins and "[pinned ]spec tokens threads target".
function space.entries(req, errors)
    local file, items = req.tuned[1], {}
    local all = tuned.read(file, req, errors)
    local nodes = {}
    for _, pair in ipairs(all and file.root.entries or {}) do
        nodes = pair.key.value == "plans" and pair.value.items or nodes
    end
    for i, entry in ipairs(all or {}) do
        items[i] = {name = ("%d"):format(nodes[i].line), text = ("%s%s [%d, %d] %d %s"):format(entry.pinned and "pinned " or "",
            flow(entry.spec), entry.tokens[1], entry.tokens[2], entry.threads, entry.target)}
    end
    return items
end

return space
