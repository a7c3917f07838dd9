-- SPDX-License-Identifier: Apache-2.0
-- code.lua - an instruction as machine code of x86-64.
local encode = require "encode"   -- gen/arch/x86/encode_lua.c
local instructions = require "arch.x86.instructions"
local registers = require "arch.x86.registers"

local code = {}

local scale_of = {[1] = 0, [2] = 1, [4] = 2, [8] = 3}

-- The coder of a row of an op.
function code.coder(row)
    row.coder = row.coder or encode.coder(row[3], row[4], row[5], row.fixed)
    return row.coder
end

-- The coder of an instruction of the frame.
local function frame(name)
    local row = instructions.frame[name]
    row.coder = row.coder or encode.coder(row[2], row[3])
    return row.coder
end

-- In the order of enum frame.
local frame_names = {"push", "pop", "move", "number", "address", "add_8", "add_32", "down", "again", "skip", "wide_off", "back"}

local machine

-- This machine, for a tape.
function code.machine()
    if not machine then
        local list = {}
        for i, name in ipairs(frame_names) do
            list[i] = frame(name)
        end
        machine = encode.machine(list)
    end
    return machine
end

-- A vector op whose operands have registers. rip: its constant is so far from the end of the instruction.
function code.op(row, operands, rip)
    return encode.op(code.coder(row), operands, rip)
end

-- One instruction of the frame; rm: a register or {base=, index=, scale=, disp=}.
function code.frame_op(name, reg, rm, imm)
    if type(rm) == "table" then
        return encode.memory(frame(name), reg, rm.base, rm.index, rm.scale, rm.disp, imm)
    end
    return encode.register(frame(name), reg, rm, imm)
end
local frame_op = code.frame_op

-- What is no op of the program: its own items, and those that vector/assemble.lua adds.
code.control = {
    count = function(item)
        if type(item.from) == "number" then
            return frame_op("number", 0, item.value.reg, item.from)
        end
        return frame_op("move", item.value.reg, item.from.reg or {base = registers.stack, scale = 0, disp = 8 * item.from.place})
    end,
    set = function(item) return frame_op("move", item.value.reg, item.from.reg) end,
    advance = function(item)
        local v, by = item.pointer, item.by
        if type(by) == "table" then
            return frame_op("address", v.reg, {base = v.reg, index = by.reg, scale = scale_of[v.size], disp = 0})
        end
        local n = by * v.size
        return frame_op(n >= -128 and n < 128 and "add_8" or "add_32", 0, v.reg, n)
    end,
    look = function(item) return frame_op("add_8", 0, item.count.reg, 0) end,
    down = function(item) return frame_op("down", 0, item.count.reg, 1) end,
    push = function(item) return frame_op("push", 0, item.reg) end,
    pop = function(item) return frame_op("pop", 0, item.reg) end,
    argument = function(item)
        return frame_op("move", item.value.reg, {base = registers.stack, scale = 0, disp = 8 * item.place})
    end,
    zero_upper = function() return frame_op("wide_off", 0, 0) end,
    back = function() return frame_op("back", 0, 0) end,
}

local jumps = {jump = "again", skip = "skip"}
local jump_length <const> = 6

-- A jump ("jump": if a count is not used up; "skip": if there is nothing to count) to `distance` bytes from its own start.
function code.jump(kind, distance)
    return frame_op(jumps[kind], 0, 0, distance - jump_length)
end

return code
