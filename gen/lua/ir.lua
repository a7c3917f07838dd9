-- SPDX-License-Identifier: Apache-2.0
-- ir.lua - straight-line vector programs, with counted loops around straight-line bodies.
--
-- A program is one leaf function (a tile). It is built once, in order, and printed in any spelling:
--
--     local p   = ir.program(isa, "gemm_2", "2 rows of S = A * B")
--     local A   = p:pointer("A", "const float")
--     local n   = p:integer("n")
--     local acc = p:op("zero", "acc_0")               -- a destination is a name: names are coordinates
--     p:loop(n, function()
--         local b = p:op("load", "b_0", p:at(B, 0))
--         p:op("fma", acc, p:op("bcast", "a_0", p:at(A, 0)), b)
--         p:advance(A, 1)
--     end)
--
-- A program that only the JIT wants is of another class with the same methods, see vector/taped.lua; so templates look at nothing of a
-- value but its name, and at nothing of a place in memory.
--
-- Values have a class, which is a register file of the target: v vectors, k masks, t tiles, r addresses and counts.
-- Liveness is known when the program is complete: value.def and value.last index p.code; a loop stretches what was
-- defined before it and is used in it. Sizes of elements come from the C type of a pointer.
local ops = require "isa.scalar"

local ir = {}
local Program = {}
Program.__index = Program

local size_of = {
    ["float"] = 4, ["uint16_t"] = 2, ["uint8_t"] = 1, ["int32_t"] = 4, ["int64_t"] = 8,
    ["float *"] = 8, ["float *const"] = 8,
}
local const_size_of = {}
for ctype, size in next, size_of do
    const_size_of["const " .. ctype] = size
end

-- The row of an op on a target: its own, or that of all targets of its machine.
function ir.instruction(isa, name)
    return isa.rows[name] or isa.arch.instructions.rows[name]
end

-- The 32 bits of a constant: a float, or an integer taken as bits.
function ir.bits(x)
    return math.type(x) == "float" and string.unpack("<I4", string.pack("<f", x)) or x
end

-- Parsed once per op: roles[i] is the letter of operand i; reads: the operands that are only read values; at.d, at.D, at.m,
-- at.i: which operand has that role.
local function parse(op)
    local roles, reads, at = {}, {}, {}
    for letter in op.operands:gmatch("%S+") do
        local i = #roles + 1
        roles[i] = letter
        if letter:find("[dDmi]") then
            at[letter] = i
        else
            reads[#reads + 1] = i
        end
    end
    op.roles, op.reads, op.at = roles, reads, at
    op.size = op.ctype and size_of[(op.ctype:gsub(" %*$", ""))]
    return op
end

-- The class of programs: this file's, or that of vector/taped.lua.
ir.class = Program
ir.Program = Program

function ir.program(isa, name, note)
    return ir.class.new{isa = isa, name = name, note = note or {}}
end

function Program.new(p)
    return setmetatable({
        isa = p.isa, name = p.name, note = p.note,
        params = {}, preamble = {}, code = {}, count = 0, values = {}, consts = {}, used = {}, used_list = {},
        general = {},   -- the values of class r
        hoists = p.isa.registers.v - 16,
    }, Program)
end

-- What follows, until the next call, belongs to row r of the tile, or to token r (nil: to all); see shorter().
function Program:row(r) self.current = r end

-- The same tile for fewer rows, or tokens: without the ops of rows from `rows` on. Registers and code are those of the taller one.
function ir.shorter(p, rows, name, note)
    return setmetatable({p[1], name = name, note = note, rows = rows, taller = p}, {__index = p})
end

-- The items of a program that it has.
function Program:items()
    local rows = self.rows
    if not rows then
        return self.code, self.count
    end
    local list, n = {}, 0
    local code = self.code
    for i = 1, self.count do
        local item = code[i]
        if not item.row or item.row < rows then
            n = n + 1
            list[n] = item
        end
    end
    return list, n
end

function Program:value(name, class, ctype)
    local v = {name = name, class = class, ctype = ctype, def = self.count, last = self.count}
    self.values[#self.values + 1] = v
    if class == "r" then
        self.general[#self.general + 1] = v
    end
    return v
end

-- Bytes of what a pointer to this type points to.
function ir.size_of(ctype)
    return size_of[ctype] or assert(const_size_of[ctype], ctype)
end

-- A parameter. ctype is the pointed-to type, with its const: "const float". units: for the reader, see vector/coordinate.lua
function Program:pointer(name, ctype, units)
    local v = self:value(name, "r", ctype .. " *")
    v.size, v.units = ir.size_of(ctype), units
    self.params[#self.params + 1] = v
    return v
end

function Program:integer(name)
    local v = self:value(name, "r", "int64_t")
    self.params[#self.params + 1] = v
    return v
end

-- A parameter that only counts start as: on the stack it needs no register.
function Program:amount(name)
    local v = self:integer(name)
    v.stays = true
    return v
end

-- Memory at base + offset (elements), plus index elements when an integer value is given.
function Program.at(_, base, offset, index)
    return {base = base, offset = offset or 0, index = index}
end

-- A name of coordinates: p:named("w_%d_%d", row, vector). Programs that nobody reads do not make it, so it is none of a constant.
function Program.named(_, form, ...) return form:format(...) end

-- The op called name, which the program uses from now on.
function Program:use(name)
    local op = self.used[name]
    if not op then
        op = ops[name] or error("no op " .. tostring(name), 3)
        op = op.roles and op or parse(op)
        self.used[name], self.used_list[#self.used_list + 1] = op, name
    end
    return op
end

-- Append one operation. Operands in the order of its row in isa/scalar.lua; a destination is given as a name and the
-- new value is returned, an operand that is read and written (role D) is given as a value.
function Program:op(name, ...)
    local op = self.used[name] or self:use(name)
    local at = self.count + 1
    local code = {op = op, name = name, row = self.current, ...}
    self.count, self.code[at] = at, code
    local reads, place = op.reads, op.at
    for i = 1, #reads do
        code[reads[i]].last = at
    end
    local m, d, D = place.m, place.d, place.D
    if m then
        local memory = code[m]
        memory.base.last = at
        if memory.index then
            memory.index.last = at
        end
    end
    if place.i then
        code.imm = code[place.i]
    end
    if d then
        local values = self.values
        local result = {name = code[d], class = op.class or "v", def = at, last = at, reg = nil}
        if op.ctype then
            result.ctype, result.size = op.ctype, op.size
            self.general[#self.general + 1] = result
        end
        values[#values + 1] = result
        code[d] = result
        return result
    elseif D then
        local x = code[D]
        x.mutated, x.last = true, at
        return x
    end
end

-- A constant vector, all lanes alike: a float, or an integer taken as bits. As long as registers are left for it (all but
-- 16) it is loaded once, at the start of the program; else where it is used.
function Program:const(name, x)
    local known = self.consts[name]
    if known and type(known) ~= "number" then
        return known
    elseif known then
        self.consts[name] = known + 1
        return self:op("const", name .. "_" .. known + 1, x)
    elseif self.hoists <= 0 then
        self.consts[name] = 1
        return self:op("const", name, x)
    end
    self.hoists = self.hoists - 1
    self:use("const")
    local value = self:hoist(name, x)
    self.consts[name] = value
    return value
end

function Program:hoist(name, x)
    local value = self:value(name, "v")
    value.def, value.last = 0, self.count
    self.preamble[#self.preamble + 1] = {op = ops.const, name = "const", imm = x, value, x}
    return value
end

-- A constant that the program goes on to change.
function Program:const_copy(name, const_name, x)
    local known = self.consts[const_name]
    if self.hoists > 0 or known and type(known) ~= "number" then
        return self:op("copy", name, self:const(const_name, x))
    end
    return self:op("const", name, x)
end

function Program:item(code)
    self.count = self.count + 1
    self.code[self.count] = code
    return self.count
end

-- Run body `n` times, n >= 1; n is used up. maybe: n may be 0.
function Program:loop(n, body, title, maybe)
    local start = self:item({control = "loop", count = n, title = title, maybe = maybe})
    local values, before, hoisted = self.values, #self.values, #self.preamble
    n.last, n.mutated = start, true
    body()
    local stop = self:item({control = "again", count = n, start = start, maybe = maybe})
    n.last = stop
    for i = 1, before do
        local v = values[i]
        if v.last > start then
            v.last = stop
        end
    end
    for i = hoisted + 1, #self.preamble do   -- constants that the body was the first to name
        self.preamble[i][1].last = stop
    end
end

-- A count of its own, to run a loop with: starts as `from`, another integer or a number.
function Program:count_from(name, from)
    local v = self:value(name, "r", "int64_t")
    local at = self:item({control = "count", value = v, from = from})
    v.def, v.last = at, at
    if type(from) == "table" then
        from.last = at
    end
    return v
end

-- Give a count of its own (or a parameter) the value of another integer.
function Program:set(v, from)
    local at = self:item({control = "set", value = v, from = from})
    v.last, from.last, v.mutated = at, at, true
end

-- A titled block of C; marks lifetimes for the reader.
function Program:block(title, body)
    self:item({control = "open", title = title})
    body()
    self:item({control = "close"})
end

-- Move a pointer by a number of elements, or by an integer value of elements.
function Program:advance(pointer, by)
    local at = self:item({control = "advance", pointer = pointer, by = by, row = self.current})
    pointer.last, pointer.mutated = at, true
    if type(by) == "table" then
        by.last = at
    end
end

-- The op exists on this program's target?
function Program:has(name)
    return self.isa.rows[name] ~= nil or (ops[name] ~= nil and self.isa.emulated == true)
end

return ir
