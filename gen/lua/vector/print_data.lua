-- SPDX-License-Identifier: Apache-2.0
-- print_data.lua - a program of taped.lua as C for libtcc: its machine code as a string, and a macro that calls it. libtcc takes a
-- string's bytes as they are, much faster than assembly.
local native = require "native"

local data = {}

-- C text, or nil and the reason why the program does not fit.
function data.print(p)
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

return data
