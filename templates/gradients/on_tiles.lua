-- SPDX-License-Identifier: Apache-2.0
-- on_tiles.lua - gradients of weights on matrix tiles, see tiles/amx.lua: A are rows of 32 tokens, B pairs of tokens for 16 columns each.
local amx = require "tiles.amx"
local ir = require "ir"
local matrix = require "tiles.matrix"

local sums = {}

-- Sums of 16 rows of a gradient: t.A times t.B, over t.panels panels of 32 tokens, all of which count; beside: makes what comes after each
-- of these, or nil; adds: to sums that are at t.S. Returns a function that stores them there.
local function over_tokens(p, cfg, t, beside, adds)
    local lanes, width = cfg.isa.lanes, cfg.vectors * cfg.isa.lanes
    local acc = amx.sums(1, cfg.vectors, function(_, c, name)
        return adds and p:op("tile_stream", name, p:at(t.S, c * lanes), t.pitch) or p:op("tile_zero", name)
    end)
    p:loop(p:count_from("down", t.panels), function()
        amx.step(p, acc, function() return p:at(t.A, 0) end, function(c) return p:at(t.B, c * lanes) end, t.a_pitch, t.pitch, "",
            {holds = true})
        p:advance(t.A, width)
        p:advance(t.A, t.jump)
        p:advance(t.B, amx.unit * width)
        if beside then
            beside()
        end
    end, "panels of tokens")
    return function()
        for c = 0, cfg.vectors - 1 do
            p:op("tile_store", p:at(t.S, c * lanes), t.pitch, acc[0][c])
        end
    end
end

-- Parameters of these: what is multiplied. jump: between panels of A, unless it is a parameter, too
local function factors(p, jump)
    return {A = p:pointer("A", "const uint16_t", "WIDTH"), B = p:pointer("B", "const float", "WIDTH LANES"),
        panels = p:integer("panels"), jump = jump or p:integer("jump")}
end

-- Bytes between rows of tiles.
local function set_pitches(p, t, width)
    t.pitch, t.a_pitch = p:count_from("pitch", 4 * width), p:count_from("a_pitch", 2 * width)
end

-- A row of sums, so many rows on from t.S, to C.
local function put_row(p, cfg, C, has, t, r, tag)
    local lanes = cfg.isa.lanes
    matrix.put_row(p, cfg, C, has, "c_" .. tag, function(v)
        return p:op("load", ("sum_%s_%d"):format(tag, v), p:at(t.S, (r * cfg.vectors + v) * lanes))
    end)
end

-- See matrix.gradient; of 16 rows at most, whose sums pass through `sums`, [16][WIDTH].
function sums.gradient(cfg, rows, has)
    local width = cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, has.name, rows),
        {("C[%d rows] %s A * B for n panels of columns, on tiles: rows `ld` apart."):format(rows, has.add and "+=" or "=")})
    local C = p:pointer("C", has.dtype.c)
    local t = factors(p, has.jump)
    local n, again, skip = p:integer("n"), p:integer("again"), p:integer("skip")
    local ld = has.ld or p:integer("ld")
    local up = has.ld and width - rows * ld or p:integer("up")
    t.S = p:pointer("sums", "float", "WIDTH LANES")
    local stream_lines = matrix.streamer(p, has)
    set_pitches(p, t, width)
    p:loop(n, function()
        over_tokens(p, cfg, t)()
        for r = 0, rows - 1 do
            put_row(p, cfg, C, has, t, r, r)
            p:advance(C, ld)
        end
        p:advance(C, up)
        p:advance(t.A, again)
        p:advance(t.B, skip)
        stream_lines()
    end, "panels of columns")
    return p
end

-- The same of sums that are in memory, S[rows][WIDTH], for one panel of columns and `groups` groups of 16 rows.
function sums.part(cfg)
    local width = cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, ("%spart_%d"):format(cfg.prefix, amx.unit),
        {"S[groups of 16 rows] += A * B for a panel of columns, on tiles."})
    local S, t = p:pointer("S", "float", "WIDTH LANES"), factors(p)
    local groups, again, back = p:integer("groups"), p:amount("again"), p:amount("back")
    t.S = S
    set_pitches(p, t, width)
    p:loop(groups, function()
        over_tokens(p, cfg, t, nil, true)()
        p:advance(t.S, amx.unit * width)
        p:advance(t.A, p:count_from("a_again", again))
        p:advance(t.B, p:count_from("b_back", back))
    end, "groups of rows")
    return p
end

-- The same for 16 rows whose stores pass the caches by, in which a core gets rid of a line now and then: so the sums of a panel are stored
-- beside the products of the next one, `each` rows beside each panel of tokens and `rest` after them. First those go that are in `sums`, to
-- `before` on, from whose end `over` leads to the first panel of C; the last ones stay there.
function sums.stream(cfg, rows, has)
    local width = cfg.vectors * cfg.isa.lanes
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, has.name, rows),
        {("C[%d rows] = A * B for n panels of columns, on tiles; beside a panel the sums of the one before are stored."):format(rows)})
    local C = p:pointer("before", has.dtype.c)
    local t = factors(p)
    local n, again, skip = p:integer("n"), p:amount("again"), p:amount("skip")
    local ld, up = p:integer("ld"), p:integer("up")
    t.S = p:pointer("sums", "float", "WIDTH LANES")
    local each, rest, over = p:amount("each"), p:amount("rest"), p:integer("over")
    set_pitches(p, t, width)
    local function store_rows(tag, count)
        p:loop(p:count_from("rows_" .. tag, count), function()
            put_row(p, cfg, C, has, t, 0, tag)
            p:advance(C, ld)
            p:advance(t.S, width)
        end, "rows of the panel before", true)
    end
    p:loop(n, function()
        local store = over_tokens(p, cfg, t, function() store_rows("beside", each) end)
        store_rows("after", rest)
        p:advance(t.S, -rows * width)
        store()
        p:advance(C, over)
        p:set(over, up)
        p:advance(t.A, p:count_from("a_again", again))
        p:advance(t.B, p:count_from("b_skip", skip))
    end, "panels of columns")
    return p
end

return sums
