-- SPDX-License-Identifier: Apache-2.0
-- taped.lua - programs as in ir.lua, for code that nobody reads: no names (p:named), no titles, and everything between the calls of a
-- template and the machine code in C. A program of this class is a table whose [1] is its tape, see gen/host/tape.h, and whose own
-- functions op, at, advance and row know it; values and places in memory are references into that. The code is the same as that of
-- ir.lua's programs.
local ir = require "ir"
local ops = require "isa.scalar"
local tape = require "tape"   -- gen/host/tape.c

local Taped = setmetatable({set = tape.set}, {__index = ir.Program})
Taped.__index = Taped

local described = {}   -- of a target: what the tape asked of its ops
local none = {}

function Taped.new(p)
    local registers = p.isa.registers
    described[p.isa] = described[p.isa] or tape.ops()
    p.params, p.consts, p.used_list, p.hoists = {}, {}, none, registers.v - 16
    tape.new(p, {registers.v, registers.k or 0, registers.t or 0}, p.isa.arch.code.machine(), p.isa.zero_upper, described[p.isa])
    return setmetatable(p, Taped)
end

function Taped:pointer(_, ctype)
    self.params[#self.params + 1] = {ctype = ctype .. " *"}
    return tape.parameter(self, ir.size_of(ctype))
end

function Taped:integer()
    self.params[#self.params + 1] = {ctype = "int64_t"}
    return tape.parameter(self, 0)
end

function Taped:amount()
    self.params[#self.params + 1] = {ctype = "int64_t"}
    return tape.parameter(self, 0, true)
end

function Taped.named()
    return ""
end

-- Only the scalar spelling wants to know.
function Taped.use()
end

-- What the tape asks of an op, once for all programs of a target.
function Taped:describe(name)
    local op, isa = ops[name] or error("no op " .. name, 3), self.isa
    local row, class = ir.instruction(isa, name), op.class or "v"
    return row.coder or isa.arch.code.coder(row), op.operands, isa.classes[class] or class,
        op.ctype and ir.size_of((op.ctype:gsub(" %*$", ""))) or 0
end

function Taped:hoist(_, x)
    return tape.hoist(self, x)
end

function Taped:loop(n, body, _, maybe)
    local start = tape.loop(self, n, maybe)
    body()
    tape.again(self, start)
end

function Taped:count_from(_, from)
    return tape.count(self, from)
end

function Taped.block(_, _, body)
    body()
end

-- The code of a program; nil and a sentence when it does not fit. Sets p.peak.
function Taped:code()
    local code, peak = tape.code(self, self.name, self.rows)
    if not code then
        return nil, peak
    end
    self.peak = peak
    return code
end

return Taped
