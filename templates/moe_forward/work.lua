-- SPDX-License-Identifier: Apache-2.0
-- work.lua - what a call of moe_forward keeps, see workspace.lua, and what its segments go through, see phases.lua.
local phases = require "product.phases"
local plans = require "shared.plans"
local stored = require "shared.stored"
local column_blocks = require "product.column_blocks"
local workspace = require "shared.workspace"

local work = {}

-- What both ways of products keep. names: see plan.lua
function work.common(names)
    return plans.list(
        {"groups", "int64_t", nil, "runs of blocks of one expert, each"},
        {"group_expert", "int64_t", {"w->args->N"}, "its expert"},
        {"id", "int32_t", {"rows"}, "token of a row"},
        {"slot", "int64_t", {names.has.streams_up and "rows + 1" or "rows"}, "its place in token_position_to_id"},
        {"affinity", "float", {"rows"}, "of a row"},
        names.narrow_output and {"sum", "float", {"tokens(w->args->T)", "SUM_LD"}, "output in f32"})
end

-- What products of columns keep.
function work.space(names, has)
    workspace.fill(names, plans.append(work.common(names), plans.list(
        {"outs", "int64_t", nil, "rows of `out`, 16 of them behind the last", starts = "rows + 16"},
        {"out", "float *", {"PARTS", "w->outs"}, "where its output row is summed, in f32"},
        {"X", "float", {"STRIDE"}, "hidden states" .. (names.dots and ", f32 or pairs" or ""), of = "rows"},
        {"P", "float", {"STRIDE"}, "act(gate) * up" .. (names.dots and ", f32 or pairs" or ""), of = "rows"},
        {"held", "int64_t", nil, "rows of a batch, at most", starts = "most_rows"},
        {"Y", "float", {"PARTS", "most_rows", "SUM_LD"}, "what each row adds to the output", when = "apart(w)"},
        (has.bias_up or has.bias_down) and {"bias", "float", {"WIDTH"}, "of one panel", own = true},
        has.streams_up and {"rest", "float", {"SAVED_LINE * WIDTH"}, "rows of gate and up that fill no line of a checkpoint, and zeros",
            own = true},
        has.streams_up and {"line", names.io, {"LANES * SAVED_LINE"}, "columns of a line of it", own = true},
        has.scale and {"scale", "float", {"WIDTH"}, "of one panel", own = true},
        has.norm and {"norm", "float", {3, "UP_PANELS * WIDTH"}, "weight and bias of an expert's normalisation; 1 for columns of I, else 0",
            own = true}), column_blocks.work(names, "DEEP")))
end

function work.phases(names, spec, has)
    local apart = spec.gated and not stored.of(spec).interleaved   -- a panel's vectors: gate and up, or what follows each other
    local weights, beside = stored.gate_up(spec)
    phases.add(names, {
        {"GATHER", parts = "w->rows", run = "gather_part"},
        {"GATE_UP", columns = apart and "I" or "GATES * I", k = "H", weights = weights, ld = beside and "I" or "GATES * I",
            wide = apart and "UP_COLUMNS" or "WIDTH", second = apart and "I" or "LANES", beside = beside, by = "w->X",
            run = "finish_gate_up"},
        has.norm and {"NORM", chunks = "1", run = "normalise"},
        {"DOWN", columns = "H", k = "I", weights = "down_proj_weight", ld = "H", wide = "WIDTH", second = "LANES",
            in_parts = names.by_part and {"UP_PANELS", "UP_COLUMNS"} or nil, by = "w->P", run = "finish_down"},
        has.post_norm and {"POST_NORM", parts = "w->rows", run = "weigh_part"},
    })
end

return work
