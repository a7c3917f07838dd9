-- SPDX-License-Identifier: Apache-2.0
-- print_bytes.lua - a program as machine code: file-scope asm that tcc, gcc and clang assemble to the same bytes, one instruction a
-- line with its mnemonic and its meaning. For the JIT see print_data.lua.
local assemble = require "vector.assemble"
local coordinate = require "vector.coordinate"
local ir = require "ir"
local native = require "native"
local print_c = require "vector.print_c"
local regalloc = require "vector.regalloc"

local bytes = {}

-- Text for the reader --------------------------------------------------------------------------------------------

local function says(p, code)
    local letters = code.op.roles
    local text = code.op.says or ""
    return (text:gsub("%$(%a)", function(letter)
        for i, role in ipairs(letters) do
            if role:lower() == letter then
                local x = code[i]
                if type(x) == "table" then
                    return x.base and ("%s[%s]"):format(x.base.name, coordinate.index(x, p.lengths)) or x.name
                elseif math.type(x) == "float" then
                    return ("%.9g"):format(x)
                end
                return x < 256 and tostring(x) or ("0x%08x"):format(x)
            end
        end
    end))
end

-- What that means which is no op of the program.
local meaning = {
    argument = function(item) return item.value.name end,
    down = function(item) return "--" .. item.count.name end,
    look = function(item) return item.count.name .. " == 0?" end,
    skip = function() return "then it does not run" end,
    jump = function() return "until none is left" end,
    count = function(item)
        return ("%s = %s"):format(item.value.name, type(item.from) == "table" and item.from.name or item.from)
    end,
    set = function(item) return ("%s = %s"):format(item.value.name, item.from.name) end,
    advance = function(item, p)
        local v, by = item.pointer, item.by
        return type(by) == "table" and v.name .. " += " .. by.name or coordinate.move(v, by, p.lengths)
    end,
}

local function op_text(p, code, away)
    return p.isa.arch.text.op(p, code, ir.instruction(p.isa, code.name), away)
end

-- Mnemonic with operands, and meaning, of what assemble.place() says that an instruction is.
local function describe(p, item)
    local kind = item.control
    if not kind then
        return op_text(p, item), says(p, item)
    elseif kind == "const" then
        return op_text(p, item.code, ("0x%x"):format(item.away)), says(p, item.code)
    elseif kind == "pool" then
        return ".long", ("0x%08x"):format(item.bits)
    end
    return p.isa.arch.text.control[kind](item), meaning[kind] and meaning[kind](item, p) or ""
end

-- Bytes and text of one op whose operands have registers, for tests; away: of a constant, see assemble.op.
function bytes.instruction(p, code, away)
    return assemble.op(p, code, away), op_text(p, code, away)
end

-- C text that declares and defines the program, or nil and the reason why it does not fit.
function bytes.print(p)
    local ok, why = regalloc.allocate(p)
    if not ok then
        return nil, why
    end
    local code, what = assemble.place(p)
    local out = {("extern void %s(%s) MOEGEN_HIDDEN;\n"):format(p.name, print_c.parameters(p)),
        ("__asm__(\n    \".text\\n%s\\n\"\n    \".globl %s\\n.hidden %s\\n\"\n    \"%s:\\n\"\n"):format(
            p.isa.arch.text.align, p.name, p.name, p.name)}
    for i = 1, #code do
        if what.titles[i] then
            out[#out + 1] = "    // " .. what.titles[i] .. "\n"
        end
        local text, means = describe(p, what[i])
        out[#out + 1] = ("    \".byte %s\\n\" // %s  %s\n"):format(native.hex(code[i]), text, means)
    end
    out[#out + 1] = ");\n"
    return table.concat(out)
end

return bytes
