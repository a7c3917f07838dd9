-- SPDX-License-Identifier: Apache-2.0
-- emit.lua - the parts of a generated file that every family shares: includes, argument structure, constants, header, metadata.
-- Tiles: see tile_text.lua; banner: see banner.lua.
local comment = require "c.comment"
local dtype = require "dtype"
local planner = require "planner"
local print_data = require "vector.print_data"
local schema = require "schema"
local tensors = require "kernel.tensors"
local symbols = require "c.symbols"

local emit = {}

local c_of = {i32 = "int32_t", i64 = "int64_t", u8 = "uint8_t", u16 = "uint16_t", u32 = "uint32_t",
    fp8_e4m3 = "uint8_t", fp8_e5m2 = "uint8_t"}
for name, row in pairs(dtype) do
    c_of[name] = row.c
end

-- What family.work(spec) may say of a call: amounts that add up. A row is a routed pair of a token and an expert.
local work_rows = {
    {"flops_per_row", "%d flop per routed row"},
    {"flops_per_token", "%d flop per token"},
    {"weight_bytes_per_expert", "%d bytes of weights per expert"},
    {"weight_bytes", "%d bytes of weights"},
}

-- Of each amount that a family gives: text(row, amount).
function emit.work_of(job, text)
    local work, out = job.work, {}
    for _, row in ipairs(work_rows) do
        if work[row[1]] then
            out[#out + 1] = text(row, work[row[1]])
        end
    end
    return out
end

function emit.is_output(arg)
    return arg[3]:find("out") ~= nil
end

-- struct <name>_args, in the order that moegen_rt.h describes.
function emit.args_struct(job)
    if job.bare then
        local out = {"struct ", job.name, "_args {\n"}
        for _, arg in ipairs(job.args) do
            out[#out + 1] = ("const %s %s%s;\n"):format(c_of[arg[2]], tensors.pointer(arg), arg[1]):sub(emit.is_output(arg) and 7 or 1)
        end
        for _, dim in ipairs(job.dims) do
            out[#out + 1] = "int64_t " .. dim .. ";\n"
        end
        out[#out + 1] = "void *workspace;\nint64_t workspace_bytes;\n};\n"
        return table.concat(out)
    end
    local out = {("struct %s_args {\n"):format(job.name)}
    for _, arg in ipairs(job.args) do
        local optional = arg[3]:find("?", 1, true) and "; NULL: absent" or ""
        out[#out + 1] = ("    %-52s // %s %s%s%s\n"):format(
            ("%s%s %s%s;"):format(emit.is_output(arg) and "" or "const ", c_of[arg[2]], tensors.pointer(arg), arg[1]),
            tensors.shape_text(arg), arg[2],
            optional, arg.says and ": " .. arg.says or "")
    end
    for _, dim in ipairs(job.dims) do
        out[#out + 1] = ("    int64_t %s;\n"):format(dim)
    end
    out[#out + 1] = "    void *workspace;                                     // 64-byte aligned\n"
    out[#out + 1] = "    int64_t workspace_bytes;\n};\n"
    return table.concat(out)
end

-- Members of the structures that the kernel's callers know: names that stay as they are.
function emit.members(job)
    local set = {workspace = true, workspace_bytes = true, rank = true, size = true, barrier = true, team = true, add = true}
    for _, part in ipairs{job, table.unpack(job.parts)} do
        for _, arg in ipairs(part.args) do
            set[arg[1]] = true
        end
        for _, dim in ipairs(part.dims) do
            set[dim] = true
        end
    end
    return set
end

-- What replaces the includes when libtcc compiles the text in process.
local bare = [[
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
typedef struct moegen_worker {
    int64_t rank, size;
    void (*barrier)(void *team);
    void *team;
    int64_t (*add)(int64_t *counter, int64_t n);
    void (*pause)(void *team);
} moegen_worker;
]]

-- code: of its tiles, see print_data.lua
function emit.includes(job, code)
    if job.bare then
        return bare .. print_data.place(code)
    end
    local out = {}
    if job.plan.spelling == "bytes" then
        out[#out + 1] = "// A tile is one assembly string, longer than the 4095 characters that C99 promises.\n"
            .. "#pragma GCC diagnostic ignored \"-Woverlength-strings\"\n\n"
    end
    out[#out + 1] = "#include \"moegen_rt.h\"\n"
    if job.plan.spelling == "intrinsics" then
        out[#out + 1] = job.plan.isa.arch.c.intrinsics
    end
    return table.concat(out)
end

function emit.constants(list, job)
    if job.bare then
        local out = {}
        for i, c in ipairs(list) do
            out[i] = c[1] .. "=" .. ("%d"):format(c[2])
        end
        return "enum {" .. table.concat(out, ",") .. "};\n"
    end
    local out, longest = {"enum {\n"}, 0
    for _, c in ipairs(list) do
        longest = math.max(longest, #c[1] + #tostring(c[2]))
    end
    for _, c in ipairs(list) do
        out[#out + 1] = ("    %s = %d,%s // %s\n"):format(c[1], c[2], (" "):rep(longest - #c[1] - #tostring(c[2]) + 1), c[3])
    end
    out[#out + 1] = "};\n"
    return table.concat(out)
end

-- The .h of a generated .c.
function emit.header(job)
    local guard = "MOEGEN_KERNEL_" .. job.title .. "_H"   -- two names may differ in nothing but case
    local out = {"/*\n * " .. job.title .. ".h\n *\n * Generated by moegen. Do not edit: change the spec or the template and run\n *     "
        .. comment.line(job.command) .. "\n *\n * Status of a call: 0, or with nothing written\n"}
    for i, text in ipairs(job.statuses) do
        out[#out + 1] = (" *     %d  %s\n"):format(i, text)
    end
    out[#out + 1] = (" */\n#ifndef %s\n#define %s\n\n#include \"moegen_rt.h\"\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n")
        :format(guard, guard)
    out[#out + 1] = symbols.named(emit.args_struct(job), job.title, {})
    out[#out + 1] = ("\n// A moegen_entry; see moegen_rt.h.\nint32_t %s(const void *args, const moegen_worker *worker);\n")
        :format(job.title)
    out[#out + 1] = ("\n// A moegen_workspace: bytes that a call with these sizes and `size` ranks needs.\n"
        .. "int64_t %s_workspace(const void *args, int64_t size);\n"):format(job.title)
    out[#out + 1] = "\n#ifdef __cplusplus\n}\n#endif\n#endif\n"
    return table.concat(out)
end

-- Metadata lines; the format is described in gen/api/kernel.c, which reads them.
function emit.meta(job)
    local out = {"moegen-kernel 1"}
    local function line(key, ...)
        out[#out + 1] = key .. " " .. (select("#", ...) == 1 and ... or table.concat({...}, " "))
    end
    line("name", job.title)
    line("family", job.family.family)
    line("target", job.plan.emulated and "scalar" or job.isa.name)
    line("spelling", job.plan.spelling)
    line("dtype", job.spec.dtype or "i32")
    line("requires", table.concat(job.requires, " "))
    line("entry", job.title)
    line("workspace", job.title .. "_workspace")
    if job.plan.threads then
        line("threads", ("%d"):format(job.plan.threads))
    end
    for _, dim in ipairs(job.dims) do
        line("dim", dim)
    end
    for _, row in ipairs(job.family.derived and job.family.derived(job.spec) or {}) do
        line("derive", table.unpack(row))
    end
    for _, arg in ipairs(job.args) do
        local extents = {}
        for i = 4, #arg do
            extents[#extents + 1] = tostring(arg[i])
        end
        line("arg", arg[1], arg[2], (arg[3]:gsub("?", "")), arg[3]:find("?", 1, true) and "optional" or "required",
            table.concat(extents, " "))
        out[#out + 1] = arg.says and "says " .. arg.says or "says"
        out[#out + 1] = arg.listed and "listed" or nil
    end
    for i, text in ipairs(job.statuses) do
        line("status", tostring(i), text)
    end
    for _, text in ipairs(schema.flatten(job.spec)) do
        line("param", text)
    end
    for _, text in ipairs(job.family.params and job.family.params(job.spec, job.plan, job.parts) or {}) do
        line("param", text)
    end
    emit.work_of(job, function(row, amount) line("work", row[1], ("%d"):format(amount)) end)
    if job.plan.spelling == "intrinsics" then
        line("cflags", table.concat(job.cflags, " "))
    end
    return table.concat(out, "\n") .. "\n"
end

-- Text for explain: the plan with its reasons.
emit.explain = planner.explain

return emit
