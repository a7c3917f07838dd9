-- SPDX-License-Identifier: Apache-2.0
-- epilogue.lua - what happens to a panel of sums before it is stored: bias, clamp, activation, gate * up, affinity,
-- checkpoint, combination with what other experts gave. Each tile is a loop over the rows of a panel S[n][width].
local ir = require "ir"
local activation = require "lib.activation"
local dtype = require "dtype"
local quantise = require "lib.quantise"

local epilogue = {}

local function clamped(p, x, range, name)
    if range and range.hi then
        x = p:op("min", name .. "_capped", p:const(name .. "_hi", range.hi + 0.0), x)
    end
    if range and range.lo then
        x = p:op("max", name .. "_clamped", p:const(name .. "_lo", range.lo + 0.0), x)
    end
    return x
end

-- P = act(g) * u, with bias, clamps and offset before and the affinity after as the spec says.
-- With a checkpoint, S is overwritten by g and u as the activation saw them.
-- cfg: isa, prefix, vectors, stride (of P, floats); spec: activation, gated, clamp, up_offset; has: bias, affinity, checkpoint
-- pairs: P is rounded to this row of dtype.lua (nil: it is f32)
function epilogue.intermediate(cfg, spec, has, pairs)
    local lanes = cfg.isa.lanes
    local to = pairs or dtype.f32
    local p = ir.program(cfg.isa, cfg.prefix .. (pairs and "activate_pairs" or "activate"), {"Rows of P from rows of sums."})
    local S, P, n = p:pointer("S", "float"), p:pointer("P", to.c), p:integer("n")
    local bias = has.bias and p:pointer("bias", "const float")
    local affinity = has.affinity and p:pointer("affinity", "const float")
    local act = activation[spec.activation].forward
    local clamp = spec.clamp or {}
    p:loop(n, function()
        local x = {}
        for v = 0, cfg.vectors - 1 do
            local gate = spec.gated and v == 0
            local name = spec.gated and (gate and "gate" or "up") or "up_" .. v
            local sum = p:op("load", name .. "_sum", p:at(S, v * lanes))
            if has.bias then
                sum = p:op("add", name .. "_biased", sum, p:op("load", name .. "_bias", p:at(bias, v * lanes)))
            end
            sum = clamped(p, sum, gate and clamp.gate or not gate and clamp.up, name)
            if not gate and spec.up_offset ~= 0 then
                sum = p:op("add", name .. "_offset", sum, p:const("offset", spec.up_offset + 0.0))
            end
            if has.checkpoint then
                p:op("store", p:at(S, v * lanes), sum)
            end
            x[v] = sum
        end
        local a = has.affinity and p:op("bcast", "a", p:at(affinity, 0))
        local function put(v, value, name)
            if a then
                value = p:op("mul", name .. "_scaled", value, a)
            end
            quantise.store(p, to, p:at(P, v * lanes), value)
        end
        if spec.gated then
            put(0, p:op("mul", "p", act(p, "act", x[0]), x[1]), "p")
        else
            for v = 0, cfg.vectors - 1 do
                put(v, act(p, "act_" .. v, x[v]), "p_" .. v)
            end
        end
        p:advance(S, cfg.vectors * lanes)
        p:advance(P, cfg.stride * 4 // to.size)
        if a then
            p:advance(affinity, 1)
        end
    end, "rows")
    return p
end

-- out[row][column ..] += a * (S + bias), or a plain store; out is a list of row pointers (16 valid entries follow its end).
-- With a checkpoint, S is overwritten by S + bias.
-- has: bias, bias_scaled (the bias times a), affinity (the sum times a), checkpoint, add
function epilogue.output(cfg, has)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "finish", {"Rows of the output from rows of sums."})
    local S, out, column = p:pointer("S", "float"), p:pointer("out", "float *const"), p:integer("column")
    local n = p:integer("n")
    local bias = has.bias and p:pointer("bias", "const float")
    local affinity = (has.affinity or has.bias_scaled) and p:pointer("affinity", "const float")
    p:loop(n, function()
        local soon = p:op("load_pointer", "soon", p:at(out, 8))
        p:op("prefetch_0", p:at(soon, 0, column))
        p:op("prefetch_0", p:at(soon, (cfg.vectors - 1) * lanes, column))
        local row = p:op("load_pointer", "row", p:at(out, 0))
        local a = affinity and p:op("bcast", "a", p:at(affinity, 0))
        for v = 0, cfg.vectors - 1 do
            local name = "y_" .. v
            local y = p:op("load", name .. "_sum", p:at(S, v * lanes))
            if has.bias_scaled then
                p:op("fma", y, a, p:op("load", name .. "_bias", p:at(bias, v * lanes)))
            elseif has.bias then
                y = p:op("add", name .. "_biased", y, p:op("load", name .. "_bias", p:at(bias, v * lanes)))
            end
            if has.checkpoint then
                p:op("store", p:at(S, v * lanes), y)
            end
            if has.affinity then
                y = p:op("mul", name .. "_scaled", y, a)
            end
            if has.add then
                y = p:op("add", name, y, p:op("load", name .. "_before", p:at(row, v * lanes, column)))
            end
            p:op("store", p:at(row, v * lanes, column), y)
        end
        p:advance(S, cfg.vectors * lanes)
        p:advance(out, 1)
        if a then
            p:advance(affinity, 1)
        end
    end, "rows")
    return p
end

return epilogue
