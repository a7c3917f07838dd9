-- SPDX-License-Identifier: Apache-2.0
-- probe.lua - the tiles of the probe: as many independent FMA chains as hide the latency, and streaming reads.
local ir = require "ir"

local probe = {}

local chains, rounds = 10, 8      -- 10 accumulators: more than latency times throughput of any known core
local reads = 8                   -- vectors per iteration

function probe.params(_, plan)
    return {("probe.flops_per_iteration %d"):format(2 * chains * rounds * plan.isa.lanes)}
end

local function fma(isa, name)
    local p = ir.program(isa, name .. "_fma", {"Independent FMAs from registers."})
    local out, n = p:pointer("out", "float"), p:integer("n")
    local acc = {}
    for i = 1, chains do
        acc[i] = p:op("zero", "acc_" .. i)
    end
    local a, b = p:op("zero", "a"), p:op("zero", "b")
    p:loop(n, function()
        for _ = 1, rounds do
            for i = 1, chains do
                p:op("fma", acc[i], a, b)
            end
        end
    end, "rounds")
    for i = 3, chains do
        acc[1 + i % 2] = p:op("add", "sum_" .. i, acc[1 + i % 2], acc[i])
    end
    p:op("store", p:at(out, 0), acc[1])
    p:op("store", p:at(out, isa.lanes), acc[2])
    return p
end

local function read(isa, name)
    local p = ir.program(isa, name .. "_read", {"Reads a stream of vectors."})
    local out, from, n = p:pointer("out", "float"), p:pointer("from", "const float"), p:integer("n")
    local acc = {}
    for i = 1, 2 do
        acc[i] = p:op("zero", "acc_" .. i)
    end
    p:loop(n, function()
        for i = 1, reads do
            local x = p:op("load", "x_" .. i, p:at(from, (i - 1) * isa.lanes))
            p:op("fma", acc[1 + i % 2], x, x)
        end
        p:advance(from, reads * isa.lanes)
    end, "steps")
    p:op("store", p:at(out, 0), acc[1])
    p:op("store", p:at(out, isa.lanes), acc[2])
    return p
end

function probe.names(_, plan, job)
    local isa = plan.isa
    return {
        plan = plan,
        constants = {{"LANES", isa.lanes, "f32 lanes of a vector"}, {"STEP", reads * isa.bytes, "bytes read per iteration"}},
        tiles = function() return {fma(isa, job.name), read(isa, job.name)} end,
    }
end

return probe
