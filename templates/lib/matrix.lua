-- SPDX-License-Identifier: Apache-2.0
-- matrix.lua - products of matrices in panels, for families that need a matrix and its transpose.
--
-- A panel holds WIDTH columns of a matrix of `rows` rows: P[q][row][WIDTH], f32. It is the B of a product over its rows, or the
-- A of a product over its columns (each row's WIDTH values are consecutive k). Columns are tokens, as a rule; the first panel
-- is the one that need not be full: its tokens stand at its end.
--
-- product(rows)    S[rows][WIDTH] += A * B, on its way fetching other memory; narrow: only one vector of columns
-- gradient(rows)   C = A * B for many groups of rows, straight to memory, in its dtype
local ir = require "ir"
local quantise = require "lib.quantise"

local matrix = {}

-- acc += A * B over `panels` panels of A; the first has `first` steps of `unroll` k, the others `full`; `jump` leads from the
-- end of a panel's rows to the start of the next one's. each() is called once a step, turn() once a panel.
local function sum(p, cfg, t, each, turn)
    local width = cfg.vectors * cfg.isa.lanes
    local current = p:count_from("current", t.first)
    p:loop(t.panels, function()
        local left = p:count_from("left", current)
        p:loop(left, function()
            if each then
                each()
            end
            for k = 0, cfg.unroll - 1 do
                p:block("k = " .. k, function()
                    local b = {}
                    for v = 0, t.vectors - 1 do
                        b[v] = p:op("load", "b_" .. v, p:at(t.B, k * width + v * cfg.isa.lanes))
                    end
                    for r = 0, t.rows - 1 do
                        p:row(r)
                        local at = p:at(t.A, r * width + k)
                        if t.vectors == 1 and p:has("fma_bcast") then
                            p:op("fma_bcast", t.acc[r][0], b[0], at)
                        else
                            local a = p:op("bcast", "a_" .. r, at)
                            for v = 0, t.vectors - 1 do
                                p:op("fma", t.acc[r][v], a, b[v])
                            end
                        end
                    end
                    p:row(nil)
                end)
            end
            p:advance(t.A, cfg.unroll)
            p:advance(t.B, cfg.unroll * width)
        end, "over the columns of a panel")
        p:advance(t.A, t.jump)
        if turn then
            turn()
        end
        p:set(current, t.full)
    end, "panels")
end

local function clear(p, t)
    t.acc = {}
    for r = 0, t.rows - 1 do
        p:row(r)
        t.acc[r] = {}
        for v = 0, t.vectors - 1 do
            t.acc[r][v] = p:op("zero", ("acc_%d_%d"):format(r, v))
        end
    end
    p:row(nil)
end

-- The vectors of a row of sums to memory, with what is there; 16-bit pairs share a store (see quantise.pairs).
-- sum(v) gives vector v; has: dtype, add, stream
local function put_row(p, cfg, C, has, name, sum)
    local lanes, dt, x = cfg.isa.lanes, has.dtype, {}
    local store = has.stream and "store_stream" or "store"
    for v = 0, cfg.vectors - 1 do
        x[v] = sum(v)
        if has.add then
            local before = quantise.load(p, dt, ("%s_%d_before"):format(name, v), p:at(C, v * lanes))
            x[v] = p:op("add", ("%s_%d"):format(name, v), x[v], before)
        end
    end
    if cfg.pairs then
        quantise.store_pair(p, dt, p:at(C, 0), x[0], x[1], store)
        return
    end
    for v = 0, cfg.vectors - 1 do
        if has.stream then
            p:op(store, p:at(C, v * lanes), x[v])
        else
            quantise.store(p, dt, p:at(C, v * lanes), x[v])
        end
    end
end

-- cfg: isa, prefix, dtype (of the weights), vectors, unroll, fetch (lines of a row of weights that a step fetches)
-- streams: of so many pairs of rows, which are `apart` elements from each other
function matrix.product(cfg, rows, vectors, streams)
    local lanes = cfg.isa.lanes
    local width = cfg.vectors * lanes
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, vectors == cfg.vectors and "product" or "narrow", rows),
        {("S[%d rows] += A * B; fetches lines at `near`, and others at `ahead`, `hop` further after each panel."):format(rows)})
    local t = {rows = rows, vectors = vectors}
    local S = p:pointer("S", "float")
    t.A, t.B = p:pointer("A", "const float"), p:pointer("B", "const float")
    t.panels, t.first, t.full, t.jump = p:integer("panels"), p:integer("first"), p:integer("full"), p:integer("jump")
    local near, ahead = p:pointer("near", "const float"), {}
    for i = 0, streams - 1 do
        ahead[i] = p:pointer("ahead_" .. i, "const " .. cfg.dtype.c)
    end
    local apart, hop = p:integer("apart"), p:integer("hop")
    clear(p, t)
    local line = 64 // cfg.dtype.size
    sum(p, cfg, t, function()
        for i = 0, streams - 1 do
            for j = 0, cfg.fetch - 1 do
                p:op("prefetch_1", p:at(ahead[i], j * line))
                p:op("prefetch_1", p:at(ahead[i], j * line, apart))
            end
            p:advance(ahead[i], cfg.fetch * line)
        end
        p:op("prefetch_1", p:at(near, 0))
        p:advance(near, 16)
    end, function()
        for i = 0, streams - 1 do
            p:advance(ahead[i], hop)
        end
    end)
    for r = 0, rows - 1 do
        p:row(r)
        for v = 0, vectors - 1 do
            local at, name = p:at(S, r * width + v * lanes), ("sum_%d_%d"):format(r, v)
            p:op("store", at, p:op("add", name, t.acc[r][v], p:op("load", name .. "_before", at)))
        end
    end
    p:row(nil)
    return p
end

-- has: dtype (of C), add (to what C holds), stream (stores that pass the caches by)
function matrix.gradient(cfg, rows, has)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, ("%s%s_%d"):format(cfg.prefix, has.name, rows),
        {("C[%d rows] %s A * B, groups times: rows `ld` apart, A `over` further, B `back` again."):format(rows, has.add and "+=" or "=")})
    p.hoists = 0   -- the sums need the registers; constants are loaded where they are used
    local t = {rows = rows, vectors = cfg.vectors}
    local C = p:pointer("C", has.dtype.c)
    t.A, t.B = p:pointer("A", "const float"), p:pointer("B", "const float")
    local panels, first = p:integer("panels"), p:integer("first")
    t.full, t.jump, t.first = p:integer("full"), p:integer("jump"), first
    local groups, ld, over, back = p:integer("groups"), p:integer("ld"), p:integer("over"), p:integer("back")
    p:loop(groups, function()
        clear(p, t)
        t.panels = p:count_from("down", panels)
        sum(p, cfg, t)
        for r = 0, rows - 1 do
            p:row(r)
            put_row(p, cfg, C, has, "c_" .. r, function(v) return t.acc[r][v] end)
            p:advance(C, ld)
        end
        p:row(nil)
        p:advance(t.A, over)
        p:advance(t.B, back)
    end, "groups of rows")
    return p
end

-- One row of sums to C, in its dtype. has: name, dtype, add
function matrix.put(cfg, has)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. has.name,
        {("C[n rows of %d] %s S."):format(cfg.vectors * lanes, has.add and "+=" or "=")})
    local C, S = p:pointer("C", has.dtype.c), p:pointer("S", "const float")
    local n, ld = p:integer("n"), p:integer("ld")
    p:loop(n, function()
        put_row(p, cfg, C, has, "c", function(v) return p:op("load", "s_" .. v, p:at(S, v * lanes)) end)
        p:advance(C, ld)
        p:advance(S, cfg.vectors * lanes)
    end, "rows")
    return p
end

-- Rows of weights as panels of A: n panels of each of `rows` rows. pitch: floats between a row's panels
function matrix.copy(cfg, pitch)
    local lanes = cfg.isa.lanes
    local width = cfg.vectors * lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "copy", {"Rows of weights, n panels of each, in f32."})
    local A, W = p:pointer("A", "float"), p:pointer("W", "const " .. cfg.dtype.c)
    local n, rows, over, back = p:integer("n"), p:integer("rows"), p:integer("over"), p:integer("back")
    p:loop(rows, function()
        local left = p:count_from("left", n)
        p:loop(left, function()
            for v = 0, cfg.vectors - 1 do
                p:op("store", p:at(A, v * lanes), quantise.load(p, cfg.dtype, "w_" .. v, p:at(W, v * lanes)))
            end
            p:advance(W, width)
            p:advance(A, pitch)
        end, "panels")
        p:advance(W, over)
        p:advance(A, back)
    end, "rows")
    return p
end

function matrix.shorter(tallest, rows)
    return ir.shorter(tallest, rows, (tallest.name:gsub("%d+$", rows)), {(tallest.note[1]:gsub("%d+ rows", rows .. " rows", 1))})
end

-- Can n rows be cut into t tiles with heights of the set?
local function cuts(n, t, set)
    if n == 0 or t == 0 then
        return n == 0 and t == 0
    end
    for h = math.min(n, set.most), 1, -1 do
        if h * t < n then
            return false
        elseif set[h] and cuts(n - h, t - 1, set) then
            return true
        end
    end
    return false
end

-- Adds the tallest height that lets them, if there is one.
local function one_more(n, t, set)
    for h = set.most, 1, -1 do
        if not set[h] then
            set[h] = true
            if cuts(n, t, set) then
                return true
            end
            set[h] = nil
        end
    end
    return false
end

-- Heights of tiles for blocks of rows, ascending, and what the first tile of a block of n rows is, by n. Blocks are multiples
-- of `lanes` rows up to `slab`, and what such blocks leave of each of the totals; each is cut into as few tiles of at most
-- `most` rows as possible, with few different heights.
function matrix.heights(most, lanes, slab, totals)
    local set, blocks, longest = {most = most}, {}, 0
    for _, total in ipairs(totals) do
        longest = math.max(longest, total)
        for n = total % lanes, math.min(total, slab), lanes do
            blocks[n] = true
        end
    end
    for n = lanes, math.min(slab, longest), lanes do
        blocks[n] = true
    end
    for n = 1, slab do
        local t = (n + most - 1) // most
        if blocks[n] and not cuts(n, t, set) and not one_more(n, t, set) then
            set[n // t], set[(n + t - 1) // t] = true, true
        end
    end
    local list, first = {}, {}
    for h = 1, most do
        list[#list + 1] = set[h] and h or nil
    end
    local tiles = {[0] = 0}   -- of a block of n rows, where the set allows it
    for n = 1, slab do
        first[n] = 0
        for _, h in ipairs(list) do
            local rest = n >= h and tiles[n - h]
            if rest and rest + 1 <= (tiles[n] or n) then
                tiles[n], first[n] = rest + 1, h
            end
        end
    end
    return list, first
end

return matrix
