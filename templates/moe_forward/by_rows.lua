-- SPDX-License-Identifier: Apache-2.0
-- by_rows.lua - moe_forward with weights whose rows are contracted: they are broadcast as they lie, and tokens are columns of panels.
local activations = require "codes.activations"
local along = require "along.plan"
local codes = require "codes.plan"
local dtype = require "dtype"
local epilogue = require "tiles.epilogue"
local formats = require "tiles.formats"
local packed = require "packed.plan"
local panel_plan = require "product.panel_plan"
local panels = require "product.panels"
local phases = require "product.phases"
local plans = require "shared.plans"
local post_norm = require "math.post_norm"
local rows = require "tiles.rows"
local saved = require "moe_forward.saved"
local space = require "product.space"
local stored = require "shared.stored"
local in_words = require "codes.words"

local by_rows = {}

by_rows.keys = panel_plan.forward_keys

-- Do the weights of a spec want it?
function by_rows.takes(spec)
    return spec.weights.layout ~= "plain"
end

-- What moe_forward takes of the key `weights`, see stored.lua.
by_rows.weights = {dtype = plans.append({}, formats.numbers, formats.names), widened = true,
    scale = {"static", "block", "group"}, shared = true, group = true, layout = {"transposed", "contiguous", "nki"},
    gate_up_order = {"interleaved"}, gate_up = {"separate"}, experts = {"separate"}}

-- The same with what moegen pack makes.
by_rows.packed_weights = plans.with(by_rows.weights, {layout = {"transposed", "contiguous", "nki", "packed"}})

by_rows.rule = {"norm", function(s) return s.norm == "none" or not by_rows.takes(s) end,
    "{norm} needs weights.layout = plain, here {weights.layout}"}

function by_rows.plan(plan, spec, shape, info)
    activations.choose(plan, spec, info, nil, activations.are(spec), true)
    local are = codes.are(spec)
    panel_plan.forward(plan, spec, shape, info, {only_products = codes.may_be_narrow(spec), unit = are and codes.unit,
        block = codes.block(spec, plan), run = codes.run, square = in_words.are(spec) and in_words.columns(spec) or nil})
    packed.choose(plan, spec)
    saved.choose(plan, spec)
end

-- Words of the widest rows that become panels: of tokens that are quantised there, numbers.
function by_rows.stage(spec, plan)
    return math.max(spec.H, spec.I_TP) // (plan.integers and 1 or plan.group)
end

function by_rows.constants(spec, plan)
    local rows_of = activations.rows(spec, plan)
    local h, i = plans.round_up(spec.H, rows_of), plans.round_up(spec.I_TP, rows_of)
    return plans.append({
        {"HK", h, "rows of a panel over H, full panels of k"}, {"IK", i, "rows of a panel over I"},
    }, activations.constants(spec, plan, {{"H_ROWS", h, "H"}, {"I_ROWS", i, "I"}}), saved.constants(spec, plan),
        panels.constants(plan, by_rows.stage(spec, plan)))
end

local function phases_of(names, spec, has)
    local words = names.words
    local x = {"w->X", names.integers and "H_ROWS" or words "HK"}   -- floats
    local quantises, quantises_hidden = activations.phases(names)
    phases.add(names, {
        {"GATHER", parts = "HK / " .. names.gathered, run = "gather_part"},
        quantises,
        stored.gate_up_product(spec, {"GATE_UP", by = x, ordered = names.in_words, run = "hidden_rows"}),
        quantises_hidden,
        {"DOWN", rows = "H", k = "I", weights = "down_proj_weight", layout = "k",
            by = activations.factor(names, "P", words "IK", "I_ROWS"), run = "output_rows",
            as_rows = not has.checkpoint_down and not names.integers or nil},
        has.post_norm and {"POST_NORM", parts = "w->rows", run = "weigh_part"},
    })
end

local function space_of(names, has, common)
    space.rows(names, plans.append(common, activations.space(names, "float", names.words "HK", "act(gate) * up"), plans.list(
        has.gate_apart and {"G", "float", {"columns", "MC"}, "sums of the gate", own = true, shape = "[panels][MC][WIDTH]"},
        {"Y", "float", {"w->columns", "SUM_LD"}, "what each row adds to the output", when = "apart(w)", shape = "[columns][SUM_LD]"},
        {"at", "int64_t", {"columns"}, "row of a column, or -1", own = true},
        {"out", "float *", {"columns + LANES"}, "where its output is summed", own = true},
        {"a", "float", {"columns"}, "affinity", own = true},
        {"nowhere", "float", {"H"}, "where columns without a token are added", own = true},
        has.checkpoint_down and {"transposed", "float", {"LANES", "CHUNK_ROWS"}, "parts of rows of what an expert gave", own = true})), {})
end

-- of_weights: cfg of their products
local function tiles(spec, plan, names, cfg, of_weights)
    local has, io, out, lanes = names.has, dtype[spec.dtype], dtype[spec.output_dtype], cfg.isa.lanes
    local width, whole = plan.vectors * lanes, spec.H >= lanes
    local wide = activations.wide(names, cfg)
    local apart = names.in_words and in_words.apart(plan) * width or width
    local row = names.along and names.phases.as_rows and whole and function(name, add)
        return epilogue.row(cfg, name, {bias = has.bias_down, bias_scaled = has.bias_scaled, scaled = has.affinity_in_finish, add = add})
    end
    local function hidden(narrow)
        return epilogue.hidden(wide, spec, {checkpoint = has.checkpoint_up, bias = has.bias_up, scaled = has.affinity_on_p,
            step = has.step, narrow = narrow, words = names.hidden_order})
    end
    local products = plans.append(panels.tiles(names, of_weights, plan), codes.tiles(names, cfg, spec),
        activations.tiles(names, spec, cfg, of_weights))
    return plans.append(products, saved.tiles_of_rows(names, cfg, spec, cfg.chunk_rows, names.save_step), plans.list(
        panels.transposes(cfg, "transpose", panels.stage(by_rows.stage(spec, plan)), apart),
        names.dots and not names.in_words and rows.words(cfg, io, "words"),
        has.affinity_on_x and rows.scale(cfg, "scale"),
        hidden(false), names.narrow and hidden(true),
        has.bias_down and epilogue.biased(cfg, has.bias_scaled),
        whole and rows.scatter(cfg, "scatter", {scaled = has.affinity_in_finish}),
        whole and has.add and rows.scatter(cfg, "scatter_add", {scaled = has.affinity_in_finish, add = true}),
        row and row("store_row", false), row and has.add and row("add_row", true),
        whole and has.post_norm and post_norm.weigh(cfg, dtype[spec.bias_dtype]),
        whole and (has.add or has.post_norm) and rows.move(cfg, "combine", {scaled = has.affinity_in_combine, add = spec.accumulate}),
        whole and out.narrow and rows.move(cfg, "narrow_output", {to = out})))
end

-- Adds to the names what products of rows need. common: of the workspace, what both ways keep
function by_rows.names(names, spec, plan, job, common)
    local has, cfg = names.has, panels.cfg(spec, plan, job)
    has.gate_apart = spec.gated and not stored.of(spec).interleaved
    has.step = stored.of(spec).interleaved and 2 or 1
    names.affinity_of = function(row) return ("w->affinity[%s]"):format(row) end
    names.scattered = {scaled = has.affinity_in_finish, adds = has.add and "!apart(w)" or "0"}
    names.enters, names.saves_runs = true, has.checkpoint_up and spec.block_size >= plan.isa.lanes
    local of_weights = activations.cfg(cfg, spec, plan)
    panels.products(names, of_weights, plan, {spec.I_TP, spec.H, has.step == 2 and 2 * spec.I_TP or nil})
    activations.names(names, spec, plan, cfg, of_weights, {"H_ROWS", "HK"}, true)
    activations.sums_of_hidden(names, cfg, has.step)
    names.splits, names.in_words = false, in_words.are(spec)
    names.gathers_words, names.transpose_words = names.in_words, "transpose"
    names.save_step = names.in_words and in_words.WORD or has.step
    names.gathered = names.in_words and "(WORD * LANES)" or names.gathered
    names.transposes_whole = false
    packed.names(names, cfg, spec, plan, stored.matrices(spec))
    phases_of(names, spec, has)
    codes.names(names, spec, plan, stored.matrices(spec), of_weights.product)
    along.names(names, stored.format(spec) and cfg or of_weights, plan, {spec.H, spec.I_TP})
    names.narrow = names.along and names.phases.as_rows and names.hidden == "P" or false   -- few tokens: no lanes but theirs
    space_of(names, has, common)
    names.tiles = function()
        return tiles(spec, plan, names, cfg, of_weights)
    end
end

return by_rows
