-- SPDX-License-Identifier: Apache-2.0
-- amx_gradient.lua - gradients of weights on matrix tiles, see matrix.gradient: C = or += A * B, A rows of tokens' panels, B pairs of tokens.
local amx = require "tiles.amx"
local ir = require "ir"
local matrix = require "tiles.matrix"
local row_tiles = require "tiles.rows"

local gradients = {}

local UNIT <const> = amx.unit

-- See matrix.gradient; the sums pass through `sums`, rows * WIDTH floats. Panels have 32 tokens, all of which count.
function gradients.gradient(cfg, rows, has)
    local lanes = cfg.isa.lanes
    local width = cfg.vectors * lanes
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, has.name, rows),
        {("C[%d rows] %s A * B for n panels of columns, on tiles: rows `ld` apart."):format(rows, has.add and "+=" or "=")})
    local C = p:pointer("C", has.dtype.c)
    local A, B = p:pointer("A", "const uint16_t", "WIDTH"), p:pointer("B", "const float", "WIDTH LANES")
    local panels = p:integer("panels")
    local jump, n, again, skip = has.jump or p:integer("jump"), p:integer("n"), p:integer("again"), p:integer("skip")
    local ld = has.ld or p:integer("ld")
    local up, S = has.ld and width - rows * ld or p:integer("up"), p:pointer("sums", "float", "WIDTH LANES")
    local to, from = has.gives and p:pointer("to", has.dtype.c), has.gives and p:pointer("from", "const " .. has.dtype.c)
    local count = has.gives and p:integer("count")
    local tall = (rows + UNIT - 1) // UNIT
    local pitch, a_pitch = p:count_from("pitch", 4 * width), p:count_from("a_pitch", 2 * width)
    p:loop(n, function()
        local acc = amx.sums(tall, cfg.vectors, function(_, _, name) return p:op("tile_zero", name) end)
        p:loop(p:count_from("down", panels), function()
            amx.step(p, acc, function(r) return p:at(A, r * UNIT * width) end, function(c) return p:at(B, c * lanes) end,
                a_pitch, pitch, "", true)
            p:advance(A, width)
            p:advance(A, jump)
            p:advance(B, UNIT * width)
        end, "panels of tokens")
        for r = 0, #acc do
            for c = 0, cfg.vectors - 1 do
                p:op("tile_store", p:at(S, r * UNIT * width + c * lanes), pitch, acc[r][c])
            end
        end
        for r = 0, rows - 1 do
            matrix.put_row(p, cfg, C, has, "c_" .. r, function(v)
                return p:op("load", ("sum_%d_%d"):format(r, v), p:at(S, r * width + v * lanes))
            end)
            p:advance(C, ld)
        end
        p:advance(C, up)
        p:advance(A, again)
        p:advance(B, skip)
        if has.gives then
            p:loop(p:count_from("lines", count), function()
                row_tiles.give(p, has.dtype, to, from, 16 // lanes)
            end, "cache lines", true)
        end
    end, "panels of columns")
    return p
end

-- Rows of sums that lagging stores beside a step of K.
local BESIDE <const> = 4

-- The same for rows of whole tiles, with n - 1 instead of n and a last parameter more: sums are stored while the next panel of columns is
-- multiplied, some rows beside each step of K: beside `beside` panels of tokens; `rest` panels have no rows left, or `left` rows no panels.
function gradients.lagging(cfg, rows, has)
    local lanes = cfg.isa.lanes
    local width = cfg.vectors * lanes
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, has.name, rows),
        {("C[%d rows] %s A * B for 1 + others panels of columns, on tiles: rows `ld` apart."):format(rows, has.add and "+=" or "=")})
    local C = p:pointer("C", has.dtype.c)
    local A, B = p:pointer("A", "const uint16_t", "WIDTH"), p:pointer("B", "const float", "WIDTH LANES")
    local panels, jump, others = p:integer("panels"), p:integer("jump"), p:integer("others")
    local again, skip, ld, up = p:amount("again"), p:amount("skip"), p:integer("ld"), p:amount("up")
    local S = p:pointer("sums", "float", "WIDTH LANES")
    local beside, rest, left = p:amount("beside"), p:amount("rest"), p:amount("left")
    local pitch, a_pitch = p:count_from("pitch", 4 * width), p:count_from("a_pitch", 2 * width)
    local function zeros()
        return amx.sums(rows // UNIT, cfg.vectors, function(_, _, name) return p:op("tile_zero", name) end)
    end
    local function multiply(acc, tag)
        amx.step(p, acc, function(r) return p:at(A, r * UNIT * width) end, function(c) return p:at(B, c * lanes) end, a_pitch, pitch, tag, true)
        p:advance(A, width)
        p:advance(A, jump)
        p:advance(B, UNIT * width)
    end
    local function put(tag)
        for r = 0, BESIDE - 1 do
            matrix.put_row(p, cfg, C, has, ("c_%d%s"):format(r, tag), function(v)
                return p:op("load", ("sum_%d_%d%s"):format(r, v, tag), p:at(S, r * width + v * lanes))
            end)
            p:advance(C, ld)
        end
        p:advance(S, BESIDE * width)
    end
    local function keep(acc, tag)
        for r = 0, #acc do
            for c = 0, cfg.vectors - 1 do
                p:op("tile_store", p:at(S, r * UNIT * width + c * lanes), pitch, acc[r][c])
            end
        end
        p:advance(A, p:count_from("to_again" .. tag, again))
        p:advance(B, p:count_from("to_skip" .. tag, skip))
    end
    local first = zeros()
    p:loop(p:count_from("down_first", panels), function() multiply(first, "_first") end, "panels of tokens")
    keep(first, "_first")
    p:loop(others, function()
        local acc = zeros()
        p:loop(p:count_from("down", beside), function()
            multiply(acc, "")
            put("")
        end, "panels of tokens, rows of the sums before")
        p:loop(p:count_from("down_rest", rest), function() multiply(acc, "_rest") end, "those with no rows left", true)
        p:loop(p:count_from("down_left", left), function() put("_left") end, "rows with no panels left", true)
        p:advance(S, -rows * width)
        p:advance(C, p:count_from("to_up", up))
        keep(acc, "")
    end, "panels of columns", true)
    p:loop(p:count_from("down_last", rows // BESIDE), function() put("_last") end, "rows of the last sums")
    return p
end

-- Panels of tokens that have rows beside them, at most.
function gradients.beside(rows)
    return rows // BESIDE
end

return gradients
