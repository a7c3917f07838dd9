-- SPDX-License-Identifier: Apache-2.0
-- tile_text.lua - the tiles of a kernel as C text, in the plan's spelling, and what they share.
local entry = require "vector.entry"
local ir = require "ir"
local print_data = require "vector.print_data"

local tile_text = {}

local print_tile = {
    bytes = function(p) return require("vector.print_bytes").print(p) end,
    data = function(p, shared) return print_data.print(p, shared.code) end,   -- bytes for the JIT
    intrinsics = function(p) return require("vector.print_c").intrinsics(p) end,
    scalar = function(p) return require("vector.print_c").scalar(p) end,
}

-- What tiles of one file share: C functions on single elements, and the ops that the scalar spelling defines; each once. Code: see
-- print_data.lua.
function tile_text.shared()
    return {functions = {}, ops = {}, seen = {}, code = print_data.shared()}
end

local function once(shared, list, key, value)
    if not shared.seen[key] then
        shared.seen[key] = true
        list[#list + 1] = value
    end
end

-- All tiles of a kernel as text; nil and a sentence when one does not fit the register file. Adds to `shared` what they need.
function tile_text.tiles(job, names, shared)
    local printed, count = {}, 0
    local taped = job.bare and job.plan.spelling == "bytes"
    local print = print_tile[taped and "data" or job.plan.spelling]
    job.peak = 0
    for _, want in ipairs(names.scalars or {}) do   -- conversions: {row of dtype.lua, "widen" or "narrow"}
        local name = want and want[1][want[2]]
        if name then
            once(shared, shared.functions, name, want[1].scalar[name])
        end
    end
    ir.class = taped and require "vector.taped" or ir.Program
    local tiles = {table.unpack(names.tiles())}
    tiles[#tiles + 1] = not job.part and entry.tile(job) or nil
    local lengths = not job.bare
        and require("vector.coordinate").lengths(names.constants or {}, job.part and job.part .. "_" or "") or nil
    for _, p in ipairs(tiles) do
        for _, op in ipairs(p.used_list) do
            once(shared, shared.ops, "op " .. op, op)
        end
        p.lengths = lengths
        local text, why = print(p, shared)
        if not text then
            return nil, why
        end
        count = count + (job.bare and 0 or select(2, p:items()))
        job.peak = math.max(job.peak, p.peak)
        printed[#printed + 1] = (job.bare and "" or "// " .. p.note[1] .. "\n") .. text
    end
    job.operations = count
    return table.concat(printed, "\n")
end

-- What stands before the tiles of a file.
function tile_text.preamble(job, shared)
    local out = table.move(shared.functions, 1, #shared.functions, 1, {})
    if job.plan.spelling == "scalar" then
        out[#out + 1] = require("vector.print_c").scalar_preamble(shared.ops)
    end
    return table.concat(out, "\n")
end

return tile_text
