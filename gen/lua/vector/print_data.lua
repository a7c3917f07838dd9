-- SPDX-License-Identifier: Apache-2.0
-- print_data.lua - a program of taped.lua for libtcc: its machine code beside the C, and a macro that calls it. The compiler only
-- keeps a place for the code of all tiles, which gen/jit/jit.c fills: it never reads a byte of it.
local data = {}

local ALIGN <const> = 64

-- What tiles of one file share.
function data.shared()
    return {list = {}, size = 0, types = {}}   -- types: of functions, by their parameters
end

-- The name of the type of a program's function, and C text that says what that is if it is new.
local function type_of(p, types)
    local params = {}
    for i, v in ipairs(p.params) do
        params[i] = v.ctype
    end
    local list = table.concat(params, ",")
    local known = types[list]
    types[list] = known or p.name .. "_t"
    return types[list], known and "" or ("typedef void (*%s)(%s);\n"):format(types[list], list)
end

-- C text, or nil and the reason why the program does not fit. Adds its code to `all`.
function data.print(p, all)
    local code, why = p:code()
    if not code then
        return nil, why
    end
    local tall, typedef = p.taller or p, ""
    if not tall.type then
        tall.type, typedef = type_of(p, all.types)
    end
    local gap, list = -all.size % ALIGN, all.list
    local at = all.size + gap
    list[#list + 1], list[#list + 2] = ("\0"):rep(gap), code
    list[#list + 1] = "\0"   -- no code runs into the next
    all.size = at + #code + 1
    return ("%s#define %s ((%s)(moegen_tiles+%d))\n"):format(typedef, p.name, tall.type, at)
end

-- The place of all code, and the name by which jit.c finds it.
local text <const> = [[
__asm__(".data\n.p2align 6\n.globl NAME\n.hidden NAME\nNAME:\n.text\n");
static const unsigned char moegen_tiles[SIZE] __attribute__((aligned(64)))="";
]]

function data.place(all)
    return all.size > 0 and text:gsub("NAME", "moegen_tiles_here"):gsub("SIZE", ("%d"):format(all.size)) or ""
end

function data.code(all)
    return table.concat(all.list)
end

return data
