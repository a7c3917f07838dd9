-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - products of rows with packed weights, see form.lua: what is planned, and the names that fragments refer to.
local dtype = require "dtype"
local packed = require "packed.form"
local panels = require "product.panels"

local plan_of = {}

-- Are elements in memory the words that tiles multiply?
local function in_place(spec, plan)
    return plan.group > 1 or not dtype[spec.dtype].narrow
end

-- back: the products are those of the way back
function plan_of.choose(plan, spec, back)
    if packed.are(spec) then
        local lies = in_place(spec, plan)
        local run = (lies and 1 or panels.block(plan)) * panels.depth(plan)
        plan.back = back
        plan:choose("run", run, ("elements of a row of weights packed for %s that lie together: %s"):format(
            back and "the way back" or "forward",
            lies and "of a panel, which tiles multiply where it lies" or "what tiles copy of it at a time"),
            {useful = run, of = lies and "tiles multiply panels of so many" or "tiles copy so many at a time", step = run})
    end
end

-- matrices: as stored.matrices has them. Adds packed: false, or {in_place, run, of[tensor] = form, see form.lua}, and what
-- tiles are to know.
function plan_of.names(names, cfg, spec, plan, matrices)
    names.packed, cfg.in_place = false, false
    if not packed.are(spec) then
        return
    end
    names.packed = {in_place = in_place(spec, plan), run = plan.run, of = {}, list = {}}
    cfg.in_place = names.packed.in_place
    for _, m in ipairs(matrices) do
        local tensor, form = m.name, packed.form(spec, plan, m)
        names.packed.of[tensor] = form
        names.packed.list[#names.packed.list + 1] = {tensor = tensor, bytes = table.concat({form.text:byte(1, -1)}, ", ")}
    end
    -- where an expert's first panel starts: C
    function names.packed.at(tensor, expert)
        local form = names.packed.of[tensor]
        return ("%s + %d"):format(names.matrix(tensor, expert, form.each), form.header)
    end
    names.copies_edges = names.copies_edges and not cfg.in_place
end

return plan_of
