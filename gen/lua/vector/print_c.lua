-- SPDX-License-Identifier: Apache-2.0
-- print_c.lua - a program as C: over intrinsics, or in plain C99 where every op is spelled by its meaning.
-- Both walk the same items; a spelling is a table that says how one op, one declaration and the preamble look.
local coordinate = require "vector.coordinate"
local helpers = require "vector.helpers"
local ir = require "ir"
local ops = require "isa.scalar"
local regalloc = require "vector.regalloc"

local print_c = {}

-- The parameters of a program.
function print_c.parameters(p)
    local list = {}
    for i, v in ipairs(p.params) do
        list[i] = (v.ctype .. " " .. v.name):gsub("%* (%w)", "*%1"):gsub("%*const %*", "*const *")
    end
    return list[1] and table.concat(list, ", ") or "void"
end

-- Intrinsics -----------------------------------------------------------------------------------------------------

local intrin = {}

-- Memory that an op takes for floats may hold pairs of 16-bit elements.
local function is_cast(mem, op)
    return mem.base.size ~= 4 and op.meaning and op.meaning:find("((float *)m)", 1, true)
end

-- An operand of an op. element: itself, where it is in memory, not its address
local function operand(p, x, op, element)
    if type(x) ~= "table" then
        return tostring(x)
    elseif x.base then
        local cast = is_cast(x, op)
        if element and not cast then
            return ("%s[%s]"):format(x.base.name, coordinate.index(x, p.lengths))
        end
        local address = coordinate.address(x, p.lengths)
        address = cast and ("(float *)(%s)"):format(address) or address
        return element and ("*(%s)"):format(address) or address
    end
    return x.class == "t" and tostring(x.reg) or x.name
end

function intrin.op(p, code)
    local row = ir.instruction(p.isa, code.name)
    local roles = code.op.roles
    local put
    local text = row[1]:gsub("%*%(%$m%)", "$M"):gsub("%$(%a)", function(letter)
        if letter == "i" then
            return code.name == "const" and ("0x%08xu"):format(ir.bits(code.imm)) or tostring(code.imm)
        end
        for i, role in ipairs(roles) do
            if role:lower() == letter:lower() then
                return operand(p, code[i], code.op, letter == "M")
            end
        end
    end)
    for i, role in ipairs(roles) do
        if role:lower() == "d" then
            put = {code[i], role}
        end
    end
    if not put or put[1].class == "t" then
        return text .. ";"
    end
    local v = put[1]
    if put[2] == "D" then
        return v.name .. " = " .. text .. ";"
    elseif v.class == "r" then
        return (v.mutated and "float *" or "float *const ") .. v.name .. " = " .. text .. ";"
    end
    local ctype = p.isa.types[p.isa.classes[v.class] or v.class]
    return ("%s%s %s = %s;"):format(v.mutated and "" or "const ", ctype, v.name, text)
end

-- Scalar ---------------------------------------------------------------------------------------------------------

local scalar = {}

function scalar.op(p, code)
    local roles = code.op.roles
    local args, declare = {}, ""
    for i, role in ipairs(roles) do
        local x = code[i]
        if role == "d" and x.class == "r" then
            return ("float *const %s = %s;"):format(x.name, operand(p, code[2], code.op, true))
        elseif role == "d" then
            declare = (x.class == "t" and "tile " or "vec ") .. x.name .. "; "
            args[i] = "&" .. x.name
        elseif role == "m" then
            args[i] = coordinate.address(x, p.lengths)
        elseif role == "s" then
            args[i] = x.name
        elseif role == "i" then
            args[i] = code.name == "const" and ("0x%08xu"):format(ir.bits(x)) or tostring(x)
        else
            args[i] = "&" .. x.name
        end
    end
    return ("%sop_%s(%s);"):format(declare, code.name, table.concat(args, ", "))
end

-- The function of one op, from its meaning.
local function op_function(name)
    local op = ops[name]
    if op.class == "r" then
        return nil
    end
    local args, kind = {}, op.class == "t" and "tile" or "vec"
    for _, role in ipairs(op.roles) do
        if role == "d" or role == "D" then
            args[#args + 1] = kind .. " *d"
        elseif role == "m" then
            args[#args + 1] = (op.writes and "void" or "const void") .. " *m"
        elseif role == "i" then
            args[#args + 1] = "uint32_t i"
        elseif role == "s" then
            args[#args + 1] = "int64_t s"
        else
            args[#args + 1] = ("const %s *%s"):format(kind, role)
        end
    end
    local body = op.whole or ("for (int l = 0; l < LANES; l++)\n        %s;"):format(op.meaning)
    return ("static void op_%s(%s)\n{\n    %s\n}\n"):format(name, args[1] and table.concat(args, ", ") or "void", body)
end

-- What the scalar tiles of a file need: a function per op, in the order of first use, after the helpers that they name,
-- directly or through other helpers.
function print_c.scalar_preamble(used)
    local functions, called, names = {}, {}, {}
    local function note(text)
        for word in text:gmatch("[%a_][%w_]*") do
            names[word] = true
        end
    end
    for _, name in ipairs(used) do
        functions[#functions + 1] = op_function(name)
        note(functions[#functions] or "")
    end
    for i = #helpers, 1, -1 do   -- a helper names only those before it
        if names[helpers[i][1]] then
            note(helpers[i][2])
            table.insert(called, 1, helpers[i][2])
        end
    end
    table.move(functions, 1, #functions, #called + 1, called)
    return table.concat(called, "\n")
end

-- Both -----------------------------------------------------------------------------------------------------------

local function indent(out, depth, text)
    out[#out + 1] = ("    "):rep(depth) .. text .. "\n"
end

local function by_text(by)
    return type(by) == "table" and by.name or tostring(by)
end

local function print_with(p, spelling)
    local out, depth = {}, 1
    out[1] = ("static void %s(%s)\n{\n"):format(p.name, print_c.parameters(p))
    for _, code in ipairs(p.preamble) do
        indent(out, depth, spelling.op(p, code))
    end
    local items, count = p:items()
    for i = 1, count do
        local code = items[i]
        local kind = code.control
        if kind == "loop" then
            local maybe = code.maybe and ("if (%s > 0) "):format(code.count.name) or ""
            indent(out, depth, maybe .. "do {" .. (code.title and (" // " .. code.title) or ""))
            depth = depth + 1
        elseif kind == "again" then
            depth = depth - 1
            indent(out, depth, ("} while (--%s > 0);"):format(code.count.name))
        elseif kind == "open" then
            indent(out, depth, "{ // " .. code.title)
            depth = depth + 1
        elseif kind == "close" then
            depth = depth - 1
            indent(out, depth, "}")
        elseif kind == "count" then
            indent(out, depth, ("int64_t %s = %s;"):format(code.value.name, by_text(code.from)))
        elseif kind == "set" then
            indent(out, depth, ("%s = %s;"):format(code.value.name, code.from.name))
        elseif kind == "advance" then
            local by = code.by
            indent(out, depth, (type(by) == "table" and ("%s += %s"):format(code.pointer.name, by.name)
                or coordinate.move(code.pointer, by, p.lengths)) .. ";")
        else
            local text = spelling.op(p, code)
            if text then
                indent(out, depth, text)
            end
        end
    end
    out[#out + 1] = "}\n"
    return table.concat(out)
end

local function printer(spelling)
    return function(p)
        local ok, why = regalloc.allocate(p)   -- the same verdict as the bytes: a tile that fits
        if not ok then
            return nil, why
        end
        return print_with(p, spelling)
    end
end

print_c.intrinsics, print_c.scalar = printer(intrin), printer(scalar)

return print_c
