-- SPDX-License-Identifier: Apache-2.0
-- compose.lua - jobs, and kernels that are made of others.
--
-- A family may name parts in its header: parts = function(spec, plan) -> list of {name, family, spec, plan=}, where spec holds
-- values as a checked spec has them (nil: the default of the part's family), and plan is the path of the key of the whole that
-- holds the part's plan; of_tokens = true in the row: each token is a row of the part. Every part goes through the pipeline like a
-- kernel of its own, in the spelling of the whole, and becomes static C in the same file:
--
--   $(parts.<name>.text)        its argument structure, constants, tiles and C, every name of file scope prefixed
--   $(parts.<name>.args)        tag of the argument structure;  .entry, .workspace: its two functions
--   $(parts.<name>.status)      what to add to a status of the part to make it one of the whole
--
-- `parts` is also the list of them. Code of the template fills the structures and calls the entries, with a barrier between
-- two parts that share memory.
local diag = require "diag"
local emit = require "kernel.emit"
local entry = require "vector.entry"
local planner = require "planner"
local schema = require "schema"
local symbols = require "c.symbols"
local template = require "render.template"
local tile_text = require "vector.tile_text"
local c_words = require "words"   -- gen/host/words.c

local compose = {}

local function value_of(x, ...)
    if type(x) == "function" then
        return x(...)
    end
    return x
end

-- A kernel on its way: what is known before its C is made. title: its name;
-- name: what stands for that in C, see symbols.lua. Parts and what depends on the request are added later.
function compose.job(family, spec, plan, info)
    local flags = {}
    for word in plan.isa.gcc:gmatch("%S+") do
        flags[#flags + 1] = word
    end
    return {family = family, spec = spec, plan = plan, info = info, title = spec.name, name = symbols.SELF,
            args = family.args(spec, plan), parts = {},
            dims = value_of(family.dims, spec), statuses = {table.unpack(value_of(family.statuses, spec) or {})},
            computes = value_of(family.computes, spec),
            isa = plan.isa, requires = {table.unpack(plan.requires)}, cflags = flags,
            work = family.work and family.work(spec) or {}}
end

-- Preparing the parts ----------------------------------------------------------------------------------------------

-- A map of values as a map node of a spec, see schema.fill. plan: such a node, or none
local function node_of(values, plan)
    local node = {kind = "map", entries = {}}
    for name, value in pairs(values) do
        node.entries[#node.entries + 1] = {key = {kind = "scalar", value = name}, value = {kind = "value", value = value}}
    end
    if plan then
        node.entries[#node.entries + 1] = {key = {kind = "scalar", value = "plan"}, value = plan}
    end
    return node
end

-- Complaints about a part name it. They have the place of what the user wrote of it, its plan; the rest has none.
local function complain(errors, own, name)
    for _, e in ipairs(own) do
        errors[#errors + 1] = {file = e.file, line = e.line, col = e.col, len = e.len, message = ("%s: %s"):format(name, e.message),
            hint = e.hint, source = e.source, status = e.status}
    end
end

-- The map of a part's plan as the user wrote it; keys that no plan of its family has are complained of and left out.
local function plan_of(whole, row, family, own)
    local node = row.plan and rawget(whole.info.place, row.plan)
    if not node then
        return nil
    end
    local type = schema.row(family, "plan")[2]
    local names = schema.types.names(type.rows)
    local known, entries = {}, {}
    for _, name in ipairs(names) do
        known[name] = true
    end
    for _, pair in ipairs(node.entries) do
        if known[pair.key.value] then
            entries[#entries + 1] = pair
        else
            diag.add(own, whole.info.file, pair.key, ("this kernel does not use %s"):format(pair.key.value),
                "it may use " .. table.concat(names, ", "))
        end
    end
    return setmetatable({entries = entries}, {__index = node})
end

local function part_job(whole, row, req)
    local name, family, own = row[1], template.family(row[2]), {}
    local values = {}
    for key, value in pairs(row[3]) do
        values[key] = value
    end
    values.target, values.spelling = whole.plan.emulated and "scalar" or whole.spec.target, whole.plan.spelling
    local map = node_of(values, plan_of(whole, row, family, own))
    local raw = {map = map, file = whole.info.file, family = row[2], name = whole.name .. "_" .. name, part = true,
                 origin = {name = "default", kernel = "default"}}
    local spec, info = schema.check(raw, family, own)
    local plan = spec and planner.choose(family, spec, req, info)
    complain(whole.info.errors, own, name)
    if not plan or plan.measure or #own > 0 then
        return nil, plan and plan.measure
    end
    assert(plan.isa.lanes == whole.plan.isa.lanes, "parts share functions on vectors of one length")
    plan.rejected = {}   -- the whole has said it
    local job = compose.job(family, spec, plan, info)
    job.name, job.part, job.bare, job.base = raw.name, name, whole.bare, #whole.statuses
    job.of_tokens = row.of_tokens
    return job
end

-- The words of a list that another lacks, added to it.
local function add_words(list, words)
    for _, word in ipairs(words) do
        local known = false
        for _, w in ipairs(list) do
            known = known or w == word
        end
        list[#list + 1] = not known and word or nil
    end
end

-- Amounts of work where each token is a row, of one expert.
local work_of_tokens = {flops_per_row = "flops_per_token", weight_bytes_per_expert = "weight_bytes"}

-- The whole needs what the part needs, gives its statuses after its own, and does its work.
local function add_part(job, part)
    job.parts[#job.parts + 1] = part
    job.tiled = job.tiled or part.plan.tiled
    add_words(job.requires, part.requires)
    add_words(job.cflags, part.cflags)
    if part.plan.isa.rank > job.isa.rank then
        job.isa = part.plan.isa
    end
    for _, text in ipairs(part.statuses) do
        job.statuses[#job.statuses + 1] = part.part .. ": " .. text
    end
    for key, count in pairs(part.work) do
        key = part.of_tokens and work_of_tokens[key] or key
        job.work[key] = (job.work[key] or 0) + count
    end
end

-- Adds the parts that a job's family names: job.parts; the tensors of the whole may depend on their plans. Complaints go to
-- job.info.errors. Returns a property of the CPU that has to be measured first, if there is one.
function compose.prepare(job, req)
    for _, row in ipairs(job.family.parts and job.family.parts(job.spec, job.plan) or {}) do
        local part, measure = part_job(job, row, req)
        if measure then
            return measure
        elseif part then
            add_part(job, part)
        end
    end
    if #job.parts > 0 then
        job.args = job.family.args(job.spec, job.plan, job.parts)
    end
end

-- Their C ----------------------------------------------------------------------------------------------------------

-- Names that a C text, with these constants, defines at file scope, as a set.
local function definitions(text, constants)
    local set = c_words.defined(text)
    for _, row in ipairs(constants or {}) do
        set[row[1]] = true
    end
    return set
end

-- Sets the holes that every template has, but for includes.
function compose.fill(job, names, preamble, tiles)
    names.name = job.name
    names.tiles = preamble ~= "" and preamble .. "\n" .. tiles or tiles
    names.args_struct = emit.args_struct(job)
    names.entry = job.part and "" or entry.text(job)
    names.constants = names.constants and emit.constants(names.constants, job) or ""
end

local MARK <const> = "// tiles\n"

-- The C of one part; nil and a sentence when a tile does not fit.
local function part_text(job, shared)
    local names = job.family.names(job.spec, job.plan, job)
    local tiles, why = tile_text.tiles(job, names, shared)
    if not tiles then
        return nil, job.part .. ": " .. why
    end
    local constants = names.constants
    compose.fill(job, names, "", MARK)
    names.includes = ""
    local text = template.render(job.family, names, job.bare)
    local map = definitions(text, constants)
    map[job.name .. "_args"] = nil
    for name in next, map do   -- in any order
        map[name] = job.part .. "_" .. name
    end
    for _, list in ipairs{job.args, job.dims} do
        for _, row in ipairs(list) do
            local name = type(row) == "table" and row[1] or row
            assert(not map[name], name .. " names a tensor or size and something at file scope")
        end
    end
    text = c_words.renamed(text, map):gsub("^%s+", "")
    local workspace = "int64_t " .. job.name .. "_workspace("
    text = c_words.replaced(text, workspace, "static " .. workspace)
    local at, stop = text:find(MARK, 1, true)
    if at then
        text = text:sub(1, at - 1) .. tiles .. text:sub(stop + 1)
    end
    return job.bare and text or require("kernel.banner").part(job) .. text
end

-- What the template of a job sees as `parts`; nil and a sentence when a tile does not fit. Adds to `shared`.
function compose.render(job, shared)
    local parts = {}
    for i, part in ipairs(job.parts) do
        local text, why = part_text(part, shared)
        if not text then
            return nil, why
        end
        parts[i] = {name = part.part, text = text, args = part.name .. "_args", entry = part.part .. "_on_rank",
                    workspace = part.name .. "_workspace", status = part.base, job = part}
        parts[part.part] = parts[i]
        job.peak = math.max(job.peak, part.peak)
        job.operations = job.operations + part.operations
    end
    return parts
end

return compose
