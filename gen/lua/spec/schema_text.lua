-- SPDX-License-Identifier: Apache-2.0
-- schema_text: family schemas as text for people and editors: rows of `moegen list keys`, and JSON Schema (draft 7).
local schema_text = {}

-- ---- rows of `moegen list keys` ----

local function default_text(row)
    if row.default_of then return "[" .. row.default_of .. "]" end
    local value = row.default
    if math.type(value) == "float" then value = ("%.14g"):format(value) end
    if value ~= nil and type(value) ~= "table" then return tostring(value) end
    if row.optional then return "-" end
    return row[2].kind == "map" and "" or "required"
end

-- Rows of a family in reading order: { key="affinity.scale", type="one of post, pre, none", default=text, doc=text }.
function schema_text.keys(family)
    local out = {}
    local function walk(rows, prefix)
        for _, row in ipairs(rows) do
            local key, type = prefix .. row[1], row[2]
            local parts = (row.later or row.unlisted) and {} or { type, table.unpack(type.types or {}) }
            if not (row.later or row.unlisted) then
                out[#out + 1] = { key = key, type = type.text, default = default_text(row), doc = row.doc or "" }
            end
            for _, one in ipairs(parts) do
                if one.kind == "map" then walk(one.rows, key .. ".") end
            end
        end
    end
    walk(family.keys, "")
    return out
end

-- ---- JSON ----

-- An object is { {key, value}, ... , object = true }, so that keys keep their order; an array is a plain list.
local function object(fields)
    fields.object = true
    return fields
end

local ESCAPE <const> = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\t"] = "\\t", ["\r"] = "\\r" }

local function text(value)
    return '"' .. value:gsub('[%c"\\]', function(c) return ESCAPE[c] or ("\\u%04x"):format(c:byte()) end) .. '"'
end

local function write(value, out, indent)
    if type(value) ~= "table" then
        local number = math.type(value)
        out[#out + 1] = number == "integer" and ("%d"):format(value) or number == "float" and ("%.17g"):format(value)
            or type(value) == "string" and text(value) or tostring(value)
        return
    end
    local open, close = "[", "]"
    if value.object then open, close = "{", "}" end
    local inner = indent .. "  "
    out[#out + 1] = open
    for i, item in ipairs(value) do
        out[#out + 1] = (i > 1 and ",\n" or "\n") .. inner
        if value.object then
            out[#out + 1] = text(item[1]) .. ": "
            item = item[2]
        end
        write(item, out, inner)
    end
    out[#out + 1] = (#value > 0 and "\n" .. indent or "") .. close
end

local describe  -- of a type, by kind

local function bounded(name, type)
    local fields = object { { "type", name } }
    if type.lo then fields[#fields + 1] = { "minimum", type.lo } end
    if type.hi then fields[#fields + 1] = { "maximum", type.hi } end
    return fields
end

local function properties(rows)
    local props, required = object {}, {}
    for _, row in ipairs(rows) do
        local fields = describe[row[2].kind](row[2])
        if row.doc then table.insert(fields, 1, { "description", row.doc }) end
        if row.default ~= nil and type(row.default) ~= "table" then fields[#fields + 1] = { "default", row.default } end
        props[#props + 1] = { row[1], fields }
        if row.default == nil and not row.default_of and not row.optional and row[2].kind ~= "map" then
            required[#required + 1] = row[1]
        end
    end
    return props, required
end

describe = {
    int = function(type) return bounded("integer", type) end,
    num = function(type) return bounded("number", type) end,
    bool = function() return object { { "type", "boolean" } } end,
    str = function() return object { { "type", "string" } } end,
    enum = function(type) return object { { "enum", type.shown } } end,
    range = function()
        return object { { "type", "array" }, { "items", object { { "type", { "number", "null" } } } },
            { "minItems", 2 }, { "maxItems", 2 } }
    end,
    list = function(type)
        local fields = object { { "type", "array" }, { "items", describe[type.of.kind](type.of) } }
        if type.lo then fields[#fields + 1] = { "minItems", type.lo } end
        if type.hi then fields[#fields + 1] = { "maxItems", type.hi } end
        return fields
    end,
    map = function(type)
        local props, required = properties(type.rows)
        local fields = object { { "type", "object" }, { "properties", props }, { "additionalProperties", false } }
        if #required > 0 then fields[#fields + 1] = { "required", required } end
        return fields
    end,
    either = function(type)
        local any = {}
        for i, one in ipairs(type.types) do any[i] = describe[one.kind](one) end
        return object { { "anyOf", any } }
    end,
}

local NAME <const> = object { { "type", "string" }, { "pattern", "^[A-Za-z][A-Za-z0-9_]{0,63}$" } }

-- What every `plan` may say beside the family's own keys, see tuned.lua.
local function add_wishes(props)
    for _, prop in ipairs(props) do
        for _, field in ipairs(prop[1] == "plan" and prop[2] or {}) do
            if field[1] == "properties" then
                table.insert(field[2], { "tuned", object { { "description", "false: no plan that `moegen tune` found" },
                    { "type", "boolean" } } })
                table.insert(field[2], { "tokens", object { { "description", "of a usual call, for tuned plans" },
                    { "type", "integer" }, { "minimum", 1 } } })
            end
        end
    end
end

-- A spec of one family. part: as an entry of `kernels:`, where shared keys may supply what is required.
local function family_object(family, part)
    local props, required = properties(family.keys)
    add_wishes(props)
    table.insert(props, 1, { "kernel", object { { "const", family.family } } })
    table.insert(props, 1, { "name", NAME })
    table.insert(required, 1, "kernel")
    local fields = object { { "title", family.family } }
    if family.summary then fields[#fields + 1] = { "description", family.summary } end
    fields[#fields + 1] = { "type", "object" }
    fields[#fields + 1] = { "properties", props }
    fields[#fields + 1] = { "required", part and { "kernel" } or required }
    fields[#fields + 1] = { "additionalProperties", false }
    return fields
end

-- A model file: shared keys of any family, and `kernels`.
local function model_object(families)
    local props, seen, refs = object { { "name", NAME } }, {}, {}
    for i, family in ipairs(families) do
        refs[i] = object { { "$ref", "#/definitions/kernels." .. family.family } }
        for _, row in ipairs(family.keys) do
            local any = seen[row[1]]
            if not any then
                any = {}
                seen[row[1]] = any
                props[#props + 1] = { row[1], object { { "anyOf", any } } }
            end
            any[#any + 1] = describe[row[2].kind](row[2])
        end
    end
    props[#props + 1] = { "kernels", object { { "type", "object" },
        { "additionalProperties", object { { "anyOf", refs } } }, { "minProperties", 1 } } }
    return object { { "title", "model file" }, { "type", "object" }, { "properties", props },
        { "required", { "kernels" } }, { "additionalProperties", false } }
end

-- The JSON Schema of the spec language, for editors.
function schema_text.json(families)
    local definitions, any = object {}, {}
    for i, family in ipairs(families) do
        any[i] = object { { "$ref", "#/definitions/" .. family.family } }
        definitions[#definitions + 1] = { family.family, family_object(family, false) }
        definitions[#definitions + 1] = { "kernels." .. family.family, family_object(family, true) }
    end
    any[#any + 1] = object { { "$ref", "#/definitions/model" } }
    definitions[#definitions + 1] = { "model", model_object(families) }
    local out = {}
    write(object { { "$schema", "http://json-schema.org/draft-07/schema#" }, { "title", "moegen kernel spec" },
        { "anyOf", any }, { "definitions", definitions } }, out, "")
    return table.concat(out) .. "\n"
end

return schema_text
