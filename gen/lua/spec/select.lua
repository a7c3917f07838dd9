-- SPDX-License-Identifier: Apache-2.0
-- select: the keys of one kernel, out of a one-kernel spec or a model file, with the overrides applied.
local diag = require "diag"
local symbols = require "c.symbols"
local types = require "spec.types"

local select = {}
local quote, is_null = diag.quote, types.is_null

local function find(map, name)
    for _, entry in ipairs(map.entries) do
        if entry.key.value == name then return entry end
    end
    return nil
end

-- Laid over `base`, key by key; maps merge, everything else is replaced. Returns a new map and leaves both alone.
-- shared: mark keys that base lacks as shared. clash(name, old): called where a part of a map is set in what is none.
local function merge(base, over, shared, clash)
    local out, at = { kind = "map", line = base.line, col = base.col, len = base.len, set = base.set, entries = {} }, {}
    for i, entry in ipairs(base.entries) do
        out.entries[i], at[entry.key.value] = entry, i
    end
    for _, entry in ipairs(over.entries) do
        local i = at[entry.key.value] or #out.entries + 1
        local old, value = out.entries[i], entry.value
        if old and old.value.kind == "map" and value.kind == "map" then
            value = merge(old.value, value, nil, clash)
        elseif old and value.part and not is_null(old.value) and clash then
            clash(entry.key.value, old.value)
        end
        out.entries[i] = { key = entry.key, value = value, shared = shared and (not old or old.shared) }
        at[entry.key.value] = i
    end
    return out
end

local function mark(node, label)
    node.set = label
    for _, item in ipairs(node.items or {}) do mark(item, label) end
    for _, entry in ipairs(node.entries or {}) do
        entry.key.set = label
        mark(entry.value, label)
    end
end

-- `shard.on` = node as a map node { shard: { on: node } }; nil after a complaint.
local function nested(set, errors)
    local label, names = set.label, {}
    local place = { line = 0, set = label }
    for name in (set.key .. "."):gmatch "([^.]*)%." do names[#names + 1] = name end
    for _, name in ipairs(names) do
        if not name:find "^[%a_][%w_]*$" or #names > 8 then
            diag.add(errors, nil, place, quote(set.key) .. " is not a key", "write key=value or key.part=value")
            return nil
        end
    end
    if names[1] == "kernels" then
        diag.add(errors, nil, place, "an override changes the chosen kernel's keys, not the list of kernels",
            "choose with SPEC:NAME and leave `kernels.NAME.` out")
        return nil
    end
    mark(set.node, label)
    local node = set.node
    for i = #names, 1, -1 do
        local key = { kind = "scalar", value = names[i], plain = true, line = 0, col = 0, len = 1, set = label }
        node = { kind = "map", line = 0, col = 0, len = 1, set = label, part = true,
             entries = { { key = key, value = node } } }
    end
    return node
end

local function apply_sets(map, req, model, errors)
    for _, set in ipairs(req.sets or {}) do
        local over = nested(set, errors)
        if over then
            map = merge(map, over, model, function(name, old)
                local is = old.kind == "scalar" and quote(old.value) or "a " .. old.kind
                diag.add(errors, nil, { line = 0, set = set.label },
                    ("'%s' is %s in the spec, not a map"):format(name, is), ("set all of it: %s={...}"):format(name))
            end)
        end
    end
    return map
end

local function is_map(node, file, what, errors)
    if node.kind == "map" then return true end
    local hint = node.kind == "scalar" and node.value:find "^[%a_][%w_.]*:[^%s]" and "missing space after ':'" or nil
    diag.add(errors, file, node, what .. " must be a map of keys, such as `kernel: moe_forward`", hint)
    return false
end

-- Names of the kernels in req.root: those of `kernels:`, or {""} for a spec of one kernel. nil after complaints.
function select.kernels(req, errors)
    if not is_map(req.root, req.file, "a spec", errors) then return nil end
    local entry = find(req.root, "kernels")
    if not entry then return { "" } end
    if not is_map(entry.value, req.file, "'kernels'", errors) then return nil end
    if #entry.value.entries == 0 then
        diag.add(errors, req.file, entry.value, "'kernels' names no kernel")
        return nil
    end
    local names, sound = {}, true
    for i, kernel in ipairs(entry.value.entries) do
        local name = kernel.key.value
        names[i] = name
        if not name:find "^[%w_]+$" or #name > 63 then
            diag.add(errors, req.file, kernel.key, quote(name) .. " is not a kernel's name",
                "use letters, digits and '_', at most 63")
            sound = false
        end
        if kernel.value.kind ~= "map" then   -- of hundreds, most are
            sound = is_map(kernel.value, req.file, "'kernels." .. name .. "'", errors)
        end
    end
    return sound and names or nil
end

-- The entry of `kernels:` that the request names (or the only one); nil after a complaint.
local function choose(req, kernels, names, errors)
    if req.kernel and req.kernel ~= "" then
        local entry = find(kernels.value, req.kernel)
        if entry then return entry end
        diag.add(errors, req.file, kernels.key, ("no kernel %s in this file"):format(quote(req.kernel)),
            diag.hint(req.kernel, names))
        return nil
    end
    if #names == 1 then return kernels.value.entries[1] end
    diag.add(errors, req.file, kernels.key, ("the file has %d kernels: name one"):format(#names),
        ("for instance %s:%s"):format(req.file, names[1]))
    return nil
end

-- Takes an always-legal text key out of the map; returns its value node.
local function take(map, name)
    local entry
    for i = #map.entries, 1, -1 do
        if map.entries[i].key.value == name then entry = table.remove(map.entries, i) end
    end
    return entry and not is_null(entry.value) and entry.value or nil
end

local function sound_name(node, name, file, errors)
    local fault
    if node and node.kind ~= "scalar" then
        fault = ("a %s is not a name"):format(node.kind)
    elseif not name:find "^[%a_][%w_]*$" then
        fault = quote(name) .. " is not a C name: letters, digits and '_', not beginning with a digit"
    elseif #name > 64 then
        fault = ("%s has %d characters; at most 64 are allowed"):format(quote(name), #name)
    else
        local why = symbols.fault(name)
        if not why then return name end
        fault = quote(name) .. " " .. why
    end
    diag.add(errors, file, node, "name: " .. fault)
    return nil
end

-- A name for what has none: the file's stem, or the family.
local function stem(file, family)
    local base = (file or ""):match "([^/]+)%.ya?ml$"
    if not base then return family end
    base = base:gsub("[^%w_]", "_"):sub(1, 62)
    return (base:find "^%d" or symbols.fault(base)) and "k_" .. base or base
end

-- The family: value of `kernel`, one of `families` (a list; nil: anything).
local function family_of(map, node, file, families, errors)
    if not node then
        diag.add(errors, file, map, "key 'kernel' is missing: the kernel's family", "see `moegen list kernels`")
        return nil
    end
    if node.kind ~= "scalar" then
        diag.add(errors, file, node, "kernel: a " .. node.kind .. " is not the name of a kernel family")
        return nil
    end
    for _, name in ipairs(families or { node.value }) do
        if name == node.value then return name end
    end
    diag.add(errors, file, node, ("kernel: %s is not a known kernel family"):format(quote(node.value)),
        diag.near(node.value, families) or "see `moegen list kernels`")
    return nil
end

-- The shared keys of a model file under the chosen kernel's own, and the node of the model's name (or nil).
local function under(root, kernels, chosen)
    local name
    local shared = { kind = "map", line = chosen.value.line, col = chosen.value.col, len = 1, entries = {} }
    for _, entry in ipairs(root.entries) do
        if entry.key.value == "name" then
            name = entry.value
        elseif entry ~= kernels then
            shared.entries[#shared.entries + 1] = { key = entry.key, value = entry.value, shared = true }
        end
    end
    return merge(shared, chosen.value), name
end

-- One kernel's keys: { map=, file=, family=, name=, kernel=, model=, origin= } or nil after complaints. In a model file
-- the kernel's own keys win over the shared ones, and overrides over both; keys not its own are marked `shared`.
function select.select(req, errors, families)
    local before = #errors
    local names = select.kernels(req, errors)
    if not names then return nil end
    local kernels, map = find(req.root, "kernels"), merge(req.root, { entries = {} })
    local chosen, model_name, name
    if kernels then
        chosen = choose(req, kernels, names, errors)
        if not chosen then return nil end
        map, model_name = under(req.root, kernels, chosen)
    elseif req.kernel and req.kernel ~= "" then
        diag.add(errors, req.file, req.root, ("no kernel %s: the spec has no `kernels` map"):format(quote(req.kernel)),
            "leave :" .. req.kernel .. " out")
        return nil
    end
    map = apply_sets(map, req, kernels ~= nil, errors)
    local own_name, family_node = take(map, "name"), take(map, "kernel")
    local family = family_of(map, family_node, req.file, families, errors)
    if own_name then
        name = sound_name(own_name, own_name.value, req.file, errors)
    elseif family then
        local base = model_name and not is_null(model_name) and (model_name.value or "") or stem(req.file, family)
        name = sound_name(model_name, chosen and base .. "_" .. chosen.key.value or base, req.file, errors)
    end
    if #errors > before then return nil end
    local function origin(node) return node and (node.set and "--set" or "spec") or "default" end
    return { map = map, file = req.file, family = family, name = name, kernel = req.kernel, model = kernels ~= nil,
           origin = { name = origin(own_name or model_name), kernel = origin(family_node) } }
end

return select
