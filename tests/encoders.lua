-- SPDX-License-Identifier: Apache-2.0
-- encoders.lua ROOT DIR - walks the tables of gen/lua/isa and of gen/lua/arch/x86: each row with many operands, as bytes and as the
-- text that the generator prints beside them. GNU as assembles the text; its bytes must be ours. Where as prefers another encoding,
-- objdump must read both as the same instruction. EVEX rows of 512 bits are tried with 256 bits, too, where as would
-- prefer VEX. DIR takes temporary files.
local root, dir = arg[1], arg[2]
dofile(root .. "/tests/generator.lua")(root)
local print_bytes = require "vector.print_bytes"
local ops = require "isa.scalar"
local source = require "source"
local target = require "target"
local arch = target.load("avx512").arch   -- GNU as is that of x86

-- Operands -------------------------------------------------------------------------------------------------------

local seed = 1

-- One of a list, the same in every run.
local function any(list)
    seed = (seed * 1103515245 + 12345) & 0x7fffffff
    return list[(seed >> 8) % #list + 1]
end

local stack = 4   -- rsp: no index, no operand

local function registers(isa, class)
    local list = {}
    for i = class == "k" and 1 or 0, isa.registers[class] - 1 do
        if class ~= "r" or i ~= stack then
            list[#list + 1] = {reg = i, class = class, name = "x"}
        end
    end
    return list
end

-- Addresses around the limits of 8-bit displacements, counted in bytes and in units of n; all bases; indices in all scales.
local function addresses(n, plain)
    local list = {}
    local function add(base, disp, index, size)
        list[#list + 1] = {base = {reg = base, size = size, name = "p"}, offset = disp // size,
                           index = index and {reg = index, class = "r", name = "i"}}
    end
    for base = 0, 15 do
        for _, disp in ipairs{0, 1, -1, 4, 127, 128, -128, -129, n, -n, 127 * n, 128 * n, -128 * n, -129 * n, 0x12345, -0x54321} do
            add(base, disp, nil, 1)
        end
        for _, index in ipairs(plain and {} or {0, 3, 5, 8, 12, 13, 15}) do
            for _, size in ipairs{1, 2, 4, 8} do
                add(base, any{0, 8, -64, 128 * n, 0x7f8}, index, size)
            end
        end
    end
    return list
end

-- For each operand of an op on a target: all that it can be.
local function operands(isa, name, row)
    local op, lists = ops[name], {}
    local roles = {}
    for role in op.operands:gmatch("%S+") do
        roles[#roles + 1] = role
    end
    assert(row[4] == "A" or #row[4] == #roles, name .. ": one place for each operand")
    for i, role in ipairs(roles) do
        local class = role == "k" and "k" or role == "d" and op.class or op.class == "t" and "t" or "v"
        if role == "m" then
            lists[i] = addresses(row[5] or 1, row[4]:find("T", 1, true))
        elseif role == "i" then
            lists[i] = op.immediate == "bits" and {0x3f800000} or {0, 1, 16, 23, 31, 127, 128, 255}
        elseif role == "s" then
            lists[i] = registers(isa, "r")
        else
            lists[i] = registers(isa, isa.classes[class] or class)
        end
    end
    op.roles = roles
    return lists
end

-- Cases ----------------------------------------------------------------------------------------------------------

local cases = {}

-- notation: the row's, whose prefix as shall take, also where it prefers the other.
local function case(place, notation, code, text)
    local prefix = notation:match("^E?VEX")
    cases[#cases + 1] = {place = place, code = code, text = text, prefix = prefix and ("{%s} "):format(prefix:lower()) or ""}
end

-- Tiles of one instruction must differ.
local function distinct(code)
    local seen = {}
    for _, x in ipairs(code) do
        if type(x) == "table" and x.class == "t" then
            if seen[x.reg] then
                return false
            end
            seen[x.reg] = true
        end
    end
    return true
end

-- Every value of every operand, the others at random.
local function vector_row(isa, table_name, name, row)
    local lists = operands(isa, name, row)
    local function one(fixed, value)
        local code
        repeat
            code = {op = ops[name], name = name}
            for i, list in ipairs(lists) do
                code[i] = i == fixed and value or any(list)
                code.imm = math.type(code[i]) and code[i]
            end
        until distinct(code)
        for _, rip in ipairs(ops[name].immediate == "bits" and {0, 4, 0x1000, -8} or {false}) do
            case(table_name .. "." .. name, row[3], print_bytes.instruction({isa = isa}, code, rip or nil))
        end
    end
    if not lists[1] then
        one()
    end
    for i, list in ipairs(lists) do
        for _, value in ipairs(list) do
            one(i, value)
            one(i, value)
        end
    end
end

local gpr = {[0] = "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
             "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"}

-- A row of the frame: all registers; addresses; immediates of its width.
local function frame_row(table_name, name, row)
    local mnemonic, notation, places = table.unpack(row)
    local immediates = not places:find("I", 1, true) and {false} or notation:find("id$") and {300, -300, 0x123456} or {1, -1, 127, -128}
    local register, memory = places:find("[RM]"), places:find("[MT]")
    local function put(reg, rm, rm_text)
        reg, rm = places:find("R", 1, true) and reg or 0, memory and rm or 0
        for _, imm in ipairs(immediates) do
            local list = {}
            for letter in places:gmatch(".") do
                list[#list + 1] = letter == "R" and gpr[reg] or letter ~= "I" and rm_text
                    or (places == "I" and ".+6%+d" or "%d"):format(imm)
            end
            case(table_name .. "." .. name, notation, arch.code.frame_op(name, reg, rm, imm or nil), mnemonic .. " " .. table.concat(list, ","))
        end
    end
    for i = 0, not register and 0 or places:find("T", 1, true) and -1 or 15 do
        put(15 - i, i, gpr[i])
    end
    for _, m in ipairs(places:find("^R") and addresses(1) or {}) do
        local size, base, index = m.base.size, m.base.reg, m.index and m.index.reg
        local disp = m.offset * size
        local rm = {base = base, index = index, scale = ({[1] = 0, [2] = 1, [4] = 2, [8] = 3})[size], disp = disp}
        put(any{0, 7, 8, 15}, rm, ("[%s%s%+d]"):format(gpr[base], index and ("+%s*%d"):format(gpr[index], size) or "", disp))
    end
end

-- A target's EVEX rows of 512 bits as a table of 256 bits would have them: a shorter vector, and what covers it in memory.
local function shorter(isa, own)
    local half = setmetatable({rows = {}, prefix = {v = "ymm", k = "k"}, lanes = (isa.lanes or 0) // 2}, {__index = isa})
    for name, row in pairs(own) do
        if row[3]:find("^EVEX%.512") then
            local copy = {table.unpack(row)}
            copy[3], copy[5] = row[3]:gsub("512", "256"), row[5] and (row[5] <= 8 and row[5] or row[5] // 2)
            copy.fixed, copy.half = row.fixed, row.half
            half.rows[name] = copy
        end
    end
    return half
end

local function vector_rows(isa, table_name, rows)
    for name, row in pairs(rows) do
        assert(ops[name], table_name .. "." .. name .. " is no op of isa/scalar.lua")
        vector_row(isa, table_name, name, row)
    end
end

local function walk()
    for _, table_name in ipairs(source.isas()) do
        local own = target.own(table_name)
        if own.rank then   -- else a part of another table
            local isa = target.load(table_name)
            vector_rows(isa, table_name, own.rows)
            local half = shorter(isa, own.rows)
            vector_rows(half, table_name .. " at 256 bits", half.rows)
        end
    end
    vector_rows({rows = {}, classes = {}, prefix = {}, registers = {r = 16}, arch = arch}, "arch/x86", arch.instructions.rows)
    for name, row in pairs(arch.instructions.frame) do
        frame_row("arch/x86", name, row)
    end
end

-- Witnesses ------------------------------------------------------------------------------------------------------

local function hex(code)
    return (code:gsub(".", function(c) return ("%02x "):format(c:byte()) end))
end

-- Assemble a file with one line for each case of a list and read back, for each, bytes and disassembly.
local function assemble(name, list_of_cases, line_of)
    local path = dir .. "/" .. name
    local file = assert(io.open(path .. ".s", "w"))
    file:write(".intel_syntax noprefix\n")
    for i, c in ipairs(list_of_cases) do
        file:write("c", i, ": ", line_of(c), "\n")
    end
    file:close()
    if not os.execute(("as --64 -o %s.o %s.s 2>%s.err"):format(path, path, path)) then
        for line in io.lines(path .. ".err") do
            local at, message = line:match(":(%d+): Error: (.*)$")
            if at then
                local c = list_of_cases[tonumber(at) - 1]
                print(("FAIL %s: as does not take `%s`: %s"):format(c.place, c.text, message))
            end
        end
        os.exit(1)
    end
    local list, now = {}, nil
    local dump = io.popen(("objdump -d -M intel -w --insn-width=16 %s.o"):format(path))
    for line in dump:lines() do
        local label = line:match("^%x+ <c(%d+)>:$")
        if label then
            now = {bytes = "", text = ""}
            list[tonumber(label)] = now
        elseif now then
            local bytes, text = line:match("^%s*%x+:\t([%x ]+)\t?(.*)$")
            if bytes then
                now.bytes = now.bytes .. bytes:gsub("%s+$", "") .. " "
                now.text = now.text .. text:gsub("%s*#.*$", ""):gsub("%s+$", "") .. "; "
            end
        end
    end
    dump:close()
    return list
end

walk()
local theirs = assemble("theirs", cases, function(c) return "{load} " .. c.prefix .. c.text end)   -- not the store form of register moves
local differing = {}
for i, c in ipairs(cases) do
    if hex(c.code) ~= theirs[i].bytes then
        c.theirs = theirs[i]
        differing[#differing + 1] = c
    end
end
local ours = assemble("ours", differing, function(c) return ".byte " .. hex(c.code):gsub("(%x%x) ", ",0x%1"):sub(2) end)
local failed, other = 0, 0
for i, c in ipairs(differing) do
    if ours[i].text == c.theirs.text and not c.text:find("^j") then
        other = other + 1
    else
        failed = failed + 1
        if failed <= 40 then
            print(("FAIL %s: %s\n  ours %s%s\n  as   %s%s"):format(c.place, c.text, hex(c.code), ours[i].text,
                c.theirs.bytes, c.theirs.text))
        end
    end
end
print(("%d instructions, %d encoded otherwise by as but the same, %d wrong"):format(#cases, other, failed))
os.exit(failed == 0 and #cases > 0)
