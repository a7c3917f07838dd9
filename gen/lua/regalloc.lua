-- SPDX-License-Identifier: Apache-2.0
-- regalloc.lua - linear scan over a complete program: every value gets a register of its class for its whole life.
-- Refuses to spill: allocate() returns nil and a sentence, and the planner takes a smaller tile.
local regalloc = {}

-- System V: integer arguments in order; then the registers that may be clobbered; then those that must be saved.
local argument = {7, 6, 2, 1, 8, 9}
local scratch = {0, 10, 11, 3, 5, 12, 13, 14, 15}
local must_save = {[3] = true, [5] = true, [12] = true, [13] = true, [14] = true, [15] = true}

-- A register file: its free registers, the last of which goes next; how many are in use, and were at most.
local function file(n)
    local free = {now = 0, peak = 0}
    for i = n - 1, 0, -1 do
        free[#free + 1] = i
    end
    return free
end

local function ends_at(ends, v)
    local list = ends[v.last]
    if list then
        list[#list + 1] = v
    else
        ends[v.last] = {v}
    end
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
            ends_at(ends, v)
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
            ends_at(ends, v)
        end
    end
    return true
end

local function place_constants(p, free, ends)
    for _, code in ipairs(p.preamble) do
        local v = code[1]
        v.reg = table.remove(free)
        if not v.reg then
            return nil, p.name .. " has more constants than vector registers"
        end
        free.now = free.now + 1
        ends_at(ends, v)
    end
    free.peak = free.now
    return true
end

-- Registers for what the program defines, in order.
local function scan(p, files, ends)
    local defs = {}
    for _, v in ipairs(p.values) do
        if v.def > 0 then
            defs[v.def] = v
        end
    end
    for at = 1, p.count do
        local dead = ends[at]
        if dead then
            for i = 1, #dead do
                local v = dead[i]
                local free = files[v.class]
                free[#free + 1] = v.reg
                free.now = free.now - 1
            end
        end
        local v = defs[at]
        if v then
            local free = files[v.class]
            local n = #free
            if n == 0 then
                local class = p.isa.classes[v.class] or v.class
                return nil, ("%s needs more than %d %s registers"):format(p.name, p.isa.registers[class] or 0, class)
            end
            v.reg = free[n]
            if free.now >= free.peak then
                free.peak = free.now + 1
            end
            local last = v.last
            if last > at then
                free[n] = nil
                free.now = free.now + 1
                local list = ends[last]
                if list then
                    list[#list + 1] = v
                else
                    ends[last] = {v}
                end
            end
        end
    end
    return true
end

-- The registers that the frame must save: of those used, in the order of `scratch`.
local function to_save(p)
    local used, save = {}, {}
    for _, v in ipairs(p.values) do
        if v.class == "r" and v.reg then
            used[v.reg] = true
        end
    end
    for _, reg in ipairs(scratch) do
        if used[reg] and must_save[reg] then
            save[#save + 1] = reg
        end
    end
    return save
end

-- Sets value.reg everywhere, p.peak[class] (registers in use at most) and p.save (registers that the frame must save).
function regalloc.allocate(p)
    p = p.taller or p
    if p.save then
        return true   -- done before
    end
    local registers, ends = p.isa.registers, {}
    local files = {v = file(registers.v or 0), k = file(registers.k or 0), t = file(registers.t or 0), r = file(0)}
    if files.k[1] then
        table.remove(files.k)   -- k0 means "no mask"
    end
    for class, real in pairs(p.isa.classes) do
        files[class] = files[real]
    end
    local ok, why = place_params(p, files.r, ends)
    if ok then
        ok, why = place_constants(p, files.v, ends)
    end
    if ok then
        ok, why = scan(p, files, ends)
    end
    if not ok then
        return nil, why
    end
    p.save = to_save(p)
    p.peak = {v = files.v.peak, k = files.k.peak, t = files.t.peak, r = files.r.peak}
    return true
end

return regalloc
