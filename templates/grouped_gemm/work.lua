-- SPDX-License-Identifier: Apache-2.0
-- work.lua - what a call of grouped_gemm keeps, see workspace.lua, and what its segments go through, see phases.lua.
local phases = require "product.phases"
local plans = require "shared.plans"
local space = require "product.space"
local column_blocks = require "product.column_blocks"
local workspace = require "shared.workspace"

local work = {}

-- Parts of the rows of panels.
local function gather(names)
    return {"GATHER", parts = "ROWS / " .. names.gathered, run = "gather_part"}
end

-- Flat indices that a row has, if two rows must not have the same.
local function seen(names)
    return names.once and {"seen", "float", {"rows"}, "flat indices that a row has"}
end

-- What sums of a token's rows take: each row's, and theirs in f32 if they are rounded.
local function sums(names)
    return names.reduces and {"Y", "float", {"most_rows", "SUM_LD"}, "what each row adds to dX", when = "apart(w)"},
        names.reduces and names.narrow_out and {"sum", "float", {"w->args->T", "SUM_LD"}, "dX in f32"}
end

function work.row_phases(names)
    local from, to, integers = names.product.from, names.product.to, names.integers
    names.entered = integers and {"tokens", "ROWS"} or {from.tensor, "APART"}   -- panels, and the rows of each
    phases.add(names, {
        gather(names),
        integers and {"ENCODE", parts = "w->panels * VECTORS", run = "encode_tokens"},
        {"PRODUCT", rows = to.row, k = from.row, weights = "W", layout = names.product.layout,
            by = {"w->" .. from.tensor, integers and "X_ROWS" or "APART"}, run = "finish_rows"},
    })
end

function work.rows(names)
    local from, to, integers = names.product.from.tensor, names.product.to.tensor, names.integers
    space.rows(names, plans.list(
        seen(names),
        integers and {"tokens", "float", {"ROWS"}, "rows of X, transposed", of = "columns"},
        {from, "float", {integers and "X_ROWS" or "APART"}, integers and "the same in words with scales" or
            ("rows of %s, transposed"):format(from), of = "columns"},
        {"out", "float", {"LANES", "CHUNK_ROWS"}, "parts of rows of " .. to, own = true},
        sums(names)), {})
end

function work.columns(names)
    phases.add(names, {
        {"GATHER", parts = "w->rows", run = "gather_part"},
        {"PRODUCT", columns = "K", k = "N", weights = "W", ld = "K", wide = "WIDTH", second = "LANES", by = "w->dY",
            run = "finish_columns"},
    })
    workspace.fill(names, plans.append(plans.list(
        seen(names),
        {"dY", "float", {"STRIDE"}, "rows of A", of = "rows"},
        names.enters and {"out", "float *", {"columns + 8"}, "rows of dX", own = true},
        sums(names)), column_blocks.work(names, "N")))
end

function work.gradient(names)
    phases.add(names, {gather(names),
        names.staged and {"PRODUCT", chunks = "steps_of(N, STAGED)", run = "staged_rows", staged = true, to = "dW"} or
        {"PRODUCT", gradient = {"N", "K"}, run = "block_of_dw", to = "dW"}})
    local io, out, staged = names.panel_c, names.out_c, names.staged
    space.rows(names, {
        {"X_of_batch", "float", {names.words "w->columns" .. " + w->columns / WIDTH", "K_SLICES", "WIDTH"}, "rows of X",
            shape = ("[K_SLICES][%s + 1][WIDTH]"):format(names.words "columns")},
        {"X", "float *", nil, "those of the segment"},
        {"pitch", "int64_t", nil, "floats between its slices"},
        {"dY", io, {"APART"}, "rows of dY, transposed", of = "columns"},
        {"held", "float", {"K_SLICES", "N", "WIDTH"}, "an expert's gradient over its parts", when = "rows > PASS_ROWS"},
        {"S", "float", {"PART_ROWS", "WIDTH"}, "sums", own = true},
        names.tiled and {"tile", "float", {"TILE_ROWS", "WIDTH"}, "sums of tiles", own = true},
        staged and {"block", out, {"STAGED", "APART_STAGED"}, "rows of the gradient: at work,", own = true},
        staged and {"other", out, {"STAGED", "APART_STAGED"}, "and those before, on their way", own = true},
        staged and {"into", out .. " *", nil, "to here:"},
        staged and {"done", "int64_t", nil, "so many", starts = "0"},
        staged and {"rows_before", "int64_t", nil, "of so many have been stored, or are now:", starts = "0"},
        staged and {"lines_to", out .. " *", nil, "to here"},
        staged and {"lines_from", ("const %s *"):format(out), nil, "from here"},
        staged and {"lines", "int64_t", nil, "so many cache lines,", starts = "0"},
        staged and {"count", "int64_t", nil, "so many of them beside each group of rows", starts = "0"},
    }, {pairs = "ROWS / 2"})
end

return work
