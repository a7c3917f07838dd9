-- SPDX-License-Identifier: Apache-2.0
-- clamp.lua - limits of gate and up, and of what the activation gives: as C has them, as values hold them, and in programs.
local activation = require "math.activation"
local dtype = require "dtype"
local plans = require "shared.plans"

local clamp = {}

local greatest <const> = 0x1.fffffep127   -- of f32

-- A limit as C: a number, or infinity, which is none.
function clamp.bound(x, sign)
    return x and plans.number(x) or sign .. "1 / 0.0f"
end

-- x as a number of a dtype, or beyond its largest one.
function clamp.rounded(x, dt)
    if x == 0 then
        return x
    end
    local _, e = string.format("%a", x):match("(.*)p([-+]%d+)")
    local unit = 2.0 ^ (math.max(tonumber(e), dt.least) - dt.digits + 1)
    local q = x / unit
    local low = math.floor(q)
    local rest = q - low
    if rest > 0.5 or rest == 0.5 and low % 2 == 1 then
        low = low + 1
    end
    local top = dt.top or math.huge
    return math.max(-top, math.min(top, low * unit))
end

-- Limits as the values that were clamped hold them: these are clamped, and then up gets its offset, in f32, before they are stored.
function clamp.limits(spec, held)
    local function f32(x) return clamp.rounded(x, dtype.f32) end
    local function side(range, offset)
        local out = {}
        for name, x in pairs(range or {}) do
            out[name] = clamp.rounded(f32(f32(x) + f32(offset)), held)
        end
        return out
    end
    local given = spec.clamp or {}
    return {gate = side(given.gate, 0), up = side(given.up, spec.up_offset)}
end

-- Programs: the sides of a clamp are a function of "lo" or "hi", which gives a vector or nil.

-- Sides that are constants, each loaded where it is wanted. range: {lo, hi} or nil
function clamp.constants(p, range, name)
    return function(side)
        return range and range[side] and p:const(name .. "_" .. side, range[side] + 0.0)
    end
end

-- Sides from memory, lo at bounds[first] and hi behind it; range says which there are.
function clamp.broadcast(p, range, name, bounds, first)
    local sides = {
        lo = range.lo and p:op("bcast", name .. "_lo", p:at(bounds, first)),
        hi = range.hi and p:op("bcast", name .. "_hi", p:at(bounds, first + 1)),
    }
    return function(side) return sides[side] end
end

-- x, clamped. NaN stays.
function clamp.apply(p, x, sides, name)
    local hi = sides "hi"
    x = hi and p:op("min", name .. "_capped", hi, x) or x
    local lo = sides "lo"
    return lo and p:op("max", name .. "_clamped", lo, x) or x
end

-- The activation's row of activation.lua, clamped from above if the spec says so. NaN stays.
function clamp.activation(spec)
    local row, most = activation[spec.activation], spec.clamp and spec.clamp.activated
    if not most then
        return row
    end
    local function capped(p, name, value)
        return p:op("min", name .. "_capped_value", p:const("act_most", most + 0.0), value)
    end
    return {forward = function(p, name, x)
        return capped(p, name, row.forward(p, name, x))
    end, both = function(p, name, x)
        local value, slope = row.both(p, name, x)
        local above = p:op("is_less", name .. "_above", p:const("act_most", most + 0.0), value)
        return capped(p, name, value), p:op("blend", name .. "_open_slope", above, slope, p:op("zero", name .. "_flat"))
    end}
end

-- x where v, which has been clamped, is strictly between the sides, else 0; NaN where v is. Where a side is missing v may be infinite,
-- and 0 times that is NaN.
function clamp.inside(p, x, v, sides, name)
    local given, last = x
    for _, side in ipairs{"lo", "hi"} do
        local bound, low = sides(side), side == "lo"
        if bound then
            local open = low and p:op("is_less", name .. "_above", bound, v) or p:op("is_less", name .. "_below", v, bound)
            x = p:op("blend", ("%s_%s_open"):format(x.name, side), open, p:op("zero", name .. "_none_" .. side), x)
        else
            last = low and {"max", -greatest} or {"min", greatest}
        end
    end
    if x == given then
        return x
    end
    local finite = last and p:op(last[1], name .. "_finite", p:const(last[1] .. "_finite", last[2]), v) or v
    return p:op("fma", x, finite, p:op("zero", name .. "_nothing"))
end

return clamp
