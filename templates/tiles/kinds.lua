-- SPDX-License-Identifier: Apache-2.0
-- kinds.lua - which tiles multiply in a family's products, and for how many tokens of an expert, for `moegen explain`. What decides when a
-- kernel runs: multiply (matrix.c.in), multiply_columns (columns.c.in).
local dtype = require "dtype"
local gemm = require "tiles.gemm"
local lines = require "tiles.lines"
local micro = require "tiles.micro"
local plans = require "shared.plans"
local sweep = require "tiles.sweep"

local kinds = {}

-- The op of products of vectors; that of matrix tiles, if there are some.
local function ops(plan)
    local words, dt = micro.integers[plan.integers or ""], dtype[plan.spec.dtype]
    local vectors = words and (words.multiply or "dot_words") or plan.group > 1 and dt.dot or "fma"
    return vectors, plan.tiled and (words and words.tile or dt.tiles)
end

-- What multiplies where weights lie, as the tiles' own files say: rows {tokens at most, kind, why, op unless it is that of products}.
local function in_place(names, plan)
    if names.line_rows then
        return lines.kinds(plan)
    end
    return plans.append(sweep.kinds(names.sweep_rows), names.line and {lines.many(plan)} or gemm.kinds(plan))
end

-- Rows {tokens, tile kind, op, why}: the first that fits multiplies.

local function to(n) return ("to %d"):format(n) end

local function columns(names, plan)
    local vectors, tiles = ops(plan)
    local list, most = {}, 0
    for _, row in ipairs(in_place(names, plan)) do
        if row[1] > most then
            list[#list + 1] = {to(row[1]), row[2], row[4] or vectors, row[3]}
            most = row[1]
        end
    end
    list[#list + 1] = {"more", "packed", tiles or vectors,
        tiles and "matrix tiles by columns: panels of weights are tiles as they are packed"
            or "weights are packed into panels, tokens broadcast"}
    return list
end

-- Tokens up to which streams multiply rows as they lie, those that fill them: passes of codes are of as few as fit into registers.
local function along_streams(along, most)
    return along.coded and along.streams and along.tokens <= along.streams and most or along.streams
end

local function rows(names, plan, phase)
    local vectors, tiles = ops(plan)
    local across, list = phase.layout == "n", {}
    if names.along and names.along.in_words and not across then
        list[1] = {to(plan.along), "words", vectors, "weights are read once where they lie, columns of their words in lanes"}
    elseif names.along and not across then
        local unit = names.along.unit
        local op = names.coded and (unit.digits and "dot_bytes" or not unit.pairs and "fma") or vectors
        local most = names.along.decoded and math.min(2 * names.along.tokens, plan.along) or plan.along
        local few = along_streams(names.along, most)
        list[1] = few and {to(few), "quarters", op, "weights are read in some streams where they lie, K in lanes"} or nil
        list[#list + 1] = {to(most), "along", op,
            few == most and "likewise, rows that fill no stream" or "weights are read once where they lie, K in lanes"}
        if most < plan.along then
            list[#list + 1] = {to(plan.along), "decoded", op, "weights are decoded once for all tokens, K in lanes"}
        end
    elseif names.across and across then
        list[1] = {to(plan.across), "across", vectors, "weights are read once where they lie, their columns in lanes"}
    end
    if across and names.crosses then
        list[#list + 1] = {list[1] and "others" or "all", "crossed", tiles,
            "matrix tiles by columns: tokens are A, rows of weights joined to pairs B"}
        return list
    end
    local way = names.packed and "packed weights" or across and "weights, transposed on the way," or "rows of weights"
    list[#list + 1] = {list[1] and "others" or "all", "product", tiles or vectors,
        (tiles and "matrix tiles by rows: %s are A, tokens B" or "%s are broadcast, tokens lie in lanes"):format(way)}
    return list
end

local function gradient(names, plan, phase)
    local vectors, tiles = ops(plan)
    local single = {"all", "gradient", vectors, "a single row, of vectors"}
    if phase.gradient and phase.gradient[1] == "1" then
        return {single}
    end
    local way = (tiles and "matrix tiles" or "vectors") .. " over tokens: both factors are panels"
    return plans.list({"all", "gradient", tiles or vectors, way}, tiles and names.gradient_rows[1] == 1 and single)
end

-- Which kind of product a phase is, if it is one: the key that says so.
local of = {{"columns", columns}, {"rows", rows}, {"gradient", gradient}, {"staged", gradient}}

-- Lines for the product of a name with a tensor.
function kinds.lines(name, tensor, list)
    local out = {}
    for i, row in ipairs(list) do
        out[i] = ("  %-14s %-22s %-7s %-9s %-11s %s\n"):format(i == 1 and name or "", i == 1 and tensor or "", table.unpack(row))
    end
    return table.concat(out)
end

-- The text for names that phases.add has filled.
function kinds.text(names, plan)
    local out = {}
    for _, phase in ipairs(names.phases) do
        for _, one in ipairs(of) do
            if phase[one[1]] then
                local tensor = phase.weights or phase.to or ""
                tensor = phase.beside and tensor .. ", " .. phase.beside or tensor
                out[#out + 1] = kinds.lines(phase.name, tensor, one[2](names, plan, phase))
                break
            end
        end
    end
    return table.concat(out)
end

return kinds
