-- SPDX-License-Identifier: Apache-2.0
-- print_bytes.lua - a program as machine code: file-scope asm that tcc, gcc and clang assemble to the same bytes.
-- For a file, one instruction a line with its mnemonic and its meaning; for the JIT, the same bytes packed into .quad.
local assemble = require "vector.assemble"
local coordinate = require "vector.coordinate"
local native = require "native"
local regalloc = require "vector.regalloc"

local bytes = {}

local gpr = {[0] = "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
             "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"}

-- Text for the reader --------------------------------------------------------------------------------------------

local function hex_disp(disp)
    return disp == 0 and "" or (disp < 0 and "-" or "+") .. ("0x%x"):format(math.abs(disp))
end

local vector_of = {["256"] = "ymm", ["512"] = "zmm"}   -- by the length of an encoding
local half_of = {["256"] = "xmm", ["512"] = "ymm"}

local function register(p, v)
    local class = p.isa.classes[v.class] or v.class
    return class == "r" and gpr[v.reg] or (p.isa.prefix[class] .. v.reg)
end

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

local function operand_text(p, code, row)
    local out = {}
    for i = 1, #row[4] do
        local place, x = row[4]:sub(i, i), code[i]
        local text
        if place == "A" then
            text = ("%s,%s,%s"):format(register(p, x), register(p, x), register(p, x))
        elseif type(x) ~= "table" then
            text = code.name == "const" and "[rip+pool]" or tostring(x)
        elseif x.base then
            local stride = place == "T" and code[i + 1]
            local index = stride or x.index
            text = "[" .. gpr[x.base.reg] .. (index and ("+%s*%d"):format(gpr[index.reg], stride and 1 or x.base.size) or "")
                .. hex_disp(x.offset * x.base.size) .. "]" .. (row[3]:find("^%S+%.b ") and ("{1to%d}"):format(p.isa.lanes) or "")
        else
            text = register(p, x)
            local length = row[3]:match("^E?VEX%.(%w+)")
            if length then
                text = text:gsub("^[yz]mm", (row.half == place and half_of or vector_of)[length] or "xmm")
            end
        end
        if not (place == "S" and row[4]:find("T")) then
            out[#out + 1] = {place == "S" and #row[4] + 1 or i, text, place}   -- as in the row; S is an immediate, so last
        end
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
    return table.concat(list, ",")
end

-- Mnemonic with operands, and meaning, of what is not an op of the program.
local describe = {
    push = function(item) return "push " .. gpr[item.reg], "" end,
    pop = function(item) return "pop " .. gpr[item.reg], "" end,
    zero_upper = function() return "vzeroupper", "" end,
    back = function() return "ret", "" end,
    argument = function(item) return ("mov %s,[rsp%s]"):format(gpr[item.value.reg], hex_disp(item.disp)), item.value.name end,
    down = function(item) return ("sub %s,1"):format(gpr[item.count.reg]), "--" .. item.count.name end,
    look = function(item) return ("add %s,0"):format(gpr[item.count.reg]), item.count.name .. " == 0?" end,
    skip = function(item) return "jz past loop " .. item.number, "then it does not run" end,
    jump = function(item) return "jnz loop " .. item.number, "until none is left" end,
    count = function(item)
        local from, name = item.from, item.from
        if type(from) == "table" then
            from, name = gpr[from.reg], from.name
        end
        return ("mov %s,%s"):format(gpr[item.value.reg], from), ("%s = %s"):format(item.value.name, name)
    end,
    set = function(item)
        return ("mov %s,%s"):format(gpr[item.value.reg], gpr[item.from.reg]), ("%s = %s"):format(item.value.name, item.from.name)
    end,
    advance = function(item, p)
        local v, by = item.pointer, item.by
        if type(by) == "table" then
            return ("lea %s,[%s+%s*%d]"):format(gpr[v.reg], gpr[v.reg], gpr[by.reg], v.size), v.name .. " += " .. by.name
        end
        return ("add %s,%d"):format(gpr[v.reg], by * v.size), coordinate.move(v, by, p.lengths)
    end,
    const = function(item, p)
        return ("vbroadcastss %s,[rip+0x%x]"):format(register(p, item.code[1]), item.rip), says(p, item.code)
    end,
    pool = function(item) return ".long", ("0x%08x"):format(item.bits) end,
}

local function op_text(p, code)
    local row = assemble.row(p, code.name)
    return row[2] .. " " .. operand_text(p, code, row)
end

-- Bytes and text of one op whose operands have registers, for tests; rip: displacement of a constant.
function bytes.instruction(p, code, rip)
    return assemble.vector_op(p, code, rip), op_text(p, code):gsub("pool", rip or 0)
end

-- Bytes of one instruction of the frame, for tests.
bytes.frame_op = assemble.frame_op

local function parameters(p)
    local list = {}
    for i, v in ipairs(p.params) do
        list[i] = (v.ctype .. " " .. v.name):gsub("%* (%w)", "*%1"):gsub("%*const %*", "*const *")
    end
    return list[1] and table.concat(list, ", ") or "void"
end
bytes.parameters = parameters
bytes.bits = assemble.bits

-- For libtcc, a program of taped.lua: bytes, and a macro that calls them. It takes a string's bytes as they are, much faster than assembly.
local function print_data(p)
    local code, why = p:code()
    if not code then
        return nil, why
    end
    local tall, typedef = p.taller or p, ""
    if not tall.type then
        local list = {}
        for i, v in ipairs(tall.params) do
            list[i] = v.ctype
        end
        tall.type = p.name .. "_t"
        typedef = ("typedef void (*%s)(%s);\n"):format(tall.type, table.concat(list, ","))
    end
    return table.concat{typedef, "static const unsigned char ", p.name, "_code[] __attribute__((aligned(64))) = \"",
        native.text(code), "\";\n#define ", p.name, " ((", tall.type, ")", p.name, "_code)\n"}
end

-- C text that declares and defines the program, or nil and the reason why it does not fit.
function bytes.print(p, job)
    if job.jit then
        return print_data(p)
    end
    local ok, why = regalloc.allocate(p)
    if not ok then
        return nil, why
    end
    local code, what = assemble.place(p)
    local out = {("extern void %s(%s) MOEGEN_HIDDEN;\n"):format(p.name, parameters(p)),
        ("__asm__(\n    \".text\\n.p2align 6,0x90\\n\"\n    \".globl %s\\n.hidden %s\\n\"\n    \"%s:\\n\"\n"):format(
            p.name, p.name, p.name)}
    for i = 1, #code do
        if what.titles[i] then
            out[#out + 1] = "    // " .. what.titles[i] .. "\n"
        end
        local item = what[i]
        local text, meaning
        if item.control then
            text, meaning = describe[item.control](item, p)
        else
            text, meaning = op_text(p, item), says(p, item)
        end
        out[#out + 1] = ("    \".byte %s\\n\" // %s  %s\n"):format(native.hex(code[i]), text, meaning)
    end
    out[#out + 1] = ");\n"
    return table.concat(out)
end

return bytes
