-- SPDX-License-Identifier: Apache-2.0
-- limits.lua - what keys of a plan may be on a target and for the sizes of a problem: the limits of Plan:choose, see planner.lua.
local dtype = require "dtype"
local schema = require "schema"

local limits = {}

local PRODUCTS <const> = 512   -- at most, of f32 inputs in a sum in a register: more lose digits that the inputs have

limits.BLOCK_BYTES = 1 << 24   -- at most, of weights or rows that a rank holds to work on

-- Rows of a tile of so many sums each: these, `vectors` of columns (nil: as many as sums) and a value of a row are in registers.
function limits.tile(isa, sums, vectors)
    local registers = isa.registers.v
    return {most = (registers - (vectors or sums) - 1) // sums,
        because = ("sums of more rows do not fit into the %d registers of %s"):format(registers, isa.name)}
end

-- More than n is of no use; step: see Plan:choose.
function limits.useful(n, of, step)
    return {useful = n, of = of, step = step}
end

-- The same of products of a sum. given: it is an output in f32, whatever the dtype of its factors
function limits.sum(spec, n, of, step, given)
    local list = limits.useful(n, of, step)
    if given or not dtype[spec.dtype].narrow then
        list.most, list.because = PRODUCTS, "longer sums in f32 lose digits that the inputs have"
    end
    return list
end

-- Complains of steps that do not divide a panel.
function limits.check_steps(plan, info, key)
    local width = plan.vectors * plan.isa.lanes
    if width % plan[key] ~= 0 then
        schema.complain(info, "plan." .. key, ("steps of %d do not divide the %d columns of a panel"):format(plan[key], width))
    end
end

return limits
