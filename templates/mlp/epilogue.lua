-- SPDX-License-Identifier: Apache-2.0
-- epilogue.lua - what happens to gate and up of an MLP in panels of tokens, forward and back. Each tile is a loop over n
-- rows of I of a panel.
local ir = require "ir"
local activation = require "math.activation"
local panel_rows = require "tiles.panel_rows"
local quantise = require "tiles.quantise"

local mlp_epilogue = {}

-- Pointers to the next row of their panels; false: there is none.
local function next_row(p, cfg, pointers)
    for _, pointer in ipairs(pointers) do
        if pointer then
            p:advance(pointer, cfg.vectors * cfg.isa.lanes)
        end
    end
end

-- sides: {lo, hi}, vectors or nil
local function clamped(p, x, sides, name)
    if sides.hi then
        x = p:op("min", name .. "_capped", sides.hi, x)   -- NaN stays
    end
    if sides.lo then
        x = p:op("max", name .. "_clamped", sides.lo, x)
    end
    return x
end

-- x where v, which has been clamped, is strictly between the sides, else 0.
local function inside(p, x, v, sides, name)
    for _, side in ipairs{"lo", "hi"} do
        if sides[side] then
            local open = side == "lo" and p:op("is_less", name .. "_above", sides.lo, v)
                or p:op("is_less", name .. "_below", v, sides.hi)
            x = p:op("blend", ("%s_%s_open"):format(x.name, side), open, p:op("zero", ("%s_%s_none"):format(name, side)), x)
        end
    end
    return x
end

-- P = act(G) * S, or act(S) without a gate; G and S hold sums, which are clamped and S gets the offset.
-- keep: G, S and A become gate and up as the activation saw them and what it gave, and of pairs P_0 is P in f32
function mlp_epilogue.hidden(cfg, spec, keep)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "hidden", {"What the second product sees, for rows of I."})
    local rows = "WIDTH LANES"
    local panel = panel_rows.column(cfg)
    local S, P, n = p:pointer("S", "float", rows), p:pointer("P", panel.dtype.c, rows), p:integer("n")
    local G = spec.gated and p:pointer("G", "float", rows)
    local A = spec.gated and keep and p:pointer("A", "float", rows)
    local P_0 = keep and cfg.product.group > 1 and p:pointer("P_0", "float", rows)
    local act, clamp = activation[spec.activation].forward, spec.clamp or {}
    local function sides(name)
        local given = clamp[name] or {}
        return {lo = given.lo and p:const(name .. "_lo", given.lo + 0.0), hi = given.hi and p:const(name .. "_hi", given.hi + 0.0)}
    end
    p:loop(n, function()
        for v = 0, cfg.vectors - 1 do
            local tag, at = "_" .. v, v * lanes
            local up = clamped(p, p:op("load", "up_sum" .. tag, p:at(S, at)), sides("up"), "up" .. tag)
            if spec.up_offset ~= 0 then
                up = p:op("add", "up_offset" .. tag, up, p:const("offset", spec.up_offset + 0.0))
            end
            if keep then
                p:op("store", p:at(S, at), up)
            end
            local gate = G and clamped(p, p:op("load", "gate_sum" .. tag, p:at(G, at)), sides("gate"), "gate" .. tag) or up
            if G and keep then
                p:op("store", p:at(G, at), gate)
            end
            local value = act(p, "act" .. tag, gate)
            if A then
                p:op("store", p:at(A, at), value)
            end
            value = G and p:op("mul", "p" .. tag, value, up) or value
            panel.put(p, P, v, value)
            if P_0 then
                p:op("store", p:at(P_0, at), value)
            end
        end
        next_row(p, cfg, {S, P, G, A, P_0})
    end, "rows of I")
    return p
end

-- Back through P = act(G) * U. S holds dO Wd^T; G and U become their gradients, P what the second product saw. Of pairs, U_0 and G_0
-- hold gate and up in f32.
-- limits: which sides there are; bounds (if any, or an offset): lo, hi of gate, lo, hi of up, what U lacks of the offset
-- given: P holds act(G) already
function mlp_epilogue.through(cfg, spec, limits, given)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. (given and "through_given" or "through"),
        {"Gradients of gate and up, and p, for rows of I."})
    local rows = "WIDTH LANES"
    local panel = panel_rows.column(cfg)
    local S, U, P = p:pointer("S", "const float", rows), p:pointer("U", panel.dtype.c, rows), p:pointer("P", panel.dtype.c, rows)
    local n, apart = p:integer("n"), cfg.product.group > 1
    local G = spec.gated and p:pointer("G", panel.dtype.c, rows)
    local U_0 = apart and p:pointer("U_0", "const float", rows)
    local G_0 = apart and spec.gated and p:pointer("G_0", "const float", rows)
    local bounds = mlp_epilogue.bounded(spec) and p:pointer("bounds", "const float")
    local act = activation[spec.activation].both
    local function sides(name, first, tag)
        local lo, hi = limits[name].lo, limits[name].hi
        return {lo = lo and p:op("bcast", name .. "_lo" .. tag, p:at(bounds, first)),
                hi = hi and p:op("bcast", name .. "_hi" .. tag, p:at(bounds, first + 1))}
    end
    p:loop(n, function()
        for v = 0, cfg.vectors - 1 do
            local tag, at = "_" .. v, v * lanes
            local up = p:op("load", "up_given" .. tag, p:at(U_0 or U, at))
            if spec.up_offset ~= 0 then
                up = p:op("add", "up_offset" .. tag, up, p:op("bcast", "offset" .. tag, p:at(bounds, 4)))
            end
            local of_up = sides("up", 2, tag)
            up = clamped(p, up, of_up, "up" .. tag)
            if not G then
                local value, slope = act(p, "act" .. tag, up)
                panel.put(p, P, v, value)
                local du = p:op("mul", "du" .. tag, p:op("load", "dp" .. tag, p:at(S, at)), slope)
                panel.put(p, U, v, inside(p, du, up, of_up, "up" .. tag))
            else
                local of_gate = sides("gate", 0, tag)
                local gate = clamped(p, p:op("load", "gate_given" .. tag, p:at(G_0 or G, at)), of_gate, "gate" .. tag)
                local value, slope = act(p, "act" .. tag, gate, given)
                value = given and quantise.load(p, panel.dtype, "act_given" .. tag, p:at(P, at)) or value
                panel.put(p, P, v, p:op("mul", "p" .. tag, value, up))
                local dp = p:op("load", "dp" .. tag, p:at(S, at))
                local dg = p:op("mul", "dg" .. tag, p:op("mul", "dp_up" .. tag, dp, up), slope)
                panel.put(p, G, v, inside(p, dg, gate, of_gate, "gate" .. tag))
                panel.put(p, U, v, inside(p, p:op("mul", "du" .. tag, dp, value), up, of_up, "up" .. tag))
            end
        end
        next_row(p, cfg, {S, P, U, G, U_0, G_0})
    end, "rows of I")
    return p
end

-- Does the way back need bounds?
function mlp_epilogue.bounded(spec)
    local clamp = spec.clamp or {}
    return next(clamp.gate or {}) ~= nil or next(clamp.up or {}) ~= nil or spec.up_offset ~= 0
end

return mlp_epilogue
