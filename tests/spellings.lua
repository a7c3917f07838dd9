-- SPDX-License-Identifier: Apache-2.0
-- spellings.lua - programs of the vector IR as C in the three spellings, with tables for a driver: for tests that tests/meanings.sh
-- builds and runs. After tests/generator.lua.
local print_bytes = require "vector.print_bytes"
local print_c = require "vector.print_c"

local spellings = {}

local how = {
    bytes = {head = "", print = function(p) return print_bytes.print(p) end},
    intrinsics = {head = "#include <immintrin.h>\n", print = print_c.intrinsics},
    scalar = {head = "", print = print_c.scalar},
}

local function write(file, ...)
    local f = assert(io.open(file, "w"))
    f:write("/* SPDX-License-Identifier: Apache-2.0 */\n", ...)
    f:close()
end

-- Files of a target, into the current directory: TARGET.SPELLING.c with `SPELLING_table`, pointers to its programs, and
-- TARGET.table.c with `ops`, what a driver wants to know of them, and `needs`, the features of the CPU. A line for the script.
--   program(i, prefix)   the i-th of `count`, with a name that begins with prefix
--   struct, facts        C of a structure `op` whose first member is a pointer, and for each program the values of its members
--   helpers, functions   more C for the scalar spelling, and a list of {symbol=} in it that end its table (nil: none)
function spellings.write(isa, count, program, struct, facts, helpers, functions)
    for spelling, way in pairs(how) do
        local text, used, seen, names = {}, {}, {}, {}
        for i = 1, count do
            local p = program(i, spelling .. "_")
            text[i] = assert(way.print(p))
            names[i] = ("    (void (*)(void))%s,\n"):format(p.name)
            for _, name in ipairs(p.used_list) do
                if not seen[name] then
                    seen[name], used[#used + 1] = true, name
                end
            end
        end
        local scalar = spelling == "scalar"
        for _, f in ipairs(scalar and functions or {}) do
            names[#names + 1] = ("    (void (*)(void))%s,\n"):format(f.symbol)
        end
        write(("%s.%s.c"):format(isa.name, spelling), "#include \"moegen_rt.h\"\n", way.head,
            ("enum { LANES = %d };\n"):format(isa.lanes), scalar and print_c.scalar_preamble(used) or "", table.concat(text),
            scalar and helpers or "",
            ("extern void (*const %s_table[])(void);\nvoid (*const %s_table[])(void) = {\n"):format(spelling, spelling),
            table.concat(names), "    0};\n")
    end
    local lines, needs = {}, {}
    for i, fact in ipairs(facts) do
        lines[i] = "    {" .. fact .. "},\n"
    end
    for i, feature in ipairs(isa.requires) do
        needs[i] = ("\"%s\", "):format(feature)
    end
    local zeros = facts[1]:gsub('"[^"]*"', "0"):gsub("[^,%s]+", "0")
    write(isa.name .. ".table.c", struct, ";\nextern const struct op ops[];\n",
        "const struct op ops[] = {\n", table.concat(lines), "    {", zeros, "}};\n",
        "extern const char *const needs[];\nconst char *const needs[] = {", table.concat(needs), "0};\n",
        "extern const int lanes;\nconst int lanes = ", tostring(isa.lanes), ";\n")
    print(isa.name, isa.gcc)
end

return spellings
