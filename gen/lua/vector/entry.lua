-- SPDX-License-Identifier: Apache-2.0
-- entry.lua - the entry of a kernel: what a family's template defines as on_rank(args, worker), in the default
-- floating-point mode. A thread that flushes subnormal numbers, rounds another way or traps gets the same bits as any
-- other, and finds its mode (flags too) as it was.
local ir = require "ir"

local entry = {}

-- Keeps the mode of the thread and sets another one.
function entry.tile(job)
    local p = ir.program(job.plan.isa, job.name .. "_mode", {"The thread's floating-point mode: kept, and set to another."})
    local was, now = p:pointer("was", "int32_t"), p:pointer("now", "const int32_t")
    p:op("keep_mode", p:at(was, 0))
    p:op("set_mode", p:at(now, 0))
    return p
end

local text = [[
// ---- the entry ----

// Computes in the default floating-point mode: nearest even, subnormal numbers stay, nothing traps.
int32_t NAME(const void *args, const moegen_worker *worker)
{
    int32_t (*volatile run)(const void *, const moegen_worker *) = on_rank;   // no compiler moves arithmetic out of it
    const int32_t normal = MODE;
    int32_t was = 0, used = 0;
    NAME_mode(&was, &normal);KEEP
    const int32_t status = run(args, worker);GIVE
    NAME_mode(&used, &was);
    return status;
}
]]

function entry.text(job)
    local scalar, c = job.plan.spelling == "scalar", job.plan.isa.arch.c
    local tiles = (job.tiled or job.plan.tiled) and not scalar
    return (text:gsub("%u%u%u%u+", {NAME = job.name, MODE = scalar and "DEFAULT_MODE" or c.default_mode,
        KEEP = tiles and c.keep_tiles or "", GIVE = tiles and c.give_tiles or ""}))
end

return entry
