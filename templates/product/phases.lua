-- SPDX-License-Identifier: Apache-2.0
-- phases.lua - what a family's segments go through, as a table: phases.c.in makes the work of ranks of it.
--
-- {name, run = function, ...} and how the phase is cut into chunks:
--     parts = n        into parts of n things: run(w, index, parts)
--     panels = true    by panels of tokens: run(w, panel)
--     chunks = n       otherwise: run(w, index)
--     gradient = {rows, columns}   of weights, into blocks: run(w, &block)
--     rows = n         of the product of `weights` with panels of tokens: run(w, first row, rows), when their sums are in w->S
-- Of a product also
--     weights          the tensor
--     k                its contraction, or how many elements rows of `by` have; layout "k": that is contiguous, "n": rows are
--     by = {panels, rows}          what it multiplies, and the words of one of its panels
--     all, from        the tensor's rows and the first one, if not all are multiplied
--     gate             there are as many rows of a gate I rows before, whose sums are to be in w->G
-- reads: the phases that a chunk waits for; the one before, unless it is given. All these are C.
local phases = {}

-- Phases in order, without those that are false.
function phases.of(list)
    local all, names = {turns = false, products = false, gradients = false, gates = false}, {}
    for _, row in ipairs(list) do
        if row then
            row.name = row[1]
            row.reads = row.reads or {names[#names]}
            names[#names + 1], all[#all + 1] = row.name, row
            all.turns = all.turns or row.layout == "n"
            all.products = all.products or row.rows ~= nil
            all.gradients = all.gradients or row.gradient ~= nil
            all.gates = all.gates or row.gate ~= nil
        end
    end
    all.names = table.concat(names, ", ")
    return all
end

return phases
