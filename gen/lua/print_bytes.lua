-- SPDX-License-Identifier: Apache-2.0
-- print_bytes.lua - a program as machine code: file-scope asm that tcc, gcc and clang assemble to the same bytes.
-- For a file, one instruction a line with its mnemonic and its meaning; for the JIT, the same bytes packed into .quad.
local encode = require "encode"
local regalloc = require "regalloc"
local native = require "native"
local x86 = require "isa.x86"

local bytes = {}

local gpr = {[0] = "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
             "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"}
local scale_of = {[1] = 0, [2] = 1, [4] = 2, [8] = 3}

local function form_of(row, notation, tuple)
    local form = row.form
    if not form then
        form = encode.parse(notation, tuple)
        row.form = form
    end
    return form
end

local function frame_op(name, reg, rm, imm)
    local row = x86.frame[name]
    return encode.encode(form_of(row, row[2], 1), reg or 0, 0, rm or 0, imm, 0)
end

local function memory(mem, stride)
    local base = mem.base
    local disp = mem.offset * base.size
    if stride then
        return {base = base.reg, index = stride.reg, scale = 0, disp = disp}
    elseif mem.index then
        return {base = base.reg, index = mem.index.reg, scale = scale_of[base.size], disp = disp}
    end
    return {base = base.reg, disp = disp, scale = 0}
end

-- One vector op. Constants refer to the pool behind the code: `rip` is patched when its place is known.
local function vector_op(p, code, rip)
    local row = p.isa.rows[code.name] or x86.rows[code.name]
    local form = row.form or form_of(row, row[3], row[5])
    local places = row[4]
    local reg, vvvv, rm, imm, mask = 0, 0, 0, row.fixed, 0
    if places == "A" then
        reg = code[1].reg
        vvvv, rm = reg, reg
    else
        for i = 1, #places do
            local x, place = code[i], places:byte(i)
            if place == 82 then                          -- R
                reg = x.reg
            elseif place == 86 then                      -- V
                vvvv = x.reg
            elseif place == 77 then                      -- M
                if rip and i == 2 then
                    rm = {rip = rip}
                elseif x.base then
                    rm = memory(x)
                else
                    rm = x.reg
                end
            elseif place == 73 then                      -- I
                imm = x
            elseif place == 75 then                      -- K
                mask = x.reg
            elseif place == 83 then                      -- S: a register in the high half of the immediate
                imm = row[3]:find("128.", 1, true) and imm or x.reg << 4
            elseif place == 84 then                      -- T: rows a stride apart
                rm = memory(x, code[i + 1])
            end
        end
    end
    return encode.encode(form, reg, vvvv, rm, imm, mask)
end

-- Text for the reader --------------------------------------------------------------------------------------------

local function hex_disp(disp)
    return disp == 0 and "" or (disp < 0 and "-" or "+") .. ("0x%x"):format(math.abs(disp))
end

local function register(p, v)
    local class = p.isa.classes[v.class] or v.class
    return class == "r" and gpr[v.reg] or (p.isa.prefix[class] .. v.reg)
end

local function element(mem)
    local index = mem.index and mem.index.name or nil
    if index and mem.offset ~= 0 then
        index = index .. " + " .. mem.offset
    end
    return ("%s[%s]"):format(mem.base.name, index or mem.offset)
end

local function says(code)
    local letters = code.op.roles
    local text = code.op.says or ""
    return (text:gsub("%$(%a)", function(letter)
        for i, role in ipairs(letters) do
            if role:lower() == letter then
                local x = code[i]
                if type(x) == "table" then
                    return x.base and element(x) or x.name
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
            local m = memory(x, place == "T" and code[i + 1])
            text = "[" .. gpr[m.base] .. (m.index and ("+%s*%d"):format(gpr[m.index], 1 << m.scale) or "")
                .. hex_disp(m.disp) .. "]" .. (row.form.broadcast and ("{1to%d}"):format(p.isa.lanes) or "")
        else
            text = register(p, x)
            if row.form.length == 0 and row.form.vector then
                text = text:gsub("^[yz]mm", "xmm")
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

-- Assembly -------------------------------------------------------------------------------------------------------

local Text = {}
Text.__index = Text

function Text:emit(code, mnemonic, meaning)
    self.n = self.n + 1
    self.bytes[self.n] = code
    self.length = self.length + #code
    if self.commented then
        self.comments[self.n] = {mnemonic or "", meaning or ""}
    end
end

local function frame_in(p, t)
    for _, reg in ipairs(p.save) do
        t:emit(frame_op("push", nil, reg), "push " .. gpr[reg])
    end
    for i = 7, #p.params do
        local v = p.params[i]
        if v.reg then
            local disp = 8 * (#p.save + 1 + i - 7)
            t:emit(frame_op("move", v.reg, {base = 4, disp = disp, scale = 0}),
                   ("mov %s,[rsp%s]"):format(gpr[v.reg], hex_disp(disp)), v.name)
        end
    end
end

local function frame_out(p, t)
    if p.isa.zero_upper then
        t:emit(frame_op("wide_off"), "vzeroupper")
    end
    for i = #p.save, 1, -1 do
        t:emit(frame_op("pop", nil, p.save[i]), "pop " .. gpr[p.save[i]])
    end
    t:emit(frame_op("back"), "ret")
end

local function advance(t, code)
    local v, by = code.pointer, code.by
    local reg = v.reg
    if type(by) == "table" then
        t:emit(frame_op("address", reg, {base = reg, index = by.reg, scale = scale_of[v.size], disp = 0}),
               ("lea %s,[%s+%s*%d]"):format(gpr[reg], gpr[reg], gpr[by.reg], v.size), v.name .. " += " .. by.name)
        return
    end
    local n = by * v.size
    t:emit(frame_op(n >= -128 and n < 128 and "add_8" or "add_32", nil, reg, n),
           ("add %s,%d"):format(gpr[reg], n), ("%s += %d"):format(v.name, by))
end

local function control(t, code)
    local kind = code.control
    if kind == "loop" then
        t.loops[#t.loops + 1] = t.length
        if t.commented then
            t.titles[t.n + 1] = "loop: " .. code.count.name .. " times"
        end
    elseif kind == "again" then
        local start = table.remove(t.loops)
        t:emit(frame_op("down", nil, code.count.reg, 1), ("sub %s,1"):format(gpr[code.count.reg]), "--" .. code.count.name)
        t:emit(frame_op("again", nil, nil, start - (t.length + 6)), "jnz loop", "until none is left")
    elseif kind == "count" then
        t:emit(frame_op("move", code.value.reg, code.from.reg), ("mov %s,%s"):format(gpr[code.value.reg], gpr[code.from.reg]),
               ("%s = %s"):format(code.value.name, code.from.name))
    elseif kind == "advance" then
        advance(t, code)
    elseif kind == "open" and t.commented then
        t.titles[t.n + 1] = code.title
    end
end

-- The 32 bits of a constant: a float, or an integer taken as bits.
function bytes.bits(x)
    return math.type(x) == "float" and string.unpack("<I4", string.pack("<f", x)) or x
end

local function assemble(p, commented)
    local t = setmetatable({n = 0, length = 0, bytes = {}, comments = {}, titles = {}, loops = {}, commented = commented}, Text)
    local fixups, pool, index = {}, {}, {}
    local function constant(code)
        local bits = bytes.bits(code.imm)
        if not index[bits] then
            pool[#pool + 1] = bits
            index[bits] = #pool
        end
        t:emit(vector_op(p, code, 0))
        fixups[#fixups + 1] = {n = t.n, stop = t.length, index = index[bits], code = code}
    end
    frame_in(p, t)
    for _, code in ipairs(p.preamble) do
        constant(code)
    end
    local items, count = p:items()
    for i = 1, count do
        local code = items[i]
        if code.control then
            control(t, code)
        elseif code.name == "const" then
            constant(code)
        else
            local b = code.bytes
            if not b then
                b = vector_op(p, code)
                code.bytes = b
            end
            if commented then
                local row = p.isa.rows[code.name] or x86.rows[code.name]
                t:emit(b, row[2] .. " " .. operand_text(p, code, row), says(code))
            else
                local n = t.n + 1
                t.n = n
                t.bytes[n] = b
                t.length = t.length + #b
            end
        end
    end
    frame_out(p, t)
    for _, f in ipairs(fixups) do
        local rip = t.length + 4 * (f.index - 1) - f.stop
        t.bytes[f.n] = vector_op(p, f.code, rip)
        if commented then
            t.comments[f.n] = {("vbroadcastss %s,[rip+0x%x]"):format(register(p, f.code[1]), rip), says(f.code)}
        end
    end
    for i = 1, #pool do
        t:emit(string.pack("<I4", pool[i]), ".long", ("0x%08x"):format(pool[i]))
    end
    return t
end

-- Bytes and text of one op whose operands have registers, for tests; rip: displacement of a constant.
function bytes.instruction(p, code, rip)
    local row = p.isa.rows[code.name] or x86.rows[code.name]
    local b = vector_op(p, code, rip)
    return b, row[2] .. " " .. operand_text(p, code, row):gsub("pool", rip or 0)
end

-- Bytes of one instruction of the frame, for tests.
bytes.frame_op = frame_op

-- The machine code alone, for tests.
function bytes.code(p)
    local ok, why = regalloc.allocate(p)
    if not ok then
        return nil, why
    end
    return table.concat(assemble(p, false).bytes)
end

local function parameters(p)
    local list = {}
    for i, v in ipairs(p.params) do
        list[i] = (v.ctype .. " " .. v.name):gsub("%* (%w)", "*%1"):gsub("%*const %*", "*const *")
    end
    return list[1] and table.concat(list, ", ") or "void"
end
bytes.parameters = parameters

-- C text that declares and defines the program, or nil and the reason why it does not fit.
function bytes.print(p, job)
    local ok, why = regalloc.allocate(p)
    if not ok then
        return nil, why
    end
    local t = assemble(p, not job.jit)
    local out = {("extern void %s(%s)%s;\n"):format(p.name, parameters(p), job.jit and "" or " MOEGEN_HIDDEN")}
    out[#out + 1] = ("__asm__(\".text\\n.p2align 6,0x90\\n.globl %s\\n.hidden %s\\n%s:\\n\"\n"):format(p.name, p.name, p.name)
    if job.jit then
        out[#out + 1] = native.quads(table.concat(t.bytes))
    else
        for i = 1, t.n do
            if t.titles[i] then
                out[#out + 1] = "        // " .. t.titles[i] .. "\n"
            end
            local c = t.comments[i] or {"", ""}
            out[#out + 1] = ("        %-74s // %-46s %s\n"):format("\".byte " .. native.hex(t.bytes[i]) .. "\\n\"", c[1], c[2])
                :gsub("%s+\n$", "\n")
        end
    end
    out[#out + 1] = ");\n"
    return table.concat(out)
end

return bytes
