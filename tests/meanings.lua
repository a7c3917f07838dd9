-- SPDX-License-Identifier: Apache-2.0
-- meanings.lua ROOT - for each target, into the current directory: a program per op that it has (load inputs, the op, store)
-- in the three spellings, and a table of them for meanings/driver.c. Prints the targets with their compiler flags.
-- Ops on tiles need a configuration first: tests/amx.sh; those on the thread's mode: tests/mode_test.c.
local root = arg[1]
dofile(root .. "/tests/generator.lua")(root)
local ir = require "ir"
local ops = require "isa.scalar"
local spellings = dofile(root .. "/tests/spellings.lua")
local target = require "target"

local immediates = {[false] = {0, 1, 8, 16, 23, 31}, bits = {1.5, -0.0, 1e-40, 0, 1, 0x80000000, 0x7fffffff, 0xff800000}}

local function roles_of(name)
    local list = {}
    for role in ops[name].operands:gmatch("%S+") do
        list[#list + 1] = role
    end
    return list
end

local function contains(list, x)
    for i, y in ipairs(list) do
        if x == y then
            return i
        end
    end
end

-- An op that makes a mask of two vectors, and one that shows a mask as a vector.
local function mask_ops(isa)
    local make, show
    for name in pairs(isa.rows) do
        make = ops[name].class == "k" and name or make
        show = contains(roles_of(name), "k") and name or show
    end
    return make, show
end

-- The program of one op: void (float *out, const float *x, const float *y, const float *z). Vectors come from x, y, z in
-- turn, memory that is read is z, memory that is written is out; a pointer that is read is the first word of z.
local function program(isa, name, symbol, imm)
    local op, roles = ops[name], roles_of(name)
    local p = ir.program(isa, symbol, {name})
    local out, from = p:pointer("out", "float"), {}
    for i, letter in ipairs{"x", "y", "z"} do
        from[i] = p:pointer(letter, letter == "z" and op.ctype and op.ctype .. "const" or "const float")
    end
    local make, show = mask_ops(isa)
    local operands, taken = {}, 0
    for i, role in ipairs(roles) do
        if role == "d" then
            operands[i] = "d"
        elseif role == "m" then
            operands[i] = p:at(op.writes and out or from[3], 0)
        elseif role == "i" then
            operands[i] = imm
        elseif role == "k" then
            operands[i] = p:op(make, "k", p:op("load", "k_x", p:at(from[1], 0)), p:op("load", "k_y", p:at(from[2], 0)))
        else
            taken = taken + 1
            operands[i] = p:op("load", role == "D" and "d" or role, p:at(from[taken], 0))
        end
    end
    local d = p:op(name, table.unpack(operands))
    if d and d.class == "r" then
        d = p:op("load", "read", p:at(d, 0))
    elseif d and d.class == "k" then
        d = p:op(show, "shown", d, p:op("load", "no", p:at(from[2], 0)), p:op("load", "yes", p:at(from[3], 0)))
    end
    if d then
        p:op("store", p:at(out, 0), d)
    end
    return p
end

-- name, row-independent facts and programs of all ops of a target; those of its machine come with each target.
local function list_ops(isa, own)
    local list = {}
    for _, rows in ipairs{own, isa.arch.instructions.rows} do
        for name in pairs(rows) do
            local op = ops[name]
            local i = contains(roles_of(name), "i")
            for v, imm in ipairs(op.class ~= "t" and not op.mode and (i and immediates[op.immediate or false] or {0}) or {}) do
                list[#list + 1] = {name = name, imm = imm, symbol = ("%s_%s_%d"):format(isa.name, name, v),
                                   label = i and ("%s %s"):format(name, imm) or name,
                                   float = (op.meaning or ""):find("^d%->f") ~= nil, pointer = op.ctype ~= nil}
            end
        end
    end
    return list
end

for _, isa in ipairs(target.all()) do
    local list, facts = list_ops(isa, target.own(isa.name).rows), {}
    for i, one in ipairs(list) do
        facts[i] = ("\"%s\", %d, %d"):format(one.label, one.float and 1 or 0, one.pointer and 1 or 0)
    end
    spellings.write(isa, #list, function(i, prefix)
        return program(isa, list[i].name, prefix .. list[i].symbol, list[i].imm)
    end, "struct op {\n    const char *name;\n    int is_float, pointer;\n}", facts)
end
