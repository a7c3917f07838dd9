-- SPDX-License-Identifier: Apache-2.0
-- clamp.lua - limits of gate and up: as C has them, and as values hold them.
local clamp = {}

-- A limit as C: a number, or the largest one.
function clamp.bound(x, sign)
    return x and ("%.9gf"):format(x):gsub("^(-?%d+)f$", "%1.0f") or sign .. "3.40282347e+38f"
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

-- Limits as the values that were clamped hold them.
function clamp.limits(spec, held)
    local function side(range, offset)
        local out = {}
        for name, x in pairs(range or {}) do
            out[name] = clamp.rounded(x + offset, held)
        end
        return out
    end
    local given = spec.clamp or {}
    return {gate = side(given.gate, 0), up = side(given.up, spec.up_offset)}
end

return clamp
