-- SPDX-License-Identifier: Apache-2.0
-- assemble.lua - the machine code of a program whose values have registers, instruction by instruction, for those who read it; the
-- JIT's is made by gen/host/tape_code.c, and is the same.
--
-- A program's code is a list of parts, made once, for the tallest of its heights (see ir.shorter). A part is the code of an
-- instruction, with the item of the program that it is of. Those of rows are left out for fewer rows. What depends on the place
-- of things (jumps, constants) is filled in by place().
local ir = require "ir"

local assemble = {}

-- One op. Constants refer to the pool behind the code: `away` is the way there from the end of the instruction.
function assemble.op(p, op, away)
    return p.isa.arch.code.op(ir.instruction(p.isa, op.name), op, away)
end

-- Parts -----------------------------------------------------------------------------------------------------------

-- A list of parts that grows. Part: text of an instruction, the item that it is the code of, and the row that this belongs to.
local Parts = {}
Parts.__index = Parts

function Parts:add(text, row, item)
    self[#self + 1] = {text = text, row = row, item = item}
end

-- The code of an item that controls.
function Parts:put(item, row)
    self:add(self.code.control[item.control](item), row, item)
end

-- A part that place() completes, or a mark in the list.
function Parts:special(kind, item)
    self[#self + 1] = {kind = kind, row = item.row, item = item}
end

function Parts:control(item)
    local kind = item.control
    if kind == "loop" then
        self.loops = self.loops + 1
        item.number, item.outer, self.within = self.loops, self.within, item
        if item.maybe then
            self:put{control = "look", count = item.count}
            self:special("skip", {control = "skip", number = self.loops})
        end
        self:special("loop", item)
    elseif kind == "again" then
        self:put{control = "down", count = item.count}
        self:special("jump", {control = "jump", maybe = item.maybe, number = self.within.number})
        self.within = self.within.outer
    elseif kind == "open" then
        self:special("open", item)
    elseif kind ~= "close" then
        self:put(item, item.row)
    end
end

function Parts:frame_in(p)
    for _, reg in ipairs(p.save) do
        self:put{control = "push", reg = reg}
    end
    local in_registers = #p.isa.arch.registers.arguments
    for i = in_registers + 1, #p.params do
        local v = p.params[i]
        v.place = #p.save + i - in_registers   -- in words, from the top of the stack
        if v.reg then
            self:put{control = "argument", value = v, place = v.place}
        end
    end
end

function Parts:frame_out(p)
    if p.isa.zero_upper then
        self:put{control = "zero_upper"}
    end
    for i = #p.save, 1, -1 do
        self:put{control = "pop", reg = p.save[i]}
    end
    self:put{control = "back"}
end

-- The parts of the tallest program.
local function parts(p)
    local list = setmetatable({loops = 0, code = p.isa.arch.code}, Parts)
    list:frame_in(p)
    for _, code in ipairs(p.preamble) do
        list:special("const", code)
    end
    for i = 1, p.count do
        local code = p.code[i]
        if code.control then
            list:control(code)
        elseif code.name == "const" then
            list:special("const", code)
        else
            list:add(assemble.op(p, code), code.row, code)
        end
    end
    list:frame_out(p)
    return list
end

-- Those of a program of `rows` rows (nil: all).
local function kept(list, rows)
    local out = {}
    for _, part in ipairs(list) do
        if not rows or not part.row or part.row < rows then
            out[#out + 1] = part
        end
    end
    return out
end

-- The code of a program as a list of texts, one per instruction, and a second list of the same length, of what each is: an item
-- of the program or one of the `control` of this file; its titles[i] stand before instruction i.
function assemble.place(p)
    local tall, rows = p.taller or p, p.rows
    tall.parts = tall.parts or parts(tall)
    local list, jump = kept(tall.parts, rows), p.isa.arch.code.jump
    local out, what, n, length, loops = {}, {titles = {}}, 0, 0, {}
    local fixups, skips, pool, index = {}, {}, {}, {}
    local function title(text)   -- of what comes next
        local before = what.titles[n + 1]
        what.titles[n + 1] = before and before .. "; " .. text or text
    end
    local function emit(text, item)
        n = n + 1
        out[n], what[n] = text, item
        length = length + #text
    end
    for i = 1, #list do
        local part = list[i]
        local kind, item = part.kind, part.item
        if not kind then
            emit(part.text, item)
        elseif kind == "loop" then
            loops[#loops + 1] = length
            title(("loop %d: %s times%s"):format(item.number, item.count.name, item.title and ", " .. item.title or ""))
        elseif kind == "open" then
            title(item.title)
        elseif kind == "jump" then
            emit(jump("jump", table.remove(loops) - length), item)
            if item.maybe then
                local skip = table.remove(skips)
                out[skip.n] = jump("skip", length - skip.start)
            end
        elseif kind == "skip" then
            skips[#skips + 1] = {n = n + 1, start = length}
            emit(jump("skip", 0), item)
        else   -- const
            local bits = ir.bits(item.imm)
            if not index[bits] then
                pool[#pool + 1] = bits
                index[bits] = #pool
            end
            emit(assemble.op(tall, item, 0), item)
            fixups[#fixups + 1] = {n = n, stop = length, index = index[bits], code = item}
        end
    end
    for _, f in ipairs(fixups) do
        local away = length + 4 * (f.index - 1) - f.stop
        out[f.n] = assemble.op(tall, f.code, away)
        what[f.n] = {control = "const", code = f.code, away = away}
    end
    for i = 1, #pool do
        emit(string.pack("<I4", pool[i]), {control = "pool", bits = pool[i]})
    end
    return out, what
end

return assemble
