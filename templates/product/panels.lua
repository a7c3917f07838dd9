-- SPDX-License-Identifier: Apache-2.0
-- panels.lua - what families with products in panels of tokens share: constants, names and tiles that matrix.c.in refers to. Their plan:
-- panel_plan.lua; the layout of a panel: matrix.lua.
local along = require "along.plan"
local amx = require "tiles.amx"
local crossed = require "crossed.plan"
local dtype = require "dtype"
local gradients = require "gradients.plan"
local heights = require "tiles.heights"
local lines = require "tiles.lines"
local matrix = require "tiles.matrix"
local micro = require "tiles.micro"
local panel_rows = require "tiles.panel_rows"
local quantise = require "tiles.quantise"
local plans = require "shared.plans"
local rows = require "tiles.rows"
local runs = require "tiles.runs"

local panels = {}

local round_up = plans.round_up

-- Panels of a row of weights that are worked on together.
function panels.block(plan)
    return math.max(1, (plan.kc or 0) // panels.depth(plan))
end

-- Products that a row of a panel of A holds: elements of its words.
function panels.depth(plan)
    return plan.vectors * plan.isa.lanes * plan.group
end

-- Rows from a panel to the next one, of so many elements of each token, which are read over and over. Near a multiple of 64 KB the same
-- rows of all panels would be in the same sets of L2 (of 64 or 128 KB a way), and fall out of it: moe_backward of 1024 tokens of an
-- expert takes 0.7 of the time. An odd number of KB uses all sets of L1, too.
function panels.apart(plan, deep)
    local bytes = plan.vectors * plan.isa.lanes * 4 // plan.group   -- of a row
    local kb = round_up(deep * bytes, 1024) // 1024
    if kb < 8 then
        return deep
    end
    local over = kb % 64
    kb = over < 8 and kb + 8 - over or over > 56 and kb + 72 - over or kb
    return (kb | 1) * 1024 // bytes
end

-- cfg of the tiles.
function panels.cfg(spec, plan, job)
    local width = plan.pair_width or plan.vectors * plan.isa.lanes
    local units = width < plan.vectors * plan.isa.lanes and "LANES" or "WIDTH LANES"
    return {isa = plan.isa, prefix = job.name .. "_", dtype = dtype[spec.dtype], vectors = plan.vectors, unroll = plan.unroll,
            product = micro.of(plan, spec.dtype), tiled = plan.tiled,
            t_unroll = plan.t_unroll, pair_width = width, pair_units = units, block = panels.block(plan), mc = plan.mc,
            chunk_rows = plan.chunk_rows or plan.mc}
end

-- Constants of all families with products. most: rows of a segment; team: of a batch, for each rank
function panels.shape(plan, most, team)
    local width = plan.vectors * plan.isa.lanes
    return plans.list(
        {"LANES", plan.isa.lanes, "f32 lanes of a vector"}, {"VECTORS", plan.vectors, "of a panel's row"},
        {"WIDTH", width, "columns of a panel"}, {"TILE_ROWS", plan.tile_rows, "rows of the tallest tile"},
        {"PASS_ROWS", most or plan.pass_rows, "tokens of a segment, which are worked on together"},
        {"PASS_PANELS", ((most or plan.pass_rows) + width - 1) // width, "panels of them"},
        plan.pass_aim and {"PASS_AIM", plan.pass_aim, "tokens of each of several segments, about"},
        {"TEAM_ROWS", team or 192, "of a batch, for each rank of a team"},
        {"LONG", 1024, "rows of a segment; of such a batch has"},
        {"LONG_TEAM_ROWS", team or 512, "for each rank: enough of them for chunks to come out even"})
end

-- Constants of products of rows of weights.
function panels.product_constants(plan)
    local width = plan.vectors * plan.isa.lanes
    return plans.append({
        {"UNROLL", plan.unroll, "k steps of a tile's loop"},
        {"STEPS", width // plan.unroll, "loops over a full panel"},
        {"K_PANELS", panels.block(plan), "panels of k that a block of weights holds"},
        {"MC", plan.mc, "rows of such a block"}, {"FEW_ROWS", plan.few_rows, "of one for a single panel of tokens"},
        {"CHUNK_ROWS", plan.chunk_rows or plan.mc, "of a chunk at most, for few tokens"},
    }, not plan.tiled and {
        {"AHEAD", plan.fetch, "rows of weights fetched ahead"},
    } or {
        {"UNIT_ROWS", amx.unit, "rows of a matrix tile: products are of whole ones"},
        {"NEAR_PANELS", math.max(1, (3 << 17) // (panels.block(plan) * width * width * 4)), "panels of tokens whose k stay in L2"},
    })
end

-- Floats between rows of so many words on their way into panels.
function panels.stage(wide)
    return round_up(wide, 16) + 16
end

-- Constants of tokens as columns of panels, whose rows are `stage` apart on their way there; and, if elements of gradients have
-- `size` bytes (none: no gradients), of these.
function panels.token_constants(plan, stage, size)
    return plans.append({
        {"STAGE", stage, "floats between rows on their way into panels: an odd number of cache lines"},
        {"T_UNROLL", plan.t_unroll or 1, "tokens of a step of a loop over them"},
        {"EDGE", math.max(plan.isa.lanes * (plan.integers and 1 or math.min(plan.group, plan.vectors)), plan.unroll or 1,
            plan.t_unroll or 1), "columns of which all are written if one is in use"},
    }, size and gradients.constants(plan, size) or {})
end

-- All of these. wide: words of the widest rows that become panels
function panels.constants(plan, wide, size)
    return plans.append(panels.shape(plan), panels.product_constants(plan), panels.token_constants(plan, panels.stage(wide), size))
end

-- Adds the names of products of few tokens with columns of weights where they lie: matrix_across.c.in. Tiles of pairs of tokens.
local function across(names, cfg, plan)
    local width, group = plan.vectors * cfg.isa.lanes, cfg.product.group
    local pairs_lie = group == 1 or group == 2 and cfg.isa.rows.unpack_low_words ~= nil
    names.transpose_sums, names.unpaired = "transpose_sums", false
    names.across = (plan.across or 0) > 0 and pairs_lie and plan.mc >= width
    if not names.across then
        return
    end
    for _, deep in ipairs{names.spec.H, names.spec.I_TP} do
        names.unpaired = names.unpaired or deep % group > 0
    end
    local most = cfg.isa.tile.rows   -- each tile joins the lines that it reads: the fewer tiles, the better
    -- Where lines are kept, rows at work, as many that come next, and sums share L2.
    local all, keeps = heights.steps(most, math.min(most, 2)), lines.keep(cfg.isa, group)
    names.line = {tile = "across", heights = all, word = names.nr, group = group, in_panels = true, keep = keeps and all,
        kept = lines.kept}
    plans.append(names.constants, plans.list(
        {"ACROSS", plan.across, "tokens for which columns of weights lie in lanes,"},
        {"ACROSS_K", keeps and 32 or 64, "of so many rows at a time,"},
        {"ACROSS_RUN", 64, "lines of a row that are fetched before the next row,"},
        {"ACROSS_SUMS", 2048 // width * (32 * width + 16), "and floats of sums: those of 2048 columns and 32 tokens stay in L2"},
        keeps and {"KEPT", 4, "lines that are kept in L1 while several tiles of tokens pass"}))
end

-- Adds the names of elements and of words, see micro.lua: panel_c is the type of panels whose columns are contracted; splits: of
-- pairs, tokens become these too.
function panels.words(names, cfg, plan)
    local integers = cfg.product.element   -- panels of weights hold them; tokens are f32 until they are quantised
    local dots = cfg.product.group > 1 and not integers
    local words = dots or integers
    names.dots, names.splits, names.io, names.widen_io = dots, dots, cfg.dtype.c, plans.convert(cfg.dtype, "widen")
    names.by_lines = dots and panel_rows.by_lines(cfg.isa)
    names.panel_c, names.depth = quantise.column_type(cfg), words and "DEPTH" or "WIDTH"
    names.words = function(n) return dots and n .. " / 2" or n end                           -- of so many elements,
    names.words_of = function(n) return dots and ("(%s) / 2"):format(n) or n end             -- a sum
    names.pairs_of = function(panel) return dots and panel .. "_pairs" or panel end          -- the same panel, as B of a product
    -- C: floats of a row of such a panel; from its start to the vector at column v, if it has so many rows; where in panels of so many rows
    -- this row has columns v, .. of panel q
    names.by_vector = plan.pair_width ~= nil and plan.pair_width < plan.vectors * plan.isa.lanes
    names.nr = names.by_vector and "LANES" or "WIDTH"
    names.vector_at = function(v, n) return names.by_vector and ("%s * %s"):format(n, v) or v end
    names.pairs_shape = function(n) return names.by_vector and ("[panels][VECTORS][%s][LANES]"):format(n) or nil end
    names.pairs_at = function(n, row)
        return (names.by_vector and "((q * WIDTH + v) / LANES * %s + %s) * LANES" or "(q * %s + %s) * WIDTH + v"):format(n, row)
    end
    names.as_floats = function(at) return dots and ("(float *)(void *)(%s)"):format(at) or at end
    names.as_panel = function(at) return words and ("(%s *)(void *)(%s)"):format(names.panel_c, at) or at end
    names.to_panel = dots and plans.convert(cfg.dtype, "narrow") or function(x) return x end   -- from f32
    names.keep_io = integers and cfg.product.element_of or dots and function(x) return x end or names.widen_io   -- from memory
    -- C: bits of word k of a row's end of which `have` elements are the row's
    local group, bits = cfg.product.group, cfg.product.bits
    names.edge_mask = integers and ("have >= %d * (k + 1) ? 0xffffffffu : have > %d * k ? (1u << %d * (have - %d * k)) - 1 : 0"):format(
        group, group, bits, group) or dots and "2 * k + 1 < have ? 0xffffffffu : 2 * k < have ? 0xffffu : 0" or "k < have ? 0xffffffffu : 0"
    names.tensor_c, names.keep_tensor, names.given, names.gathers = names.io, names.keep_io, {}, {""}   -- of tokens
    names.widens, names.widen_tensor = true, names.widen_io
    if words then
        local list = names.constants
        list[#list + 1] = {"DEPTH", panels.depth(plan), "elements of a row of a panel of weights: " .. (dots and "pairs" or "words")}
    end
end

-- Adds what a rank's way through the queue asks of matrix tiles.
function panels.tiled(names, plan)
    names.tiled, names.tile_shapes = plan.tiled, plan.tiled and amx.shapes("tile_shapes")
end

-- The programs that turn matrix tiles on and off.
function panels.switches(cfg)
    return cfg.tiled and {amx.on(cfg), amx.off(cfg)} or {}
end

-- Adds the names of products. totals: of rows that products have
function panels.products(names, cfg, plan, totals)
    local lanes = cfg.isa.lanes
    panels.words(names, cfg, plan)
    names.copies_edges, cfg.unaligned = false, false
    for _, total in ipairs(totals) do
        names.copies_edges = names.copies_edges or total > 1 and total % panels.depth(plan) ~= 0
        cfg.unaligned = cfg.unaligned or total > 1 and total * cfg.dtype.size % 64 ~= 0
    end
    panels.tiled(names, plan)
    names.product_rows = plan.tiled and heights.steps(plan.tile_rows, amx.unit) or heights.blocks(plan.tile_rows, lanes, plan.mc, totals)
    names.narrow_rows = plan.vectors == 1 and {} or plan.tiled and names.product_rows
        or heights.blocks(2 * plan.tile_rows, lanes, plan.mc, totals)
    names.halves = not plan.tiled and not cfg.product.run and cfg.isa.rows.groups_upper ~= nil
    names.tile_kinds = plans.list(   -- of tiles of vectors, see matrix.products; case: C
        {case = "FULL", name = "product", heights = names.product_rows, vectors = plan.vectors},
        {case = "NARROW", name = "narrow", heights = names.narrow_rows, vectors = 1},
        names.halves and {case = "HALVES", name = "halves", heights = heights.blocks(matrix.halved_rows, lanes, plan.mc, totals),
            vectors = 1, halves = true})
    plans.append(names.constants, names.halves and {
        {"HALVED_ROWS", matrix.halved_rows, "rows of the tallest tile for half a vector of tokens"}} or {})
    across(names, cfg, plan)
    crossed.names(names, cfg)
end

-- Products on matrix tiles, of a height and so many vectors of columns.
local function on_tiles(names, cfg, m, vectors)
    if cfg.product.run then
        return vectors == cfg.vectors and {runs.blocks(cfg, m)} or {}   -- a vector's columns at a time
    end
    local list = {}
    local function blocks(how)
        plans.append(list, {amx.blocks(cfg, m, vectors, true, how), amx.blocks(cfg, m, vectors, false, how)})
    end
    if not names.all_crossed then
        blocks()
    end
    if m == names.crossed_rows then
        blocks({second = crossed.second(cfg), beside = vectors == cfg.vectors and crossed.beside})
    end
    local places = vectors == cfg.vectors and amx.places(cfg) and not names.all_crossed
    return plans.append(list, places and {amx.place(cfg, m, true), amx.place(cfg, m)} or {})
end

-- Products of a kind, see names.tile_kinds.
local function of_kind(names, cfg, kind)
    if cfg.tiled then
        local list = {}
        for i = #kind.heights, 1, -1 do
            plans.append(list, on_tiles(names, cfg, kind.heights[i], kind.vectors))
        end
        return list
    elseif cfg.product.run then
        return heights.tiles(function(_, m) return runs.product(cfg, m, kind.vectors) end, cfg, kind.heights)
    end
    return matrix.products(cfg, kind)
end

-- The tiles that multiply.
function panels.product_tiles(names, cfg)
    local list = {}
    cfg.decodes, cfg.terms = names.coded and true or false, names.coded and names.coded.terms
    for _, kind in ipairs(names.tile_kinds) do
        plans.append(list, of_kind(names, cfg, kind))
    end
    list[#list + 1] = names.halves and panel_rows.fold(cfg) or nil
    local lanes, width = cfg.isa.lanes, cfg.vectors * cfg.isa.lanes
    local how = {name = "across", weights = cfg.dtype, row = 1, word = cfg.pair_width, units = {"ACROSS_SUMS WIDTH LANES", names.nr},
        adds = true}
    return plans.append(list, along.tiles(names, cfg), names.across and plans.append(
        lines.rows(cfg, names.line.heights, how, names.line.keep), plans.list(
        cfg.product.group > 1 and panel_rows.in_order(cfg),
        names.transpose_sums == "transpose_sums" and rows.squares(cfg, "transpose_sums", {dtype = dtype.f32,
            stride = width, pitch = width, step = lanes, along = lanes * width}))) or {})
end

-- The tile that makes rows of tokens, `stage` floats apart, columns of a panel. apart: floats between its rows, if not those of a panel
function panels.transposes(cfg, name, stage, apart)
    local lanes, pitch = cfg.isa.lanes, apart or cfg.vectors * cfg.isa.lanes
    return rows.squares(cfg, name, {dtype = dtype.f32, stride = stage, s_units = "STAGE", pitch = pitch, along = lanes,
        step = lanes * pitch})
end

-- The tiles that rows of weights become panels by: those that copy them where they lie, and those of columns, which transpose them.
function panels.copies(names, cfg)
    local pitch = cfg.mc * cfg.vectors * cfg.isa.lanes
    return (names.coded or cfg.in_place or names.all_crossed) and {} or plans.list(panel_rows.copy(cfg, {name = "copy", pitch = pitch}),
        names.copies_edges and panel_rows.copy(cfg, {name = "copy_edge", pitch = pitch, masked = true}))
end

function panels.transposed(names, cfg)
    return {rows.transposed_weights(cfg, names.dots, names.coded),
        names.by_lines and not names.coded and panel_rows.transposed_lines(cfg) or nil}
end

-- The tiles of products, and of gradients if the names have them.
function panels.tiles(names, cfg, plan)
    local lanes, width, dots = plan.isa.lanes, plan.vectors * plan.isa.lanes, names.dots
    local crossing = names.crosses and crossed.tiles(cfg) or {}
    local list = plans.append(panels.product_tiles(names, cfg), panels.switches(cfg), crossing, panels.copies(names, cfg), plans.list(
        not dots and names.widens and rows.move(cfg, "widen", {from = names.tensor or cfg.dtype}),
        rows.zero(cfg)), names.transposes_whole and not names.crosses and panels.transposed(names, cfg) or {},
        {dots and not names.hidden_order and panel_rows.join(cfg, "join") or nil})
    return names.gradient_rows and plans.append(list, gradients.tiles(names, cfg), {
        rows.squares(cfg, "transpose_back", {dtype = dots and cfg.dtype or dtype.f32, words = dots, stride = width, pitch = width,
            step = lanes, apart = cfg.alternate, along = (cfg.alternate and 4 or lanes) * width})}) or list
end

return panels
