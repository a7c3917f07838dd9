-- SPDX-License-Identifier: Apache-2.0
-- gemm.lua - register tiles of S = A B. A is f32 or pairs of that size, rows `stride` elements apart; S is a panel of f32, rows
-- packed.
--
-- packed(rows)   B is a packed f32 panel, `width` columns (vectors * lanes) to a row. S is added to: the tile passes over
--                steps * inner * unroll rows of B and adds what it summed. After every inner * unroll rows it packs one row of
--                the next `nc` panels: while the multiplier works, the next weights come in at an even pace, whose prefetches
--                leave enough of the core's line buffers to the tile itself.
-- direct(rows)   B is read where it lies, one vector to a row, `ld` elements apart; S is added to. For experts with few
--                rows, whose weights are used only once.
-- Both multiply as cfg.product says, see micro.lua.
local heights = require "tiles.heights"
local ir = require "ir"
local micro = require "tiles.micro"
local over_rows = require "tiles.over_rows"
local plans = require "shared.plans"
local quantise = require "tiles.quantise"

local gemm = {}

-- Panels packed together, so that rows of such weights are read by whole cache lines, and not by few columns of many rows. Where registers
-- are free (tiled: sums are in matrix tiles), by pairs of them: these come from memory together.
function gemm.nc(isa, weights, tiled)
    return math.max(32 // isa.lanes, (tiled and 128 or 64) // (isa.lanes * weights.size))
end

-- A row of the next panels, at t.dst, of t.src: see gemm.packed. t.fetch(i, at): the line so many elements on in the run of vectors i
function gemm.pack_row(p, cfg, t)
    local how, lanes, src = cfg.product, cfg.isa.lanes, t.src
    local lines = (cfg.nc * lanes * cfg.weights.size - 1) // 64 + (cfg.unaligned and 1 or 0)
    for i = 0, 1 do
        local first = {}   -- [panel]: of two rows of weights
        for g = 1, how.group do
            for line = 0, lines do
                t.fetch(i, line * 64 // cfg.weights.size)
            end
            for q = 0, cfg.nc - 1 do
                local name, to = p:named("w_%d_%d", q, i), p:at(t.dst, q * cfg.panel + i * lanes)
                local x = how.load(p, cfg.weights, how.group > 1 and name .. "_" .. g or name,
                    p:at(src[i], 0, cfg.nc == 2 and q == 1 and t.step or nil))
                first[q] = first[q] or x
                if how.lower then   -- waits in memory: decoding the next one takes the registers
                    p:op("store", to, g == 1 and how.lower(p, name, x) or p:op("bit_or", name, x, p:op("load", name .. "_below", to)))
                elseif g == how.group then
                    p:op("store", to, how.join(p, name, first[q], x))
                end
                if cfg.nc ~= 2 then
                    p:advance(src[i], t.step)
                end
            end
            p:advance(src[i], t.ld)
        end
    end
    p:advance(t.dst, cfg.vectors * lanes)
end

-- cfg: isa, prefix, weights (their row of dtype.lua or formats.lua), stride (of A, elements), vectors (2), unroll, panel (floats of one),
-- nc, product, unaligned (rows of weights start anywhere in a cache line)
-- src_0, src_1 point to the first and the second vector of the first panel; those of the next are `step` on, rows `ld` apart
-- (unless two panels are packed: `ld` less nc * step). A row to fetch is two runs of cache lines, which start ahead_0 elements
-- from src_0 and ahead_1 from src_1.
function gemm.packed(cfg, rows)
    local isa, lanes = cfg.isa, cfg.isa.lanes
    local width, io = cfg.vectors * lanes, "const " .. cfg.weights.c
    local p = ir.program(isa, ("%sgemm_%d"):format(cfg.prefix, rows),
        {("S[%d rows] += A * B, over steps * inner * %d rows of B; packs `steps` rows of the next panels.")
            :format(rows, cfg.unroll)})
    p.hoists = 0   -- the sums need the registers
    local S, A = p:pointer("S", "float", "WIDTH LANES"), p:pointer("A", "const float", "STRIDE")
    local B = p:pointer("B", "const float", "WIDTH LANES")
    local steps, inner = p:integer("steps"), p:integer("inner")
    local dst = p:pointer("dst", "float", "PANEL WIDTH LANES")
    local src = {[0] = p:pointer("src_0", io), p:pointer("src_1", io)}
    local step, ld = p:integer("step"), p:integer("ld")
    local ahead = {[0] = p:integer("ahead_0"), p:integer("ahead_1")}
    local function fetch(i, at)
        p:op("prefetch_1", p:at(src[i], at, ahead[i]))
    end
    local t = {A = A, B = B, vectors = cfg.vectors, unroll = cfg.unroll, a_row = cfg.stride, a_k = 1, b_row = width}
    local acc = micro.zeros(p, rows, cfg.vectors, "acc")
    p:loop(steps, function()
        p:loop(p:count_from("left", inner), function() micro.steps(p, cfg.product, acc, t) end, "over K")
        p:block("a row of the next panels", function()
            gemm.pack_row(p, cfg, {src = src, step = step, ld = ld, dst = dst, fetch = fetch})
        end)
    end)
    micro.put(p, acc, cfg.vectors, function(r, v) return p:at(S, r * width + v * lanes) end, true)
    return p
end

-- A step takes how.group rows of B and fetches as many vectors.
local function direct(cfg, rows, how, name, of)
    local isa, lanes = cfg.isa, cfg.isa.lanes
    local width = cfg.vectors * lanes
    local p = ir.program(isa, ("%s%s_%d"):format(cfg.prefix, name, rows),
        {("S[%d rows] += A * B for some vectors of columns, over steps * inner %s of B as they lie in memory."):format(rows, of)})
    p.hoists = 0   -- as above
    local S, A = p:pointer("S", "float", "DIRECT_SUMS WIDTH LANES"), p:pointer("A", "const float", "STRIDE")
    local B, ld = p:pointer("B", "const " .. cfg.weights.c), p:integer("ld")
    local columns, steps, inner = p:integer("columns"), p:integer("steps"), p:integer("inner")
    local ahead, jump = p:pointer("ahead", "const " .. cfg.weights.c), p:integer("jump")
    local back, over = p:integer("back"), p:integer("over")
    local function k_step(acc)
        for line = 0, (how.group * lanes * cfg.weights.size - 1) // 64 do
            p:op("prefetch_1", p:at(ahead, line * 64 // cfg.weights.size))
        end
        local b = micro.join(p, how, cfg.weights, "b", 1, B, ld, function() return p:at(B, 0) end)
        micro.multiply(p, how, acc, 1, function(r) return p:at(A, r * cfg.stride) end, b)
        p:advance(A, 1)
        p:advance(B, ld)
        p:advance(ahead, how.group * lanes)
    end
    p:loop(columns, function()
        local acc = micro.zeros(p, rows, 1, "acc")
        local down = p:count_from("down", steps)
        p:loop(down, function()
            local left = p:count_from("left", inner)
            p:loop(left, function() k_step(acc) end, "over K")
            p:advance(ahead, jump)
        end)
        for r = 0, rows - 1 do
            p:row(r)
            local sum = p:named("sum_%d", r)
            p:op("store", p:at(S, r * width), p:op("add", sum, acc[r][0], p:op("load", sum .. "_before", p:at(S, r * width))))
        end
        p:row(nil)
        p:advance(S, cfg.direct_sums)
        p:advance(A, back)
        p:advance(B, over)
    end, "vectors of columns")
    return p
end

function gemm.direct(cfg, rows)
    return direct(cfg, rows, micro.widened, "direct", "rows")
end

-- Of pairs: cfg.product says how they multiply.
function gemm.direct_pairs(cfg, rows)
    return direct(cfg, rows, cfg.product, "direct_pairs", "pairs of rows")
end

-- dst[n][width] = rows of words of src, whose rows are `ld` apart; the second vector of a row is `second` elements after the first.
function gemm.pack(cfg)
    local lanes = cfg.isa.lanes
    local p = ir.program(cfg.isa, cfg.prefix .. "pack", {"Pack n rows of a panel from rows of weights."})
    quantise.hoist(p, cfg.weights)
    local dst, src = p:pointer("dst", "float", "WIDTH LANES"), p:pointer("src", "const " .. cfg.weights.c)
    local ld, second, n = p:integer("ld"), p:integer("second"), p:integer("n")
    local ahead = p:pointer("ahead", "const " .. cfg.weights.c)
    over_rows.vectors(p, n, {{src, ld}, {dst, cfg.vectors * lanes}}, function()
        local words = micro.join(p, cfg.product, cfg.weights, "w", cfg.vectors, src, ld, function(v)
            return p:at(src, 0, v > 0 and second or nil)
        end, function()
            p:op("prefetch_0", p:at(ahead, 0))
            p:op("prefetch_0", p:at(ahead, 0, second))
            p:advance(ahead, ld)
        end)
        for v = 0, cfg.vectors - 1 do
            p:op("store", p:at(dst, v * lanes), words[v])
        end
    end, "rows")
    return p
end

-- The tiles that multiply where weights lie; of: heights of those of rows, and of pairs of rows.
function gemm.tiles(cfg, of)
    return plans.append(heights.tiles(gemm.direct, cfg, of.rows), heights.tiles(gemm.direct_pairs, cfg, of.pairs))
end

-- The kinds that multiply where weights lie, for kinds.lua: rows {tokens at most, kind, why}.
function gemm.kinds(plan)
    return {{plan.direct_rows, "direct", "weights are read where they lie: packing them would cost more"}}
end

return gemm
