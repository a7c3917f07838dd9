-- SPDX-License-Identifier: Apache-2.0
-- assemble.lua - the machine code of a program whose values have registers, instruction by instruction, for those who read it; the
-- JIT's is made by gen/tape_code.c, and is the same.
--
-- A program's code is a list of pieces, made once, for the tallest of its heights (see ir.shorter). A piece is the code of an
-- instruction, with the item of the program that it is of. Those of rows are left out for fewer rows. What depends on the place
-- of things (jumps, constants) is filled in by place().
local encode = require "encode"   -- gen/host/encode_lua.c
local x86 = require "isa.x86"

local assemble = {}

local scale_of = {[1] = 0, [2] = 1, [4] = 2, [8] = 3}

local function coder(row)
    row.coder = row.coder or encode.coder(row[3], row[4], row[5], row.fixed)
    return row.coder
end
assemble.coder = coder

-- The row of an op on the program's target.
function assemble.row(p, name)
    return p.isa.rows[name] or x86.rows[name]
end

-- One vector op. Constants refer to the pool behind the code: `rip` is the way there from the end of the instruction.
function assemble.vector_op(p, code, rip)
    local row = p.isa.rows[code.name] or x86.rows[code.name]
    return encode.op(coder(row), code, rip)
end

-- The coder of an instruction of the frame.
local function frame(name)
    local row = x86.frame[name]
    row.coder = row.coder or encode.coder(row[2], row[3])
    return row.coder
end
assemble.frame = frame

local function frame_op(name, reg, rm, imm)
    return encode.register(frame(name), reg, rm, imm)
end

-- One instruction of the frame, for tests; rm: a register or {base=, index=, scale=, disp=}.
function assemble.frame_op(name, reg, rm, imm)
    if type(rm) == "table" then
        return encode.memory(frame(name), reg, rm.base, rm.index, rm.scale, rm.disp, imm)
    end
    return frame_op(name, reg, rm, imm)
end

-- Code of the items that control, where it does not depend on its place.
local control = {
    count = function(item)
        if type(item.from) == "number" then
            return frame_op("number", 0, item.value.reg, item.from)
        end
        return frame_op("move", item.value.reg, item.from.reg)
    end,
    set = function(item) return frame_op("move", item.value.reg, item.from.reg) end,
    advance = function(item)
        local v, by = item.pointer, item.by
        if type(by) == "table" then
            return encode.memory(frame("address"), v.reg, v.reg, by.reg, scale_of[v.size], 0)
        end
        local n = by * v.size
        return frame_op(n >= -128 and n < 128 and "add_8" or "add_32", 0, v.reg, n)
    end,
}

-- Pieces -----------------------------------------------------------------------------------------------------------

-- A list of pieces that grows. Piece: text of an instruction, the item that it is the code of, and the row that this belongs to.
local Pieces = {}
Pieces.__index = Pieces

function Pieces:add(text, row, item)
    self[#self + 1] = {text = text, row = row, item = item}
end

-- A piece that place() completes, or a mark in the list.
function Pieces:special(kind, item)
    self[#self + 1] = {kind = kind, row = item.row, item = item}
end

function Pieces:control(item)
    local kind = item.control
    if kind == "loop" then
        self.loops = self.loops + 1
        item.number, item.outer, self.within = self.loops, self.within, item
        if item.maybe then
            self:add(frame_op("add_8", 0, item.count.reg, 0), nil, {control = "look", count = item.count})
            self:special("skip", {control = "skip", number = self.loops})
        end
        self:special("loop", item)
    elseif kind == "again" then
        self:add(frame_op("down", 0, item.count.reg, 1), nil, {control = "down", count = item.count})
        self:special("jump", {control = "jump", maybe = item.maybe, number = self.within.number})
        self.within = self.within.outer
    elseif kind == "open" then
        self:special("open", item)
    elseif kind ~= "close" then
        self:add(control[kind](item), item.row, item)
    end
end

function Pieces:frame_in(p)
    for _, reg in ipairs(p.save) do
        self:add(frame_op("push", 0, reg), nil, {control = "push", reg = reg})
    end
    for i = 7, #p.params do
        local v = p.params[i]
        if v.reg then
            local disp = 8 * (#p.save + 1 + i - 7)
            self:add(encode.memory(frame("move"), v.reg, 4, nil, 0, disp), nil, {control = "argument", value = v, disp = disp})
        end
    end
end

function Pieces:frame_out(p)
    if p.isa.zero_upper then
        self:add(frame_op("wide_off", 0, 0), nil, {control = "zero_upper"})
    end
    for i = #p.save, 1, -1 do
        self:add(frame_op("pop", 0, p.save[i]), nil, {control = "pop", reg = p.save[i]})
    end
    self:add(frame_op("back", 0, 0), nil, {control = "back"})
end

-- The pieces of the tallest program.
local function pieces(p)
    local list = setmetatable({loops = 0}, Pieces)
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
            list:add(assemble.vector_op(p, code), code.row, code)
        end
    end
    list:frame_out(p)
    return list
end

-- Those of a program of `rows` rows (nil: all).
local function kept(list, rows)
    local out = {}
    for _, piece in ipairs(list) do
        if not rows or not piece.row or piece.row < rows then
            out[#out + 1] = piece
        end
    end
    return out
end

-- The 32 bits of a constant: a float, or an integer taken as bits.
function assemble.bits(x)
    return math.type(x) == "float" and string.unpack("<I4", string.pack("<f", x)) or x
end

-- The code of a program as a list of texts, one per instruction, and a second list of the same length, of what each is: an item
-- of the program or one of the `control` of this file; its titles[i] stand before instruction i.
function assemble.place(p)
    local tall, rows = p.taller or p, p.rows
    tall.pieces = tall.pieces or pieces(tall)
    local list = kept(tall.pieces, rows)
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
        local piece = list[i]
        local kind, item = piece.kind, piece.item
        if not kind then
            emit(piece.text, item)
        elseif kind == "loop" then
            loops[#loops + 1] = length
            title(("loop %d: %s times%s"):format(item.number, item.count.name, item.title and ", " .. item.title or ""))
        elseif kind == "open" then
            title(item.title)
        elseif kind == "jump" then
            emit(frame_op("again", 0, 0, table.remove(loops) - (length + 6)), item)
            if item.maybe then
                local skip = table.remove(skips)
                out[skip.n] = frame_op("skip", 0, 0, length - skip.stop)
            end
        elseif kind == "skip" then
            emit(frame_op("skip", 0, 0, 0), item)
            skips[#skips + 1] = {n = n, stop = length}
        else   -- const
            local bits = assemble.bits(item.imm)
            if not index[bits] then
                pool[#pool + 1] = bits
                index[bits] = #pool
            end
            emit(assemble.vector_op(tall, item, 0), item)
            fixups[#fixups + 1] = {n = n, stop = length, index = index[bits], code = item}
        end
    end
    for _, f in ipairs(fixups) do
        local rip = length + 4 * (f.index - 1) - f.stop
        out[f.n] = assemble.vector_op(tall, f.code, rip)
        what[f.n] = {control = "const", code = f.code, rip = rip}
    end
    for i = 1, #pool do
        emit(string.pack("<I4", pool[i]), {control = "pool", bits = pool[i]})
    end
    return out, what
end

return assemble
