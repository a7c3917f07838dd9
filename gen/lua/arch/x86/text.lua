-- SPDX-License-Identifier: Apache-2.0
-- text.lua - an instruction of x86-64 as the comment beside its bytes has it, in Intel's syntax, and the head of assembly.
local registers = require "arch.x86.registers"

local text = {}
local gpr = registers.general

text.align = ".p2align 6,0x90"   -- filled with nop

local function hex_disp(disp)
    return disp == 0 and "" or (disp < 0 and "-" or "+") .. ("0x%x"):format(math.abs(disp))
end

local vector_of = {["256"] = "ymm", ["512"] = "zmm"}   -- by the length of an encoding
local half_of = {["256"] = "xmm", ["512"] = "ymm"}

local function register(p, v)
    local class = p.isa.classes[v.class] or v.class
    return class == "r" and gpr[v.reg] or (p.isa.prefix[class] .. v.reg)
end

local function memory(p, code, i, row)
    local x, stride = code[i], row[4]:sub(i, i) == "T" and code[i + 1]
    local index = stride or x.index
    return "[" .. gpr[x.base.reg] .. (index and ("+%s*%d"):format(gpr[index.reg], stride and 1 or x.base.size) or "")
        .. hex_disp(x.offset * x.base.size) .. "]" .. (row[3]:find("^%S+%.b ") and ("{1to%d}"):format(p.isa.lanes) or "")
end

-- Operand i of an op, where its row has it.
local function operand(p, code, i, row)
    local place, x = row[4]:sub(i, i), code[i]
    if place == "A" then
        return ("%s,%s,%s"):format(register(p, x), register(p, x), register(p, x))
    elseif type(x) ~= "table" then
        return code.name == "const" and "[rip+pool]" or tostring(x)
    elseif x.base then
        return memory(p, code, i, row)
    end
    local name, length = register(p, x), row[3]:match("^E?VEX%.(%w+)")
    if length then
        name = name:gsub("^[yz]mm", (row.half == place and half_of or vector_of)[length] or "xmm")
    end
    return name
end

-- Mnemonic and operands of an op whose operands have registers. rip: its constant is so far from the end of the instruction.
function text.op(p, code, row, rip)
    local out = {}
    for i = 1, #row[4] do
        local place = row[4]:sub(i, i)
        if not (place == "S" and row[4]:find("T")) then
            out[#out + 1] = {place == "S" and #row[4] + 1 or i, operand(p, code, i, row), place}   -- as in the row; S is an
        end                                                                                        -- immediate, so last
    end
    table.sort(out, function(x, y) return x[1] < y[1] end)
    local list = {}
    for i, o in ipairs(out) do
        if o[3] == "K" then
            list[i - 1] = list[i - 1] .. "{" .. o[2] .. "}"
        else
            list[#list + 1] = o[2]
        end
    end
    if row.fixed then
        list[#list + 1] = tostring(row.fixed)
    end
    return row[2] .. " " .. table.concat(list, ","):gsub("pool", rip or "pool")
end

-- What is no op of the program.
text.control = {
    push = function(item) return "push " .. gpr[item.reg] end,
    pop = function(item) return "pop " .. gpr[item.reg] end,
    zero_upper = function() return "vzeroupper" end,
    back = function() return "ret" end,
    argument = function(item) return ("mov %s,[rsp%s]"):format(gpr[item.value.reg], hex_disp(8 * item.place)) end,
    down = function(item) return ("sub %s,1"):format(gpr[item.count.reg]) end,
    look = function(item) return ("add %s,0"):format(gpr[item.count.reg]) end,
    skip = function(item) return "jz past loop " .. item.number end,
    jump = function(item) return "jnz loop " .. item.number end,
    count = function(item)
        local from = item.from
        if type(from) == "table" then
            from = gpr[from.reg] or ("[rsp%s]"):format(hex_disp(8 * from.place))
        end
        return ("mov %s,%s"):format(gpr[item.value.reg], from)
    end,
    set = function(item) return ("mov %s,%s"):format(gpr[item.value.reg], gpr[item.from.reg]) end,
    advance = function(item)
        local v, by = item.pointer, item.by
        if type(by) == "table" then
            return ("lea %s,[%s+%s*%d]"):format(gpr[v.reg], gpr[v.reg], gpr[by.reg], v.size)
        end
        return ("add %s,%d"):format(gpr[v.reg], by * v.size)
    end,
}

return text
