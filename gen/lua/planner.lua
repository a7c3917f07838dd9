-- SPDX-License-Identifier: Apache-2.0
-- planner.lua - choices that the spec leaves open: target, spelling, tile shape, blocking; each with its reason.
--
-- A plan is an ordered list of {key, value, why}; keys can be overridden in the spec (`plan: {nc: 3}` or `--set plan.nc=3`).
local dtype = require "dtype"
local schema = require "schema"
local target = require "target"

local planner = {}

local fixed = {target = true, spelling = true, shard = true, parts = true, threads = true}   -- choices that are no keys of `plan`

local Plan = {}
Plan.__index = Plan

-- What a given value comes to, and why: see Plan:choose.
local function resolve(plan, key, given, value, limits)
    local used, why = given, plan.info.origin["plan." .. key] == "tuned" and "tuned" or "given"
    if limits.useful and given > math.max(limits.useful, value) then
        used = math.max(limits.useful, value)
        why = ("given %d; %s"):format(given, limits.of)
    end
    local whole = limits.step and math.max(used // limits.step, 1) * limits.step
    if whole and whole ~= used then
        used, why = whole, ("given %d; whole steps of %d"):format(given, limits.step)
    end
    if limits.most and used > limits.most then
        schema.complain(plan.info, "plan." .. key, ("%s: %d is more than %d: %s"):format(key, given, limits.most, limits.because))
        return value, "refused"
    end
    return used, why
end

-- Choose a value, unless the spec's `plan` map gives one. A key of that map that is never chosen is refused: the kernel does not
-- use it. limits of a given value, in this order, each optional:
--   useful   more counts as so much, or as what would be chosen if that is more; `of` says why
--   step     it is rounded down to a multiple, but not to 0
--   most     more is refused; `because` says why
function Plan:choose(key, value, why, limits)
    local given = self.spec.plan and self.spec.plan[key]
    if given ~= nil and given ~= false then
        value, why = resolve(self, key, given, value, limits or {})
    end
    self[key] = value
    self.choices[#self.choices + 1] = {key = key, value = value, why = why}
    return value
end

planner.targets, planner.multipliers = target.all, target.multipliers

local function missing(isa, features)
    local list = {}
    for _, feature in ipairs(isa.requires) do
        if not features[feature] then
            list[#list + 1] = feature
        end
    end
    return list
end

-- Does a kernel give numbers that a target rounds by an instruction, or take or give some that it converts by one, which the target that it
-- extends has not, or has another for?
local function converts(isa, family, spec)
    local below = target.load(isa.extends)
    local function adds(op) return op and isa.rows[op] ~= below.rows[op] end
    for _, arg in ipairs(family.args(spec)) do
        local dt, gives = dtype[arg[2]] or {}, arg[3]:find("out")
        if gives and (adds(dt.round) or adds(dt.store)) or not gives and adds(dt.load) then
            return true
        end
    end
    return false, "no plan of this family uses what it adds"
end

-- Has the family a use for what a target adds to the one that it extends? family.uses(isa, spec, props) says so, and why; or
-- that it wants a property of the CPU measured first, which goes to plan.measure. Without props: if it can be used at all.
-- The answer stays in plan.pays. Every family has a use for what converts its numbers.
local function useful(plan, isa, family, spec, req, props)
    if not isa.extends then
        return true
    elseif not family.uses then
        return converts(isa, family, spec)
    end
    local use, why, property = family.uses(isa, spec, props)
    if property then
        plan.measure = req.measures and property
        why = property .. " of this CPU is not known"
    end
    plan.pays, plan.used = use or false, why
    return use or converts(isa, family, spec) or false, why
end

-- Target and spelling. Rejected candidates are kept with the reason in plan.rejected.
local function choose_target(plan, family, spec, req)
    local targets = planner.targets()
    local wanted, instead = spec.target, nil
    local features = req.features or {}
    if wanted == "scalar" then
        plan.isa, plan.emulated = target.portable(), true
        plan:choose("target", plan.isa.name, "any CPU: its program is spelled in plain C")
        return
    end
    for _, isa in ipairs(targets) do
        local lacks = missing(isa, features)
        if wanted == isa.name then
            local use, why = useful(plan, isa, family, spec, req)
            if use then
                plan.isa = isa
                plan:choose("target", isa.name, instead or "asked for")
            else   -- as if the one below it had been
                wanted, instead = isa.extends, instead or ("%s: %s"):format(isa.name, why)
            end
        elseif wanted == "auto" and #lacks > 0 then
            plan.rejected[#plan.rejected + 1] = {isa.name, "this CPU lacks " .. table.concat(lacks, ", ")}
        elseif wanted == "auto" and not plan.isa then
            local use, why = useful(plan, isa, family, spec, req, req.props or {})
            if use then
                plan.isa = isa
                plan:choose("target", isa.name, "the best that this CPU has")
            else
                plan.rejected[#plan.rejected + 1] = {isa.name, why}
            end
        elseif wanted == "auto" then
            plan.rejected[#plan.rejected + 1] = {isa.name, plan.isa.name .. " is better"}
        end
    end
    if not plan.isa and wanted == "auto" then
        plan.isa, plan.emulated = target.portable(), true
        plan:choose("target", plan.isa.name, "no vector target fits this CPU: plain C")
    end
end

local function choose_spelling(plan, spec, req, info)
    local wanted = spec.spelling
    if plan.emulated then
        if wanted ~= "auto" and wanted ~= "scalar" then
            schema.complain(info, "spelling", ("the scalar target has no %s spelling"):format(wanted), nil, "unsupported")
        end
        return plan:choose("spelling", "scalar", "the target is plain C")
    elseif wanted ~= "auto" then
        local lacks = missing(plan.isa, req.features or {})
        if #lacks > 0 and wanted ~= "scalar" and req.purpose == "jit" then
            schema.complain(info, "target", ("target %s in %s spelling cannot run here: this CPU lacks %s"):format(plan.isa.name,
                wanted, table.concat(lacks, ", ")), "spelling scalar runs on any CPU", "unsupported")
        end
        return plan:choose("spelling", wanted, "asked for")
    elseif req.purpose == "jit" then
        local lacks = missing(plan.isa, req.features or {})
        if #lacks > 0 then
            return plan:choose("spelling", "scalar", "this CPU lacks " .. table.concat(lacks, ", ") .. ": emulated")
        end
        return plan:choose("spelling", "bytes", "libtcc assembles bytes in milliseconds")
    end
    return plan:choose("spelling", "intrinsics", "readable, and any optimising compiler takes it")
end

-- Complains of given keys that the family's plan did not choose.
local function refuse_unused(plan, spec, info)
    local chosen, names, unused = {}, {}, {}
    for _, c in ipairs(plan.choices) do
        chosen[c.key] = true
        names[#names + 1] = not fixed[c.key] and c.key or nil
    end
    for key, value in pairs(spec.plan or {}) do
        if not chosen[key] and type(value) ~= "table" then   -- a table: of a part, which has a plan of its own
            unused[#unused + 1] = key
        end
    end
    table.sort(unused)
    for _, key in ipairs(unused) do
        schema.complain(info, "plan." .. key, ("this kernel does not use %s"):format(key), "it uses " .. table.concat(names, ", "))
    end
end

-- Plan for a checked spec, or nil after complaints. family.plan adds the family's own choices. With `measure`, the plan is
-- none yet: it depends on the property of the CPU of this name, which req.props lacks; 0 there: it cannot be measured.
function planner.choose(family, spec, req, info)
    local plan = setmetatable({spec = spec, info = info, choices = {}, rejected = {}}, Plan)
    choose_target(plan, family, spec, req)
    if plan.measure then
        return plan
    elseif not plan.isa then
        return nil
    end
    choose_spelling(plan, spec, req, info)
    if family.plan then
        family.plan(plan, spec, req, info)
    end
    refuse_unused(plan, spec, info)
    if spec.shard and spec.shard.cores ~= "auto" then
        plan:choose("threads", spec.shard.cores, "spec; a caller may ask for another number")
    end
    plan.requires = plan.spelling == "scalar" and {} or plan.isa.requires
    return plan
end

-- Text for `moegen explain`.
function planner.explain(plan)
    local out = {}
    for _, c in ipairs(plan.choices) do
        out[#out + 1] = ("  %-12s %-10s %s"):format(c.key, tostring(c.value), c.why)
    end
    for _, r in ipairs(plan.rejected) do
        out[#out + 1] = ("  %-12s %-10s %s"):format("not", r[1], r[2])
    end
    return table.concat(out, "\n") .. "\n"
end

return planner
