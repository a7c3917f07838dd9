-- SPDX-License-Identifier: Apache-2.0
-- schema: what a spec may say. A family's template carries its schema at its top, as a table; this file interprets it.
--
--   return {
--     family  = "moe_forward",
--     summary = "experts' feed-forward over blocks of tokens",
--     keys = {                  -- rows in reading order: { name, type, default=|default_of=|optional=, into=, later=, doc= }
--       { "dtype",          enum { "f32", "bf16", "f16" },  doc = "of hidden states and weights" },   -- required
--       { "H",              int(1, 1 << 20),                doc = "hidden size" },
--       { "I_TP",           int(1, 1 << 20),                doc = "intermediate size / tensor-parallel degree" },
--       { "E",              int(1, 65536),                  doc = "experts" },
--       { "top_k",          int(1, 65536),  default = 1,    doc = "experts of one token" },
--       { "block_size",     int(1, 65536),                  doc = "token slots of a block" },
--       { "T",              int(0, 1 << 40), optional = true, doc = "fixes the number of tokens" },   -- absent: nil
--       { "N_blocks",       int(0, 1 << 40), optional = true, doc = "fixes the number of blocks" },
--       { "activation",     enum(activation.names, { what = "activations" }), default = "silu" },
--       { "gated",          bool(), default = true },
--       { "affinity",       map { { "scale", enum { "post", "pre", "none" }, default = "post" },
--                                 { "on", enum { "hidden", "intermediate" }, default = "hidden" } } },
--                                 -- an absent map is filled from the defaults of its own keys
--       { "bias",           either(bool(), map { { "gate_up", bool(), default = false },
--                                                { "down", bool(), default = false } }),
--                           default = false, into = both },   -- into(value): normalises what was given or the default
--       { "clamp",          map { { "gate", range(), optional = true }, { "up", range(), optional = true } } },
--       { "up_offset",      num(), default = 0.0 },
--       { "skip_token",     bool(), default = false },
--       { "accumulate",     bool(), default = true },
--       { "checkpoint",     enum { "none", "save" }, default = "none" },
--       { "loop",           either(enum { "dynamic" }, map { { "static_blocks", int(0) } }), default = "dynamic" },
--       { "dropping",       bool(), default = false },
--       { "scale_rule",     enum { "ocp", "wide" }, default = "ocp", later = true },   -- not listed: rules refuse all but the default
--                                                               -- unlisted = true: many of a kind, listed nowhere either
--       { "output_dtype",   enum { "f32", "bf16", "f16" }, default_of = "dtype" },
--       { "affinity_dtype", enum { "f32", "bf16", "f16" }, default_of = "dtype" },
--       { "bias_dtype",     enum { "f32", "bf16", "f16" }, default_of = "dtype" },
--       { "shard",          map { { "on", enum { "hidden", "block", "intermediate", "auto" }, default = "hidden" },
--                                 { "strategy", enum { "ping_pong", "hi_lo" }, default = "ping_pong" },
--                                 { "cores", either(enum { "auto" }, int(1, 1024)), default = "auto" } } },
--       { "target",         enum(targets), default = "auto" },
--       { "spelling",       enum { "auto", "bytes", "intrinsics", "scalar" }, default = "auto" },
--       { "plan",           map { { "nc", int(1), optional = true }, { "prefetch", int(0), optional = true } } },
--     },
--     inner = {},               -- rows of keys that nobody writes: families that have this one as a part set them, see compose.lua
--     rules = {                 -- between keys; tried once all keys are sound. {key} reads `key = value (origin)`
--       { "top_k", function(s) return s.top_k <= s.E end, "{top_k} is more than the number of experts, {E}" },
--     },
--   }
--
-- The keys `name` and `kernel` are legal everywhere and are not listed. Types: types.lua.
local diag = require "diag"
local types = require "spec.types"

local schema = { types = types }
local quote, is_null = diag.quote, types.is_null

local MANY <const> = 50  -- complaints after which unknown keys are no longer reported one by one

-- Path "a.b" falls back on what is known of "a".
local inherit = {}
function inherit.__index(known, path)
    local up = path:match "^(.*)%.[^.]*$"
    return up and known[up]
end

-- A place in the spec being checked; see types.lua.
local place = {}
place.__index = place

function place:path_of(name)
    return self.path and self.path .. "." .. name or tostring(name)
end

function place:enter(name)
    return setmetatable({ path = self:path_of(name), file = self.file, errors = self.errors, info = self.info }, place)
end

function place:trial()
    return setmetatable({ path = self.path, file = self.file, errors = {}, info = self.info }, place)
end

function place:fail(node, message, hint)
    diag.add(self.errors, self.file, node, (self.path and self.path .. ": " or "") .. message, hint)
end

-- ---- checking a map of keys ----

local function unknown(entry, rows, at)
    local name, names = entry.key.value, types.names(rows)
    if #at.errors >= MANY then return end
    local owner
    if not at.path and at.all then
        at.keys = at.keys or at.all.keys()
        if entry.shared and at.keys[name] then
            local label, notes = entry.value.set, at.info.notes
            if label then notes[#notes + 1] = ("%s: %s does not use it"):format(label, at.family) end
            return
        end
        at.families = at.families or at.all.families()
        for _, family in ipairs(at.families) do
            for _, row in ipairs(family.keys) do
                if row[1] == name then owner = owner or family.family end
                if entry.shared then names[#names + 1] = row[1] end
            end
        end
    end
    local hint = owner and ("it is a key of %s, not of %s"):format(owner, at.family)
        or name:find "^[%a_][%w_.]*:[^%s]" and "missing space after ':'"
        or diag.hint(name, names, "see `moegen list keys`")
    local where = at.path and " in '" .. at.path .. "'" or ""
    diag.add(at.errors, at.file, entry.key, ("unknown key %s%s"):format(quote(name), where), hint)
end

local function absent(row, value, node, at)
    local path = at:path_of(row[1])
    at.info.origin[path] = "default"
    if row.default ~= nil then
        value[row[1]] = row.default
    elseif row.default_of then
        at.info.deferred[#at.info.deferred + 1] = { value = value, name = row[1], of = row.default_of, into = row.into }
        return true
    elseif not row.optional and row[2].kind == "map" then
        local nothing = { kind = "map", entries = {}, line = node.line, col = node.col, set = node.set }
        value[row[1]] = row[2]:check(nothing, at:enter(row[1]))
        return value[row[1]] ~= nil
    elseif not row.optional then
        local doc = row.doc and " (" .. row.doc .. ")" or ""
        diag.add(at.errors, at.file, node, ("key '%s'%s is missing; expected %s"):format(path, doc, row[2].text))
        return false
    end
    return true
end

-- Reads a map node by its rows: the value with defaults, or nil after complaints.
local function fill(rows, node, at)
    local value, given, known, sound = {}, {}, {}, true
    for _, entry in ipairs(node.entries) do given[entry.key.value] = entry.value end
    for _, row in ipairs(rows) do
        local name, type = row[1], row[2]
        known[name] = true
        local child = given[name]
        local skip = not child or is_null(child) and (row.default ~= nil or row.default_of or row.optional)
        if skip then
            sound = absent(row, value, node, at) and sound
        else
            local here = at:enter(name)
            at.info.place[here.path], at.info.origin[here.path] = child, child.set and "--set" or child.tuned and "tuned" or "spec"
            if child.kind == "value" then   -- one of another kernel's checked spec, see compose.lua
                value[name] = child.value
            else
                value[name] = type:check(child, here)
            end
            sound = sound and value[name] ~= nil
        end
        if row.into and value[name] ~= nil then value[name] = row.into(value[name]) end
    end
    for _, entry in ipairs(node.entries) do
        if not known[entry.key.value] then unknown(entry, rows, at) end
    end
    return sound and value or nil
end
place.fill = fill

local function lookup(spec, path)
    local value = spec
    for name in path:gmatch "[^.]+" do
        if type(value) ~= "table" then return nil end
        value = value[name]
    end
    return value
end

-- One value as text: integers %d, floats so that they read back, the rest as they are.
local function text(value)
    if math.type(value) == "integer" then return ("%d"):format(value) end
    if math.type(value) == "float" then
        local short = ("%.15g"):format(value)
        return tonumber(short) == value and short or ("%.17g"):format(value)
    end
    if type(value) == "table" then return "{" .. table.concat(schema.flatten(value), ", ") .. "}" end
    return tostring(value)
end

-- "E = 8 (default)": a value with where it came from; a value of the spec file needs no remark.
local function cite(info, spec, path)
    local origin = info.origin[path] or "default"
    return ("%s = %s%s"):format(path, text(lookup(spec, path)), origin == "spec" and "" or " (" .. origin .. ")")
end

-- Adds a complaint at the place of a key (without a place when the key is a default).
function schema.complain(info, path, message, hint, status)
    diag.add(info.errors, info.file, info.place[path], message, hint, status)
end

-- Checks what `select` returned against a family's schema. all: functions for keys that this family lacks, or nil: keys() ->
-- set of every family's keys; families() -> list of every family's schema, called only for a complaint. Returns the typed
-- spec (nil after complaints) and
-- info = { origin[path]="spec"|"default"|"--set", place[path]=node, notes={sentences}, errors=, file= }.
-- Do not change the spec: tables among its values may be the schema's own defaults.
function schema.check(raw, family, errors, all)
    local info = { origin = setmetatable({}, inherit), place = setmetatable({}, inherit), notes = {}, deferred = {},
        errors = errors, file = raw.file }
    local before = #errors
    local at = setmetatable({ file = raw.file, errors = errors, info = info, all = all, family = family.family },
        place)
    local rows = family.keys
    if raw.part and family.inner then
        rows = table.move(family.inner, 1, #family.inner, #rows + 1, { table.unpack(rows) })
    end
    local spec = fill(rows, raw.map, at)
    if not spec or #errors > before then
        diag.sort(errors)
        return nil, info
    end
    spec.name, spec.kernel = raw.name, raw.family
    info.origin.name, info.origin.kernel = raw.origin.name, raw.origin.kernel
    for _, later in ipairs(info.deferred) do
        local value = lookup(spec, later.of)
        if later.into then value = later.into(value) end
        later.value[later.name] = value
    end
    for _, rule in ipairs(family.rules or {}) do
        if not rule[2](spec) then
            local sentence = rule[3]:gsub("{([%w_.]+)}", function(path) return cite(info, spec, path) end)
            schema.complain(info, rule[1], sentence)
        end
    end
    return #errors == before and spec or nil, info
end

-- The row of a family's key.
function schema.row(family, name)
    for _, row in ipairs(family.keys) do
        if row[1] == name then return row end
    end
end

-- A spec (or any part) as sorted lines "key value", nested keys joined by dots: the canonical form.
function schema.flatten(spec)
    local lines = {}
    local function walk(value, path)
        if type(value) ~= "table" then
            lines[#lines + 1] = path .. " " .. text(value)
            return
        end
        local dot = path == "" and "" or path .. "."
        for key, child in next, value do walk(child, dot .. key) end   -- in any order
    end
    walk(spec, "")
    table.sort(lines)
    return lines
end

-- For those who ask rarely: JSON schema text of all families; rows of `moegen list keys` of one.
function schema.json(families) return require "spec.schema_text".json(families) end
function schema.keys(family) return require "spec.schema_text".keys(family) end

function schema.select(req, errors, families) return require "spec.select".select(req, errors, families) end
function schema.kernels(req, errors) return require "spec.select".kernels(req, errors) end

return schema
