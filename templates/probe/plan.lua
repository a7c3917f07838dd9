-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - the tiles of the probe: as many independent chains of an op as hide the latency, and streaming reads.
local amx = require "tiles.amx"
local ir = require "ir"
local ops = require "isa.scalar"
local plans = require "shared.plans"
local schema = require "schema"
local target = require "target"

local probe = {}

local tile_chains = 4             -- tiles of sums, beside two that they multiply
local chains, rounds = 14, 6      -- sums: more than latency times throughput of FMA and of dot products on any known core
local steps, block, pitch = 4, 2, 64   -- of the state: steps of so many rows and columns of tiles, all of them from a KiB
local cycles = 16                 -- of a product of tiles on any known core, in its fast state
local reads = 8                   -- vectors per iteration

-- The ops that add products to a vector, or to a matrix tile.
probe.ops = {}
for name, op in pairs(ops) do
    if op.operands == "D a b" and (not op.class or op.class == "t") then
        probe.ops[#probe.ops + 1] = name
    end
end

-- A target that extends another is taken for ops of its own.
function probe.uses(isa, spec)
    local own = isa.rows[spec.op] and not target.load(isa.extends).rows[spec.op]
    return own, ("it has %s %s"):format(own and "an op" or "no own op", spec.op)
end

function probe.plan(plan, spec, _, info)
    if not plan.isa.rows[spec.op] then
        schema.complain(info, "op", ("target %s has no op %s"):format(plan.isa.name, spec.op), nil, "unsupported")
    end
    plan.tiled = ops[spec.op].class == "t"
    if spec.state and not plan.tiled then
        schema.complain(info, "state", ("%s is no op on tiles: only these have states"):format(spec.op))
    end
    plan.chains = plan.tiled and tile_chains or chains
end

function probe.params(spec, plan)
    local products = ops[spec.op].products or 1
    return plans.list(("probe.flops_per_iteration %d"):format(2 * products * plan.chains * rounds * plan.isa.lanes),
        plan.tiled and "probe.has_states 1")
end

-- Sums, in tiles or in vectors: zero is the op that makes one.
local function zeros(p, zero, count)
    local acc = {}
    for i = 1, count do
        acc[i] = p:op(zero, "acc_" .. i)
    end
    return acc
end

-- So many independent chains of an op on factors a and b, n times `rounds` steps of each: their sums.
local function chains_of(p, n, zero, count, op, a, b)
    local acc = zeros(p, zero, count)
    p:loop(n, function()
        for _ = 1, rounds do
            for i = 1, count do
                p:op(op, acc[i], a, b)
            end
        end
    end, "rounds")
    return acc
end

local function loop(isa, name, op)
    local p = ir.program(isa, name .. "_loop", {"Independent ops from registers."})
    local out, numbers, n = p:pointer("out", "float"), p:pointer("numbers", "const uint8_t"), p:integer("n")
    local acc = chains_of(p, n, "zero", chains, op, p:op("load", "a", p:at(numbers, 0)), p:op("load", "b", p:at(numbers, isa.bytes)))
    for i = 3, chains do
        acc[1 + i % 2] = p:op("add", "sum_" .. i, acc[1 + i % 2], acc[i])
    end
    p:op("store", p:at(out, 0), acc[1])
    p:op("store", p:at(out, isa.lanes), acc[2])
    return p
end

local function tile_loop(isa, name, op)
    local p = ir.program(isa, name .. "_loop", {"Independent ops on tiles."})
    local numbers, stride, n = p:pointer("numbers", "const uint8_t"), p:integer("pitch"), p:integer("n")
    local a, b = p:op("tile_load", "a", p:at(numbers, 0), stride), p:op("tile_load", "b", p:at(numbers, 0), stride)
    chains_of(p, n, "tile_zero", tile_chains, op, a, b)
    return p
end

-- What a product does to tiles that are in L1.
local function tile_steps(isa, name, op)
    local p = ir.program(isa, name .. "_steps", {"Steps of a product of tiles, whose factors are all the same KiB."})
    local from, stride, n = p:pointer("from", "const uint8_t"), p:integer("pitch"), p:integer("n")
    local acc = zeros(p, "tile_zero", block * block)
    p:loop(n, function()
        local a, b = {}, {}
        for i = 1, block do
            a[i], b[i] = p:op("tile_load", "a_" .. i, p:at(from, 0), stride), p:op("tile_load", "b_" .. i, p:at(from, 0), stride)
        end
        for i = 1, block * block do
            p:op(op, acc[i], a[1 + (i - 1) // block], b[1 + (i - 1) % block])
        end
    end, "steps")
    return p
end

local function read(isa, name)
    local p = ir.program(isa, name .. "_read", {"Reads a stream of vectors."})
    local out, from, n = p:pointer("out", "float"), p:pointer("from", "const float"), p:integer("n")
    local acc = zeros(p, "zero", 2)
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

function probe.names(spec, plan, job)
    local isa, cfg = plan.isa, {isa = plan.isa, prefix = job.name .. "_"}
    return {
        plan = plan, tiled = plan.tiled, state = spec.state, tile_shapes = amx.shapes("tile_shapes"),
        constants = plans.list({"LANES", isa.lanes, "f32 lanes of a vector"}, {"STEP", reads * isa.bytes, "bytes read per iteration"},
            spec.state and {"STATE_STEPS", steps, "steps of a pass"},
            spec.state and {"STATE_CYCLES", steps * block * block * cycles, "that they take in the fast state"},
            {"NUMBERS_BYTES", 1 << 10, "of what is multiplied: a tile"},
            plan.tiled and {"PITCH", pitch, "bytes from row to row of a tile"}, spec.state and {"PACES", 16, "floats from rank to rank"}),
        tiles = function()
            return plans.list((spec.state and tile_steps or plan.tiled and tile_loop or loop)(isa, job.name, spec.op), read(isa, job.name),
                plan.tiled and amx.on(cfg), plan.tiled and amx.off(cfg))
        end,
    }
end

return probe
