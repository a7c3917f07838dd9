-- SPDX-License-Identifier: Apache-2.0
-- encode.lua - machine code from the Intel manual's notation: "EVEX.512.66.0F38.W0 B8 /r" and operands give bytes.
--
--   EVEX   62 | R X B R' 0 m m m | W v v v v 1 p p | z L' L b V' a a a | opcode ModRM [SIB] [disp] [imm8]
--   VEX3   C4 | R X B m m m m m  | W v v v v L p p |                     opcode ModRM [SIB] [disp] [imm8]
--   VEX2   C5 | R v v v v L p p  |                                       opcode ModRM [SIB] [disp] [imm8]
--          (R X B R' V' vvvv are stored inverted)
--
-- parse(row) compiles a row's notation once; encode(form, reg, vvvv, rm, imm, mask) gives the bytes. rm is a register number
-- or a memory operand {base=, index=, scale= (0..3), disp=} or {rip=} (displacement from the end of the instruction).
local encode = {}

local char, pack = string.char, string.pack

local prefix_of = {NP = 0, ["66"] = 1, F3 = 2, F2 = 3}
local map_of = {["0F"] = 1, ["0F38"] = 2, ["0F3A"] = 3}
local length_of = {["128"] = 0, ["256"] = 1, ["512"] = 2, LIG = 0, LZ = 0}

-- Compile "EVEX.512.66.0F38.W0 B8 /r ib" (or "48 8B /r" without a vector prefix).
function encode.parse(notation, tuple)
    local form = {notation = notation, tuple = tuple, memo = {}, opcode = "", imm = 0}
    local head, rest = notation:match("^(%S+)%s*(.*)$")
    if head:find("^E?VEX") then
        form.evex = head:sub(1, 1) == "E"
        form.length, form.prefix, form.map, form.w = 0, 0, 1, 0
        for part in head:gmatch("[^.]+") do
            form.length = length_of[part] or form.length
            form.prefix = prefix_of[part] or form.prefix
            form.map = map_of[part] or form.map
            form.w = part == "W1" and 1 or form.w
            form.broadcast = form.broadcast or part == "b"
        end
        form.vector = true
    else
        rest = notation
    end
    for part in rest:gmatch("%S+") do
        if part == "/r" then
            form.modrm = true
        elseif part:find("^/%d$") then
            form.modrm, form.digit = true, tonumber(part:sub(2))
        elseif part == "ib" or part == "id" then
            form.imm = part == "ib" and 1 or 4
        elseif part == "REX.W" then
            form.w = 1
        elseif part == "+r" then
            form.plus = true
        else
            form.opcode = form.opcode .. char(tonumber(part, 16))
        end
    end
    return form
end

-- ModRM, SIB and displacement of a memory operand; n is what EVEX multiplies an 8-bit displacement by.
local function address(reg, mem, n)
    local low = (reg & 7) << 3
    if mem.rip then
        return char(low | 5) .. pack("<i4", mem.rip)
    end
    local base, disp = mem.base, mem.disp
    local mod, tail = 2, nil
    if disp == 0 and base & 7 ~= 5 then
        mod, tail = 0, ""
    elseif disp % n == 0 and disp // n >= -128 and disp // n <= 127 then
        mod, tail = 1, pack("<i1", disp // n)
    else
        tail = pack("<i4", disp)
    end
    if mem.index then
        return char(mod << 6 | low | 4, mem.scale << 6 | (mem.index & 7) << 3 | base & 7) .. tail
    elseif base & 7 == 4 then
        return char(mod << 6 | low | 4, 0x24) .. tail
    end
    return char(mod << 6 | low | base & 7) .. tail
end

local function rm_bytes(form, reg, rm, n)
    if not form.modrm then
        return ""
    elseif type(rm) == "number" then
        return char(0xc0 | (reg & 7) << 3 | rm & 7)
    end
    return address(reg, rm, n)
end

-- The X and B bits (bit 3 of index and base, or bits 4 and 3 of an rm register).
local function extend(rm)
    if type(rm) == "number" then
        return rm >> 4 & 1, rm >> 3 & 1
    elseif rm.rip then
        return 0, 0
    end
    return rm.index and rm.index >> 3 & 1 or 0, rm.base >> 3 & 1
end

local function evex(form, reg, vvvv, rm, mask)
    local x, b = extend(rm)
    local p1 = (reg >> 3 & 1 ~ 1) << 7 | (x ~ 1) << 6 | (b ~ 1) << 5 | (reg >> 4 & 1 ~ 1) << 4 | form.map
    local p2 = form.w << 7 | (vvvv & 15 ~ 15) << 3 | 4 | form.prefix
    local p3 = form.length << 5 | (form.broadcast and 16 or 0) | (vvvv >> 4 & 1 ~ 1) << 3 | mask
    return char(0x62, p1, p2, p3) .. form.opcode .. rm_bytes(form, reg, rm, form.tuple or 64)
end

local function vex(form, reg, vvvv, rm)
    local x, b = extend(rm)
    local last = (vvvv & 15 ~ 15) << 3 | form.length << 2 | form.prefix
    local r = (reg >> 3 & 1 ~ 1) << 7
    local head
    if x == 0 and b == 0 and form.map == 1 and form.w == 0 then
        head = char(0xc5, r | last)
    else
        head = char(0xc4, r | (x ~ 1) << 6 | (b ~ 1) << 5 | form.map, form.w << 7 | last)
    end
    return head .. form.opcode .. rm_bytes(form, reg, rm, 1)
end

local function legacy(form, reg, rm)
    local x, b = extend(rm)
    local rex = (form.w or 0) << 3 | (reg >> 3 & 1) << 2 | x << 1 | b
    local opcode = form.opcode
    if form.plus then
        opcode = char(opcode:byte() + (rm & 7))
    end
    return (rex ~= 0 and char(0x40 | rex) or "") .. opcode .. rm_bytes(form, reg, rm, 1)
end

-- Absent operands are 0 (reg, vvvv, mask) or nil (imm). The immediate comes last.
local function fresh(form, reg, vvvv, rm, mask)
    reg = form.digit or reg
    if form.evex then
        return evex(form, reg, vvvv, rm, mask)
    elseif form.vector then
        return vex(form, reg, vvvv, rm)
    end
    return legacy(form, reg, rm)
end

function encode.encode(form, reg, vvvv, rm, imm, mask)
    local key, sub
    if type(rm) == "number" then
        key, sub = reg | vvvv << 5 | rm << 10 | mask << 15, 0
    elseif rm.rip then
        key, sub = reg | vvvv << 5 | 1 << 24, rm.rip
    else
        key, sub = reg | vvvv << 5 | rm.base << 10 | (rm.index or 16) << 15 | rm.scale << 20 | mask << 22 | 1 << 25, rm.disp
    end
    local memo = form.memo[key]
    if not memo then
        memo = {}
        form.memo[key] = memo
    end
    local bytes = memo[sub]
    if not bytes then
        bytes = fresh(form, reg, vvvv, rm, mask)
        memo[sub] = bytes
    end
    if form.imm == 1 then
        return bytes .. pack("<I1", imm & 255)
    elseif form.imm == 4 then
        return bytes .. pack("<i4", imm)
    end
    return bytes
end

return encode
