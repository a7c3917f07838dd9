-- SPDX-License-Identifier: Apache-2.0
-- micro.lua - the step that all micro-kernels have in common: sums of a tile += a column of A times a row of B, which is in lanes.
--
-- A word is what a lane multiplies in a step: an f32, or a pair of 16-bit elements whose two products a dot instruction adds.
-- Everything around a step (panels, strides, blocks of k) counts in words.
local dtype = require "dtype"
local quantise = require "product.quantise"

local micro = {}

-- How a tile multiplies: op that broadcasts a word of A, op that multiplies and adds, op that does both (if the target has it),
-- and elements to a word. load, join: how `group` rows of weights become a row of words.
micro.widened = {
    bcast = "bcast", multiply = "fma", both = "fma_bcast", group = 1,
    load = quantise.load,
    join = function(_, _, x) return x end,
}

function micro.pairs(dt)
    return {
        bcast = "bcast_pair", multiply = dt.dot, both = dt.dot .. "_bcast", group = 2,
        load = function(p, _, name, at)
            return p:op("load_u16", name, at)
        end,
        join = function(p, name, low, high)
            return p:op("bit_or", name, low, p:op("shl", name .. "_up", high, 16))
        end,
    }
end

-- Of a plan with so many elements to a word (1, if it says nothing).
function micro.of(plan, dtype_name)
    return (plan.group or 1) > 1 and micro.pairs(dtype[dtype_name]) or micro.widened
end

-- acc[r][v] += a(r) * b(v), for all rows and so many vectors: a and b give places in memory.
function micro.step(p, how, acc, vectors, a, b)
    local x = {}
    for v = 0, vectors - 1 do
        x[v] = p:op("load", "b_" .. v, b(v))
    end
    for r = 0, #acc do
        p:row(r)
        if vectors == 1 and p:has(how.both) then
            p:op(how.both, acc[r][0], x[0], a(r))
        else
            local y = p:op(how.bcast, "a_" .. r, a(r))
            for v = 0, vectors - 1 do
                p:op(how.multiply, acc[r][v], y, x[v])
            end
        end
    end
    p:row(nil)
end

return micro
