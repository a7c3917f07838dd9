-- SPDX-License-Identifier: Apache-2.0
-- panel_plan.lua - plans of products in panels of tokens: their keys, what is chosen, and limits.
local along = require "along.plan"
local amx = require "tiles.amx"
local coded = require "tiles.coded"
local crossed = require "crossed.plan"
local dtype = require "dtype"
local gradients = require "gradients.plan"
local limits = require "shared.limits"
local packed = require "packed.form"
local plans = require "shared.plans"
local schema = require "schema"

local panel_plan = {}

local int, round_up = schema.types.int, plans.round_up

-- Words of a run, and rows of a tile: between shorter runs a tile's sums would pass through memory so often that one of half the rows,
-- whose sums need not, is faster; one of fewer rows would read too many columns.
local SHORT <const>, LEAST <const> = 32, 6

-- Matrix tiles of a block of rows on the way back, whose tokens, of [gate | up], do not stay in L2: they come from L3 once for each block.
-- On Emerald Rapids moe_backward of layer A takes 0.95 of the time that it takes with 8, and as much as with 24; with `weight_grads: none`
-- 0.88 of that with 2 where weights are mxfp4, 0.87 of numbers, 0.81 of packed ones.
local BACK <const> = 16

panel_plan.forward_keys = {
    {"tile_rows", int(1, 64), optional = true, doc = "rows of a register tile"},
    {"unroll", int(1, 8), optional = true, doc = "k steps of a tile's loop body"},
    {"kc", int(16, 65536), optional = true, doc = "products summed in a register before they are added to the sum"},
    {"mc", int(1, 4096), optional = true, doc = "rows of weights that a pass over the tokens uses"},
    {"few_rows", int(1, 4096), optional = true, doc = "of a block for a single panel of tokens"},
    {"fetch", int(1, 1024), optional = true, doc = "rows of weights that are fetched ahead of those that tiles copy"},
    along.key,
    {"pass_rows", int(16, 65536), optional = true, doc = "tokens (of an expert) that are worked on together"},
}

panel_plan.keys = plans.append({table.unpack(panel_plan.forward_keys)}, {
    {"across", int(0, 512), optional = true,
        doc = "tokens (of an expert) up to which products with columns of weights have these in lanes; 0: never"},
}, gradients.keys)

-- Complains of a plan whose blocks have no tiles.
function panel_plan.check(plan, info)
    local lanes = plan.isa.lanes
    if plan.unroll then
        limits.check_steps(plan, info, "unroll")
    end
    for _, key in ipairs{"mc", "few_rows"} do
        if plan[key] and plan[key] % lanes ~= 0 then
            schema.complain(info, "plan." .. key, ("%d rows are no multiple of the %d lanes of a vector"):format(plan[key], lanes))
        end
    end
    if plan.mc and plan.mc < plan.tile_rows then
        schema.complain(info, "plan.mc", ("%d rows are fewer than a tile has, %d"):format(plan.mc, plan.tile_rows))
    end
    if plan.few_rows and plan.few_rows > plan.mc then
        schema.complain(info, "plan.few_rows", ("%d rows are more than a block has, %d"):format(plan.few_rows, plan.mc))
    end
    if plan.kc and plan.mc and plan.kc // plan.group * plan.mc * 4 > limits.BLOCK_BYTES then
        schema.complain(info, plan.spec.plan.kc and "plan.kc" or "plan.mc",
            ("%d products of %d rows are a block of more than %d bytes"):format(plan.kc, plan.mc, limits.BLOCK_BYTES))
    end
end

-- Blocks of weights: `rows` the most rows that a matrix has, `deep` the most products of a sum. tiles: see choose_mc, or
-- nil; square: rows of weights that are transposed together, or nil
function panel_plan.choose_block(plan, spec, info, kc, rows, deep, tiles, square)
    local isa, depth = plan.isa, coded.step(plan)
    local useful = {round_up(deep, depth), ("sums are of %d products"):format(deep), depth}
    plan:choose("kc", kc * plan.group, plan.integers and "products per pass over sums: blocks of weights and tokens stay in L1"
        or "products per partial sum: keeps f32 sums of long K accurate, and blocks of weights and tokens in L1",
        plan.integers and limits.useful(table.unpack(useful)) or limits.sum(spec, table.unpack(useful)))
    -- where tokens stay in L2 more rows gain nothing, and fewer chunks come out less even
    -- blocks of runs are decoded, and of one row of matrix tiles stay in L1: fp8 with scales of blocks takes 0.81 of the time
    tiles = tiles or packed.are(spec) and 2 or plan.in_runs and 1 or plan.vectors
    panel_plan.choose_mc(plan, rows, "rows of weights that pass over the tokens together", tiles, square)
    plan:choose("few_rows", math.min(round_up(3 * isa.lanes, square or plan.tiled and plan.tile_rows or 1), plan.mc),
        "rows of a block for a single panel of tokens: two of them stay in L1",
        limits.useful(round_up(rows, isa.lanes), ("matrices have %d rows"):format(rows)))
    if not plan.tiled then
        plan:choose("fetch", 16, "rows of weights ahead of those that tiles copy: in L2 when they are wanted",
            limits.useful(plan.mc, ("a block has %d rows"):format(plan.mc)))
    end
    panel_plan.check(plan, info)
end

-- Words of K of a block that is of whole units, if there are some: so many elements of a row of weights are made at a time.
function panel_plan.whole(plan, block, unit)
    return round_up(block, math.max(1, (unit or 1) // plan.group))
end

function panel_plan.check_units(plan, info, unit)
    if unit and plan.kc % unit ~= 0 then
        schema.complain(info, "plan.kc", ("%d products are no multiple of %d, which are decoded together"):format(plan.kc, unit))
    end
end

-- Rows of a block for tiles of vectors: eight of the tallest; a vector's more where these cut a small matrix into one or two blocks alike,
-- without a rest of few rows that reads all tokens once more: on Zen 4 moe_layer forward of f32 takes 0.97 to 0.99 of the time with H 256
-- and I 128. Large matrices gain nothing.
local function block_rows(isa, rows)
    local mc <const> = round_up(8 * isa.tile.rows, isa.lanes)
    local more <const> = mc + isa.lanes
    return rows <= 2 * more and rows % more == 0 and more or mc
end

-- tiles: that a block of rows has of matrix tiles: the more, the more rarely tokens come that do not stay in L2
function panel_plan.choose_mc(plan, rows, why, tiles, square)
    local isa = plan.isa
    plan:choose("mc", plan.tiled and round_up(tiles * plan.tile_rows, square or isa.lanes)
        or round_up(block_rows(isa, rows), square or isa.lanes), why,
        limits.useful(round_up(rows, isa.lanes), ("matrices have %d rows"):format(rows), plan.tiled and plan.tile_rows))
end

-- Matrix tiles are so fast that transposing pays from a tile of tokens on: on Emerald Rapids, OLMoE backward with 16 threads takes 0.67 of
-- the time with 8 tokens of an expert, 0.86 with 16, and 1.3 with 32; of the time of crossed products it takes 0.9, 1.02 and 1.2. Tiles of
-- vectors need 8 of tokens: on Zen 3 backward takes 0.88 to 0.97 of the time if all experts have 32 to 64 tokens, and 0.97 if some have
-- more than 64, 48 of them on average.
local function choose_across(plan)
    plan:choose("across", plan.crosses and amx.unit // 2 or plan.tiled and amx.unit or 8 * plan.isa.lanes * plan.group,
        plan.crosses and "tokens up to which columns of weights are multiplied where they lie: joining their rows costs more"
            or "tokens up to which columns of weights are multiplied where they lie: transposing these costs more")
end

-- Rows of the largest matrix; so many products have the longest sums.
local function longest(spec)
    return math.max(spec.H, (spec.gated and 2 or 1) * spec.I_TP)
end

-- Rows of the tallest tile. packs: tiles pack the next weights while they multiply, and tokens pass. Matrix tiles have two tiles
-- of sums, see amx.lua: what comes from L2 is read once for both.
-- run: words whose sums are multiplied by a scale before they are added up, or nil.
function panel_plan.choose_tile(plan, packs, run)
    local isa, rows = plan.isa, limits.tile(plan.isa, 2 * plan.vectors, plan.vectors).most
    plan.in_runs = run and true or false
    if plan.tiled then
        plan:choose("tile_rows", packs and amx.unit or amx.tallest,
            packs and "1 x 2 matrix tiles of sums: as fast as 2 x 2, and faster where cores are slow"
                or "2 x 1 matrix tiles of sums: as fast as 2 x 2, and faster where cores are slow",
            {useful = amx.tallest, of = "so many fit", step = amx.unit})
    elseif run and run <= SHORT and rows >= LEAST then
        plan:choose("tile_rows", rows, ("%d x 2 sums of runs of %d words, and as many of all runs, fill %d registers"):format(
            rows, run, isa.registers.v), limits.tile(isa, plan.vectors))
    elseif isa.registers.v >= 32 and not packs then
        -- 0.95 to 1.00 of the time of tiles twice as tall on Zen 4, the same on Emerald Rapids; where panels of weights pass, whose columns
        -- more tiles read once more, 1.03 to 1.07 for 32 and 64 tokens of an expert
        local half = isa.tile.rows // 2
        plan:choose("tile_rows", half, ("%d x 2 accumulators: sums of a tile are stored while the next one multiplies"):format(half),
            limits.tile(isa, plan.vectors))
    else
        plan:choose("tile_rows", isa.tile.rows, ("%d x 2 accumulators, 2 columns and a row value fill %d registers"):format(
            isa.tile.rows, isa.registers.v), limits.tile(isa, plan.vectors))
    end
    plan.sum_rows = plan.tiled and amx.unit or plan.tile_rows   -- of the tallest tile of a gradient
end

-- Tokens of a pass in which products over them are summed: the sums of several passes go through memory, for which tiles are too fast.
function panel_plan.long_pass(plan)
    return plan.tiled and 2048 or 1024
end

-- Tokens of a pass. Matrix tiles read them for each block of weights: from L2, if so few leave room there; gradients are better of many.
-- On Emerald Rapids (2 MB of L2) 1.5 MB are as good as 1 MB where that fits, and experts that have a few tokens more then need no second
-- pass, for which all weights come near again: 0.86 of the time where they have 256 on average, each a few more or less. More tokens pass
-- in parts of about 1 MB: moe_forward of layer A with T 4096 takes 0.95 of the time of three passes with one core and with 16.
local function choose_pass(plan, spec, has)
    local near = math.max(128, (3 << 19) // (math.max(spec.H, spec.I_TP) * 2) // 32 * 32)
    if plan.tiled and near < 1024 and not has.gradients then
        plan:choose("pass_rows", near, "tokens per pass: they stay in L2 while blocks of weights pass", {step = has.step})
        plan.pass_aim = not spec.plan.pass_rows and near > 128 and near * 2 // 3 // 32 * 32 or nil
    else
        local long = has.gradients and panel_plan.long_pass(plan) or 1024
        plan:choose("pass_rows", long, "tokens per pass: bounds the workspace", {step = has.step})
    end
end

-- Vectors of a panel's row. Where tokens are nothing but multiplied by matrix tiles panels are as narrow as these: what a tile reads are
-- lines one after the other. What sums over tokens takes two at a time.
function panel_plan.vectors(plan, only_products)
    return plan.tiled and only_products and 1 or 2
end

-- Floats of a row of a panel of pairs, B of a product. Matrix tiles read a vector of columns at a time: where pairs of tokens are nothing
-- but multiplied, beside panels of elements, each vector's rows lie one after the other. On Emerald Rapids moe_backward of layer A takes
-- 0.94 of the time, and 0.90 with as many products of a block of K as panels of one vector have; 0.94 with 16 cores.
local function pair_width(plan, has)
    local lanes = plan.isa.lanes
    return plan.tiled and plan.group == 2 and has.pairs and lanes or plan.vectors * lanes
end

-- The plan of products. has: only_products: see panel_plan.vectors; unit: (spec, plan) -> elements of a row of weights that are made at a
-- time; step: passes are multiples of so many tokens; columns: there may be columns of weights; block: words of K that a block has; run:
-- (spec, plan) -> see choose_tile; crosses: products of columns may be crossed if the plan allows it, see crossed/plan.lua; gradients:
-- these are summed over passes, too; square: see choose_block; pairs: the way back, whose pairs of tokens have panels of their own
function panel_plan.forward(plan, spec, _, info, has)
    has = has or {}
    plan.vectors = panel_plan.vectors(plan, has.only_products)
    plan.pair_width = pair_width(plan, has)
    plan:choose("shard", "hidden", "rows of weights and of their gradients: no sums across ranks")
    local unit, run = has.unit and has.unit(spec, plan), has.run and has.run(spec, plan)
    panel_plan.choose_tile(plan, false, run)
    plan:choose("unroll", 4, "k steps of a loop body")
    local block = has.block or plan.tiled and amx.kc or run and 128 or 64
    panel_plan.choose_block(plan, spec, info, panel_plan.whole(plan, block, unit), longest(spec), longest(spec),
        has.pairs and BACK, has.square)
    panel_plan.check_units(plan, info, unit)
    if has.columns then
        plan.crosses = has.crosses and crossed.may(plan, spec.I_TP)
        choose_across(plan)
    end
    if not plan.integers then
        along.choose(plan, spec)
    end
    choose_pass(plan, spec, has)
end

-- Products and gradients.
function panel_plan.both(plan, spec, shape, info, has)
    has.gradients = true
    panel_plan.forward(plan, spec, shape, info, has)
    gradients.choose_sums(plan, info)
    gradients.choose_cuts(plan, 1 << 20, longest(spec), longest(spec), dtype[spec.output_dtype].size)
end

-- Why products over [gate | up] and gradients may not be of pairs, or nil.
function panel_plan.no_pairs(spec)
    local straddles = spec.gated and spec.I_TP % 2 == 1
    return straddles and "pairs of 16-bit elements would join a gate and an up" or gradients.odd_steps(spec)
end

return panel_plan
