-- SPDX-License-Identifier: Apache-2.0
-- saved.lua - checkpoints of products of columns: when they pass the caches by, and the tiles that write them.
local dtype = require "dtype"
local ir = require "ir"
local over_rows = require "tiles.over_rows"
local plans = require "shared.plans"
local quantise = require "tiles.quantise"
local rows = require "tiles.rows"

local saved = {}

local function line_of(dt)
    return 64 // dt.size
end

-- Which checkpoints of a spec have rows of whole cache lines: of gate and up, and of what experts gave?
local function whole(spec)
    local line, saves = line_of(dtype[spec.dtype]), spec.checkpoint == "save"
    return saves and spec.block_size % line == 0, saves and spec.affinity.on == "hidden" and spec.H % line == 0
end

-- Of products of rows, whose tokens are columns: which checkpoints pass the caches by? Lines of gate and up are of several panels, and
-- are written as they come.
function saved.rows(names, spec)
    local has, up, down = names.has, whole(spec)
    names.saved_c, has.streams_up, has.streams_down = dtype[spec.dtype].c, up, down
    has.streams_rows = down and not dtype[spec.dtype].narrow
end

local function any(spec)
    local up, down = whole(spec)
    return up or down
end

function saved.choose(plan, spec)
    if any(spec) then
        plan:choose("streamed", 1 << 22, "bytes from which on a checkpoint passes the caches by: it would leave them nothing else")
    end
end

function saved.constants(spec, plan)
    return not any(spec) and {} or {
        {"SAVED_LINE", line_of(dtype[spec.dtype]), "elements of checkpoints in a cache line"},
        {"STREAMED", plan.streamed, "bytes from which on a checkpoint passes the caches by"},
    }
end

-- How checkpoints may be written: by squares or rows of a panel, and those of whole cache lines past the caches.
function saved.names(names, spec, isa, width)
    local has, io = names.has, dtype[spec.dtype]
    local up, down = whole(spec)
    names.saved_c = io.c
    names.saves_squares = has.checkpoint_up and spec.block_size >= isa.lanes and spec.I_TP >= isa.lanes
    names.saves_rows = has.checkpoint_down and spec.H >= width and not names.by_part
    has.streams_up = names.saves_squares and up
    has.streams_down = down
    has.streams_rows = has.streams_down and names.saves_rows and not io.narrow and width % line_of(io) == 0
end

-- Columns of n times as many rows as a cache line has elements become runs of T, rows of `pitch`, past the caches: `line` is where
-- squares are put together.
local function save_lines(cfg, dt, pitch)
    local lanes, line = cfg.isa.lanes, line_of(dt)
    local p = ir.program(cfg.isa, cfg.prefix .. "save_lines", {("Transpose n times %d x %d sums, to memory."):format(line, lanes)})
    local T, S = p:pointer("T", dt.c, "B"), p:pointer("S", "const float", "WIDTH")
    local made, n = p:pointer("line", dt.c, "SAVED_LINE"), p:integer("n")
    p:loop(n, function()
        for square = 0, line - lanes, lanes do
            p:block("rows from " .. square, function()
                rows.transposed(p, function(i)
                    return p:op("load", "row_" .. i, p:at(S, (square + i) * cfg.vectors * lanes))
                end, function(c, x)
                    quantise.store(p, dt, p:at(made, c * line + square), x)
                end)
            end)
        end
        for c = 0, lanes - 1 do
            p:block("column " .. c, function()
                rows.stream(p, dt, {T, c * pitch}, {made, c * line})
            end)
        end
        p:advance(S, line * cfg.vectors * lanes)
        p:advance(T, line)
    end, "lines")
    return p
end

-- n rows of a panel of sums to rows of dtype dt, `pitch` apart; streams: past the caches.
local function save_rows(cfg, dt, pitch, streams)
    local name = streams and "stream_rows" or "save_rows"
    local p = ir.program(cfg.isa, cfg.prefix .. name, {dt.name .. " rows from rows of sums" .. (streams and ", to memory." or ".")})
    local dst, src, n = p:pointer("dst", dt.c, "H"), p:pointer("src", "const float"), p:integer("n")
    over_rows.each(p, cfg, n, {src, {dst, pitch}}, function(tag, at)
        local to, x = p:at(dst, at), p:op("load", "x" .. tag, p:at(src, at))
        if streams then
            p:op("store_stream", to, x)
        else
            quantise.store(p, dt, to, x)
        end
    end)
    return p
end

-- Some rows of n cache lines of zeros: `over` from the end of a row to the next one.
local function clear_lines(cfg, dt)
    local elements = cfg.isa.lanes * 4 // dt.size   -- of a vector
    local p = ir.program(cfg.isa, cfg.prefix .. "clear_lines", {"Rows of n cache lines of zeros, to memory."})
    local dst, n = p:pointer("dst", dt.c), p:integer("n")
    local rows_left, over = p:integer("rows"), p:integer("over")
    local zero = p:op("zero", "zero")
    over_rows.nested(p, rows_left, n, {{dst, over}}, function()
        for at = 0, line_of(dt) - 1, elements do
            p:op(dt.narrow and "stream_bits" or "store_stream", p:at(dst, at), zero)
        end
        p:advance(dst, line_of(dt))
    end, "lines")
    return p
end

-- Those of products of rows. depth: rows of a block of sums; step: from a row of gate or of up to the next one
function saved.tiles_of_rows(names, cfg, spec, depth, step)
    local has, io, lanes, width = names.has, dtype[spec.dtype], cfg.isa.lanes, cfg.vectors * cfg.isa.lanes
    return plans.list(
        names.saves_runs and rows.store_column(cfg, io, "store_column", step * width),
        has.checkpoint_down and rows.squares(cfg, "transpose_down", {dtype = dtype.f32, stride = width, pitch = depth,
            t_units = "CHUNK_ROWS", along = lanes * width, step = lanes}),
        has.checkpoint_down and spec.H >= lanes and rows.move(cfg, "save_row", {to = io}),
        has.streams_rows and rows.lines(cfg, io, "stream_row"),
        (has.streams_up or has.streams_down) and clear_lines(cfg, io))
end

function saved.tiles(names, cfg, spec)
    local has, io = names.has, dtype[spec.dtype]
    return plans.list(
        names.saves_rows and save_rows(cfg, io, spec.H),
        has.streams_rows and save_rows(cfg, io, spec.H, true),
        names.saves_squares and rows.transpose(cfg, io, "transpose", spec.block_size, "B"),
        has.streams_up and save_lines(cfg, io, spec.block_size),
        has.streams_up and rows.move(cfg, "copy", {}),
        (has.streams_up or has.streams_down) and clear_lines(cfg, io))
end

return saved
