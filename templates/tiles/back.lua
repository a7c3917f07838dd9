-- SPDX-License-Identifier: Apache-2.0
-- back.lua - what happens to sums on the way back: through the activation, to the gradients of affinities. Loops over the rows of a
-- panel, see epilogue.lua.
local ir = require "ir"
local clamp = require "math.clamp"
local dtype = require "dtype"
local over_rows = require "tiles.over_rows"
local panel_rows = require "tiles.panel_rows"
local plans = require "shared.plans"
local quantise = require "tiles.quantise"

local back = {}

-- Back through p = act(g) u, for n rows of a panel of WIDTH tokens. S holds dO Wd^T without the affinity; G and U, gate and up
-- as the activation saw them, become their gradients; P becomes p as the second product saw it; sums of S * p over the rows
-- are the affinity's gradient. G, U and P are panels whose columns are contracted, see matrix.lua.
-- spec: activation, gated, up_offset; limits: gate, up = {lo, hi} as the checkpoint holds them; has:
--     scaled          p and its gradient carry the affinity
--     affinity_sums   these are wanted
--     apart           gate and up are in f32, and elsewhere: at U_0 and G_0
--     bounds          they are clamped first, and up gets an offset: bounds = lo, hi of gate, lo, hi of up, offset
--     given           P holds act(g) already
--     step            rows from a gate to the next one, and from an up (none: 1)
--     stores          every value here, act'(g) and u act'(g) too, is a number of the dtype, as if it had been stored; limits too
function back.through(cfg, spec, limits, has)
    local p = ir.program(cfg.isa, cfg.prefix .. (has.given and "through_given" or "through"),
        {"Gradients of gate and up, and p, for rows of I."})
    local rows = "WIDTH LANES"
    local panel = panel_rows.column(cfg)
    local S, U, P = p:pointer("S", "const float", rows), p:pointer("U", panel.dtype.c, rows), p:pointer("P", panel.dtype.c, rows)
    local n = p:integer("n")
    local G = spec.gated and p:pointer("G", panel.dtype.c, rows)
    local U_0 = has.apart and p:pointer("U_0", "const float", rows)
    local G_0 = has.apart and spec.gated and p:pointer("G_0", "const float", rows)
    local bounds = has.bounds and p:pointer("bounds", "const float")
    local a = has.scaled and p:pointer("a", "const float")
    local sums = has.affinity_sums and p:pointer("sums", "float")
    local act = clamp.activation(spec).both
    local function stored(x)
        return has.stores and quantise.round(p, cfg.dtype, x) or x
    end
    -- Gate or up at `from`, and its limits, which are at bounds[first]
    local function entered(from, name, tag, at, first)
        local x = quantise.load(p, has.apart and dtype.f32 or panel.dtype, name .. tag, p:at(from, at))
        if not bounds then
            return stored(x), clamp.constants(p, limits[name], name .. tag)
        end
        if name == "up" and spec.up_offset ~= 0 then
            x = p:op("add", "up_offset" .. tag, x, p:op("bcast", "offset" .. tag, p:at(bounds, 4)))
        end
        local sides = clamp.broadcast(p, limits[name], name .. tag, bounds, first)
        return clamp.apply(p, stored(x), sides, name .. tag), sides
    end
    local step = (has.step or 1) * cfg.vectors * cfg.isa.lanes
    local pointers = plans.list(S, P, {U, step}, G and {G, step}, U_0 and {U_0, step}, G_0 and {G_0, step})
    over_rows.each(p, cfg, n, pointers, function(tag, at, v)
        local up, of_up = entered(U_0 or U, "up", tag, at, 2)
        local gate, of_gate = up, of_up
        if G then
            gate, of_gate = entered(G_0 or G, "gate", tag, at, 0)
        end
        local value, slope = act(p, "act" .. tag, gate, has.given)
        value = has.given and quantise.load(p, panel.dtype, "act_given" .. tag, p:at(P, at)) or stored(value)
        slope = stored(slope)
        local product = G and stored(p:op("mul", "p" .. tag, value, up)) or value
        local dp = p:op("load", "dp" .. tag, p:at(S, at))
        if sums then
            local sum = p:op("load", "sum" .. tag, p:at(sums, at))
            p:op("store", p:at(sums, at), p:op("fma", sum, dp, product))
        end
        if a then
            local scale = p:op("load", "a" .. tag, p:at(a, at))
            dp = p:op("mul", "dp_scaled" .. tag, dp, scale)
            product = stored(p:op("mul", "p_scaled" .. tag, product, scale))
        end
        panel.put(p, P, v, product)
        if G then
            local dg = has.stores and stored(p:op("mul", "dg" .. tag, dp, stored(p:op("mul", "up_slope" .. tag, up, slope))))
                or p:op("mul", "dg" .. tag, p:op("mul", "dp_up" .. tag, dp, up), slope)
            panel.put(p, G, v, clamp.inside(p, dg, gate, of_gate, "gate" .. tag))
        end
        local du = stored(p:op("mul", "du" .. tag, dp, G and value or slope))
        panel.put(p, U, v, clamp.inside(p, du, up, of_up, "up" .. tag))
    end, "rows of I")
    return p
end

-- sums += a * b, for n rows of a panel.
function back.column_sums(cfg, name)
    local p = ir.program(cfg.isa, cfg.prefix .. name, {"Sums over rows, for each column of a panel."})
    local sums, a, b, n = p:pointer("sums", "float"), p:pointer("a", "const float"), p:pointer("b", "const float"), p:integer("n")
    over_rows.sum(p, cfg, sums, n, {a, b}, function(tag, at)
        return p:op("load", "a" .. tag, p:at(a, at)), p:op("load", "b" .. tag, p:at(b, at))
    end, true)
    return p
end

return back
