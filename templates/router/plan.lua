-- SPDX-License-Identifier: Apache-2.0
-- plan.lua - the methods and the plan of the router, and the names that its template's holes refer to.
local dtype = require "dtype"
local heights = require "tiles.heights"
local limits = require "shared.limits"
local kinds = require "tiles.kinds"
local methods = require "router.methods"
local plans = require "shared.plans"
local scores = require "router.scores"
local tiles = require "router.tiles"
local tensors = require "shared.tensors"
local types = require("schema").types
local work = require "router.work"

local router = {}

local int = types.int
local round_up, odd_lines, convert = plans.round_up, plans.odd_lines, plans.convert

router.plan_keys = {
    {"tile_rows", int(1, 64), optional = true, doc = "rows of a register tile"},
    {"unroll", int(1, 4), optional = true, doc = "k steps of a tile's loop body"},
    {"kc", int(16, 1 << 20), optional = true, doc = "products summed in a register before they are added to the sum"},
    {"block_rows", int(16, 65536), optional = true, doc = "tokens that pass over the packed weights together"},
    {"nc", int(1, 64), optional = true, doc = "panels of H that are packed, or multiplied, together"},
}

function router.args(s)
    local parameters = tensors.router(s, s.bias)
    local list = {{"hidden_states", s.dtype, "in", "T", s.H, says = "rows of tokens"}}
    if s.op == "backward" then
        return plans.append(list, tensors.read_again(s, parameters), {
            {"logits", "f32", "in", "T", s.E, says = "of the forward pass"},
            {"expert_index", "i32", "in", "T", s.top_k, says = "of the forward pass"},
            {"expert_affinities_grad", s.affinity_dtype, "in", "T", s.E,
                says = "gradient of expert_affinities, read at the chosen experts only"},
            {"hidden_states_grad", s.hidden_grad_dtype, "out", "T", s.H, says = "gradient of hidden_states"},
        }, tensors.gradients(s, parameters))
    end
    return plans.append(list, parameters, tensors.correction(s), {
        {"logits", "f32", "out", "T", s.E, says = "of every expert, with router_bias"},
        {"expert_index", "i32", "out", "T", s.top_k, says = "experts of each token, best first"},
        {"expert_affinities", s.affinity_dtype, "out", "T", s.E, says = "of every expert; 0 for those not chosen"},
        {"topk_weights", s.affinity_dtype, "out", "T", s.top_k, says = "affinities of expert_index"},
    }, tensors.losses(s))
end

function router.statuses(s)
    local list = {"T is not what the spec fixes"}
    if s.op == "backward" then
        list[2], list[3] = "expert_index names an expert outside 0..E-1", "expert_index names an expert twice for one token"
    end
    return list
end

function router.computes(s)
    if s.op == "backward" then
        return "the gradients of x, G and b from those of the weights, through the method for all experts: dX = dL G', dG = X' dL"
    end
    return "logits = x G + b, the top_k experts of each token, of equals the lower one, and their weights"
end

function router.work(s)
    return {flops_per_token = (s.op == "backward" and 4 or 2) * s.H * s.E, weight_bytes = s.H * s.E * dtype[s.dtype].size}
end

function router.plan(plan, spec)
    local isa, back = plan.isa, spec.op == "backward"
    plan.vectors = (back or spec.E > isa.lanes) and 2 or 1
    plan:choose("tile_rows", isa.tile.rows * (plan.vectors == 1 and 2 or 1),
        ("%d x %d accumulators, %d of weights and a row value fill %d registers"):format(isa.tile.rows * (3 - plan.vectors),
            plan.vectors, plan.vectors, isa.registers.v), limits.tile(isa, plan.vectors))
    plan:choose("unroll", 4, "k steps per turn of a tile's loop")
    if back then
        local width = plan.vectors * isa.lanes
        local panels = (spec.H + width - 1) // width
        plan:choose("nc", 8, "panels of H side by side: rows are read by whole cache lines",
            limits.useful(panels, ("hidden states have %d panels"):format(panels)))
        plan:choose("kc", 64, "tokens per partial sum: keeps f32 sums of many tokens accurate, and panels in L1",
            {step = plan.unroll, most = (1 << 18) // (plan.nc * width * 4),
             because = ("%d panels of more tokens do not stay in the caches"):format(plan.nc)})
    else
        plan:choose("kc", 128, "products per partial sum: keeps f32 sums of long K accurate, and panels in L1",
            limits.sum(spec, round_up(spec.H, plan.unroll), ("sums are of %d products"):format(spec.H), plan.unroll, true))
    end
    plan:choose("block_rows", 96, "tokens per pass over the weights", {step = isa.lanes})
end

-- Which steps of the semantics this spec has.
local function steps(spec, method)
    local aux, back = spec.aux_loss, spec.op == "backward"
    local has = {
        backward = back, bias = spec.bias, correction = spec.correction_bias and not back, groups = spec.groups ~= nil and not back,
        cap = spec.softcap ~= nil or spec.logit_scale ~= 1, z = aux.z ~= nil, balance = aux.load_balance ~= nil,
        alone = method.weigh ~= "softmax",        -- a score is of one logit
        over_all = method.over == "all", over_chosen = method.over == "chosen", floor = method.floor ~= nil, near = method.near ~= nil,
        always = spec.always > 0, scaled = spec.router_scale ~= "none", one_scale = spec.router_scale == "one",
        norm = spec.router_norm ~= nil,
        ranked_by_share = method.rank == "softmax", ranked_alone = method.rank ~= "softmax" and method.rank ~= "logits",
        accumulate = spec.accumulate_grads,
    }
    has.ranks = has.correction or has.groups and has.ranked_by_share
    has.share = has.balance and not has.alone     -- the balance loss is over softmax weights
    has.softmax = has.over_all or has.z or has.share or has.ranks and has.ranked_by_share
    has.rows_of_experts = has.softmax or has.balance or has.cap or has.near   -- backward: logits of all experts are looked at
    has.divided = method.over ~= nil
    has.first = not has.balance and not has.z     -- what chosen experts get is the first to be put into dL
    return has
end

local function shape(spec, plan, has)
    local wide, width = plan.isa.lanes, plan.vectors * plan.isa.lanes
    local s = {width = width, panels = (spec.E + width - 1) // width, depth = round_up(spec.H, plan.unroll),
        rows_e = round_up(spec.E, wide), h_panels = (spec.H + width - 1) // width}
    s.pitch = odd_lines(has.backward and s.rows_e or s.panels * width)
    s.x_pitch = odd_lines(math.min(plan.kc, s.depth))
    s.full = spec.H // width
    s.steps = spec.E // plan.unroll
    s.part = 256 // plan.unroll   -- turns over E of a partial sum of dX, whose terms are few or small
    s.folds = s.steps > s.part and (s.steps - 1) // s.part or nil
    s.out_rows = s.folds and math.max(1, plan.tile_rows // 2) or plan.tile_rows
    return s
end

local function constants(spec, plan, has, s)
    local list = {
        {"H", spec.H, "hidden size"}, {"E", spec.E, "experts"}, {"K", spec.top_k, "experts of a token"},
        {"LANES", plan.isa.lanes, "f32 lanes of a vector; tokens of a group"},
        {"WIDTH", s.width, "floats of a panel's row"}, {"UNROLL", plan.unroll, "k steps of a tile's loop"},
        {"KC", plan.kc, "products of a partial sum"}, {"BLOCK_ROWS", plan.block_rows, "tokens of a block"},
        {"PITCH", s.pitch, "floats between rows of logits in the workspace: an odd number of cache lines"},
        {"ROWS_E", s.rows_e, "E in whole vectors"},
    }
    local function add(name, value, says)
        list[#list + 1] = {name, value, says}
    end
    if has.backward then
        add("PANELS", s.h_panels, "over H")
        add("FULL_PANELS", s.full, "that lack no columns")
        add("NC", plan.nc, "panels side by side")
        add("OUT_ROWS", s.out_rows, "rows of the tallest tile of dX")
        add("OUTER_TILES", (spec.E + plan.tile_rows - 1) // plan.tile_rows, "of dG, over E")
        add("STEPS", s.folds and s.part or s.steps, "turns over E of a tile of dX")
        if s.folds then
            add("FOLDS", s.folds, "parts of them")
            add("REST", s.steps - s.folds * s.part, "turns after them")
        end
    else
        add("PANELS", s.panels, "over E")
        if has.always then
            add("CHOICES", spec.E - spec.always, "experts that can be chosen or not")
            add("PLACES", spec.top_k - spec.always, "of a token for them")
        end
        if has.groups then
            add("GROUPS", spec.groups.count, "of experts")
            add("KEPT", spec.groups.keep, "of them, from which is chosen")
        end
        add("TILE_ROWS", plan.tile_rows, "rows of the tallest tile")
        add("DEPTH", s.depth, "rows of a packed panel")
        add("X_PITCH", s.x_pitch, "floats between rows of hidden states in the workspace")
    end
    return list
end

-- A number as C has it, of type double.
local function number(x)
    local text = ("%.17g"):format(x)
    return text:find("[%.en]") and text or text .. ".0"
end

-- Sums of products of two rows that a norm takes, see row_norm.c.in.
local function dots(spec, has)
    local function row(tile, a, b)
        return {tile = tile, a = a.c, b = b.c, widen_a = convert(a, "widen"), widen_b = convert(b, "widen"), of_a = a, of_b = b}
    end
    local io = dtype[spec.dtype]
    return has.norm and plans.list(row("dot_x", io, io), has.backward and row("dot_logits", dtype.f32, dtype.f32),
        has.backward and row("dot_weight", io, dtype.f32)) or {}
end

-- What multiplies, for `moegen explain`.
local function products(names)
    local function line(name, tensor, why)
        return kinds.lines(name, tensor, {{"all", "narrow", "fma", why}})
    end
    return not names.has.backward and line("LOGITS", "router_weight", "weights are packed once a call: a narrow matrix stays in the caches")
        or line("TOKENS", "router_weight", "logits' gradients are broadcast, weights lie in lanes")
            .. line("WEIGHTS", "router_weight_grad", "over tokens: hidden states lie in lanes")
end

-- What the template sees.
function router.names(spec, plan, job)
    local method = methods.of(spec)
    local has = steps(spec, method)
    local s = shape(spec, plan, has)
    local io, grad, affinity = dtype[spec.dtype], dtype[spec.output_dtype], dtype[spec.affinity_dtype]
    local given_dx = dtype[spec.hidden_grad_dtype]
    local dx = has.norm and dtype.f32 or given_dx   -- of a product's sums
    local cfg = {isa = plan.isa, prefix = job.name .. "_", vectors = plan.vectors, unroll = plan.unroll, kc = plan.kc,
        nc = plan.nc, many = spec.E > 64, method = method}
    local names = {
        products = products,
        spec = spec, plan = plan, isa = plan.isa, has = has, shape = s, p = cfg.prefix, number = number, method = method,
        whole_segments = false, expects = false, tiled = false, io = io.c, io_type = io,
        grad = grad.c, grad_type = grad, dx = dx.c, dx_type = dx, given_dx = given_dx.c, given_dx_type = given_dx, dots = dots(spec, has),
        affinity = affinity.c, bias_c = dtype[spec.bias_dtype].c,
        counted = spec.aux_loss.per == "tokens" and "T" or "(T * K)",   -- what shares of experts are of
        narrow_weights = affinity.narrow ~= nil,
        tile_rows = heights.steps(has.backward and s.out_rows or plan.tile_rows, 1),
        outer_rows = heights.even(spec.E, plan.tile_rows),
        widen_io = convert(io, "widen"), widen_bias = convert(dtype[spec.bias_dtype], "widen"),
        widen_affinity = convert(affinity, "widen"), widen_grad = convert(grad, "widen"), narrow_grad = convert(grad, "narrow"),
        narrow_dx = convert(given_dx, "narrow"),
        constants = constants(spec, plan, has, s),
        scalars = {{io, "widen"},
            (not has.backward and (has.bias or has.correction) or has.scaled or has.norm) and {dtype[spec.bias_dtype], "widen"},
            has.backward and {affinity, "widen"}, has.backward and has.accumulate and {grad, "widen"},
            has.backward and {grad, "narrow"}, has.backward and has.norm and {given_dx, "narrow"}},
    }
    -- The call that makes weights of n rows of logits, and their sum; true_size: of scores, see scores.lua.
    function names.summed(rows, n, true_size)
        local tile, twice = "softmax", true
        if has.alone then
            tile, twice = scores.sum_name(method.weigh, true_size)
        end
        return ("%s%s(%s, %s%s)"):format(cfg.prefix, tile, rows, n, twice and (", -%s * LANES"):format(n) or "")
    end
    work[spec.op](names, has)
    names.tiles = function()
        return tiles[spec.op](spec, has, cfg, s, names)
    end
    return names
end

return router
