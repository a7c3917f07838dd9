-- SPDX-License-Identifier: Apache-2.0
-- assemble.lua - the machine code of a program whose values have registers.
--
-- A program's code is a list of pieces, made once, for the tallest of its heights (see ir.shorter). A piece is text that
-- stays together, with the item of the program that it is the code of; or, when nobody wants to see single instructions,
-- that of many items. Pieces of rows are left out, or cut, for fewer rows. What depends on the place of things (jumps,
-- constants) is filled in by place().
local encode = require "encode"
local x86 = require "isa.x86"

local assemble = {}

local scale_of = {[1] = 0, [2] = 1, [4] = 2, [8] = 3}

local function parsed(row)
    row.form = encode.parse(row[3], row[5])
    local at = {}   -- letter of a place -> operand
    for i = 1, #row[4] do
        at[row[4]:sub(i, i)] = i
    end
    row.at = at
    return row
end

-- The row of an op on the program's target, with its notation parsed: form, at.
function assemble.row(p, name)
    local row = p.isa.rows[name] or x86.rows[name]
    return row.form and row or parsed(row)
end

-- One vector op. Constants refer to the pool behind the code: `rip` is the way there from the end of the instruction.
function assemble.vector_op(p, code, rip)
    local row = p.isa.rows[code.name] or x86.rows[code.name]
    local form = row.form or parsed(row).form
    local at = row.at
    local reg, vvvv = 0, 0
    if at.R then
        reg = code[at.R].reg
    elseif at.A then
        reg = code[1].reg
        return encode.register(form, reg, reg, reg, 0)
    end
    if at.V then
        vvvv = code[at.V].reg
    end
    local mask = at.K and code[at.K].reg or 0
    local imm = row.fixed or at.I and code[at.I]
    if rip then
        return encode.relative(form, reg, vvvv, rip, imm)
    end
    local m = code[at.M or at.T]
    if at.S and at.M then                      -- a register in the high half of the immediate
        imm = code[at.S].reg << 4
    end
    if not m then
        return encode.register(form, reg, vvvv, 0, mask, imm)
    elseif not m.base then
        return encode.register(form, reg, vvvv, m.reg, mask, imm)
    end
    local base, index = m.base, m.index
    local disp = m.offset * base.size
    if at.T then                               -- rows a stride apart
        return encode.memory(form, reg, vvvv, base.reg, code[at.T + 1].reg, 0, disp, mask, imm)
    elseif index then
        return encode.memory(form, reg, vvvv, base.reg, index.reg, scale_of[base.size], disp, mask, imm)
    end
    return encode.memory(form, reg, vvvv, base.reg, nil, 0, disp, mask, imm)
end

-- One instruction of the frame; rm: a register or {base=, index=, scale=, disp=}.
function assemble.frame_op(name, reg, rm, imm)
    local row = x86.frame[name]
    local form = row.form
    if not form then
        form = encode.parse(row[2], 1)
        row.form = form
    end
    if type(rm) == "table" then
        return encode.memory(form, reg or 0, 0, rm.base, rm.index, rm.scale, rm.disp, 0, imm)
    end
    return encode.register(form, reg or 0, 0, rm or 0, 0, imm)
end

local frame_op = assemble.frame_op

-- Code of the items that control, where it does not depend on its place.
local control = {
    count = function(item) return frame_op("move", item.value.reg, item.from.reg) end,
    advance = function(item)
        local v, by = item.pointer, item.by
        if type(by) == "table" then
            return frame_op("address", v.reg, {base = v.reg, index = by.reg, scale = scale_of[v.size], disp = 0})
        end
        local n = by * v.size
        return frame_op(n >= -128 and n < 128 and "add_8" or "add_32", nil, v.reg, n)
    end,
    -- the frame: items of this file
    push = function(item) return frame_op("push", nil, item.reg) end,
    argument = function(item) return frame_op("move", item.value.reg, {base = 4, disp = item.disp, scale = 0}) end,
    zero_upper = function() return frame_op("wide_off") end,
    pop = function(item) return frame_op("pop", nil, item.reg) end,
    back = function() return frame_op("back") end,
    down = function(item) return frame_op("down", nil, item.count.reg, 1) end,
}

-- Pieces -----------------------------------------------------------------------------------------------------------

-- A list of pieces that grows. Piece: item= of an instruction, or the texts of several, which become .text; ends[r], for
-- items of rows, is the length up to row r.
local Pieces = {}
Pieces.__index = Pieces

function Pieces:add(text, row, item)
    local open = self.open
    if not open or open.only_rows ~= (row ~= nil) or row and row < open.row then
        open = {only_rows = row ~= nil, ends = row and {}, row = row, length = 0, item = self.apart and item or nil}
        self[#self + 1] = open
        self.open = not self.apart and open or nil
    end
    open[#open + 1] = text
    if row then
        open.row = row
        open.length = open.length + #text
        open.ends[row] = open.length
    end
end

-- A piece that place() completes, or a mark in the list.
function Pieces:special(kind, item)
    self[#self + 1] = {kind = kind, item = item}
    self.open = nil
end

function Pieces:control(item)
    local kind = item.control
    if kind == "loop" then
        self:special("loop", item)
    elseif kind == "again" then
        self:add(control.down(item), nil, {control = "down", count = item.count})
        self:special("jump", {control = "jump"})
    elseif kind ~= "open" and kind ~= "close" then
        self:add(control[kind](item), nil, item)
    elseif kind == "open" and self.apart then
        self:special("open", item)
    end
end

function Pieces:frame_in(p)
    for _, reg in ipairs(p.save) do
        self:control{control = "push", reg = reg}
    end
    for i = 7, #p.params do
        local v = p.params[i]
        if v.reg then
            self:control{control = "argument", value = v, disp = 8 * (#p.save + 1 + i - 7)}
        end
    end
end

function Pieces:frame_out(p)
    if p.isa.zero_upper then
        self:control{control = "zero_upper"}
    end
    for i = #p.save, 1, -1 do
        self:control{control = "pop", reg = p.save[i]}
    end
    self:control{control = "back"}
end

-- The pieces of the tallest program; apart: one per instruction.
local function pieces(p, apart)
    local list = setmetatable({apart = apart}, Pieces)
    list:frame_in(p)
    for _, code in ipairs(p.preamble) do
        list:special("const", code)
    end
    local vector_op = assemble.vector_op
    for i = 1, p.count do
        local code = p.code[i]
        if code.control then
            list:control(code)
        elseif code.name == "const" then
            list:special("const", code)
        else
            list:add(vector_op(p, code), code.row, code)
        end
    end
    list:frame_out(p)
    for _, piece in ipairs(list) do
        piece.text = piece[2] and table.concat(piece) or piece[1]
    end
    return list
end

-- What a program of `rows` rows (nil: all) has of a piece of rows.
local function cut(piece, rows)
    if not rows or piece.row < rows then
        return piece.text
    end
    for r = rows - 1, 0, -1 do
        if piece.ends[r] then
            return piece.text:sub(1, piece.ends[r])
        end
    end
    return ""
end

-- The 32 bits of a constant: a float, or an integer taken as bits.
function assemble.bits(x)
    return math.type(x) == "float" and string.unpack("<I4", string.pack("<f", x)) or x
end

-- The code of a program as a list of texts. apart: one per instruction, and a second list of the same length, of what each
-- is: an item of the program or one of the `control` of this file; its titles[i] stand before instruction i.
function assemble.place(p, apart)
    local tall, rows = p.taller or p, p.rows
    local key = apart and "apart" or "joined"
    tall.pieces = tall.pieces or {}
    local list = tall.pieces[key] or pieces(tall, apart)
    tall.pieces[key] = list
    local out, what, n, length, loops = {}, {titles = {}}, 0, 0, {}
    local fixups, pool, index = {}, {}, {}
    local function emit(text, item)
        n = n + 1
        out[n], what[n] = text, item
        length = length + #text
    end
    for i = 1, #list do
        local piece = list[i]
        local kind, item = piece.kind, piece.item
        if not kind then
            local text = piece.ends and cut(piece, rows) or piece.text
            if text ~= "" then
                emit(text, item)
            end
        elseif kind == "loop" then
            loops[#loops + 1] = length
            what.titles[n + 1] = "loop: " .. item.count.name .. " times"
        elseif kind == "open" then
            what.titles[n + 1] = item.title
        elseif kind == "jump" then
            emit(frame_op("again", nil, nil, table.remove(loops) - (length + 6)), item)
        elseif not rows or not item.row or item.row < rows then   -- const
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
