-- SPDX-License-Identifier: Apache-2.0
-- sweep.lua - register tiles of S += A B for so few rows that memory is the limit, in f32; see gemm.lua.
local heights = require "tiles.heights"
local ir = require "ir"
local quantise = require "tiles.quantise"

-- S += A * B for all vectors of columns of `panels` panels, 4 rows of B at a time: memory is read in its order, at its speed.
-- b_0 .. b_3 point to the 4 rows; vectors of a panel are `second` apart, panels `step`; `jump` leads to the next 4 rows and
-- `back` to the sums of the first panel; what lies `far` elements on is fetched, of both vectors (far_second: far + second).
-- cfg.compensated: f32 sums of long K are kept in two parts, the second `lost` rows below the first.
local function tile(cfg, rows)
    local lanes = cfg.isa.lanes
    local width = cfg.vectors * lanes
    local p = ir.program(cfg.isa, ("%ssweep_%d"):format(cfg.prefix, rows),
        {("S[panel][%d rows] += A * B for all panels, 4 rows of B at a time."):format(rows)})
    quantise.hoist(p, cfg.weights)
    local S, A = p:pointer("S", "float", "DIRECT_SUMS WIDTH LANES"), p:pointer("A", "const float", "STRIDE")
    local b = {}
    for k = 0, 3 do
        b[k] = p:pointer("b_" .. k, "const " .. cfg.weights.c)
    end
    local second, step, panels, steps = p:integer("second"), p:integer("step"), p:integer("panels"), p:integer("steps")
    local jump, back, far = p:integer("jump"), p:integer("back"), p:integer("far")
    local far_second = p:integer("far_second")
    -- Words for 4 rows of B that stay in registers while all panels pass, where no op broadcasts them from memory: [row][k], of the
    -- first rows. Half of the registers, or a quarter if a decoder wants some.
    local function words()
        local held, most = {}, p.isa.registers.v // (cfg.weights.decode and 16 or 8)
        for r = 0, math.min(rows, most) - 1 do
            p:row(r)
            held[r] = {}
            for k = 0, 3 do
                held[r][k] = p:op("bcast", ("a_%d_%d"):format(r, k), p:at(A, r * cfg.stride + k))
            end
        end
        p:row(nil)
        return held
    end
    local function multiply(acc, r, v, k, w, held)
        local first, a = cfg.compensated and k == 0, p:at(A, r * cfg.stride + k)
        if not first and p:has("fma_bcast") then
            return p:op("fma_bcast", acc, w, a)
        end
        local word = held[r] and held[r][k] or p:op("bcast", ("a_%d_%d_%d"):format(r, k, v), a)
        return first and p:op("mul", ("t_%d_%d"):format(r, v), w, word) or p:op("fma", acc, word, w)
    end
    -- sum += t, with what the rounding of all sums so far lost taken back (Kahan)
    local function put(r, v, t)
        local at = p:at(S, r * width + v * lanes)
        if not cfg.compensated then
            return p:op("store", at, t)
        end
        local name, kept = ("_%d_%d"):format(r, v), p:at(S, (cfg.compensation + r) * width + v * lanes)
        local before = p:op("load", "before" .. name, at)
        local x = p:op("add", "x" .. name, t, p:op("load", "lost" .. name, kept))
        local sum = p:op("add", "sum" .. name, before, x)
        p:op("store", at, sum)
        -- of a sum that is infinite nothing is lost: what this gives then (NaN too) must be finite
        local left = p:op("sub", "left" .. name, x, p:op("sub", "added" .. name, sum, before))
        left = p:op("max", "floored" .. name, left, p:const("lost_low", -0x1p126))
        p:op("store", kept, p:op("min", "capped" .. name, left, p:const("lost_high", 0x1p126)))
    end
    local function panel(held)
        for k = 0, 3 do
            p:op("prefetch_1", p:at(b[k], 0, far))
            p:op("prefetch_1", p:at(b[k], 0, far_second))
        end
        for v = 0, cfg.vectors - 1 do
            local acc = {}
            for r = 0, rows - 1 do
                p:row(r)
                acc[r] = not cfg.compensated and p:op("load", ("acc_%d_%d"):format(r, v), p:at(S, r * width + v * lanes)) or nil
            end
            for k = 0, 3 do
                p:row(nil)
                local w = quantise.load(p, cfg.weights, ("w_%d_%d"):format(k, v), p:at(b[k], 0, v > 0 and second or nil))
                for r = 0, rows - 1 do
                    p:row(r)
                    acc[r] = multiply(acc[r], r, v, k, w, held)
                end
            end
            for r = 0, rows - 1 do
                p:row(r)
                put(r, v, acc[r])
            end
            p:row(nil)
        end
        for k = 0, 3 do
            p:advance(b[k], step)
        end
        p:advance(S, cfg.direct_sums)
    end
    p:loop(steps, function()
        local held = p:has("fma_bcast") and {} or words()
        local left = p:count_from("left", panels)
        p:loop(left, function() panel(held) end, "panels")
        p:advance(S, back)
        p:advance(A, 4)
        for k = 0, 3 do
            p:advance(b[k], jump)
        end
    end, "over K")
    return p
end

local sweep = {}

-- of: their heights, or false
function sweep.tiles(cfg, of)
    return heights.tiles(tile, cfg, of or {})
end

-- For kinds.lua, as gemm.kinds. Sums are f32, whatever others multiply.
function sweep.kinds(of)
    local most = of and of[#of]
    return most and {{most, "sweep", "weights are read once where they lie, at memory's speed", "fma"}} or {}
end

return sweep
