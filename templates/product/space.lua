-- SPDX-License-Identifier: Apache-2.0
-- space.lua - what products keep in the workspace: rows of workspace.lua.
local along = require "along.plan"
local plans = require "shared.plans"
local workspace = require "shared.workspace"

local space = {}

-- What tiles of vectors keep: the block of weights that they multiply, and the next one, which they copy or, of packed weights, fetch.
local function vectors(names, add, block)
    local packed = names.packed and names.packed.in_place
    if packed then
        add("A", "const float *", nil, "weights at work,")
        add("pitch", "int64_t", nil, "from one of their panels to the next one")
    else
        add("A", "float", block, "weights at work,")
        add("coming", "float", block, "and those of the next block,")
    end
    add("near", "const float *", nil, "tokens that come next")
    add("ready", packed and "const float *" or ("const %s *"):format(names.io), nil, "the next block in memory:").starts = "0"
    add(packed and "ready_pitch" or "ready_ld", "int64_t", nil, packed and "panels so far apart," or "rows so far apart,")
    add("ready_rows", "int64_t", nil, packed and "so many rows of which are fetched" or "so many of which are in `coming`")
    add("wanted", "int64_t", nil, "of so many;")
    add("pace", "int64_t", nil, "rows that a tile copies after each panel")
    if not packed then
        add("after", ("const %s *"):format(names.io), nil, "the block after the next one, or NULL:")
        add("after_ld", "int64_t", nil, "rows so far apart")
    end
end

-- The block of weights at work.
local function blocks(names, add)
    local rows = names.crosses and "(MC > WIDTH ? MC : 2 * WIDTH)" or "MC"   -- crossed products have words of two blocks
    local block = plans.list(names.coded and names.coded.terms > 1 and names.coded.terms, "K_PANELS", rows, "WIDTH")
    if not names.tiled then
        vectors(names, add, block)
    elseif not (names.packed and names.packed.in_place) then
        add("A", "float", block, "weights at work")
    end
end

-- Panels of so many rows, as B of a product of pairs.
function space.pairs(names, panel, rows)
    local words = names.words(rows)
    return {panel .. "_pairs", "float", {words}, panel .. ", each word of two rows", of = "columns", shape = names.pairs_shape(words)}
end

-- Fills names with the rows of a list and what products of rows, and gradients, keep. has: pairs, words of a panel of pairs that
-- nobody keeps; row, how long rows are whose columns have gradients: C
function space.rows(names, list, has)
    local function add(...)
        list[#list + 1] = {...}
        list[#list].own = true
        return list[#list]
    end
    add("stage", "float", {"LANES", "STAGE"}, "rows on their way into panels")
    if names.splits then
        add("pairs_scratch", "float", {has.pairs, "WIDTH"}, "and those of a panel of pairs")
    end
    if names.phases.products then
        add("S", "float", {"columns", "MC"}, "sums")
        list[#list].shape = "[panels][MC][WIDTH]"
        blocks(names, add)
        if names.across then
            add("across", "float", {"ACROSS_SUMS"}, "sums of columns of weights")
            if names.line.keep then
                add("kept_lines", "float", {"KEPT", "ACROSS_K", "WIDTH"}, "and some lines of these")
            end
        end
        along.space(names, add)
    end
    for _, row in ipairs(names.coded and names.coded.space or {}) do
        list[#list + 1] = row
    end
    if names.gradient and not names.staged then
        local panel = "ROW_PANELS * columns * WIDTH"
        if has.row then
            add("row", "float", {("least(most(ROW_FLOATS, %s), %s * columns)"):format(panel, has.row)},
                "panels of rows of the columns of a weight's gradient")
            list[#list].shape = ""
        end
        if names.bursts then
            add("burst", names.out_c, {"BURST"}, "a group of its rows on their way to memory")
        end
    end
    workspace.fill(names, list)
end

return space
