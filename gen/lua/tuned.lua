-- SPDX-License-Identifier: Apache-2.0
-- tuned.lua - plans that `moegen tune` found: what a file of them may say, and which entry fits a kernel.
--
--   cpu: AuthenticAMD-00a10f11               # as moegen_rt_cpu_kind() says it
--   plans:
--     - spec: {kernel: moe_forward, dtype: bf16, H: 2048, I_TP: 1024, E: 64, top_k: 8, block_size: 128}
--       tokens: [1, 1024]                    # of calls that it was measured with
--       threads: 2
--       target: avx512_bf16
--       plan: {tile_rows: 12}                # keys that a spec's `plan` may have; those that a spec gives itself win
--       pinned: true                         # optional: `moegen tune` leaves it alone
--       measured: {ratio: 1.08, low: 1.06, high: 1.1, pairs: 8, moegen: 0f3a5c2d9b1e}
--
-- The CPU's own file, which the request brings along, is used for kernels that are compiled here and now; what is wrong in it is a
-- note, and leaves the plan as it would be without. A file that the request names is used for whatever is made, and what is wrong
-- in it is a complaint.
local diag = require "diag"
local schema = require "schema"

local tuned = {}

local types = schema.types
local int, num, str = types.int, types.num, types.str

-- A map that is read later, with the schema of what it is for.
local later = {kind = "later", kinds = {map = true}, text = "a map of keys", check = function(self, node, at)
    if node.kind ~= "map" then
        at:fail(node, "this is not " .. self.text)
        return nil
    end
    return node
end}

local TOKENS <const>, THREADS <const>, ENTRIES <const> = 1 << 40, 1024, 4096
local name = str("^[%w_.%-]+$", "a name")

local file_keys = {
    {"cpu", name, doc = "kind of CPU"},
    {"plans", types.list(types.map{
        {"spec", later, doc = "of the kernel"},
        {"tokens", types.list(int(1, TOKENS), 2, 2), doc = "least and most"},
        {"threads", int(1, THREADS)},
        {"target", name},
        {"plan", later, doc = "keys of plans"},
        {"pinned", types.bool(), default = false, doc = "`moegen tune` leaves it alone"},
        {"measured", types.map{
            {"ratio", num(0, 1000), doc = "speed over that of the planner's own choice"},
            {"low", num(0, 1000)}, {"high", num(0, 1000)},
            {"pairs", int(1, 1 << 20), doc = "of processes"},
            {"moegen", name, doc = "digest of the generator"}}}}, 0, ENTRIES)},
}

-- What every spec's `plan` may say beside the family's own keys.
local wish_keys = {
    {"tuned", types.either(types.bool(), str()), optional = true},
    {"tokens", int(1, TOKENS), optional = true},
}

local function is_wish(key)
    return key == "tuned" or key == "tokens"
end

-- Takes these out of a selected spec: {tuned=true|false|nil, tokens=number|nil}, or nil after complaints.
function tuned.wish(raw, req, errors)
    local own
    for i, entry in ipairs(raw.map.entries) do
        if entry.key.value == "plan" and entry.value.kind == "map" then
            local rest = {}
            own = {kind = "map", entries = {}}
            for _, pair in ipairs(entry.value.entries) do
                local list = is_wish(pair.key.value) and own.entries or rest
                list[#list + 1] = pair
            end
            if #own.entries > 0 then
                raw.map.entries[i] = {key = entry.key, shared = entry.shared,
                    value = setmetatable({entries = rest}, {__index = entry.value})}
                if #rest == 0 then
                    table.remove(raw.map.entries, i)
                end
            end
            break
        end
    end
    if not own or #own.entries == 0 then
        return {}
    end
    local whole = {kind = "map", entries = {{key = {kind = "scalar", value = "plan"}, value = own}}}
    local wish = schema.check({map = whole, file = raw.file, origin = {}}, {keys = {{"plan", types.map(wish_keys)}}}, errors)
    if not wish then
        return nil
    end
    for _, pair in ipairs(own.entries) do
        if type(wish.plan.tuned) == "string" and pair.key.value == "tuned" and not (req.tuned_given and pair.value.set) then
            diag.add(errors, raw.file, pair.value, "plan.tuned: a spec says true or false",
                "an override may name a file: --set plan.tuned=FILE")
            return nil
        end
    end
    return wish.plan
end

-- Which plans are fast depends on all of a checked spec but these; some of them are looked at in other ways.
tuned.apart = {name = true, T = true, S = true, N_blocks = true, target = true, spelling = true, plan = true, tensors = true, layer = true}

local function shape(spec)
    local all = {}
    for key, value in pairs(spec) do
        all[key] = not tuned.apart[key] and value or nil
    end
    if spec.shard then
        all.shard = {on = spec.shard.on, strategy = spec.shard.strategy}
    end
    return table.concat(schema.flatten(all), "\n")
end

-- The node of a key of a map.
local function at(map, key)
    for _, pair in ipairs(map.entries) do
        if pair.key.value == key then
            return pair.value
        end
    end
end

-- Does an entry's spec say what this one does, at the first look?
local function similar(node, family, spec)
    local kernel = at(node, "kernel")
    if not kernel or kernel.value ~= family.family then
        return false
    end
    for _, pair in ipairs(node.entries) do
        local value = spec[pair.key.value]
        if pair.key.value ~= "kernel" and not tuned.apart[pair.key.value] and pair.value.kind == "scalar"
            and (math.type(value) == "integer" or type(value) == "string") and pair.value.value ~= tostring(value) then
            return false
        end
    end
    return true
end

local function without(node, key)
    local rest = {}
    for _, pair in ipairs(node.entries) do
        rest[#rest + 1] = pair.key.value ~= key and pair or nil
    end
    return setmetatable({entries = rest}, {__index = node})
end

local WIDE <const>, FAR <const> = 16, 8   -- ranges for kernels of any number of tokens; how far off a number may be

-- How far an entry is off what is wanted, nil: too far. Less is nearer.
local function distance(entry, tokens, threads)
    local from, to = entry.tokens[1], entry.tokens[2]
    local off = math.max(entry.threads / threads, threads / entry.threads)
    if off > 2 then
        return nil
    elseif not tokens then   -- any number
        return to >= WIDE * from and math.log(off, 2) + from / to or nil
    end
    local beyond = math.max(from / tokens, tokens / to, 1)
    return beyond <= FAR and math.log(off, 2) + math.log(beyond, 2) + math.log(to / from, 2) / 1000 or nil
end

-- The entries of a file, or nil after complaints.
function tuned.read(file, req, errors)
    if file.root.kind ~= "map" then
        diag.add(errors, file.file, file.root, "tuned plans are a map of `cpu` and `plans`")
        return nil
    end
    local all, info = schema.check({map = file.root, file = file.file, origin = {}}, {family = "tuned plans", keys = file_keys}, errors)
    if not all then
        return nil
    elseif all.cpu ~= req.cpu then
        diag.add(errors, file.file, info.place.cpu, ("these plans are for CPU %s; this one is %s"):format(all.cpu, req.cpu))
        return nil
    end
    for i, entry in ipairs(all.plans) do
        entry.file, entry.place = file.file, info.place["plans." .. i .. ".spec"]
        if entry.tokens[1] > entry.tokens[2] then
            diag.add(errors, file.file, info.place["plans." .. i .. ".tokens"], ("tokens: %d is more than %d"):format(entry.tokens[1],
                entry.tokens[2]))
            return nil
        end
    end
    return all.plans
end

-- "FILE:3:5: message", of a complaint.
local function sentence(e)
    return ("%s%s: %s"):format(e.file, e.line > 0 and (":%d:%d"):format(e.line, e.col) or "", e.message)
end

-- The entry that fits a checked spec best, or nil. Complaints about files that the request names go to errors, others to notes.
function tuned.find(req, wish, family, spec, errors, notes)
    local wanted = wish.tuned
    if wanted == false or not (req.tuned_given or req.tunes or wanted) then
        return nil
    end
    local cores = spec.shard and spec.shard.cores
    local threads = req.threads or math.type(cores) == "integer" and cores or req.cpus or 1
    local tokens = wish.tokens or spec.T or spec.S
    local mine, best, least
    for _, file in ipairs(req.tuned or {}) do
        local own = {}
        local entries = file.root and tuned.read(file, req, own)
        for _, entry in ipairs(entries or {}) do
            local off = (spec.target == "auto" or spec.target == entry.target) and similar(entry.spec, family, spec)
                and distance(entry, tokens, threads)
            if off and (not least or off < least) then
                local stale = {}
                local theirs = schema.check({map = without(entry.spec, "kernel"), file = file.file, origin = {}, name = spec.name,
                    family = family.family}, family, stale)
                mine = mine or shape(spec)
                if theirs and shape(theirs) == mine then
                    best, least = entry, off
                elseif not theirs then
                    own[#own + 1] = stale[1]
                end
            end
        end
        for _, e in ipairs(own) do
            if req.tuned_given then
                errors[#errors + 1] = e
            else
                notes[#notes + 1] = sentence(e)
            end
        end
        notes[#notes + 1] = file.fault
    end
    return best
end

-- The words for what an entry is and why it counts.
function tuned.text(entry)
    local m = entry.measured
    return ("%s:%d: %.3f times as fast as the planner's own choice (%.3f to %.3f), with %d to %d tokens and %d thread%s"):format(entry.file,
        entry.place.line, m.ratio, m.low, m.high, entry.tokens[1], entry.tokens[2], entry.threads, entry.threads == 1 and "" or "s")
end

-- Was refused: a complaint about a named file, else a note.
function tuned.refuse(entry, why, req, errors, notes)
    local message = "this tuned plan is left out: " .. why
    if req.tuned_given then
        diag.add(errors, entry.file, entry.place, message)
    else
        notes[#notes + 1] = ("%s:%d:%d: %s"):format(entry.file, entry.place.line, entry.place.col, message)
    end
end

-- `over` laid over `base`, both maps or nil: a new map, whose values from `base` are marked as tuned.
local function under(base, over)
    local out, known = {kind = "map", line = base.line, col = base.col, len = base.len, tuned = true, entries = {}}, {}
    for i, pair in ipairs(base.entries) do
        local value = pair.value.kind == "map" and under(pair.value, {entries = {}}) or setmetatable({tuned = true}, {__index = pair.value})
        out.entries[i], known[pair.key.value] = {key = pair.key, value = value}, i
    end
    for _, pair in ipairs(over and over.entries or {}) do
        local i = known[pair.key.value]
        local before = i and base.entries[i].value
        out.entries[i or #out.entries + 1] = before and before.kind == "map" and pair.value.kind == "map"
            and {key = pair.key, value = under(before, pair.value)} or pair
    end
    return out
end

-- A selected spec with the plan of an entry, under the keys that it has itself.
function tuned.under(raw, entry)
    local out, map = {}, {entries = {}}
    for key, value in pairs(raw) do
        out[key] = value
    end
    out.map = setmetatable(map, {__index = raw.map})
    local given = at(raw.map, "plan")
    if given and given.kind ~= "map" then   -- null
        given = nil
    end
    for _, pair in ipairs(raw.map.entries) do
        map.entries[#map.entries + 1] = pair.key.value ~= "plan" and pair or nil
    end
    map.entries[#map.entries + 1] = {key = {kind = "scalar", value = "plan", line = 0, col = 0, len = 1}, value = under(entry.plan, given)}
    return out
end

return tuned
