-- SPDX-License-Identifier: Apache-2.0
-- regalloc.lua - linear scan over a complete program: every value gets a register of its class for its whole life.
-- Refuses to spill: allocate() returns nil and a sentence, and the planner takes a smaller tile.
local regalloc = {}

-- System V: integer arguments in order; then the registers that may be clobbered; then those that must be saved.
local argument = {7, 6, 2, 1, 8, 9}
local scratch = {0, 10, 11, 3, 5, 12, 13, 14, 15}
local must_save = {[3] = true, [5] = true, [12] = true, [13] = true, [14] = true, [15] = true}

local function pool(n)
    local free = {}
    for i = n - 1, 0, -1 do
        free[#free + 1] = i
    end
    return free
end

-- Parameters: the first six arrive in registers, the others are loaded from the stack into free ones. The registers of
-- arguments that are never used, or that do not exist, are free from the start.
local function place_params(p, free, ends)
    for i = #scratch, 1, -1 do
        free[#free + 1] = scratch[i]
    end
    for i = 6, 1, -1 do
        local v = p.params[i]
        if v and v.last > 0 then
            v.reg = argument[i]
            local list = ends[v.last]
            if list then list[#list + 1] = v else ends[v.last] = {v} end
        else
            free[#free + 1] = argument[i]
        end
    end
    for i = 7, #p.params do
        local v = p.params[i]
        if v.last > 0 then
            v.reg = table.remove(free)
            if not v.reg then
                return nil, p.name .. " has more addresses than general registers"
            end
            local list = ends[v.last]
            if list then list[#list + 1] = v else ends[v.last] = {v} end
        end
    end
    return true
end

-- Sets value.reg everywhere, p.peak[class] (registers in use at most) and p.save (registers that the frame must save).
function regalloc.allocate(p)
    p = p.taller or p
    if p.save then
        return true   -- done before
    end
    local isa = p.isa
    local classes = isa.classes
    local free = {v = pool(isa.registers.v or 0), k = pool(isa.registers.k or 0), t = pool(isa.registers.t or 0), r = {}}
    if free.k[1] then
        table.remove(free.k)   -- k0 means "no mask"
    end
    local ends = {}
    local ok, why = place_params(p, free.r, ends)
    if not ok then
        return nil, why
    end
    local in_use, peak = {v = 0, k = 0, t = 0, r = 0}, {v = 0, k = 0, t = 0, r = 0}
    local used = {}
    local defs = {}
    for _, v in ipairs(p.values) do
        if v.def > 0 then
            defs[v.def] = v
        end
    end
    for _, code in ipairs(p.preamble) do
        local v = code[1]
        v.reg = table.remove(free.v)
        if not v.reg then
            return nil, p.name .. " has more constants than vector registers"
        end
        in_use.v = in_use.v + 1
        local e = ends[v.last]
        if e then e[#e + 1] = v else ends[v.last] = {v} end
    end
    peak.v = in_use.v
    for at = 1, p.count do
        local dead = ends[at]
        if dead then
            for i = 1, #dead do
                local v = dead[i]
                local class = classes[v.class] or v.class
                local list = free[class]
                list[#list + 1] = v.reg
                in_use[class] = in_use[class] - 1
            end
        end
        local v = defs[at]
        if v then
            local class = classes[v.class] or v.class
            local list = free[class]
            local n = #list
            if n == 0 then
                return nil, ("%s needs more than %d %s registers"):format(p.name, isa.registers[class] or 0, class)
            end
            v.reg = list[n]
            list[n] = nil
            local now = in_use[class] + 1
            in_use[class] = now
            if now > peak[class] then
                peak[class] = now
            end
            if class == "r" then
                used[v.reg] = true
            end
            if v.last > at then
                local e = ends[v.last]
                if e then e[#e + 1] = v else ends[v.last] = {v} end
            else
                list[n] = v.reg
                in_use[class] = now - 1
            end
        end
    end
    p.save = {}
    for i = 7, #p.params do
        if p.params[i].reg then
            used[p.params[i].reg] = true
        end
    end
    for _, reg in ipairs(scratch) do
        if used[reg] and must_save[reg] then
            p.save[#p.save + 1] = reg
        end
    end
    p.peak = peak
    return true
end

return regalloc
