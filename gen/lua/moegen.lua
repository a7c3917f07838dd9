-- SPDX-License-Identifier: Apache-2.0
-- moegen.lua - the generator: from a request to C text. Every step, in order, is in build().
--
-- A request is a table made by gen/host/request.c: file, root (the spec as a tree of nodes with places), kernel (name in a model
-- file), sets (overrides), features (of the CPU), props (measured properties of it), measures (may more be asked for?), purpose
-- ("jit" or "file"), command, digest, generator; of tuned plans: cpu (its kind), threads (of calls that ask for none; nil: as the
-- spec says), cpus, tuned (a list of {file, root} or {file, fault}), tuned_given (an override names the only one), tunes (are they
-- for this purpose, unless the spec says no?).
local compose = require "kernel.compose"
local diag = require "diag"
local emit = require "kernel.emit"
local planner = require "planner"
local print_data = require "vector.print_data"
local schema = require "schema"
local source = require "source"
local space = require "space"
local symbols = require "c.symbols"
local template = require "render.template"
local tensors = require "kernel.tensors"
local tile_text = require "vector.tile_text"
local tuned = require "tuned"

local moegen = {}

local function all_families()
    local list = {}
    for _, name in ipairs(source.families()) do
        list[#list + 1] = template.family(name)
    end
    return list
end

-- The keys of all families, as a set: found by the build, or here with a source tree.
function moegen.keys()
    local built = source.chunk("families", "keys")
    if built then
        return built()
    end
    local set = {}
    for _, family in ipairs(all_families()) do
        for _, row in ipairs(family.keys) do
            set[row[1]] = true
        end
    end
    return set
end

-- The plan of a checked spec. nil: see prepare.
local function plan_job(req, family, spec, info, errors)
    local plan = planner.choose(family, spec, req, info)
    if not plan or plan.measure or #errors > 0 then
        return nil, plan and plan.measure
    end
    local job = compose.job(family, spec, plan, info)
    job.command, job.digest, job.generator = req.command or "moegen", req.digest or "", req.generator or ""
    job.bare = req.purpose == "jit" and plan.spelling ~= "intrinsics"
    local measure = compose.prepare(job, req)                         -- kernels of other families inside it
    return not measure and #errors == 0 and job or nil, measure
end

-- The same with a tuned plan, and nothing where that is refused.
local function tuned_job(req, family, raw, entry, errors, notes)
    local own, job, measure = {}, nil, nil
    local spec, info = schema.check(tuned.under(raw, entry), family, own, {families = all_families, keys = moegen.keys})
    if spec then
        job, measure = plan_job(req, family, spec, info, own)
    end
    local target = job and (job.plan.emulated and "scalar" or job.plan.isa.name)
    if measure or target == entry.target then
        return job, measure
    end
    tuned.refuse(entry, own[1] and own[1].message or ("it is for target %s, not %s"):format(entry.target, target), req, errors, notes)
end

-- Spec and plan of a request. Otherwise nil: complaints are in errors, or the second result is a property of the CPU to
-- measure before the request is made again. notes: sentences on tuned plans; untuned: without them
local function prepare(req, errors, notes, untuned)
    local raw = schema.select(req, errors, source.families())
    local wish = raw and tuned.wish(raw, req, errors)
    if not wish then
        return nil
    end
    local family = template.family(raw.family)
    local spec, info = schema.check(raw, family, errors, {families = all_families, keys = moegen.keys})
    if not spec then
        return nil
    end
    local entry = not untuned and tuned.find(req, wish, family, spec, errors, notes)
    if entry then
        local job, measure = tuned_job(req, family, raw, entry, errors, notes)
        if job or measure then
            if job then
                job.tuned = entry
            end
            return job, measure
        end
    end
    local job, measure = plan_job(req, family, spec, info, errors)
    if job then
        job.raw = raw
    end
    return job, measure
end

-- A tile does not fit: the plan asks for too many rows, of the whole or of a part.
local function complain_of_tile(job, why, errors)
    for _, one in ipairs{job, table.unpack(job.parts)} do
        for _, key in ipairs{"plan.tile_rows", "plan.direct_rows"} do
            local place = rawget(one.info.place, key)
            if place then
                return diag.add(errors, job.info.file, place, why, "take fewer rows")
            end
        end
    end
    schema.complain(job.info, "plan", why)
end

-- Errors, or the C text, header and metadata of one kernel. The second result: a tuned plan that has no tiles.
local function build(req, notes, untuned)
    local errors = {}
    local job, measure = prepare(req, errors, notes, untuned)         -- checked spec, plan with reasons
    if not job then
        return {errors = errors, measure = measure}
    end
    local shared = tile_text.shared()
    local names = job.family.names(job.spec, job.plan, job)           -- what the template's holes refer to
    local tiles, why = tile_text.tiles(job, names, shared)                 -- vector programs, allocated and printed
    if tiles then
        names.parts, why = compose.render(job, shared)                -- C of the parts
    end
    if not tiles or not names.parts then
        complain_of_tile(job, why, errors)
        return {errors = errors}, job.tuned
    end
    compose.fill(job, names, tile_text.preamble(job, shared), tiles)
    names.includes = emit.includes(job, shared.code)
    local text = template.render(job.family, names, job.bare)  -- C
    local file = not job.bare and require "c.fit"                       -- lines that a reader's window holds
    text = (file and require("kernel.banner").file(job, text) or "") .. symbols.named(text, job.title, emit.members(job))
    return {name = job.title, c = file and file.text(text) or text, h = file and file.text(emit.header(job)) or "",
            code = print_data.code(shared.code), meta = emit.meta(job),
            notes = table.move(job.info.notes or {}, 1, #(job.info.notes or {}), #notes + 1, notes)}
end

function moegen.build(req)
    local notes = {}
    local made, entry = build(req, notes)
    if entry and not req.tuned_given then
        tuned.refuse(entry, made.errors[1].message, req, made.errors, notes)
        made = build(req, notes, true)
    end
    return made
end

-- Text for explain: the plan of a job or part, and what multiplies in its products. of: " of" the part
local function explain_plan(job, of)
    local names = job.family.names(job.spec, job.plan, job)
    local products = rawget(names, "products")
    return ("plan%s\n"):format(of) .. emit.explain(job.plan)
        .. (products and ("products%s\n"):format(of) .. products(names, job.plan) or "")
end

function moegen.explain(req)
    local errors, notes = {}, {}
    local job, measure = prepare(req, errors, notes)
    if not job then
        return {errors = errors, measure = measure}
    end
    local out = {("%s  (%s)\n"):format(job.title, job.family.family)}
    for _, text in ipairs(schema.flatten(job.spec)) do
        local key, value = text:match("^(%S+) (.*)$")
        out[#out + 1] = ("  %-24s %-10s %s\n"):format(key, value, tostring(job.info.origin[key] or "default"))
    end
    if job.tuned then
        out[#out + 1] = "tuned plan\n  " .. tuned.text(job.tuned) .. "\n"
    end
    for _, text in ipairs(notes) do
        out[#out + 1] = "note: " .. text .. "\n"
    end
    out[#out + 1] = "tensors\n" .. tensors.explain(job.args)
    out[#out + 1] = explain_plan(job, "")
    for _, part in ipairs(job.parts) do
        out[#out + 1] = explain_plan(part, (" of %s (%s)"):format(part.part, part.family.family))
    end
    return {text = table.concat(out)}
end

-- What `moegen tune` may try, see space.lua.
function moegen.space(req)
    local errors = {}
    local job, measure = prepare(req, errors, {}, true)
    return job and {items = space.of(job, job.raw)} or {errors = errors, measure = measure}
end

-- Where the entries of a file of tuned plans are, and what they are for.
function moegen.entries(req)
    local errors = {}
    local items = space.entries(req, errors)
    return #errors == 0 and {items = items} or {errors = errors}
end

function moegen.kernels(req)
    local errors = {}
    local names = schema.kernels(req, errors)
    return names and {names = names} or {errors = errors}
end

function moegen.schema()
    return {text = schema.json(all_families())}
end

local listings = {
    kernels = function(add)
        for _, family in ipairs(all_families()) do
            add(family.family, family.summary)
        end
    end,
    activations = function(add)
        local activation = require "math.activation"
        for _, name in ipairs(activation.order) do
            add(name, activation[name].says)
        end
    end,
    dtypes = function(add)
        local dtype = require "dtype"
        for name, row in pairs(dtype) do
            add(name, ("%d byte%s, %s in C"):format(row.size, row.size > 1 and "s" or "", row.c))
        end
    end,
    targets = function(add)
        add("scalar", "any CPU: plain C99")
        for _, isa in ipairs(planner.targets()) do
            add(isa.name, isa.summary .. "; products: " .. planner.multipliers(isa) .. "; needs " .. table.concat(isa.requires, " "))
        end
    end,
    keys = function(add, only)
        for _, family in ipairs(only and {template.family(only)} or all_families()) do
            for _, key in ipairs(schema.keys(family)) do
                add(only and key.key or family.family .. ": " .. key.key, ("%s%s  %s"):format(key.type,
                    key.default and " [" .. tostring(key.default) .. "]" or "", key.doc or ""))
            end
        end
    end,
}

-- what: a listing, or "keys FAMILY"
function moegen.list(what)
    local items, text, errors, families = {}, {}, {}, source.families()
    local name, family = what:match("^(%S*)%s*(.*)$")
    local listing, known = listings[name], false
    for _, one in ipairs(families) do
        known = known or one == family
    end
    if not listing then
        diag.add(errors, nil, nil, ("there is no list of %s"):format(diag.quote(name)),
            diag.hint(name, {"kernels", "activations", "dtypes", "formats", "targets", "keys"}))
    elseif family ~= "" and name ~= "keys" then
        diag.add(errors, nil, nil, ("a list of %s takes no %s"):format(name, diag.quote(family)), "`moegen list keys FAMILY`")
    elseif family ~= "" and not known then
        diag.add(errors, nil, nil, ("there is no kernel family %s"):format(diag.quote(family)), diag.hint(family, families))
    end
    if #errors > 0 then
        return {errors = errors}
    end
    listing(function(item, says)
        items[#items + 1] = {name = item, text = says}
        text[#text + 1] = ("%-28s %s\n"):format(item, says)
    end, known and family or nil)
    return {text = table.concat(text), items = items}
end

return moegen
