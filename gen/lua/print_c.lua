-- SPDX-License-Identifier: Apache-2.0
-- print_c.lua - a program as C: over intrinsics, or in plain C99 where every op is spelled by its meaning.
-- Both walk the same items; a spelling is a table that says how one op, one declaration and the preamble look.
local bytes = require "print_bytes"
local dtype = require "dtype"
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
    local roles = code.op.roles
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
    local functions, helpers, names = {}, {}, {}
    local function note(text)
        for word in text:gmatch("[%a_][%w_]*") do
            names[word] = true
        end
    end
    for _, name in ipairs(used) do
        functions[#functions + 1] = op_function(name)
        note(functions[#functions] or "")
    end
    for i = #scalar.helpers, 1, -1 do   -- a helper calls only those before it
        local helper = scalar.helpers[i]
        if names[helper[1]] then
            note(helper[2])
            table.insert(helpers, 1, helper[2])
        end
    end
    table.move(functions, 1, #functions, #helpers + 1, helpers)
    return table.concat(helpers, "\n")
end

-- Types and functions that meanings refer to, each after what it needs itself.
scalar.helpers = {
    {"vec", [[
typedef union {
    float f[LANES];
    int32_t i[LANES];
    uint32_t u[LANES];
    uint16_t h[2 * LANES];
} vec;   // one vector of the target, lane by lane
]]},
    {"tile", [[
typedef union {
    float f[16][16];
    uint16_t h[16][32];
    uint8_t row[16][64];
} tile;
]]},
    {"copy_64", [[
static void copy_64(uint8_t *d, const uint8_t *m)
{
    for (int i = 0; i < 64; i++)
        d[i] = m[i];
}
]]},
    {"half_to_float", (dtype.f16.scalar.f16_to_f32:gsub("f16_to_f32", "half_to_float"))},
    {"float_to_half", (dtype.f16.scalar.f32_to_f16:gsub("f32_to_f16", "float_to_half"))},
    {"fused", [[
// a * b + c, rounded once: the product is exact in double. A sum that may lie half-way between two floats is moved off
// that point by what its own rounding lost.
static float fused(float a, float b, float c)
{
    const double p = (double)a * (double)b, q = (double)c;
    union { double f; uint64_t u; } sum;
    sum.f = p + q;
    if ((sum.u & 0xfffffffu) == 0) {
        const double t = sum.f - p, lost = (p - (sum.f - t)) + (q - t);
        if (lost > 0 || lost < 0)
            sum.u = (lost > 0) == (sum.f > 0) ? sum.u + 1 : sum.u - 1;
    }
    return (float)sum.f;
}
]]},
    {"nearest", [[
// To the nearest integer, ties to even; |x| >= 2^23 is one already. The sign stays, of zeros too.
static float nearest(float x)
{
    union { float f; uint32_t u; } y;
    y.f = x;
    const uint32_t sign = y.u & 0x80000000u;
    y.u ^= sign;
    if (y.u >= 0x4b000000u)
        return x;
    volatile float sum = y.f + 0x1p23f;
    y.f = sum - 0x1p23f;
    y.u |= sign;
    return y.f;
}
]]},
    {"integer", [[
// Out of range and NaN: the least integer.
static int32_t integer(float x)
{
    const float y = nearest(x);
    return y >= -0x1p31f && y < 0x1p31f ? (int32_t)y : -2147483647 - 1;
}
]]},
    {"saturated", [[
static uint16_t saturated(int32_t x)
{
    return (uint16_t)(x < 0 ? 0 : x > 65535 ? 65535 : x);
}
]]},
    {"scaled", [[
// x * 2^floor(n), rounded once: it is exact in double.
static float scaled(float x, float n)
{
    union { uint64_t u; double f; } step;
    int e = n > 300 ? 300 : n > -300 ? (int)n : -300;
    if (n != n)
        return x + n;
    if ((float)e > n)
        e--;
    step.u = (uint64_t)(1023 + e) << 52;
    return (float)((double)x * step.f);
}
]]},
    {"flushed", [[
static float flushed(float x)
{
    return x > -0x1p-126f && x < 0x1p-126f ? x * 0 : x;
}
]]},
    {"widened", [[
static float widened(uint16_t bf16)
{
    union { uint32_t u; float f; } x;
    x.u = (uint32_t)bf16 << 16;
    return flushed(x.f);
}
]]},
    {"dot_bf16", [[
// d[r][n] += sum over k: a[r][2 k] * b[k][2 n] + a[r][2 k + 1] * b[k][2 n + 1]; d holds f32, a and b bf16. As the
// instruction does it: sums of even and of odd terms, subnormal numbers taken and given as zeros.
static void dot_bf16(tile *d, const tile *a, const tile *b)
{
    for (int r = 0; r < 16; r++)
        for (int n = 0; n < 16; n++) {
            float even = 0, odd = 0;
            for (int k = 0; k < 16; k++) {
                even = flushed(fused(widened(a->h[r][2 * k]), widened(b->h[k][2 * n]), even));
                odd = flushed(fused(widened(a->h[r][2 * k + 1]), widened(b->h[k][2 * n + 1]), odd));
            }
            d->f[r][n] = flushed(flushed(d->f[r][n]) + flushed(even + odd));
        }
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
