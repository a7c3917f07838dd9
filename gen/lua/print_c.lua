-- SPDX-License-Identifier: Apache-2.0
-- print_c.lua - a program as C: over intrinsics, or in plain C99 where every op is spelled by its meaning.
-- Both walk the same items; a spelling is a table that says how one op, one declaration and the preamble look.
local bytes = require "print_bytes"
local ops = require "isa.scalar"
local regalloc = require "regalloc"
local x86 = require "isa.x86"

local print_c = {}

local function address(mem)
    local text = mem.base.name
    if mem.offset ~= 0 then
        text = ("%s %s %d"):format(text, mem.offset < 0 and "-" or "+", math.abs(mem.offset))
    end
    if mem.index then
        text = text .. " + " .. mem.index.name
    end
    return text
end

-- Intrinsics -----------------------------------------------------------------------------------------------------

local intrin = {}

local function operand(x)
    if type(x) ~= "table" then
        return tostring(x)
    elseif x.base then
        return address(x)
    end
    return x.class == "t" and tostring(x.reg) or x.name
end

function intrin.op(p, code)
    local row = p.isa.rows[code.name] or x86.rows[code.name]
    local roles = code.op.roles
    local put
    local text = row[1]:gsub("%$(%a)", function(letter)
        if letter == "i" then
            return code.name == "const" and ("0x%08xu"):format(bytes.bits(code.imm)) or tostring(code.imm)
        end
        for i, role in ipairs(roles) do
            if role:lower() == letter then
                return operand(code[i])
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

function scalar.op(_, code)
    local op, roles = code.op, code.op.roles
    if op.silent then
        return nil
    end
    local args, declare = {}, ""
    for i, role in ipairs(roles) do
        local x = code[i]
        if role == "d" and x.class == "r" then
            return ("float *const %s = *(%s);"):format(x.name, address(code[2]))
        elseif role == "d" then
            declare = (x.class == "t" and "tile " or "vec ") .. x.name .. "; "
            args[i] = "&" .. x.name
        elseif role == "m" then
            args[i] = address(x)
        elseif role == "s" then
            args[i] = x.name
        elseif role == "i" then
            args[i] = code.name == "const" and ("0x%08xu"):format(bytes.bits(x)) or tostring(x)
        else
            args[i] = "&" .. x.name
        end
    end
    return ("%sop_%s(%s);"):format(declare, code.name, table.concat(args, ", "))
end

-- The function of one op, from its meaning.
local function op_function(name)
    local op = ops[name]
    if op.silent or op.class == "r" then
        return nil
    end
    local args, scratch = {}, ""
    local kind = name:find("^tile") and "tile" or "vec"
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
    return ("static void op_%s(%s)\n{\n    %s%s\n}\n"):format(name, table.concat(args, ", "), scratch, body)
end

-- What the scalar tiles of a file need: the vector type and a function per op, in the order of first use.
function print_c.scalar_preamble(used)
    local out = {"typedef union {\n    float f[LANES];\n    int32_t i[LANES];\n    uint32_t u[LANES];\n"
        .. "    uint16_t h[2 * LANES];\n} vec;   // one vector of the target, lane by lane\n"}
    local helpers, seen = {}, {}
    for _, name in ipairs(used) do
        local text = op_function(name)
        for _, helper in ipairs(scalar.helpers) do
            if text and text:find(helper[1] .. "(", 1, true) and not seen[helper[1]] then
                seen[helper[1]] = true
                helpers[#helpers + 1] = helper[2]
            end
        end
    end
    table.move(helpers, 1, #helpers, #out + 1, out)
    for _, name in ipairs(used) do
        out[#out + 1] = op_function(name)
    end
    return table.concat(out, "\n")
end

-- Functions that meanings refer to.
scalar.helpers = {
    {"dot_bf16", [[
typedef struct {
    uint8_t row[16][64];
} tile;

static float widen(const uint8_t *bf16)
{
    union { uint32_t u; float f; } x = {(uint32_t)bf16[1] << 24 | (uint32_t)bf16[0] << 16};
    return x.f;
}

// d[r][n] += sum over pairs: a[r][2k] * b[k][2n] + a[r][2k + 1] * b[k][2n + 1]; d holds f32, a and b bf16.
static void dot_bf16(tile *d, const tile *a, const tile *b)
{
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 16; n++) {
                float *x = (float *)(void *)d->row[r] + n;
                *x += widen(a->row[r] + 4 * k) * widen(b->row[k] + 4 * n);
                *x += widen(a->row[r] + 4 * k + 2) * widen(b->row[k] + 4 * n + 2);
            }
}
]]},
    {"memory_zero", [[
static void memory_zero(void *d, unsigned long n)
{
    for (unsigned long i = 0; i < n; i++)
        ((uint8_t *)d)[i] = 0;
}
]]},
    {"copy", [[
static void copy(void *d, const void *m, int n)
{
    for (int i = 0; i < n; i++)
        ((uint8_t *)d)[i] = ((const uint8_t *)m)[i];
}
]]},
    {"fused", [[
// a * b is exact in double; the sum is rounded to double, then to float.
static float fused(float a, float b, float c)
{
    return (float)((double)a * (double)b + (double)c);
}
]]},
    {"nearest", [[
// To the nearest integer, ties to even; |x| >= 2^23 is one already.
static float nearest(float x)
{
    union { float f; uint32_t u; } magic = {8388608.0f}, bits = {x};
    if ((bits.u & 0x7fffffffu) >= magic.u)
        return x;
    volatile float y = x < 0 ? x - magic.f : x + magic.f;
    return x < 0 ? y + magic.f : y - magic.f;
}
]]},
    {"scaled", [[
// x * 2^n for integral n, in steps that neither overflow nor round twice for |x| in [1, 2).
static float scaled(float x, float n)
{
    union { uint32_t u; float f; } step;
    if (!(n >= -300.0f))
        n = -300.0f;
    if (n > 300.0f)
        n = 300.0f;
    for (int e = (int)n; e != 0;) {
        const int part = e > 127 ? 127 : e < -126 ? -126 : e;
        step.u = (uint32_t)(part + 127) << 23;
        x *= step.f;
        e -= part;
    }
    return x;
}
]]},
}

-- Both -----------------------------------------------------------------------------------------------------------

local function indent(out, depth, text)
    out[#out + 1] = ("    "):rep(depth) .. text .. "\n"
end

local function by_text(by)
    return type(by) == "table" and by.name or tostring(by)
end

local function print_with(p, spelling)
    local out, depth = {}, 1
    out[1] = ("static void %s(%s)\n{\n"):format(p.name, bytes.parameters(p))
    for _, code in ipairs(p.preamble) do
        indent(out, depth, spelling.op(p, code))
    end
    local items, count = p:items()
    for i = 1, count do
        local code = items[i]
        local kind = code.control
        if kind == "loop" then
            indent(out, depth, "do {" .. (code.title and (" // " .. code.title) or ""))
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
            indent(out, depth, ("int64_t %s = %s;"):format(code.value.name, code.from.name))
        elseif kind == "advance" then
            indent(out, depth, ("%s += %s;"):format(code.pointer.name, by_text(code.by)))
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

function print_c.intrinsics(p)
    local ok, why = regalloc.allocate(p)   -- the same verdict as the bytes: a tile that fits
    if not ok then
        return nil, why
    end
    return print_with(p, intrin)
end

function print_c.scalar(p)
    local ok, why = regalloc.allocate(p)
    if not ok then
        return nil, why
    end
    return print_with(p, scalar)
end

return print_c
