-- SPDX-License-Identifier: Apache-2.0
-- encode.lua - machine code from the Intel manual's notation: "EVEX.512.66.0F38.W0 B8 /r" and operands give bytes.
--
--   EVEX   62 | R X B R' 0 m m m | W v v v v 1 p p | z L' L b V' a a a | opcode ModRM [SIB] [disp] [imm8]
--   VEX3   C4 | R X B m m m m m  | W v v v v L p p |                     opcode ModRM [SIB] [disp] [imm8]
--   VEX2   C5 | R v v v v L p p  |                                       opcode ModRM [SIB] [disp] [imm8]
--          (R X B R' V' vvvv are stored inverted)
--
-- parse(notation) compiles a row's notation once; register(), memory() and relative() give the bytes of an instruction whose
-- ModRM operand is a register, memory at base + index << scale + disp, or memory at disp from the instruction's end.
local encode = {}

local char, pack = string.char, string.pack

local prefix_of = {NP = 0, ["66"] = 1, F3 = 2, F2 = 3}
local map_of = {["0F"] = 1, ["0F38"] = 2, ["0F3A"] = 3}
local length_of = {["128"] = 0, ["256"] = 1, ["512"] = 2, LIG = 0, LZ = 0}

-- "EVEX.512.66.0F38.W0" as a table of fields; nil for what has no vector prefix.
local prefixes = {}

local function prefix(head)
    local fields = prefixes[head]
    if not fields and head:find("^E?VEX") then
        fields = {evex = head:sub(1, 1) == "E", length = 0, prefix = 0, map = 1, w = 0}
        for part in head:gmatch("[^.]+") do
            fields.length = length_of[part] or fields.length
            fields.prefix = prefix_of[part] or fields.prefix
            fields.map = map_of[part] or fields.map
            fields.w = part == "W1" and 1 or fields.w
            fields.broadcast = fields.broadcast or part == "b"
        end
        prefixes[head] = fields
    end
    return fields
end

-- Compile "EVEX.512.66.0F38.W0 B8 /r ib" (or "48 8B /r" without a vector prefix).
function encode.parse(notation, tuple)
    local head, rest = notation:match("^(%S+)%s*(.*)$")
    local v = prefix(head)
    local form = v and {vector = true, evex = v.evex, length = v.length, prefix = v.prefix, map = v.map, w = v.w,
        broadcast = v.broadcast} or {w = 0}
    local opcode = ""
    form.heads, form.whole, form.imm = {}, {}, 0
    form.scale = form.evex and (tuple or 64) or 1    -- what an 8-bit displacement is multiplied by
    for part in (v and rest or notation):gmatch("%S+") do
        if part == "/r" then
            form.modrm = true
        elseif part == "ib" or part == "id" then
            form.imm = part == "ib" and 1 or 4
        elseif part == "REX.W" then
            form.w = 1
        elseif part == "+r" then
            form.plus = true
        elseif part:byte() == 47 then                -- "/2"
            form.modrm, form.digit = true, tonumber(part:sub(2))
        else
            opcode = opcode .. char(tonumber(part, 16))
        end
    end
    form.opcode = opcode
    return form
end

local function evex(form, reg, vvvv, x, b, mask)
    local p1 = (reg >> 3 & 1 ~ 1) << 7 | (x ~ 1) << 6 | (b ~ 1) << 5 | (reg >> 4 & 1 ~ 1) << 4 | form.map
    local p2 = form.w << 7 | (vvvv & 15 ~ 15) << 3 | 4 | form.prefix
    local p3 = form.length << 5 | (form.broadcast and 16 or 0) | (vvvv >> 4 & 1 ~ 1) << 3 | mask
    return char(0x62, p1, p2, p3) .. form.opcode
end

local function vex(form, reg, vvvv, x, b)
    local last = (vvvv & 15 ~ 15) << 3 | form.length << 2 | form.prefix
    local r = (reg >> 3 & 1 ~ 1) << 7
    if x == 0 and b == 0 and form.map == 1 and form.w == 0 then
        return char(0xc5, r | last) .. form.opcode
    end
    return char(0xc4, r | (x ~ 1) << 6 | (b ~ 1) << 5 | form.map, form.w << 7 | last) .. form.opcode
end

local function legacy(form, reg, _, x, b)
    local rex = form.w << 3 | (reg >> 3 & 1) << 2 | x << 1 | b
    return (rex ~= 0 and char(0x40 | rex) or "") .. form.opcode
end

-- Prefix and opcode, which depend on few bits of the operands: x and b are bit 3 of index and base, or bits 4 and 3 of an rm
-- register. Kept in form.heads, whose keys are made of these bits.
local function head(form, reg, vvvv, x, b, mask)
    local bytes = (form.evex and evex or form.vector and vex or legacy)(form, reg, vvvv, x, b, mask)
    form.heads[reg >> 3 | x << 2 | b << 3 | vvvv << 4 | mask << 9] = bytes
    return bytes
end

local function with_imm(form, bytes, imm)
    if form.imm == 1 then
        return bytes .. char(imm & 255)
    elseif form.imm == 4 then
        return bytes .. pack("<i4", imm)
    end
    return bytes
end

-- Absent operands are 0 (reg, vvvv, rm, mask) or nil (imm). The immediate comes last.
function encode.register(form, reg, vvvv, rm, mask, imm)
    reg = form.digit or reg
    local key = reg | vvvv << 5 | rm << 10 | mask << 15
    local bytes = form.whole[key]
    if not bytes then
        bytes = head(form, reg, vvvv, rm >> 4 & 1, rm >> 3 & 1, mask)
        if form.plus then
            bytes = bytes:sub(1, -2) .. char(bytes:byte(-1) + (rm & 7))
        elseif form.modrm then
            bytes = bytes .. char(0xc0 | (reg & 7) << 3 | rm & 7)
        end
        form.whole[key] = bytes
    end
    return form.imm > 0 and with_imm(form, bytes, imm) or bytes
end

-- index may be nil; scale is 0..3.
function encode.memory(form, reg, vvvv, base, index, scale, disp, mask, imm)
    reg = form.digit or reg
    local x, b = index and index >> 3 or 0, base >> 3
    local bytes = form.heads[reg >> 3 | x << 2 | b << 3 | vvvv << 4 | mask << 9] or head(form, reg, vvvv, x, b, mask)
    local n, low, modrm, sib = form.scale, base & 7, (reg & 7) << 3, nil
    if index then
        modrm, sib = modrm | 4, scale << 6 | (index & 7) << 3 | low
    elseif low == 4 then
        modrm, sib = modrm | 4, 0x24
    else
        modrm = modrm | low
    end
    local short = disp // n
    if disp == 0 and low ~= 5 then
        bytes = bytes .. (sib and char(modrm, sib) or char(modrm))
    elseif short >= -128 and short <= 127 and disp % n == 0 then
        bytes = bytes .. (sib and char(modrm | 0x40, sib, short & 255) or char(modrm | 0x40, short & 255))
    else
        bytes = bytes .. (sib and pack("<BBi4", modrm | 0x80, sib, disp) or pack("<Bi4", modrm | 0x80, disp))
    end
    return form.imm > 0 and with_imm(form, bytes, imm) or bytes
end

function encode.relative(form, reg, vvvv, disp, imm)
    reg = form.digit or reg
    return with_imm(form, head(form, reg, vvvv, 0, 0, 0) .. pack("<Bi4", (reg & 7) << 3 | 5, disp), imm)
end

return encode
