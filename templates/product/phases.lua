-- SPDX-License-Identifier: Apache-2.0
-- phases.lua - what a family's segments go through, as a table: phases.c.in makes the work of ranks of it.
--
-- {name, run = function, ...} and how the phase is cut into chunks:
--     parts = n        into parts of n things: run(w, index, parts)
--     panels = true    by panels of tokens: run(w, panel)
--     chunks = n       otherwise: run(w, index)
--     gradient = {rows, columns}   of weights, into blocks: a product over tokens; or of what run(w, &block) does
--     columns = n      of the product of rows of tokens with `weights`: run(w, &column_block), when their sums are in w->S
--     rows = n         of the product of `weights` with panels of tokens: run(w, first row, rows), when their sums are in w->S
-- Of a product also
--     weights          the tensor
--     k                its contraction, or how many elements rows of `by` have; layout "k": that is contiguous, "n": rows are
--     by = {panels, rows}          what it multiplies, and the words of one of its panels
--     all, from        the tensor's rows and the first one, if not all are multiplied
--     whole = n        elements of K that blocks with a scale do not reach over, if not all: see quantised.lua
--     ordered          of weights in words: columns, which are rows or K, come in the order of words: see codes/words.lua
--     gate = n         the same rows n further on are multiplied too: these are of a gate, and their sums are to be in w->G
--     beside           as gate, but those rows are of this tensor
--     as_rows          of few tokens whose K lies in lanes the sums are rows of w->sums: see matrix_along.c.in
--     also = {tensor, panels}      what this other tensor gives with these panels is added to the sums
-- Of a product of columns
--     weights, k       as above; ld: from a row of the tensor to the next one
--     wide, second     columns of a panel; from its first vector of a row to its second one
--     beside           the tensor of the second vectors, if that is not the first ones'
--     by               the rows that it multiplies
--     in_parts = {n, size}         K is cut into PARTS parts, of n units of this size, which are chunks of their own
-- Of a gradient, unless it has `run`
--     of, by = {panels, rows}      one factor has a row for each row of the gradient, the other one for each column
--     to, bias         the tensors; the bias is what a row of `of` after the last one gives. What w->held has to hold: phases.held
--     at, bias_at      where the expert's gradient starts in them, unless experts follow each other
-- staged: its run stores a gradient, whose tiles multiply
-- reads: the phases that a chunk waits for; the one before, unless it is given. All these are C.
local kinds = require "tiles.kinds"

local phases = {}

-- What the fragments around a family's segments ask, unless it answers itself.
local usual = {
    groups = {most = "E", count = "E", expert = "e"}, parts_add = true, enters = false,
    coded = false, whole_segments = false, clears = false, sums = false, staged = false, listed = false,
    norms_rows = false, quantised = false, integers = false, runs = false, block_rows = 1, along = false, given_weights = false,
    tile_sums = "w->A", tiled = false, crosses = false, padded = false, packed = false,
}

-- What some phase of a family has: words of C fragments, and the key that says so.
local flags = {products = "rows", columns = "columns", blocks = "gradient", gradients = "of", gates = "gate", in_parts = "in_parts",
    beside = "beside", also = "also", as_rows = "as_rows"}

-- Floats that a gradient's sums take over the passes of an expert, with a row for a bias: C
local function held(gradient)
    return ("(%s + WIDTH - 1) / WIDTH * (%s + (int64_t)1) * WIDTH"):format(gradient[2], gradient[1])
end

-- C that can be a factor.
local function factor(x)
    return x:find(" ") and ("(%s)"):format(x) or x
end

-- Adds the phases of a list, in order, without those that are false, and what follows of them.
function phases.add(names, list)
    local all, words, sums = {transposes = false, contiguous = false}, {}, {}
    for flag in next, flags do
        all[flag] = false
    end
    for _, row in ipairs(list) do
        if row then
            row.name = row[1]
            row.reads = row.reads or {words[#words]}
            words[#words + 1], all[#all + 1] = row.name, row
            row.all = row.rows and factor(row.all or row.rows)
            all.transposes = all.transposes or row.layout == "n"
            all.contiguous = all.contiguous or row.layout == "k"
            for flag, key in next, flags do   -- in any order
                all[flag] = all[flag] or row[key] ~= nil
            end
            if row.of then
                row.held = #sums > 0 and table.concat(sums, " + ")
                sums[#sums + 1] = held(row.gradient)
            end
        end
    end
    if not all.transposes then
        names.across = false
    end
    names.all_crossed = (rawget(names, "crosses") or false) and not all.contiguous   -- all products of weights
    all.kinds = {all.products and "matrix" or nil}   -- of what products multiply by
    all.kinds[#all.kinds + 1] = all.columns and "column_block" or nil
    all.gates = all.gates or all.products and all.beside
    all.names, all.held = table.concat(words, ", "), table.concat(sums, " + ")
    for key, value in next, usual do
        if rawget(names, key) == nil then
            names[key] = value
        end
    end
    names.matrix = function(tensor, expert, elements)   -- where an expert's of so many elements starts
        return (names.listed and "w->args->%s[%s]" or "w->args->%s + %s * %s"):format(tensor, expert, elements)
    end
    names.beyond = function(p, elements) return (all.beside and "beyond(%s, %s)" or "%s + %s"):format(p, elements) end
    names.as_factor = factor
    names.products = kinds.text   -- of names and plan: what multiplies, for `moegen explain`
    names.phases, names.transposes, names.expects = all, all.transposes, #all.kinds > 0
end

return phases
