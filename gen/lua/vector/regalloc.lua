-- SPDX-License-Identifier: Apache-2.0
-- regalloc.lua - linear scan over a complete program: every value gets a register of its class for its whole life.
-- Refuses to spill: allocate() returns nil and a sentence, which becomes a complaint about the plan.
local regalloc = {}

-- A register file of n, of which those from `first` on are given: its free registers, the last of which goes next; how many there
-- are, and were free at least.
local function file(n, first)
    local free = {size = n, low = n}
    for i = n - 1, first, -1 do
        free[#free + 1] = i
    end
    return free
end

-- Values by the item that uses them last, in the order in which they got their registers: a ring through `after`, in which
-- ends[last] is the last one.
local function ends_at(ends, v)
    local last = v.last
    local tail = ends[last]
    if tail then
        v.after, tail.after = tail.after, v
    else
        v.after = v
    end
    ends[last] = v
end

-- Parameters: the first ones arrive in registers, the others are loaded from the stack into free ones. The registers of
-- arguments that are never used, or that do not exist, are free from the start.
local function place_params(p, free, ends)
    local scratch, argument = p.isa.arch.registers.scratch, p.isa.arch.registers.arguments
    for i = #scratch, 1, -1 do
        free[#free + 1] = scratch[i]
    end
    for i = #argument, 1, -1 do
        local v = p.params[i]
        if v and v.last > 0 then
            v.reg = argument[i]
            ends_at(ends, v)
        else
            free[#free + 1] = argument[i]
        end
    end
    for i = #argument + 1, #p.params do
        local v = p.params[i]
        if v.last > 0 and not v.stays then
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
        ends_at(ends, v)
    end
    free.low = #free
    return true
end

-- Registers for what the program defines, in order.
local function scan(p, files, ends)
    local values, at = p.values, 1
    for i = 1, #values do
        local v = values[i]
        local def = v.def
        if def > 0 then
            for dying = at, def do
                local tail = ends[dying]
                if tail then
                    local dead = tail
                    repeat
                        dead = dead.after
                        local free = files[dead.class]
                        free[#free + 1] = dead.reg
                    until dead == tail
                end
            end
            at = def + 1
            local free = files[v.class]
            local n = #free
            if n == 0 then
                local class = p.isa.classes[v.class] or v.class
                return nil, ("%s needs more than %d %s registers"):format(p.name, p.isa.registers[class] or 0, class)
            end
            v.reg = free[n]
            if n <= free.low then
                free.low = n - 1
            end
            if v.last > def then
                free[n] = nil
                ends_at(ends, v)
            end
        end
    end
    return true
end

-- The registers that the frame must save: of those used, in the order of `scratch`.
local function to_save(p)
    local used, save, registers = {}, {}, p.isa.arch.registers
    for _, v in ipairs(p.general) do
        if v.reg then
            used[v.reg] = true
        end
    end
    for _, reg in ipairs(registers.scratch) do
        if used[reg] and registers.must_save[reg] then
            save[#save + 1] = reg
        end
    end
    return save
end

-- Sets value.reg everywhere, p.peak (vector registers in use at most) and p.save (registers that the frame must save).
function regalloc.allocate(p)
    p = p.taller or p
    if p.save then
        return true   -- done before
    end
    local registers, ends = p.isa.registers, {}
    for i = 1, p.count do
        ends[i] = false   -- a list, not a map
    end
    local files, first = {r = file(0, 0)}, p.isa.arch.registers.first
    for _, class in ipairs{"v", "k", "t"} do
        files[class] = file(registers[class] or 0, first[class] or 0)
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
    p.peak = files.v.size - files.v.low
    return true
end

return regalloc
